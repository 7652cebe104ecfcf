"""Keeps the `VirtualFileSystem` slice true: looks into the sandbox and tells what changed.

A look is one listing of the files that were changed last, compared with the slice by size and time;
only small text files that changed are read. So it costs what is there, up to a bound, and what
changed. Where a workspace has more files than a session keeps, the others are counted; some of the
known ones are looked at besides, and its layer of changes if it has one. The sandbox is the truth,
but what it says is hostile: names and contents are only data here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from podbot.errors import Kind, SandboxError
from podbot.sandbox.sandbox import Sandbox
from podbot.sandbox.values import FileInfo as Entry
from podbot.tools.filesystem import KEPT_CHARACTERS, Encoding, VfsFile, VirtualFileSystem
from podbot.tools.paths import VfsPath
from podbot.tools.reducers import FileChange, FilesSeen

if TYPE_CHECKING:
    from podbot.sandbox.layers import Layer

ENTRIES = 2000
"""The most files of a workspace that a session keeps in view."""
WALKED = 20_000
"""The most entries of a workspace that one look goes through, to find those files."""
READS = 200
"""The most files whose contents one look takes in; the others keep none."""
CHANGED = 5000
"""The most entries of a layer that one look goes through: an installation brings far more."""
KNOWN = 64
"""How many known files one look compares where not everything can be listed."""
BINARY_PROBE = 8192

# A file system's clock may stand still for some milliseconds. What was written that shortly before
# the last look may have been written again since, with the same time.
_TICK = timedelta(milliseconds=50)
# That very clock (CLOCK_REALTIME_COARSE, which `time` has no name for): on a busy virtual machine
# it lies behind the other one by any time, and what is new would be taken for old.
_FILE_CLOCK = 5 if sys.platform == "linux" else time.CLOCK_REALTIME
_NEVER = datetime.fromtimestamp(0, UTC)


class Mirror:
    """Looks at one workspace. Not for two threads at once."""

    def __init__(self) -> None:
        self._looked = _NEVER
        self._since: datetime | None = None

    def compare(self, sandbox: Sandbox, known: VirtualFileSystem) -> FilesSeen:
        """What is not as ``known`` has it."""
        now = moment(time.clock_gettime_ns(_FILE_CLOCK))
        found = _find(sandbox, known)
        changes = tuple(self._changes(found, known, _Reader(sandbox)))
        self._looked, self._since = now, self._since or now
        return FilesSeen(changes, found.complete, found.left_out)

    def _changes(
        self, found: _Found, known: VirtualFileSystem, reader: _Reader
    ) -> Iterator[FileChange]:
        for path, facts in found.files.items():
            old = known.find(path)
            if facts is None:
                if old is not None:
                    yield FileChange(path, old, None)
            elif old is None or self._may_differ(old, facts):
                new = self._seen(path, facts, old, reader)
                if new != old:
                    yield FileChange(path, old, new)
        for file in known.files:
            if file.path not in found.files:  # gone, or no longer among those that are kept
                yield FileChange(file.path, file, None)

    def _may_differ(self, old: VfsFile, facts: _Facts) -> bool:
        if (old.size_bytes, old.updated_at) != facts:
            return True
        return old.content is not None and facts.updated_at > self._looked - _TICK

    def _seen(self, path: VfsPath, facts: _Facts, old: VfsFile | None, reader: _Reader) -> VfsFile:
        content: str | None = None
        encoding: Encoding = "utf-8" if old is None else old.encoding
        version = 1 if old is None else old.version
        if not self._is_untouched(facts, old):
            content, encoding = reader.text(path, facts.size)
            if old is not None and (content is None or content != old.content):
                version += 1
        return VfsFile(
            path=path,
            content=content,
            encoding=encoding,
            size_bytes=facts.size,
            version=version,
            created_at=facts.updated_at if old is None else old.created_at,
            updated_at=facts.updated_at,
        )

    def _is_untouched(self, facts: _Facts, old: VfsFile | None) -> bool:
        """Whether this was there before anything ran, and so is not worth reading."""
        if old is None:
            return self._since is None or facts.updated_at < self._since - _TICK
        return self._since is None and old.content is None and old.size_bytes == facts.size


class _Facts(NamedTuple):
    """What tells one state of a file from another."""

    size: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class _Found:
    """The files to keep (None: known to be gone), whether these are all, and how many others."""

    files: dict[VfsPath, _Facts | None]
    complete: bool
    left_out: int = 0


class _Reader:
    """Reads small text files, up to a number of them."""

    def __init__(self, sandbox: Sandbox):
        self._sandbox = sandbox
        self._left = READS

    def text(self, path: VfsPath, size: int) -> tuple[str | None, Encoding]:
        """The text of a file, None for one a session does not keep."""
        if size == 0:
            return "", "utf-8"
        if self._left <= 0 or size > KEPT_CHARACTERS:
            return None, "utf-8"
        self._left -= 1
        try:
            data = self._sandbox.read(str(path), max_bytes=KEPT_CHARACTERS)
        except SandboxError as error:
            if error.kind in _GONE:
                return None, "utf-8"
            raise
        text = text_of(data)
        return text, "binary" if text is None else "utf-8"


_GONE = frozenset(
    {Kind.NOT_FOUND, Kind.NOT_DIRECTORY, Kind.NOT_A_FILE, Kind.IS_DIRECTORY, Kind.PERMISSION,
     Kind.PATH_ESCAPE, Kind.TOO_LARGE}
)  # fmt: skip


def text_of(data: bytes) -> str | None:
    """Bytes as text, None if they are not."""
    if b"\0" in data[:BINARY_PROBE]:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def moment(mtime_ns: int) -> datetime:
    """A file's time. One from outside of the calendar, which anybody may set, is the epoch."""
    try:
        return _NEVER + timedelta(microseconds=mtime_ns // 1000)
    except OverflowError:
        return _NEVER


def path_of(name: str) -> VfsPath:
    """A path as the sandbox tells it, relative to the workspace."""
    return VfsPath(tuple(part for part in name.split("/") if part not in ("", ".")))


def _find(sandbox: Sandbox, known: VirtualFileSystem) -> _Found:
    newest = sandbox.newest(max_files=ENTRIES, max_entries=WALKED)
    seen: dict[VfsPath, _Facts | None] = {path_of(each.path): _facts(each) for each in newest.files}
    if newest.complete and newest.total <= ENTRIES:
        return _Found(dict(sorted(seen.items(), key=lambda each: each[0].segments)), True)
    layer = sandbox.layer
    few = layer is not None and _is_small(str(layer.upper(0)))
    changed = _changed_in(layer, known) if layer is not None and few else {}
    # Files that were written long ago, and whose text a session has: it is not dropped at once.
    old = sorted(
        (
            file
            for file in known.files
            if file.content is not None and file.path not in seen and file.path not in changed
        ),
        key=lambda file: file.updated_at,
        reverse=True,
    )
    # Those that are known come first: only so many are read.
    files = {file.path: _stat(sandbox, file.path) for file in old[:KNOWN]} | changed | seen
    kept = sum(facts is not None for facts in files.values())
    return _Found(files, False, max(0, newest.total - kept))


def _is_small(folder: str) -> bool:
    """Whether a folder holds few enough entries to be gone through after each command."""
    left, waiting = CHANGED, [folder]
    while waiting:
        try:
            entries = os.scandir(waiting.pop())
        except OSError:
            continue  # closed from inside, or gone: what can be seen of it is nothing
        with entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return False
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return True


def _changed_in(layer: Layer, known: VirtualFileSystem) -> dict[VfsPath, _Facts | None]:
    """Files of the working folder that differ from the host's: the known ones, and some more."""
    from podbot.changes.capture import capture
    from podbot.changes.model import FileType

    found: dict[VfsPath, _Facts | None] = {}
    others: dict[VfsPath, _Facts | None] = {}
    for change in capture(layer).changes:
        if change.target != layer.targets[0]:
            continue
        path, new = path_of(change.path), change.new
        facts = None
        if new is not None and new.type is FileType.FILE:
            facts = _Facts(new.size, moment(new.mtime_ns))
        if known.find(path) is not None:
            found[path] = facts
        elif len(others) < ENTRIES:
            others[path] = facts
    return found | others


def _stat(sandbox: Sandbox, path: VfsPath) -> _Facts | None:
    try:
        entry = sandbox.stat(str(path), follow=False)
    except SandboxError as error:
        if error.kind in _GONE:
            return None
        raise
    return _facts(entry) if entry.is_file else None


def _facts(entry: Entry) -> _Facts:
    return _Facts(entry.size, moment(entry.mtime_ns))
