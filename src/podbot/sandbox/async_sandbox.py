"""`AsyncSandbox`: the verbs of `Sandbox` for an event loop. The contract stands there.

``sandbox = await open_async(…)`` or ``async with open_async(…) as sandbox:``. Cancelling a call
kills what it started. A sandbox belongs to the loop it was started in.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar, cast

from podbot.errors import Kind, SandboxError
from podbot.sandbox import ops
from podbot.sandbox._pipes import OutputPipes, PipeReader
from podbot.sandbox.async_channel import AsyncAdapter, AsyncSocketChannel
from podbot.sandbox.channel import Call, Reply, closed_error, passes_descriptors
from podbot.sandbox.launcher import Launched, Launcher
from podbot.sandbox.limits import Limits
from podbot.sandbox.ops import Op, Terminal
from podbot.sandbox.policy import Policy
from podbot.sandbox.sandbox import Argv, Path
from podbot.sandbox.values import (
    Evaluated,
    ExecResult,
    FileInfo,
    GrepResult,
    Guarantee,
    NewestFiles,
    PythonResult,
    TransferResult,
)

if TYPE_CHECKING:
    from podbot.sandbox._tars import Readable, Writable
    from podbot.sandbox.gateway import Gateway
    from podbot.sandbox.layers import Layer
    from podbot.sandbox.shell_sessions import AsyncShell

T = TypeVar("T")


class AsyncSandbox:
    """The async twin of `Sandbox`: the same verbs, the same results, the same errors."""

    _instead_of_a_user = ops.INSTEAD_OF_A_USER

    def __init__(self, launcher: Launcher):
        self._launcher = launcher
        self._channel: AsyncSocketChannel | AsyncAdapter | None = None
        self._finalizer: weakref.finalize[..., AsyncSandbox] | None = None
        self._passes_descriptors = False
        self._pipes: dict[int, OutputPipes] = {}
        self.backend = launcher.name
        self.limits: Limits = launcher.limits
        self.policy: Policy = launcher.policy
        self.workdir = ""
        self.guarantees: tuple[Guarantee, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.layer: Layer | None = None
        self.gateway: Gateway | None = None

    async def start(self) -> Self:
        """Start the sandbox, once; `await sandbox` and ``async with`` do this."""
        if self._finalizer is not None:
            return self
        await self._attach(await finish(asyncio.to_thread(self._launcher.launch), _end_orphan))
        return self

    async def _attach(self, launched: Launched) -> None:
        connection = launched.connection
        self._channel = (
            AsyncSocketChannel(connection, launched.died)
            if isinstance(connection, socket.socket)
            else AsyncAdapter(connection)
        )
        self._passes_descriptors = launched.descriptors and passes_descriptors(connection)
        self._finalizer = weakref.finalize(
            self, _end, self._channel, launched, self._pipes, os.getpid()
        )
        self.workdir = launched.workdir
        self.guarantees = launched.guarantees
        self.notes = launched.notes
        self.layer = launched.layer
        self.gateway = launched.gateway
        if launched.config:
            try:
                await self._run(ops.init(launched.config))
            except BaseException:
                await self.close()
                raise

    def _started(self) -> AsyncSocketChannel | AsyncAdapter:
        if self._channel is None:
            raise SandboxError(
                "this sandbox was not started",
                kind=Kind.INVALID,
                remedy="use `async with`, or await it first",
            )
        if self.closed:
            raise closed_error()
        return self._channel

    async def _awake(self) -> AsyncSocketChannel | AsyncAdapter:
        """The channel, for a verb that begins."""
        return self._started()

    async def _run(self, op: Op[T]) -> T:
        channel = await self._awake()
        try:
            call = next(op)
            while True:
                try:
                    reply = await channel.call(call)
                except SandboxError as error:
                    call = op.throw(error)
                else:
                    call = op.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            op.close()  # a verb that was interrupted cleans up now, not when it is collected

    async def _run_apart(self, op: Op[T]) -> T:
        """Drive a verb that reads and writes the host's disk itself: its steps, in threads."""
        channel = await self._awake()
        reply: Reply | None = None
        error: SandboxError | None = None
        try:
            while True:
                step = await finish(asyncio.to_thread(_advance, op, reply, error), None)
                if isinstance(step, _Returned):
                    return step.value
                reply = error = None
                try:
                    reply = await channel.call(step)
                except SandboxError as refusal:
                    error = refusal
        finally:
            await finish(asyncio.to_thread(op.close), None)

    # Commands and files

    async def exec(
        self,
        argv: Argv,
        *,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        merge_stderr: bool = False,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command to its end."""
        return await self._run(
            ops.exec_(
                ops.command(argv, cwd, env),
                stdin,
                timeout,
                self.limits,
                merge_stderr=merge_stderr,
                user=user,
                instead=self._instead_of_a_user,
            )
        )

    async def python(
        self, code: str, *, timeout: float | None = None, json: bool = False
    ) -> PythonResult:
        """Run code in this sandbox's Python kernel, started when first needed."""
        return await self._run(ops.python(code, timeout, self.limits, json=json))

    async def evaluate(self, code: str, *, timeout: float | None = None) -> Evaluated:
        """Run code in an interpreter of its own, by the ``python3`` that commands find."""
        return await self._run(ops.evaluate(code, timeout, self.limits))

    async def python_interrupt(self) -> bool:
        """Interrupt the code another thread or task runs in the kernel; False if none ran."""
        return await self._run(ops.python_interrupt())

    async def python_restart(self) -> None:
        """Start the kernel anew: every variable is gone."""
        await self._run(ops.python_restart())

    async def read(
        self,
        path: Path,
        *,
        offset: int = 0,
        size: int | None = None,
        max_bytes: int = ops.READ_LIMIT,
    ) -> bytes:
        """The bytes of a regular file, or ``size`` of them from ``offset``."""
        return await self._run(ops.read(ops.path_text(path), offset, size, max_bytes))

    async def write(
        self, path: Path, data: bytes | str, *, exclusive: bool = False, mode: int | None = None
    ) -> None:
        """Write a file whole."""
        await self._run(
            ops.write(ops.path_text(path), data, "create" if exclusive else "replace", mode)
        )

    async def append(self, path: Path, data: bytes | str) -> None:
        """Add to the end of a file, made if missing."""
        await self._run(ops.write(ops.path_text(path), data, "append", None))

    async def edit(
        self, path: Path, old: bytes | str, new: bytes | str, *, replace_all: bool = False
    ) -> int:
        """Replace ``old`` by ``new``; gives how many times. Every other byte stays."""
        return await self._run(ops.edit(ops.path_text(path), old, new, replace_all))

    async def list(
        self, path: Path = ".", *, recursive: bool = False, max_entries: int = 100_000
    ) -> builtins.list[FileInfo]:
        """The entries of a folder sorted by path, links not followed."""
        return await self._run(ops.list_(ops.path_text(path), recursive, max_entries))

    async def newest(
        self, path: Path = ".", *, max_files: int = 100, max_entries: int = 100_000
    ) -> NewestFiles:
        """The files below a folder that were changed last; see `Sandbox.newest`."""
        return await self._run(ops.newest(ops.path_text(path), max_files, max_entries))

    async def glob(
        self, pattern: str, path: Path = ".", *, max_entries: int = 100_000
    ) -> builtins.list[str]:
        """Paths of entries below ``path`` that match, sorted."""
        return await self._run(ops.glob(pattern, ops.path_text(path), max_entries))

    async def grep(
        self,
        pattern: str,
        path: Path = ".",
        *,
        glob: str | None = None,
        ignore_case: bool = False,
        max_matches: int = 2000,
        timeout: float = 30.0,
    ) -> GrepResult:
        """Lines that match a Python regular expression, in files below ``path``."""
        return await self._run(
            ops.grep(
                ops.Search(pattern, ops.path_text(path), glob, ignore_case, max_matches, timeout)
            )
        )

    async def stat(self, path: Path, *, follow: bool = True) -> FileInfo:
        """The facts of one entry. Raises kind ``not_found``."""
        return await self._run(ops.stat(ops.path_text(path), follow))

    async def realpath(self, path: Path) -> str:
        """The path of an entry without links on the way; see `Sandbox.realpath`."""
        return await self._run(ops.realpath(ops.path_text(path)))

    async def exists(self, path: Path) -> bool:
        """Whether there is anything at a path, a dangling link included."""
        return await self._run(ops.exists(ops.path_text(path)))

    async def move(self, source: Path, destination: Path, *, overwrite: bool = False) -> None:
        """Rename a file or a folder. Raises kinds ``not_found``, ``exists``."""
        await self._run(ops.move(ops.path_text(source), ops.path_text(destination), overwrite))

    async def remove(
        self, path: Path, *, recursive: bool = False, missing_ok: bool = False
    ) -> None:
        """Remove a file, a link (never what it points to), or a folder."""
        await self._run(ops.remove(ops.path_text(path), recursive, missing_ok))

    async def mkdir(self, path: Path, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Make a folder. Raises kind ``exists`` for a file in the way, or if not ``exist_ok``."""
        await self._run(ops.mkdir(ops.path_text(path), parents, exist_ok))

    async def symlink(self, path: Path, target: str) -> None:
        """Make a symbolic link at ``path`` that says ``target``. Raises kind ``exists``."""
        await self._run(ops.symlink(ops.path_text(path), target))

    async def upload(self, source: Path, path: Path) -> TransferResult:
        """Copy a host file or folder in, to exactly ``path``."""
        from podbot.sandbox import _transfer

        return await self._run_apart(_transfer.upload(source, ops.path_text(path)))

    async def download(
        self, path: Path, destination: Path, *, max_bytes: int = ops.DOWNLOAD_LIMIT
    ) -> TransferResult:
        """Copy a file or folder of the sandbox out, to exactly ``destination`` on the host."""
        from podbot.sandbox import _transfer

        return await self._run_apart(
            _transfer.download(ops.path_text(path), destination, max_bytes)
        )

    async def download_tar(
        self, path: Path, stream: Writable, *, max_bytes: int = ops.DOWNLOAD_LIMIT
    ) -> TransferResult:
        """Write a file or folder of the sandbox as a tar to ``stream``, part by part."""
        from podbot.sandbox import _tars

        return await self._run_apart(_tars.download_tar(ops.path_text(path), stream, max_bytes))

    async def upload_tar(
        self, stream: Readable, path: Path = ".", *, max_bytes: int = ops.DOWNLOAD_LIMIT
    ) -> TransferResult:
        """Unpack a tar, which is not compressed, into the folder ``path`` as it comes in."""
        from podbot.sandbox import _tars

        return await self._run_apart(_tars.upload_tar(stream, ops.path_text(path), max_bytes))

    # Processes

    def shell(
        self,
        program: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> AsyncShell:
        """A shell that goes on from one script to the next; not started, so not awaited."""
        from podbot.sandbox import shell_sessions

        command = ops.command((program or "sh",), cwd, env)
        return shell_sessions.AsyncShell(
            self, shell_sessions.session(program, command, self.limits)
        )

    async def spawn(
        self,
        argv: Argv,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        terminal: Terminal | None = None,
        stdin: bool = True,
        drop_oldest: bool = False,
    ) -> AsyncProcess:
        """Start a command in the background."""
        cmd = ops.command(argv, cwd, env)
        await self._awake()  # before asking what its line can carry
        if terminal is not None or drop_oldest or not self._passes_descriptors:
            number = await self._run(ops.spawn(cmd, terminal, stdin, drop_oldest, self.limits))
            return AsyncProcess(self, number, cmd.argv)
        pipes = OutputPipes(self.limits.buffer)
        try:
            number = await self._run(
                ops.spawn(cmd, None, stdin, drop_oldest, self.limits, far_ends=pipes.far)
            )
        except BaseException:
            pipes.close()
            raise
        finally:
            pipes.close_far()
        for done in [other for other, output in self._pipes.items() if output.ended]:
            del self._pipes[done]
        self._pipes[number] = pipes
        return AsyncProcess(self, number, cmd.argv)

    async def processes(self) -> builtins.list[AsyncProcess]:
        """Every process spawned and not yet closed, ended ones too."""
        found = await self._run(ops.processes())
        return [AsyncProcess(self, number, argv) for number, argv, _ in found]

    async def set_environment(self, environment: Mapping[str, str]) -> None:
        """Add variables to those that commands start with, from now on."""
        await self._run(ops.set_environment(environment))

    # Its end

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._finalizer is not None and not self._finalizer.alive

    async def close(self) -> None:
        """End the sandbox: every process in it is dead when this returns. May be called twice."""
        if self._channel is not None:
            self._channel.close()
        if self._finalizer is not None:
            await finish(asyncio.to_thread(self._finalizer), None)

    def __await__(self) -> Generator[object, None, Self]:
        return self.start().__await__()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open" if self._channel else "not started"
        return f"<{type(self).__name__} {self.backend} {self.workdir!r} {state}>"


def _end(
    channel: AsyncSocketChannel | AsyncAdapter,
    launched: Launched,
    pipes: dict[int, OutputPipes],
    owner: int,
) -> None:
    channel.release()
    if os.getpid() == owner:
        launched.end()
    for output in pipes.values():
        channel.in_loop(output.close)


def _end_orphan(launched: Launched) -> None:
    """A launch that nobody waits for any more."""
    launched.connection.close()
    launched.end()


class AsyncStream:
    """One output stream of a process; ``async for`` gives its chunks."""

    def __init__(self, sandbox: AsyncSandbox, process: int, name: Literal["stdout", "stderr"]):
        self._sandbox = sandbox
        self._process = process
        self._name: Literal["stdout", "stderr"] = name
        pipes = sandbox._pipes.get(process)
        self._pipe: PipeReader | None = None if pipes is None else getattr(pipes, name)
        self.dropped = 0

    async def read(self, size: int = 65536, *, timeout: float | None = None) -> bytes:
        """The next bytes, at most ``size``; empty at the end of the stream."""
        if self._pipe is not None:
            data = await self._pipe.read_async(size, timeout)
        else:
            chunk = await self._sandbox._run(ops.output(self._process, self._name, size, timeout))
            self.dropped = chunk.dropped
            data = None if chunk.timed_out else bytes(chunk.data)
        if data is None:
            raise SandboxError(f"no output on {self._name} within {timeout} s", kind=Kind.TIMEOUT)
        return data

    async def read_all(self) -> bytes:
        """Everything up to the end of the stream."""
        return b"".join([chunk async for chunk in self])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self.read(ops.STREAM_CHUNK):
            yield chunk


class AsyncProcess:
    """A command that runs in the background of a sandbox."""

    def __init__(self, sandbox: AsyncSandbox, number: int, argv: tuple[str, ...]):
        self._sandbox = sandbox
        self.number = number
        self.argv = argv
        self.stdout = AsyncStream(sandbox, number, "stdout")
        self.stderr = AsyncStream(sandbox, number, "stderr")

    async def write(self, data: bytes | str) -> None:
        """Write to its stdin; returns when its pipe took all of it."""
        await self._sandbox._run(ops.feed(self.number, data, close=False))

    async def close_stdin(self) -> None:
        """Let it see the end of its input."""
        await self._sandbox._run(ops.feed(self.number, b"", close=True))

    async def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to it, or to its whole process group."""
        await self._sandbox._run(ops.send_signal(self.number, number, group))

    async def resize(self, rows: int, columns: int) -> None:
        """Tell it the new size of its terminal."""
        await self._sandbox._run(ops.resize(self.number, Terminal(rows, columns)))

    async def wait(self, timeout: float | None = None) -> int:
        """Its exit code once it ended. Kind ``timeout`` if it did not."""
        code = await self._sandbox._run(ops.wait(self.number, timeout))
        if code is None:
            raise SandboxError(f"the process still runs after {timeout} s", kind=Kind.TIMEOUT)
        return code

    async def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return await self._sandbox._run(ops.wait(self.number, 0))

    async def close(self) -> None:
        """Kill it with everything it started, and drop its output."""
        await self._sandbox._run(ops.forget(self.number))
        pipes = self._sandbox._pipes.pop(self.number, None)
        if pipes is not None:
            pipes.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._sandbox.closed:
            await self.close()

    def __repr__(self) -> str:
        return f"<AsyncProcess {self.number} {' '.join(self.argv)!r}>"


@dataclass(frozen=True, slots=True)
class _Returned(Generic[T]):
    """What a verb came to; a thread's future cannot carry its StopIteration."""

    value: T


def _advance(op: Op[T], reply: Reply | None, error: SandboxError | None) -> Call | _Returned[T]:
    try:
        # A generator that has not begun takes None.
        return op.send(cast(Reply, reply)) if error is None else op.throw(error)
    except StopIteration as stop:
        return _Returned(stop.value)


async def finish(work: Coroutine[object, object, T], undo: Callable[[T], None] | None) -> T:
    """Await work in a thread that must not be left half done: a cancelled caller waits for it,
    undoes it if there is a way, and only then goes."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if undo is not None and not task.cancelled() and task.exception() is None:
            await asyncio.to_thread(undo, task.result())
        raise
