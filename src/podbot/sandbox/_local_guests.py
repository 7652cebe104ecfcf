"""The host's handle on the process that forks local guests: one a process, started when needed.

A guest shall be what a child of this process would be. So the forker is replaced when this process
has changed in what children inherit (its user, capabilities, namespaces, limits, …), and a fork of
this process starts its own. Guests do not depend on the one that forked them.
"""

from __future__ import annotations

import atexit
import os
import resource
import select
import signal
import socket
import threading
from contextlib import suppress

from podbot.sandbox import interpreter
from podbot.sandbox._guest_forker import CONTROL, ENDED_WELL

START_SECONDS = 60.0
_NAMESPACES = (
    "cgroup",
    "ipc",
    "mnt",
    "net",
    "pid_for_children",
    "time_for_children",
    "user",
    "uts",
)
_INHERITED = (b"Uid", b"Gid", b"Groups", b"Cap", b"NoNewPrivs", b"Seccomp", b"Cpus_allowed:")
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class LocalGuest:
    """One that runs, as its host sees it."""

    def __init__(self, pid: int, life: int):
        self._pid, self._life = pid, life
        try:
            self._handle = os.pidfd_open(pid)
        except OSError:  # it is dead already, or the kernel is old
            self._handle = -1

    def wait(self, seconds: float) -> bool | None:
        """Whether it ended well; None if it did not end in time."""
        if not select.select([self._life], [], [], seconds)[0]:
            return None
        return os.read(self._life, 1) == ENDED_WELL

    def kill(self) -> None:
        """Kill it, and wait until it is dead."""
        with suppress(ProcessLookupError):
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            else:
                os.kill(self._pid, signal.SIGKILL)
        if self._handle >= 0:
            select.select([self._handle], [], [])

    def let_go(self) -> None:
        """Close what watches it."""
        for fd in (self._handle, self._life):
            if fd >= 0:
                os.close(fd)
        self._handle = self._life = -1


class _Forker:
    """A running forker, and the line to it."""

    def __init__(self) -> None:
        self.origin = _inherited()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = interpreter.command(
            "podbot.sandbox._guest_forker", str(CONTROL), str(os.getpid())
        )
        try:
            self._pid = os.posix_spawn(
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
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            self._handle = os.pidfd_open(self._pid)
        except OSError:  # the kernel is old
            self._handle = -1
        self._line = ours
        ours.settimeout(START_SECONDS)

    def fork(self, line: int, life: int) -> int:
        """The pid of a new guest on these descriptors."""
        socket.send_fds(self._line, [b"fork"], [line, life])
        said = self._line.recv(32)
        if not said:
            raise ConnectionResetError("the process that forks local guests has died")
        return int(said)

    def let_go(self) -> None:
        """Close what leads to it."""
        self._line.close()
        if self._handle >= 0:
            os.close(self._handle)

    def end(self) -> None:
        """Kill it, which harms no guest, and wait for its end."""
        if self._handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        self.let_go()
        with suppress(ChildProcessError):  # the program around us waited for any child
            os.waitpid(self._pid, 0)


_forker: _Forker | None = None
_guard = threading.Lock()


def start(line: int) -> LocalGuest:
    """Start a guest that serves a descriptor. Raises `OSError`."""
    near, far = os.pipe2(os.O_CLOEXEC)
    try:
        return LocalGuest(_fork(line, far), near)
    except BaseException:
        os.close(near)
        raise
    finally:
        os.close(far)


def _fork(line: int, life: int) -> int:
    global _forker  # noqa: PLW0603 - one a process
    with _guard:
        if _forker is not None and _forker.origin == _inherited():
            try:
                return _forker.fork(line, life)
            except OSError:
                pass  # something killed it, or stopped it
        _end()
        _forker = _Forker()
        try:
            return _forker.fork(line, life)
        except OSError:
            _end()
            raise


def _inherited() -> tuple[object, ...]:
    """What children of this process inherit, and a fork of the forker would not have if changed."""
    with open("/proc/self/status", "rb") as file:
        status = [line for line in file if line.startswith(_INHERITED)]
    spaces: list[object] = []
    for name in _NAMESPACES:
        try:
            spaces.append(os.readlink(f"/proc/self/ns/{name}"))
        except OSError:
            spaces.append(None)
    root = os.stat("/")
    limits = [resource.getrlimit(which) for which in _LIMITS]
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    return status, spaces, (root.st_dev, root.st_ino), limits, nice


def _end() -> None:
    global _forker
    forker, _forker = _forker, None
    if forker is not None:
        forker.end()


def _forget_in_child() -> None:
    global _forker, _guard  # noqa: PLW0603 - one a process
    _guard = threading.Lock()
    if _forker is not None:
        _forker.let_go()
        _forker = None


os.register_at_fork(after_in_child=_forget_in_child)
# Registered before any sandbox can be: it runs after they were closed.
atexit.register(_end)
