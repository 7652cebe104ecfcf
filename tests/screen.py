"""A person at a terminal, for tests: starts programs on a real one, types, and looks."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

# Makes the terminal on descriptor 3 the controlling one, as a terminal emulator does for a shell.
LEADER = """
import fcntl, os, sys, termios
fcntl.ioctl(3, termios.TIOCSCTTY, 0)
os.close(3)
os.execvp(sys.argv[1], sys.argv[1:])
"""
PODBOT = (sys.executable, "-m", "podbot")
PATIENCE = 60.0


class Screen:
    """A program on a terminal of its own. ``stdin``, ``stdout``, ``stderr`` may be elsewhere."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        rows: int = 30,
        columns: int = 100,
        env: dict[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ):
        self.near, self.far = os.openpty()
        termios.tcsetwinsize(self.far, (rows, columns))
        self.before = termios.tcgetattr(self.far)
        streams = [self.far if fd is None else fd for fd in (stdin, stdout, stderr)]
        # Descriptor 3 of the child: a copy of the terminal, whatever its streams are.
        code = f"import os; os.dup2({self.far}, 3)\n{LEADER}"
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code, *argv],
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            pass_fds=[self.far],
            start_new_session=True,
            cwd=cwd,
            env=None if env is None else {**os.environ, **env},
        )
        self.seen = b""
        self._read_to = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for fd in (self.near, self.far):
            if fd >= 0:
                os.close(fd)

    def type(self, keys: str | bytes) -> None:
        """Press keys."""
        os.write(self.near, keys.encode() if isinstance(keys, str) else keys)

    def see(self, text: str | bytes) -> bytes:
        """Wait until a text is on the screen after what was seen last; gives all up to it."""
        wanted = text.encode() if isinstance(text, str) else text
        deadline = time.monotonic() + PATIENCE
        while wanted not in self.seen[self._read_to :]:
            left = deadline - time.monotonic()
            assert left > 0, (wanted, self.seen)
            if not self._look(min(left, 0.5)) and self.process.poll() is not None:
                while self._look(0):
                    pass
                assert wanted in self.seen[self._read_to :], (wanted, self.seen)
        end = self.seen.index(wanted, self._read_to) + len(wanted)
        part, self._read_to = self.seen[self._read_to : end], end
        return part

    def _look(self, seconds: float) -> bool:
        if not select.select([self.near], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.near, 65536)
        except OSError:
            data = b""
        self.seen += data
        return bool(data)

    def end(self) -> int:
        """Wait for its end; the exit code as Popen tells it, negative for a signal."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            self._look(0.05)
        while self._look(0):
            pass
        return self.process.returncode

    @property
    def modes(self) -> list[object]:
        """The terminal's modes now."""
        return termios.tcgetattr(self.far)

    @property
    def raw(self) -> bool:
        """Whether single keys are read, without an echo."""
        flags = termios.tcgetattr(self.far)[3]
        return not flags & (termios.ICANON | termios.ECHO | termios.ISIG)

    def resize(self, rows: int, columns: int) -> None:
        """Drag a corner of the window: the kernel tells the foreground job."""
        termios.tcsetwinsize(self.near, (rows, columns))

    def unplug(self) -> None:
        """Close the window."""
        near, far, self.near, self.far = self.near, self.far, -1, -1
        os.close(far)
        os.close(near)


def until(condition: object, seconds: float = PATIENCE) -> None:
    """Wait until it is true."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)


def state(pid: int) -> str:
    """R, S, T, … or "" for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return chr(file.read().rpartition(b")")[2].split()[0][0])
    except OSError:
        return ""


def by_marker(marker: str) -> list[int]:
    """Every process of this machine with a word in its command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if marker.encode() in words:
                found.append(int(name))
    return found


def is_nonblocking(fd: int) -> bool:
    """Whether someone set this flag on a shared descriptor."""
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK)


def signal_of(code: int) -> signal.Signals | None:
    """The signal an exit code of Popen's stands for."""
    return signal.Signals(-code) if code < 0 else None
