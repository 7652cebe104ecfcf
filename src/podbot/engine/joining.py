"""Joining a command in a container to streams: bytes for the caller, or the caller's own terminal.

The caller's descriptors stay open and keep their flags, and a terminal gets its modes back however
this ends. One buffer's worth is under way in each direction, so a slow reader slows the command.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from podbot.engine import refusals
from podbot.engine.http.exchange import CHUNK
from podbot.engine.http.hijacked import STDERR, STDOUT, Frames, Hijacked
from podbot.engine.http.replies import nonsense
from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass, replace

if TYPE_CHECKING:
    from podbot.engine.engine import Engine
    from podbot.engine.execs import ExecSpec

NOTED_SECONDS = 60.0
"""How long an engine may take to note the exit status after the streams ended."""

Taken = Callable[[int, bytes], object]
Resize = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Streams:
    """The caller's descriptors."""

    stdin: int = 0
    stdout: int = 1
    stderr: int = 2

    @property
    def are_a_terminal(self) -> bool:
        """Whether a command on them should have a terminal: only if both ends are one."""
        return os.isatty(self.stdin) and os.isatty(self.stdout)


class Kept:
    """The beginning of both output streams."""

    def __init__(self, limit: int):
        self._limit = limit
        self._parts: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray()}
        self.truncated = False

    def take(self, stream: int, data: bytes) -> None:
        """Keep what there is room for."""
        part = self._parts[stream]
        room = self._limit - len(part)
        part += data[:room]
        self.truncated = self.truncated or len(data) > room

    @property
    def stdout(self) -> bytes:
        """What was kept of standard output."""
        return bytes(self._parts[STDOUT])

    @property
    def stderr(self) -> bytes:
        """What was kept of standard error."""
        return bytes(self._parts[STDERR])


def attached(engine: Engine, container: str, spec: ExecSpec, streams: Streams | None = None) -> int:
    """Run a command on the caller's streams; gives its exit status.

    It has a terminal if the caller's input and output are terminals. Kinds as for `Execs`, and
    those of `refusals.error` for a command that was not started.
    """
    streams = streams or Streams()
    tty, execs = streams.are_a_terminal, engine.execs
    has_input = _is_open(streams.stdin)  # before a connection can get its number
    exec_id = execs.create(container, replace(spec, tty=tty, stdin=True))
    held = refusals.Held(_writer(streams), spec)
    try:
        with execs.start(exec_id, tty=tty, size=_size(streams.stdout) if tty else None) as stream:
            pump = _Pump(stream, held.take, framed=not tty)
            if has_input:
                pump.read_from(streams.stdin)
            else:
                pump.send_all(b"")
            if tty:
                resize = _resizer(engine, exec_id)
                with _raw(streams.stdin), _Resizes(streams.stdout, resize) as sizes:
                    pump.run(resizes=sizes)
            else:
                pump.run()
        status = execs.wait(exec_id, NOTED_SECONDS)
        said = held.refusal(status)
    except BaseException:
        held.release()
        raise
    if said is not None:
        raise refusals.error(said, container, spec)
    held.release()
    return status


def collect(stream: Hijacked, stdin: bytes | None, kept: Kept, seconds: float | None) -> None:
    """Send ``stdin`` and keep what comes, until the command's streams end. Kind ``timeout``."""
    pump = _Pump(stream, kept.take, framed=True)
    if stdin is not None:
        pump.send_all(stdin)
    pump.run(seconds)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _writer(streams: Streams) -> Taken:
    def write(stream: int, data: bytes) -> None:
        fd = streams.stderr if stream == STDERR else streams.stdout
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:  # the caller's flags are the caller's
                select.select([], [fd], [])

    return write


def _resizer(engine: Engine, exec_id: str) -> Resize:
    def resize(rows: int, columns: int) -> None:
        # The command may have ended, or not quite begun; its size is no reason to fail.
        with suppress(ContainerError):
            engine.execs.resize(exec_id, rows, columns)

    return resize


