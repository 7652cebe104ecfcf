"""The container engine: find it, make and watch containers, move archives, handle images.

    from podbot import engine

    with engine.connect() as docker_or_podman:
        spec = engine.ContainerSpec("localhost/podbot-sandbox:latest", ("sleep", "infinity"))
        made = docker_or_podman.containers.create(spec)

Podman and Docker, over one client of podbot's own. Names here are the public API; modules below are
not. Nothing is loaded until it is used.
"""

from __future__ import annotations

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.engine.connecting import ConnectOptions, connect, connect_and_verify
    from podbot.engine.containers import ContainerState, ContainerSummary, Created
    from podbot.engine.endpoints import Endpoint
    from podbot.engine.engine import Engine
    from podbot.engine.facts import About, Facts
    from podbot.engine.hijacked import Frames, Hijacked
    from podbot.engine.images import DEFAULT_IMAGE
    from podbot.engine.labels import owner_alive, owner_label, owner_state
    from podbot.engine.profiles import (
        TOOLS,
        Device,
        Profile,
        SandboxSettings,
        Tmpfs,
        agent_profile,
    )
    from podbot.engine.resolved import Difference, Resolved
    from podbot.engine.specs import BindMount, ContainerSpec, OverlayMount, VolumeMount

__all__ = [
    "DEFAULT_IMAGE",
    "TOOLS",
    "About",
    "BindMount",
    "ConnectOptions",
    "ContainerSpec",
    "ContainerState",
    "ContainerSummary",
    "Created",
    "Device",
    "Difference",
    "Endpoint",
    "Engine",
    "Facts",
    "Frames",
    "Hijacked",
    "OverlayMount",
    "Profile",
    "Resolved",
    "SandboxSettings",
    "Tmpfs",
    "VolumeMount",
    "agent_profile",
    "connect",
    "connect_and_verify",
    "owner_alive",
    "owner_label",
    "owner_state",
]

_HOMES = {
    "podbot.engine.connecting": "ConnectOptions connect connect_and_verify",
    "podbot.engine.containers": "ContainerState ContainerSummary Created",
    "podbot.engine.endpoints": "Endpoint",
    "podbot.engine.engine": "Engine",
    "podbot.engine.facts": "About Facts",
    "podbot.engine.hijacked": "Frames Hijacked",
    "podbot.engine.images": "DEFAULT_IMAGE",
    "podbot.engine.labels": "owner_alive owner_label owner_state",
    "podbot.engine.profiles": "TOOLS Device Profile SandboxSettings Tmpfs agent_profile",
    "podbot.engine.resolved": "Difference Resolved",
    "podbot.engine.specs": "BindMount ContainerSpec OverlayMount VolumeMount",
}
_LAZY = {name: home for home, names in _HOMES.items() for name in names.split()}

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value: object = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value  # found at once the next time
        return value
