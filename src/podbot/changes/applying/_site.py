"""The targets of a plan and the folders that keep their old things, all held by descriptor.

What apply and undo share: finding a move's place and its temporary name, and carrying things into
the store and back, by rename on one file system and by copy across two.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple, Self

from podbot.changes.applying import _placing, _syncing, journal
from podbot.changes.applying._placing import Named
from podbot.changes.applying._staging import Layout
from podbot.changes.applying.ledger import Ledger
from podbot.changes.applying.moves import Folder, Move, Plan
from podbot.changes.diffs.text import shown_name
from podbot.changes.model import FILE, FOLDER, Identity, State
from podbot.changes.tree import Tree
from podbot.errors import ChangesError, Kind
from podbot.frozen import replace

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Spot(NamedTuple):
    """Where a move happens.

    ``place`` is where the thing belongs, ``staged`` where it is staged: beside its place, unless
    that folder goes too. ``above`` is the path of its folder in the target.
    """

    place: Named
    staged: Named
    above: str

    @property
    def folder(self) -> int:
        """The folder it belongs in."""
        return self.place[0]

    @property
    def name(self) -> str:
        """Its name there."""
        return self.place[1]

    @property
    def temp_folder(self) -> int:
        """The folder it is staged in."""
        return self.staged[0]

    @property
    def temp(self) -> str:
        """The name it is staged under."""
        return self.staged[1]


def _mount(fd: int) -> tuple[int, str]:
    """The file system and the mount of it that a descriptor is on: things move only within both."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
        mount = next((line for line in lines if line.startswith("mnt_id:")), "")
    return os.fstat(fd).st_dev, mount


