"""A shell that goes on from one script to the next: its folder, variables and functions stay.

    with sandbox.shell() as shell:
        shell.run("cd src; export DEBUG=1")
        print(shell.run("pwd; echo $DEBUG").stdout)

A process of the sandbox, driven by the verbs of `ops`, so every backend that runs commands has it.
Scripts are sent one at a time, each quoted and run by the shell itself; marks that nobody can
guess, on descriptors that commands do not have, say where the output of each ends.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self

from podbot.errors import Kind, SandboxError
from podbot.frozen import dataclass as frozen
from podbot.sandbox import ops
from podbot.sandbox.limits import Limits
from podbot.sandbox.ops import Command, Op
from podbot.sandbox.values import TIMEOUT_EXIT_CODE

if TYPE_CHECKING:
    from podbot.sandbox.async_sandbox import AsyncSandbox
    from podbot.sandbox.sandbox import Sandbox

LOOK_SECONDS = 0.25
"""How often a shell that says nothing is looked at, whether it has ended."""
NOTED_SECONDS = 5.0
"""How long after its streams a shell that ended may take to be noted as ended."""
LONGEST_MARK = 64 << 10
"""What a mark tells is not longer: a shell's folder is in it."""
SHELLS = ("bash", "sh")
"""What is started unless the caller says: the first of these that is there."""


@frozen(frozen=True, slots=True)
class ShellRun:
    """What one script of a shell did.

    ``exit_code`` is that of its last command, ``cwd`` where the shell is now. ``ended``: the script
    ended the shell (``exit``), or it was killed, as after ``timed_out``; the next script gets a new
    one, in the folder where the last one was known to be, without its variables.
    """

    script: str
    exit_code: int
    stdout_bytes: bytes
    stderr_bytes: bytes
    duration: float
    cwd: str
    timed_out: bool = False
    ended: bool = False
    stdout_truncated: bool = False
    stderr_truncated: bool = False

    @property
    def ok(self) -> bool:
        """Whether the last command said that it succeeded."""
        return self.exit_code == 0

    @property
    def stdout(self) -> str:
        """Standard output as text; bytes that are not UTF-8 show as U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text; bytes that are not UTF-8 show as U+FFFD."""
        return self.stderr_bytes.decode("utf-8", "replace")


@dataclass(slots=True)
class _Session:
    """What is known of a shell between two scripts. ``busy``: a script was given up on."""

    programs: tuple[str, ...]
    env: dict[str, str] | None
    cwd: str | None
    limits: Limits
    process: int | None = None
    busy: bool = False
    mark: str = field(default_factory=lambda: os.urandom(16).hex())
    count: int = 0


def session(program: str | None, command: Command, limits: Limits) -> _Session:
    """A shell that is started by its first script."""
    return _Session(SHELLS if program is None else (program,), command.env, command.cwd, limits)


def run(shell: _Session, script: str, timeout: float | None) -> Op[ShellRun]:
    """Run a script in the shell, which is started if there is none."""
    if not ops.is_native(script):
        raise SandboxError(
            "a script of a shell is text without NUL", kind=Kind.INVALID, remedy="pass a str"
        )
    limit = ops.seconds(timeout, shell.limits)
    if shell.busy:
        yield from end(shell)
    if shell.process is None:
        yield from _start(shell)
    assert shell.process is not None  # noqa: S101 - it was started
    shell.busy = True
    shell.count += 1
    mark = f"{shell.mark}.{shell.count}"
    began = time.monotonic()
    deadline = None if limit is None else began + limit
    ended = False
    try:
        yield from ops.feed(shell.process, _line(script, mark), close=False)
    except SandboxError as error:
        if error.kind is not Kind.IO:  # something killed it between two scripts: that is told
            raise
    out = _Stream("stdout", f"\0{mark}:".encode(), shell.limits.output)
    err = _Stream("stderr", f"\0{mark}:".encode(), shell.limits.output)
    whole = yield from _read(shell, out, deadline)
    # Of one that ended or is late, what is there now is taken.
    whole = (yield from _read(shell, err, deadline if whole else began)) and whole
    timed_out = False
    if whole:
        code, shell.cwd = out.told()
    else:
        # What its children wrote after it ended is not waited for.
        late = deadline is not None and time.monotonic() >= deadline
        found = yield from ops.wait(shell.process, 0 if late else NOTED_SECONDS)
        timed_out, ended = found is None, True
        code = TIMEOUT_EXIT_CODE if found is None else found
        yield from end(shell)
    shell.busy = False
    return ShellRun(
        script, code, bytes(out.data), bytes(err.data), time.monotonic() - began,
        shell.cwd or "", timed_out, ended, out.truncated, err.truncated,
    )  # fmt: skip


def end(shell: _Session) -> Op[None]:
    """Kill the shell with all it started."""
    number, shell.process, shell.busy = shell.process, None, False
    if number is not None:
        try:
            yield from ops.forget(number)
        except SandboxError as error:
            if error.kind is not Kind.NO_SUCH_PROCESS:
                raise


