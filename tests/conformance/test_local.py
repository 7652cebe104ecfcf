"""The local backend keeps the contract."""

from __future__ import annotations

import podbot.sandbox
from podbot.sandbox import AsyncSandbox, Sandbox
from podbot.testing import AsyncSandboxConformance, SandboxConformance


class TestLocal(SandboxConformance):
    def open_sandbox(self, **options: object) -> Sandbox:
        return podbot.sandbox.open("local", **options)


class TestAsyncLocal(AsyncSandboxConformance):
    def open_async_sandbox(self, **options: object) -> AsyncSandbox:
        return podbot.sandbox.open_async("local", **options)
