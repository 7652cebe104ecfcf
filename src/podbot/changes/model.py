"""What a change is: plain values, the same for every backend.

A `ChangeSet` is what a sandbox did to its targets: for each path that is not as it was, the state
before and after. It holds no contents; those are read when asked for, by descriptor, from the host
folder (the old side) and from the layer (the new side). Nothing here decides or writes anything.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import BinaryIO, Protocol, runtime_checkable

from podbot.frozen import dataclass, field, replace
from podbot.sandbox import extents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.changes.diffs.three_way import Merged, Overlap


class FileType(StrEnum):
    """What lies at a path."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    FIFO = "fifo"
    SOCKET = "socket"
    DEVICE = "device"
    UNSEEN = "unseen"
    """Something of the host's in a folder that is closed to us: only that it is there is known."""


class ChangeKind(StrEnum):
    """What happened to a path. The states before and after say the rest."""

    ADDED = "added"
    """A file or folder that was not there."""
    MODIFIED = "modified"
    """A file with other contents (its mode may differ too)."""
    DELETED = "deleted"
    REPLACED = "replaced"
    """Something of another type took its place (a folder gave way to a file, a file to a link, …),
    or a folder was removed and made anew: then both states are folders, and what became of their
    contents is told by changes of their own, as always."""
    RENAMED = "renamed"
    """A file that was at ``source``; ``old`` is its state there. Its contents may differ."""
    MODE = "mode"
    """The same contents with another mode, owner, time or extended attribute."""
    LINK = "link"
    """A symbolic link that is new or points elsewhere."""
    HARD_LINK = "hard_link"
    """Another name for the file at ``source``."""
    SPECIAL = "special"
    """A FIFO, socket or device that is new or changed."""


# For loops over thousands of paths: to find a member in its class takes longer than to compare.
FILE, FOLDER, LINK = FileType.FILE, FileType.FOLDER, FileType.LINK
UNSEEN = FileType.UNSEEN
ADDED, MODIFIED, RENAMED = ChangeKind.ADDED, ChangeKind.MODIFIED, ChangeKind.RENAMED
MODE, HARD_LINK = ChangeKind.MODE, ChangeKind.HARD_LINK


@dataclass(frozen=True, slots=True)
class State:
    """All that is kept of one path but its contents: what apply sets and undo restores.

    ``device``, ``inode`` and ``ctime_ns`` identify it: a host file whose three are as they were
    has not been touched.
    """

    type: FileType
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    ctime_ns: int
    device: int
    inode: int
    links: int = 1
    link: str | None = None
    rdev: int = 0
    xattrs: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of(
        cls, facts: os.stat_result, link: str | None, xattrs: tuple[tuple[str, bytes], ...]
    ) -> State:
        """What `lstat` says, with the rest that is known of the path."""
        mode = facts.st_mode
        return cls(
            TYPES[mode & 0o170000],
            mode & 0o7777,
            facts.st_uid,
            facts.st_gid,
            facts.st_size,
            facts.st_mtime_ns,
            facts.st_ctime_ns,
            facts.st_dev,
            facts.st_ino,
            facts.st_nlink,
            link,
            facts.st_rdev,
            xattrs,
        )

    @classmethod
    def unseen(cls) -> State:
        """Of something that is there and cannot be looked at: it is the same as nothing else."""
        return cls(FileType.UNSEEN, 0, 0, 0, 0, 0, 0, 0, 0)

    @property
    def executable(self) -> bool:
        """Whether anyone may run it."""
        return self.type is FileType.FILE and self.mode & 0o111 != 0

    @property
    def identity(self) -> Identity:
        """Which object it is, and when it was last touched."""
        return self.device, self.inode, self.ctime_ns

    def same_thing(self, other: State | None) -> bool:
        """Whether this is the very same, untouched file system object."""
        return self is other or (other is not None and self.identity == other.identity)

    def is_of(self, facts: os.stat_result) -> bool:
        """Whether `lstat` tells of the very same, untouched file system object."""
        return (
            facts.st_ctime_ns == self.ctime_ns
            and facts.st_ino == self.inode
            and facts.st_dev == self.device
        )

    def looks_like(self, other: State) -> bool:
        """Whether all that apply sets is equal: type, mode, owner, link, attributes and times.

        Contents are not compared; the times of folders do not count, as every entry moves them.
        """
        return self.is_dressed_as(other) and (
            self.type is FileType.FOLDER or self.mtime_ns == other.mtime_ns
        )

    def is_dressed_as(self, other: State) -> bool:
        """Whether type, mode, owner, link and attributes are equal; times do not count."""
        return (
            (self.type, self.mode, self.uid, self.gid, self.link, self.rdev, self.xattrs)
            == (other.type, other.mode, other.uid, other.gid, other.link, other.rdev, other.xattrs)
        )  # fmt: skip


TYPES = {
    stat.S_IFREG: FileType.FILE,
    stat.S_IFDIR: FileType.FOLDER,
    stat.S_IFLNK: FileType.LINK,
    stat.S_IFIFO: FileType.FIFO,
    stat.S_IFSOCK: FileType.SOCKET,
    stat.S_IFCHR: FileType.DEVICE,
    stat.S_IFBLK: FileType.DEVICE,
}


