"""What the host did to a path while a sandbox worked on it: a conflict, never overwritten silently.

Told by ctime, which nobody can set, against the start of the sandbox; what podbot itself wrote to
the host from the same layer does not count.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from podbot.changes.hidden import Hidden
from podbot.changes.model import FILE, FOLDER, RENAMED, Change, ChangeSet, Identity, OldFacts, State
from podbot.changes.tree import Tree
from podbot.sandbox.overlay import layers
from podbot.sandbox.overlay.layers import Layer

KNOWN = "known.json"


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


@dataclass(frozen=True, slots=True)
class Conflict:
    """A change and what stands in its way at ``path``. ``host`` is what is there now."""

    change: Change
    path: str
    kind: ConflictKind
    host: State | None
    message: str


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the host found.

    ``unchanged`` are, by target and path, places that are just as the changes say, with what is
    there: the very state of the change, or None for nothing.
    """

    conflicts: tuple[Conflict, ...]
    unchanged: Mapping[str, Mapping[str, State | None]]


def conflicts(changes: ChangeSet) -> tuple[Conflict, ...]:
    """Every conflict as the host stands now."""
    return look(changes).conflicts


def look(changes: ChangeSet) -> Look:
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
            message = f"the target {target} is not there: {error.strerror}"
            found += [
                Conflict(change, change.path, ConflictKind.BLOCKED, None, message) for change in own
            ]
            continue
        with tree:
            check = _Check(changes, own, tree)
            found += check.conflicts()
            unchanged[target] = check.unchanged
    return Look(tuple(found), unchanged)


class _Check:
    """The changes of one target against its folder on the host."""

    def __init__(self, changes: ChangeSet, own: list[Change], tree: Tree):
        self._changes, self._own, self._tree = changes, own, tree
        self._hidden = Hidden(changes.hidden)
        self._missing_folders: set[str] = set()
        self.unchanged: dict[str, State | None] = {}
        self._folders = {c.path for c in own if c.new is not None and c.new.type is FOLDER}
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
        staying: dict[str, str] = {}
        for conflict in found:
            if conflict.path in self._going:
                above = conflict.path
                while above := above.rpartition("/")[0]:
                    staying.setdefault(above, conflict.path)
        told = {conflict.path for conflict in found}
        return [
            Conflict(
                change,
                change.path,
                ConflictKind.CHANGED,
                self._tree.state(change.path),
                f"the host has changed {staying[change.path]} in it since",
            )
            for change in self._own
            if change.path in staying and change.path not in told and self._loses_folder(change)
        ]

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
            return Conflict(change, path, ConflictKind.BLOCKED, None, message)
        if host is old:
            self.unchanged[path] = old
        if host is None:
            return self._missing(change, path, where, old)
        if old is None:
            return Conflict(
                change, path, ConflictKind.CHANGED, host,
                f"the host has put a {host.type} there since",
            )  # fmt: skip
        if host.type is FOLDER and old.type is FOLDER:
            return self._folder(change, path, where, host)
        if (host is not old and not host.same_thing(old)) or self._touched(where, host):
            return Conflict(
                change, path, ConflictKind.CHANGED, host, "the host has changed it since"
            )
        return None

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
        try:
            facts = (
                os.stat(name, dir_fd=folder, follow_symlinks=False) if path else os.fstat(folder)
            )
            return old if old and old.is_of(facts) else self._tree.state_of(path, facts)
        except FileNotFoundError:
            return None

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
            names = {prefix + name for name in self._tree.names(path)}
            top = self._tree.path
            stay = sorted(
                name for name in names - self._going if not self._hidden.covers(f"{top}/{name}")
            )
            if stay:
                message = f"the host has put {stay[0]} in it since"
                return Conflict(change, path, ConflictKind.CHANGED, host, message)
            return None
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
        if self._changes.known.get(where) == host.identity:
            return False
        if self._changes.olds is not None:
            return not self._as_archived(where, host)
        return host.ctime_ns > self._changes.since_ns

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
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
            return digest.hexdigest()
    except OSError:
        return None


def known(layer: Layer) -> dict[str, Identity | None]:
    """What podbot itself left on the host from this layer, by absolute path."""
    try:
        found = json.loads((layer.path / KNOWN).read_bytes())
    except (OSError, ValueError):
        return {}
    return {
        str(path): (int(one[0]), int(one[1]), int(one[2])) if one is not None else None
        for path, one in found.items()
    }


def remember(layer_id: str | None, written: Mapping[str, Identity | None]) -> None:
    """Note what podbot itself left at host paths, so that it does not count as drift."""
    if layer_id is None or not written:
        return
    layer = layers.get(layer_id)
    if layer is None:
        return
    notes = known(layer)
    notes.update(written)
    draft = layer.path / f"{KNOWN}.new"
    draft.write_text(json.dumps(notes), encoding="ascii")
    os.rename(draft, layer.path / KNOWN)


__all__ = ["Conflict", "ConflictKind", "Look", "OldFacts", "conflicts", "known", "look", "remember"]
