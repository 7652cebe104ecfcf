"""What a container may do, as values: `TOOLS` for tool sandboxes, `agent_profile` for agents.

A `Profile` says everything that matters for isolation and nothing else (image, command, mounts and
names are in `ContainerSpec`). It can be printed, turned into a create request (`requests.py`) and
compared with what the engine really made (`_resolved.py`). Nothing here talks to an engine.
"""

from __future__ import annotations

import math
from typing import Literal

from podbot.errors import ConfigError, Kind
from podbot.frozen import dataclass, replace

MIB = 1024 * 1024
GIB = 1024 * MIB
CPU_PERIOD = 100_000

NOBODY = "65534:65534"

SelinuxLabelMode = Literal["disable_for_container", "keep_default"]
Nested = Literal["none", "rootless", "sys_admin"]
Seccomp = Literal["podbot", "nested", "default", "unconfined"]
Selinux = Literal["default", "disable"]


@dataclass(frozen=True, slots=True)
class Tmpfs:
    """A file system in memory. Never setuid, never devices; files may be executed if ``exec``."""

    path: str
    size: int | None = None
    mode: int = 0o1777
    exec: bool = True

    @property
    def options(self) -> tuple[str, ...]:
        """As engines want them."""
        size = () if self.size is None else (f"size={self.size}",)
        runs = "exec" if self.exec else "noexec"
        return ("rw", "nosuid", "nodev", runs, *size, f"mode={self.mode:04o}")


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the host's that is seen inside under the same name."""

    path: str
    permissions: str = "rwm"


