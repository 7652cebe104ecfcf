"""Carrying out a plan: what is new is staged, then every move, then what the folders get.

Nothing is touched before all that is new is whole and on the disk, and this returns when everything
is. Stops at the first thing that is not as planned, without tidying up: taking back what was done
is `backward`, which needs nothing from here. What is replaced is checked after it was taken out,
when nobody can swap it any more.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from typing import BinaryIO

from podbot.changes import progress
from podbot.changes.applying import _placing, journal
from podbot.changes.applying._placing import Named
from podbot.changes.applying._site import Site, Spot
from podbot.changes.applying.moves import Folder, Move
from podbot.changes.diffs.text import shown_name
from podbot.changes.model import FILE, FOLDER, State
from podbot.changes.tree import Tree
from podbot.frozen import dataclass, field, replace

_NO_LINK = frozenset({errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.EOPNOTSUPP})

Source = Callable[[Move], tuple[BinaryIO | int, State | None]]
"""Opens what a move's file is copied from, with the state that must have, if that matters."""


class MovedOnError(Exception):
    """The host changed something while it was being replaced; the message names it."""


@dataclass(slots=True)
class Result:
    """What the host has after a plan was carried out: by move, and for each folder of the plan.

    ``copied`` are the moves whose old thing is in the store as a copy, and still beside its place.
    """

    after: dict[int, State | None] = field(default_factory=dict)
    folders: list[State | None] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)


def carry_out(site: Site, source: Source) -> Result:
    """Make every move of the site's plan. Raises `OSError` and `MovedOnError`."""
    return _Forward(site, source).run()


