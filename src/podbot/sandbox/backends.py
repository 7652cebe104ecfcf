"""The names of backends: podbot's own, their other names, and those of other packages.

One table, for everything that takes a backend's name: `podbot.sandbox.open`, the command line, the
MCP server. Nothing of a backend is loaded before its launcher is asked for.
"""

from __future__ import annotations

from importlib import import_module

from podbot.errors import Kind, SandboxError

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

    from podbot.sandbox.launcher import Launcher

OVERLAY: Final = "overlay"
CONTAINER: Final = "container"
"""A container of Podman or Docker."""
MEMORY: Final = "memory"
LOCAL: Final = "local"

LAUNCHERS: Mapping[str, str] = {
    OVERLAY: "podbot.sandbox.overlay.launcher:OverlayLauncher",
    CONTAINER: "podbot.sandbox.container.launcher:ContainerLauncher",
    MEMORY: "podbot.sandbox.memory:MemoryLauncher",
    LOCAL: "podbot.sandbox.local:LocalLauncher",
}
"""Where each of podbot's own is."""

NAMES: tuple[str, ...] = tuple(LAUNCHERS)
"""The names of podbot's own, the default first."""

ALIASES: Mapping[str, str] = {"podman": CONTAINER}
"""Other names, and the backend that each means."""

MEANT: Mapping[str, str] = {
    **dict.fromkeys(("docker", "nerdctl", "containerd", "oci", "containers"), CONTAINER),
    **dict.fromkeys(("bwrap", "bubblewrap", "overlayfs"), OVERLAY),
    **dict.fromkeys(("host", "none"), LOCAL),
}
"""Names that people try, and the backend that each is nearest to."""

ENTRY_POINTS = "podbot.sandbox"
"""The group under which another package registers its backend."""


def real_name(name: str) -> str:
    """A backend's own name, which podbot writes and shows; a name it does not know stays as is."""
    return ALIASES.get(name, name)


def others() -> tuple[str, ...]:
    """The names that other packages have registered."""
    from importlib.metadata import entry_points

    return tuple(sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)}))


def find(name: str) -> type[Launcher]:
    """The launcher of a backend.

    Raises kind ``unknown_backend``: nobody registered it, or what was registered is no `Launcher`.
    """
    place = LAUNCHERS.get(real_name(name))
    if place is not None:
        module, _, attribute = place.partition(":")
        launcher: type[Launcher] = getattr(import_module(module), attribute)
        return launcher
    from importlib.metadata import entry_points

    from podbot.sandbox.launcher import Launcher

    for entry in entry_points(group=ENTRY_POINTS, name=name):
        loaded: object = entry.load()
        if not (isinstance(loaded, type) and issubclass(loaded, Launcher)):
            raise SandboxError(
                f"the sandbox backend {name!r} cannot be used: {entry.value} is not a subclass of "
                "podbot.sandbox.Launcher",
                kind=Kind.UNKNOWN_BACKEND,
                remedy="ask whoever made the package that registers it",
            )
        return loaded
    from podbot.nearest import nearest

    others_known = others()
    close = MEANT.get(name.lower()) or nearest(name, (*NAMES, *others_known, *ALIASES))
    able = ", ".join((OVERLAY, CONTAINER, LOCAL, *others_known))
    raise SandboxError(
        f"there is no sandbox backend {name!r}" + (f"; did you mean {close!r}?" if close else ""),
        kind=Kind.UNKNOWN_BACKEND,
        remedy=f"use one of: {able}; or {MEMORY}, for files alone: no command runs in it",
    )
