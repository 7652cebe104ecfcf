"""A change set as a tarball, to keep or to hand on; and back as a layer of its own.

New and changed files are themselves, a deletion is a character device 0,0, and a folder that was
replaced carries the overlay's opaque mark, so the archive is an upper layer that other tools
understand. The first member, ``.podbot/manifest.json``, says what each change is and what was there
before. With one target paths are relative to it; with several, or if there is a ``.podbot`` among
the changes, each target's files lie below its number (``0/…``). Saving reads only.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO

from podbot.changes import drift, next_steps
from podbot.changes._hidden import Hidden
from podbot.changes.archive._fields import NAME
from podbot.changes.archive._loading import load, read_olds
from podbot.changes.archive._manifest import (
    ALONG,
    FOLDER,
    TIME,
    ArchiveLimits,
    Entry,
    Manifest,
    NewFacts,
    written,
)
from podbot.changes.archive._members import Step, in_order, planned
from podbot.changes.archive._tar import (
    MAX_SEGMENTS,
    OPAQUE,
    Member,
    MemberType,
    Segments,
    end_of,
    header,
    padding,
    shown,
)
from podbot.changes.drift import ConflictKind
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, OldFacts, State
from podbot.changes.tree import Tree
from podbot.errors import ChangesError, Kind
from podbot.frozen import replace
from podbot.sandbox import extents
from podbot.tar_reading import CHUNK

SPARSE_FROM = 1 << 16
"""Files with at least so many bytes of holes are stored without them."""
_MANIFEST_IN_MEMORY = 8 << 20
_NO_LIMITS = ArchiveLimits(1 << 60, 1 << 62, 1 << 62)


def save(changes: ChangeSet, file: BinaryIO, limits: ArchiveLimits | None = None) -> None:
    """Write changes as an archive, to a file or a pipe.

    Raises `ChangesError`: ``too_large`` before anything is written, if `load` would not take it
    with these limits; ``disk_full``, or ``io`` if something cannot be read or written, or
    changed meanwhile. What is in the file then is no archive. See `not_in_archive` for what is
    left out.
    """
    saving = _Saving(changes)
    manifest = saving.manifest()
    steps = planned(manifest, _NO_LIMITS).steps
    _check_size([step.member for step in steps if step.member], limits or ArchiveLimits())
    out = _Output(file)
    with tempfile.SpooledTemporaryFile(_MANIFEST_IN_MEMORY) as text:
        for line in written(manifest):
            text.write(line)
        size = text.tell()
        text.seek(0)
        stamp = int(manifest.created) * 10**9
        out.write(header(Member(NAME, MemberType.FILE, 0o600, size=size, mtime_ns=stamp)))
        while chunk := text.read(CHUNK):
            out.write(chunk)
        out.write(padding(size))
    for step in steps:
        if step.member is not None:
            saving.write(step, step.member, out)
    out.write(end_of(out.written))


def _check_size(members: Sequence[Member], limits: ArchiveLimits) -> None:
    """Raise `ChangesError` for what could be written and never be read again."""
    total = sum(member.size for member in members)
    if total > limits.bytes or len(members) > limits.members:
        raise ChangesError(
            f"{len(members):,} files of {total:,} bytes, holes among them, are more than an archive"
            f" is read with: {limits.members:,} and {limits.bytes:,}",
            kind=Kind.TOO_LARGE,
            remedy=next_steps.SMALLER,
        )


def not_in_archive(changes: ChangeSet) -> list[str]:
    """What an archive cannot carry, a line for each path."""
    found = []
    hidden = Hidden(changes.hidden)
    for change in changes:
        if change.new is not None and change.new.type is FileType.DEVICE:
            found.append(f"{change.path}: a device")
        elif hidden.covers(change.where):
            found.append(f"{change.path}: the policy hid this path")
    return found


class _Output:
    """Where the archive goes; counts, writes all of it, and names what goes wrong."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise ChangesError(
                f"the archive cannot be written: {error.strerror}",
                kind=Kind.DISK_FULL if full else Kind.IO,
                remedy="save it to another place",
            ) from None


