"""The event loop: epoll, timers and dead children, in the guest's one thread."""

from __future__ import annotations

import heapq
import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Timer = list[Callable[[], object]]


LONGEST_NAP = 3600.0  # the kernel counts milliseconds, and not very far


def usual_signals() -> None:
    """Start as after a login, whatever signals our parent had ignored or blocked.

    A blocked SIGCHLD would hide that a command has ended, and commands would inherit the rest:
    one started for a background job could never be interrupted.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - set(SPAWN_SIGNALS):  # those Python itself ignores
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


class Loop:
    """epoll, timers and dead children."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], object]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._sequence = 0
        self._children: dict[int, Callable[[int], object]] = {}
        wake_read, self._wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Anything inside may send this, and Python's own handler would end us. A handler that
        # does nothing is not passed on to what we start, as SIG_IGN would be.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self.watch(wake_read, lambda _: self._woken(wake_read))
        self.running = True

    def watch(
        self, fd: int, handler: Callable[[int], object], events: int = select.EPOLLIN
    ) -> None:
        """Call ``handler(events)`` whenever the descriptor is ready."""
        if fd in self._handlers:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Stop watching; harmless if it was not watched."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, action: Callable[[], object]) -> Timer:
        """Call ``action()`` later; the returned list is emptied to cancel it."""
        self._sequence += 1
        timer = [action]
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._sequence, timer))
        return timer

    def on_exit(self, pid: int, action: Callable[[int], object]) -> None:
        """Call ``action(status)`` when the child ended."""
        self._children[pid] = action

    def reap(self) -> None:
        """Collect every dead child: our own, and the orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            action = self._children.pop(pid, None)
            if action is not None:
                action(status)

    def _woken(self, wake_read: int) -> None:
        try:
            while os.read(wake_read, 4096):
                pass
        except BlockingIOError:
            pass
        self.reap()

    def run(self) -> None:
        """Until `running` is false."""
        while self.running:
            self.turn()

    def turn(self) -> None:
        """Wait for something to happen, and see to it."""
        timeout = -1.0
        while self._timers:
            due, _, timer = self._timers[0]
            if timer and due > time.monotonic():
                timeout = min(due - time.monotonic(), LONGEST_NAP)
                break
            heapq.heappop(self._timers)
            if timer:
                timer[0]()
        for fd, events in self._epoll.poll(max(timeout, 0.0) if timeout != -1.0 else -1.0):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)


SPAWN_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
