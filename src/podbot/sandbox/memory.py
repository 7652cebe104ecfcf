"""The memory backend: a dict of files and nothing else.

For agents that only read and write, and for tests. Nothing runs here: no process, no kernel, no
network, and no path reaches a file of the host. It answers the requests of `ops` in process,
with the errors a guest would give.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar, cast

from podbot.errors import Kind, SandboxError
from podbot.sandbox._matching import LineSearch, search_lines
from podbot.sandbox._memory_tree import (
    ROOT,
    File,
    Folder,
    Link,
    Node,
    Tree,
    refuse,
    walk,
)
from podbot.sandbox.channel import Call, Reply, closed_error, foreign_error
from podbot.sandbox.guest.globs import Glob
from podbot.sandbox.guest.refusals import Refused
from podbot.sandbox.launcher import Launched, Launcher
from podbot.sandbox.limits import Limits
from podbot.sandbox.ops import READ_LIMIT
from podbot.sandbox.policy import Policy
from podbot.sandbox.sandbox import Sandbox
from podbot.sandbox.values import Guarantee
from podbot.sandbox.wire import Fields, JsonValue

MAX_HANDLES = 1024
"""Reads and writes under way; beyond it the oldest is taken for abandoned."""

GUARANTEES = (
    Guarantee("processes", True, "no command or Python can be run"),
    Guarantee("files", True, "files live in memory; no path leads to the host"),
    Guarantee("network", True, "nothing runs that could reach it"),
    Guarantee("limit.file_size", True, "checked before each write"),
    Guarantee("limit.disk", True, "content of all files together, checked before each write"),
)


@dataclass(slots=True)
class _Reading:
    data: bytes
    position: int


@dataclass(slots=True)
class _Writing:
    args: Fields
    data: bytearray


H = TypeVar("H", _Reading, _Writing)


class MemoryChannel:
    """Answers file requests from a tree in memory. One lock, so threads may share it."""

    def __init__(self, limits: Limits, files: Mapping[str, bytes | str]):
        self._limits = limits
        self._tree = Tree()
        self._used = 0
        self._lock = threading.Lock()
        self._handles: dict[int, _Reading | _Writing] = {}
        self._next_handle = 1
        self._searches: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        self._owner = os.getpid()
        self._answers: dict[str, Callable[[Fields, bytes], Reply]] = {
            "read": self._read,
            "handle_read": self._handle_read,
            "handle_close": self._handle_close,
            "write": self._write,
            "write_open": self._write_open,
            "handle_write": self._handle_write,
            "write_done": self._write_done,
            "edit": self._edit,
            "list": self._list,
            "newest": self._newest,
            "glob": self._glob,
            "stat": self._stat,
            "realpath": self._realpath,
            "move": self._move,
            "remove": self._remove,
            "mkdir": self._mkdir,
            "symlink": self._symlink,
        }
        for path, data in files.items():
            self._store(path, data.encode() if isinstance(data, str) else bytes(data), "create")

    def call(self, call: Call) -> Reply:
        """Answer one request."""
        if os.getpid() != self._owner:
            raise foreign_error()
        args = Fields(cast(dict[str, JsonValue], call.args))
        if call.op == "grep":
            return self._grep(args)
        answer = self._answers.get(call.op)
        with self._lock:
            if self._closed:
                raise closed_error()
            if answer is None:
                raise SandboxError(
                    f"the memory backend has files only: it cannot do {call.op}",
                    kind=Kind.UNSUPPORTED,
                    remedy='open a "local" or an "overlay" sandbox to run commands',
                )
            return answer(args, bytes(call.payload))

    def close(self) -> None:
        """Drop every file. A search under way ends at once."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closed = True
            self._tree = Tree()
            self._handles.clear()
            for search in self._searches:
                search.kill()

    # Reading

    def _read(self, args: Fields, _: bytes) -> Reply:
        data = self._tree.file(args.text("path")).data
        start, size = args.number("offset"), args.number("size")
        head: dict[str, JsonValue] = {}
        if start + size < len(data):
            head["handle"] = self._keep(_Reading(data, start + size))
        return Reply(head, data[start : start + size])

    def _handle_read(self, args: Fields, _: bytes) -> Reply:
        reading = self._handle(args, _Reading)
        part = reading.data[reading.position : reading.position + args.number("size")]
        reading.position += len(part)
        if not part:
            del self._handles[args.number("handle")]
        return Reply({}, part)

    def _handle_close(self, args: Fields, _: bytes) -> Reply:
        self._handles.pop(args.number("handle"), None)
        return Reply({}, b"")

    def _keep(self, handle: _Reading | _Writing) -> int:
        if len(self._handles) >= MAX_HANDLES:
            del self._handles[next(iter(self._handles))]
        number = self._next_handle
        self._next_handle += 1
        self._handles[number] = handle
        return number

    def _handle(self, args: Fields, kind: type[H]) -> H:
        handle = self._handles.get(args.number("handle"))
        if not isinstance(handle, kind):
            raise refuse(Kind.IO, "this file was given up, too many are open")
        return handle

    def _stat(self, args: Fields, _: bytes) -> Reply:
        path = args.text("path")
        node = self._tree.need(path, follow=args.flag("follow"))[1]
        return Reply({"info": _row(path, node)}, b"")

    def _realpath(self, args: Fields, _: bytes) -> Reply:
        return Reply({"real": self._tree.need(args.text("path"))[0].path}, b"")

    def _list(self, args: Fields, _: bytes) -> Reply:
        path = args.text("path")
        folder, above = self._tree.folder(path), _spelled(path)
        found = []
        entries = walk(folder, above) if args.flag("recursive") else _entries(folder, above)
        for entry in entries:
            found.append(entry)
            _bound(len(found), args, path)
        found.sort(key=_in_order)
        return _rows([_row(name, node) for name, node in found])

    def _newest(self, args: Fields, _: bytes) -> Reply:
        path = args.text("path")
        most = args.number("max_entries")
        entries = list(islice(walk(self._tree.folder(path), _spelled(path)), most + 1))
        looked_at = entries[:most]
        files = [(name, node) for name, node in looked_at if isinstance(node, File)]
        files.sort(key=lambda entry: (-entry[1].mtime_ns, entry[0]))
        rows = [_row(name, node) for name, node in files[: args.number("max_files")]]
        return _rows(rows, total=len(files), complete=len(looked_at) == len(entries))

    def _glob(self, args: Fields, _: bytes) -> Reply:
        path = args.text("path")
        pattern = _glob(args.text("pattern"))
        found: list[str] = []
        waiting: list[tuple[str, Folder, frozenset[int]]] = [
            (_spelled(path), self._tree.folder(path), pattern.start)
        ]
        while waiting:
            above, folder, state = waiting.pop()
            for name, node in folder.children.items():
                below = pattern.step(state, name)
                if pattern.accepts(below):
                    found.append(above + name)
                    _bound(len(found), args, path)
                if below and isinstance(node, Folder):
                    waiting.append((f"{above}{name}/", node, below))
        found.sort(key=lambda found_path: found_path.split("/"))
        return _rows(found)

    def _grep(self, args: Fields) -> Reply:
        path, narrow = args.text("path"), args.optional_text("glob")
        wanted = None if narrow is None else _glob(narrow)
        with self._lock:
            if self._closed:
                raise closed_error()
            _, node = self._tree.need(path)
            if isinstance(node, Folder):
                above = _spelled(path)
                found = [
                    (above + name, file.data)
                    for name, file in sorted(walk(node), key=_in_order)
                    if isinstance(file, File) and (wanted is None or wanted.matches(name))
                ]
            else:
                found = [(path, self._tree.file(path).data)]
        search = LineSearch(
            args.text("pattern"),
            args.flag("ignore_case"),
            args.number("max_matches"),
            args.seconds("timeout"),
        )
        fitting = [(name, data) for name, data in found if len(data) <= READ_LIMIT]
        try:
            lines = search_lines(search, [data for _, data in fitting], self._searching)
        except SandboxError:
            if self._closed:
                raise closed_error() from None
            raise
        rows = [[fitting[index][0], number, line] for index, number, line in lines.lines]
        skipped = len(found) - len(fitting)
        return _rows(rows, truncated=lines.cut, timed_out=lines.timed_out, skipped=skipped)

    def _searching(self, child: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._searches = {other for other in self._searches if other.returncode is None}
            self._searches.add(child)
            if self._closed:
                child.kill()

    # Writing

    def _write(self, args: Fields, payload: bytes) -> Reply:
        permissions = args.optional_number("permissions", high=0o7777)
        self._store(args.text("path"), payload, args.text("mode"), permissions)
        return Reply({}, b"")

    def _write_open(self, args: Fields, payload: bytes) -> Reply:
        writing = _Writing(args, bytearray())
        self._extend(writing, payload)
        return Reply({"handle": self._keep(writing)}, b"")

    def _handle_write(self, args: Fields, payload: bytes) -> Reply:
        self._extend(self._handle(args, _Writing), payload)
        return Reply({}, b"")

    def _extend(self, writing: _Writing, payload: bytes) -> None:
        """What is on its way counts as written, or a writer could fill the host's memory."""
        path = writing.args.text("path")
        under_way = sum(len(h.data) for h in self._handles.values() if isinstance(h, _Writing))
        self._check_size(path, len(writing.data) + len(payload))
        self._check_room(path, under_way + len(payload))
        writing.data += payload

    def _write_done(self, args: Fields, _: bytes) -> Reply:
        writing = self._handle(args, _Writing)
        del self._handles[args.number("handle")]
        return self._write(writing.args, bytes(writing.data))

    def _store(self, path: str, data: bytes, how: str, permissions: int | None = None) -> None:
        place = self._tree.find(path, follow=how != "create", make=True)
        old = place.node
        if how == "create" and old is not None:
            raise refuse(Kind.EXISTS, f"{path}: exists already")
        if isinstance(old, Folder) or path.endswith("/"):
            raise refuse(Kind.IS_DIRECTORY, f"{path}: is a folder")
        before = old.data if isinstance(old, File) else b""
        if how == "append":
            data = before + data
        self._check_size(path, len(data))
        self._check_room(path, len(data) - len(before))
        mode = old.mode if isinstance(old, File) else 0o644
        place.put(File(data, mode if permissions is None else permissions))
        self._used += len(data) - len(before)

    def _check_size(self, path: str, size: int) -> None:
        limit = self._limits.file_size
        if limit is not None and size > limit:
            raise refuse(Kind.LIMIT, f"{path}: larger than the limit of {limit} bytes a file")

    def _check_room(self, path: str, more: int) -> None:
        limit = self._limits.disk
        if limit is not None and more > 0 and self._used + more > limit:
            raise refuse(Kind.LIMIT, f"{path}: over the limit of {limit} bytes of files")

    def _edit(self, args: Fields, payload: bytes) -> Reply:
        path, cut = args.text("path"), args.number("old_size", 1, len(payload))
        old, new = payload[:cut], payload[cut:]
        data = self._tree.file(path).data
        if len(data) > args.number("max_bytes"):
            raise refuse(Kind.TOO_LARGE, f"{path}: too large to edit")
        first = data.find(old)
        if first < 0:
            raise refuse(Kind.NO_MATCH, f"{path}: the text to replace is not in it")
        if not args.flag("replace_all") and data.find(old, first + 1) >= 0:
            raise refuse(Kind.NOT_UNIQUE, f"{path}: the text to replace is in it more than once")
        count = data.count(old)
        self._store(path, data.replace(old, new), "replace")
        return Reply({"count": count}, b"")

    def _move(self, args: Fields, _: bytes) -> Reply:
        path, to = args.text("path"), args.text("to")
        source, moved = self._tree.need(path, follow=False)
        target = self._tree.find(to, follow=False, make=True)
        there = target.node
        if not source.name or not target.name or moved in target.above:
            raise refuse(Kind.INVALID, f"{path}: cannot be moved to {to}")
        if there is not None and not args.flag("overwrite"):
            raise refuse(Kind.EXISTS, f"{to}: exists already")
        if there is moved:
            return Reply({}, b"")
        if isinstance(moved, Folder) and there is not None and not isinstance(there, Folder):
            raise refuse(Kind.NOT_DIRECTORY, f"{to}: not a folder")
        if isinstance(there, Folder):
            if not isinstance(moved, Folder):
                raise refuse(Kind.IS_DIRECTORY, f"{to}: is a folder")
            if there.children:
                raise refuse(Kind.NOT_EMPTY, f"{to}: folder not empty")
        self._used -= _size(there)
        source.clear()
        target.put(moved)
        return Reply({}, b"")

    def _remove(self, args: Fields, _: bytes) -> Reply:
        path = args.text("path")
        try:
            place, node = self._tree.need(path, follow=False)
        except SandboxError as error:
            if error.kind is Kind.NOT_FOUND and args.flag("missing_ok"):
                return Reply({}, b"")
            raise
        if not place.name:
            raise refuse(Kind.INVALID, f"{path}: the working folder cannot be removed")
        if isinstance(node, Folder) and node.children and not args.flag("recursive"):
            raise refuse(Kind.NOT_EMPTY, f"{path}: folder not empty")
        self._used -= _size(node)
        place.clear()
        return Reply({}, b"")

    def _mkdir(self, args: Fields, _: bytes) -> Reply:
        path = args.text("path")
        place = self._tree.find(path, follow=False, make=args.flag("parents"))
        if place.node is None:
            place.put(Folder())
        elif not self._leads_to_folder(path) or not args.flag("exist_ok"):
            raise refuse(Kind.EXISTS, f"{path}: exists already")
        return Reply({}, b"")

    def _leads_to_folder(self, path: str) -> bool:
        return isinstance(self._tree.find(path).node, Folder)

    def _symlink(self, args: Fields, _: bytes) -> Reply:
        path = args.text("path")
        place = self._tree.find(path, follow=False, make=True)
        if place.node is not None:
            raise refuse(Kind.EXISTS, f"{path}: exists already")
        place.put(Link(args.text("target")))
        return Reply({}, b"")


def _size(node: Node | None) -> int:
    """How much content goes when this node goes."""
    if isinstance(node, File):
        return len(node.data)
    if isinstance(node, Folder):
        return sum(len(below.data) for _, below in walk(node) if isinstance(below, File))
    return 0


def _glob(pattern: str) -> Glob:
    try:
        return Glob(pattern)
    except Refused as error:
        raise SandboxError(
            error.message,
            kind=Kind.BAD_PATTERN,
            remedy="use a pattern without '..', such as **/*.py",
        ) from None


def _spelled(path: str) -> str:
    """What stands before a name below ``path`` in a result: as the caller spelled it."""
    shown = path.rstrip("/")
    return "" if shown == "." else f"{shown}/"


def _entries(folder: Folder, above: str) -> list[tuple[str, Node]]:
    return [(above + name, node) for name, node in folder.children.items()]


def _in_order(entry: tuple[str, Node]) -> list[str]:
    """Sorts a folder's entries right behind it."""
    return entry[0].split("/")


def _bound(count: int, args: Fields, path: str) -> None:
    limit = args.number("max_entries")
    if count > limit:
        raise refuse(Kind.TOO_LARGE, f"{path}: more than {limit} entries")


_KINDS: dict[type[Node], str] = {File: "file", Folder: "dir", Link: "link"}


def _row(path: str, node: Node) -> JsonValue:
    row: dict[str, JsonValue] = {
        "path": path,
        "kind": _KINDS[type(node)],
        "size": 0,
        "mode": node.mode,
        "mtime_ns": node.mtime_ns,
    }
    if isinstance(node, File):
        row["size"] = len(node.data)
    elif isinstance(node, Link):
        row["size"] = len(node.target.encode("utf-8", "surrogateescape"))
        row["link_target"] = node.target
    return row


def _rows(rows: Sequence[object], **head: JsonValue) -> Reply:
    return Reply(head, json.dumps(rows).encode("ascii"))


class MemoryLauncher(Launcher):
    """Opens memory sandboxes; ``files`` (path → content) are there from the start."""

    name = "memory"

    def __init__(
        self,
        policy: Policy | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes | str] | None = None,
    ):
        self.policy = policy or Policy()
        self.limits = limits or Limits()
        self._files = dict(files or {})

    def launch(self) -> Launched:
        """A new tree holding the files."""
        channel = MemoryChannel(self.limits, self._files)
        return Launched(ROOT, GUARANTEES, channel.close, channel)


class MemorySandbox(Sandbox):
    """Files in memory, below ``/workspace``; nothing can be run. ``files`` maps path to content.

    Of the limits, ``file_size`` and ``disk`` apply; a write over one raises kind ``limit``.
    """

    def __init__(
        self,
        *,
        files: Mapping[str, bytes | str] | None = None,
        policy: Policy | None = None,
        limits: Limits | None = None,
    ):
        super().__init__(MemoryLauncher(policy, limits, files))
