"""Whether the container that an engine made is the one that was asked for.

An engine's own configuration can add mounts, devices and namespaces of the host, and older engines
pass over what they do not know. So what ``inspect`` says is compared with the profile, and what may
do more than asked is an error. Limits that this engine cannot hold anything to are reported apart:
whoever made the container decides what to do about them.
"""

from __future__ import annotations

from collections.abc import Iterator

from podbot.engine import _seccomp
from podbot.engine.facts import Facts
from podbot.engine.http import replies
from podbot.engine.http.replies import Fields
from podbot.engine.profiles import CPU_PERIOD, Profile
from podbot.engine.specs import BindMount, ContainerSpec, OverlayMount
from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not as it was asked for."""

    what: str
    wanted: str
    got: str

    def __str__(self) -> str:
        return f"{self.what}: wanted {self.wanted}, got {self.got}"


@dataclass(frozen=True, slots=True)
class Resolved:
    """How a container compares with what was asked for, and the name of what will run it."""

    differences: tuple[Difference, ...]
    unenforced: tuple[str, ...]
    runtime: str = ""

    def check(self, container: str) -> None:
        """Raise kind ``profile_mismatch`` if it differs."""
        if self.differences:
            raise ContainerError(
                "the engine made another container than was asked for: "
                + replies.visible("; ".join(map(str, self.differences))),
                kind=Kind.PROFILE_MISMATCH,
                remedy="look for defaults that widen containers in containers.conf or daemon.json",
                subject=container,
            )


def compare(spec: ContainerSpec, facts: Facts, details: Fields) -> Resolved:
    """Compare a request with what ``inspect`` says came of it, and what a local engine wrote."""
    profile = spec.profile
    host = replies.below(details, "HostConfig")
    differences = [
        *_identity(spec, facts, details),
        *_limits(profile, facts, host),
        *_mounts(spec, details),
        *_namespaces(profile, host),
    ]
    if not profile.privileged:  # which has every capability and device, and no confinement
        differences += [
            *_confinement(profile, host),
            *filters(profile, facts, details),
            *_capabilities(profile, facts, details),
            *_extras(profile, host),
        ]
    unenforced: tuple[str, ...] = ()
    if not facts.limits_enforced:
        unenforced = tuple(
            name for name in ("cpu", "memory", "pids") if getattr(profile, name) is not None
        )
    return Resolved(tuple(differences), unenforced, _runtime(facts, details))


def _identity(spec: ContainerSpec, facts: Facts, details: Fields) -> Iterator[Difference]:
    user = replies.text(replies.below(details, "Config"), "User")
    if spec.profile.user is not None and user != spec.profile.user:
        yield Difference("user", spec.profile.user, user or "root")
    privileged = replies.flag(replies.below(details, "HostConfig"), "Privileged")
    if privileged != spec.profile.privileged:
        yield Difference("privileged", _yes(spec.profile.privileged), _yes(privileged))
    if spec.runtime is not None:
        runtime = _runtime(facts, details)
        if runtime != spec.runtime.rpartition("/")[2]:
            yield Difference("runtime", spec.runtime, runtime or "the default")


def _runtime(facts: Facts, details: Fields) -> str:
    """What runs a container, without its folder."""
    host = replies.below(details, "HostConfig")
    place, name = (details, "OCIRuntime") if facts.is_podman else (host, "Runtime")
    return replies.text(place, name).rpartition("/")[2]


def _confinement(profile: Profile, host: Fields) -> Iterator[Difference]:
    options = replies.texts(host, "SecurityOpt")
    if profile.no_new_privileges and not any(
        option in ("no-new-privileges", "no-new-privileges:true", "no-new-privileges=true")
        for option in options
    ):
        yield Difference("no-new-privileges", "on", "off")
    plain = [found.replace(":", "=", 1) for found in options]
    if profile.selinux != "disable" and "label=disable" in plain:
        yield Difference("SELinux label", "on", "off")
    if profile.seccomp != "unconfined" and "seccomp=unconfined" in plain:
        yield Difference("seccomp", "on", "off")
    if profile.read_only and not replies.flag(host, "ReadonlyRootfs"):
        yield Difference("root", "read-only", "writable")
    if profile.init and not replies.flag(host, "Init"):
        yield Difference("init", "yes", "no")


def filters(profile: Profile, facts: Facts, details: Fields) -> Iterator[Difference]:
    """The filter of system calls: Docker tells it, and a Podman of this machine wrote it down."""
    wanted = profile.seccomp
    if not facts.is_podman:
        options = replies.texts(replies.below(details, "HostConfig"), "SecurityOpt")
        given = [option for option in options if option.startswith("seccomp")]
        if wanted in ("podbot", "nested") and given != [f"seccomp={_seccomp.text(wanted)}"]:
            yield Difference("seccomp", "podbot's filter", "another one" if given else "none")
        return
    found = _seccomp.looked_up(details) if facts.local else None
    if found is None or wanted == "unconfined":
        return
    if found["seccomp"] is None:
        yield Difference("seccomp", "on", "off")
    elif wanted != "default" and (more := _seccomp.lets_more(wanted, found["seccomp"])):
        yield Difference("seccomp", "podbot's filter", f"one that also lets through {more}")


def _capabilities(profile: Profile, facts: Facts, details: Fields) -> Iterator[Difference]:
    host = replies.below(details, "HostConfig")
    added = _caps(replies.texts(host, "CapAdd"))
    if extra := added - _caps(profile.add):
        yield Difference("capabilities", _listed(_caps(profile.add)), _listed(extra))
    if facts.is_podman:
        bound = _caps(replies.texts(details, "BoundingCaps"))
        bound |= _caps(replies.texts(details, "EffectiveCaps"))
        dropped = _caps(profile.drop)
        kept = bound - _caps(profile.add) if "ALL" in dropped else bound & dropped
        if kept:
            yield Difference("dropped capabilities", _listed(dropped), "kept " + _listed(kept))
    elif not _caps(profile.drop) <= _caps(replies.texts(host, "CapDrop")):
        dropped = _caps(replies.texts(host, "CapDrop"))
        yield Difference("dropped capabilities", _listed(_caps(profile.drop)), _listed(dropped))


def _namespaces(profile: Profile, host: Fields) -> Iterator[Difference]:
    network = replies.text(host, "NetworkMode").partition(":")[0]
    if profile.network is not None and network != profile.network.partition(":")[0]:
        yield Difference("network", profile.network, network or "the default")
    for name in ("PidMode", "IpcMode", "UTSMode"):
        if replies.text(host, name) == "host":
            yield Difference(name, "its own", "the host's")
    if profile.userns not in (None, "host") and replies.text(host, "UsernsMode") in ("", "host"):
        yield Difference("user namespace", str(profile.userns), "none")


def _extras(profile: Profile, host: Fields) -> Iterator[Difference]:
    wanted = {device.path for device in profile.devices}
    for device in replies.objects(host.get("Devices"), "Devices"):
        path = replies.text(device, "PathOnHost") or replies.text(device, "PathInContainer")
        if path not in wanted:
            yield Difference("device", "none", path)
    tmpfs = replies.text_map(host, "Tmpfs")
    for memory in profile.tmpfs:
        options = tmpfs.get(memory.path, "").split(",")
        needed = {"nosuid", "nodev"}
        if memory.size is not None:
            needed.add(f"size={memory.size}")
        if lacking := needed - set(options):
            yield Difference(memory.path, _listed(needed), "without " + _listed(lacking))
    if profile.read_only:
        for path in sorted(tmpfs.keys() - {memory.path for memory in profile.tmpfs}):
            yield Difference(path, "read-only", "writable")


def _limits(profile: Profile, facts: Facts, host: Fields) -> Iterator[Difference]:
    if not facts.limits_enforced:
        return
    memory = replies.whole(host, "Memory")
    if profile.memory is not None and not 0 < memory <= profile.memory:
        yield Difference("memory", str(profile.memory), str(memory))
    both = replies.whole(host, "MemorySwap")
    if profile.memory is not None and not profile.swap and not 0 < both <= profile.memory:
        yield Difference("memory with swap", str(profile.memory), str(both))
    pids = replies.whole(host, "PidsLimit")
    if profile.pids is not None and not 0 < pids <= profile.pids:
        yield Difference("pids", str(profile.pids), str(pids))
    if profile.cpu_quota is not None:
        quota = replies.whole(host, "CpuQuota") / (replies.whole(host, "CpuPeriod") or CPU_PERIOD)
        quota = quota or replies.whole(host, "NanoCpus") / 1e9
        if not 0 < quota <= profile.cpu_quota / CPU_PERIOD:
            yield Difference("cpu", f"{profile.cpu:g}", f"{quota:g}")


def _mounts(spec: ContainerSpec, details: Fields) -> Iterator[Difference]:
    found = {
        replies.text(mount, "Destination"): mount
        for mount in replies.objects(details.get("Mounts"), "Mounts")
    }
    # Podman mounts an overlay when it starts a container, and shows it from then on.
    begun = replies.text(replies.below(details, "State"), "Status") not in ("created", "configured")
    for wanted in spec.mounts:
        mount = found.pop(wanted.target.rstrip("/") or "/", None)
        if mount is None:
            if isinstance(wanted, OverlayMount) and not begun:
                continue
            yield Difference(wanted.target, "a mount", "none")
            continue
        read_only = not isinstance(wanted, OverlayMount) and wanted.read_only
        if read_only and replies.flag(mount, "RW"):
            yield Difference(wanted.target, "read-only", "writable")
        if isinstance(wanted, BindMount) and replies.text(mount, "Source") != wanted.source:
            yield Difference(wanted.target, wanted.source, replies.text(mount, "Source"))
        if isinstance(wanted, OverlayMount):
            options = replies.texts(mount, "Options")
            if f"upperdir={wanted.upper}" not in options:
                yield Difference(wanted.target, f"changes in {wanted.upper}", _listed({*options}))
    for target, mount in found.items():
        # An image may bring volumes of its own, but a read-only root has no writable places;
        # paths of the host's come from elsewhere.
        if replies.text(mount, "Type") == "bind":
            yield Difference(target, "nothing mounted", replies.text(mount, "Source"))
        elif replies.text(mount, "Type") == "volume" and spec.profile.read_only:
            yield Difference(target, "nothing mounted", "a volume, perhaps the image's own")


def _caps(names: tuple[str, ...]) -> set[str]:
    return {name.upper().removeprefix("CAP_") for name in names}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
