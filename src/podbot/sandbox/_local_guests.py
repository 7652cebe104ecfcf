"""The host's handle on the process that forks local guests: one a process, started when needed.

A guest shall be what a child of the thread that opens it would be. So the forker is replaced when
what children inherit has changed (see `_inherited`), a fork of this process starts its own, and
where it is in doubt whether a fork would be the same, an interpreter is started instead. Guests do
not depend on the one that forked them.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import threading
from contextlib import suppress

from podbot.sandbox import interpreter
from podbot.sandbox._guest_forker import CONTROL, ENDED_WELL
from podbot.sandbox._inherited import Inherited, reaches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class LocalGuest(Protocol):
        """One that runs, as its host sees it."""

        def wait(self, seconds: float) -> bool | None:
            """Whether it ended well; None if it did not end in time."""

        def kill(self) -> None:
            """Kill it, and wait until it is dead."""

        def let_go(self) -> None:
            """Close what watches it."""


START_SECONDS = 60.0
ANSWER_SECONDS = 1.0
"""How long a forker that has answered before may be silent until it counts as stopped."""
END_SECONDS = 1.0
ATTEMPTS = 2


def start(line: int) -> LocalGuest:
    """Start a guest that serves a descriptor. Raises `OSError`."""
    for _ in range(ATTEMPTS):
        forker = _fitting()
        if forker is None:
            break
        try:
            return forker.fork(line)
        except BlockingIOError:
            break  # as many orders wait as there is room for
        except OSError:
            _drop(forker)  # something killed it, or stopped it
    return _Started(line)


class _Forked:
    """A guest that the forker forked."""

    def __init__(self, handle: int, life: int):
        self._handle, self._life = handle, life

    def wait(self, seconds: float) -> bool | None:
        if not _is_readable(self._life, seconds):
            return None
        return os.read(self._life, 1) == ENDED_WELL

    def kill(self) -> None:
        try:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        except OSError:
            return  # dead, or it has rights that this process gave up: it ends by itself
        _is_readable(self._handle, None)

    def let_go(self) -> None:
        for fd in (self._handle, self._life):
            if fd >= 0:
                os.close(fd)
        self._handle = self._life = -1


class _Started:
    """A guest that is an interpreter started for it."""

    def __init__(self, line: int):
        import subprocess

        self._process = subprocess.Popen(
            interpreter.command("podbot.sandbox.guest.main", str(line)),
            stdin=subprocess.DEVNULL,
            pass_fds=[line],
            cwd="/",
            env=interpreter.environment(),
            start_new_session=True,
        )

    def wait(self, seconds: float) -> bool | None:
        from subprocess import TimeoutExpired

        try:
            return self._process.wait(seconds) == 0
        except TimeoutExpired:
            return None

    def kill(self) -> None:
        with suppress(PermissionError):  # it ends by itself
            self._process.kill()
            self._process.wait()

    def let_go(self) -> None:
        pass


class _Forker:
    """A running forker, and the line to it."""

    def __init__(self, origin: Inherited) -> None:
        self.origin = origin
        self._answers = 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.setblocking(False)
            owner = os.pidfd_open(os.getpid())
            try:
                socket.send_fds(ours, [b"owner"], [owner])
            finally:
                os.close(owner)
            command = interpreter.command("podbot.sandbox._guest_forker", str(CONTROL))
            self.pid = os.posix_spawn(
                command[0],
                command,
                interpreter.environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), CONTROL),
                ],
                setsid=True,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
            self._handle = os.pidfd_open(self.pid)
        except BaseException:
            ours.close()  # it ends by itself
            raise
        finally:
            theirs.close()
        self._line = ours

    def fork(self, line: int) -> LocalGuest:
        """A new guest on a descriptor.

        It gets that only once its handle is here: whatever comes between, be it Ctrl-C or the
        end of our patience, no two guests serve one line, and none is taken for another.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near, far = os.pipe2(os.O_CLOEXEC)
        handle = -1
        try:
            with _guard:
                socket.send_fds(self._line, [b"fork"], [theirs.fileno()])
            theirs.close()
            handle = self._answer(ours)
            socket.send_fds(ours, [b"line"], [line, far])
            return _Forked(handle, near)
        except BaseException:
            for fd in (near, handle):
                if fd >= 0:
                    os.close(fd)
            raise
        finally:
            os.close(far)
            ours.close()
            theirs.close()

    def _answer(self, order: socket.socket) -> int:
        """The pidfd of the guest that took an order."""
        while True:
            before = self._answers
            order.settimeout(ANSWER_SECONDS if before else START_SECONDS)
            try:
                _, handles, _, _ = socket.recv_fds(order, 16, 1, socket.MSG_CMSG_CLOEXEC)
            except TimeoutError:
                if self._answers == before:
                    raise
                continue  # others were served meanwhile: it is only busy
            if not handles:
                raise ConnectionResetError("the process that forks local guests has died")
            self._answers += 1
            return handles[0]

    def let_go(self) -> None:
        """Close what leads to it."""
        self._line.close()
        os.close(self._handle)

    def end(self) -> None:
        """Kill it, which harms no guest."""
        self._line.close()
        try:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        except OSError:
            pass  # dead, or it has rights that this process gave up: it ends with its line
        else:
            _is_readable(self._handle, END_SECONDS)
        _ended.append(self._handle)
        _bury()


_forker: _Forker | None = None
_guard = threading.Lock()
_here = threading.local()
"""Its ``forker`` is the last that this thread started."""
_ended: list[int] = []
"""The pidfds of forkers that were ended and perhaps not yet waited for."""


def _fitting() -> _Forker | None:
    """A forker whose forks are what children of this thread would be, if there can be one."""
    global _forker  # noqa: PLW0603 - one a process
    try:
        origin = Inherited()
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return None  # the kernel is old
    if not origin.can_be_forked:
        return None
    with _guard:
        if _forker is not None and _forker.origin != origin:
            _end()
        if _forker is None:
            _forker = _Forker(origin)
            _here.forker = _forker
        # What a thread has of filters and rules only grows: with as many as when it started the
        # forker they are the same. Another's may be others.
        by_us = getattr(_here, "forker", None) is _forker
        if not (by_us or origin.is_plain) or not reaches(_forker.pid):
            return None
        return _forker


def _drop(forker: _Forker) -> None:
    """End one that failed, unless another thread has replaced it."""
    with _guard:
        if forker is _forker:
            _end()


def _end() -> None:
    global _forker
    forker, _forker = _forker, None
    if forker is not None:
        forker.end()


def _bury() -> None:
    """Wait for those that are dead, and for no other child of this process."""
    for handle in tuple(_ended):
        with suppress(OSError):  # the program around us waited for any child
            if os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG) is None:
                continue
        _ended.remove(handle)
        os.close(handle)


def _is_readable(fd: int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def _forget_in_child() -> None:
    global _forker, _guard  # noqa: PLW0603 - one a process
    _guard = threading.Lock()
    if _forker is not None:
        _forker.let_go()
        _forker = None
    while _ended:
        os.close(_ended.pop())


os.register_at_fork(after_in_child=_forget_in_child)
# Registered before any sandbox can be: it runs after they were closed.
atexit.register(_end)
