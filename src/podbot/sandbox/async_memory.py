"""The memory backend for an event loop. Apart from `memory`, so that sync callers skip asyncio."""

from __future__ import annotations

from collections.abc import Mapping

from podbot.sandbox.async_sandbox import AsyncSandbox
from podbot.sandbox.limits import Limits
from podbot.sandbox.memory import MemoryLauncher
from podbot.sandbox.policy import Policy


class AsyncMemorySandbox(AsyncSandbox):
    """The async twin of `MemorySandbox`."""

    def __init__(
        self,
        *,
        files: Mapping[str, bytes | str] | None = None,
        policy: Policy | None = None,
        limits: Limits | None = None,
    ):
        super().__init__(MemoryLauncher(policy, limits, files))
