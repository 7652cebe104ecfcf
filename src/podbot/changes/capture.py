"""Reading a layer: from what lies on disk to a `ChangeSet`.

Costs what changed, not what is there: only the upper layer is walked, and of the host's folder only
what was deleted or replaced. Works on the layer of a live sandbox too; what moves away meanwhile is
left out. Reads only, except that folders a guest closed to their owner are opened up in a layer
nobody uses (see `podbot.sandbox.layers.closed`).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from io import FileIO
from typing import BinaryIO

from podbot.changes import _git_index
from podbot.changes.applying import gate
from podbot.changes.applying.bases import Bases
from podbot.changes.applying.ledger import Ledger
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, OldFacts, State
from podbot.changes.tree import Place, Tree
from podbot.errors import ChangesError, Kind
from podbot.sandbox import extents
from podbot.sandbox.layers import Layer, boot_id, closed
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
        _LayerContents({part.target: part for part in found}),
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
    """One target of a layer, both sides held open."""

    def __init__(self, layer: Layer, index: int):
        self.target = layer.targets[index]
        self._layer, self._index = layer, index
        try:
            self.upper = Tree(layer.upper(index))
        except OSError as error:
            raise ChangesError(
                f"layer {layer.id} cannot be read: {error.strerror}",
                kind=Kind.UNKNOWN_ID,
                remedy="`podbot changes list` says which are there",
            ) from None
        self.notes: list[str] = []
        self._times: dict[str, tuple[int, int]] = {}  # of folders on both sides: before, after
        self.lost: list[str] = []
        self._copied_up: dict[str, State] = {}  # what the host had, and has not at this path
        self._unseen: set[str] = set()  # in folders of the host's that are closed to us
        self._since = _start(layer)
        self._ledger = Ledger(self.target)
        self._bases = Bases(self._ledger, self._since)
        self.lower: Tree | None = None
        try:
            self.lower = Tree(self.target)
        except OSError as error:
            self.notes.append(f"the target {self.target} is not there: {error.strerror}")
        self._hidden = {
            os.path.relpath(path, self.target)
            for path in layer.hidden
            if f"{path}/".startswith(f"{self.target}/")
        }
        self._modes = closed.modes(layer.path)
        self._names: dict[int, list[str]] = {}  # of each file that has several, by inode
        self._live = layer.live

    def changes(self) -> list[Change]:
        """All changes to this target, parents before what is in them."""
        self._list("")  # opens it up if the guest closed it
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
            f"{self.target}/{path}" if path else self.target: after
            for path, (before, after) in self._times.items()
            if before != after or path in inside
        }

    # An overlay's upper layer

    def _of_upper(self) -> list[Change]:
        """What changed, folder by folder; a tree of any depth is no deeper here."""
        found: list[Change] = []
        anew: dict[str, tuple[State, State]] = {}  # opaque folders the host has too
        folders = [("", self.lower is not None, self.is_opaque(""))]
        while folders:
            folder, has_lower, opaque = folders.pop()
            prefix = f"{folder}/" if folder else ""
            names = self._list(folder)
            for name in names:
                path = prefix + name
                facts = self.upper.facts(path)
                if facts is None:
                    continue  # a live sandbox took it away
                old = self.old(path) if has_lower else None
                if stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0:
                    if old is not None:
                        found += self._gone(path, old)
                    continue
                new = self.new(path, facts)
                if new is None:
                    continue
                if old is None and self._mark("origin", path) is not None:
                    self._copied_up[path] = new
                if new.type is not FileType.FOLDER:
                    found += self.changed(path, old, new)
                    continue
                both = old is not None and old.type is FileType.FOLDER
                covers = both and self.is_opaque(path)
                if both and covers and old is not None:
                    anew[path] = (old, new)
                else:
                    found += self.changed(path, old, new)
                # What shows nothing of the host's is told as if it were made anew all the way.
                folders.append((path, both, both and (covers or opaque)))
                if both and old is not None:
                    self._times[path] = (old.mtime_ns, new.mtime_ns)
            if opaque and has_lower and self.lower is not None:
                for name in self._names_that_went(folder) - set(names):
                    old = self.old(prefix + name)
                    if old is not None:
                        found += self._gone(prefix + name, old)
        return [*found, *self._made_anew(anew, found)]

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
            elif not new.looks_like(old):
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
            if above and self._mark("origin", above) is None:
                continue  # it came into a folder that was made inside
            was_taken = self._was_taken(path)
            if not was_taken and not self._was_touched(above):
                continue
            sources = gone.get((new.size, new.mtime_ns), ())
            moved = new.type is not FileType.FOLDER and (
                new.links > 1 or any(self._is_from(source, path, new) for source in sources)
            )
            if not moved or was_taken or path in self._tracked:
                self.lost.append(f"{self.target}/{path}")

    @cached_property
    def _tracked(self) -> frozenset[str]:
        return _git_index.tracked_below(self.target)

    def _is_from(self, source: str, path: str, new: State) -> bool:
        """Whether something is what the host has elsewhere; nobody but a file has bytes."""
        old = self.old(source)
        if old is None or old.type is not new.type:
            return False
        if new.type is not FileType.FILE:
            return (old.link, old.rdev) == (new.link, new.rdev)
        return self._same_bytes(path, old, new, source)

    def _was_touched(self, folder: str) -> bool:
        """Whether someone but podbot made or removed entries of a host folder since the start."""
        try:
            facts = self.lower.facts(folder) if self.lower is not None else None
        except PermissionError:
            return False  # one above it is closed to us: whoever wants to write there is told
        if facts is None or facts.st_mtime_ns <= self._since:
            return facts is None
        where = f"{self.target}/{folder}" if folder else self.target
        now = (facts.st_dev, facts.st_ino, facts.st_ctime_ns)
        return not self._ledger.only_podbot_touched(where, now, self._since)

    def _was_taken(self, path: str) -> bool:
        """Whether podbot itself took it away, applying or undoing another run."""
        return self._ledger.removed(f"{self.target}/{path}", self._since)

    def _folder_itself(self) -> Iterator[Change]:
        """Whether the target's own mode or attributes were changed."""
        facts, old = self.upper.facts(""), self.old("")
        new = self.new("", facts) if facts is not None else None
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
            for name in self._list(folder):
                path = f"{folder}/{name}" if folder else name
                facts = self.upper.facts(path)
                if facts is None:
                    continue
                seen.add(path)
                if stat.S_ISDIR(facts.st_mode):
                    folders.append(path)
                elif manifest.untouched(path, facts):
                    continue
                yield from self._of_copied(path, facts, manifest)
        for path in sorted(set(manifest.entries) - seen):
            old = self.old(path)
            if old is not None:
                yield Change(ChangeKind.DELETED, self.target, path, old, None)

    def _of_copied(self, path: str, facts: os.stat_result, manifest: Baseline) -> Iterator[Change]:
        """What happened to one thing in a copy that may have been touched."""
        new, old = self.new(path, facts), self.old(path)
        if new is None:
            return
        is_folder = new.type is FileType.FOLDER
        if old is None and path in manifest.entries:
            if is_folder and manifest.untouched(path, facts):
                return  # the host removed it, and nothing was done to it here
            self.lost.append(f"{self.target}/{path}")
        change = self._compared(path, old, new)
        if change is not None:
            yield change
        if is_folder and old is not None and old.type is FileType.FOLDER:
            self._times[path] = (old.mtime_ns, new.mtime_ns)

    # One path

    def _compared(self, path: str, old: State | None, new: State) -> Change | None:
        """What happened to a path, None if it is as it was. Folders: only the folder itself."""
        kind = _kind(old, new)
        if old is None and self._is_unseen(path) and self._was_put_in(path, new):
            kind = None
        elif kind is None:
            assert old is not None  # noqa: S101 - what was not there is a change
            if new.type is FileType.FILE and not self._same_bytes(path, old, new):
                kind = None if self._lists_the_same(path) else ChangeKind.MODIFIED
            elif not new.looks_like(old) and not self._was_so(path, new):
                kind = ChangeKind.MODE
        if new.type is FileType.FILE and new.links > 1:
            self._names.setdefault(new.inode, []).append(path)
        return None if kind is None else Change(kind, self.target, path, old, new)

    def _was_so(self, path: str, new: State) -> bool:
        """Whether a folder is as it was at the start, and another run's changes made it differ."""
        if new.type is not FileType.FOLDER:
            return False
        base = self._bases.of(f"{self.target}/{path}" if path else self.target)
        return base is not None and new.is_dressed_as(base.state)

    def _with_hard_links(self, found: list[Change]) -> list[Change]:
        """Of the names of one file, all that changed but one are links to that one."""
        if not self._names:
            return found
        changed = {change.path: change for change in found}
        for names in self._names.values():
            # Best a name that did not change, then one the host has, then the first.
            names.sort(key=lambda n: (n in changed, n in changed and changed[n].old is None, n))
            first = names[0]
            there = self.old(first)
            for name in names[1:]:
                change = changed.get(name)
                old = change.old if change is not None else self.old(name)
                if first not in changed and _is_linked(there, old):
                    changed.pop(name, None)
                    continue
                # Of equal files that became one, that alone is what changed.
                new = change.new if change is not None else self._state_inside(name)
                if new is not None:
                    changed[name] = Change(ChangeKind.HARD_LINK, self.target, name, old, new, first)
        return list(changed.values())

    def _state_inside(self, path: str) -> State | None:
        facts = self.upper.facts(path)
        return None if facts is None else self.new(path, facts)

    def _gone(self, path: str, old: State) -> Iterator[Change]:
        """A deletion, and of a folder everything in it; hidden things stay, and so their folder."""
        if old.type is not FileType.FOLDER:
            yield Change(ChangeKind.DELETED, self.target, path, old, None)
            return
        yield from self._gone_below(path)
        if self._holds_hidden(path):
            self.notes.append(f"{path} cannot go: it holds what the policy hid")
        else:
            yield Change(ChangeKind.DELETED, self.target, path, old, None)

    def _gone_below(self, path: str) -> Iterator[Change]:
        """Everything in a folder of the host's, as deleted."""
        assert self.lower is not None  # noqa: S101 - there is an old state, so there is a folder
        folders = [path]
        while folders:
            folder = folders.pop()
            for name in self._names_that_went(folder):
                below = f"{folder}/{name}"
                old = self.old(below)
                if old is None:
                    continue
                if old.type is FileType.FOLDER:
                    folders.append(below)
                    if self._holds_hidden(below):
                        self.notes.append(f"{below} cannot go: it holds what the policy hid")
                        continue
                yield Change(ChangeKind.DELETED, self.target, below, old, None)

    def _names_that_went(self, folder: str) -> set[str]:
        """What the host has in a folder of which the layer keeps nothing."""
        assert self.lower is not None  # noqa: S101 - who asks has seen the folder there
        try:
            return {*self.lower.names(folder)}
        except PermissionError:
            self.notes.append(f"{folder} was removed, and what was in it cannot be listed")
            return set()

    def _holds_hidden(self, path: str) -> bool:
        return bool(self._hidden) and any(
            hidden.startswith(f"{path}/") for hidden in self._existing_hidden()
        )

    def old(self, path: str) -> State | None:
        if self.lower is None or self._is_hidden(path):
            return None
        try:
            return self.lower.state(path)
        except PermissionError:
            self._unseen.add(path)
            return None
        except OSError:
            return None  # a step on the way is a link: nothing of ours

    def new(self, path: str, facts: os.stat_result) -> State | None:
        try:
            state = self.upper.state_of(path, facts)
        except FileNotFoundError:
            return None
        mode = self._modes.get(f"{self._index}.upper/{path}") if self._modes else None
        if mode is None and self._layer.traits.nobody is None:
            return state
        from dataclasses import replace

        if mode is not None:
            state = replace(state, mode=mode)
        return self._owned(path, state)

    def _owned(self, path: str, state: State) -> State:
        """With the owner it would have on the host, in a layer that belongs to nobody.

        Root makes nothing in there: what seems to be root's was nobody's, in a folder shown with
        both trading places.
        """
        if self._layer.traits.nobody is None or state.uid not in (self._layer.traits.nobody, 0):
            return state
        from dataclasses import replace

        like = self.old(path) or self.old("")
        return state if like is None else replace(state, uid=like.uid, gid=like.gid)

    def _list(self, folder: str) -> list[str]:
        try:
            names = self.upper.names(folder)
            if names:  # of a folder that may be read but not entered, nothing more can be seen
                self.upper.facts(f"{folder}/{names[0]}" if folder else names[0])
            return names
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError:
            facts = self.upper.facts(folder)
            if self._live or facts is None:
                self.notes.append(f"{folder} is closed while the sandbox lives")
                return []
            inner = f"{self._index}.upper/{folder}"
            mode = stat.S_IMODE(facts.st_mode)
            # (the folder itself by its descriptor alone: a step more would need its own rights)
            place = self.upper.place(folder) if folder else Place(self.upper.folder(""))
            closed.open_up(self._layer.path, inner, place, mode)
            self._modes = closed.modes(self._layer.path)
            self.upper.forget()
            return self.upper.names(folder)

    def _is_hidden(self, path: str) -> bool:
        return bool(self._hidden) and any(
            path == hidden or path.startswith(f"{hidden}/") for hidden in self._hidden
        )

    def _existing_hidden(self) -> list[str]:
        return [
            hidden
            for hidden in self._hidden
            if self.lower is not None and self.lower.facts(hidden) is not None
        ]

    def is_opaque(self, path: str) -> bool:
        return self._mark("opaque", path) == b"y"

    def _mark(self, name: str, path: str) -> bytes | None:
        place = self.upper.place(path)
        try:
            attribute = f"{self._layer.traits.marks}.overlay.{name}"
            return os.getxattr(place, attribute, follow_symlinks=False)
        except OSError:
            return None

    def _same_bytes(self, path: str, old: State, new: State, source: str | None = None) -> bool:
        """Whether a file has what the host has there, or in ``source``."""
        if old.size != new.size:
            return False
        if old.size == 0:
            return True
        assert self.lower is not None  # noqa: S101 - there is an old state
        try:
            with self.lower.open(source or path) as before, self.open_new(path) as after:
                return extents.same(before, after)
        except OSError:
            return source is None and self._was_applied(path, old, new)

    def _lists_the_same(self, path: str) -> bool:
        """Whether it is an index of git's that lists just what the host's lists.

        Git writes it anew whenever it looks, here or there: that is no one's change.
        """
        if self.lower is None or not _git_index.is_index(f"{self.target}/{path}"):
            return False
        try:
            with self.lower.open(path) as before, self.open_new(path) as after:
                return _git_index.same_listing(before, after)
        except OSError:
            return False

    def _was_applied(self, path: str, old: State, new: State) -> bool:
        """Of a file that cannot be read: whether it is what podbot made of this very one.

        What cannot be read cannot be said to be the same otherwise.
        """
        where = f"{self.target}/{path}"
        return new.looks_like(old) and any(
            deed.layer_id == self._layer.id
            and row.left == old.identity
            and new.ctime_ns < deed.ended
            for row, deed in self._ledger.at(where)
        )

    def _is_unseen(self, path: str) -> bool:
        """Whether the host may have it, in a folder that is closed to us."""
        if self._unseen and path.rpartition("/")[0] in self._unseen:
            self._unseen.add(path)  # outer paths are asked for first
        return path in self._unseen

    def _was_put_in(self, path: str, new: State) -> bool:
        """Of something in a host folder that is closed to us: whether podbot put it there from
        this layer, and nobody was in there since: whoever lets himself in touches the folder.
        """
        where = f"{self.target}/{path}"
        done = self._ledger.at(where)
        if not done or self.lower is None:
            return False
        row, deed = done[-1]
        if row.left is None or deed.layer_id != self._layer.id or new.ctime_ns >= deed.ended:
            return False
        above = path
        while (above := above.rpartition("/")[0]) and above in self._unseen:
            pass
        shut = self.lower.state(above)
        return shut is not None and any(
            row.left == shut.identity and later.ended >= deed.ended
            for row, later in self._ledger.at(f"{self.target}/{above}" if above else self.target)
        )

    # Contents

    def open_new(self, path: str) -> BinaryIO:
        """A file of the upper layer; one that the guest closed is opened for a moment."""
        return FileIO(self.new_descriptor(path), "rb")

    def new_descriptor(self, path: str) -> int:
        """The same as a bare descriptor."""
        try:
            return self.upper.descriptor(path)
        except PermissionError:
            facts = self.upper.facts(path)
            if facts is None or not stat.S_ISREG(facts.st_mode):
                raise
            place = self.upper.place(path)
            os.chmod(place, stat.S_IMODE(facts.st_mode) | 0o400, follow_symlinks=False)
            try:
                return self.upper.descriptor(path)
            finally:
                os.chmod(place, stat.S_IMODE(facts.st_mode), follow_symlinks=False)


class _LayerContents:
    """The bytes of both sides of a layer's changes."""

    def __init__(self, parts: dict[str, Part]):
        self._parts = parts

    def open_old(self, change: Change) -> BinaryIO:
        lower = self._parts[change.target].lower
        if lower is None:
            raise FileNotFoundError(change.target)
        renamed = change.kind is ChangeKind.RENAMED and change.source is not None
        return lower.open(change.source if renamed and change.source else change.path)

    def open_new(self, change: Change) -> BinaryIO:
        return self._parts[change.target].open_new(change.path)

    def new_descriptor(self, change: Change) -> int:
        return self._parts[change.target].new_descriptor(change.path)


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