@dataclass(frozen=True, slots=True)
class Profile:
    """What a container may do. ``None`` and empty mean what the engine does by default.

    - ``user``: ``uid:gid`` inside. ``userns``: ``keep-id:uid=…,gid=…`` (Podman) maps the caller
      onto it, ``auto`` (Podman) gives ids of its own, ``host`` none.
    - ``drop``, ``add``: capabilities, without ``CAP_``; ``("ALL",)`` drops every one.
    - ``seccomp``: which system calls there are. ``podbot``: what the overlay has; ``nested``: the
      same with namespaces and mounts; ``default``: what the engine's own filter lets through.
    - ``selinux``, ``unmask``: confinements that nested containers need less of.
    - ``network``: ``none`` (loopback only), ``host``, or a name the engine knows.
    - ``cpu`` in processors; ``memory`` in bytes (with ``swap=False`` nothing goes to swap);
      ``pids``: processes and threads at once; ``file_size``: bytes of any one file.
    - ``init``: a first process that reaps and passes signals on.
    """

    name: str
    user: str | None = None
    userns: str | None = None
    privileged: bool = False
    drop: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    no_new_privileges: bool = False
    selinux: Selinux = "default"
    seccomp: Seccomp = "default"
    unmask: bool = False
    read_only: bool = False
    tmpfs: tuple[Tmpfs, ...] = ()
    devices: tuple[Device, ...] = ()
    network: str | None = None
    cpu: float | None = None
    memory: int | None = None
    swap: bool = True
    pids: int | None = None
    file_size: int | None = None
    shm: int | None = None
    init: bool = False

    def __post_init__(self) -> None:
        words = {"selinux": ("default", "disable"), "seccomp": tuple(_FILTERS)}
        for name, known in words.items():
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"profile {self.name}: {name}={getattr(self, name)!r} is not known",
                    kind=Kind.INVALID,
                    remedy=f"use one of: {', '.join(known)}",
                    field=name,
                )
        for name in ("cpu", "memory", "pids", "file_size", "shm"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(
                    f"profile {self.name}: {name}={value!r} is not a positive number",
                    kind=Kind.INVALID,
                    remedy=f"give a {name} above zero, or None for no limit",
                    field=name,
                )

    @property
    def cpu_quota(self) -> int | None:
        """Microseconds of processor time in each `CPU_PERIOD`."""
        return None if self.cpu is None else max(1000, round(self.cpu * CPU_PERIOD))

    def as_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""
        found: dict[str, object] = {}
        for name in self.__match_args__:
            value = getattr(self, name)
            if name == "tmpfs":
                value = {mount.path: ",".join(mount.options) for mount in self.tmpfs}
            elif name == "devices":
                value = {device.path: device.permissions for device in self.devices}
            elif isinstance(value, tuple):
                value = list(value)
            found[name] = value
        return found

    def describe(self) -> str:
        """A few lines for people: what is given, what is taken, what is limited."""
        if self.privileged:
            return (
                f"{self.name}: privileged. The engine gives it every capability and device; its\n"
                "root can take over the machine."
            )
        return f"{self.name}:\n" + "\n".join(f"  {name:14}{said}" for name, said in self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        caps = "none" if "ALL" in self.drop else "the engine's default"
        if self.drop and "ALL" not in self.drop:
            caps += " without " + ", ".join(self.drop)
        if self.add:
            caps += " and " + ", ".join(self.add)
        lines = [
            ("user", self.user or "the image's"),
            ("ids", self.userns or "the engine's default"),
            ("capabilities", caps),
            ("privileges", "cannot be gained" if self.no_new_privileges else "as the image says"),
            ("root", "read-only" if self.read_only else "writable"),
            ("network", self.network or "the engine's default"),
            ("system calls", _FILTERS[self.seccomp]),
        ]
        for mount in self.tmpfs:
            lines.append(("memory files", f"{mount.path} ({','.join(mount.options)})"))
        for device in self.devices:
            lines.append(("device", f"{device.path} ({device.permissions})"))
        lowered = [
            word
            for word, on in (
                ("SELinux label off", self.selinux == "disable"),
                ("calls for namespaces and mounts", self.seccomp == "nested"),
                ("seccomp off", self.seccomp == "unconfined"),
                ("/proc and /sys unmasked", self.unmask),
            )
            if on
        ]
        lines.append(("loosened", ", ".join(lowered) or "nothing"))
        limits = [
            f"{name} {value:g}" if name == "cpu" else f"{name} {value}"
            for name in ("cpu", "memory", "pids", "file_size")
            if (value := getattr(self, name)) is not None
        ]
        if self.memory is not None:
            limits.append("swap too" if self.swap else "no swap")
        lines.append(("limits", ", ".join(limits) or "none"))
        lines.append(("init", "yes" if self.init else "no"))
        return lines


_FILTERS = {
    "podbot": "podbot's filter: no namespace, mount, vsock, keyring, bpf, io_uring, …",
    "nested": "podbot's filter, with namespaces and mounts",
    "default": "the engine's own filter",
    "unconfined": "all there are",
}

TOOLS = Profile(
    name="tools",
    user=NOBODY,
    drop=("ALL",),
    no_new_privileges=True,
    seccomp="podbot",
    read_only=True,
    tmpfs=(Tmpfs("/tmp", 256 * MIB),),  # noqa: S108 - the container's own
    network="none",
    cpu=1.0,
    memory=GIB,
    swap=False,
    pids=1024,
    init=True,
)
"""For tools that run model-chosen commands: nobody, nothing, nowhere."""

PRIVILEGED = Profile(
    name="tools, privileged",
    user="0:0",
    privileged=True,
    tmpfs=TOOLS.tmpfs,
    network=TOOLS.network,
    cpu=TOOLS.cpu,
    memory=TOOLS.memory,
    swap=TOOLS.swap,
    pids=TOOLS.pids,
    init=TOOLS.init,
)
"""For tools that were given everything on purpose, but the network and more than its share."""


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """The ``[sandbox]`` section of the settings, as far as it shapes a container.

    ``mount_dev_fuse`` is what older files say for nesting with SYS_ADMIN; ``nested`` is the newer
    word, and ``rootless`` the way that adds no capability.
    """

    privileged: bool = False
    mount_dev_fuse: bool = False
    selinux_label_mode: SelinuxLabelMode = "disable_for_container"
    nested: Nested = "none"

    def __post_init__(self) -> None:
        _one_of("selinux_label_mode", self.selinux_label_mode, SelinuxLabelMode.__args__)  # type: ignore[attr-defined]  # typing does not say what a Literal has
        _one_of("nested", self.nested, Nested.__args__)  # type: ignore[attr-defined]  # likewise


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(
            f"sandbox.{name} = {value!r} is not known",
            kind=Kind.INVALID,
            remedy="use one of: " + ", ".join(known),
            field=f"sandbox.{name}",
        )


FUSE = Device("/dev/fuse")
TUN = Device("/dev/net/tun")


def agent_profile(settings: SandboxSettings | None = None) -> Profile:
    """The profile of an agent's container: root of its own, a writable root, no more than asked.

    Privileged leaves all else to the engine, and the other settings do not count. Otherwise the
    engine's default confinement holds, less what the settings take away.
    """
    settings = settings or SandboxSettings()
    if settings.privileged:
        return Profile(name="agent, privileged", privileged=True)
    profile = Profile(
        name="agent",
        seccomp="podbot",
        selinux="disable" if settings.selinux_label_mode == "disable_for_container" else "default",
    )
    if settings.mount_dev_fuse:
        profile = replace(profile, seccomp="nested", add=("SYS_ADMIN",), devices=(FUSE,))
    if settings.nested == "rootless":
        # An inner Podman as an ordinary user makes its own namespaces: it needs the calls for
        # that, and a /proc it may mount over, but no capability.
        devices = (*profile.devices, *(d for d in (FUSE, TUN) if d not in profile.devices))
        return replace(
            profile,
            name="agent, nested rootless",
            devices=devices,
            seccomp="nested",
            unmask=True,
        )
    if settings.nested == "sys_admin":
        return replace(
            profile,
            name="agent, nested with SYS_ADMIN",
            seccomp="nested",
            add=("SYS_ADMIN", "NET_ADMIN"),
            devices=(FUSE, TUN),
            unmask=True,
        )
    return profile
