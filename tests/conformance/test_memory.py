"""The memory backend keeps the contract."""

from __future__ import annotations

import podbot.sandbox
from podbot.sandbox import AsyncSandbox, Sandbox
from podbot.testing import AsyncSandboxConformance, SandboxConformance


class TestMemory(SandboxConformance):
    has_processes = False

    def open_sandbox(self, **options: object) -> Sandbox:
        return podbot.sandbox.open("memory", **options)


class TestAsyncMemory(AsyncSandboxConformance):
    has_processes = False

    def open_async_sandbox(self, **options: object) -> AsyncSandbox:
        return podbot.sandbox.open_async("memory", **options)
