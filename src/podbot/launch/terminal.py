"""The caller's terminal: its size and modes, and the promise that those are as they were.

While raw, every key goes to the command as a byte, and what a key means is decided by the
command's own terminal. Nothing here may leave the caller's terminal raw: not an exception, not a
stop, not the end.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import termios
from contextlib import suppress
from typing import Self

from podbot.sandbox.ops import Terminal

_IFLAG, _OFLAG, _CFLAG, _LFLAG, _, _, _CC = range(7)
_TIOCGSID = 0x5429  # which session a terminal controls; termios does not name it
Modes = list[int | list[bytes | int]]


_TELLING = re.compile(rb"[\x0e\x0f\x18\x1a\x1b\x80-\x9f]")
_MODES = (1, 5, 9, 45, 66, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 1036, 2004,
          2031, 2048)  # fmt: skip
CALM = (
    "\x18\x1b<\x1b\\"  # whatever is half said is over: it would swallow what follows
    "\x1b%G\x1b]8;;\x1b\\"  # nor is it written otherwise, or a link to somewhere
    "\x1b[?2026l"  # nothing is held back
    # Back from the other screen. That takes the cursor to where it was saved: here, if there is
    # no other screen, as it is saved just before.
    "\x1b7\x1b[?1049l\x1b[?1047l\x1b[?47l"
    "\x1b[!p\x1b[?69l"  # what most terminals reset by themselves, the margins among it
    "\x1b7\x1b[?6l\x1b[r\x1b8"  # all lines scroll; this, too, would move the cursor
    "\x1b(B\x1b)B\x1b*B\x1b+B\x0f"  # letters are letters
    "\x1b[m\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\"  # seen as on any day
    "\x1b[4l\x1b[20l\x1b[?7h\x1b[?25h\x1b>"  # nothing is inserted or cut, keys mean themselves
    + "".join(f"\x1b[?{mode}l" for mode in _MODES)
    + "\x1b[<99u\x1b[=0u\x1b[>4;0m"  # also in what kitty and xterm make of them
    "\x1b[J"  # and nothing stands below that looks like ours
)
"""Makes a terminal as one expects it, without clearing the screen or what was scrolled off it."""


def is_telling(data: bytes) -> bool:
    """Whether a terminal might do more with these bytes than to show them."""
    return _TELLING.search(data) is not None


def calm(fd: int) -> None:
    """Before podbot speaks on a terminal that a command has had: what it was told is undone.

    The kernel's own modes are not in question: the command had a terminal of its own.
    """
    if os.environ.get("TERM") == "dumb":
        return  # it would show all this
    with suppress(OSError):
        if os.isatty(fd):
            os.write(fd, CALM.encode("ascii"))


class CallerTerminal:
    """A terminal that is one of the caller's streams."""

    def __init__(self, fd: int):
        self.fd = fd
        self._before: Modes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    @property
    def raw(self) -> bool:
        """Whether we made it raw."""
        return self._before is not None

    def shape(self) -> Terminal:
        """Its size, and its modes while they are still the caller's."""
        rows, columns = self.size()
        flags: list[int | tuple[int, ...]] = []
        with suppress(termios.error):
            for each in termios.tcgetattr(self.fd):
                flags.append(each if isinstance(each, int) else tuple(map(_code, each)))
        return Terminal(rows, columns, tuple(flags))

    def size(self) -> tuple[int, int]:
        """Rows and columns; the usual ones for a terminal that does not know."""
        try:
            rows, columns = termios.tcgetwinsize(self.fd)
        except (OSError, termios.error):
            rows, columns = 0, 0
        return rows or 24, columns or 80

    @property
    def ours(self) -> bool:
        """Whether we may read it and set its modes: no other job has it now."""
        try:
            return os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError:
            return True  # not our controlling terminal: there are no jobs on it

    @property
    def free(self) -> bool:
        """Whether it is ours, and nobody else reads its keys (as a pager beside us would)."""
        return self.ours and reads_lines(self.fd)

    def make_raw(self) -> None:
        """Hand every key through; nothing is lost of what was typed ahead."""
        if self.raw or not self.ours:
            return
        try:
            before = termios.tcgetattr(self.fd)
            after = termios.tcgetattr(self.fd)
        except termios.error:
            return  # it is gone
        after[_IFLAG] &= ~(
            termios.IGNBRK | termios.BRKINT | termios.PARMRK | termios.ISTRIP | termios.INLCR
            | termios.IGNCR | termios.ICRNL | termios.IXON
        )  # fmt: skip
        after[_OFLAG] &= ~termios.OPOST
        after[_CFLAG] = after[_CFLAG] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
        after[_LFLAG] &= ~(
            termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN
        )
        after[_CC][termios.VMIN], after[_CC][termios.VTIME] = 1, 0
        self._before = before  # known before it changes: whatever interrupts us can restore
        self._set(after)

    def restore(self) -> None:
        """Give it back its modes, unless another job has it, which has set its own."""
        before, self._before = self._before, None
        if before is not None and self.ours:
            self._set(before)

    def _set(self, modes: Modes) -> None:
        # Should another job get it this very moment, we would be stopped instead of told.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            termios.tcsetattr(self.fd, termios.TCSANOW, modes)
        except termios.error:
            pass  # it is gone
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _code(character: bytes | int) -> int:
    return character if isinstance(character, int) else character[0]


def reads_lines(fd: int) -> bool:
    """Whether a terminal collects and echoes lines: what reads its keys one by one does not."""
    try:
        flags = termios.tcgetattr(fd)[_LFLAG]
    except termios.error:
        return True
    return bool(flags & termios.ICANON and flags & termios.ECHO)


def means_stop(near: int, key: int) -> bool:
    """Whether a key would stop the command of this terminal, and nobody inside could continue it.

    So it is while lines are read and the command itself, not a job of a shell, has the terminal.
    """
    try:
        modes = termios.tcgetattr(near)
        stops = modes[_LFLAG] & termios.ISIG and modes[_LFLAG] & termios.ICANON
        if not stops or key == 0 or _code(modes[_CC][termios.VSUSP]) != key:
            return False
        leader = struct.unpack("i", fcntl.ioctl(near, _TIOCGSID, b"\0\0\0\0"))[0]
        return bool(os.tcgetpgrp(near) == leader)
    except (OSError, termios.error):
        return False
