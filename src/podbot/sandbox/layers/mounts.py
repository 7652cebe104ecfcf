"""What is mounted on the host: read once, and again only when the kernel says it changed."""

from __future__ import annotations

import os
import select
import threading
import time
from functools import cache


class _MountTable:
    """The mount points, read again only when the kernel says they changed."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLPRI)
        self._points = _read_mount_points()
        self._lock = threading.Lock()

    def points(self) -> list[str]:
        # One thread at a time: the kernel tells of a change only once.
        with self._lock:
            if self._poll.poll(0):
                self._points = _read_mount_points()
            return self._points


@cache
def _mount_table(_pid: int) -> _MountTable:
    return _MountTable()


def any_below(folder: str) -> str | None:
    """A mount point below a folder, if there is one."""
    points = _mount_table(os.getpid()).points()
    return next((place for place in points if is_below(place, folder)), None)


def all_below(folder: str) -> list[str]:
    """Every mount point below a folder, as paths relative to it."""
    points = _mount_table(os.getpid()).points()
    start = len(folder.rstrip("/")) + 1
    return [place[start:] for place in points if is_below(place, folder)]


def is_below(path: str, folder: str) -> bool:
    """Whether a path lies strictly below a folder."""
    return path.startswith(folder.rstrip("/") + "/")


def home() -> str | None:
    """The user's home as a real folder, or None if there is none worth the name."""
    try:
        folder = os.path.realpath(os.path.expanduser("~"), strict=True)
    except OSError:
        return None
    return folder if folder != "/" and os.path.isdir(folder) else None


def _read_mount_points() -> list[str]:
    found = []
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            place = line.split(b" ", 5)[4]
            if b"\\" in place:  # octal escapes for blanks, newlines and backslashes
                place = place.decode("unicode_escape").encode("latin-1")
            found.append(os.fsdecode(place))
    return found


SOCKET_SECONDS = 1.0
_sockets: tuple[float, tuple[str, ...]] = (-SOCKET_SECONDS, ())


def sockets() -> tuple[str, ...]:
    """Paths of the host's named Unix sockets, at most a second old.

    A read-only mount does not keep anyone from connecting to these.
    """
    global _sockets  # noqa: PLW0603 - a cache of the host's state, one a process
    if time.monotonic() - _sockets[0] > SOCKET_SECONDS:
        found = set()
        with open("/proc/net/unix", "rb") as table:
            for line in table:
                fields = line.rstrip(b"\n").split(b" ", 7)
                if len(fields) > 7 and fields[7].lstrip().startswith(b"/"):
                    found.add(os.fsdecode(fields[7].lstrip()))
        _sockets = (time.monotonic(), tuple(sorted(found)))
    return _sockets[1]
