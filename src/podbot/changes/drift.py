"""What the host did to a path while a sandbox worked on it: a conflict, never overwritten silently.

Told by ctime, which nobody can set, against the start of the sandbox. What podbot itself left, from
the same layer or putting back what was there before, does not count (see `ledger`), nor does what
has the very bytes and attributes that either side is known to have had.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from enum import StrEnum

from podbot.changes import _git_index, undecided
from podbot.changes._hidden import Hidden
from podbot.changes.applying.bases import Bases
from podbot.changes.applying.ledger import Ledger
from podbot.changes.diffs.text import shown_name
from podbot.changes.model import (
    FILE,
    FOLDER,
    MODE,
    RENAMED,
    UNSEEN,
    Change,
    ChangeKind,
    ChangeSet,
    Merge,
    OldFacts,
    State,
    gone,
)
from podbot.changes.select import is_new_folder
from podbot.changes.tree import Tree
from podbot.frozen import dataclass
from podbot.sandbox import extents, layers
from podbot.sandbox.layers import first_index

CHANGED_SINCE = "the host has changed it since"
MAYBE_CHANGED_SINCE = f"{CHANGED_SINCE}, or only touched it: what it held then is not known"
"""Of a file whose times moved on. A sandbox copies what it writes to, and nobody keeps what the
host had: `touch` and a checkout there and back look like any other change."""


class ConflictKind(StrEnum):
    """Why a change cannot simply be applied."""

    CHANGED = "changed"
    """The host changed it too, or put something there."""
    DELETED = "deleted"
    """The host removed what the sandbox changed."""
    HIDDEN = "hidden"
    """The policy hid this path: it is never written, whatever the caller says."""
    BLOCKED = "blocked"
    """Its folder is gone, or is not a folder any more."""
    OVERLAP = "overlap"
    """Another run that was applied meanwhile changed the same lines: they are to be decided on."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A change and what stands in its way at ``path``. ``host`` is what is there now."""

    change: Change
    path: str
    kind: ConflictKind
    host: State | None
    message: str


@dataclass(frozen=True, slots=True)
class Examined:
    """What a look at the host found.

    ``unchanged`` are, by target and path, places that are just as the changes say, with what is
    there: the very state of the change, or None for nothing.
    """

    conflicts: tuple[Conflict, ...]
    unchanged: Mapping[str, Mapping[str, State | None]]


def conflicts(changes: ChangeSet) -> tuple[Conflict, ...]:
    """Every conflict as the host stands now."""
    return examine(changes).conflicts


def examine(changes: ChangeSet) -> Examined:
    """The conflicts, and what is as it was."""
    found: list[Conflict] = []
    unchanged: dict[str, Mapping[str, State | None]] = {}
    for target in changes.targets:
        own = [change for change in changes if change.target == target]
        if not own:
            continue
        try:
            tree = Tree(target)
        except OSError as error:
            message = gone(target, error)
            found += [
                Conflict(change, change.path, ConflictKind.BLOCKED, None, message) for change in own
            ]
            continue
        with tree:
            check = _Check(changes, own, tree)
            found += check.conflicts()
            unchanged[target] = check.unchanged
    return Examined(tuple(found), unchanged)


