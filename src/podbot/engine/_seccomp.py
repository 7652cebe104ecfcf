"""The filter of system calls that engines are given: podbot's table, as an OCI seccomp profile.

What the overlay refuses fails here with the same errors. It is an allow list all the same, as the
engines' own are: a name that an engine's libseccomp does not know is passed over, and so a list of
what is denied would let it through. What nobody listed does not exist (ENOSYS), calls of another
architecture kill. Each argument is looked at by its low half, which is all that the kernel reads
of these.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast

from podbot.config import places
from podbot.engine.facts import Facts
from podbot.engine.http import replies
from podbot.engine.http.replies import Fields
from podbot.engine.profiles import Profile
from podbot.errors import ContainerError, Kind, PodbotError
from podbot.system_calls import ABSENT, JUDGED, NETLINK_AT_LARGE, REFUSED, WHOLE, AnyOf, OneOf, Rule

Filter = Literal["podbot", "nested"]
Json = dict[str, object]
Condition = tuple[int, int, int]
"""An argument, a mask, and what it must be under the mask."""

FOLDER = "seccomp"
_BITS = 32
_ENOSYS = 38

NESTING = frozenset({
    "chroot", "clone", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr",
    "move_mount", "open_tree", "pivot_root", "setns", "umount2", "unshare",
})  # fmt: skip
"""Refused elsewhere; without these no container starts inside another."""
_FOREGONE = ("keyctl",)
"""What runtimes of containers do without if there is no such call, but not if it is refused."""
_NAMING = ("sethostname", "setdomainname")
"""Only for one who may name: who made a namespace, or was given SYS_ADMIN."""

_ORDINARY = """
    accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown
    clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat
    dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait
    eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64
    fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat
    fdatasync fgetxattr file_getattr file_setattr flistxattr flock fork fremovexattr fsetxattr
    fstat fstatat64 fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv
    futex_wake futimesat get_mempolicy get_robust_list get_thread_area getcpu getcwd getdents
    getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid
    getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname
    getsockopt gettid gettimeofday getuid getxattr getxattrat inotify_add_watch inotify_init
    inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_setup io_submit
    ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self
    lchown lgetxattr link linkat listen listxattr listxattrat llistxattr lremovexattr lseek
    lsetxattr lstat madvise map_shadow_stack membarrier memfd_create mincore mkdir
    mkdirat mknod mknodat mlock mlock2 mlockall mmap mprotect mq_getsetattr mq_notify mq_open
    mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync
    munlock munlockall munmap nanosleep newfstatat open openat openat2 pause pidfd_open
    pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64
    preadv preadv2 prlimit64 process_mrelease pselect6 pwrite64 pwritev pwritev2 read readahead
    readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr
    removexattrat rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction
    rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
    rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity
    sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity
    sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget
    semop semtimedop sendfile sendmmsg sendmsg sendto set_robust_list set_thread_area
    set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid
    setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr setxattrat shmat
    shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 splice stat statfs statx symlink
    symlinkat sync sync_file_range sync_file_range2 syncfs sysinfo tee tgkill time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
    timerfd_settime times tkill truncate umask uname unlink unlinkat uretprobe utime utimensat
    utimes vfork wait4 waitid write writev
