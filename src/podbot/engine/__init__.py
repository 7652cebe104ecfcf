"""The container engine: find it, make and look after containers, move archives, handle images.

    from podbot import engine

    with engine.connect() as docker_or_podman:
        spec = engine.ContainerSpec("localhost/podbot-sandbox:latest", ("sleep", "infinity"))
        made = docker_or_podman.containers.create(spec)

Podman and Docker, over one client of podbot's own. Names here are the public API; modules below are
not. Nothing is loaded until it is used.
"""

from __future__ import annotations

from podbot.on_use import on_use

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.engine._escapes import EscapeWarning, KnownEscape, known_escapes
    from podbot.engine._packing import Entry, pack, pack_tree
    from podbot.engine._resolved import Difference, Resolved
    from podbot.engine._tar_reading import Member, TarReader
    from podbot.engine._unpacking import Unpacked, UnpackLimits, unpack
    from podbot.engine.containers import Containers, ContainerState, ContainerSummary, Created
    from podbot.engine.engine import Engine
    from podbot.engine.execs import ExecOutput, Execs, ExecSpec, ExecState, exit_status
    from podbot.engine.facts import About, Component, Facts
    from podbot.engine.finding.connecting import (
        ConnectOptions,
        connect,
        connect_and_verify,
        connect_with_runtime,
    )
    from podbot.engine.finding.endpoints import Endpoint
    from podbot.engine.http.client import Streaming
    from podbot.engine.http.hijacked import Frames, Hijacked
    from podbot.engine.image.images import DEFAULT_IMAGE, BuildOrder, ImageInfo, Images, Progress
    from podbot.engine.labels import owner_alive, owner_label, owner_state
    from podbot.engine.profiles import (
        PRIVILEGED,
        TOOLS,
        Device,
        Profile,
        SandboxSettings,
        Tmpfs,
        agent_profile,
    )
    from podbot.engine.specs import BindMount, ContainerSpec, Mount, OverlayMount, VolumeMount

__all__ = [
    "DEFAULT_IMAGE",
    "PRIVILEGED",
    "TOOLS",
    "About",
    "BindMount",
    "BuildOrder",
    "Component",
    "ConnectOptions",
    "ContainerSpec",
    "ContainerState",
    "ContainerSummary",
    "Containers",
    "Created",
    "Device",
    "Difference",
    "Endpoint",
    "Engine",
    "Entry",
    "EscapeWarning",
    "ExecOutput",
    "ExecSpec",
    "ExecState",
    "Execs",
    "Facts",
    "Frames",
    "Hijacked",
    "ImageInfo",
    "Images",
    "KnownEscape",
    "Member",
    "Mount",
    "OverlayMount",
    "Profile",
    "Progress",
    "Resolved",
    "SandboxSettings",
    "Streaming",
    "TarReader",
    "Tmpfs",
    "UnpackLimits",
    "Unpacked",
    "VolumeMount",
    "agent_profile",
    "connect",
    "connect_and_verify",
    "connect_with_runtime",
    "exit_status",
    "known_escapes",
    "owner_alive",
    "owner_label",
    "owner_state",
    "pack",
    "pack_tree",
    "unpack",
]

_HOMES = {
    "podbot.engine.http.client": "Streaming",
    "podbot.engine.finding.connecting": (
        "ConnectOptions connect connect_and_verify connect_with_runtime"
    ),
    "podbot.engine.containers": "Containers ContainerState ContainerSummary Created",
    "podbot.engine.finding.endpoints": "Endpoint",
    "podbot.engine.engine": "Engine",
    "podbot.engine._escapes": "EscapeWarning KnownEscape known_escapes",
    "podbot.engine.execs": "ExecOutput Execs ExecSpec ExecState exit_status",
    "podbot.engine.facts": "About Component Facts",
    "podbot.engine.http.hijacked": "Frames Hijacked",
    "podbot.engine.image.images": "DEFAULT_IMAGE BuildOrder ImageInfo Images Progress",
    "podbot.engine.labels": "owner_alive owner_label owner_state",
    "podbot.engine._packing": "Entry pack pack_tree",
    "podbot.engine.profiles": "PRIVILEGED TOOLS Device Profile SandboxSettings Tmpfs agent_profile",
    "podbot.engine._resolved": "Difference Resolved",
    "podbot.engine.specs": "BindMount ContainerSpec Mount OverlayMount VolumeMount",
    "podbot.engine._tar_reading": "Member TarReader",
    "podbot.engine._unpacking": "Unpacked UnpackLimits unpack",
}

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:
    __getattr__ = on_use(globals(), _HOMES)
