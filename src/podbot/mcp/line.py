"""The client's line: stdin and stdout, moved to where nothing else can reach them.

Whatever in this process or below it reads stdin from then on finds nothing there, and what it
prints goes to stderr: stdout carries the protocol and nothing else. This must come before anything
that starts a process or may print, so it needs nothing of the SDK, which takes its time to load.
"""

from __future__ import annotations

import fcntl
import os

from podbot.errors import Kind, PodbotError
from podbot.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """The client's line: the descriptors that the protocol is read from and written to."""

    reading: int
    writing: int

    def close(self) -> None:
        """Hang up. Stdin and stdout stay where they were moved to."""
        os.close(self.reading)
        os.close(self.writing)


def claim() -> Line:
    """Take stdin and stdout for the protocol: 0 is empty from now on, and 1 leads to stderr."""
    try:
        reading = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
        writing = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        raise PodbotError(
            "standard input or output is closed",
            kind=Kind.INVALID,
            remedy="have an MCP client start this command: it talks over both",
        ) from None
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    if nothing != 2:  # else stderr was closed, and this stays in its place: nobody hears it
        os.close(nothing)
    return Line(reading, writing)
