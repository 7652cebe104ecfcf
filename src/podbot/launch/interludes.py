"""What podbot has to say while a command runs: at once, unless a program holds the whole terminal.

A program that reads keys one by one, or has drawn on the other screen, has the terminal to itself:
what is said meanwhile would be lost in its picture, or spoil it. It is kept until that is over.
Anybody may say something from any thread; it is passed on by whoever follows the command.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable

_OTHER_SCREEN = re.compile(rb"\x1b\[\?(?:[0-9;]*;)?(?:1049|1047|47)(?:;[0-9;]*)?([hl])")
_LONGEST = 32
"""More bytes than such a sequence has: it may come in two pieces."""

Tell = Callable[[str, str], object]
"""Says a text; lines end as the second says, as a raw terminal wants it otherwise."""


class Interludes:
    """Said by others, told between two of a command's own doings."""

    def __init__(self, tell: Tell):
        self._tell = tell
        self._texts: deque[str] = deque()
        self._ready, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def fd(self) -> int:
        """Ready to be read when there is something to tell."""
        return self._ready

    def say(self, text: str) -> None:
        """Have this told as soon as it may be."""
        self._texts.append(text)
        try:
            os.write(self._wake, b"!")
        except OSError:
            return  # so much waits already that it will be looked at; or all is over

    @property
    def waiting(self) -> int:
        """How much there is to tell."""
        return len(self._texts)

    def noticed(self) -> None:
        """Whoever waited for `fd` looks now."""
        try:
            os.read(self._ready, 4096)
        except BlockingIOError:
            return

    def tell(self, line_end: str = "\n", most: int | None = None) -> None:
        """Tell all that waits, or so much of it."""
        for _ in range(len(self._texts) if most is None else most):
            self._tell(self._texts.popleft(), line_end)

    def close(self) -> None:
        """Nobody follows any more; what waits can still be told."""
        ready, wake, self._ready, self._wake = self._ready, self._wake, -1, -1
        if ready >= 0:
            os.close(ready)
            os.close(wake)


class OtherScreen:
    """Whether what was written to a terminal left it on its other screen."""

    def __init__(self) -> None:
        self.on = False
        self._end = b""

    def see(self, data: bytes) -> None:
        """What was written next."""
        for match in _OTHER_SCREEN.finditer(self._end + data):
            self.on = match[1] == b"h"
        self._end = (self._end + data)[-_LONGEST:]
