"""Folders whose contents nobody reads one by one: installed packages, builds, what git stores.

A thousand new files of a package manager bury the one line that matters, so those who show changes
may show such a folder as one line. Which folder is one is told by what lies in it (``pyvenv.cfg``,
``CACHEDIR.TAG``, the packages of ``node_modules``, a ``RECORD``) or by the host's own ignore file,
not by a list of names. This is for showing alone: nothing here decides what is applied or flagged.

A sandbox may forge a marker. So one that it brought makes a fold only of a folder that it brought
too, the target itself is never one, nor is a repository; and `Fold.covers` says which flags such a
folder explains: whatever else is found in it is to be shown by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import BinaryIO

from podbot.changes._ignored import Ignored, ignores_all
from podbot.changes._moved_folders import moved_folders
from podbot.changes.model import FILE, FOLDER, LINK, Change, ChangeSet
from podbot.changes.risk.paths import leading, parts_of
from podbot.changes.risk.rules import COMMAND_FOLDER, LEADS_OUT, PYTHON_START, Level
from podbot.errors import ChangesError
from podbot.frozen import dataclass

FEWEST = 4
"""Changes of a folder that are worth a fold; fewer are shown as they are."""

ENVIRONMENT = "a Python environment: pyvenv.cfg"
NODE = "packages of Node.js: node_modules"
PYTHON_PACKAGES = "Python packages: RECORD"
TAGGED = "a cache or a build: CACHEDIR.TAG"
BYTECODE = "compiled Python"
IGNORED = "git ignores it"
STORE = "what git stores"
MOVED = "moved as it is"

_INSTALLED = frozenset({ENVIRONMENT, NODE, PYTHON_PACKAGES})
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55"
_NODE_MODULES = "node_modules"
_SITES = ("/site-packages", "/dist-packages")
_NODE_MARKS = (".package-lock.json", ".yarn-integrity", ".modules.yaml")
_EVERYWHERE = "**/__pycache__"
MAX_RECORD = 4 << 20
"""Bytes of a list of installed files that are read."""
MAX_IGNORE = 256 << 10


@dataclass(frozen=True, slots=True)
class Fold:
    """A folder of a target that may be shown as one line, with all its changes and why.

    ``source`` is where it was before, if it was moved as it is.
    """

    target: str
    path: str
    why: str
    changes: tuple[Change, ...]
    source: str | None = None

    @property
    def size(self) -> int:
        """Bytes of all new contents."""
        return sum(change.size for change in self.changes)

    def covers(self, level: Level, reason: str) -> bool:
        """Whether a flag is what one expects of anything in such a folder."""
        if self.why == STORE:
            return False  # git flags nothing that it stores
        if level is Level.WHEN_USED:
            return True
        return reason == COMMAND_FOLDER and self.why in _INSTALLED

    def belongs(self, change: Change, reason: str) -> bool:
        """Whether who agrees to these packages agrees to this flag of what runs by itself too.

        Every environment brings commands, an interpreter that is a link to the host's, and what
        Python reads at its start. A git hook is no part of any package.
        """
        if self.why not in _INSTALLED:
            return False
        if reason == LEADS_OUT:
            folder, _, name = change.path.rpartition("/")
            return self.why == ENVIRONMENT and (
                folder == f"{self.path}/bin" and name.startswith("python")
            )
        return reason in (COMMAND_FOLDER, PYTHON_START)


def folds(changes: ChangeSet, whole: ChangeSet | None = None) -> tuple[Fold, ...]:
    """The folders to show as one line, outermost only, in the order of the changes.

    Where some changes were chosen, ``whole`` are all of them: the marker of a folder, and the list
    of a package, count whether or not they were chosen.
    """
    search = _Search(changes if whole is None else whole)
    found: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        root = search.root(change)
        if root is not None:
            found.setdefault((change.target, *root), []).append(change)
    result = [
        Fold(target, path, why, tuple(inside))
        for (target, path, why), inside in _gathered(found).items()
        if len(inside) >= FEWEST
    ]
    taken = {change.where for fold in result for change in fold.changes}
    for moved in moved_folders(changes):
        members = tuple(change for change in moved.changes if change.where not in taken)
        if len(members) >= FEWEST:
            result.append(Fold(moved.target, moved.path, MOVED, members, moved.source))
    return tuple(result)


_Found = dict[tuple[str, str, str], list[Change]]


def _gathered(found: _Found) -> _Found:
    """Compiled files lie in many small folders: those of a target are one line together."""
    result: _Found = {}
    several = {
        target
        for target in {key[0] for key in found}
        if sum(key[0] == target and key[2] == BYTECODE for key in found) > 1
    }
    for (target, path, why), inside in found.items():
        together = why == BYTECODE and target in several
        result.setdefault((target, _EVERYWHERE if together else path, why), []).extend(inside)
    return result


class _Search:
    """One look at a change set: each folder is judged once."""

    def __init__(self, changes: ChangeSet):
        self._changes = changes
        self._ignored = Ignored(changes.targets)
        self._roots: dict[tuple[str, str], tuple[str, str] | None] = {}
        self._marks: dict[str, Change] = {}
        self._node: set[str] = set()
        self._records: list[Change] = []
        for change in changes:
            name = change.path.rpartition("/")[2]
            if change.new is None or change.new.type is not FILE:
                continue
            if name in ("pyvenv.cfg", "CACHEDIR.TAG", ".gitignore"):
                self._marks[change.where] = change
            elif name == "package.json" or name in _NODE_MARKS:
                self._node.update(_node_folders(change.where))
            elif name == "RECORD" and change.path.endswith(".dist-info/RECORD"):
                self._records.append(change)

    def root(self, change: Change) -> tuple[str, str] | None:
        """The outermost folder to fold that a change is in, and why; None for most."""
        path = change.path
        folder = path if change.type is FOLDER else path.rpartition("/")[0]
        found = self._root_of(change.target, folder)
        if found is not None and found[1] == BYTECODE and not _is_bytecode(change):
            return None
        return found or self._listed.get(change.where)

    def _root_of(self, target: str, folder: str) -> tuple[str, str] | None:
        # Step by step instead of by recursion: a sandbox can make folders of any depth.
        way: list[str] = []
        at = folder
        while at and (target, at) not in self._roots:
            way.append(at)
            at = at.rpartition("/")[0]
        found = self._roots.get((target, at)) if at else None
        for path in reversed(way):
            if found is None:
                why = self._why(target, path)
                found = None if why is None else (path, why)
            self._roots[target, path] = found
        return found

    def _why(self, target: str, path: str) -> str | None:
        where = f"{target}/{path}"
        above, _, name = where.rpartition("/")
        if name == "objects" and above.endswith("/.git"):
            return STORE
        if name == ".git" or "/.git/" in f"{where}/":
            return None
        if name == "__pycache__":
            return BYTECODE
        is_there = os.path.isdir(where) and not os.path.islink(where)
        if is_there and os.path.lexists(f"{where}/.git"):
            return None
        if name == _NODE_MODULES and (
            where in self._node
            or (is_there and any(os.path.lexists(f"{where}/{mark}") for mark in _NODE_MARKS))
        ):
            return NODE
        if self._has(where, "pyvenv.cfg", is_there):
            return ENVIRONMENT
        if not is_there and leading(parts_of(where)):
            return None  # such as .github: no mark of the sandbox's own makes a cache of it
        if self._has(where, "CACHEDIR.TAG", is_there) and (
            self._start(where, "CACHEDIR.TAG", is_there, len(_TAG)) == _TAG
        ):
            return TAGGED
        if self._has(where, ".gitignore", is_there) and ignores_all(
            self._start(where, ".gitignore", is_there, MAX_IGNORE)
        ):
            return IGNORED
        return IGNORED if self._ignored.is_ignored(target, where) else None

    def _has(self, where: str, mark: str, is_there: bool) -> bool:
        """Whether a marker counts: it is the host's, or came together with its whole folder."""
        if is_there:
            return os.path.isfile(f"{where}/{mark}") and not os.path.islink(f"{where}/{mark}")
        return f"{where}/{mark}" in self._marks

    def _start(self, where: str, mark: str, is_there: bool, size: int) -> bytes:
        try:
            with self._opened(f"{where}/{mark}", is_there) as file:
                return file.read(size)
        except (OSError, ChangesError):
            return b""

    def _opened(self, path: str, is_there: bool) -> BinaryIO:
        if not is_there:
            return self._changes.contents.open_new(self._marks[path])
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.fdopen(os.open(path, flags), "rb")

    @cached_property
    def _listed(self) -> dict[str, tuple[str, str]]:
        """What the lists of new Python packages name, where no environment is around them."""
        found: dict[str, tuple[str, str]] = {}
        for record in self._records:
            site = record.path.rpartition("/")[0].rpartition("/")[0]
            root = (site, PYTHON_PACKAGES)
            base = f"{record.target}/{site}"
            # A list that anybody can write says nothing of the target itself, or of the host's own.
            if not site or (os.path.lexists(base) and not base.endswith(_SITES)):
                continue
            for name in self._names_in(record):
                top = name.partition("/")[0]
                # A list that came from the sandbox speaks for what came with it, for nothing else.
                if top not in ("", ".", "..") and not os.path.lexists(f"{base}/{top}"):
                    found[f"{base}/{name}"] = root
        return found

    def _names_in(self, record: Change) -> Iterator[str]:
        import csv  # only where there is such a list

        try:
            with self._changes.contents.open_new(record) as file:
                text = file.read(MAX_RECORD).decode("utf-8", "surrogateescape")
            for row in csv.reader(text.splitlines()):
                if row:
                    yield row[0]
        except (OSError, ChangesError, csv.Error):
            return


def _node_folders(where: str) -> Iterable[str]:
    """The ``node_modules`` that a file lies in as a part of a package, or as a mark of its own."""
    parts = where.split("/")
    for back in (2, 3, 4):  # the mark itself, a package, one of a scope
        if len(parts) > back and parts[-back] == _NODE_MODULES:
            is_mark = parts[-1] in _NODE_MARKS
            if (back == 2) == is_mark and (back < 4 or parts[-3].startswith("@")):
                yield "/".join(parts[: 1 - back])


def _is_bytecode(change: Change) -> bool:
    return change.type is FOLDER or (change.type is not LINK and change.path.endswith(".pyc"))
