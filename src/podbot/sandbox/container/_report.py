"""What a container sandbox enforces, said as data, and what a person should know about it."""

from __future__ import annotations

from podbot.engine.facts import Facts
from podbot.frozen import dataclass
from podbot.sandbox.container._engines import KERNELS_OF_THEIR_OWN
from podbot.sandbox.container._identity import NO_MAPPING, Identity
from podbot.sandbox.container._workspace import Contents
from podbot.sandbox.container.settings import Settings
from podbot.sandbox.limits import kept_by_guest
from podbot.sandbox.network import gateway_only
from podbot.sandbox.policy import Policy
from podbot.sandbox.values import Guarantee

BY_SOCKET = "a socket of podbot's own: the engine takes no part in a call"
BY_STREAM = "the engine's attach stream: {why}"
BY_FILTER = (
    "podbot's seccomp filter, as on the overlay: no namespaces, mounts, vsock, keyrings, bpf, "
    "userfaultfd or io_uring"
)
KERNEL_OF_ITS_OWN = {
    "runsc": "gVisor's kernel, not the host's",
    "kata": "a virtual machine",
    "kata-runtime": "a virtual machine",
}


@dataclass(frozen=True, slots=True)
class Made:
    """What was made, as far as it decides what holds.

    ``grouped``: whether it is in a control group of its own, if that could be seen. ``stream`` says
    why the guest is reached through the engine; empty if it is not.
    """

    settings: Settings
    facts: Facts
    identity: Identity
    contents: Contents
    runtime: str
    grouped: bool | None = None
    selinux: bool = False
    stream: str = ""


def guarantees(made: Made) -> tuple[Guarantee, ...]:
    """Every promise of this sandbox, and what keeps it."""
    settings, facts = made.settings, made.facts
    policy = settings.policy
    engine = f"{facts.name} {facts.version}, {'rootless' if facts.rootless else 'as root'}"
    found = [
        _files(made),
        Guarantee("read_only_root", True, "the image's root is mounted read-only"),
        Guarantee("processes", True, "pid namespace"),
        Guarantee("ipc", True, "ipc namespace"),
        Guarantee("hostname", True, "uts namespace"),
        Guarantee("identity", True, made.identity.by),
        Guarantee("privileges", True, "no capability, no_new_privs"),
        _system_calls(made),
        Guarantee("secrets", True, _secrets(policy)),
        Guarantee("environment", True, "the image's variables and a short allowlist"),
        Guarantee("engine_socket", True, "not there inside"),
        Guarantee("private_tmp", True, "a file system in memory, 256 MiB"),
        Guarantee("no_leftovers", True, "the guest is process 1: all ends with it"),
        Guarantee("engine", True, engine),
        Guarantee("channel", True, made.stream or BY_SOCKET),
        Guarantee("kernel", made.runtime in KERNEL_OF_ITS_OWN, _kernel(made.runtime)),
        Guarantee("limit.output", True, "the guest cuts what it keeps"),
    ]
    if policy.network.proxied:
        found.append(Guarantee("network", True, gateway_only(policy.network)))
        if policy.routes:
            from podbot.sandbox import _brokered

            found += _brokered.guarantees(policy.routes)
    elif policy.network.separate:
        found.append(Guarantee("network", True, "net namespace with loopback only"))
    else:
        found.append(Guarantee("network", False, "the policy gives the host's network"))
    if made.selinux:
        by = "its label is off for this container: a labelled one cannot reach podbot's socket"
        found.append(Guarantee("selinux", False, by))
    for path in policy.writable:
        found.append(Guarantee(f"writable:{path}", False, "the policy lets it change for real"))
    found += _limits(made)
    return tuple(_privileged(made, found) if settings.privileged else found)


def _system_calls(made: Made) -> Guarantee:
    """Which system calls there are inside: podbot's filter, unless the caller chose otherwise."""
    name = "system_calls"
    if made.runtime in KERNELS_OF_THEIR_OWN:
        by = f"no filter: {KERNEL_OF_ITS_OWN[made.runtime]} answers them"
        return Guarantee(name, False, by)
    if made.settings.seccomp == "engine":
        by = "asked for: the engine's own seccomp filter, which lets namespaces be made inside"
        return Guarantee(name, False, by)
    return Guarantee(name, True, BY_FILTER)


