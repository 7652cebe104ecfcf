"""An application against the host as it is now: what is not as it was left, and what that means.

Looks at everything before an undo touches anything. What has other times, and else the very bytes
and attributes that were left, is as it was left: the layer still has those bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import BinaryIO, NamedTuple

from podbot import kernel
from podbot.changes import _git_index, _lineage
from podbot.changes._lineage import Lineage
from podbot.changes.applying import _placing
from podbot.changes.applying._forward import Result
from podbot.changes.applying._remembering import same_looks
from podbot.changes.applying._site import Site
from podbot.changes.applying.journal import Journal
from podbot.changes.applying.ledger import Ledger
from podbot.changes.applying.moves import Folder, Move
from podbot.changes.diffs.text import shown_name
from podbot.changes.model import FILE, FOLDER, Identity, State
from podbot.changes.tree import Tree
from podbot.errors import ChangesError, Kind
from podbot.frozen import replace
from podbot.sandbox import extents, layers
from podbot.sandbox.layers import mounts

Ways = tuple[tuple[str, os.stat_result], ...] | None
"""What must be set aside to go on, by path; None if there is no way."""
NOTHING: Ways = ()
_COVERED = "something was mounted there since"


class Clash(NamedTuple):
    """Something that is not as an application left it; ``ways`` is what to set aside for it."""

    entry: Move | Folder
    reason: str
    ways: Ways


class _Left(NamedTuple):
    """A folder an application left: as it was then, what is there now, and whether it is it."""

    note: Folder
    after: State
    now: os.stat_result | None
    is_it: bool


class LayerFiles:
    """The files of the layer that was applied, as long as they are what they were then."""

    def __init__(self, own: Journal, site: Site):
        self.journal = own.id
        self._layer = layers.get(own.layer_id)
        self._site = site
        self._trees: dict[str, Tree] = {}

    def has(self, move: Move, after: State, facts: os.stat_result) -> bool:
        """Whether what is there now has the bytes that were left, and looks as it did then."""
        new, tree = move.new, self._site.tree(move)
        if new is None or not same_looks(facts, after):
            return False
        return self._is_all_of(move, new, tree, facts)

    def has_again(self, move: Move, facts: os.stat_result) -> bool:
        """Whether all that was left is there once more but for its times: saved, say."""
        new = move.new
        if new is None or new.type is FOLDER or move.in_place or move.link_to is not None:
            return False
        if new.links > 1 or facts.st_nlink > 1:
            return False  # which of them are one file is a part of what was left
        return self._is_all_of(move, new, self._site.tree(move), facts)

    def _is_all_of(self, move: Move, new: State, tree: Tree, facts: os.stat_result) -> bool:
        """Whether what is there has the bytes and attributes of what was applied."""
        if not tree.state_of(move.path, facts).is_dressed_as(new):
            return False
        if new.type is not FILE:
            return True  # a link is compared with all that is seen of it
        if facts.st_size != new.size:
            return False
        try:
            with self._open(move, new) as then, tree.open(move.path) as now:
                return extents.same(then, now)
        except OSError:
            return False

    def has_listed(self, move: Move, facts: os.stat_result) -> bool:
        """Whether it is an index that lists what the one did that was left there."""
        new, where = move.new, self._site.plan.where(move)
        if new is None or not _git_index.is_index(where):
            return False
        if facts.st_nlink > 1 or not new.type is _placing.type_of(facts) is FILE:
            return False
        try:
            with self._open(move, new) as then, self._site.tree(move).open(move.path) as now:
                return _git_index.same_listing(then, now)
        except OSError:
            return False

    def _open(self, move: Move, new: State) -> BinaryIO:
        """The file that was applied; `OSError` if it is not there any more as it was."""
        target = self._site.plan.places[move.target].path
        if self._layer is None or target not in self._layer.targets:
            raise FileNotFoundError(target)
        upper = self._trees.get(target)
        if upper is None:
            upper = Tree(self._layer.upper(self._layer.targets.index(target)))
            self._trees[target] = upper
        inner = upper.facts(move.path)
        if inner is None or not _placing.is_same(inner, new):
            raise FileNotFoundError(move.path)
        return upper.open(move.path)


class Check:
    """An application against the host as it is now."""

    def __init__(
        self, site: Site, result: Result, opened: Mapping[tuple[int, str], int], layer: LayerFiles
    ):
        self._site, self._plan, self._result = site, site.plan, result
        self._layer = layer
        self.instead: dict[int, State] = {}
        """What is there, by move, that is another file and yet what was left: an index of git's."""
        self._opened = opened
        self._kept = site.kept()
        self._ledgers = [Ledger(place.path) for place in self._plan.places]
        self._folder_is_there: dict[tuple[int, str], bool] = {}
        self._mounts = [mounts.all_below(place.path) for place in self._plan.places]
        self._brought = {(m.target, m.path) for m in self._plan.moves if m.new is not None}
        self._returning = {
            (m.target, m.path)
            for m in self._plan.moves
            if m.was is not None and m.was.type is FOLDER
        }

    def clashes(self) -> list[Clash]:
        """What is not as the application left it, in the order of the plan."""
        found = [clash for move in self._plan.moves if (clash := self._clash(move)) is not None]
        linked = [move for move in self._plan.moves if _had_other_names(move)]
        if found or linked:
            found = [self._with_run(clash) for clash in found]
            clashing = {clash.entry for clash in found}
            found += self._of_names([move for move in linked if move not in clashing])
        clashing = {clash.entry for clash in found}
        found += self._of_new_names([move for move in self._plan.moves if move not in clashing])
        found += [clash for note, after in self._notes() for clash in self._of(note, after)]
        return [*found, *self._lost()]

    @cached_property
    def _later(self) -> Lineage:
        """What was applied after it."""
        return _lineage.since(self._plan)

    def _with_run(self, clash: Clash) -> Clash:
        """The same, naming the run whose application lies on top, if it is one."""
        entry = clash.entry
        if not isinstance(entry, Move):
            return clash
        run = self._later.laid_on(self._plan.where(entry), self._result.after.get(entry.number))
        return clash if run is None else clash._replace(reason=_on_top(run))

    def _of_names(self, moves: Iterable[Move]) -> Iterator[Clash]:
        """Files that were one with another, which a later run took: it must come back first."""
        for move in moves:
            run = self._later.took_a_name(move.was) if move.was is not None else None
            if run is not None:
                reason = f"run {run} changed or removed another name of it: undo that first"
                yield Clash(move, reason, None)

    def _of_new_names(self, moves: Iterable[Move]) -> Iterator[Clash]:
        """Files that a later application made one with another, which would change or be parted."""
        for move in moves:
            after = self._result.after.get(move.number)
            if after is None or after.type is not FILE:
                continue
            try:
                facts = self._site.tree(move).facts(move.path)
            except OSError:
                continue  # it cannot be reached, which is a clash by itself
            if facts is None or facts.st_nlink == 1:
                continue
            now = (facts.st_dev, facts.st_ino, facts.st_ctime_ns)
            since = int(self._plan.created * 1e9)
            where, ledger = self._plan.where(move), self._ledgers[move.target]
            found = ledger.named_since(where, now, since, self._layer.journal)
            if found is not None:
                name = shown_name(os.path.relpath(found[0], self._plan.places[move.target].path))
                reason = f"run {found[1]} made {name} another name of it: undo that first"
                yield Clash(move, reason, None)

    def _clash(self, move: Move) -> Clash | None:
        if self._is_covered(move):
            return Clash(move, _COVERED, None)
        try:
            facts = self._site.tree(move).facts(move.path)
            has_folder = self._has_folder(move)
        except OSError as error:
            return Clash(move, f"it cannot be reached: {error.strerror}", None)
        after = self._result.after.get(move.number)
        if not has_folder:
            reason = "its folder was removed since" if after is None else "it was removed since"
            return Clash(move, reason, None)
        was = move.was
        needs = was is not None and was.type is not FOLDER and not move.in_place
        if needs and (move.target, self._plan.kept_as(move)) not in self._kept:
            return Clash(move, "what was there before is not in the store any more", None)
        if after is None and facts is not None:
            return Clash(move, "something was put there since", self._aside(move, facts))
        if after is not None and facts is None:
            return Clash(move, "it was removed since", None if move.in_place else NOTHING)
        if after is not None and facts is not None and not self._is_as_left(move, after, facts):
            way = None if move.in_place else self._aside(move, facts)
            return Clash(move, "it was changed since", way)
        return None

    def _aside(self, entry: Move | Folder, facts: os.stat_result, path: str = "") -> Ways:
        """What would have to be set aside; nothing if that cannot be done."""
        is_folder, path = _placing.type_of(facts) is FOLDER, path or entry.path
        far = self._site.is_far(Move(-1, entry.target, entry.path, None, None))
        is_mount = any(f"{point}/".startswith(f"{path}/") for point in self._mounts[entry.target])
        return None if is_folder and (far or is_mount) else ((path, facts),)

    def _is_covered(self, entry: Move | Folder) -> bool:
        """Whether something was mounted there since, or on a folder above it in the target.

        What the application left, if it still is there, is beneath and cannot be seen. What was
        mounted at that time already has the folders that were seen then.
        """
        points = [
            point
            for point in self._mounts[entry.target]
            if f"{entry.path}/".startswith(f"{point}/")
        ]
        if not points:
            return False
        known = entry.path
        if isinstance(entry, Move) and not entry.in_place:
            if known in points:
                return True  # nobody could have put it there
            known = known.rpartition("/")[0]
        while known and (entry.target, known) not in self._known:
            known = known.rpartition("/")[0]
        if any(
            point.startswith(f"{known}/" if known else "") and point != known for point in points
        ):
            return True
        after, facts = self._known.get((entry.target, known)), None
        with suppress(OSError):
            facts = self._site.tree(entry).facts(known)
        numbers = (
            () if after is None else (after.identity, self._latest(entry.target, after.identity))
        )
        return facts is None or (facts.st_dev, facts.st_ino) not in [one[:2] for one in numbers]

    @cached_property
    def _known(self) -> dict[tuple[int, str], State]:
        """What every folder was like that was there after the application."""
        both = zip(self._plan.folders, self._result.folders, strict=True)
        return {
            (note.target, note.path): after
            for note, after in both
            if after is not None and after.type is FOLDER
        }

    def _is_as_left(self, move: Move, after: State, facts: os.stat_result) -> bool:
        now = (facts.st_dev, facts.st_ino, facts.st_ctime_ns)
        if after.type is FOLDER:
            return self._is_the_folder(move, after, facts)
        if now in (after.identity, self._latest(move.target, after.identity)):
            return True
        if now[:2] == after.identity[:2] and self._layer.has(move, after, facts):
            return True
        again = self._layer.has_again(move, facts) and self._plan.where(move) not in self._later
        if again or self._layer.has_listed(move, facts):
            # A new file or other times: that is the one to take away.
            self.instead[move.number] = self._site.tree(move).state_of(move.path, facts)
            return True
        return False

    def _is_the_folder(self, entry: Move | Folder, after: State, facts: os.stat_result) -> bool:
        """Whether it is the very folder that was left; its ctime moves with every entry.

        The number of one that is gone may be that of another by now, which was made later.
        """
        if _placing.type_of(facts) is not FOLDER:
            return False
        number = (facts.st_dev, facts.st_ino)
        for known in (after.identity, self._latest(entry.target, after.identity)):
            if number == known[:2]:
                if facts.st_ctime_ns == known[2]:
                    return True
                born = kernel.born_ns(self._site.tree(entry).folder(entry.path))
                if born is None or born <= known[2]:
                    return True
        return False

    def _latest(self, target: int, identity: Identity) -> Identity:
        """What became of a thing that podbot moved away and back since."""
        return self._ledgers[target].latest(identity)

    def _has_folder(self, move: Move) -> bool:
        """Whether the folder it lies in is there, or comes back."""
        key = (move.target, move.path.rpartition("/")[0])
        known = self._folder_is_there.get(key)
        if known is None:
            facts = self._site.tree(move).facts(key[1])
            is_folder = facts is not None and _placing.type_of(facts) is FOLDER
            known = key in self._returning or is_folder
            self._folder_is_there[key] = known
        return known

    def _of(self, note: Folder, after: State) -> Iterator[Clash]:
        tree = self._site.tree(note)
        if note.was is None:
            prefix = f"{note.path}/" if note.path else ""
            foreign = [
                name
                for name in sorted(tree.names(note.path))
                if (note.target, prefix + name) not in self._brought
            ]
            for name in foreign:
                facts = tree.facts(prefix + name)
                if facts is not None:
                    reason = self._put_into(note, prefix + name, facts)
                    yield Clash(note, reason, self._aside(note, facts, prefix + name))
        if note.new is not None:
            now = tree.state(note.path)
            if now is not None and not os.access(
                tree.place(note.path), os.R_OK, effective_ids=True
            ):
                now = replace(now, xattrs=after.xattrs)  # closed: it tells even its owner nothing
            if now is None or not replace(now, mode=self._mode(note)).looks_like(after):
                reason = "its mode or attributes were changed since"
                run = self._left_by(note, note.path, None if now is None else now.identity)
                yield Clash(note, reason if run is None else _on_top(run), None)

    def _put_into(self, note: Folder, path: str, facts: os.stat_result) -> str:
        """Why a folder cannot go that holds what the application did not put there."""
        run = self._left_by(note, path, (facts.st_dev, facts.st_ino, facts.st_ctime_ns))
        who = "was put into it since" if run is None else f"is there by run {run}: undo that first"
        return f"{shown_name(path.rpartition('/')[2])} {who}"

    def _left_by(self, note: Folder, path: str, now: Identity | None) -> str | None:
        """Another run that left what is at a path of the target."""
        where = self._plan.where(replace(note, path=path))
        run = None if now is None else self._ledgers[note.target].left_by(where, now)
        return None if run == self._plan.layer_id else run

    def _notes(self) -> Iterator[tuple[Folder, State]]:
        """Folders that were there after the application and still are."""
        return ((one.note, one.after) for one in self._folders if one.is_it)

    @cached_property
    def _folders(self) -> list[_Left]:
        """Folders that were there after the application, and what is there now."""
        found = []
        for note, after in zip(self._plan.folders, self._result.folders, strict=True):
            if after is None or after.type is not FOLDER:
                continue
            facts, is_it = None, False
            with suppress(OSError):
                facts = self._site.tree(note).facts(note.path)
                is_it = facts is not None and self._is_note(note, after, facts)
            found.append(_Left(note, after, facts, is_it))
        return found

    def _is_note(self, note: Folder, after: State, facts: os.stat_result) -> bool:
        """Whether it is that folder; or one just like it, where the host made it anew."""
        if self._is_the_folder(note, after, facts):
            return True
        if note.was is None or _placing.type_of(facts) is not FOLDER or self._is_covered(note):
            return False
        now = self._site.tree(note).state(note.path)
        return now is not None and now.looks_like(after)

    def _lost(self) -> Iterator[Clash]:
        """Folders that should get their attributes back, and are not there any more."""
        for one in self._folders:
            if one.is_it or one.note.was is None or one.note.new is None:
                continue
            reason = "something else was put there since"
            if one.now is None:
                reason = "it was removed since, or cannot be reached"
            yield Clash(one.note, _COVERED if self._is_covered(one.note) else reason, None)

    def strange(self) -> list[tuple[int, str]]:
        """Folders of the host in the place of those that were there: their attributes are its own.

        What lay in the one that was there before is put back into them.
        """
        return [
            (one.note.target, one.note.path)
            for one in self._folders
            if not one.is_it
            and one.note.was is not None
            and one.now is not None
            and _placing.type_of(one.now) is FOLDER
        ]

    def refuse_if_no_room(self) -> None:
        """Raise if what must be copied back does not fit, even once what was added is gone."""
        for index, place in enumerate(self._plan.places):
            if self._site.lacks_room(index) and self._site.lacks_room(index, self._added(index)):
                needed = self._site.kept_elsewhere(index)
                raise ChangesError(
                    f"there is no room to undo: {shown_name(place.path)} needs {needed} bytes",
                    kind=Kind.DISK_FULL,
                    remedy="make room and try again",
                )

    def _added(self, target: int) -> int:
        """The bytes of files that were added to a target, and are there as they were left."""
        names: dict[int, int] = {}
        freed = 0
        for move in self._plan.moves:
            after = self._result.after.get(move.number)
            if move.target != target or move.was is not None or after is None:
                continue
            with suppress(OSError):
                facts = self._site.tree(move).facts(move.path)
                if facts is not None and _placing.is_same_object(facts, after):
                    names[facts.st_ino] = names.get(facts.st_ino, 0) + 1
                    if names[facts.st_ino] == facts.st_nlink:  # it goes with its last name
                        freed += facts.st_blocks * 512
        return freed

    def natural(self) -> list[tuple[int, str]]:
        """Folders that others put something into since: their time stays what it is."""
        return [
            (note.target, note.path)
            for note, after in self._notes()
            if note.was is not None and self._now(note).st_mtime_ns != after.mtime_ns
        ]

    def modes(self) -> list[tuple[int, str, int]]:
        """Folders whose mode was not the plan's business, and was changed since."""
        return [
            (note.target, note.path, self._mode(note))
            for note, after in self._notes()
            if note.was is not None and note.new is None and self._mode(note) != after.mode
        ]

    def _mode(self, note: Folder) -> int:
        """The mode of a folder, unless it was opened just to look into it."""
        opened = self._opened.get((note.target, note.path))
        return self._now(note).st_mode & 0o7777 if opened is None else opened

    def _now(self, note: Folder) -> os.stat_result:
        return os.fstat(self._site.tree(note).folder(note.path))


def _on_top(run: str) -> str:
    return f"run {run} lies on top: undo that first"


def _had_other_names(move: Move) -> bool:
    was = move.was
    return was is not None and was.type is FILE and was.links > 1 and not move.in_place
