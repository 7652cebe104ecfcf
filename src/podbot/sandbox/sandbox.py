"""`Sandbox`: the contract, for callers that block.

Two kinds of failure never mix. What a *command* did wrong is data in its result. What *podbot*
could not do raises `SandboxError` with a ``kind`` and a ``remedy``. Every verb may raise these
kinds besides those it names: ``closed`` (after `close`), ``guest_lost`` (the sandbox died),
``guest_unresponsive`` (it hangs), ``protocol`` (it talks nonsense) and ``foreign_process`` (used
from a fork of the process that opened it).

Relative paths start at `workdir`. One sandbox may be used from several threads.
"""

from __future__ import annotations

import builtins
import os
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from podbot.errors import Kind, SandboxError
from podbot.sandbox import ops
from podbot.sandbox._pipes import OutputPipes, PipeReader
from podbot.sandbox.channel import Channel, SocketChannel, passes_descriptors
from podbot.sandbox.launcher import Launched, Launcher
from podbot.sandbox.limits import Limits
from podbot.sandbox.ops import Op, Terminal
from podbot.sandbox.policy import Policy
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
    from podbot.sandbox.shell_sessions import Shell

Argv = Sequence[str | os.PathLike[str]]
T = TypeVar("T")
Path = str | os.PathLike[str]


