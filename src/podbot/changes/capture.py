"""Reading a layer: from what lies on disk to a `ChangeSet`.

Costs what changed, not what is there: only the upper layer is walked, and of the host's folder only
what was deleted or replaced. Works on the layer of a live sandbox too; what moves away meanwhile is
left out. Reads only, but for folders that a guest closed (see `podbot.changes._layer_and_host`).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import BinaryIO

from podbot.changes import _git_index
from podbot.changes._layer_and_host import LayerAndHost
from podbot.changes._own_deeds import OwnDeeds
from podbot.changes.applying import gate
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, OldFacts, State
from podbot.sandbox.layers import Layer, boot_id
from podbot.sandbox.layers.baseline import Baseline

CLOCK_SLACK_NS = 1_000_000_000
"""Clocks drift apart by less than this without anyone having set them."""


def capture(layer: Layer) -> ChangeSet:
    """Everything that was changed over a layer, compared with the host as it is now.

    An apply or undo that was interrupted on its targets is healed first. Raises `ChangesError`
    (kind ``unknown_id``) if the layer is gone, and those of `gate.heal_first`.
    """
    gate.heal_first(layer.targets)
    found = [Part(layer, index) for index in range(len(layer.targets))]
    changes: list[Change] = []
    folder_times: dict[str, int] = {}
    for part in found:
        own = part.changes()
        changes += own
        folder_times.update(part.folder_times(own))
    return change_set(layer, found, changes, folder_times)


def change_set(
    layer: Layer, found: Sequence[Part], changes: Sequence[Change], folder_times: dict[str, int]
) -> ChangeSet:
    """The changes that its parts gave, with what is known of all of the layer."""
    return ChangeSet(
        layer.targets,
        tuple(changes),
        _LayerContents({part.target: part.sides for part in found}),
        since_ns=_start(layer),
        layer_id=layer.id,
        hidden=layer.hidden,
        folder_times=folder_times,
        notes=tuple(note for part in found for note in part.notes),
        lost=frozenset(path for part in found for path in part.lost),
        olds=_olds(layer),
    )


def read(layer: Layer, only: Sequence[str] = ()) -> ChangeSet:
    """`capture`, with files that only moved told as renamed, and what other runs did merged.

    Of all changes, or at least of those that the paths ``only`` mean: the rest may be left out.
    """
    from podbot.changes import _lineage, _renames
    from podbot.changes.diffs import one_path

    changes = one_path.captured(layer, only) if only else None
    if changes is None:
        changes = _renames.detect(capture(layer))
    journals = _lineage.of_others(changes) if changes else ()
    if not journals:
        return changes
    from podbot.changes import merging

    is_clock_true = _start(layer) == layer.since_ns
    return merging.together(changes, journals, layer.method == "copy", is_clock_true)


def _start(layer: Layer) -> int:
    """When the layer was begun, moved back by as much as the clock was set back since."""
    boot, since_boot = layer.clock
    if boot != boot_id():
        return layer.since_ns
    passed = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - since_boot
    began = time.time_ns() - passed
    return began if began < layer.since_ns - CLOCK_SLACK_NS else layer.since_ns


def _olds(layer: Layer) -> Mapping[str, OldFacts | None] | None:
    if layer.method != "archive":
        return None
    from podbot.changes.archive import saving

    olds = saving.read_olds(layer)
    return {
        f"{layer.targets[index]}/{path}" if path else layer.targets[index]: facts
        for index, part in olds.items()
        for path, facts in part.items()
    }


class Part:
    """What changed in one target of a layer."""

    def __init__(self, layer: Layer, index: int):
        self._layer, self._index = layer, index
        self._since = _start(layer)
        self.sides = LayerAndHost(layer, index)
        self.target, self.notes = self.sides.target, self.sides.notes
        self.lost: list[str] = []
        self._deeds = OwnDeeds(self.target, layer.id, self._since)
        self._times: dict[str, tuple[int, int]] = {}  # of folders on both sides: before, after
        self._copied_up: dict[str, State] = {}  # what the host had, and has not at this path
        self._unmarked: dict[str, list[str]] = {}  # what it may have had, by folder
        self._names: dict[int, list[str]] = {}  # of each file that has several, by inode
        self._put_in: set[str] = set()  # what podbot put into folders that are closed to us

    def changes(self) -> list[Change]:
        """All changes to this target, parents before what is in them."""
        self.sides.new_names("")  # opens it up if the guest closed it
        found = list(self._folder_itself())
        if self._layer.method == "copy":
            found += self._of_copy()
        else:
            found += self._of_upper()
        self._find_lost(found)
        found = self._with_hard_links(found)
        found.sort(key=lambda change: change.path.replace("/", "\0"))
        return found

    def folder_times(self, changes: list[Change]) -> dict[str, int]:
        """Of folders that are on both sides, the times that applying must see to.

        Those that differ, and those of folders with changes in them: applying moves these.
        """
        inside = {change.path.rpartition("/")[0] for change in changes if change.path}
        return {
            self.sides.where(path): after
            for path, (before, after) in self._times.items()
            if before != after or path in inside
        }

    # An overlay's upper layer

    def _of_upper(self) -> list[Change]:
        """What changed, folder by folder; a tree of any depth is no deeper here."""
        found: list[Change] = []
        anew: dict[str, tuple[State, State]] = {}  # opaque folders the host has too
        unlisted: list[str] = []  # those of which nobody knows what was in them
        folders = [("", self.sides.lower is not None, self.sides.is_opaque(""))]
        while folders:
            folder, has_lower, opaque = folders.pop()
            prefix = f"{folder}/" if folder else ""
            names = self.sides.new_names(folder)
            for name in names:
                path = prefix + name
                facts = self.sides.upper.facts(path)
                if facts is None:
                    continue  # a live sandbox took it away
                old = self.sides.old(path) if has_lower else None
                if stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0:
                    if old is not None:
                        found += self._gone(path, old)
                    elif not self._was_taken_out(path, facts.st_ctime_ns):
                        found += self._gone_unseen(path)
                    continue
                new = self.sides.new(path, facts)
                if new is None:
                    continue
                if old is None and self.sides.is_from_host(path):
                    self._copied_up[path] = new
                elif old is None:
                    self._unmarked.setdefault(path.rpartition("/")[0], []).append(path)
                if new.type is not FileType.FOLDER:
                    found += self.changed(path, old, new)
                    continue
                both = old is not None and old.type is FileType.FOLDER
                covers = both and self.sides.is_opaque(path)
                if both and covers and old is not None:
                    anew[path] = (old, new)
                else:
                    found += self.changed(path, old, new)
                # What shows nothing of the host's is told as if it were made anew all the way.
                folders.append((path, both, both and (covers or opaque)))
                if both and old is not None:
                    self._times[path] = (old.mtime_ns, new.mtime_ns)
            if opaque and has_lower and self.sides.lower is not None:
                went = self.sides.names_that_went(folder)
                shut = self.sides.old(folder) if went is None else None
                facts = self.sides.upper.facts(folder) if shut is not None else None
                if shut and facts and not self._was_left_so(folder, facts.st_ctime_ns, shut):
                    unlisted.append(folder)
                for name in (went or set()) - set(names):
                    old = self.sides.old(prefix + name)
                    if old is not None:
                        found += self._gone(prefix + name, old)
                    else:
                        found += self._gone_unseen(prefix + name)
        self._find_unlisted(unlisted, found, anew)
        return [*found, *self._made_anew(anew, found)]

    def _find_unlisted(
        self, folders: list[str], found: list[Change], anew: dict[str, tuple[State, State]]
    ) -> None:
        """Folders that show nothing of what the host has in them, which nobody can list: whatever
        it is, it went. Nothing else is told of the folders themselves.
        """
        for folder in folders:
            old, new = self.sides.old(folder), self._state_inside(folder)
            self._note_unlisted(folder)
            if folder and old is not None and new is not None:
                found[:] = [change for change in found if change.path != folder]
                found.append(Change(ChangeKind.REPLACED, self.target, folder, old, new))
                anew.pop(folder, None)

    def _made_anew(
        self, anew: dict[str, tuple[State, State]], found: list[Change]
    ) -> Iterator[Change]:
        """Folders that were removed and made again; one that has all it had is only changed."""
        lost_something: set[str] = set()
        for change in found if anew else ():
            path = change.path if change.new is None else ""
            while (path := path.rpartition("/")[0]) and path not in lost_something:
                lost_something.add(path)
        for path, (old, new) in anew.items():
            if path in lost_something:
                yield Change(ChangeKind.REPLACED, self.target, path, old, new)
            elif self._looks_other(path, old, new):
                yield Change(ChangeKind.MODE, self.target, path, old, new)

    def changed(self, path: str, old: State | None, new: State) -> Iterator[Change]:
        """What happened at a path; of a folder only to itself."""
        if old is not None and old.type is FileType.FOLDER and new.type is not FileType.FOLDER:
            yield from self._gone_below(path)
        change = self._compared(path, old, new)
        if change is not None:
            yield change

    def _find_lost(self, found: list[Change]) -> None:
        """Tell what was moved or linked inside from what the host has removed since.

        Both are new names for something that was copied from the host. It was removed only if the
        host had its folder, which was touched since; and a file that was moved is gone elsewhere,
        unless podbot's ledger or git's index know that the host had it under this very name.
        """
        gone: dict[tuple[int, int], list[str]] = {}
        for change in found:
            if change.old is not None and change.new is None:
                key = (change.old.size, change.old.mtime_ns)
                gone.setdefault(key, []).append(change.path)
        for path, new in self._copied_up.items():
            above = path.rpartition("/")[0]
            if above and not self.sides.is_from_host(above):
                continue  # it came into a folder that was made inside
            was_taken = self._deeds.took(self.sides.where(path))
            if not was_taken and not self._was_touched(above):
                continue
            sources = gone.get((new.size, new.mtime_ns), ())
            moved = new.type is not FileType.FOLDER and (
                new.links > 1 or any(self._is_from(source, path, new) for source in sources)
            )
            if not moved or was_taken or path in self._tracked:
                self.lost.append(self.sides.where(path))
        self._find_lost_unmarked()

    def _find_lost_unmarked(self) -> None:
        """The same of what the kernel did not mark when it was copied up: a file of several names.

        It looks as if it was made inside; that it was there is known only where podbot took it.
        """
        for folder, paths in self._unmarked.items():
            if folder and not self.sides.is_from_host(folder):
                continue
            try:
                facts = self.sides.lower.facts(folder) if self.sides.lower is not None else None
            except OSError:
                continue
            if facts is None or facts.st_ctime_ns <= self._since:
                continue  # nothing came or went in it
            found = map(self.sides.where, paths)
            self.lost += [where for where in found if self._deeds.another_took(where)]

    @cached_property
    def _tracked(self) -> frozenset[str]:
        return _git_index.tracked_below(self.target)

    def _is_from(self, source: str, path: str, new: State) -> bool:
        """Whether something is what the host has elsewhere; nobody but a file has bytes."""
        old = self.sides.old(source)
        if old is None or old.type is not new.type:
            return False
        if new.type is not FileType.FILE:
            return (old.link, old.rdev) == (new.link, new.rdev)
        return bool(self.sides.same_bytes(path, old, new, source))

    def _was_touched(self, folder: str) -> bool:
        """Whether someone but podbot made or removed entries of a host folder since the start."""
        try:
            facts = self.sides.lower.facts(folder) if self.sides.lower is not None else None
        except PermissionError:
            return False  # one above it is closed to us: whoever wants to write there is told
        if facts is None or facts.st_mtime_ns <= self._since:
            return facts is None
        return not self._deeds.alone_touched(self.sides.where(folder), facts)

    def _folder_itself(self) -> Iterator[Change]:
        """Whether the target's own mode or attributes were changed."""
        facts, old = self.sides.upper.facts(""), self.sides.old("")
        new = self.sides.new("", facts) if facts is not None else None
        if new is None or old is None:
            return
        self._times[""] = (old.mtime_ns, new.mtime_ns)
        # The upper folder was made by the host: whose it is says nothing.
        if (new.mode, new.xattrs) != (old.mode, old.xattrs):
            yield Change(ChangeKind.MODE, self.target, "", old, new)

    # A copy and its manifest

    def _of_copy(self) -> Iterator[Change]:
        manifest = Baseline.read(self._layer.baseline(self._index))
        seen: set[str] = set()
        folders = [""]
        while folders:
            folder = folders.pop()
            for name in self.sides.new_names(folder):
                path = f"{folder}/{name}" if folder else name
                facts = self.sides.upper.facts(path)
                if facts is None:
                    continue
                seen.add(path)
                if stat.S_ISDIR(facts.st_mode):
                    folders.append(path)
                elif manifest.untouched(path, facts):
                    continue
                yield from self._of_copied(path, facts, manifest)
        for path in sorted(set(manifest.entries) - seen):
            old = self.sides.old(path)
            if old is not None:
                yield Change(ChangeKind.DELETED, self.target, path, old, None)
            else:
                yield from self._gone_unseen(path)

    def _of_copied(self, path: str, facts: os.stat_result, manifest: Baseline) -> Iterator[Change]:
        """What happened to one thing in a copy that may have been touched."""
        new, old = self.sides.new(path, facts), self.sides.old(path)
        if new is None:
            return
        is_folder = new.type is FileType.FOLDER
        if old is None and path in manifest.entries:
            if is_folder and manifest.untouched(path, facts):
                return  # the host removed it, and nothing was done to it here
            self.lost.append(self.sides.where(path))
        change = self._compared(path, old, new)
        if change is not None:
            yield change
        if is_folder and old is not None and old.type is FileType.FOLDER:
            self._times[path] = (old.mtime_ns, new.mtime_ns)

    # One path

    def _compared(self, path: str, old: State | None, new: State) -> Change | None:
        """What happened to a path, None if it is as it was. Folders: only the folder itself."""
        kind = _kind(old, new)
        if old is None and self._was_put_in(path, new):
            self._put_in.add(path)
            kind = None
        elif kind is None:
            assert old is not None  # noqa: S101 - what was not there is a change
            if new.type is FileType.FILE and not self._same_bytes(path, old, new):
                kind = None if self.sides.lists_the_same(path) else ChangeKind.MODIFIED
            elif self._looks_other(path, old, new) and not self._deeds.dressed(
                self.sides.where(path), new
            ):
                kind = ChangeKind.MODE
        if new.type is FileType.FILE and new.links > 1:
            self._names.setdefault(new.inode, []).append(path)
        return None if kind is None else Change(kind, self.target, path, old, new)

    def _with_hard_links(self, found: list[Change]) -> list[Change]:
        """Of the names of one file, all that changed but one are links to that one."""
        if not self._names:
            return found
        changed = {change.path: change for change in found}
        for names in self._names.values():
            names.sort(key=self._standing(changed))
            first = names[0]
            there = self.sides.old(first)
            for name in names[1:]:
                change = changed.get(name)
                old = change.old if change is not None else self.sides.old(name)
                if first not in changed and (
                    _is_linked(there, old) or (change is None and name in self._put_in)
                ):
                    changed.pop(name, None)
                    continue
                # Of equal files that became one, that alone is what changed.
                new = change.new if change is not None else self._state_inside(name)
                if new is not None:
                    changed[name] = Change(ChangeKind.HARD_LINK, self.target, name, old, new, first)
        return list(changed.values())

    def _standing(self, changed: Mapping[str, Change]) -> Callable[[str], tuple[object, ...]]:
        """Which name of a file the others are links to: best one that did not change and can be
        seen, then one the host has, then the first.
        """

        def key(name: str) -> tuple[object, ...]:
            change = changed.get(name)
            is_new = change is not None and change.old is None
            return change is not None, name in self._put_in, is_new, name

        return key

    def _same_bytes(self, path: str, old: State, new: State) -> bool:
        same = self.sides.same_bytes(path, old, new)
        if same is None:
            return self._deeds.applied(self.sides.where(path), old, new)
        return same

    def _was_put_in(self, path: str, new: State) -> bool:
        """Whether podbot put it into a folder of the host's that is closed to us."""
        where = self._closed_to_us(path)
        return where is not None and self._deeds.put_in(
            self.sides.where(path), new.ctime_ns, *where
        )

    def _was_taken_out(self, path: str, ctime_ns: int) -> bool:
        """Whether podbot took it out of such a folder; the layer has known since ``ctime_ns``."""
        where = self._closed_to_us(path)
        return where is not None and self._deeds.took_out(self.sides.where(path), ctime_ns, *where)

    def _closed_to_us(self, path: str) -> tuple[str, State] | None:
        """The folder that something cannot be seen for, and how it is now."""
        sides = self.sides
        if not sides.is_unseen(path) or sides.lower is None:
            return None
        above = sides.closed_above(path)
        shut = sides.lower.state(above)
        return None if shut is None else (sides.where(above), shut)

    def _looks_other(self, path: str, old: State, new: State) -> bool:
        """Whether attributes differ; those of what we may not read cannot be compared."""
        if new.looks_like(old):
            return False
        return bool(old.mode & 0o400) or not self._was_left_so(path, new.ctime_ns, old)

    def _was_left_so(self, path: str, ctime_ns: int, now: State) -> bool:
        """Whether something that is closed to us is as podbot made it from this layer."""
        where = self.sides.where(path)
        return self._deeds.put_in(where, ctime_ns, where, now)

    def _note_unlisted(self, folder: str) -> None:
        self.notes.append(f"{folder} was removed, and what was in it cannot be listed")

    def _state_inside(self, path: str) -> State | None:
        facts = self.sides.upper.facts(path)
        return None if facts is None else self.sides.new(path, facts)

    def _gone(self, path: str, old: State) -> Iterator[Change]:
        """A deletion, and of a folder everything in it; hidden things stay, and so their folder."""
        if old.type is not FileType.FOLDER:
            yield Change(ChangeKind.DELETED, self.target, path, old, None)
            return
        yield from self._gone_below(path)
        if self.sides.holds_hidden(path):
            self.notes.append(f"{path} cannot go: it holds what the policy hid")
        else:
            yield Change(ChangeKind.DELETED, self.target, path, old, None)

    def _gone_unseen(self, path: str) -> Iterator[Change]:
        """A deletion in a folder of the host's that is closed to us; nothing of all else."""
        if self.sides.is_unseen(path):
            yield Change(ChangeKind.DELETED, self.target, path, State.unseen(), None)

    def _gone_below(self, path: str) -> Iterator[Change]:
        """Everything in a folder of the host's that can be listed, as deleted."""
        assert self.sides.lower is not None  # noqa: S101 - there is an old state, so there is a folder
        folders = [path]
        while folders:
            folder = folders.pop()
            names = self.sides.names_that_went(folder)
            if names is None:
                self._note_unlisted(folder)
            for name in names or ():
                below = f"{folder}/{name}"
                old = self.sides.old(below)
                if old is None:
                    yield from self._gone_unseen(below)
                    continue
                if old.type is FileType.FOLDER:
                    folders.append(below)
                    if self.sides.holds_hidden(below):
                        self.notes.append(f"{below} cannot go: it holds what the policy hid")
                        continue
                yield Change(ChangeKind.DELETED, self.target, below, old, None)