"""
"""What programs on the two machines do, less what the table says something of."""


def given(profile: Profile, facts: Facts) -> str | None:
    """What an engine is told about the filter: its text, its name, or nothing for its own.

    Raises kind ``unsupported`` for podbot's filter where it cannot be had.
    """
    if profile.privileged or profile.seccomp == "default":
        return None
    if profile.seccomp == "unconfined":
        return profile.seccomp
    if not facts.is_podman:
        return text(profile.seccomp)
    if facts.local:
        return path(profile.seccomp)
    raise ContainerError(
        "podbot's filter of system calls cannot be given to a Podman on another machine, which "
        "reads it from a file of its own",
        kind=Kind.UNSUPPORTED,
        remedy='have the engine\'s own filter, which is wider: seccomp="engine" for a sandbox, '
        'Profile(seccomp="default") for a container; or use an engine on this machine',
    )


def looked_up(details: Fields) -> Json | None:
    """What a container of a Podman on this machine runs under, if that can be read.

    Podman does not tell it. It stands in what the runtime was given, once it has been started; an
    ordinary user cannot read what root's engine wrote.
    """
    place = replies.text(details, "OCIConfigPath")
    try:
        return {"seccomp": json.loads(Path(place).read_bytes())["linux"].get("seccomp")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def lets_more(which: Filter, found: object) -> str | None:
    """What a filter that a runtime was given lets through beyond the one asked for, if anything."""
    try:
        given, asked = cast("Json", found), document(which)
        if given["defaultAction"] not in _REFUSING:
            return "calls that nobody listed"
        machines = {line["architecture"] for line in cast("list[Json]", asked["archMap"])}
        if not set(cast("list[str]", given["architectures"])) <= machines:
            return "calls of other machines"
        more = _allowed(given) - _allowed(asked)
    except (KeyError, TypeError, AttributeError):
        return "what cannot be read"
    return ", ".join(sorted({name for name, _ in more})) or None


_REFUSING = ("SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_KILL_THREAD")


def _allowed(found: Json) -> set[tuple[str, frozenset[tuple[object, ...]]]]:
    """Each name that a profile lets through in some way, with its conditions."""
    return {
        (name, _conditions(rule))
        for rule in cast("list[Json]", found["syscalls"])
        if rule["action"] not in _REFUSING
        for name in cast("list[str]", rule["names"])
    }


def _conditions(rule: Json) -> frozenset[tuple[object, ...]]:
    # Engines leave out what is 0.
    return frozenset(
        (each["op"], each["index"], each.get("value", 0), each.get("valueTwo", 0))
        for each in cast("list[Json] | None", rule.get("args")) or []
    )


def document(which: Filter) -> Json:
    """The profile, as engines read it from JSON."""
    spared: frozenset[str] = NESTING if which == "nested" else frozenset()
    with_rules = REFUSED.keys() | ABSENT.keys() | JUDGED.keys()
    allowed = (set(_ORDINARY.split()) - with_rules) | spared
    absent = set(ABSENT)
    if which == "nested":
        allowed |= set(_NAMING)
        absent |= set(_FOREGONE)
    rules = [
        _rule(sorted(allowed), "SCMP_ACT_ALLOW"),
        _rule(sorted(REFUSED.keys() - spared - absent), "SCMP_ACT_ERRNO", error=1),
        _rule(sorted(absent), "SCMP_ACT_ERRNO", error=_ENOSYS),
    ]
    for name, (_, rule) in JUDGED.items():
        if name not in spared:
            at_large = which == "nested" and name in ("socket", "socketpair")
            rules += _judged(name, NETLINK_AT_LARGE if at_large else rule)
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _ENOSYS,
        # Each engine takes the line of its own machine, and nothing else runs there.
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": rules,
    }


@lru_cache(maxsize=2)
def text(which: Filter) -> str:
    """The same as text, for an engine that is given the profile itself."""
    return json.dumps(document(which), separators=(",", ":"), sort_keys=True)


def path(which: Filter) -> str:
    """The same as a file, for an engine on this machine that is given its name.

    Its name is made of its contents, and it is looked at each time: two versions of podbot do not
    share one, and what was damaged is mended.
    """
    wanted = text(which).encode()
    import hashlib

    name = f"{which}-{hashlib.sha256(wanted).hexdigest()[:16]}.json"
    try:
        file = places.state_folder(FOLDER) / name
        if not _holds(file, wanted):
            draft = file.with_name(f".{name}-{os.urandom(4).hex()}")
            draft.write_bytes(wanted)
            os.rename(draft, file)
    except (OSError, PodbotError) as error:
        raise ContainerError(
            f"the filter of system calls cannot be put where the engine reads it: {error}",
            kind=Kind.CREATE_FAILED,
            remedy=f"free some space, or set {places.STATE_VARIABLE} to another disk",
        ) from None
    return str(file)


def _holds(file: Path, wanted: bytes) -> bool:
    try:
        return file.read_bytes() == wanted
    except FileNotFoundError:
        return False


def _judged(name: str, rule: Rule) -> list[Json]:
    """What a rule lets pass, and what it refuses, as conditions no two of which fit one call."""
    if isinstance(rule, AnyOf):
        passes = [((rule.argument, rule.bits, 0),)]
        bits = [1 << at for at in range(_BITS) if rule.bits >> at & 1]
        fails = [((rule.argument, bit, bit),) for bit in bits]
    elif isinstance(rule, OneOf):
        passes = [((rule.argument, mask, value),) for mask, value in _others(rule.values)]
        fails = [((rule.argument, WHOLE, value),) for value in rule.values]
    else:
        return _ways(name, rule.ways, rule.errno)
    allowed = [_rule([name], "SCMP_ACT_ALLOW", way) for way in passes]
    return allowed + [_rule([name], "SCMP_ACT_ERRNO", way, rule.errno) for way in fails]


def _ways(name: str, ways: tuple[tuple[Condition, ...], ...], error: int) -> list[Json]:
    rules = [_rule([name], "SCMP_ACT_ALLOW", way) for way in ways]
    for before in sorted({way[:at] for way in ways for at in range(len(way))}):
        # Where ways part: each value of this argument that none of them goes on with.
        parting = {way[len(before)] for way in ways if way[: len(before)] == before != way}
        arguments = {argument for argument, _, _ in parting}
        if len(arguments) == 1 and all(mask == WHOLE for _, mask, _ in parting):
            argument = arguments.pop()
            for mask, value in _others(tuple(value for _, _, value in parting)):
                fails = (*before, (argument, mask, value))
                rules.append(_rule([name], "SCMP_ACT_ERRNO", fails, error))
    return rules


def _others(values: tuple[int, ...]) -> list[tuple[int, int]]:
    """Every number of 32 bits but these, as masks and what is under them."""
    found = []
    block = [(0, 0)]  # how many of the first bits are fixed, and what they are
    while block:
        fixed, base = block.pop()
        free = _BITS - fixed
        if not any(value >> free == base >> free for value in values):
            found.append((WHOLE >> free << free, base))
        elif free:
            half = base | 1 << (free - 1)
            block += [(fixed + 1, half), (fixed + 1, base)]
    return sorted(found)


def _rule(
    names: list[str], action: str, conditions: tuple[Condition, ...] = (), error: int | None = None
) -> Json:
    rule: Json = {"names": names, "action": action}
    if error is not None:
        rule["errnoRet"] = error
    if conditions:
        rule["args"] = [
            {"index": argument, "op": "SCMP_CMP_MASKED_EQ", "value": mask, "valueTwo": value}
            for argument, mask, value in conditions
        ]
    return rule