class _Forward:
    def __init__(self, site: Site, source: Source):
        self._site, self._plan, self._source = site, site.plan, source
        self._layout = site.layout
        self._made: dict[int, tuple[int, int]] = {}
        self._linked: set[tuple[int, int]] = set()  # files that got another name, and so a ctime
        self._bare: dict[tuple[int, str], bool] = {}  # whether new files in a folder get no xattrs
        self._result = Result()

    def run(self) -> Result:
        self._site.touched = set()
        open_up(self._site, must=True)
        self._for_each(self._stage_first)
        self._site.sync_staged()
        self._for_each(self._make)
        self._survey()
        self._finish_folders()
        self._site.sync()
        return self._result

    def _for_each(self, do: Callable[[Move], None]) -> None:
        moves = self._plan.moves
        for move in progress.counted(moves, "applying", len(moves)):
            try:
                do(move)
            except OSError as error:
                _name(error, self._plan.where(move))
                raise

    # Moves

    def _stage_first(self, move: Move) -> None:
        """Make what is new, before anything is touched; links are made when there is what to."""
        if move.new is not None and not move.in_place and move.link_to is None:
            self._stage(move, self._site.staging(move), move.new)

    def _make(self, move: Move) -> None:
        if self._layout.is_inner(move):
            return  # it came with its folder
        spot = self._site.spot(move)
        if move.in_place:
            self._change(move, spot, move.new)
        elif move.new is None:
            self._take(move, spot)
        else:
            self._place(move, spot, move.new)

    def _change(self, move: Move, spot: Spot, new: State | None) -> None:
        with _placing.handle(*spot.place) as fd:
            facts = os.fstat(fd)
            if new is None or not self._is_untouched(facts, move.was):
                raise self._moved_on(move)
            self._touch(move)
            journal.step("change attributes")
            _placing.dress(_placing.by_handle(fd), facts, new)
            self._made[move.number] = (facts.st_dev, facts.st_ino)

    def _take(self, move: Move, spot: Spot) -> None:
        facts = _placing.facts_of(*spot.place)
        if facts is None or not self._is_untouched(facts, move.was):
            raise self._moved_on(move)
        if move.was is not None and move.was.type is FOLDER:
            self._touch(move)
            journal.step("remove a folder")
            self._remove_folder(move, spot.folder, spot.name)
            return
        self._touch(move)
        journal.step("take out")
        _placing.put(spot.place, spot.staged)
        if not self._has_taken(move, spot):
            _placing.put(spot.staged, spot.place)
            self._untouched(move)
            raise self._moved_on(move)
        self._keep(move, spot)

    def _touch(self, move: Move) -> None:
        """Note, before it is done, that a path is touched, and with it what comes with it."""
        if self._site.touched is not None:
            self._site.touched.add(move.number)
            self._site.touched.update(inner.number for inner in self._layout.coming_with(move))

    def _untouched(self, move: Move) -> None:
        if self._site.touched is not None:
            self._site.touched.discard(move.number)
            self._site.touched.difference_update(
                inner.number for inner in self._layout.coming_with(move)
            )

    def _place(self, move: Move, spot: Spot, new: State) -> None:
        if move.link_to is not None:
            self._stage(move, spot.staged, new)
        if move.was is None:
            self._touch(move)
            journal.step("put in place")
            try:
                _placing.put(spot.staged, spot.place)
            except OSError as error:
                if error.errno != errno.EEXIST:
                    raise
                self._untouched(move)
                raise self._moved_on(move) from None
            return
        facts = _placing.facts_of(*spot.place)
        if facts is None or not self._is_untouched(facts, move.was):
            raise self._moved_on(move)
        self._touch(move)
        journal.step("swap")
        _placing.swap(spot.staged, spot.place)
        if move.was.type is FOLDER:
            journal.step("remove the folder that was replaced")
            try:
                self._remove_folder(move, spot.folder, spot.temp)
            except MovedOnError:
                _placing.swap(spot.staged, spot.place)
                self._untouched(move)
                raise
            return
        if not self._has_taken(move, spot):
            _placing.swap(spot.staged, spot.place)
            self._untouched(move)
            raise self._moved_on(move)
        self._keep(move, spot)

    def _stage(self, move: Move, to: Named, new: State) -> None:
        journal.step("stage")
        self._site.staged.add(move.number)
        try:
            if move.link_to is not None and self._link(move, to, move.link_to):
                pass
            elif new.type is FILE:
                self._make_file(move, to, new)
                return
            else:
                _placing.make_other(to, new)
        except FileExistsError:
            self._site.foreign.add(move.number)
            raise
        except _placing.SourceChangedError:
            where = self._where(move)
            raise MovedOnError(f"{where} was changed in the layer since it was looked at") from None
        facts = os.stat(to[1], dir_fd=to[0], follow_symlinks=False)
        self._made[move.number] = (facts.st_dev, facts.st_ino)

    def _make_file(self, move: Move, to: Named, new: State) -> None:
        above = (move.target, move.path.rpartition("/")[0])
        bare = self._bare.get(above)
        # What is not staged with all the others is not waited for with them either.
        durable = self._site.is_small or move.link_to is not None
        file, seen = self._source(move)
        try:
            facts = _placing.make_file(to, new, file, seen, bare=bare is True, durable=durable)
        finally:
            os.close(file) if isinstance(file, int) else file.close()
        self._made[move.number] = (facts.st_dev, facts.st_ino)
        if bare is None:
            self._bare[above] = not _placing.default_acl(to[0])

    def _link(self, move: Move, to: Named, source: str) -> bool:
        """Whether it could be made a link; who may not link to a file gets a copy of his own."""
        folder, name = self._site.tree(move).parent(source)
        try:
            os.link(name, to[1], src_dir_fd=folder, dst_dir_fd=to[0], follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return False
        facts = os.stat(to[1], dir_fd=to[0], follow_symlinks=False)
        if _placing.type_of(facts) is not FILE:
            raise self._moved_on(move)
        self._linked.add((facts.st_dev, facts.st_ino))
        return True

    def _is_untouched(self, facts: os.stat_result, state: State | None) -> bool:
        """Exactly what was planned for; other names of it may have come and gone."""
        if state is None:
            return False
        if state.type is FOLDER:
            return _placing.is_same_object(facts, state) and _placing.type_of(facts) is FOLDER
        return _placing.is_same(facts, state) and (
            facts.st_ctime_ns == state.ctime_ns
            or state.links > 1
            or (facts.st_dev, facts.st_ino) in self._linked
        )

    def _has_taken(self, move: Move, spot: Spot) -> bool:
        """Whether what was taken out is what should have been; being moved changed its ctime."""
        facts = _placing.facts_of(*spot.staged)
        return facts is not None and _placing.is_same(facts, move.was)

    def _remove_folder(self, move: Move, folder: int, name: str) -> None:
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            where = self._where(move)
            raise MovedOnError(f"{where} holds something that appeared just now") from None

    def _keep(self, move: Move, spot: Spot) -> None:
        journal.step("keep")
        if not self._site.keep(move, spot):
            self._result.copied.append(move.number)

    def _moved_on(self, move: Move) -> MovedOnError:
        return MovedOnError(f"{self._where(move)} was changed while it was being replaced")

    def _where(self, entry: Move | Folder) -> str:
        return shown_name(self._plan.where(entry))

    # Folders

    def _finish_folders(self) -> None:
        """Give folders their modes and times, the innermost first: some may be closed then."""
        gone = {(m.target, m.path) for m in self._plan.moves if _loses_folder(m)}
        made = {
            (m.target, m.path): m.number
            for m in self._plan.moves
            if m.new is not None and m.new.type is FOLDER
        }
        states: list[State | None] = []
        for note in reversed(self._plan.folders):
            key = (note.target, note.path)
            states.append(None if key in gone else self._finish(note, made.get(key)))
        self._result.folders = states[::-1]

    def _finish(self, note: Folder, number: int | None) -> State:
        fd = self._site.tree(note).folder(note.path)
        have = os.fstat(fd)
        expected = self._made[number] if number is not None else None
        if note.was is not None:
            expected = (note.was.device, note.was.inode)
        if (have.st_dev, have.st_ino) != expected:
            raise MovedOnError(f"{self._where(note)} was replaced meanwhile")
        journal.step("finish a folder")
        place = _placing.by_handle(fd)
        try:
            _finish(place, have, note)
        except OSError as error:
            _name(error, self._plan.where(note))
            raise
        kept = _placing.xattrs(place)
        if note.new is not None and not os.access(place, os.R_OK, effective_ids=True):
            kept = note.new.xattrs  # it is closed now, and tells even its owner nothing
        state = State.of(os.fstat(fd), None, kept)
        if number is not None:
            self._result.after[number] = state
        return state

    # The result

    def _survey(self) -> None:
        """Walk to every path anew: whoever swapped a folder on the way is found out here."""
        with ExitStack() as stack:
            trees = [stack.enter_context(Tree(place.path)) for place in self._plan.places]
            for index, place in enumerate(self._plan.places):
                held = self._site.tree(Folder(index, "", None, None)).facts("")
                found = trees[index].facts("")
                if held is None or found is None or held.st_ino != found.st_ino:
                    raise MovedOnError(f"{place.path} was replaced meanwhile")
            after, made = self._result.after, self._made
            for move in self._plan.moves:
                facts, new, number = trees[move.target].facts(move.path), move.new, move.number
                if facts is None and new is None:
                    after[number] = None
                    continue
                if facts is None or new is None or made.get(number) != (facts.st_dev, facts.st_ino):
                    raise self._moved_on(move)
                after[number] = State.of(facts, new.link, new.xattrs)


LOOK, CHANGE = os.R_OK | os.X_OK, os.R_OK | os.W_OK | os.X_OK


def open_up(
    site: Site,
    only: Collection[tuple[int, str]] | None = None,
    rights: int = CHANGE,
    must: bool = False,
) -> dict[tuple[int, str], int]:
    """Let the owner into folders that are closed to him, for as long as it takes.

    All on the way to what the plan changes, or ``only`` these (target and path). Gives the modes of
    those that had to be opened. One that cannot be opened, as it is someone else's, stays as it
    is: whoever needs it will say so; if it ``must`` be open this raises `OSError` at once.
    """
    opened: dict[tuple[int, str], int] = {}
    if only is None:
        # Of some folders only the mode or the time is changed.
        stay = [note for note in site.plan.folders if note.was is not None]
        only = _on_the_way([*site.plan.moves, *stay])
    for note in site.plan.folders:  # the outer ones come first
        key = (note.target, note.path)
        if key not in only:
            continue
        try:
            place = _placing.by_handle(site.tree(note).folder(note.path))
        except OSError:
            continue  # not made yet, or gone: whoever needs it will say so
        if not os.access(place, rights, effective_ids=True):
            journal.step("open a folder")
            mode = os.stat(place).st_mode & 0o7777
            try:
                os.chmod(place, mode | 0o700)
            except OSError as error:
                if must and not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
                    _name(error, site.plan.where(note))
                    raise
                continue
            opened[key] = mode
    return opened


def _on_the_way(entries: Iterable[Move | Folder]) -> set[tuple[int, str]]:
    """Every folder above these, by target and path."""
    found: set[tuple[int, str]] = set()
    for entry in entries:
        path = entry.path
        while path:
            path = path.rpartition("/")[0]
            if (entry.target, path) in found:
                break
            found.add((entry.target, path))
    return found


def _name(error: OSError, where: str) -> None:
    """Let an error name a path that a person knows, not a descriptor or a temporary name."""
    name = error.filename
    if not isinstance(name, str) or name.startswith("/proc/self/fd/") or name[:1] != "/":
        error.filename, error.filename2 = where, None


def _finish(place: str, have: os.stat_result, note: Folder) -> None:
    time = have.st_mtime_ns if note.mtime_ns is None else note.mtime_ns
    if note.new is not None:
        _placing.dress(place, have, replace(note.new, mtime_ns=time))
        return
    if note.was is not None:
        _placing.set_folder_mode(place, have, note.was.mode)
    _placing.set_time(place, have, time)


def _loses_folder(move: Move) -> bool:
    return move.was is not None and move.was.type is FOLDER
