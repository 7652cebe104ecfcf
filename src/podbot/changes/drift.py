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

from podbot.changes.model import (
    Change,
    ChangeKind,
    ChangeSet,
    FileType,
    Identity,
    OldFacts,
    State,
)
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


def conflicts(changes: ChangeSet) -> tuple[Conflict, ...]:
    """Every conflict as the host stands now."""
    found: list[Conflict] = []
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
            found += _Check(changes, own, tree).conflicts()
    return tuple(found)


class _Check:
    """The changes of one target against its folder on the host."""

    def __init__(self, changes: ChangeSet, own: list[Change], tree: Tree):
        self._changes, self._own, self._tree = changes, own, tree
        self._folders = {c.path for c in own if c.new is not None and c.new.type is FileType.FOLDER}
        self._going = {
            path
            for change in own
            if change.new is None or change.kind is ChangeKind.RENAMED
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
        was_folder = change.old is not None and change.old.type is FileType.FOLDER
        return was_folder and (change.new is None or change.new.type is not FileType.FOLDER)

    def _conflict(self, change: Change, path: str) -> Conflict | None:
        where = f"{change.target}/{path}" if path else change.target
        if any(f"{where}/".startswith(f"{hidden}/") for hidden in self._changes.hidden):
            return Conflict(
                change, path, ConflictKind.HIDDEN, None, "the policy hid this path from the sandbox"
            )
        if self._loses_folder(change) and self._holds_hidden(where):
            message = "it holds something that the policy hid from the sandbox"
            return Conflict(change, path, ConflictKind.HIDDEN, None, message)
        try:
            host = self._tree.state(path)
            if host is None and path:
                self._tree.parent(path)
        except (FileNotFoundError, NotADirectoryError):
            host = None
        except OSError as error:
            message = f"its folder cannot be reached without following a link: {error.strerror}"
            return Conflict(change, path, ConflictKind.BLOCKED, None, message)
        old = None if change.kind is ChangeKind.RENAMED and path == change.path else change.old
        if host is None:
            return self._missing(change, path, where, old)
        if old is None:
            return Conflict(
                change, path, ConflictKind.CHANGED, host,
                f"the host has put a {host.type} there since",
            )  # fmt: skip
        if host.type is FileType.FOLDER and old.type is FileType.FOLDER:
            return self._folder(change, path, where, host)
        if not host.same_thing(old) or self._touched(where, host):
            return Conflict(
                change, path, ConflictKind.CHANGED, host, "the host has changed it since"
            )
        return None

    def _missing(self, change: Change, path: str, where: str, old: State | None) -> Conflict | None:
        going = change.new is None or (change.kind is ChangeKind.RENAMED and path == change.source)
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
        if above and above not in self._folders and not self._is_folder(above):
            message = f"there is no folder {above} to put it in"
            return Conflict(change, path, ConflictKind.BLOCKED, None, message)
        return None

    def _is_folder(self, path: str) -> bool:
        host = self._tree.state(path)
        return host is not None and host.type is FileType.FOLDER

    def _folder(self, change: Change, path: str, where: str, host: State) -> Conflict | None:
        """A folder's ctime moves with its entries: look at what it would lose instead."""
        if self._loses_folder(change):
            prefix = f"{path}/" if path else ""
            names = {prefix + name for name in self._tree.names(path)}
            stay = sorted(name for name in names - self._going if not self._is_hidden(name))
            if stay:
                message = f"the host has put {stay[0]} in it since"
                return Conflict(change, path, ConflictKind.CHANGED, host, message)
            return None
        # An entry that comes or goes sets both times alike; a change of mode sets one.
        if host.ctime_ns != host.mtime_ns and self._touched(where, host):
            message = "the host has changed its mode or attributes since"
            return Conflict(change, path, ConflictKind.CHANGED, host, message)
        return None

    def _is_hidden(self, path: str) -> bool:
        where = f"{self._tree.path}/{path}"
        return any(f"{where}/".startswith(f"{hidden}/") for hidden in self._changes.hidden)

    def _holds_hidden(self, where: str) -> bool:
        """Whether something hidden is on the host below a folder."""
        return any(
            hidden.startswith(f"{where}/")
            and self._tree.facts(os.path.relpath(hidden, self._tree.path)) is not None
            for hidden in self._changes.hidden
        )

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
        if facts.type is FileType.FILE:
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


def remember(layer_id: str | None, written: Mapping[str, State | None]) -> None:
    """Note what podbot itself left at host paths, so that it does not count as drift."""
    if layer_id is None or not written:
        return
    layer = layers.get(layer_id)
    if layer is None:
        return
    notes = known(layer)
    notes.update({path: state.identity if state else None for path, state in written.items()})
    draft = layer.path / f"{KNOWN}.new"
    draft.write_text(json.dumps(notes), encoding="ascii")
    os.rename(draft, layer.path / KNOWN)


__all__ = ["Conflict", "ConflictKind", "OldFacts", "conflicts", "known", "remember"]