class _Saving:
    """One change set on its way into an archive."""

    def __init__(self, changes: ChangeSet):
        self._changes = changes
        self._index = {target: number for number, target in enumerate(changes.targets)}
        hidden = Hidden(changes.hidden)
        self._carried = [
            change
            for change in changes
            if not (change.new is not None and change.new.type is FileType.DEVICE)
            and not hidden.covers(change.where)
        ]
        self._at = {(change.target, change.path): change for change in self._carried}
        self._gone = {
            (change.target, path)
            for change in self._carried
            for path in ((change.path,) if change.new is None else change.paths[:-1])
        }
        # What the host had already changed: what was there before is not known any more.
        self._moved_on = {
            (conflict.change.target, conflict.path): conflict.kind
            for conflict in drift.conflicts(changes)
            if conflict.kind in (ConflictKind.CHANGED, ConflictKind.DELETED)
        }
        self._trees: dict[str, Tree | None] = {}
        self._opaque: set[tuple[str, str]] = set()

    # The manifest

    def manifest(self) -> Manifest:
        self._find_opaque()
        entries = [self._entry(change) for change in self._carried]
        entries += self._along(entries)
        entries += self._times()
        entries.sort(key=lambda entry: (entry.target, in_order(entry.path)))
        own = any(f"{entry.path}/".startswith(f"{FOLDER}/") for entry in entries)
        targets = self._changes.targets
        return Manifest(targets, time.time(), len(targets) > 1 or own, tuple(entries))

    def _entry(self, change: Change) -> Entry:
        kind, source = change.kind, change.source
        if kind is ChangeKind.HARD_LINK and self._first_name(change) is None:
            # The file it is a name of does not come along: then it is a file of its own.
            kind, source = ChangeKind.ADDED, None
        new = None if change.new is None else self._new(change, change.new)
        return Entry(self._index[change.target], change.path, kind, self._old(change), new, source)

    def _new(self, change: Change, new: State) -> NewFacts:
        size = new.size if new.type is FileType.FILE else 0
        opaque = (change.target, change.path) in self._opaque
        return NewFacts(
            new.type, new.mode, new.uid, new.gid, size, new.mtime_ns, new.link, opaque
        )  # fmt: skip

    def _old(self, change: Change) -> OldFacts | None:
        old = change.old
        source = change.source if change.kind is ChangeKind.RENAMED else None
        moved_on = self._moved_on.get((change.target, source or change.path))
        if old is None:
            if moved_on is ConflictKind.DELETED and change.new is not None:
                return OldFacts(change.new.type, change.new.mode, change.new.size)
            return None
        size = old.size if old.type is FileType.FILE else 0
        facts = OldFacts(old.type, old.mode, size)
        if moved_on is not None:
            return facts
        digest = self._digest_of_old(change, old) if old.type is FileType.FILE else None
        return replace(facts, sha256=digest, link=old.link)

    def _digest_of_old(self, change: Change, old: State) -> str | None:
        try:
            with self._changes.contents.open_old(change) as file:
                digest = _digest(file)
                return digest if _size(file, old.size) == old.size else None
        except OSError:
            return None  # hidden or gone: what was there is not known

    def _first_name(self, change: Change) -> Change | None:
        """The change that brings the file another name is for: a change there, or itself."""
        source = change.source
        if source is None or (change.target, source) in self._gone:
            return None
        first = self._at.get((change.target, source))
        if first is not None:
            is_file = first.new is not None and first.new.type is FileType.FILE
            return first if is_file and first.kind is not ChangeKind.HARD_LINK else None
        return change if self._is_as_on_host(change, source) else None

    def _is_as_on_host(self, change: Change, source: str) -> bool:
        """Whether the file is one that the host has under another name, unchanged."""
        tree = self._tree(change.target)
        assert change.new is not None  # noqa: S101 - a hard link has a state
        try:
            host = tree.state(source) if tree is not None else None
            if tree is None or host is None or not host.looks_like(change.new):
                return False
            with tree.open(source) as before, self._changes.contents.open_new(change) as after:
                return _digest(before) == _digest(after)
        except OSError:
            return False

    def _along(self, entries: Iterable[Entry]) -> list[Entry]:
        """Files of the host that have new names: with them, the names are of one file again."""
        found = []
        for entry in entries:
            target, source = self._changes.targets[entry.target], entry.source
            if entry.kind != ChangeKind.HARD_LINK or entry.new is None or source is None:
                continue
            if (target, source) not in self._at:
                change = self._at[target, entry.path]
                with self._opened(change) as file:
                    digest = _digest(file)
                old = OldFacts(FileType.FILE, entry.new.mode, entry.new.size, digest)
                found.append(Entry(entry.target, source, ALONG, old, entry.new))
                self._at[target, source] = change  # its contents are those of the new name
        return found

    def _times(self) -> Iterator[Entry]:
        for where, mtime_ns in self._changes.folder_times.items():
            for target, number in self._index.items():
                path = where[len(target) + 1 :]
                inside = where == target or where.startswith(f"{target}/")
                if inside and (target, path) not in self._at and (target, path) not in self._gone:
                    yield Entry(number, path, TIME, mtime_ns=mtime_ns)
                    break

    def _find_opaque(self) -> None:
        """Folders of which nothing from before is left; the innermost first."""
        for change in reversed(self._carried):
            if change.kind is not ChangeKind.REPLACED or change.type is not FileType.FOLDER:
                continue
            was_folder = change.old is not None and change.old.type is FileType.FOLDER
            if not was_folder or self._hides_all(change):
                self._opaque.add((change.target, change.path))

    def _hides_all(self, change: Change) -> bool:
        """Whether all that the host has in a folder is gone or comes anew.

        What was put back exactly as it was is no change: then the mark would delete it.
        """
        tree = self._tree(change.target)
        try:
            names = tree.names(change.path) if tree is not None else None
        except OSError:
            names = None
        if names is None:
            return False
        return all(self._is_replaced((change.target, f"{change.path}/{name}")) for name in names)

    def _is_replaced(self, place: tuple[str, str]) -> bool:
        change = self._at.get(place)
        if change is None or change.new is None:
            return place in self._gone
        return change.new.type is not FileType.FOLDER or place in self._opaque

    def _tree(self, target: str) -> Tree | None:
        if target not in self._trees:
            try:
                self._trees[target] = Tree(target)
            except OSError:
                self._trees[target] = None
        return self._trees[target]

    # Members

    def write(self, step: Step, member: Member, out: _Output) -> None:
        """One member with its data."""
        if step.entry is None:
            out.write(header(member))
            return
        target = self._changes.targets[step.target]
        change = self._at[target, step.path]
        assert change.new is not None  # noqa: S101 - only deletions have no entry
        if member.type is not MemberType.HARD_LINK:
            marks = ((OPAQUE, b"y"),) if (target, step.path) in self._opaque else ()
            member = replace(member, xattrs=(*marks, *change.new.xattrs))
        if member.type is not MemberType.FILE:
            out.write(header(member))
            return
        with self._opened(change) as file:
            self._copy(file, replace(member, segments=_segments(file, member.size)), out)

    def _opened(self, change: Change) -> BinaryIO:
        try:
            return self._changes.contents.open_new(change)
        except OSError as error:
            raise _unreadable(change.path, error.strerror or "it is gone") from None

    def _copy(self, file: BinaryIO, member: Member, out: _Output) -> None:
        out.write(header(member))
        try:
            for start, length in member.segments or ((0, member.size),):
                if member.segments is not None:
                    file.seek(start)
                self._copy_piece(file, member, length, out)
            if _size(file, member.size) != member.size:
                raise _unreadable(member.name, "it changed meanwhile")
        except OSError as error:
            raise _unreadable(member.name, str(error.strerror)) from None
        stored = sum(length for _, length in member.segments or ((0, member.size),))
        out.write(padding(stored))

    def _copy_piece(self, file: BinaryIO, member: Member, length: int, out: _Output) -> None:
        while length:
            chunk = file.read(min(length, CHUNK))
            if not chunk:
                raise _unreadable(member.name, "it changed meanwhile")
            out.write(chunk)
            length -= len(chunk)


