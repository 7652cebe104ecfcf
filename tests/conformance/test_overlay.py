"""The overlay backend keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

import podbot.sandbox
from podbot.sandbox import AsyncSandbox, Sandbox
from podbot.testing import AsyncSandboxConformance, SandboxConformance


class TestOverlay(SandboxConformance):
    waits_for_death = False  # opened with discard=True; tests/overlay tries it without
    confines_files = False  # the rest of the file system is there too, read-only

    @pytest.fixture(autouse=True)
    def target(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder: Path = tmp_path_factory.mktemp("target")

    def open_sandbox(self, **options: object) -> Sandbox:
        return podbot.sandbox.open("overlay", target=self.folder, discard=True, **options)


class TestAsyncOverlay(AsyncSandboxConformance):
    confines_files = False
    waits_for_death = False

    @pytest.fixture(autouse=True)
    def target(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder: Path = tmp_path_factory.mktemp("target")

    def open_async_sandbox(self, **options: object) -> AsyncSandbox:
        return podbot.sandbox.open_async("overlay", target=self.folder, discard=True, **options)
