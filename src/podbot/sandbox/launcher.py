"""The seam between *where* a sandbox runs and *what* it can do.

A backend is a `Launcher`: it starts a guest somewhere and hands back a connected socket (or, for
a backend without processes, a channel of its own), what it enforces, and how to end it. A third
party registers one under the entry point group ``podbot.sandbox``; the conformance suite in
``podbot.testing`` then says whether it keeps the contract.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from podbot.errors import Kind, SandboxError
from podbot.frozen import dataclass, field
from podbot.sandbox.channel import Channel
from podbot.sandbox.limits import Limits
from podbot.sandbox.policy import Policy
from podbot.sandbox.values import Guarantee

if TYPE_CHECKING:
    from podbot.sandbox.overlay.layers import Layer

ENTRY_POINTS = "podbot.sandbox"


@dataclass(frozen=True, slots=True)
class Launched:
    """A guest that runs.

    ``config`` is the guest's first request (see ``guest.py``); a backend that brings its own
    ``channel`` leaves it empty. ``end()`` kills everything of the sandbox and waits for it;
    it may be called twice. ``died()`` may know why a guest that hung up did so. ``layer`` is where
    the changes are, for a backend that keeps them apart. ``descriptors`` is false for a socket
    that does not lead to the guest itself: then none can be passed along.
    """

    workdir: str
    guarantees: tuple[Guarantee, ...]
    end: Callable[[], None]
    connection: socket.socket | Channel
    config: dict[str, object] = field(default_factory=dict)
    died: Callable[[], SandboxError | None] = lambda: None
    notes: tuple[str, ...] = ()
    layer: Layer | None = None
    descriptors: bool = True


class Launcher(Protocol):
    """Starts one sandbox.

    A backend whose sandboxes can do more than others also has ``sandbox()`` and
    ``async_sandbox()``, which give one of its own class.
    """

    name: str
    limits: Limits
    policy: Policy

    def launch(self) -> Launched:
        """Start the guest; blocks. Raises `LaunchError`, leaving nothing behind."""
        ...


LauncherFactory = Callable[..., Launcher]


def find(name: str) -> LauncherFactory:
    """The launcher registered under a backend's name."""
    # Imported when asked for: each backend brings weight the others do not need.
    if name == "memory":
        from podbot.sandbox.memory import MemoryLauncher

        return MemoryLauncher
    if name == "local":
        from podbot.sandbox.local import LocalLauncher

        return LocalLauncher
    if name == "overlay":
        from podbot.sandbox.overlay.launcher import OverlayLauncher

        return OverlayLauncher
    if name == "container":
        from podbot.sandbox.container.launcher import ContainerLauncher

        return ContainerLauncher
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS, name=name):
        factory: LauncherFactory = entry.load()
        return factory
    others = ", ".join(sorted(entry.name for entry in entry_points(group=ENTRY_POINTS)))
    raise SandboxError(
        f"there is no sandbox backend {name!r}",
        kind=Kind.UNKNOWN_BACKEND,
        remedy="use memory, local, overlay or container (Podman and Docker)"
        + (f", or one of: {others}" if others else ""),
    )
