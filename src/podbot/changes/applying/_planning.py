"""From changes to a plan: which move each of them is, in which order, and which cannot be.

Looks at the host as it is now and compares it with what the reviewer saw. Decides nothing about
risk or drift, and touches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from podbot.changes._hidden import Hidden
from podbot.changes.applying.ledger import Ledger
from podbot.changes.applying.moves import Folder, Move
from podbot.changes.model import (
    FILE,
    FOLDER,
    HARD_LINK,
    LINK,
    MODE,
    RENAMED,
    Change,
    ChangeSet,
    FileType,
    State,
)
from podbot.changes.tree import Tree
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass, field, replace
from podbot.sandbox import extents

Key = tuple[str, str]
"""A target and a path in it."""


@dataclass(frozen=True, slots=True)
class Partial:
    """The merged contents of a change of which only some hunks are taken."""

    file: Path
    state: State


@dataclass(frozen=True, slots=True)
class Request:
    """What should be applied, and what was decided about it.

    ``changes`` is all there is, ``chosen`` what is wanted of it. ``left_out`` gives a reason for
    each change that stays behind, ``overwrite`` accepts whatever the host has in the place of the
    others; ``drifted`` are those where that is known to be something else. ``unchanged`` are places
    (by target and path) that were seen a moment ago to be as the changes say: see `drift.Examined`.
    """

    changes: ChangeSet
    chosen: ChangeSet
    left_out: Mapping[Key, str]
    partial: Mapping[Key, Partial]
    overwrite: bool = False
    drifted: Collection[Key] = ()
    unchanged: Mapping[str, Mapping[str, State | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Draft:
    """What should happen. ``sources`` says by number which change gives a move its contents.

    ``linked`` are files of the host (index of the target, path, state) that get another name.
    """

    moves: tuple[Move, ...]
    folders: tuple[Folder, ...]
    sources: Mapping[int, Change]
    changed: tuple[Change, ...]
    skipped: tuple[tuple[Change, str], ...]
    conflicts: tuple[tuple[Change, str], ...]
    linked: tuple[tuple[int, str, State], ...] = ()


def draft(request: Request, trees: Mapping[str, Tree]) -> Draft:
    """Plan every chosen change whose target is among the trees."""
    check_paths(request.chosen)
    parts: list[_Target] = []
    moves: list[Move] = []
    sources: dict[int, Change] = {}
    for index, tree in enumerate(trees.values()):
        part = _Target(request, index, tree)
        parts.append(part)
        for change, move in part.moves(len(moves)):
            sources[move.number] = change
            moves.append(move)
    return Draft(
        tuple(moves),
        tuple(note for part in parts for note in part.folder_notes()),
        sources,
        tuple(change for part in parts for change in part.changed()),
        tuple(one for part in parts for one in part.skipped),
        tuple(one for part in parts for one in part.conflicts),
        tuple(one for part in parts for one in part.linked),
    )


_NOT_PLAIN = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)")
"""A name in a path that is empty or leads elsewhere."""


def check_paths(changes: ChangeSet) -> None:
    """Refuse a set that no layer could give: a path told twice, or one that is not plain."""
    seen: set[Key] = set()
    for change in changes:
        for path in (change.path, change.source):
            if path and _NOT_PLAIN.search(path):
                raise ChangesError(f"{path!r} is not a plain path", kind=Kind.INVALID)
        key = (change.target, change.path)
        if key in seen or change.target not in changes.targets:
            raise ChangesError(
                f"{change.where!r} is listed twice, or is of no target", kind=Kind.INVALID
            )
        seen.add(key)


def _from_outermost(path: str) -> str:
    """What paths are sorted by, name by name: a folder comes right before what is in it."""
    return path.replace("/", "\0")


_UNKNOWN = object()


class _Placing(NamedTuple):
    """Something that comes to a path."""

    change: Change
    was: State | None
    new: State
    link_to: str | None
    in_place: bool
    replaces_folder: bool


def _can_stay(was: State | None, new: State) -> bool:
    """Whether attributes can be changed in place."""
    if was is None or was.type is not new.type or new.type is LINK:
        return False
    # It would change every name of the file, and the sandbox changed one.
    return was.type is not FILE or was.links == 1


class _Target:
    """The changes of one target against its folder."""

    def __init__(self, request: Request, index: int, tree: Tree):
        self._request, self._index, self._tree = request, index, tree
        self._target = tree.path
        self._hidden = Hidden(request.changes.hidden)
        self._ledger = Ledger(tree.path)
        self._unchanged = request.unchanged.get(tree.path, {})
        self.skipped: list[tuple[Change, str]] = []
        self.conflicts: list[tuple[Change, str]] = []
        self.linked: list[tuple[int, str, State]] = []
        self._placing: dict[str, _Placing] = {}
        self._going: dict[str, tuple[Change, State]] = {}
        self._attributes: dict[str, tuple[State, State]] = {}  # of folders that stay folders
        self._done: dict[str, Change] = {}
        self._folders: dict[str, bool] = {}  # whether the host has a folder there
        self._staying: set[str] = set()  # what is left out on purpose, and every folder above it
        own = [change for change in request.chosen if change.target == self._target]
        for change in sorted(own, key=lambda change: _from_outermost(change.path)):
            self._consider(change)
        self._keep_what_is_not_empty()

    # What each change means

    def _consider(self, change: Change) -> None:
        reason = self._refusal(change)
        if reason is not None:
            self._skip(change, reason)
            return
        if change.kind is RENAMED and not self._take_source(change):
            return
        if change.new is None:
            was = self._host(change.path, change.old)
            if was is not None and not self._as_seen(change.old, was):
                self.conflicts.append((change, "the host has changed it since it was looked at"))
                return
            if was is not None:
                self._going[change.path] = (change, was)
        elif not self._place(change, change.new):
            if change.kind is RENAMED:
                self._going.pop(change.source or "", None)
            return
        self._done[change.path] = change

    def _skip(self, change: Change, reason: str) -> None:
        self.skipped.append((change, reason))
        for path in change.paths:
            above = path
            while above and above not in self._staying:
                self._staying.add(above)
                above = above.rpartition("/")[0]

    def _refusal(self, change: Change) -> str | None:
        """Why a change cannot be made at all."""
        left_out = self._request.left_out
        if left_out and (reason := left_out.get((change.target, change.path))) is not None:
            return reason
        if self._hidden.covers(change.where) or (
            change.kind is RENAMED
            and self._hidden.covers(f"{self._target}/{change.source or ''}".rstrip("/"))
        ):
            return "the policy hid this path from the sandbox"
        if change.new is not None and change.new.type is FileType.DEVICE:
            return "device nodes are not made"
        if not change.path and (change.new is None or change.new.type is not FOLDER):
            return "the target itself stays a folder"
        return None

    def _take_source(self, change: Change) -> bool:
        """The old name of something renamed goes, unless something else came there."""
        source = change.source or ""
        was = self._host(source, change.old)
        if not self._request.overwrite and (was is None or not self._as_seen(change.old, was)):
            reason = f"the host has changed {source} since it was looked at"
            self.conflicts.append((change, reason))
            return False
        if was is not None and was.type is not FOLDER and source not in self._placing:
            self._going[source] = (change, was)
        return True

    def _place(self, change: Change, new: State) -> bool:
        path = change.path
        above = path.rpartition("/")[0]
        if path and not self._is_folder(above):
            reason = f"there is no folder {above} to put it in"
            if above in self._staying or self._request.overwrite:
                self._skip(change, reason)
            else:
                self.conflicts.append((change, reason))
            return False
        seen = None if change.kind is RENAMED else change.old
        was = self._host(path, seen)
        if seen is not was and not self._as_seen(seen, was):
            what = f"put a {was.type} there" if was and not seen else "changed it"
            self.conflicts.append((change, f"the host has {what} since it was looked at"))
            return False
        partials = self._request.partial
        partial = partials.get((change.target, path)) if partials else None
        if partial is not None:
            new = partial.state
        was_folder = was is not None and was.type is FOLDER
        is_folder = self._folders[path] = new.type is FOLDER
        if is_folder and was_folder and was is not None:
            self._attributes[path] = (was, new)
            return True
        in_place = change.kind is MODE and _can_stay(was, new)
        is_link = change.kind is HARD_LINK and partial is None and not is_folder
        link_to = change.source if is_link else None
        self._placing[path] = _Placing(change, was, new, link_to, in_place, was_folder)
        return True

    def _host(self, path: str, seen: State | None) -> State | None:
        """What the host has; what was not touched since it was seen need not be read again."""
        above = self._placing.get(path.rpartition("/")[0])
        if above is not None and not above.replaces_folder:
            return None  # where no folder is yet, nothing is in it
        if self._unchanged.get(path, _UNKNOWN) is seen:
            return seen  # the moves themselves look again
        facts = self._tree.facts(path)
        if facts is None:
            return None
        return seen if seen and seen.is_of(facts) else self._tree.state_of(path, facts)

    def _is_folder(self, path: str) -> bool:
        known = self._folders.get(path)
        if known is None:
            state = self._tree.state(path)
            known = self._folders[path] = state is not None and state.type is FOLDER
        return known

    def _as_seen(self, seen: State | None, host: State | None) -> bool:
        """Whether the host still has what the reviewer saw, or nobody minds."""
        if self._request.overwrite or seen is host:
            return True
        if seen is None or host is None:
            return False
        if seen.type is FOLDER and host.type is FOLDER:
            return seen.looks_like(host)  # its ctime moves with every entry
        return seen.same_thing(host)

    def _keep_what_is_not_empty(self) -> None:
        """A folder goes only if everything in it does: what the host has put there stays."""
        leaving = {path for path, (_, was) in self._going.items() if was.type is FOLDER}
        leaving |= {path for path, placing in self._placing.items() if placing.replaces_folder}
        for path in sorted(leaving, key=_from_outermost, reverse=True):
            stay = sorted(
                name for name in self._tree.names(path) if f"{path}/{name}" not in self._going
            )
            if not stay:
                continue
            going = self._going.pop(path, None)
            change = going[0] if going is not None else self._placing.pop(path).change
            del self._done[change.path]
            reason = f"it still holds {stay[0]}, which stays"
            if self._request.overwrite or all(self._stays_on_purpose(path, one) for one in stay):
                self._skip(change, reason)
            else:
                self.conflicts.append((change, reason))

    def _stays_on_purpose(self, folder: str, name: str) -> bool:
        path = f"{folder}/{name}"
        return path in self._staying or self._hidden.covers(f"{self._target}/{path}")

    # The result

    def changed(self) -> list[Change]:
        """The changes that are part of the plan."""
        return list(self._done.values())

    def moves(self, first: int) -> Iterator[tuple[Change, Move]]:
        """All moves in their order; what needs room comes first, what takes away later."""
        numbers = count(first)
        later: tuple[list[_Placing], list[_Placing], list[_Placing]] = ([], [], [])
        # What is changed in place has the same names before and after: one that gets another
        # is placed anew, so that each of the two can be taken back without the other.
        linked = {placing.link_to for placing in self._placing.values()}
        for path, placing in self._placing.items():
            if placing.in_place and path in linked:
                self._placing[path] = placing._replace(in_place=False)
        for placing in self._placing.values():
            if placing.link_to is not None and self._can_link(placing, placing.link_to):
                later[1].append(placing)
            elif placing.replaces_folder:
                later[0].append(placing._replace(link_to=None))
            elif placing.in_place:
                later[2].append(placing)
            else:
                yield self._move(next(numbers), placing, None)
        for path in sorted(self._going, key=_from_outermost, reverse=True):
            change, was = self._going[path]
            host_unchanged = (change.target, change.path) not in self._request.drifted
            part_of = change.path if change.path != path else None
            yield (
                change,
                Move(
                    next(numbers), self._index, path, was, None,
                    host_unchanged=host_unchanged, part_of=part_of,
                ),
            )  # fmt: skip
        for placing in chain(*later):
            yield self._move(next(numbers), placing, placing.link_to)

    def _move(self, number: int, placing: _Placing, link_to: str | None) -> tuple[Change, Move]:
        change = placing.change
        host_unchanged = (change.target, change.path) not in self._request.drifted
        return change, Move(
            number, self._index, change.path, placing.was, placing.new,
            link_to, placing.in_place, host_unchanged,
        )  # fmt: skip

    def _can_link(self, placing: _Placing, source: str) -> bool:
        """Whether the other name will be, or is, the very same file as the sandbox had."""
        if self._hidden.covers(f"{self._target}/{source}"):
            return False
        other = self._placing.get(source)
        if other is not None:
            same = (other.new.device, other.new.inode) == (placing.new.device, placing.new.inode)
            return same and other.link_to is None and other.new.type is FILE
        if source in self._going:
            return False
        try:
            host = self._tree.state(source)
        except PermissionError:
            return False  # it is left out itself, in a folder that is closed to us
        if host is None or host.size != placing.new.size or not host.looks_like(placing.new):
            return False
        try:
            # What is empty need not be read, and so may be closed to us.
            same = not host.size or self._same_bytes(source, placing.change)
        except OSError:
            return False
        if same:
            self.linked.append((self._index, source, host))
        return same

    def _same_bytes(self, source: str, change: Change) -> bool:
        with (
            self._tree.open(source) as ours,
            self._request.changes.contents.open_new(change) as theirs,
        ):
            return extents.same(ours, theirs)

    def folder_notes(self) -> Iterator[Folder]:
        """Every folder that is touched, with what it gets in the end; parents first."""
        partial = self._incomplete()
        times = self._request.chosen.folder_times
        notes: dict[str, Folder] = {}
        for path, (_, was) in self._going.items():
            if was.type is FOLDER:
                notes[path] = Folder(self._index, path, was, None)
        for path, placing in self._placing.items():
            if placing.replaces_folder:
                notes[path] = Folder(self._index, path, placing.was, None)
            elif placing.new.type is FOLDER:
                time = None if path in partial else placing.new.mtime_ns
                notes[path] = Folder(self._index, path, None, placing.new, time)
        for path, (was, new) in self._attributes.items():
            time = None if path in partial else new.mtime_ns
            notes[path] = Folder(self._index, path, was, new, time)
        for path in self._touched():
            if path not in notes:
                state = self._tree.state(path)
                if state is not None and state.type is FOLDER:
                    where = f"{self._target}/{path}" if path else self._target
                    time = None if path in partial else times.get(where)
                    notes[path] = Folder(self._index, path, state, None, time)
        for path in sorted(notes, key=_from_outermost):
            yield replace(notes[path], host_unchanged=self._is_host_unchanged(notes[path]))

    def _is_host_unchanged(self, note: Folder) -> bool:
        """Whether nobody but podbot has changed a folder itself since the sandbox started."""
        was, changes = note.was, self._request.changes
        where = f"{self._target}/{note.path}" if note.path else self._target
        # An entry that comes or goes sets both times alike; a change of mode sets one.
        return (
            was is None
            or was.ctime_ns <= changes.since_ns
            or was.ctime_ns == was.mtime_ns
            or self._ledger.explains(where, was.identity, changes.since_ns, changes.layer_id)
        )

    def _touched(self) -> set[str]:
        """Folders whose entries change, and those that only get another time."""
        found = {path.rpartition("/")[0] for path in self._going}
        found |= {path.rpartition("/")[0] for path, p in self._placing.items() if not p.in_place}
        for where in self._request.chosen.folder_times:
            inside = where == self._target or where.startswith(f"{self._target}/")
            if inside and not self._hidden.covers(where):
                found.add(where[len(self._target) + 1 :])
        return found

    def _incomplete(self) -> set[str]:
        """Folders of which some change is left out: their time stays what comes by itself."""
        taken = self._done.keys()
        return {
            path.rpartition("/")[0]
            for change in self._request.changes
            if change.target == self._target and change.path not in taken
            for path in change.paths
            if path
        }
