"""Sandboxes: run commands, Python and file operations somewhere that says what it isolates.

    import podbot.sandbox

    with podbot.sandbox.open("overlay", target="~/project") as sandbox:
        print(sandbox.exec(["git", "status"]).stdout)

`Sandbox` is the contract; `open` and `open_async` choose a backend by name. Names here are the
public API; modules below are not.
"""

from __future__ import annotations

from podbot.errors import FileError, GuestLostError, Kind, LaunchError, PodbotError, SandboxError
from podbot.sandbox.async_sandbox import AsyncProcess, AsyncSandbox
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

__all__ = [
    "DEFAULT_ENVIRONMENT",
    "DEFAULT_HIDDEN",
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


def open(backend: str = "overlay", **options: object) -> Sandbox:
    """Open a sandbox by its backend's name: ``memory``, ``local``, ``overlay`` or a plugin's.

    ``options`` are the backend's own, besides ``policy`` and ``limits``, which all take; see
    `LocalSandbox` and `OverlaySandbox`. Raises `LaunchError`, or kind ``unknown_backend``.
    """
    return Sandbox(find(backend)(**options))


def open_async(backend: str = "overlay", **options: object) -> AsyncSandbox:
    """The async twin of `open`: await it, or use it in ``async with``."""
    return AsyncSandbox(find(backend)(**options))
