"""Waiting for descriptors and signals at once, in one thread.

Signals are only noted when they come; what they mean is decided between two waits, where it is
safe to talk to the sandbox. This module knows nothing of sandboxes.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

Action = Callable[[int], object]
Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


class Watch:
    """Descriptors, and whom to tell when one of them is ready."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._wanted: dict[int, tuple[int, Action]] = {}

    def set(self, fd: int, events: int, action: Action) -> None:
        """Call ``action(events)`` whenever these happen; errors and hang-ups are always told."""
        if self._wanted.get(fd, (None,))[0] != events:
            self._poll.register(fd, events)
        self._wanted[fd] = (events, action)

    def drop(self, fd: int) -> None:
        """Take no more interest in a descriptor."""
        if self._wanted.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def turn(self, seconds: float | None) -> None:
        """Wait until something happens, at most so long, and tell those concerned."""
        patience = None if seconds is None else max(0, int(seconds * 1000 + 0.999))
        for fd, events in self._poll.poll(patience):
            wanted = self._wanted.get(fd)  # one action may end the interest of another
            if wanted is not None:
                wanted[1](events)


class Signals:
    """Takes signals in the place of the process while it is entered.

    Only the main thread can; in others it takes none. A signal that was ignored stays ignored,
    as it would for a command that inherits it (`nohup`).
    """

    def __init__(self, numbers: tuple[signal.Signals, ...]):
        self._numbers = numbers
        self._before: dict[signal.Signals, Handler] = {}
        self._wake: tuple[int, int] | None = None
        self._wake_before = -1

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_before = signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        for number in self._numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, _note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._wake is None:
            return
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wake_before)
        for fd in self._wake:
            os.close(fd)
        self._wake = None

    @property
    def fd(self) -> int | None:
        """Ready to be read when a signal came."""
        return None if self._wake is None else self._wake[0]

    def take(self) -> list[int]:
        """The signals that came since the last time, in their order."""
        if self._wake is None:
            return []
        try:
            return [number for number in os.read(self._wake[0], 4096) if number in self._before]
        except BlockingIOError:
            return []

    def stop_here(self, group: bool) -> None:
        """Stop this process, or its group as Ctrl-Z would; returns when it is continued."""
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(0 if group else os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, before)


def _note(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has noted it already."""