def _unreadable(path: str, why: str) -> ChangesError:
    return ChangesError(
        f"{shown(path)} cannot be saved: {why}",
        kind=Kind.IO,
        remedy="close its sandbox if it still runs, and save again",
    )


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    for piece in extents.pieces(file):
        digest.update(piece)
    return digest.hexdigest()


def _size(file: BinaryIO, default: int) -> int:
    """How large a file is now; the default for one that is not on a disk."""
    try:
        return os.fstat(file.fileno()).st_size
    except (OSError, io.UnsupportedOperation):
        return default


def _segments(file: BinaryIO, size: int) -> Segments | None:
    """Where the data of a file is, None if it has no holes worth the trouble."""
    found: list[tuple[int, int]] = []
    try:
        fd = file.fileno()
        if size < SPARSE_FROM or os.fstat(fd).st_blocks * 512 > size - SPARSE_FROM:
            return None
        for start, end in islice(extents.data(fd, size), MAX_SEGMENTS):
            found.append((start, end - start))
        os.lseek(fd, 0, os.SEEK_SET)
    except (OSError, io.UnsupportedOperation):
        return None
    if len(found) >= MAX_SEGMENTS:
        return None
    if not found or sum(found[-1]) < size:
        found.append((size, 0))  # the end of the file, as other programs want it
    return tuple(found)


__all__ = ["ArchiveLimits", "load", "not_in_archive", "read_olds", "save"]
