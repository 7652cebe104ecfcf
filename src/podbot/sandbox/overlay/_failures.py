"""Why a sandbox could not be started, from the host's side, and what its child says about it."""

from __future__ import annotations

import errno
import json
import os
import socket

from podbot.errors import Kind, LaunchError
from podbot.frozen import dataclass
from podbot.sandbox import wire
from podbot.sandbox.channel import launch_failure

READY_SECONDS = 60.0


def of_the_host(error: OSError) -> LaunchError:
    """What it means that the host could not do a plain thing, such as open a file."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        kind, remedy = Kind.OUT_OF_DESCRIPTORS, "raise the limit on open files (ulimit -n)"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        kind, remedy = Kind.DISK_FULL, "free some space where the sandbox's layer lies"
    elif error.errno in (errno.EAGAIN, errno.ENOMEM):
        kind, remedy = Kind.OUT_OF_PROCESSES, "end some processes, or raise their limit (ulimit -u)"
    else:
        kind, remedy = Kind.LAUNCH_FAILED, "run `podbot doctor`"
    return LaunchError(f"the sandbox could not be started: {error}", kind=kind, remedy=remedy)


_OF_THE_HOST = frozenset(
    {
        Kind.LAUNCH_FAILED, Kind.LAYER_FAILED, Kind.USERNS_DENIED, Kind.LOCKDOWN_FAILED,
        Kind.PROC_REFUSED, Kind.OVERLAY_REFUSED,
    }
)  # fmt: skip


def nested(error: LaunchError) -> LaunchError:
    """The failure, or its cause if that is that podbot itself runs in a sandbox of podbot's."""
    if _JOB_VARIABLE not in os.environ or error.kind not in _OF_THE_HOST:
        return error
    return LaunchError(
        f"podbot runs inside a sandbox of podbot's, which lets no other be made: {error.message}",
        kind=error.kind,
        remedy='open this one outside; inside, the "local" backend will do: walls stand already',
    )


_JOB_VARIABLE = "PODBOT_JOB"
"""What every command in a sandbox carries (the guest's `families`)."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The first word of a guest: its process, and the folders that were veiled."""

    pid: int
    veiled: tuple[str, ...]


def await_ready(line: socket.socket, handed: list[int] | None = None) -> Ready:
    """Wait until the sandbox stands, or raise what its set-up says went wrong.

    Nothing has run inside by then that could say otherwise. ``handed`` is where to put descriptors
    that come along; without it none do.
    """
    line.settimeout(READY_SECONDS)
    try:
        head_size, _ = wire.HEADER.unpack(_exactly(line, wire.HEADER.size, handed))
        if head_size > wire.MAX_HEAD:
            raise wire.broken("its first word is too long")
        head = json.loads(_exactly(line, head_size))
    except TimeoutError:
        raise LaunchError(
            f"the sandbox was not ready after {READY_SECONDS:.0f} s",
            kind=Kind.GUEST_UNRESPONSIVE,
            remedy="look for a hanging mount (NFS, FUSE) on this host",
        ) from None
    except (OSError, ValueError) as error:
        raise LaunchError(
            f"the sandbox ended before it was ready: {error}",
            kind=Kind.LAUNCH_FAILED,
            remedy="run `podbot doctor`",
        ) from None
    problem = head.get("error")
    if problem is not None:
        failure = launch_failure(problem)
        raise LaunchError(failure.message, kind=failure.kind, remedy=failure.remedy)
    return Ready(head.get("pid", 0), tuple(head.get("veiled", ())))


def _exactly(line: socket.socket, size: int, handed: list[int] | None = None) -> bytes:
    data = b""
    while len(data) < size:
        if handed is None:
            part = line.recv(size - len(data))
        else:
            from podbot.sandbox import gateway  # there already, for whoever gave the list

            part = gateway.received(line, size - len(data), handed)
        if not part:
            raise ConnectionResetError("it hung up")
        data += part
    return data
