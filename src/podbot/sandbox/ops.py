"""Every verb of a sandbox, written once, without I/O. All in one place, long as it is: what a
backend must answer, and what is checked of its answers, is read here from one end to the other.

Each is a generator: it yields a `Call`, is sent the `Reply`, and returns the verb's result. The
sync and the async sandbox drive the same generators, so the two cannot drift apart. What a guest
answers is checked here, field by field.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, TypeVar, cast

from podbot.errors import FileError, GuestLostError, Kind, SandboxError
from podbot.frozen import dataclass
from podbot.sandbox import wire
from podbot.sandbox.channel import STALL_SECONDS, Call, Reply
from podbot.sandbox.limits import GIB, MIB, Limits
from podbot.sandbox.values import (
    EntryKind,
    Evaluated,
    ExecResult,
    FileInfo,
    GrepMatch,
    GrepResult,
    NewestFiles,
    PythonResult,
)
from podbot.visible import visible

T = TypeVar("T")
Op = Generator[Call, Reply, T]

GRACE = 10.0
"""How much longer than a command's own timeout the host waits for the guest to say so."""
PART = 512 * 1024
"""How much of a file travels in one frame."""
LONGEST_SECONDS = 1_000_000
"""The longest time limit of a call."""
READ_LIMIT = 64 * MIB
"""The most `read` and `edit` take unless told otherwise."""
DOWNLOAD_LIMIT = 4 * GIB
"""The most `download` takes unless told otherwise."""
STREAM_CHUNK = 128 * 1024
"""How much iterating over a process's output takes at once."""
KINDS: frozenset[str] = frozenset({"file", "dir", "link", "fifo", "socket", "char", "block"})


@dataclass(frozen=True, slots=True)
class Command:
    """A command line with its surroundings, checked."""

    argv: tuple[str, ...]
    cwd: str | None
    env: dict[str, str] | None

    def args(self) -> dict[str, object]:
        """As the guest wants it."""
        return {"argv": list(self.argv), "cwd": self.cwd, "env": self.env}


