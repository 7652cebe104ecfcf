"""How much a sandbox may use.

A limit that is ``None`` is not set. What enforces each one on this host (a cgroup, an rlimit, a
watcher) is told by ``Sandbox.guarantees``, because it differs from host to host.
"""

from __future__ import annotations

import math

from podbot.errors import Kind, SandboxError
from podbot.frozen import dataclass
from podbot.sandbox.values import Guarantee

MIB = 1024 * 1024
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits, with their defaults.

    - ``cpu``: processors' worth of time for the whole sandbox (1.5 = one and a half); default
      none. Needs a cgroup.
    - ``memory``: bytes for the whole sandbox (cgroup) or for each process (rlimit); default none.
    - ``pids``: processes and threads alive at once; default 1,024.
    - ``file_size``: bytes of any one file; default none.
    - ``disk``: bytes the writable layer may hold; default none. Checked about once a second, and
      the sandbox that went over is ended.
    - ``wall_time``: seconds a command may take when the call names no timeout; default none.
    - ``output``: bytes kept of each stream of ``exec`` and ``python``; default 1 MiB.
    - ``buffer``: bytes of each stream a spawned process may be ahead of its reader; default
      4 MiB, of which a plain pipe holds 1 MiB at most.
    """

    cpu: float | None = None
    memory: int | None = None
    pids: int | None = 1024
    file_size: int | None = None
    disk: int | None = None
    wall_time: float | None = None
    output: int = MIB
    buffer: int = 4 * MIB

    def __post_init__(self) -> None:
        for name in self.__match_args__:
            value = getattr(self, name)
            if value is None:
                continue
            whole = name not in ("cpu", "wall_time")
            fits = isinstance(value, int) if whole else isinstance(value, int | float)
            if isinstance(value, bool) or not fits or not math.isfinite(value) or value <= 0:
                raise SandboxError(
                    f"limit {name}={value!r} is not a positive number"
                    + (" of whole units" if whole else ""),
                    kind=Kind.INVALID,
                    remedy=f"pass Limits({name}=…) above zero, or None for no limit",
                )
        if self.pids is not None and self.pids < 2:
            raise SandboxError(
                "limit pids=1 leaves no room for a command beside the guest",
                kind=Kind.INVALID,
                remedy="allow at least 2",
            )
        for name in ("output", "buffer"):
            if getattr(self, name) > 256 * MIB:
                raise SandboxError(
                    f"limit {name} may be 256 MiB at most",
                    kind=Kind.INVALID,
                    remedy="stream larger output with spawn()",
                )


def kept_by_guest(limits: Limits) -> list[Guarantee]:
    """The limits that the guest itself keeps to, wherever it runs."""
    found = []
    if limits.wall_time is not None:
        found.append(Guarantee("limit.wall_time", True, "the guest kills what takes longer"))
    if limits.file_size is not None:
        found.append(Guarantee("limit.file_size", True, "rlimit, per file"))
    return found
