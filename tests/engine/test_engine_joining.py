"""A command joined to the caller's streams: pipes as pipes, a terminal as a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from standin import Asked, StandIn, frame, reply

from podbot.engine import Engine, ExecSpec, Streams, attached, joining
from podbot.errors import ContainerError, Kind

Both = tuple[StandIn, Engine]
SPEC = ExecSpec(("cmd",))


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


class Command:
    """A command in a stand-in: the test speaks for it."""

    def __init__(self, made: StandIn):
        self._made = made
        self._started = threading.Event()
        self._ended = threading.Event()
        self.connection: socket.socket
        made.on(r"POST .*/containers/c/exec", reply({"Id": "e"}, 201))
        made.on(r"POST .*/exec/e/start", self._start)
        made.on(r"POST .*/exec/e/resize", reply(b"", 201))
        made.on(r"GET .*/exec/e/json", reply({"Running": False, "ExitCode": 5}))

    def _start(self, connection: socket.socket, _: Asked) -> None:
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\n")
        self.connection = connection
        self._started.set()
        self._ended.wait(60)

    def say(self, data: bytes) -> None:
        assert self._started.wait(60)
        self.connection.sendall(data)

    def hear(self, size: int) -> bytes:
        assert self._started.wait(60)
        heard = b""
        while len(heard) < size and (part := self.connection.recv(65536)):
            heard += part
        return heard

    def end(self) -> None:
        assert self._started.wait(60)
        self.connection.shutdown(socket.SHUT_WR)
        self._ended.set()

    @property
    def created(self) -> dict[str, object]:
        return next(each for each in self._made.asked if each.path.endswith("/c/exec")).json()

    @property
    def sizes(self) -> list[str]:
        return [
            each.target.partition("?")[2]
            for each in self._made.asked
            if each.path.endswith("/resize")
        ]


@pytest.fixture
def command(podman: Both) -> Iterator[Command]:
    made = Command(podman[0])
    yield made
    made._ended.set()


class Joined(threading.Thread):
    """`attached`, meanwhile."""

    def __init__(self, engine: Engine, streams: Streams):
        super().__init__(daemon=True)
        self._engine, self._streams = engine, streams
        self.status: int | ContainerError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.status = attached(self._engine, "c", SPEC, self._streams)
        except ContainerError as error:
            self.status = error

    def done(self) -> int | ContainerError | None:
        self.join(60)
        assert not self.is_alive()
        return self.status


class Pipes:
    """Three pipes for a command's streams."""

    def __init__(self, ending: ExitStack):
        fds = [*os.pipe(), *os.pipe(), *os.pipe()]
        self._open = set(fds)
        ending.callback(self._close_all)
        self.streams = Streams(fds[0], fds[3], fds[5])
        self.input, self.output, self.errors = fds[1], fds[2], fds[4]

    def close(self, fd: int) -> None:
        """Once only: the number may be another's by the second time."""
        self._open.remove(fd)
        os.close(fd)

    def _close_all(self) -> None:
        for fd in tuple(self._open):
            self.close(fd)


@pytest.fixture
def pipes(ending: ExitStack) -> Pipes:
    return Pipes(ending)


def test_pipes_carry_bytes_both_ways(podman: Both, command: Command, pipes: Pipes) -> None:
    joined = Joined(podman[1], pipes.streams)
    os.write(pipes.input, b"to the command")
    assert command.hear(14) == b"to the command"
    command.say(frame(1, b"from it") + frame(2, b"errors"))
    assert os.read(pipes.output, 100) == b"from it"
    assert os.read(pipes.errors, 100) == b"errors"
    pipes.close(pipes.input)
    assert command.hear(1) == b""  # its input ends
    command.end()

    assert joined.done() == 5
    assert command.created["Tty"] is False and command.created["AttachStdin"] is True
    assert command.sizes == []


def test_a_closed_input_is_an_empty_one(podman: Both, command: Command, pipes: Pipes) -> None:
    closed = fcntl.fcntl(pipes.input, fcntl.F_DUPFD_CLOEXEC, 900)  # a number nobody gets next
    os.close(closed)

    joined = Joined(podman[1], Streams(closed, pipes.streams.stdout, pipes.streams.stderr))

    assert command.hear(1) == b""
    command.end()
    assert joined.done() == 5


def test_a_slow_reader_slows_the_command(podman: Both, command: Command, pipes: Pipes) -> None:
    os.set_blocking(pipes.streams.stdout, False)  # as some callers have it
    joined = Joined(podman[1], pipes.streams)
    whole = frame(1, b"x" * 1_000_000)
    sending = threading.Thread(target=lambda: (command.say(whole), command.end()), daemon=True)
    sending.start()
    heard = 0
    while heard < 1_000_000:
        heard += len(os.read(pipes.output, 65536))

    assert joined.done() == 5


def test_much_input_waits_for_the_command(podman: Both, command: Command, pipes: Pipes) -> None:
    joined = Joined(podman[1], pipes.streams)
    data = b"y" * 2_000_000

    def write() -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(pipes.input, rest) :]
        pipes.close(pipes.input)

    threading.Thread(target=write, daemon=True).start()

    assert command.hear(3_000_000) == data
    command.end()
    assert joined.done() == 5


