"""What an overlay sandbox enforces on this host, said as data, and what a person should know."""

from __future__ import annotations

import os
from functools import cache

from podbot.sandbox.layers.mounts import is_below
from podbot.sandbox.limits import Limits, kept_by_guest
from podbot.sandbox.network import gateway_only
from podbot.sandbox.overlay import _git_data, shared
from podbot.sandbox.overlay.cgroups import Group
from podbot.sandbox.policy import Policy
from podbot.sandbox.values import Guarantee


@cache
def _landlock_abi() -> int:
    from podbot import kernel

    return kernel.landlock_abi()


def guarantees(
    policy: Policy, limits: Limits, group: Group, copied: str | None
) -> tuple[Guarantee, ...]:
    """Every promise of this sandbox, and what keeps it."""
    abi = _landlock_abi()
    files = "overlay file system in a mount namespace, the rest read-only"
    if copied is not None:
        files = f"a copy of the target (no overlay: {copied}), the rest read-only"
    found = [
        Guarantee("files", True, files),
        Guarantee("processes", True, "pid namespace"),
        Guarantee("ipc", True, "ipc namespace"),
        Guarantee("hostname", True, "uts namespace"),
        Guarantee("identity", True, "user namespace of one user: yourself"),
        Guarantee("privileges", True, "no capability, no_new_privs, securebits locked"),
        Guarantee("system_calls", True, "seccomp filter"),
        Guarantee("secrets", True, "hidden paths do not exist inside"),
        Guarantee("environment", True, "a short allowlist of variables"),
        _unix_sockets(policy),
        Guarantee(
            "unix_sockets_elsewhere",
            False,
            "covered if found at launch; one bound by a relative name, moved or made later is not",
        ),
        Guarantee("private_tmp", True, "fresh /tmp, /var/tmp, /run, /dev and /proc"),
        Guarantee("no_leftovers", True, "pid namespace ends with its first process"),
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
        found.append(
            Guarantee("abstract_sockets", abi >= 6, "Landlock" if abi >= 6 else "needs Landlock 6")
        )
    if abi >= shared.LANDLOCK_MIN_ABI:
        found.append(Guarantee("landlock", True, f"Landlock ABI {abi}: writes only where allowed"))
    else:
        found.append(Guarantee("landlock", False, "this kernel has no Landlock of ABI 2 or newer"))
    for path in policy.writable:
        found.append(Guarantee(f"writable:{path}", False, "the policy lets it change for real"))
    found += _limit_guarantees(limits, group)
    return tuple(found)


def _unix_sockets(policy: Policy) -> Guarantee:
    if not policy.writable:
        by = "not reachable through overlays and private folders"
        return Guarantee("unix_sockets", True, by)
    # The folder itself is shown, and a socket in it is the host's: no mount keeps one from it.
    by = (
        "the policy makes folders of the host writable: a socket bound by a relative name, or made "
        "later, is reachable there"
    )
    return Guarantee("unix_sockets", False, by)


def veiled(wanted: list[str], done: tuple[str, ...]) -> tuple[Guarantee, ...]:
    """Whether what only root may read is closed to root inside; others need no help for that."""
    lacking = [folder for folder in wanted if folder not in done and os.path.isdir(folder)]
    if not wanted:
        return ()
    if lacking:
        by = f"this host cannot veil {', '.join(lacking)}: what no list names is readable there"
        return (Guarantee("secrets_of_root", False, by),)
    by = f"id-mapped mounts: in {', '.join(done)} only what everybody may read is there"
    return (Guarantee("secrets_of_root", True, by),)


def _limit_guarantees(limits: Limits, group: Group) -> list[Guarantee]:
    found = []
    for name, value in (("cpu", limits.cpu), ("memory", limits.memory), ("pids", limits.pids)):
        if value is None:
            continue
        if name in group.enforced:
            found.append(Guarantee(f"limit.{name}", True, group.enforced[name]))
        elif name == "memory":
            by = "no control group: an rlimit on data per process, and a watcher of all of them"
            found.append(Guarantee("limit.memory", False, by))
        elif name == "pids" and pids_by(int(value)):
            found.append(Guarantee("limit.pids", True, f"{pids_by(int(value))} of the namespace"))
        else:
            found.append(Guarantee(f"limit.{name}", False, "needs a control group (see doctor)"))
    found += kept_by_guest(limits)
    if limits.disk is not None:
        by = "a watcher, about once a second: more for a moment, or in deleted files, goes unseen"
        found.append(Guarantee("limit.disk", True, by))
    return found


def rlimits(limits: Limits, group: Group) -> dict[str, int]:
    """The limits each process carries, for want of a group."""
    found: dict[str, int] = {}
    if limits.memory is not None and "memory" not in group.enforced:
        found["RLIMIT_DATA"] = limits.memory
    if limits.file_size is not None:
        found["RLIMIT_FSIZE"] = limits.file_size
    if limits.pids is not None and pids_by(limits.pids) == "rlimit":
        found["RLIMIT_NPROC"] = limits.pids
    return found


PID_MAX_FLOOR = 301  # the kernel's least


@cache
def _pid_max_is_per_namespace() -> bool:
    return _kernel_version() >= (6, 14)


def _kernel_version() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(char for char in minor if char.isdigit()) or 0)


def pids_by(limit: int) -> str:
    """What can limit processes without moving into a control group, which takes the kernel
    ten times as long as all the rest: an rlimit, the namespace's pid_max, or neither ("").

    The rlimit is counted per user namespace, so it is this sandbox's alone, but exempts root.
    """
    if os.getuid() != 0:
        return "rlimit"
    return "pid_max" if _pid_max_is_per_namespace() and limit >= PID_MAX_FLOOR else ""


def notes(
    targets: tuple[str, ...],
    uncovered: tuple[str, ...],
    home_layer: str | None,
    copied: str | None,
) -> tuple[str, ...]:
    """What the person should know about this sandbox."""
    said = []
    if copied is not None:
        said.append(f"works on a copy, because {copied}")
    for target in targets:
        place = _git_data.outside(target, targets)
        if place is None:
            continue
        if _git_data.covered(place) and _git_data.repository(place, target) is None:
            said.append(f"{target}: its git data at {place} is not there inside")
        else:
            said.append(f"{target}: its git data at {place} is readable, not writable")
    around = (_git_data.around(target, targets) for target in targets)
    for repository in dict.fromkeys(filter(None, around)):
        at_home = home_layer is not None and is_below(f"{repository}/.git", home_layer)
        said.append(_of_repository(repository, _git_data.covered(repository) and not at_home))
    for path in uncovered:
        said.append(f"{path} does not exist; should it come to be, it would be readable inside")
    if home_layer is not None:
        said.append(f"other writes below {home_layer} are thrown away at close")
    return tuple(said)


def _of_repository(repository: str, is_covered: bool) -> str:
    """What becomes of a repository that a target is only a part of."""
    if is_covered:
        what = f"the repository {repository} around the target is not there inside"
    else:
        what = f"commits to the repository {repository} around the target are not kept"
    return f"{what}, unless it is the target: {repository}"
