"""Whatever can start a Python and carry bytes keeps the contract."""

from __future__ import annotations

from piped import PipedLauncher

from podbot.sandbox import AsyncSandbox, Sandbox
from podbot.testing import AsyncSandboxConformance, SandboxConformance


class TestOverStream(SandboxConformance):
    def open_sandbox(self, **options: object) -> Sandbox:
        return PipedLauncher(**options).sandbox()


class TestAsyncOverStream(AsyncSandboxConformance):
    def open_async_sandbox(self, **options: object) -> AsyncSandbox:
        return PipedLauncher(**options).async_sandbox()