def _privileged(made: Made, found: list[Guarantee]) -> list[Guarantee]:
    """What is left of the promises when a container was given everything."""
    asked = "it was asked for as privileged"
    lost = dict.fromkeys(("read_only_root", "privileges", "system_calls"), asked)
    if not made.facts.rootless:
        by = f"{asked}, and the engine is root's: its root can take over the machine"
        kept = ("engine", "channel", "environment", "limit.wall_time", "limit.output")
        lost |= {each.name: by for each in found if each.name not in kept}
    return [
        Guarantee(each.name, False, lost[each.name]) if each.name in lost else each
        for each in found
    ]


def notes(made: Made) -> tuple[str, ...]:
    """What the person should know."""
    said = []
    if made.contents.copied is not None and made.settings.workspace == "review":
        said.append(f"works on a copy, because {made.contents.copied}")
    if made.settings.workspace == "bind":
        said.append(f"{made.contents.folder} itself is changed, without review")
    if made.settings.privileged:
        said.append("privileged: root inside, with all that the engine has to give")
    for name, by in held(made).items():
        if not by:
            said.append(f"the limit on {name} is not enforced: {_why_not(made)}")
    return tuple(said)


def held(made: Made) -> dict[str, str]:
    """What holds the whole sandbox to each limit that was asked for; empty if nothing does."""
    limits, facts = made.settings.limits, made.facts
    asked = [name for name in ("cpu", "memory", "pids") if getattr(limits, name) is not None]
    if facts.limits_enforced if made.grouped is None else made.grouped:
        return dict.fromkeys(asked, f"control group, version {facts.cgroup_version}")
    instead = dict.fromkeys(asked, "")
    if made.runtime in KERNELS_OF_THEIR_OWN:
        return instead
    if "memory" in instead:
        instead["memory"] = "rlimit on data, per process"
    if "pids" in instead and made.identity.userns not in (None, NO_MAPPING):
        # Counted per user namespace, and this container has its own.
        instead["pids"] = "rlimit, per user namespace"
    return instead


def rlimits(made: Made) -> dict[str, int]:
    """The limits each process carries, for want of a control group."""
    found: dict[str, int] = {}
    limits, by = made.settings.limits, held(made)
    if limits.file_size is not None:
        found["RLIMIT_FSIZE"] = limits.file_size
    if limits.memory is not None and by["memory"].startswith("rlimit"):
        found["RLIMIT_DATA"] = limits.memory
    if limits.pids is not None and by["pids"].startswith("rlimit"):
        found["RLIMIT_NPROC"] = limits.pids
    return found


def _secrets(policy: Policy) -> str:
    shown = "the workspace and what the policy makes writable" if policy.writable else ""
    return f"nothing of the host but {shown or 'the workspace'} is there"


def _files(made: Made) -> Guarantee:
    if made.settings.workspace == "bind":
        by = f"nothing: {made.contents.folder} itself is changed at once"
        return Guarantee("files", False, by)
    if made.contents.mount is None:
        by = "a file system in memory where the engine is; gone with the container"
        return Guarantee("files", True, by)
    if made.contents.layer is None:
        return Guarantee("files", True, "an empty folder of its own")
    if made.contents.copied is not None:
        return Guarantee("files", True, f"a copy of the target ({made.contents.copied})")
    return Guarantee("files", True, "an overlay file system over the target")


def _kernel(runtime: str) -> str:
    own = KERNEL_OF_ITS_OWN.get(runtime)
    return f"{runtime}: {own}" if own else f"{runtime}: the host's kernel, shared"


def _limits(made: Made) -> list[Guarantee]:
    limits = made.settings.limits
    found = [
        Guarantee(f"limit.{name}", bool(by), by or _why_not(made))
        for name, by in held(made).items()
    ]
    found += kept_by_guest(limits)
    if limits.disk is not None:
        by = "a watcher, about once a second: more for a moment, or in deleted files, goes unseen"
        if made.settings.workspace == "bind":
            by = "nobody watches a folder of the host's own"
        found.append(Guarantee("limit.disk", made.settings.workspace != "bind", by))
    return found


def _why_not(made: Made) -> str:
    facts = made.facts
    if not facts.limits_enforced:
        return f"a rootless engine cannot on control groups of version {facts.cgroup_version}"
    return f"{made.runtime} does not run it in the control group that the engine made"