def test_a_lost_connection_is_told(podman: Both, command: Command, pipes: Pipes) -> None:
    joined = Joined(podman[1], pipes.streams)
    command.say(frame(1, b"x"))
    os.read(pipes.output, 10)
    # Closed with unread input: the kernel resets the connection.
    os.write(pipes.input, b"unread")
    until(lambda: _readable(command.connection))
    command.connection.close()
    command._ended.set()

    status = joined.done()

    assert isinstance(status, ContainerError) and status.kind is Kind.CONNECTION_FAILED


def shown(person: int, size: int) -> bytes:
    """So many bytes from a terminal, in however many pieces they come."""
    seen = b""
    while len(seen) < size:
        seen += os.read(person, size - len(seen))
    return seen


def _readable(connection: socket.socket) -> bool:
    import select

    return bool(select.select([connection], [], [], 0)[0])


# Terminals


def set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@pytest.fixture
def terminal(ending: ExitStack) -> tuple[int, int]:
    """The two ends of a terminal: the person's, and the program's."""
    person, program = pty.openpty()
    ending.callback(os.close, person)
    ending.callback(os.close, program)
    set_size(program, 30, 90)
    return person, program


def test_a_terminal_is_one_inside_too(
    podman: Both, command: Command, terminal: tuple[int, int]
) -> None:
    person, program = terminal
    before = termios.tcgetattr(program)
    joined = Joined(podman[1], Streams(program, program, program))
    until(lambda: command.sizes)
    os.write(person, b"\x03\r")  # keys go through as bytes: none of them is a signal here
    assert command.hear(2) == b"\x03\r"
    command.say(b"\x01raw\r\n")
    assert shown(person, 6) == b"\x01raw\r\n"
    command.end()

    assert joined.done() == 5
    assert command.created["Tty"] is True
    assert command.sizes == ["h=30&w=90"]
    assert termios.tcgetattr(program) == before


def test_only_two_terminals_make_one(
    podman: Both, command: Command, terminal: tuple[int, int], pipes: Pipes
) -> None:
    _, program = terminal
    for streams in (
        Streams(program, pipes.streams.stdout, pipes.streams.stderr),
        Streams(pipes.streams.stdin, program, program),
    ):
        assert not streams.are_a_terminal
    assert Streams(program, program, pipes.streams.stderr).are_a_terminal


def test_a_size_that_cannot_be_read_or_set_is_no_failure(
    podman: Both, command: Command, terminal: tuple[int, int]
) -> None:
    made, engine = podman
    made.on(r"POST .*/exec/e/resize", reply({"message": "no"}, 500))
    _, program = terminal
    joined = Joined(engine, Streams(program, program, program))
    command.end()
    assert joined.done() == 5

    told: list[tuple[int, int]] = []
    set_size(program, 0, 0)
    joining._Resizes(program, lambda *size: told.append(size))._tell()
    reading, writing = os.pipe()
    joining._Resizes(writing, lambda *size: told.append(size))._tell()
    os.close(reading)
    os.close(writing)
    assert told == []


def test_a_terminal_that_is_gone_is_no_failure() -> None:
    reading, writing = os.pipe()

    with joining._raw(reading):
        pass  # no terminal, no modes

    os.close(reading)
    os.close(writing)


PROGRAM = """
    import sys
    from podbot.engine import ExecSpec, attached, connect
    with connect(sys.argv[1]) as engine:
        sys.exit(attached(engine, "c", ExecSpec(("cmd",))))
"""


def test_a_change_of_size_is_passed_on(
    podman: Both, command: Command, terminal: tuple[int, int]
) -> None:
    """In a process of its own: signals reach the main thread."""
    _, engine = podman
    person, program = terminal
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(engine.endpoint)],
        stdin=program,
        stdout=program,
        stderr=subprocess.PIPE,
    )
    until(lambda: command.sizes)
    command.say(b"ready")  # it is in its loop when this is out
    assert shown(person, 5) == b"ready"
    for rows, columns in ((40, 100), (50, 120)):
        set_size(program, rows, columns)
        process.send_signal(signal.SIGWINCH)
        until(lambda: command.sizes[-1] == f"h={rows}&w={columns}")  # noqa: B023 - called in this round
    command.end()

    assert process.wait(60) == 5
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def test_signals_are_the_callers_again_afterwards(folder: Path) -> None:
    reading, writing = os.pipe()
    before = signal.signal(signal.SIGWINCH, signal.SIG_IGN)
    try:
        with joining._Resizes(writing, lambda *_: None) as resizes:
            os.kill(os.getpid(), signal.SIGWINCH)
            until(lambda: _ready(resizes.fd))
            resizes.act()
            resizes.act()  # nothing there: no harm
        assert signal.getsignal(signal.SIGWINCH) is signal.SIG_IGN
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(reading)
        os.close(writing)


def _ready(fd: int) -> bool:
    import select

    return bool(select.select([fd], [], [], 0)[0])