def command(
    argv: Sequence[str | os.PathLike[str]], cwd: str | None, env: Mapping[str, str] | None
) -> Command:
    """Check a command line; a plain string is a common mistake and is named as one."""
    if isinstance(argv, str | bytes):
        raise SandboxError(
            f"a command is a list of words, not one string: {argv!r}",
            kind=Kind.INVALID,
            remedy='pass ["sh", "-c", "…"] to run it through a shell',
        )
    words = tuple(os.fspath(word) for word in argv)
    if not words or not words[0]:
        raise SandboxError("the command is empty", kind=Kind.INVALID, remedy="name a program")
    variables = None if env is None else dict(env)
    for word in (*words, *(variables or {}).keys(), *(variables or {}).values()):
        if not is_native(word):
            raise SandboxError(
                f"{word!r} cannot be part of a command: words are text without NUL",
                kind=Kind.INVALID,
            )
    if any(not name or "=" in name for name in variables or ()):
        raise SandboxError("an environment name is empty or holds '='", kind=Kind.INVALID)
    return Command(words, None if cwd is None else path_text(cwd), variables)


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as text; one with a NUL or nothing in it is refused here."""
    text = os.fsdecode(path)
    if not text or not is_native(text):
        raise FileError(
            f"{text!r} is not a path", kind=Kind.BAD_PATH, remedy="paths are non-empty, without NUL"
        )
    return text


def is_native(word: object) -> bool:
    """Whether this is text that a kernel can be given: no NUL, no half characters."""
    if not isinstance(word, str) or "\0" in word:
        return False
    try:
        word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def seconds(timeout: float | None, limits: Limits) -> float | None:
    """The timeout in force: the call's own, else the limit's."""
    return limits.wall_time if timeout is None else positive_seconds(timeout)


def positive_seconds(timeout: float) -> float:
    """A timeout that makes sense."""
    given: object = timeout  # callers need not be typed
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or not math.isfinite(timeout) or timeout <= 0:
        raise SandboxError(
            f"timeout={timeout!r} is not a positive number of seconds", kind=Kind.INVALID
        )
    if timeout > LONGEST_SECONDS:
        raise SandboxError(
            f"timeout={timeout!r} is longer than can be counted",
            kind=Kind.INVALID,
            remedy=f"pass {LONGEST_SECONDS} seconds at most (eleven days)",
        )
    return timeout


def content(data: bytes | bytearray | memoryview | str) -> memoryview:
    """Bytes to write; text is written as UTF-8."""
    try:
        return memoryview(data.encode("utf-8") if isinstance(data, str) else data).cast("B")
    except UnicodeEncodeError:
        raise SandboxError(
            "the text holds half a character (a lone surrogate)",
            kind=Kind.INVALID,
            remedy="pass bytes to write what is not text",
        ) from None


# Commands


def exec_(
    cmd: Command, stdin: bytes | str | None, timeout: float | None, limits: Limits,
    *, merge_stderr: bool = False, user: str | int | None = None, instead: str = "",
) -> Op[ExecResult]:  # fmt: skip
    """Run a command to its end. ``instead``: what to do where it cannot be run as this user."""
    args = cmd.args()
    if merge_stderr:
        args["merge_stderr"] = True
    if user is not None:
        args["user"] = _user(user)
    try:
        return (yield from _to_its_end("exec", cmd, args, stdin or b"", timeout, limits))
    except SandboxError as error:
        if user is not None and error.kind is Kind.UNSUPPORTED and error.remedy is None:
            error.remedy = instead
        raise


INSTEAD_OF_A_USER = "leave user= out, or open a container with privileged=True, where root runs it"
"""What to do about a user that nothing can be run as."""


def _user(user: str | int) -> str:
    """A user as ``su`` and engines take one: a name or a number, and a group behind a colon."""
    given: object = user  # callers need not be typed
    text = str(user)
    right_type = isinstance(given, (int, str)) and not isinstance(given, bool)
    words = text.split(":") if right_type and _USER.fullmatch(text) else []
    # The last number is nobody's: to the kernel it means to stay who one is.
    if not words or any(word.isdigit() and int(word) >= 2**32 - 1 for word in words):
        raise SandboxError(
            f"user={user!r:.80} is neither a name nor a number",
            kind=Kind.INVALID,
            remedy='pass "root", 1000 or "1000:1000"',
        )
    return text


_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?")


def evaluate(code: str, timeout: float | None, limits: Limits) -> Op[Evaluated]:
    """Run code in an interpreter of its own."""
    mark = os.urandom(8).hex()
    cmd = Command(("python3",), None, None)
    done = yield from _to_its_end("evaluate", cmd, {"mark": mark}, code, timeout, limits)
    stdout, value = parted(done.stdout_bytes, mark)
    return Evaluated(
        value=value,
        stdout=stdout,
        stderr=done.stderr,
        exit_code=done.exit_code,
        duration=done.duration,
        timed_out=done.timed_out,
    )


def parted(data: bytes, mark: str) -> tuple[str, str | None]:
    """What was printed, and the value that comes behind the mark."""
    before, found, after = data.rpartition(f"\0{mark}:".encode())
    size, colon, rest = after.partition(b":")
    if not found or not colon or not size.isdigit() or len(size) > 8 or len(rest) < int(size):
        return data.decode("utf-8", "replace"), None
    value = rest[: int(size)].decode("utf-8", "replace")
    # What something in the background printed after it belongs to the output.
    return (before + rest[int(size) :]).decode("utf-8", "replace"), value


def _to_its_end(
    op: Literal["exec", "evaluate"],
    cmd: Command,
    args: dict[str, object],
    stdin: bytes | str,
    timeout: float | None,
    limits: Limits,
) -> Op[ExecResult]:
    timeout = seconds(timeout, limits)
    data = content(stdin)
    args |= {"timeout": timeout, "max_output": limits.output}
    if len(data) > PART:
        args["stdin_handle"] = yield from _spool(data)
        data = memoryview(b"")
    reply = yield Call(
        op, args, data,
        patience=None if timeout is None else timeout + GRACE,
        max_reply=2 * limits.output + MIB, cancel=True,
    )  # fmt: skip
    fields = reply.fields
    cut = fields.number("stdout_size", high=len(reply.payload))
    return ExecResult(
        argv=cmd.argv,
        exit_code=fields.number("exit_code", high=255),
        stdout_bytes=bytes(reply.payload[:cut]),
        stderr_bytes=bytes(reply.payload[cut:]),
        duration=fields.seconds("duration"),
        timed_out=fields.flag("timed_out"),
        signal=fields.optional_number("signal", 1, 64),
        stdout_truncated=fields.flag("stdout_truncated"),
        stderr_truncated=fields.flag("stderr_truncated"),
    )


def _spool(data: memoryview) -> Op[int]:
    """Leave bytes with the guest for a later request; gives their handle."""
    parts = (data[start : start + PART] for start in range(0, len(data), PART))
    handle, _ = yield from _send_parts("stdin_open", {}, parts)
    return handle


def _send_parts(
    op: str, args: dict[str, object], parts: Iterator[bytes | memoryview]
) -> Op[tuple[int, int]]:
    """Open a guest-side handle and fill it part by part; gives the handle and the size."""
    first = next(parts)
    size = len(first)
    reply = yield Call(op, args, first)
    handle = reply.fields.number("handle", 1)
    try:
        for part in parts:
            size += len(part)
            yield Call("handle_write", {"handle": handle}, part)
    except OSError:  # reading on the host failed: the guest throws the half away
        yield Call("handle_close", {"handle": handle})
        raise
    return handle, size


@dataclass(frozen=True, slots=True)
class Terminal:
    """A pseudo-terminal's size; ``modes`` as another one has them, its characters as numbers."""

    rows: int = 24
    columns: int = 80
    modes: tuple[int | tuple[int, ...], ...] = ()


