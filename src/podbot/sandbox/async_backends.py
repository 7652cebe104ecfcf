"""The backends' classes for an event loop, apart from the others: sync callers skip asyncio."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from podbot.sandbox.async_sandbox import AsyncSandbox
from podbot.sandbox.folders import Target
from podbot.sandbox.layers import Layer
from podbot.sandbox.limits import Limits
from podbot.sandbox.local import LocalLauncher
from podbot.sandbox.memory import MemoryLauncher
from podbot.sandbox.overlay.launcher import OverlayLauncher
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


class AsyncLocalSandbox(AsyncSandbox):
    """The async twin of `LocalSandbox`."""

    def __init__(
        self,
        target: str | os.PathLike[str] | None = None,
        *,
        policy: Policy | None = None,
        limits: Limits | None = None,
    ):
        super().__init__(LocalLauncher(target, policy=policy, limits=limits))


class AsyncOverlaySandbox(AsyncSandbox):
    """The async twin of `OverlaySandbox`."""

    def __init__(
        self,
        target: Target | Sequence[Target] | None = None,
        *,
        policy: Policy | None = None,
        limits: Limits | None = None,
        discard: bool = False,
        layer: Layer | None = None,
        title: str | None = None,
    ):
        super().__init__(
            OverlayLauncher(
                target, policy=policy, limits=limits, discard=discard, layer=layer, title=title
            )
        )