class _Pump:
    """Carries bytes in both directions until the container's side ends."""

    def __init__(self, stream: Hijacked, take: Taken, *, framed: bool):
        self._stream, self._take = stream, take
        self._frames = Frames() if framed else None
        self._source: int | None = None
        self._unsent = memoryview(b"")
        self._ends = False

    def read_from(self, fd: int) -> None:
        """Send what can be read there."""
        self._source = fd

    def send_all(self, data: bytes) -> None:
        """Send this, and then the end."""
        self._unsent, self._ends = memoryview(data), True

    def run(self, seconds: float | None = None, resizes: _Resizes | None = None) -> None:
        """Until the container's side ends."""
        deadline = None if seconds is None else time.monotonic() + seconds
        self._stream.setblocking(False)
        while True:
            self._send()
            ready = self._wait(deadline, resizes)
            if resizes is not None and resizes.fd in ready:
                resizes.act()
            if self._source is not None and self._source in ready:
                self._read_input()
            if (self._stream.pending or self._stream.fileno() in ready) and self._receive():
                return

    def _wait(self, deadline: float | None, resizes: _Resizes | None) -> set[int]:
        poll = select.poll()
        outgoing = select.POLLOUT if self._unsent else 0
        poll.register(self._stream.fileno(), select.POLLIN | outgoing)
        if self._source is not None and not self._unsent:
            poll.register(self._source, select.POLLIN)
        if resizes is not None and resizes.fd >= 0:
            poll.register(resizes.fd, select.POLLIN)
        patience: float | None = 0 if self._stream.pending else None
        if deadline is not None and patience is None:
            patience = (deadline - time.monotonic()) * 1000
            if patience <= 0:
                raise ContainerError(
                    "the command did not end in time",
                    kind=Kind.TIMEOUT,
                    remedy="give it more time, or stop its container",
                )
        return {fd for fd, _ in poll.poll(patience)}

    def _read_input(self) -> None:
        assert self._source is not None  # noqa: S101 - asked before
        try:
            data = os.read(self._source, CHUNK)
        except BlockingIOError:
            return  # somebody else was quicker
        except OSError:
            data = b""  # closed by the caller, or a terminal that hung up
        self._unsent = memoryview(data)
        if not data:
            self._source, self._ends = None, True

    def _send(self) -> None:
        try:
            if self._unsent:
                self._unsent = self._unsent[self._stream.send(self._unsent) :]
            if self._ends and not self._unsent:
                self._ends = False
                self._stream.close_write()
        except BlockingIOError:
            return
        except OSError:
            # The command takes no more input; what it says until it ends still counts.
            self._unsent, self._source, self._ends = memoryview(b""), None, False

    def _receive(self) -> bool:
        """Whether it was the end."""
        try:
            data = self._stream.recv(CHUNK)
        except BlockingIOError:
            return False
        except ConnectionError as error:
            raise ContainerError(
                "the connection to the command was lost",
                kind=Kind.CONNECTION_FAILED,
                remedy="check that the engine's service still runs; the command may still run too",
            ) from error
        if self._frames is None:
            if data:
                self._take(STDOUT, data)
        else:
            for stream, part in self._frames.feed(data):
                self._take(stream, part)
            if not data and not self._frames.whole:
                raise nonsense("its stream ends in the middle of a frame")
        return not data


@contextmanager
def _raw(fd: int) -> Iterator[None]:
    """Hand every key through, and give the terminal back as it was."""
    import termios
    import tty

    try:
        before = termios.tcgetattr(fd)
    except termios.error:
        yield  # it is gone
        return
    try:
        tty.setraw(fd, termios.TCSADRAIN)
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


class _Resizes:
    """Follows the size of the caller's terminal: once at the start, then at each SIGWINCH."""

    def __init__(self, terminal: int, resize: Resize):
        self._terminal, self._resize = terminal, resize
        self._write = self._wakes = -1
        self._before: object = None
        self.fd = -1

    def __enter__(self) -> _Resizes:
        self._tell()
        # Only the main thread can be told of signals.
        if threading.current_thread() is threading.main_thread():
            self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._wakes = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._before = signal.signal(signal.SIGWINCH, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        if self.fd >= 0:
            handler = signal.SIG_DFL if self._before is None else self._before
            signal.signal(signal.SIGWINCH, handler)  # type: ignore[arg-type]  # what it gave us
            signal.set_wakeup_fd(self._wakes)
            os.close(self.fd)
            os.close(self._write)
            self.fd = -1

    def act(self) -> None:
        """Some signal came."""
        with suppress(BlockingIOError):
            if signal.SIGWINCH in os.read(self.fd, 4096):
                self._tell()

    def _tell(self) -> None:
        size = _size(self._terminal)
        if size is not None:
            self._resize(*size)


def _size(terminal: int) -> tuple[int, int] | None:
    """Rows and columns; a size that cannot be read is no failure."""
    try:
        columns, rows = os.get_terminal_size(terminal)
    except OSError:
        return None
    return (rows, columns) if rows > 0 and columns > 0 else None
