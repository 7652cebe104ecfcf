"""Folders that were moved as they are: hundreds of renames that are one deed.

Only what is the same on both sides belongs to such a move: a file of the very same bytes, mode and
owner, a folder, a link or an empty file that left the old place and came to the new one. Whatever
else is in the new folder, or was left in the old one, is told by itself. Looks at the changes only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from podbot.changes.model import ADDED, FILE, FOLDER, LINK, RENAMED, Change, ChangeSet, State
from podbot.frozen import dataclass

FEWEST = 20
"""Files of a moved folder that are worth one line; fewer are shown as they are."""


@dataclass(frozen=True, slots=True)
class MovedFolder:
    """A folder of a target that is at another path now, with the changes that make up the move."""

    target: str
    source: str
    path: str
    changes: tuple[Change, ...]


def moved_folders(changes: ChangeSet) -> tuple[MovedFolder, ...]:
    """The folders that were moved with most of what is in them, the outermost of each."""
    found: list[MovedFolder] = []
    for target in changes.targets if changes.unaltered else ():
        own = [change for change in changes if change.target == target]
        found += _Moves(own, changes.unaltered).found()
    return tuple(found)


class _Moves:
    """The changes of one target."""

    def __init__(self, own: list[Change], unaltered: frozenset[str]):
        self._own = {change.path: change for change in own}
        self._unaltered = unaltered
        self._gone = {c.path: c for c in own if c.new is None and c.old is not None}

    def found(self) -> Iterator[MovedFolder]:
        roots = Counter(
            root
            for change in self._own.values()
            if self._is_same_file(change) and (root := self._root(change)) is not None
        )
        taken: set[str] = set()
        for (source, path), number in roots.most_common():
            if number < FEWEST or source in taken or path in taken:
                continue
            taken |= {source, path}
            target = self._own[path].target
            yield MovedFolder(target, source, path, tuple(self._members(source, path)))

    def _root(self, change: Change) -> tuple[str, str] | None:
        """The outermost pair of folders, one gone and one come, that a file was moved between."""
        source, path = change.source or "", change.path
        root = None
        while source.rpartition("/")[2] == path.rpartition("/")[2] or root is None:
            source, path = source.rpartition("/")[0], path.rpartition("/")[0]
            if not source or not path or not self._is_same_folder(source, path):
                break
            root = (source, path)
        return root

    def _members(self, source: str, path: str) -> Iterator[Change]:
        for change in self._own.values():
            if change.path == path or change.path.startswith(f"{path}/"):
                before = f"{source}{change.path[len(path) :]}"
                if self._is_same_file(change):
                    if change.source == before:
                        yield change
                elif self._came(before, change):
                    yield self._gone[before]
                    yield change

    def _is_same_folder(self, source: str, path: str) -> bool:
        here = self._own.get(path)
        is_folder = here is not None and here.new is not None and here.new.type is FOLDER
        return is_folder and here is not None and self._came(source, here)

    def _came(self, before: str, change: Change) -> bool:
        """Whether what has no bytes came from a path where it is gone now."""
        gone = self._gone.get(before)
        if gone is None or gone.old is None or change.new is None or change.old is not None:
            return False
        old, new = gone.old, change.new
        if old.type is not new.type or not _alike(old, new):
            return False
        if new.type is FILE:
            return change.kind is ADDED and old.size == new.size == 0
        return new.type is FOLDER or (new.type is LINK and old.link == new.link)

    def _is_same_file(self, change: Change) -> bool:
        old, new = change.old, change.new
        return (
            change.kind is RENAMED
            and change.where in self._unaltered
            and old is not None
            and new is not None
            and _alike(old, new)
        )


def _alike(old: State, new: State) -> bool:
    return (old.mode, old.uid, old.gid, old.xattrs) == (new.mode, new.uid, new.gid, new.xattrs)
