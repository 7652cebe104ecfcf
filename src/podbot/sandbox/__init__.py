"""Sandboxes: run commands, Python and file operations somewhere that says what it isolates.

    import podbot.sandbox

    with podbot.sandbox.open("overlay", target="~/project") as sandbox:
        print(sandbox.exec(["git", "status"]).stdout)

`Sandbox` is the contract; `open` and `open_async` choose a backend by name. Names here are the
public API; modules below are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podbot.errors import FileError, GuestLostError, Kind, LaunchError, PodbotError, SandboxError
from podbot.sandbox.launcher import Launched, Launcher, find
from podbot.sandbox.limits import Limits
from podbot.sandbox.ops import Terminal
from podbot.sandbox.policy import DEFAULT_ENVIRONMENT, DEFAULT_HIDDEN, Policy
from podbot.sandbox.sandbox import Process, Sandbox
from podbot.sandbox.values import (
    ExecResult,
    FileInfo,
    GrepMatch,
    GrepResult,
    Guarantee,
    PythonResult,
    TransferResult,
)

if TYPE_CHECKING:
    from podbot.sandbox.async_memory import AsyncMemorySandbox
    from podbot.sandbox.async_sandbox import AsyncProcess, AsyncSandbox
    from podbot.sandbox.memory import MemorySandbox

__all__ = [
    "DEFAULT_ENVIRONMENT",
    "DEFAULT_HIDDEN",
    "AsyncMemorySandbox",
    "AsyncProcess",
    "AsyncSandbox",
    "ExecResult",
    "FileError",
    "FileInfo",
    "GrepMatch",
    "GrepResult",
    "Guarantee",
    "GuestLostError",
    "Kind",
    "LaunchError",
    "Launched",
    "Launcher",
    "Limits",
    "MemorySandbox",
    "PodbotError",
    "Policy",
    "Process",
    "PythonResult",
    "Sandbox",
    "SandboxError",
    "Terminal",
    "TransferResult",
    "open",
    "open_async",
]

# Found when first used: asyncio and subprocess would double the time of importing this module.
_LAZY = {
    "AsyncMemorySandbox": "podbot.sandbox.async_memory",
    "AsyncProcess": "podbot.sandbox.async_sandbox",
    "AsyncSandbox": "podbot.sandbox.async_sandbox",
    "MemorySandbox": "podbot.sandbox.memory",
}

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value: object = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value  # found at once the next time
        return value


def open(backend: str = "overlay", **options: object) -> Sandbox:
    """Open a sandbox by its backend's name: ``memory``, ``local``, ``overlay`` or a plugin's.

    ``options`` are the backend's own, besides ``policy`` and ``limits``, which all take; see
    `LocalSandbox` and `OverlaySandbox`. Raises `LaunchError`, or kind ``unknown_backend``.
    """
    return Sandbox(find(backend)(**options))


def open_async(backend: str = "overlay", **options: object) -> AsyncSandbox:
    """The async twin of `open`: await it, or use it in ``async with``."""
    from podbot.sandbox.async_sandbox import AsyncSandbox

    return AsyncSandbox(find(backend)(**options))
