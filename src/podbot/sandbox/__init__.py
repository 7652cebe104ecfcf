"""Sandboxes: run commands, Python and file operations somewhere that says what it isolates.

    import podbot.sandbox

    with podbot.sandbox.open("overlay", target="~/project") as sandbox:
        print(sandbox.exec(["git", "status"]).stdout)

`Sandbox` is the contract; `open` and `open_async` choose a backend by name. Names here are the
public API; modules below are not, but for `over_stream`, which is for whoever writes a backend.
"""

from __future__ import annotations

from podbot.on_use import on_use

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.errors import (
        FileError,
        GuestLostError,
        Kind,
        LaunchError,
        PodbotError,
        SandboxError,
    )
    from podbot.sandbox.async_backends import (
        AsyncLocalSandbox,
        AsyncMemorySandbox,
        AsyncOverlaySandbox,
    )
    from podbot.sandbox.async_sandbox import AsyncProcess, AsyncSandbox
    from podbot.sandbox.container.async_sandbox import AsyncContainerSandbox
    from podbot.sandbox.container.sandbox import ContainerSandbox
    from podbot.sandbox.launcher import Launched, Launcher
    from podbot.sandbox.layers import Layer
    from podbot.sandbox.limits import Limits
    from podbot.sandbox.local import LocalSandbox
    from podbot.sandbox.memory import MemorySandbox
    from podbot.sandbox.network import Network
    from podbot.sandbox.ops import Terminal
    from podbot.sandbox.overlay.launcher import OverlaySandbox
    from podbot.sandbox.policy import DEFAULT_ENVIRONMENT, DEFAULT_HIDDEN, Policy
    from podbot.sandbox.pool import Pool
    from podbot.sandbox.sandbox import Process, Sandbox
    from podbot.sandbox.shell_sessions import AsyncShell, Shell, ShellRun
    from podbot.sandbox.values import (
        Evaluated,
        ExecResult,
        FileInfo,
        GrepMatch,
        GrepResult,
        Guarantee,
        NewestFiles,
        PythonResult,
        TransferResult,
    )

__all__ = [
    "DEFAULT_ENVIRONMENT",
    "DEFAULT_HIDDEN",
    "AsyncContainerSandbox",
    "AsyncLocalSandbox",
    "AsyncMemorySandbox",
    "AsyncOverlaySandbox",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncShell",
    "ContainerSandbox",
    "Evaluated",
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
    "Layer",
    "Limits",
    "LocalSandbox",
    "MemorySandbox",
    "Network",
    "NewestFiles",
    "OverlaySandbox",
    "PodbotError",
    "Policy",
    "Pool",
    "Process",
    "PythonResult",
    "Sandbox",
    "SandboxError",
    "Shell",
    "ShellRun",
    "Terminal",
    "TransferResult",
    "open",
    "open_async",
]

# Found when first used: whoever needs one part does not pay for the others.
_HOMES = {
    "podbot.errors": "FileError GuestLostError Kind LaunchError PodbotError SandboxError",
    "podbot.sandbox.async_backends": "AsyncLocalSandbox AsyncMemorySandbox AsyncOverlaySandbox",
    "podbot.sandbox.async_sandbox": "AsyncProcess AsyncSandbox",
    "podbot.sandbox.container.async_sandbox": "AsyncContainerSandbox",
    "podbot.sandbox.container.sandbox": "ContainerSandbox",
    "podbot.sandbox.launcher": "Launched Launcher",
    "podbot.sandbox.limits": "Limits",
    "podbot.sandbox.local": "LocalSandbox",
    "podbot.sandbox.memory": "MemorySandbox",
    "podbot.sandbox.network": "Network",
    "podbot.sandbox.ops": "Terminal",
    "podbot.sandbox.overlay.launcher": "OverlaySandbox",
    "podbot.sandbox.layers": "Layer",
    "podbot.sandbox.policy": "DEFAULT_ENVIRONMENT DEFAULT_HIDDEN Policy",
    "podbot.sandbox.pool": "Pool",
    "podbot.sandbox.sandbox": "Process Sandbox",
    "podbot.sandbox.shell_sessions": "AsyncShell Shell ShellRun",
    "podbot.sandbox.values": (
        "Evaluated ExecResult FileInfo GrepMatch GrepResult Guarantee NewestFiles PythonResult "
        "TransferResult"
    ),
}

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:
    __getattr__ = on_use(globals(), _HOMES)


def open(backend: str = "overlay", **options: object) -> Sandbox:
    """Open a sandbox by its backend's name: ``overlay``, ``container`` (or ``podman``),
    ``memory``, ``local``, or a plugin's.

    ``options`` are the backend's own, besides ``policy`` and ``limits``, which all take; see
    `LocalSandbox`, `OverlaySandbox` and `ContainerSandbox`. Raises `LaunchError`, or kinds
    ``unknown_backend`` and ``invalid`` (an option that the backend does not have).
    """
    from podbot.sandbox.options import launcher_of

    return launcher_of(backend, options).sandbox()


def open_async(backend: str = "overlay", **options: object) -> AsyncSandbox:
    """The async twin of `open`: await it, or use it in ``async with``."""
    from podbot.sandbox.options import launcher_of

    return launcher_of(backend, options).async_sandbox()
