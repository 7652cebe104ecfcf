"""A program that ends when we do, however we end, and a private folder that goes with it.

A parent-death signal would fire when the *thread* that started the program ends, so a tiny shell
stands between: it holds the read end of a pipe of ours, and takes the program down when the pipe
closes, which the kernel sees to even after `kill -9`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

END_SECONDS = 5.0
LINGER_SECONDS = 1.0
PREFIX = "podbot-engine-"
LONGEST_SOCKET = 100  # the kernel's limit is 108, with a name and a NUL

# Waits for the program, while a second copy of the shell waits for the end of the pipe. All of the
# group is told to end, because Podman without root goes on in a child of its own.
_SCRIPT = """\
exec 3<&0 </dev/null
"$@" 3<&- &
program=$!
exec 2>/dev/null
{ trap '' TERM; read -r _ <&3; kill -TERM 0; } &
watcher=$!
exec 3<&-
trap : TERM
wait "$program"
status=$?
kill -TERM 0
wait "$program"
kill -KILL "$watcher"
wait "$watcher"
exit "$status"
"""


class Leashed:
    """A running program that ends with us."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], log: str):
        """Start it in the folder of ``log``, the file that what it prints goes to.

        There, because what it starts in turn may leave files where it stands.
        """
        with open(log, "wb") as output:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "sh", *argv],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=dict(environment),
                cwd=os.path.dirname(log),
                start_new_session=True,  # a Ctrl-C is for us to act on
            )
        self._log = log

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._shell.poll() is None

    def ends_within(self, seconds: float) -> bool:
        """Whether it is over, or will be very soon."""
        with suppress(subprocess.TimeoutExpired):
            self._shell.wait(seconds)
        return not self.alive

    @property
    def pid(self) -> int:
        """The process id of the shell that holds it."""
        return self._shell.pid

    def said(self) -> str:
        """The end of what it printed."""
        with suppress(OSError), open(self._log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 2000))
            return file.read(2000).decode("utf-8", "replace").strip()
        return ""

    def end(self) -> None:
        """End it and wait for that."""
        self.let_go()
        if self._shell.returncode is not None:
            return
        try:
            self._shell.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._shell.pid, signal.SIGKILL)  # nobody else is in that group
            self._shell.wait()
        # What is not the shell's own child may need a moment longer. Not a long one: it was told,
        # and if nobody buries it there is no telling that it is dead.
        deadline = time.monotonic() + LINGER_SECONDS
        with suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.killpg(self._shell.pid, 0)
                time.sleep(0.002)

    def let_go(self) -> None:
        """Close our end of the pipe. In a fork, so that the real owner's end is noticed."""
        if self._shell.stdin is not None:
            self._shell.stdin.close()

    def forget(self) -> None:
        """In a fork: it is the parent's child, nothing to wait for."""
        self.let_go()
        self._shell.returncode = 0


class PrivateFolder:
    """A folder that only this user can enter, locked while this process lives."""

    def __init__(self, environment: Mapping[str, str]):
        base = _base(environment)
        sweep(base)
        while True:
            self.path = tempfile.mkdtemp(prefix=PREFIX, dir=base)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._lock = os.open(self.place("lock"), flags, 0o600)
            # Before it was locked, whoever sweeps could have taken it for a dead one's.
            if _lock(self._lock) and os.path.exists(self.place("lock")):
                return
            os.close(self._lock)

    def place(self, name: str) -> str:
        """A path in it."""
        return os.path.join(self.path, name)

    def remove(self) -> None:
        """Remove it with what is in it."""
        _remove(self.path)
        os.close(self._lock)

    def forget(self) -> None:
        """In a fork: it is the parent's."""
        os.close(self._lock)


def sweep(base: str) -> None:
    """Remove the folders of processes that could not do so themselves."""
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    _remove_if_dead(entry.path)


def _remove_if_dead(folder: str) -> None:
    if os.lstat(folder).st_uid != os.geteuid():
        return
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if _lock(lock):
            _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: str) -> None:
    with suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def listens(path: str) -> bool:
    """Whether somebody accepts connections at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        return sock.connect_ex(path) == 0


def _lock(fd: int) -> bool:
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _base(environment: Mapping[str, str]) -> str:
    """Where such folders are made: the user's runtime folder, else the temporary one."""
    for place in (environment.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir()):
        if len(place) + len(PREFIX) + 24 <= LONGEST_SOCKET and os.path.isabs(place):
            with suppress(OSError):
                found = os.stat(place)
                ours = found.st_uid == os.geteuid() or found.st_mode & 0o1000
                if ours and os.access(place, os.W_OK | os.X_OK):
                    return place
    return "/tmp"  # noqa: S108 - the folder in it is made private and unpredictable
