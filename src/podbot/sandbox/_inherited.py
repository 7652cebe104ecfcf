"""What children of a thread inherit, as far as it can be compared."""

from __future__ import annotations

import os
import resource

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
_STATUS = (b"Uid", b"Gid", b"Groups", b"Cap", b"NoNewPrivs", b"Seccomp", b"Cpus_allowed:")
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def inherited() -> tuple[object, ...]:
    """What children of this process inherit, and a fork of the forker would not have if changed."""
    with open("/proc/self/status", "rb") as file:
        status = [line for line in file if line.startswith(_STATUS)]
    spaces: list[object] = []
    for name in _NAMESPACES:
        try:
            spaces.append(os.readlink(f"/proc/self/ns/{name}"))
        except OSError:
            spaces.append(None)
    root = os.stat("/")
    limits = [resource.getrlimit(which) for which in _LIMITS]
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    return status, spaces, (root.st_dev, root.st_ino), limits, nice
