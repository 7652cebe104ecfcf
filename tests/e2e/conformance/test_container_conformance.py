"""The container backend keeps the contract, on every engine and runtime there is.

A test that only takes ``sandbox`` gets one that others used before it, emptied: making a container
takes longer than most tests do. Tests that open their own get a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
from services import Service

import podbot.sandbox
from podbot.sandbox import AsyncSandbox, Sandbox
from podbot.testing import AsyncSandboxConformance, SandboxConformance

pytestmark = [pytest.mark.e2e, pytest.mark.podman]


class Shared:
    """One sandbox that several tests use, one after the other."""

    _shared: ClassVar[dict[str, Sandbox]] = {}
    confines_files = False  # the image's files are there too, read-only

    @pytest.fixture(autouse=True)
    def engine(self, service: Service) -> None:
        self.service = service
        self.options = {"engine": service.url, "image": service.image}

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def shared_ones(cls) -> Iterator[None]:
        cls._shared = {}
        yield
        for sandbox in cls._shared.values():
            sandbox.close()

    @pytest.fixture
    def sandbox(self, engine: None) -> Iterator[Sandbox]:
        sandbox = self._shared.get(self.service.kind)
        if sandbox is None or sandbox.closed:
            sandbox = self._shared[self.service.kind] = self.open_sandbox()
        yield sandbox
        if not sandbox.closed:
            emptied(sandbox)

    def open_sandbox(self, **options: object) -> Sandbox:
        raise NotImplementedError


def emptied(sandbox: Sandbox) -> None:
    """As it was when it was new, as far as the tests can tell."""
    for process in sandbox.processes():
        process.close()
    sandbox.python_restart()
    sandbox.exec(["sh", "-c", "kill -9 -1"])
    for folder in (sandbox.workdir, "/tmp"):
        for entry in sandbox.list(folder):
            sandbox.remove(f"{folder}/{entry.path.rpartition('/')[2]}", recursive=True)


@pytest.mark.engines("rootful", "rootless", "docker", "runsc")
class TestContainer(Shared, SandboxConformance):
    def open_sandbox(self, **options: object) -> Sandbox:
        return podbot.sandbox.open("container", **self.options, **options)


@pytest.mark.engines("rootful")
class TestAsyncContainer(Shared, AsyncSandboxConformance):
    def open_sandbox(self, **options: object) -> Sandbox:
        return AsyncSandboxConformance.open_sandbox(self, **options)

    def open_async_sandbox(self, **options: object) -> AsyncSandbox:
        return podbot.sandbox.open_async("container", **self.options, **options)