@dataclass(frozen=True, slots=True)
class Change:
    """One path of one target that is not as it was.

    ``path`` is relative to ``target`` (an absolute host folder), without a leading slash; "" is
    the target itself. Bytes that are not UTF-8 are kept as surrogates (`os.fsdecode`).
    """

    kind: ChangeKind
    target: str
    path: str
    old: State | None
    new: State | None
    source: str | None = None

    @property
    def where(self) -> str:
        """The absolute host path."""
        return f"{self.target}/{self.path}" if self.path else self.target

    @property
    def paths(self) -> tuple[str, ...]:
        """Every relative path applying it would touch."""
        if self.kind is RENAMED and self.source is not None:
            return (self.source, self.path)
        return (self.path,)

    @property
    def type(self) -> FileType:
        """What it is now, or was if it is gone."""
        state = self.new or self.old
        assert state is not None  # noqa: S101 - a change has at least one side
        return state.type

    @property
    def size(self) -> int:
        """Bytes of the new contents; 0 for what has none."""
        return self.new.size if self.new is not None and self.new.type is FileType.FILE else 0


Identity = tuple[int, int, int]
"""The device, inode and ctime of a host path: as long as it is the same, nobody touched it."""


@dataclass(frozen=True, slots=True)
class OldFacts:
    """What an archive says was at a path before; ``sha256`` for regular files only."""

    type: FileType
    mode: int
    size: int
    sha256: str | None = None
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """A change whose path other runs' changes came to after its run began.

    ``runs`` are theirs, by layer, the latest last; ``host`` is what they left, ``run`` what this
    one left, and ``base`` what was there before (None: nothing). ``merged`` is what both versions
    give together, with the attributes of ``new``. ``problem`` says why that cannot be told.
    """

    runs: tuple[str, ...]
    host: State | None
    run: State | None
    base: State | None = None
    merged: Merged | None = None
    new: State | None = None
    problem: str | None = None

    @property
    def overlaps(self) -> tuple[Overlap, ...]:
        """Lines that are to be decided on."""
        return self.merged.overlaps if self.merged is not None else ()

    @property
    def is_clean(self) -> bool:
        """Whether the change is the merge of both versions."""
        return self.merged is not None and not self.overlaps


def gone(target: str, error: OSError) -> str:
    """Why nothing can be seen of a target, in plain words."""
    if error.errno == errno.ENOENT:
        return f"the folder {target} is not there: it was moved, renamed or removed"
    if error.errno == errno.ELOOP or os.path.islink(target):
        return f"{target} is reached by a link now, which is not followed"
    if error.errno == errno.ENOTDIR:
        return f"{target} is not a folder any more"
    return f"the folder {target} cannot be opened: {error.strerror}"


class Contents(Protocol):
    """Where the bytes of the two sides come from."""

    def open_old(self, change: Change) -> BinaryIO:
        """The regular file as the host has it now; raises `OSError` where there is none."""
        ...

    def open_new(self, change: Change) -> BinaryIO:
        """The regular file as the sandbox left it."""
        ...


@runtime_checkable
class Descriptors(Protocol):
    """Contents that also open the new side as a bare descriptor, which costs less than a file."""

    def new_descriptor(self, change: Change) -> int:
        """The regular file as the sandbox left it, the caller's to close."""
        ...


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Everything a sandbox changed, sorted by target and path.

    ``folder_times`` are folders that changed only because entries came and went, with the time the
    sandbox saw, by absolute path. ``hidden`` are absolute host paths the policy hid: nothing at or
    below them is ever touched. ``notes`` say what could not be seen. ``layer_id`` is the layer it
    was read from, if any.

    For telling drift: ``since_ns`` is when the sandbox started; ``lost`` are absolute paths of what
    the sandbox changed and the host has removed since; ``known`` is what podbot itself left at a
    host path when it applied from the same layer; ``olds`` is what was there when the changes were
    made, for those that came from elsewhere and have no start.

    ``merges`` are, by absolute path, the changes that met what other runs applied: see `merging`.
    ``unaltered`` are absolute paths of renames that left every byte as it was. ``left_out`` are
    changes of the same run that were not chosen: what is chosen is judged as a part of all.
    """

    targets: tuple[str, ...]
    changes: tuple[Change, ...]
    contents: Contents
    since_ns: int
    layer_id: str | None = None
    hidden: tuple[str, ...] = ()
    folder_times: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    lost: frozenset[str] = frozenset()
    olds: Mapping[str, OldFacts | None] | None = None
    merges: Mapping[str, Merge] = field(default_factory=dict)
    unaltered: frozenset[str] = frozenset()
    left_out: tuple[Change, ...] = ()

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def __bool__(self) -> bool:
        return bool(self.changes)

    def narrowed(
        self, is_chosen: Callable[[Change], bool], folder_times: dict[str, int]
    ) -> ChangeSet:
        """Only the chosen ones, with these times of folders; the others are known as left out."""
        chosen: list[Change] = []
        others = [*self.left_out]
        for change in self.changes:
            (chosen if is_chosen(change) else others).append(change)
        return replace(
            self, changes=tuple(chosen), folder_times=folder_times, left_out=tuple(others)
        )

    def digest(self, change: Change, *, old: bool = False) -> str | None:
        """The SHA-256 of one side's contents, None where it is not a regular file."""
        state = change.old if old else change.new
        if state is None or state.type is not FileType.FILE:
            return None
        import hashlib  # much to load, and seldom needed

        digest = hashlib.sha256()
        with self._open(change, old) as file:
            for piece in extents.pieces(file):
                digest.update(piece)
        return digest.hexdigest()

    def is_binary(self, change: Change) -> bool:
        """Whether either side is a file that git, too, would call binary: a NUL near its start."""
        for old, state in ((True, change.old), (False, change.new)):
            if state is not None and state.type is FileType.FILE and state.size:
                with self._open(change, old) as file:
                    if b"\0" in file.read(BINARY_CHECK):
                        return True
        return False

    def _open(self, change: Change, old: bool) -> BinaryIO:
        return self.contents.open_old(change) if old else self.contents.open_new(change)


BINARY_CHECK = 8000
