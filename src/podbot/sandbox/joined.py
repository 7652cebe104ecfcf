"""A command in progress on descriptors that were chosen for it: the seam between those who join
commands to streams of their own (`podbot.launch.attach`) and those who have commands.

Whoever has one starts it on `FarEnds` and gives back something `Joined`. Here that is a sandbox,
where nothing the command reads or writes passes through the guest: it gets the descriptors. Where
they cannot be passed, threads stand at the far ends and carry the bytes (`podbot.sandbox.carried`).

The descriptors handed in must be made for it
alone: inside, a descriptor can be opened again with other rights (``/proc/self/fd``), so a pipe
of someone else's could be read and written there at both ends. If it gets a terminal, the near
end of that comes from the guest and is checked to be one.
"""

from __future__ import annotations

import array
import os
import socket
import stat
import termios
from contextlib import suppress
from typing import Protocol

from podbot.errors import Kind, SandboxError
from podbot.frozen import dataclass
from podbot.sandbox import ops, wire
from podbot.sandbox.ops import Command, Ended, Terminal
from podbot.sandbox.sandbox import Sandbox

_PTMX = os.makedev(5, 2)
_LINE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class FarEnds:
    """What the command gets. A stream left out is its terminal, or without one is empty."""

    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    terminal: Terminal | None = None

    def given(self) -> dict[str, int]:
        """Those that are descriptors, by the name the guest knows them by."""
        streams = {"stdin": self.stdin, "stdout": self.stdout, "stderr": self.stderr}
        return {name: fd for name, fd in streams.items() if fd is not None}


class Joined(Protocol):
    """A command in progress.

    ``terminal`` is the near end of its terminal, the caller's to close: that of a terminal of this
    machine, or a socket on which it speaks and is spoken to. What goes wrong is raised by `ending`.
    """

    terminal: int | None

    def ending(self) -> Ended:
        """How it ended; waits until it did, and what it wrote is in its far ends."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to its process group; it may have ended."""
        ...

    def kill(self) -> None:
        """Kill it with everything it started, wherever that went."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """Tell its terminal how large it is; it may have ended."""
        ...


class Passed:
    """A command that has the descriptors themselves; see `Joined`."""

    def __init__(self, sandbox: Sandbox, number: int, terminal: int | None):
        self._sandbox = sandbox
        self._number = number
        self.terminal = terminal

    def ending(self) -> Ended:
        """How it ended; waits until it did."""
        return self._sandbox._run(ops.ending(self._number))

    def signal(self, number: int) -> None:
        """Send a signal to its process group; it may have ended."""
        try:
            self._sandbox._run(ops.send_signal(self._number, number, group=True))
        except SandboxError as error:
            if error.kind not in (Kind.INVALID, Kind.NO_SUCH_PROCESS):
                raise

    def kill(self) -> None:
        """Kill it with everything it started, wherever that went."""
        try:
            self._sandbox._run(ops.kill(self._number))
        except SandboxError as error:
            if error.kind is not Kind.NO_SUCH_PROCESS:
                raise

    def resize(self, rows: int, columns: int) -> None:
        """Tell its terminal how large it is."""
        if self.terminal is not None:
            with suppress(OSError, termios.error):
                termios.tcsetwinsize(self.terminal, (rows, columns))


def start(sandbox: Sandbox, command: Command, ends: FarEnds) -> Joined:
    """Start a command on these descriptors, which stay the caller's to close.

    Without `passes_descriptors` a command with a terminal has nothing else. Raises the kinds of
    `Sandbox.exec`.
    """
    if not sandbox._passes_descriptors:
        from podbot.sandbox import carried

        return carried.start(sandbox, command, ends)
    given = ends.given()
    if ends.terminal is None:
        return Passed(sandbox, _spawn(sandbox, command, None, given), None)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            number = _spawn(sandbox, command, ends.terminal, {**given, "terminal": theirs.fileno()})
        return Passed(sandbox, number, _terminal(ours))


def passes_descriptors(sandbox: Sandbox) -> bool:
    """Whether commands there get the descriptors themselves."""
    return sandbox._passes_descriptors


def _spawn(
    sandbox: Sandbox, command: Command, terminal: Terminal | None, given: dict[str, int]
) -> int:
    far, names = tuple(given.values()), tuple(given)
    op = ops.spawn(command, terminal, False, False, sandbox.limits, far_ends=far, streams=names)
    return sandbox._run(op)


def _terminal(line: socket.socket) -> int:
    """The near end of a terminal, as the guest sent it; anything else is refused."""
    line.settimeout(_LINE_SECONDS)
    fds = array.array("i")
    try:
        _, ancillary, _, _ = line.recvmsg(
            1, socket.CMSG_SPACE(fds.itemsize), socket.MSG_CMSG_CLOEXEC
        )
    except OSError:
        ancillary = []
    for _, _, raw in ancillary:
        fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    if len(fds) == 1 and _is_near_end(fds[0]):
        os.set_blocking(fds[0], False)
        return fds[0]
    for fd in fds:
        os.close(fd)
    raise wire.broken("no terminal where one was promised")


def _is_near_end(fd: int) -> bool:
    facts = os.fstat(fd)
    return stat.S_ISCHR(facts.st_mode) and facts.st_rdev == _PTMX