class Site:
    """Where a plan is carried out. A tree is None if its target cannot be opened any more."""

    def __init__(self, plan: Plan, trees: Sequence[Tree | None]):
        self.plan, self._trees = plan, trees
        self._stores = [os.open(place.kept, _FOLDER) for place in plan.places]
        self._far = [
            tree is None or _mount(fd) != _mount(tree.folder(""))
            for fd, tree in zip(self._stores, trees, strict=True)
        ]
        self._kept_copies: dict[tuple[int, int], str] = {}
        self._shelves: set[tuple[int, int]] = set()  # those that were made, by target
        self._brought: dict[tuple[int, int], tuple[Move, int]] = {}
        self._waiting: dict[tuple[int, int], tuple[Move, int]] = {}
        self._names: dict[int, dict[int, list[str]]] = {}
        self._ledgers: dict[int, Ledger] = {}
        self._leaving = {
            (move.target, move.path)
            for move in plan.moves
            if move.was is not None and move.was.type is FOLDER
        }
        self.touched: set[int] | None = None
        """The moves that touched their paths, None if that is not known, as after a crash."""
        self.staged: set[int] = set()
        """Moves whose new thing, or old one that is a copy, waits to be put in place."""
        self.foreign: set[int] = set()
        """Moves whose temporary name someone else has taken."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._stores:
            os.close(fd)

    def tree(self, entry: Move | Folder) -> Tree:
        """The target something lies in; `OSError` if it cannot be opened."""
        tree = self._trees[entry.target]
        if tree is None:
            target = self.plan.places[entry.target].path
            raise FileNotFoundError(errno.ENOENT, "the target is not there", target)
        return tree

    def spot(self, move: Move) -> Spot:
        """Its place. Good for as long as it is kept, whatever else is looked for meanwhile."""
        tree = self._trees[move.target] or self.tree(move)
        above, _, name = move.path.rpartition("/")
        folder = beside = tree.folder(above)
        if move.new is None and (move.target, above) in self._leaving:
            beside = tree.folder(self.staging_folder(move))
        return Spot((folder, name), (beside, journal.temporary(self.plan, move)), above)

    @cached_property
    def layout(self) -> Layout:
        """What waits where until it is put in place."""
        return Layout(self.plan)

    def staging(self, move: Move) -> Named:
        """Where something new waits before it is put in place."""
        if self.layout.is_inner(move):
            return self.tree(move).folder(self.layout.folder_of(move)), move.path.rpartition("/")[2]
        folder = self.tree(move).folder(self.staging_folder(move))
        return folder, journal.temporary(self.plan, move)

    def remove_staged(self, move: Move, thing: Named) -> None:
        """Remove what waits under a temporary name: a new folder with what was to come with it."""
        facts = _placing.facts_of(*thing)
        if facts is not None and _placing.type_of(facts) is FOLDER:
            self.tree(move).forget()  # what was staged before may be elsewhere now
            for inner in reversed(self.layout.coming_with(move)):
                with suppress(FileNotFoundError):
                    _placing.remove(*self.staging(inner))
        _placing.remove(*thing)

    def staging_folder(self, move: Move) -> str:
        """The folder its things are staged in: its own, or the next above that stays."""
        above = move.path.rpartition("/")[0]
        while move.new is None and (move.target, above) in self._leaving:
            above = above.rpartition("/")[0]
        return above

    def refuse_if_not_ours(self, remedy: str) -> None:
        """Raise `ChangesError` if a folder that changes can neither be written nor opened.

        Nothing is touched for that. Folders that are not there yet are not looked at.
        """
        keys: dict[tuple[int, str], Move | Folder] = {
            (move.target, above): move
            for move in self.plan.moves
            if not move.in_place
            for above in (move.path.rpartition("/")[0], self.staging_folder(move))
        }
        dressed = (note for note in self.plan.folders if note.was and note.new)
        keys |= {(note.target, note.path): note for note in dressed}
        for (target, above), entry in keys.items():
            try:
                place = _placing.by_handle(self.tree(entry).folder(above))
                facts = os.stat(place)
                if os.access(place, os.W_OK | os.X_OK, effective_ids=True):
                    continue
                is_read_only = bool(os.statvfs(place).f_flag & os.ST_RDONLY)
            except OSError:
                continue  # made by the plan, or told by whoever needs it
            # Closed to its owner, who may open it; one that nobody may write into is not.
            if facts.st_uid == os.geteuid() and not is_read_only and facts.st_mode & 0o300 != 0o300:
                continue
            where = shown_name(self.plan.where(Folder(target, above, None, None)))
            reason = "can only be read" if is_read_only else "is not yours to write"
            raise ChangesError(f"{where} {reason}", kind=Kind.PERMISSION, remedy=remedy)

    def has_kept(self, move: Move) -> bool:
        """Whether the store has what was at its path."""
        return self.kept_facts(move) is not None

    def kept_facts(self, move: Move) -> os.stat_result | None:
        """What `lstat` says of what was at its path, if the store has it."""
        return _placing.facts_of(self._stores[move.target], self.plan.kept_as(move))

    def is_far(self, move: Move) -> bool:
        """Whether its store may be on another file system, so that things are copied."""
        return self._far[move.target]

    def kept(self) -> set[tuple[int, str]]:
        """What the store has, by target and `Plan.kept_as`, looked at once."""
        found: set[tuple[int, str]] = set()
        for target, fd in enumerate(self._stores):
            place = _placing.by_handle(fd)
            names = os.listdir(place)
            if self.plan.shelf:
                names = [f"{on}/{name}" for on in names for name in os.listdir(f"{place}/{on}")]
            found |= {(target, name) for name in names}
        return found

    def kept_elsewhere(self, target: int) -> int:
        """Bytes the store has for a target if it lies on another file system, else 0."""
        tree = self._trees[target]
        if tree is None or not self._far[target]:
            return 0
        kept = (
            self.kept_facts(move)
            for move in self.plan.moves
            if move.target == target and move.was is not None
        )
        by_inode = {facts.st_ino: facts.st_blocks * 512 for facts in kept if facts is not None}
        return sum(by_inode.values())

    def lacks_room(self, target: int, freed: int = 0) -> bool:
        """Whether what is kept elsewhere does not fit into a target once so much is ``freed``."""
        needed, tree = self.kept_elsewhere(target), self._trees[target]
        if not needed or tree is None:
            return False
        there = os.fstatvfs(tree.folder(""))
        return there.f_bavail * there.f_frsize + freed < needed

    def keep(self, move: Move, spot: Spot) -> bool:
        """Carry what was taken out into the store; False if it had to be copied, and is both."""
        try:
            return self._keep(move, spot)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):  # only the store is written to
                error.filename, error.filename2 = self.plan.places[move.target].kept, None
            raise

    def _keep(self, move: Move, spot: Spot) -> bool:
        store, name = self._stores[move.target], self.plan.kept_as(move)
        if self.plan.shelf:
            self._make_shelf(move.target, move.number // self.plan.shelf)
        try:
            os.rename(spot.temp, name, src_dir_fd=spot.temp_folder, dst_dir_fd=store)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            return True
        if self.has_kept(move):
            return False
        facts = os.stat(spot.temp, dir_fd=spot.temp_folder, follow_symlinks=False)
        first = self._kept_copies.setdefault((facts.st_dev, facts.st_ino), name)
        if first == name:
            _placing.copy(spot.staged, (store, name), durable=self.is_small)
        else:
            os.link(first, name, src_dir_fd=store, dst_dir_fd=store, follow_symlinks=False)
        return False

    def _make_shelf(self, target: int, shelf: int) -> None:
        if (target, shelf) not in self._shelves:
            with suppress(FileExistsError):
                os.mkdir(str(shelf), 0o700, dir_fd=self._stores[target])
            self._shelves.add((target, shelf))

    def bring_at_once(self, move: Move, spot: Spot) -> bool:
        """Carry it back from the store, if it can be moved and its temporary name is free."""
        if self.is_far(move):
            return False
        try:
            _placing.put((self._stores[move.target], self.plan.kept_as(move)), spot.staged)
        except OSError:
            return False  # whatever the reason: it is looked at one by one
        return True

    def bring(self, move: Move, to: Named) -> None:
        """Carry it back from the store to its temporary name, which must be free."""
        store, name = self._stores[move.target], self.plan.kept_as(move)
        try:
            os.rename(name, to[1], src_dir_fd=store, dst_dir_fd=to[0])
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            if not self._linked_to_brought(move, to) and not self._linked_to_other(move, to):
                mode = None if move.was is None else move.was.mode
                _placing.copy((store, name), to, durable=self.is_small, mode=mode)
                self._note_waiting(move, to)
        self.staged.add(move.number)

    def _note_waiting(self, move: Move, copy: Named) -> None:
        """Remember a copy that waits, so that other names of it become links to it."""
        kept, there = self.kept_facts(move), _placing.facts_of(*copy)
        if kept is not None and there is not None and kept.st_nlink > 1:
            self._waiting.setdefault((move.target, kept.st_ino), (move, there.st_ino))

    def note_brought(self, move: Move, spot: Spot) -> None:
        """Remember a copy that is in its place, so that other names of it become links to it."""
        kept = self.kept_facts(move)
        there = _placing.facts_of(*spot.place)
        if kept is not None and there is not None and kept.st_nlink > 1:
            self._brought.setdefault((move.target, kept.st_ino), (move, there.st_ino))

    def _linked_to_brought(self, move: Move, to: Named) -> bool:
        kept = self.kept_facts(move)
        key = move.target, kept.st_ino if kept is not None else 0
        for known, is_waiting in ((self._waiting, True), (self._brought, False)):
            first, inode = known.get(key, (None, 0))
            if first is None:
                continue
            try:
                other = self.staging(first) if is_waiting else self.spot(first).place
            except OSError:
                continue  # its folder went meanwhile
            facts = _placing.facts_of(*other)
            if facts is not None and facts.st_ino == inode:
                _link(other, to)
                return True
        return False

    def _linked_to_other(self, move: Move, to: Named) -> bool:
        """Link to a name the file had besides and still has, so that they are one file again."""
        was = move.was
        if was is None or was.type is not FILE or was.links < 2:
            return False
        tree = self.tree(move)
        device, inode, _ = self._known_as(move.target, was)
        known = replace(was, device=device, inode=inode)
        for path in self._other_names(move.target).get(inode, ()):
            try:
                facts = tree.facts(path)
                if facts is None or not _placing.is_same(facts, known):
                    continue
                _link(tree.parent(path), to)
            except PermissionError:
                continue  # someone else's file, or in a folder that is closed
            return True
        return False  # a copy has to do

    def _known_as(self, target: int, was: State) -> Identity:
        """What a file is by now: another undo may have put a copy in the place of its last name."""
        ledger = self._ledgers.setdefault(target, Ledger(self.plan.places[target].path))
        return ledger.latest(was.identity)

    def _other_names(self, target: int) -> dict[int, list[str]]:
        """Where in a target the files are that had several names, by inode; looked for once."""
        if target in self._names:
            return self._names[target]
        wanted = {
            self._known_as(target, move.was)[1]
            for move in self.plan.moves
            if move.target == target and move.was is not None and move.was.links > 1
        }
        found: dict[int, list[str]] = {}
        tree = self._trees[target]
        waiting = [""] if tree is not None else []
        while waiting and tree is not None:
            above = waiting.pop()
            with suppress(OSError), os.scandir(_placing.by_handle(tree.folder(above))) as entries:
                for entry in entries:
                    path = f"{above}/{entry.name}" if above else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
                    elif entry.inode() in wanted and not entry.name.startswith(journal.PREFIX):
                        found.setdefault(entry.inode(), []).append(path)
        self._names[target] = found
        return found

    # What is on the disk

    @cached_property
    def is_small(self) -> bool:
        """Whether each file is waited for by itself, instead of everything on a disk at once."""
        plan = self.plan
        size = len(plan.moves) + len(plan.folders)
        # Some file systems write a file's attributes with the file only, which must be opened then.
        return size <= _syncing.FEW and not any(move.in_place for move in plan.moves)

    def sync_staged(self) -> None:
        """Wait until what waits to be put in place is on the disk."""
        if self.staged and not self.is_small:  # else each file was waited for
            journal.step("sync what is staged")
            self._sync_all(stores=False)

    def sync(self) -> None:
        """Wait until everything that was done to targets and stores is on the disk."""
        journal.step("sync")
        if not self.is_small or not self._sync_each():
            self._sync_all(stores=True)

    def _sync_all(self, stores: bool) -> None:
        fds: list[int] = [tree.folder("") for tree in self._trees if tree is not None]
        if stores:
            fds += self._stores
        for fd in {os.fstat(fd).st_dev: fd for fd in fds}.values():
            _syncing.file_system(_placing.by_handle(fd))

    def _sync_each(self) -> bool:
        """Whether that was possible: a folder that may not be listed cannot be waited for."""
        try:
            for note in self.plan.folders:
                tree = self._trees[note.target]
                if tree is not None:
                    with suppress(FileNotFoundError, NotADirectoryError):
                        _syncing.folder(_placing.by_handle(tree.folder(note.path)))
            for fd in self._stores:
                _syncing.folder(_placing.by_handle(fd))
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP):
                return False
            raise
        return True


def _link(thing: Named, to: Named) -> None:
    os.link(thing[1], to[1], src_dir_fd=thing[0], dst_dir_fd=to[0], follow_symlinks=False)