class Sandbox:
    """A place where commands run and files live, as its `guarantees` say.

    Open one with `podbot.sandbox.open` or a class such as `OverlaySandbox`; use it as a context
    manager, or call `close`. A sandbox that is collected or forgotten at exit is closed too.
    """

    _instead_of_a_user = ops.INSTEAD_OF_A_USER

    def __init__(self, launcher: Launcher):
        launched = launcher.launch()
        self._attach(launcher, launched)

    def _attach(self, launcher: Launcher, launched: Launched) -> None:
        self.backend = launcher.name
        self.limits: Limits = launcher.limits
        self.policy: Policy = launcher.policy
        self.workdir = launched.workdir
        self.guarantees: tuple[Guarantee, ...] = launched.guarantees
        self.notes: tuple[str, ...] = launched.notes
        self.layer: Layer | None = launched.layer
        self.gateway: Gateway | None = launched.gateway
        connection = launched.connection
        self._passes_descriptors = launched.descriptors and passes_descriptors(connection)
        self._pipes: dict[int, OutputPipes] = {}
        self._channel: Channel = (
            SocketChannel(connection, launched.died)
            if isinstance(connection, socket.socket)
            else connection
        )
        self._finalizer: weakref.finalize[..., Sandbox] = weakref.finalize(
            self, _end, self._channel, launched, self._pipes, os.getpid()
        )
        self._closing = threading.Lock()
        if launched.config:
            try:
                self._run(ops.init(launched.config))
            except BaseException:
                self.close()
                raise

    def _run(self, op: Op[T]) -> T:
        """Drive one verb to its end in this thread."""
        try:
            call = next(op)
            while True:
                try:
                    reply = self._channel.call(call)
                except SandboxError as error:
                    call = op.throw(error)
                else:
                    call = op.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            op.close()  # a verb that was interrupted cleans up now, not when it is collected

    # Commands and files

    def exec(
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
        """Run a command to its end.

        ``env`` is added to the sandbox's environment. Each stream keeps ``limits.output`` bytes.
        When ``timeout`` seconds (default ``limits.wall_time``) pass, everything the command
        started is killed and the result says so. Whatever the command left in the background
        goes on until the sandbox closes. Ctrl-C, or cancelling, kills what the call started.

        With ``merge_stderr`` both streams are one, in the order in which they were written, on
        ``stdout``. ``user`` (a name or number, and a group behind a colon) is who runs it: where
        podbot's program inside is root it may be anybody, elsewhere only who runs there anyway.

        Raises kinds ``command_not_found``, ``command_not_executable``, ``bad_cwd``,
        ``out_of_processes``, ``unsupported`` (a backend without processes, or that cannot run
        anything as this user).
        """
        return self._run(
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

    def python(
        self, code: str, *, timeout: float | None = None, json: bool = False
    ) -> PythonResult:
        """Run code in this sandbox's Python kernel, started when first needed.

        Variables survive between calls. An exception in the code is data in the result. On
        timeout the code is interrupted; if it will not stop, the kernel is restarted. With ``json``
        the result has the value as JSON too, where that says the same.

        Raises kinds ``kernel_failed`` (the interpreter of the policy does not start) and
        ``unsupported``.
        """
        return self._run(ops.python(code, timeout, self.limits, json=json))

    def evaluate(self, code: str, *, timeout: float | None = None) -> Evaluated:
        """Run code in an interpreter of its own, by the ``python3`` that commands find.

        Nothing of one call is left for the next but files. Modules are imported as an isolated
        interpreter does, the working folder behind the standard library. On timeout everything the
        code started is killed. From the second call on the interpreter is forked from one kept for
        that, while ``python3``, the variables and what it has loaded stay as they are.

        Raises the kinds of `exec`.
        """
        return self._run(ops.evaluate(code, timeout, self.limits))

    def python_interrupt(self) -> bool:
        """Interrupt the code another thread or task runs in the kernel; False if none ran."""
        return self._run(ops.python_interrupt())

    def python_restart(self) -> None:
        """Start the kernel anew: every variable is gone."""
        self._run(ops.python_restart())

    def read(
        self,
        path: Path,
        *,
        offset: int = 0,
        size: int | None = None,
        max_bytes: int = ops.READ_LIMIT,
    ) -> bytes:
        """The bytes of a regular file, or ``size`` of them from ``offset``.

        Raises kinds ``not_found``, ``is_directory``, ``not_a_file`` (a FIFO, a device),
        ``permission``, ``too_large`` (above ``max_bytes``), ``path_escape``.
        """
        return self._run(ops.read(ops.path_text(path), offset, size, max_bytes))

    def write(
        self, path: Path, data: bytes | str, *, exclusive: bool = False, mode: int | None = None
    ) -> None:
        """Write a file whole.

        Missing folders are made. An existing file keeps its mode unless ``mode`` is given.
        Raises kind ``exists`` if ``exclusive`` and there is one, and the kinds of `read`.
        """
        self._run(ops.write(ops.path_text(path), data, "create" if exclusive else "replace", mode))

    def append(self, path: Path, data: bytes | str) -> None:
        """Add to the end of a file, made if missing."""
        self._run(ops.write(ops.path_text(path), data, "append", None))

    def edit(
        self, path: Path, old: bytes | str, new: bytes | str, *, replace_all: bool = False
    ) -> int:
        """Replace ``old`` by ``new``; gives how many times. Every other byte stays.

        Raises kinds ``no_match``, ``not_unique`` (more than one and not ``replace_all``),
        ``invalid`` (``old`` is empty), and the kinds of `read`.
        """
        return self._run(ops.edit(ops.path_text(path), old, new, replace_all))

    def list(
        self, path: Path = ".", *, recursive: bool = False, max_entries: int = 100_000
    ) -> builtins.list[FileInfo]:
        """The entries of a folder sorted by path, links not followed.

        Raises kinds ``not_found``, ``not_directory``, ``too_large`` (more than ``max_entries``).
        """
        return self._run(ops.list_(ops.path_text(path), recursive, max_entries))

    def newest(
        self, path: Path = ".", *, max_files: int = 100, max_entries: int = 100_000
    ) -> NewestFiles:
        """The files below a folder that were changed last, and how many files there are.

        At most ``max_entries`` entries are looked at, and links are not followed. What counts is
        when a file came to be as it is, whatever time it bears.
        """
        return self._run(ops.newest(ops.path_text(path), max_files, max_entries))

    def glob(
        self, pattern: str, path: Path = ".", *, max_entries: int = 100_000
    ) -> builtins.list[str]:
        """Paths of entries below ``path`` that match, sorted.

        ``*`` and ``?`` stay inside a folder, ``**`` crosses any number of folders including
        none, ``[…]`` is a set. Hidden entries match like any other; links are not followed.
        """
        return self._run(ops.glob(pattern, ops.path_text(path), max_entries))

    def grep(
        self,
        pattern: str,
        path: Path = ".",
        *,
        glob: str | None = None,
        ignore_case: bool = False,
        max_matches: int = 2000,
        timeout: float = 30.0,
    ) -> GrepResult:
        """Lines that match a Python regular expression, in files below ``path``.

        Hidden files are searched and ignore files are not honoured; files with a NUL byte in
        their first 8 KiB are skipped as binary. ``glob`` narrows to files whose path below
        ``path`` matches, as in `glob`. Files of more than 64 MiB are skipped, and the result says
        how many. When the time is up, it has what was found so far, and says so. Raises kinds
        ``bad_pattern``, ``timeout`` (nothing was found in time) and ``not_found``.
        """
        return self._run(
            ops.grep(
                ops.Search(pattern, ops.path_text(path), glob, ignore_case, max_matches, timeout)
            )
        )

    def stat(self, path: Path, *, follow: bool = True) -> FileInfo:
        """The facts of one entry. Raises kind ``not_found``."""
        return self._run(ops.stat(ops.path_text(path), follow))

    def realpath(self, path: Path) -> str:
        """The path of an entry without links on the way, absolute, as commands inside see it.

        Raises kinds ``not_found`` and ``path_escape``.
        """
        return self._run(ops.realpath(ops.path_text(path)))

    def exists(self, path: Path) -> bool:
        """Whether there is anything at a path, a dangling link included."""
        return self._run(ops.exists(ops.path_text(path)))

    def move(self, source: Path, destination: Path, *, overwrite: bool = False) -> None:
        """Rename a file or a folder. Raises kinds ``not_found``, ``exists``."""
        self._run(ops.move(ops.path_text(source), ops.path_text(destination), overwrite))

    def remove(self, path: Path, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Remove a file, a link (never what it points to), or a folder.

        A folder that is not empty needs ``recursive`` (else kind ``not_empty``). The working
        folder itself is refused (kind ``invalid``).
        """
        self._run(ops.remove(ops.path_text(path), recursive, missing_ok))

    def mkdir(self, path: Path, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Make a folder. Raises kind ``exists`` for a file in the way, or if not ``exist_ok``."""
        self._run(ops.mkdir(ops.path_text(path), parents, exist_ok))

    def symlink(self, path: Path, target: str) -> None:
        """Make a symbolic link at ``path`` that says ``target``. Raises kind ``exists``."""
        self._run(ops.symlink(ops.path_text(path), target))

    def upload(self, source: Path, path: Path) -> TransferResult:
        """Copy a host file or folder in, to exactly ``path``.

        Links are copied as links; FIFOs, sockets and devices are left out and listed.
        """
        from podbot.sandbox import _transfer

        return self._run(_transfer.upload(source, ops.path_text(path)))

    def download(
        self, path: Path, destination: Path, *, max_bytes: int = ops.DOWNLOAD_LIMIT
    ) -> TransferResult:
        """Copy a file or folder of the sandbox out, to exactly ``destination`` on the host.

        The destination must not exist. What is inside is hostile: everything is created by
        descriptor below the destination, links that lead out of it are left out and listed, so
        are special files, and setuid bits are dropped. Raises kind ``exists``, ``too_large``.
        """
        from podbot.sandbox import _transfer

        return self._run(_transfer.download(ops.path_text(path), destination, max_bytes))

    def download_tar(
        self, path: Path, stream: Writable, *, max_bytes: int = ops.DOWNLOAD_LIMIT
    ) -> TransferResult:
        """Write a file or folder of the sandbox as a tar to ``stream``, part by part.

        A folder's members are named from it down. FIFOs, sockets and devices are left out and
        listed; links and modes are as inside, so whoever unpacks it should mind them. Raises kind
        ``too_large``, with the stream cut off.
        """
        from podbot.sandbox import _tars

        return self._run(_tars.download_tar(ops.path_text(path), stream, max_bytes))

    def upload_tar(
        self, stream: Readable, path: Path = ".", *, max_bytes: int = ops.DOWNLOAD_LIMIT
    ) -> TransferResult:
        """Unpack a tar, which is not compressed, into the folder ``path`` as it comes in.

        What leads out of the folder is refused (kind ``invalid``), or left out and listed if it is
        a link; so are hard links and special files. What came before an error stays.
        """
        from podbot.sandbox import _tars

        return self._run(_tars.upload_tar(stream, ops.path_text(path), max_bytes))

    # Processes

    def shell(
        self,
        program: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Shell:
        """A shell that goes on from one script to the next, with its folder and variables.

        ``program`` is one that reads scripts as ``sh`` does; default ``bash``, else ``sh``. It is
        started by the first script.
        """
        from podbot.sandbox import shell_sessions

        command = ops.command((program or "sh",), cwd, env)
        return shell_sessions.Shell(self, shell_sessions.session(program, command, self.limits))

    def spawn(
        self,
        argv: Argv,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        terminal: Terminal | None = None,
        stdin: bool = True,
        drop_oldest: bool = False,
    ) -> Process:
        """Start a command in the background.

        It runs between calls, up to ``limits.buffer`` bytes of each stream ahead of its reader (a
        plain pipe holds 1 MiB at most); then it waits, or with ``drop_oldest`` its oldest output
        is lost. ``terminal`` gives it a pseudo-terminal (all output is then on `Process.stdout`);
        ``stdin=False`` an empty stdin.

        Raises the kinds of `exec`.
        """
        cmd = ops.command(argv, cwd, env)
        if terminal is not None or drop_oldest or not self._passes_descriptors:
            number = self._run(ops.spawn(cmd, terminal, stdin, drop_oldest, self.limits))
            return Process(self, number, cmd.argv)
        pipes = OutputPipes(self.limits.buffer)
        try:
            number = self._run(
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
        return Process(self, number, cmd.argv)

    def processes(self) -> builtins.list[Process]:
        """Every process spawned and not yet closed, ended ones too."""
        return [Process(self, number, argv) for number, argv, _ in self._run(ops.processes())]

    def cancel(self, thread: int) -> bool:
        """End what another thread (`threading.get_ident`) waits for: its call returns soon.

        A command is killed with all it started, and its result says so; a search or a walk raises.
        False if that thread waits for nothing here that can be cancelled.
        """
        return isinstance(self._channel, SocketChannel) and self._channel.cancel(thread)

    def set_environment(self, environment: Mapping[str, str]) -> None:
        """Add variables to those that commands start with, from now on.

        A Python kernel that runs already keeps the ones it has. Raises kind ``unsupported``.
        """
        self._run(ops.set_environment(environment))

    # Its end

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._finalizer.alive

    def close(self) -> None:
        """End the sandbox: every process in it is dead when this returns. May be called twice.

        With a layer that is discarded anyway they are killed, but not waited for.
        """
        with self._closing:
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<{type(self).__name__} {self.backend} {self.workdir!r} {state}>"


def _end(channel: Channel, launched: Launched, pipes: dict[int, OutputPipes], owner: int) -> None:
    """What closing does. A fork of the owner only lets go of its copies."""
    channel.close()
    if os.getpid() == owner:
        launched.end()
    for output in pipes.values():
        output.close()


class Stream:
    """One output stream of a process; iterate over it for its chunks."""

    def __init__(self, sandbox: Sandbox, process: int, name: Literal["stdout", "stderr"]):
        self._sandbox = sandbox
        self._process = process
        self._name: Literal["stdout", "stderr"] = name
        pipes = sandbox._pipes.get(process)
        self._pipe: PipeReader | None = None if pipes is None else getattr(pipes, name)
        self.dropped = 0
        """How many bytes were lost so far because nobody read them in time (``drop_oldest``)."""

    def read(self, size: int = 65536, *, timeout: float | None = None) -> bytes:
        """The next bytes, at most ``size``; waits for some. Empty at the end of the stream.

        Raises kind ``timeout`` when nothing came in time.
        """
        if self._pipe is not None:
            data = self._pipe.read(size, timeout)
        else:
            chunk = self._sandbox._run(ops.output(self._process, self._name, size, timeout))
            self.dropped = chunk.dropped
            data = None if chunk.timed_out else bytes(chunk.data)
        if data is None:
            raise SandboxError(f"no output on {self._name} within {timeout} s", kind=Kind.TIMEOUT)
        return data

    def read_all(self) -> bytes:
        """Everything up to the end of the stream."""
        return b"".join(self)

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self.read(ops.STREAM_CHUNK):
            yield chunk


class Process:
    """A command that runs in the background of a sandbox."""

    def __init__(self, sandbox: Sandbox, number: int, argv: tuple[str, ...]):
        self._sandbox = sandbox
        self.number = number
        self.argv = argv
        self.stdout = Stream(sandbox, number, "stdout")
        self.stderr = Stream(sandbox, number, "stderr")

    def write(self, data: bytes | str) -> None:
        """Write to its stdin; returns when its pipe took all of it. Kind ``io`` if it is closed."""
        self._sandbox._run(ops.feed(self.number, data, close=False))

    def close_stdin(self) -> None:
        """Let it see the end of its input."""
        self._sandbox._run(ops.feed(self.number, b"", close=True))

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to it, or to its whole process group."""
        self._sandbox._run(ops.send_signal(self.number, number, group))

    def resize(self, rows: int, columns: int) -> None:
        """Tell it the new size of its terminal. Kind ``invalid`` if it has none."""
        self._sandbox._run(ops.resize(self.number, Terminal(rows, columns)))

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code once it ended (128 + n for signal n). Kind ``timeout`` if it did not."""
        code = self._sandbox._run(ops.wait(self.number, timeout))
        if code is None:
            raise SandboxError(f"the process still runs after {timeout} s", kind=Kind.TIMEOUT)
        return code

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._sandbox._run(ops.wait(self.number, 0))

    def close(self) -> None:
        """Kill it with everything it started, and drop its output."""
        self._sandbox._run(ops.forget(self.number))
        pipes = self._sandbox._pipes.pop(self.number, None)
        if pipes is not None:
            pipes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._sandbox.closed:
            self.close()

    def __repr__(self) -> str:
        return f"<Process {self.number} {' '.join(self.argv)!r}>"