def spawn(
    cmd: Command,
    terminal: Terminal | None,
    stdin: bool,
    drop_oldest: bool,
    limits: Limits,
    far_ends: tuple[int, ...] = (),
    streams: tuple[str, ...] = (),
) -> Op[int]:
    """Start a process in the background; gives its number inside the sandbox.

    ``far_ends`` are pipes for its stdout and stderr, where the channel can pass them, or for the
    ``streams`` named; "terminal" is a socket over which the near end of its terminal comes back.
    """
    args = cmd.args() | {"stdin": stdin, "buffer": limits.buffer, "drop_oldest": drop_oldest}
    if terminal is not None:
        args["terminal"] = [terminal.rows, terminal.columns]
        args["modes"] = terminal.modes
    if far_ends:
        args["descriptors"] = len(far_ends)
    if streams:
        args["streams"] = list(streams)
    reply = yield Call("spawn", args, cancel=True, descriptors=far_ends)
    return reply.fields.number("process", 1)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a process's output. ``timed_out``: nothing came in time."""

    data: bytes | bytearray
    ended: bool
    timed_out: bool
    dropped: int


def output(
    process: int, stream: Literal["stdout", "stderr"], size: int, timeout: float | None
) -> Op[Chunk]:
    """What a process wrote next."""
    size = max(1, min(size, wire.MAX_PAYLOAD))
    patience = None if timeout is None else timeout + GRACE
    reply = yield Call(
        "output",
        {"process": process, "stream": stream, "size": size, "timeout": timeout},
        patience=patience,
        max_reply=size,
        cancel=True,
    )
    fields = reply.fields
    return Chunk(
        reply.payload, fields.flag("ended"), fields.flag("timed_out"), fields.number("dropped")
    )


def close_output(process: int, stream: Literal["stdout", "stderr"]) -> Op[None]:
    """Read no more of a stream: who writes to it is told, as by a pipe that nobody reads."""
    yield Call("output", {"process": process, "stream": stream, "size": 1, "close": True})


def feed(process: int, data: bytes | str, close: bool) -> Op[None]:
    """Write to a process's stdin; returns when the process's pipe took it."""
    view = content(data)
    for start in range(0, len(view) or 1, PART):
        part = view[start : start + PART]
        last = start + PART >= len(view)
        args: dict[str, object] = {"process": process, "close": close and last}
        yield Call("input", args, part, patience=None, cancel=True)