class _LayerContents:
    """The bytes of both sides of a layer's changes."""

    def __init__(self, sides: dict[str, LayerAndHost]):
        self._sides = sides

    def open_old(self, change: Change) -> BinaryIO:
        lower = self._sides[change.target].lower
        if lower is None:
            raise FileNotFoundError(change.target)
        renamed = change.kind is ChangeKind.RENAMED and change.source is not None
        return lower.open(change.source if renamed and change.source else change.path)

    def open_new(self, change: Change) -> BinaryIO:
        return self._sides[change.target].open_new(change.path)

    def new_descriptor(self, change: Change) -> int:
        return self._sides[change.target].new_descriptor(change.path)


def _is_linked(one: State | None, other: State | None) -> bool:
    """Whether two host paths are names of one file."""
    return one is not None and other is not None and one.inode == other.inode


def _kind(old: State | None, new: State) -> ChangeKind | None:
    """What the states alone say; None where contents and attributes decide."""
    special = (FileType.FIFO, FileType.SOCKET, FileType.DEVICE)
    if old is not None and old.type is not new.type:
        return ChangeKind.REPLACED
    if old is not None and (old.link, old.rdev) == (new.link, new.rdev):
        return None
    if new.type is FileType.LINK:
        return ChangeKind.LINK
    return ChangeKind.SPECIAL if new.type in special else ChangeKind.ADDED