class _Check:
    """The changes of one target against its folder on the host."""

    def __init__(self, changes: ChangeSet, own: list[Change], tree: Tree):
        self._changes, self._own, self._tree = changes, own, tree
        self._hidden = Hidden(changes.hidden)
        self._ledger = Ledger(tree.path)
        self._bases = Bases(self._ledger, changes.since_ns)
        self._missing_folders: set[str] = set()
        self.unchanged: dict[str, State | None] = {}
        self._folders = {c.path for c in own if c.new is not None and c.new.type is FOLDER}
        self._made = {c.path for c in own if is_new_folder(c)}
        self._going = {
            path
            for change in own
            if change.new is None or change.kind is RENAMED
            for path in ((change.source,) if change.new is not None else (change.path,))
            if path is not None
        }

    def conflicts(self) -> list[Conflict]:
        found = []
        for change in self._own:
            for path in change.paths:
                conflict = self._conflict(change, path)
                if conflict is not None:
                    found.append(conflict)
                    break
        return found + self._held_open(found)

    def _held_open(self, found: list[Conflict]) -> list[Conflict]:
        """Folders that cannot go because something in them should not."""
        staying: dict[str, Conflict] = {}
        for conflict in found:
            if conflict.path in self._going:
                above = conflict.path
                while above := above.rpartition("/")[0]:
                    staying.setdefault(above, conflict)
        in_conflict = {conflict.path for conflict in found}
        return [
            self._held_by(staying[change.path], change)
            for change in self._own
            if change.path in staying
            and change.path not in in_conflict
            and self._loses_folder(change)
        ]

    def _held_by(self, inner: Conflict, change: Change) -> Conflict:
        kind, message = ConflictKind.CHANGED, f"the host has changed {inner.path} in it since"
        if inner.kind is ConflictKind.BLOCKED:
            kind, message = ConflictKind.BLOCKED, f"{inner.path} in it cannot be seen on the host"
        return Conflict(change, change.path, kind, self._tree.state(change.path), message)

    def _loses_folder(self, change: Change) -> bool:
        was_folder = change.old is not None and change.old.type is FOLDER
        return was_folder and (change.new is None or change.new.type is not FOLDER)

    def _conflict(self, change: Change, path: str) -> Conflict | None:
        where = f"{change.target}/{path}" if path else change.target
        if self._changes.hidden and (message := self._hiding(change, where)):
            return Conflict(change, path, ConflictKind.HIDDEN, None, message)
        old = None if change.kind is RENAMED and path == change.path else change.old
        try:
            host = self._host(path, old)
        except OSError as error:
            message = f"its folder cannot be reached without following a link: {error.strerror}"
            if isinstance(error, PermissionError):
                message = "its folder is closed on the host, and what is in it cannot be seen"
            return Conflict(change, path, ConflictKind.BLOCKED, None, message)
        if host is old:
            self.unchanged[path] = old
        merge = self._changes.merges.get(where)
        if merge is not None and not merge.is_clean:
            return self._not_merged(change, path, host, merge)
        if host is None:
            return self._missing(change, path, where, old)
        if old is not None and old.type is UNSEEN:
            message = "it could not be seen when the changes were read: look at them again"
            return Conflict(change, path, ConflictKind.BLOCKED, host, message)
        if old is None:
            message = f"the host has put a {host.type} there since"
            message = self._by_podbot(where, host) or message
            return Conflict(change, path, ConflictKind.CHANGED, host, message)
        if host.type is FOLDER and old.type is FOLDER:
            return self._folder(change, path, where, host)
        if host is not old and not host.same_thing(old):
            message = self._by_podbot(where, host) or CHANGED_SINCE
            return Conflict(change, path, ConflictKind.CHANGED, host, message)
        if host.type is FILE and host.links > 1 and change.new is not None:
            message = self._parted(where, host)
            if message is not None:
                return Conflict(change, path, ConflictKind.CHANGED, host, message)
        if self._touched(where, host) and not self._is_known(change, path, where, host):
            is_certain = host.type is not FILE or self._knows_what_was(where)
            message = CHANGED_SINCE if is_certain else MAYBE_CHANGED_SINCE
            return Conflict(change, path, ConflictKind.CHANGED, host, message)
        return None

    def _by_podbot(self, where: str, host: State) -> str | None:
        """What to say of what podbot itself put there after the changes were read."""
        run = self._ledger.left_by(where, host.identity)
        if run is None:
            return None
        return f"run {run} was applied or undone there since these changes were read: look again"

    def _parted(self, where: str, host: State) -> str | None:
        """What would be lost of another run that made this and something else one file."""
        since = self._changes.since_ns if self._changes.olds is None else 0
        found = self._ledger.named_since(where, host.identity, since, self._changes.layer_id)
        if found is None:
            return None
        path, run = found
        name = shown_name(os.path.relpath(path, self._tree.path))
        return f"run {run} made {name} another name of it, and they would be two files"

    def _not_merged(self, change: Change, path: str, host: State | None, merge: Merge) -> Conflict:
        """What another run did to a file and this one did, too."""
        if merge.problem is not None:
            kind = ConflictKind.DELETED if host is None else ConflictKind.CHANGED
            return Conflict(change, path, kind, host, merge.problem)
        if host is None or not host.same_thing(merge.host):
            return Conflict(change, path, ConflictKind.CHANGED, host, CHANGED_SINCE)
        return Conflict(change, path, ConflictKind.OVERLAP, host, undecided.reason(merge))

    def _host(self, path: str, old: State | None) -> State | None:
        """What the host has; `OSError` where a link lies on the way.

        What was not touched since it was captured need not be read again.
        """
        above, _, name = path.rpartition("/")
        if above in self._missing_folders:
            return None
        try:
            folder = self._tree.folder(above)
        except (FileNotFoundError, NotADirectoryError):
            self._missing_folders.add(above)
            return None
        except OSError:
            if not self._becomes_folder(above):
                raise
            self._missing_folders.add(above)
            return None
        try:
            facts = (
                os.stat(name, dir_fd=folder, follow_symlinks=False) if path else os.fstat(folder)
            )
            return old if old and old.is_of(facts) else self._tree.state_of(path, facts)
        except FileNotFoundError:
            return None

    def _becomes_folder(self, path: str) -> bool:
        """Whether a folder is made there, in which the host can have nothing.

        Something that is in the way, as a link is that nobody knows of, is told for the first
        folder that is not one, and stops all that lies beneath.
        """
        while path and path in self._made:
            facts = self._tree.facts(path)
            if facts is not None:
                return not stat.S_ISDIR(facts.st_mode)
            path = path.rpartition("/")[0]
        return False

    def _missing(self, change: Change, path: str, where: str, old: State | None) -> Conflict | None:
        going = change.new is None or (change.kind is RENAMED and path == change.source)
        was_there = old is not None or (self._changes.olds or {}).get(where) is not None
        if where in self._changes.lost or (was_there and not going):
            message = "the host has removed it since"
            return Conflict(change, path, ConflictKind.DELETED, None, message)
        if going and change.new is None:
            return None  # both removed it: nothing is left to do
        if going:
            message = "the host has removed or moved it since"
            return Conflict(change, path, ConflictKind.DELETED, None, message)
        above = path.rpartition("/")[0]
        if above in self._missing_folders and above not in self._folders:
            message = f"there is no folder {above} to put it in"
            return Conflict(change, path, ConflictKind.BLOCKED, None, message)
        return None

    def _folder(self, change: Change, path: str, where: str, host: State) -> Conflict | None:
        """A folder's ctime moves with its entries: look at what it would lose instead."""
        if self._loses_folder(change):
            prefix = f"{path}/" if path else ""
            try:
                names = {prefix + name for name in self._tree.names(path)}
            except PermissionError:
                message = "it is closed on the host, and what is in it cannot be seen"
                return Conflict(change, path, ConflictKind.BLOCKED, host, message)
            top = self._tree.path
            stay = sorted(
                name for name in names - self._going if not self._hidden.covers(f"{top}/{name}")
            )
            if stay:
                message = f"the host has put {stay[0]} in it since"
                return Conflict(change, path, ConflictKind.CHANGED, host, message)
            return None
        if change.kind is ChangeKind.REPLACED:
            try:
                self._tree.names(path)
            except PermissionError:
                message = "it was made anew, is closed on the host, and what is in it stays"
                return Conflict(change, path, ConflictKind.BLOCKED, host, message)
        # An entry that comes or goes sets both times alike; a change of mode sets one.
        if host.ctime_ns != host.mtime_ns and self._touched(where, host):
            message = "the host has changed its mode or attributes since"
            return Conflict(change, path, ConflictKind.CHANGED, host, message)
        return None

    def _hiding(self, change: Change, where: str) -> str | None:
        """What a change has to do with paths that the policy hid."""
        if self._hidden.covers(where):
            return "the policy hid this path from the sandbox"
        if self._loses_folder(change) and any(
            self._tree.facts(os.path.relpath(hidden, self._tree.path)) is not None
            for hidden in self._hidden.below(where)
        ):
            return "it holds something that the policy hid from the sandbox"
        return None

    def _touched(self, where: str, host: State) -> bool:
        """Whether someone but podbot changed this since the sandbox started."""
        changes = self._changes
        merge = changes.merges.get(where)
        if merge is not None and host.same_thing(merge.host):
            return False  # just what the change was merged with
        if changes.olds is not None:
            return not (self._is_ours(where, host) or self._as_archived(where, host))
        return host.ctime_ns > changes.since_ns and not self._is_ours(where, host)

    def _is_known(self, change: Change, path: str, where: str, host: State) -> bool:
        """Whether it has the bytes and attributes of a side, whoever put them there."""
        new = change.new
        if change.kind is MODE and new is not None and host.is_dressed_as(new):
            return True  # of a mode the bytes are the same, and then it is a time that differs
        if self._lists_the_same(change, path, host) or self._lists_as_left(path, where, host):
            return True
        if self._lists_as_at_start(path, host):
            return True
        base = self._bases.of(where) if self._changes.olds is None else None
        if base is None or not host.is_dressed_as(base.state):
            return False
        if host.type is not FILE:
            return True
        try:
            with base.open() as before, self._tree.open(path) as now:
                if _git_index.is_index(where):
                    return _git_index.same_listing(before, now)
                return host.size == base.state.size and extents.same(before, now)
        except OSError:
            return False

    def _knows_what_was(self, where: str) -> bool:
        """Whether it is known what a file held when the sandbox began, and so that it differs."""
        if self._changes.olds is None:
            first = self._first_index(where)
            return self._bases.of(where) is not None or (
                first is not None and os.path.exists(first)
            )
        facts = self._changes.olds.get(where)
        return facts is not None and facts.sha256 is not None

    def _lists_the_same(self, change: Change, path: str, host: State) -> bool:
        """Whether both sides have an index of git's that differs in what is cached only."""
        new, where = change.new, f"{change.target}/{path}"
        if new is None or not new.type is host.type is FILE or not _git_index.is_index(where):
            return False
        try:
            with self._changes.contents.open_new(change) as theirs, self._tree.open(path) as ours:
                return _git_index.same_listing(theirs, ours)
        except OSError:
            return False

    def _lists_as_left(self, path: str, where: str, host: State) -> bool:
        """Whether it is an index of git's that lists what one did that `_is_ours` is true of."""
        if host.type is not FILE or not _git_index.is_index(where):
            return False
        if not self._ledger.lists(where):
            return False
        try:
            with self._tree.open(path) as file:
                listing = _git_index.digest_of_listing(file)
        except OSError:
            return False
        changes = self._changes
        since = changes.since_ns if changes.olds is None else 0
        return listing is not None and self._ledger.explains_listing(
            where, listing, since, changes.layer_id
        )

    def _lists_as_at_start(self, path: str, host: State) -> bool:
        """Whether it is an index of git's that lists what it did when the sandbox began."""
        first = self._first_index(f"{self._tree.path}/{path}")
        if first is None or host.type is not FILE:
            return False
        try:
            with open(first, "rb") as before, self._tree.open(path) as now:
                return _git_index.same_listing(before, now)
        except OSError:
            return False

    def _first_index(self, where: str) -> str | None:
        """Where an index of git's would be kept as the sandbox found it."""
        changes = self._changes
        is_first = where == f"{self._tree.path}/{first_index.PATH}"
        if not is_first or changes.olds is not None or changes.layer_id is None:
            return None
        layer = layers.get(changes.layer_id)
        return None if layer is None else layer.first_index(self._tree.path)

    def _is_ours(self, where: str, host: State) -> bool:
        """Whether podbot itself left it there, with what the sandbox saw or has given."""
        # Of what came from elsewhere nobody knows when it was there.
        since = self._changes.since_ns if self._changes.olds is None else 0
        return self._ledger.explains(where, host.identity, since, self._changes.layer_id)

    def _as_archived(self, where: str, host: State) -> bool:
        facts = (self._changes.olds or {}).get(where)
        if facts is None or facts.type is not host.type:
            return False
        if facts.type is FILE:
            path = os.path.relpath(where, self._tree.path)
            return facts.size == host.size and facts.sha256 == _digest(self._tree, path)
        return facts.link == host.link


def _digest(tree: Tree, path: str) -> str | None:
    try:
        with tree.open(path) as file:
            import hashlib  # much to load, and seldom needed

            digest = hashlib.sha256()
            for piece in extents.pieces(file):
                digest.update(piece)
            return digest.hexdigest()
    except OSError:
        return None


__all__ = ["Conflict", "ConflictKind", "Examined", "OldFacts", "conflicts", "examine"]
