"""What children of a thread inherit, as far as it can be compared."""

from __future__ import annotations

import os
import resource

# The calling thread's, not the process's: each thread may change its own.
_HERE = "/proc/thread-self/"
_NAMESPACES = (
    "cgroup",
    "ipc",
    "mnt",
    "net",
    "pid_for_children",
    "time_for_children",
    "user",
    "uts",
)
_STATUS = (
    b"Uid",
    b"Gid",
    b"Groups",
    b"Cap",
    b"NoNewPrivs",
    b"Seccomp",
    b"Specul",
    b"THP_enabled",
    b"Cpus_allowed:",
    b"Mems_allowed:",
)
_FILES = (
    "cgroup",
    "oom_score_adj",
    "attr/current",
    "personality",
    "timerslack_ns",
    "coredump_filter",
    "loginuid",
)
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class Inherited:
    """What children of the calling thread inherit. Raises `OSError` if that is not to be seen."""

    def __init__(self) -> None:
        with open(_HERE + "status", "rb", buffering=0) as file:
            status = [line for line in file.read().splitlines() if line.startswith(_STATUS)]
        spaces = [_link(name) for name in _NAMESPACES]
        root = os.stat("/")
        self._facts = (
            status,
            spaces,
            [_text(name) for name in _FILES],
            (root.st_dev, root.st_ino),
            [resource.getrlimit(which) for which in _LIMITS],
            os.getpriority(os.PRIO_PROCESS, 0),
            os.sched_getscheduler(0),
            os.sched_getparam(0).sched_priority,
        )
        # The first child in a new pid namespace is its init: it ends all others with it. And an
        # old kernel does not tell whether filters were added to those that there were.
        own_pids = _link("pid") == spaces[_NAMESPACES.index("pid_for_children")]
        counted = any(line.startswith(b"Seccomp_filters") for line in status)
        self.can_be_forked = own_pids and (counted or b"Seccomp:\t0" in status)
        """Whether one process may fork what shall be like children of this thread."""
        # Filters and Landlock rules cannot be compared. Who has none of them is like another
        # who has none; rules that only root can have without the mark are met in `reaches`.
        self.is_plain = {b"NoNewPrivs:\t0", b"Seccomp:\t0"} <= set(status)
        """Whether this is all there is: another thread with the same is the same."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Inherited) and self._facts == other._facts

    __hash__ = None  # type: ignore[assignment]  # compared, and never looked up


def reaches(pid: int) -> bool:
    """Whether this thread has no rules (Landlock) that a process is free of, nor less rights."""
    try:
        os.readlink(f"/proc/{pid}/ns/mnt")
    except PermissionError:
        return False
    except OSError:
        pass  # it is dead: that shows when it is asked for something
    return True


def _link(name: str) -> str | None:
    try:
        return os.readlink(f"{_HERE}ns/{name}")
    except OSError:
        return None


def _text(name: str) -> bytes | None:
    try:
        with open(_HERE + name, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return None  # the kernel has none
