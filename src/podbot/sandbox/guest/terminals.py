"""Terminals that commands run on: their size, their modes, and who holds the near end."""

from __future__ import annotations

import _socket as socket
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def hand_over(line: int, fd: int) -> None:
    """Send a descriptor to the host over a socket it gave, and let go of it."""
    try:
        sock = socket.socket(fileno=os.dup(line))
        try:
            sock.sendmsg([b"-"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))])
        finally:
            sock.close()
    finally:
        os.close(fd)


def set_terminal_size(fd: int, size: Sequence[int]) -> None:
    """Tell the kernel how large a terminal is; it sends SIGWINCH by itself."""
    import fcntl
    import termios

    rows, columns = (max(1, min(int(number), 65535)) for number in size)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def set_terminal_modes(fd: int, modes: list[Any]) -> None:
    """Make a terminal behave like the one that `termios.tcgetattr` told these of."""
    import termios

    *flags, characters = modes
    termios.tcsetattr(fd, termios.TCSANOW, [*flags, [bytes([each]) for each in characters]])