def wait(process: int, timeout: float | None) -> Op[int | None]:
    """The exit code of a process once it ended; None when the time ran out first."""
    reply = yield Call(
        "wait",
        {"process": process, "timeout": timeout},
        patience=None if timeout is None else timeout + GRACE,
        cancel=True,
    )
    return reply.fields.optional_number("exit_code", 0, 255)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: as a shell would tell it, and by which signal if by one."""

    exit_code: int
    signal: int | None


def ending(process: int) -> Op[Ended]:
    """How a process ended, once it did."""
    reply = yield Call("wait", {"process": process, "timeout": None}, patience=None, cancel=True)
    fields = reply.fields
    return Ended(fields.number("exit_code", high=255), fields.optional_number("signal", 1, 64))


def send_signal(process: int, number: int, group: bool) -> Op[None]:
    """Signal a process, or its whole group."""
    yield Call("signal", {"process": process, "signal": int(number), "group": group})


def resize(process: int, terminal: Terminal) -> Op[None]:
    """Tell a process on a terminal the new size."""
    yield Call("resize", {"process": process, "terminal": [terminal.rows, terminal.columns]})


def connect(port: int, over: int) -> Op[None]:
    """Have the guest send a connection to a port of its loopback over this socket."""
    yield Call("connect", {"port": port, "descriptors": 1}, descriptors=(over,))


def kill(process: int) -> Op[None]:
    """Kill a process with all it started; how it ended can be asked as ever."""
    yield Call("kill", {"process": process})


def forget(process: int) -> Op[None]:
    """Kill a process with all it started and drop its output."""
    yield Call("forget", {"process": process})


def processes() -> Op[list[tuple[int, tuple[str, ...], int | None]]]:
    """The processes spawned and not forgotten: number, argv, exit code."""
    reply = yield Call("processes")
    found = []
    for row in wire.rows(reply.payload):
        fields = wire.Fields(row, "a row")
        exit_code = fields.optional_number("exit_code", 0, 255)
        found.append((fields.number("process", 1), fields.texts("argv"), exit_code))
    return found


# The Python kernel


def python(
    code: str, timeout: float | None, limits: Limits, *, json: bool = False
) -> Op[PythonResult]:
    """Run code in the stateful kernel."""
    timeout = seconds(timeout, limits)
    data = content(code)
    args: dict[str, object] = {"timeout": timeout, "max_output": limits.output}
    if json:
        args["json"] = True
    if len(data) > PART:
        args["code_handle"] = yield from _spool(data)
        data = memoryview(b"")
    reply = yield Call(
        "python", args, data,
        patience=None if timeout is None else timeout + GRACE,
        max_reply=4 * limits.output + 4 * MIB, cancel=True, soon=True,
    )  # fmt: skip
    fields = reply.fields
    sizes = fields.sizes("sizes", _KERNEL_PARTS, len(reply.payload))
    parts, start = [], 0
    for size in sizes:
        part = bytes(reply.payload[start : start + size]) if size else b""
        parts.append(part.decode("utf-8", "replace"))
        start += size
    value, stdout, stderr, other = parts
    return PythonResult(
        value=value if fields.flag("has_value") else None,
        json=other if json and fields.flag("has_json") else None,
        stdout=stdout,
        stderr=stderr,
        error=other if fields.flag("has_error") else None,
        duration=fields.seconds("duration"),
        timed_out=fields.flag("timed_out"),
        restarted=fields.flag("restarted"),
        truncated=fields.flag("truncated"),
    )


_KERNEL_PARTS = 4  # value, stdout, stderr; the error, or else the value as JSON if asked for


def python_interrupt() -> Op[bool]:
    """Interrupt the code that runs now; False if none did."""
    return (yield Call("python_interrupt")).fields.flag("interrupted")


def python_restart() -> Op[None]:
    """Forget every variable of the kernel."""
    yield Call("python_restart")


# Files


def read(path: str, offset: int, size: int | None, max_bytes: int) -> Op[bytes]:
    """The bytes of a regular file."""
    path = path_text(path)
    if offset < 0 or max_bytes < 0 or (size is not None and size < 0):
        raise FileError("offset, size and max_bytes count bytes from zero up", kind=Kind.INVALID)
    parts: list[bytes | bytearray] = []
    want = max_bytes + 1 if size is None else size
    got = yield from read_into(path, parts.append, offset, want)
    if size is None and got > max_bytes:
        raise FileError(
            f"{visible(path)} is larger than {max_bytes} bytes",
            kind=Kind.TOO_LARGE,
            remedy="read it in pieces (offset=, size=), raise max_bytes=, or download() it",
        )
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)


def read_into(
    path: str, sink: Callable[[bytes | bytearray], object], offset: int, want: int
) -> Op[int]:
    """Hand at most ``want`` bytes of a file to ``sink``, part by part; gives how many."""
    size = min(want, PART)
    reply = yield Call(
        "read", {"path": path, "offset": offset, "size": size}, max_reply=size, soon=True
    )
    sink(reply.payload)
    got = len(reply.payload)
    handle = reply.fields.optional_number("handle", 1)
    while handle is not None:
        size = min(want - got, PART)
        if size <= 0:
            yield Call("handle_close", {"handle": handle})
            break
        reply = yield Call("handle_read", {"handle": handle, "size": size}, max_reply=size)
        if not reply.payload:
            break  # the guest closed the handle at the end of the file
        sink(reply.payload)
        got += len(reply.payload)
    return got


WriteMode = Literal["replace", "create", "append"]


def write(path: str, data: bytes | str, mode: WriteMode, permissions: int | None) -> Op[None]:
    """Write a file whole, or add to its end. Folders on the way are made."""
    view = content(data)
    parts = (view[start : start + PART] for start in range(0, len(view), PART))
    yield from write_from(path_text(path), parts, mode, permissions)


def write_from(
    path: str, parts: Iterator[bytes | memoryview], mode: WriteMode, permissions: int | None
) -> Op[int]:
    """Write what ``parts`` gives, of at most `PART` bytes each; gives how many bytes."""
    if permissions is not None and not 0 <= permissions <= 0o7777:
        raise FileError(f"mode {permissions:o} is not a file mode", kind=Kind.INVALID)
    args: dict[str, object] = {"path": path, "mode": mode, "permissions": permissions}
    first, second = next(parts, b""), next(parts, None)
    if second is None:
        yield Call("write", args, first, soon=True)
        return len(first)
    handle, size = yield from _send_parts("write_open", args, chain((first, second), parts))
    yield Call("write_done", {"handle": handle})
    return size


def edit(path: str, old: bytes | str, new: bytes | str, replace_all: bool) -> Op[int]:
    """Replace one piece of a file by another; gives how many were replaced."""
    before, after = content(old), content(new)
    if not len(before):
        raise FileError(
            "the text to replace is empty", kind=Kind.INVALID, remedy="give the text to look for"
        )
    if len(before) + len(after) > PART:
        raise FileError(
            "the old and new text are too long for edit()",
            kind=Kind.TOO_LARGE,
            remedy="write() the whole file",
        )
    args = {
        "path": path_text(path), "old_size": len(before), "replace_all": replace_all,
        "max_bytes": READ_LIMIT,
    }  # fmt: skip
    reply = yield Call("edit", args, b"".join((before, after)))
    return reply.fields.number("count", 1)


def list_(path: str, recursive: bool, max_entries: int) -> Op[list[FileInfo]]:
    """The entries of a folder, by name."""
    reply = yield Call(
        "list",
        {"path": path_text(path), "recursive": recursive, "max_entries": max_entries},
        cancel=True,
    )
    return [_info(row) for row in wire.rows(reply.payload)]


def newest(path: str, max_files: int, max_entries: int) -> Op[NewestFiles]:
    """The files below a folder that were changed last."""
    if max_files < 0 or max_entries < 0:
        raise FileError("max_files and max_entries count from zero up", kind=Kind.INVALID)
    args = {"path": path_text(path), "max_files": max_files, "max_entries": max_entries}
    reply = yield Call("newest", args, cancel=True)
    files = tuple(_info(row) for row in wire.rows(reply.payload))
    if len(files) > max_files:
        raise wire.broken("more files than asked for")
    fields = reply.fields
    return NewestFiles(files, fields.number("total", len(files)), fields.flag("complete"))


def _info(row: wire.JsonValue) -> FileInfo:
    fields = wire.Fields(row, "a row")
    kind = fields.text("kind")
    if kind not in KINDS:
        raise wire.broken("an entry of no known kind")
    path = fields.text("path")
    if not is_native(path):
        raise wire.broken("an entry whose name no file has")
    return FileInfo(
        path=path,
        kind=cast(EntryKind, kind),
        size=fields.number("size"),
        mode=fields.number("mode", high=0o7777),
        mtime_ns=fields.number("mtime_ns", low=-(2**63)),
        link_target=fields.optional_text("link_target"),
    )


def stat(path: str, follow: bool) -> Op[FileInfo]:
    """The facts of one entry."""
    reply = yield Call("stat", {"path": path_text(path), "follow": follow}, soon=True)
    return _info(reply.head.get("info"))


def realpath(path: str) -> Op[str]:
    """Where a path leads, all links followed."""
    reply = yield Call("realpath", {"path": path_text(path)}, soon=True)
    return path_text(reply.fields.text("real"))


def exists(path: str) -> Op[bool]:
    """Whether there is anything at a path, a dangling link included."""
    try:
        yield from stat(path, follow=False)
    except FileError as error:
        if error.kind in (Kind.NOT_FOUND, Kind.NOT_DIRECTORY):
            return False
        raise
    return True


def glob(pattern: str, path: str, max_entries: int) -> Op[list[str]]:
    """Paths that match, sorted."""
    args = {"path": path_text(path), "pattern": pattern, "max_entries": max_entries}
    reply = yield Call("glob", args, cancel=True)
    return [_text(row) for row in wire.rows(reply.payload)]


def _text(row: wire.JsonValue) -> str:
    if not isinstance(row, str):
        raise wire.broken("a path that is not text")
    return row


@dataclass(frozen=True, slots=True)
class Search:
    """What to look for with `grep`."""

    pattern: str
    path: str = "."
    glob: str | None = None
    ignore_case: bool = False
    max_matches: int = 2000
    timeout: float = 30.0


def grep(search: Search) -> Op[GrepResult]:
    """Lines that match a Python regular expression."""
    timeout = positive_seconds(search.timeout)
    try:
        re.compile(search.pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise SandboxError(
            f"{search.pattern!r} is not a regular expression: {error}",
            kind=Kind.BAD_PATTERN,
            remedy="escape what is meant literally (re.escape)",
        ) from None
    reply = yield Call(
        "grep",
        {
            "pattern": search.pattern, "path": path_text(search.path), "glob": search.glob,
            "ignore_case": search.ignore_case, "max_matches": search.max_matches,
            "timeout": timeout,
        },
        patience=timeout + GRACE,
        cancel=True,
    )  # fmt: skip
    matches = []
    for row in wire.rows(reply.payload):
        if type(row) is not list or len(row) != 3:
            raise wire.broken("a match that is not a triple")
        name, number, line = row
        if type(name) is not str or type(number) is not int or type(line) is not str:
            raise wire.broken("a match of the wrong types")
        matches.append(GrepMatch(name, number, line))
    if len(matches) > search.max_matches:
        raise wire.broken("more matches than asked for")
    fields = reply.fields
    late = fields.flag("timed_out")
    skipped = fields.optional_number("skipped") or 0
    return GrepResult(tuple(matches), fields.flag("truncated") or late, late, skipped)


def move(source: str, destination: str, overwrite: bool) -> Op[None]:
    """Rename a file or a folder."""
    args = {
        "path": path_text(source), "to": path_text(destination), "overwrite": overwrite,
    }  # fmt: skip
    yield Call("move", args, cancel=True)


def remove(path: str, recursive: bool, missing_ok: bool) -> Op[None]:
    """Remove a file, a link or a folder."""
    args = {"path": path_text(path), "recursive": recursive, "missing_ok": missing_ok}
    yield Call("remove", args, patience=10 * STALL_SECONDS, cancel=True)


def mkdir(path: str, parents: bool, exist_ok: bool) -> Op[None]:
    """Make a folder."""
    yield Call("mkdir", {"path": path_text(path), "parents": parents, "exist_ok": exist_ok})


def symlink(path: str, target: str) -> Op[None]:
    """Make a symbolic link."""
    yield Call("symlink", {"path": path_text(path), "target": path_text(target)})


def set_environment(env: Mapping[str, str]) -> Op[None]:
    """Add variables to those that commands start with."""
    checked = command(("true",), None, env)  # the same rules as for one command
    yield Call("environment", {"env": checked.env})


def init(config: Mapping[str, object]) -> Op[str]:
    """The first request: what the guest must know. Gives the guest's Python version."""
    reply = yield Call("init", dict(config))
    if reply.fields.number("protocol") != 1:
        raise GuestLostError("the guest speaks another protocol", kind=Kind.PROTOCOL)
    return reply.fields.text("python")
