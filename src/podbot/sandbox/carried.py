"""The far ends of a joined command, where they cannot be handed over: threads carry the bytes.

For a command behind a stream of bytes: a guest over one, or a container's engine. Whoever joins it
sees descriptors as ever; behind them stands, in place of the command, what is sent to it and what
comes from it. A pipe's worth is under way in each direction, so a slow reader slows the command.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal

from podbot.errors import Kind, SandboxError
from podbot.sandbox import ops
from podbot.sandbox.joined import FarEnds
from podbot.sandbox.limits import MIB
from podbot.sandbox.ops import Command, Ended, Terminal
from podbot.sandbox.sandbox import Sandbox

CHUNK = 64 * 1024
AHEAD = 2 * MIB
"""What a command may have written besides the buffer of its stream: the guest widens its pipe to
1 MiB, reads up to 64 KiB beyond what it may keep, and as much is being handed on here."""
LOOK_SECONDS = 0.1
"""How often to look whether streams that outlive their command are silent, or readers deaf."""
TELLING_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
"""Whoever sends one of these does not wait for a reader that is not reading."""

Output = Literal["stdout", "stderr"]


class Carried:
    """What a command would have had: descriptors that are copies of the far ends.

    ``terminal`` is the near end of its terminal, where it has one: a socket, the caller's to close.
    """

    def __init__(self, ends: FarEnds):
        self._ends: dict[str, int] = {}
        self.terminal: int | None = None
        self.hurry = threading.Event()
        """Set once the command is over, and a reader that is not reading is not waited for."""
        for name, fd in ends.given().items():
            self._ends[name] = os.dup(fd)
        if ends.terminal is not None:
            near, far = socket.socketpair()
            self.terminal = near.detach()
            self._ends["terminal"] = far.detach()
        for name, fd in self._ends.items():
            os.set_blocking(fd, name == "stdin")

    def put(self, name: str, data: bytes) -> bool:
        """Hand on what the command wrote; waits for its reader. False if there is none any more."""
        fd = self._ends.get(name if name in self._ends else "terminal")
        if fd is None:
            return False
        rest = memoryview(data)
        room = select.poll()
        room.register(fd, select.POLLOUT)
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:
                if not room.poll(LOOK_SECONDS * 1000) and self.hurry.is_set():
                    return False
            except OSError:  # EPIPE, or ECONNRESET of a terminal with keys that nobody took
                return False
        return True

    def feed(
        self, send: Callable[[bytes], object], ended: Callable[[], object]
    ) -> threading.Thread:
        """Send on what the command is given, in a thread. ``ended`` is called when that is all, or
        when ``send`` has raised `OSError` or `SandboxError`."""
        fd = self._ends.pop("stdin", None)
        if fd is None and "terminal" in self._ends:
            fd = os.dup(self._ends["terminal"])

        def carry() -> None:
            # Who takes no more input may go on to speak.
            with suppress(OSError, SandboxError):
                while fd is not None and (data := _read(fd)):
                    send(data)
            if fd is not None:
                os.close(fd)
            with suppress(OSError, SandboxError):
                ended()

        return _thread(carry)

    def end(self, *names: str) -> None:
        """The command has closed these, or all that it wrote to: their readers see the end."""
        for name in names or tuple(self._ends):
            fd = self._ends.pop(name, None)
            if fd is None:
                continue
            if name == "terminal":  # a copy of it is still read from
                with suppress(OSError), socket.socket(fileno=os.dup(fd)) as line:
                    line.shutdown(socket.SHUT_WR)
            os.close(fd)

    def discard(self) -> None:
        """It was never started."""
        self.end()
        if self.terminal is not None:
            os.close(self.terminal)


def _read(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, CHUNK)
        except BlockingIOError:
            select.select([fd], [], [])
        except OSError:
            return b""  # a terminal that hung up with output nobody read


def _thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, name="podbot-carrying", daemon=True)
    thread.start()
    return thread


class Framed:
    """A command of a guest that is reached by a stream of bytes; see `Joined`."""

    def __init__(self, sandbox: Sandbox, number: int, carried: Carried, on_terminal: bool):
        self._sandbox, self._number, self._carried = sandbox, number, carried
        self._on_terminal = on_terminal
        self._over = threading.Event()
        self._asked_to_end = False
        self.terminal = carried.terminal
        self._input = carried.feed(self._send, self._no_more)
        names: tuple[Output, ...] = ("stdout",) if on_terminal else ("stdout", "stderr")
        self._outputs = [_thread(partial(self._carry, name)) for name in names]

    def _send(self, data: bytes) -> None:
        self._sandbox._run(ops.feed(self._number, data, close=False))

    def _no_more(self) -> None:
        if self._on_terminal:  # nobody sits at it any more
            self._sandbox._run(ops.close_output(self._number, "stdout"))
        else:
            self._sandbox._run(ops.feed(self._number, b"", close=True))

    def _carry(self, name: Output) -> None:
        """Hand on one stream until it ends, or is silent though the command is over."""
        left = self._sandbox.limits.buffer + AHEAD  # more was written after the command's end
        while left > 0:
            wait = 0 if self._over.is_set() else None
            try:
                chunk = self._sandbox._run(ops.output(self._number, name, CHUNK, wait))
            except SandboxError:
                if wait == 0 or not self._over.is_set():
                    break
                continue  # waked up: it may be silent
            if chunk.ended or chunk.timed_out:
                break
            if not self._carried.put(name, bytes(chunk.data)):
                with suppress(SandboxError):
                    self._sandbox._run(ops.close_output(self._number, name))
                break
            left -= len(chunk.data) if self._over.is_set() else 0
        self._carried.end(name)

    def ending(self) -> Ended:
        """How it ended, once what it wrote has been handed on; waits until it did."""
        try:
            return self._sandbox._run(ops.ending(self._number))
        finally:
            self._over.set()
            if self._asked_to_end:
                self._carried.hurry.set()
            for thread in self._outputs:
                while thread.is_alive():
                    thread.join(LOOK_SECONDS)
                    self._wake(thread)
            self._wake(self._input)
            self._carried.end()

    def _wake(self, thread: threading.Thread) -> None:
        if thread.is_alive() and thread.ident is not None:
            with suppress(SandboxError):
                self._sandbox.cancel(thread.ident)

    def signal(self, number: int) -> None:
        """Send a signal to its process group; it may have ended."""
        self._asked_to_end = self._asked_to_end or number in TELLING_TO_END
        self._tell(ops.send_signal(self._number, number, group=True))

    def kill(self) -> None:
        """Kill it with everything it started, wherever that went."""
        self._asked_to_end = True
        self._tell(ops.kill(self._number))

    def resize(self, rows: int, columns: int) -> None:
        """Tell its terminal how large it is."""
        self._tell(ops.resize(self._number, Terminal(rows, columns)))

    def _tell(self, op: ops.Op[None]) -> None:
        try:
            self._sandbox._run(op)
        except SandboxError as error:
            if error.kind not in (Kind.INVALID, Kind.NO_SUCH_PROCESS):
                raise


def start(sandbox: Sandbox, command: Command, ends: FarEnds) -> Framed:
    """As `joined.start`, for a sandbox that is reached by a stream of bytes."""
    carried = Carried(ends)
    try:
        stdin = ends.stdin is not None
        number = sandbox._run(ops.spawn(command, ends.terminal, stdin, False, sandbox.limits))
    except BaseException:
        carried.discard()
        raise
    return Framed(sandbox, number, carried, ends.terminal is not None)