def _start(shell: _Session) -> Op[None]:
    for number, program in enumerate(shell.programs, 1):
        try:
            command = Command((program,), shell.cwd, shell.env)
            shell.process = yield from ops.spawn(command, None, True, True, shell.limits)
            break
        except SandboxError as error:
            if error.kind is not Kind.COMMAND_NOT_FOUND or number == len(shell.programs):
                raise
    assert shell.process is not None  # noqa: S101 - the last failure is raised
    yield from ops.feed(shell.process, "exec 8>&1 9>&2\n", close=False)


def _line(script: str, mark: str) -> str:
    """What the shell is sent. ``command`` keeps a mistake in the script from ending the shell."""
    return (
        f"command eval {shlex.quote(script)} </dev/null 8>&- 9>&-\n"
        f"printf '\\000{mark}:%d:%s\\000' \"$?\" \"$PWD\" >&8; printf '\\000{mark}:\\000' >&9\n"
    )


class _Stream:
    """What came of one stream, up to its mark."""

    def __init__(self, name: Literal["stdout", "stderr"], mark: bytes, limit: int):
        self.name: Literal["stdout", "stderr"] = name
        self.data = bytearray()
        self.truncated = False
        self._mark, self._limit = mark, limit
        self._behind = b""

    def take(self, data: bytes | bytearray, dropped: int) -> bool:
        """Take in what came; whether the mark is there, whole."""
        self.truncated = self.truncated or dropped > 0
        # The mark may be cut by the end of a piece: some is held back.
        held = self._behind + bytes(data)
        at = held.find(self._mark)
        if at >= 0 and held.find(b"\0", at + 1) >= 0:
            self._keep(held[:at])
            self._behind = held[at:]
            return True
        if at >= 0 and len(held) - at > LONGEST_MARK:
            at = -1  # somebody read it and wrote it without an end, to fill our memory
        safe = at if at >= 0 else max(0, len(held) - len(self._mark))
        self._keep(held[:safe])
        self._behind = held[safe:]
        return False

    def finish(self) -> None:
        """No mark will come: what was held back is output."""
        self._keep(self._behind)
        self._behind = b""

    def told(self) -> tuple[int, str | None]:
        """The exit code, and the folder, that the mark tells."""
        told = self._behind[len(self._mark) :].partition(b"\0")[0]
        code, _, cwd = told.partition(b":")
        number = int(code) if code.isdigit() and len(code) < 4 else 255
        return min(number, 255), os.fsdecode(cwd) or None

    def _keep(self, data: bytes) -> None:
        room = self._limit - len(self.data)
        self.data += data[:room]
        self.truncated = self.truncated or len(data) > room


def _read(shell: _Session, stream: _Stream, deadline: float | None) -> Op[bool]:
    """Read a stream up to its mark; False if that will not come."""
    assert shell.process is not None  # noqa: S101 - a script is under way in it
    dropped = 0
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        patience = LOOK_SECONDS if left is None else max(0.0, min(LOOK_SECONDS, left))
        chunk = yield from ops.output(shell.process, stream.name, ops.STREAM_CHUNK, patience)
        if stream.take(chunk.data, chunk.dropped - dropped):
            return True
        dropped = chunk.dropped or dropped
        over = chunk.ended or (left is not None and left <= 0)
        if chunk.timed_out and not over:
            over = (yield from ops.wait(shell.process, 0)) is not None
        if over:
            stream.finish()
            return False


class Shell:
    """A shell of a sandbox that goes on between scripts. Made by `Sandbox.shell`.

    Several threads may use it: their scripts take turns. Closing it kills all that it started.
    """

    def __init__(self, sandbox: Sandbox, state: _Session):
        self._sandbox, self._state = sandbox, state
        self._turn = threading.Lock()

    def run(self, script: str, *, timeout: float | None = None) -> ShellRun:
        """Run a script; variables, functions, options and the folder stay for the next one.

        Its input is empty. When ``timeout`` seconds (default ``limits.wall_time``) pass, the shell
        is killed with all it started. Raises the kinds of `Sandbox.exec`.
        """
        with self._turn:
            return self._sandbox._run(run(self._state, script, timeout))

    def close(self) -> None:
        """Kill it with everything it started."""
        with self._turn:
            if not self._sandbox.closed:
                self._sandbox._run(end(self._state))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncShell:
    """The async twin of `Shell`."""

    def __init__(self, sandbox: AsyncSandbox, state: _Session):
        self._sandbox, self._state = sandbox, state
        self._turn = asyncio.Lock()

    async def run(self, script: str, *, timeout: float | None = None) -> ShellRun:
        """Run a script; see `Shell.run`."""
        async with self._turn:
            return await self._sandbox._run(run(self._state, script, timeout))

    async def close(self) -> None:
        """Kill it with everything it started."""
        async with self._turn:
            if not self._sandbox.closed:
                await self._sandbox._run(end(self._state))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
