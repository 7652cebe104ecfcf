"""Taking a plan back: from wherever it stands to exactly what was there before.

Needs only the plan, the store and the file system: for each move it finds out where the old thing
is now (in its place, beside it, in the store) and what lies in its place instead. It may be
interrupted anywhere and run again, so it serves failures, crashes and undo alike. What someone
changed since is left alone and told.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Mapping, Sequence

from podbot.changes import progress
from podbot.changes.applying import _placing, journal
from podbot.changes.applying._forward import open_up
from podbot.changes.applying._placing import Named
from podbot.changes.applying._site import Site, Spot
from podbot.changes.applying.moves import Folder, Move
from podbot.changes.diffs.text import shown_name
from podbot.changes.model import FILE, FOLDER, LINK, State
from podbot.frozen import dataclass, field, replace

COARSEST_CLOCK_NS = 2_000_000_000
"""The coarsest time stamps a file system keeps; they are rounded down."""


@dataclass(slots=True)
class Outcome:
    """What could not be taken back: ``left`` as someone changed it, ``failed`` for now.

    ``left_moves`` are the numbers of those left that are moves.
    """

    left: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left_moves: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Applied:
    """What is known of a plan that was carried out: the state of each path after it.

    ``natural`` are folders (target and path) whose time is no longer the one podbot left, and
    ``modes`` those of folders whose mode someone changed since. ``strange`` are folders of the host
    in the place of those that were there then: all attributes of them are the host's.
    """

    after: Mapping[int, State | None]
    natural: Collection[tuple[int, str]] = ()
    modes: Mapping[tuple[int, str], int] = field(default_factory=dict)
    strange: Collection[tuple[int, str]] = ()


def take_back(site: Site, applied: Applied | None = None) -> Outcome:
    """Undo every move that was made. Without ``applied`` the plan may be half carried out."""
    return _Backward(site, applied).run()


class _LeftError(Exception):
    """Someone changed it: it stays."""


class _Backward:
    def __init__(self, site: Site, applied: Applied | None):
        self._site, self._plan, self._applied = site, site.plan, applied
        self._outcome = Outcome()
        self._partial: set[tuple[int, str]] = set()  # folders in which something stays

    def run(self) -> Outcome:
        open_up(self._site)
        # What comes back may be another name of a file in one that was closed, too.
        folders = (note for note in self._plan.folders if note.was and note.new)
        open_up(self._site, {(note.target, note.path) for note in folders})
        for move in progress.counted(self._in_order(), "taking back", len(self._plan.moves)):
            try:
                self._back(move)
            except _LeftError as error:
                self._outcome.left.append(f"{self._where(move)}: {error}")
                self._outcome.left_moves.add(move.number)
                self._partial.add((move.target, move.path.rpartition("/")[0]))
            except OSError as error:
                self._outcome.failed.append(f"{self._where(move)}: {error.strerror or error}")
        for note in reversed(self._plan.folders):
            try:
                self._finish(note)
            except OSError as error:
                self._outcome.failed.append(f"{self._where(note)}: {error.strerror or error}")
        return self._outcome

    def _in_order(self) -> Iterator[Move]:
        """The moves, backwards; copies wait beside their places before any of what was there."""
        moves: Sequence[Move] = self._plan.moves
        if self._applied is not None:
            if any(self._site.lacks_room(target) for target in range(len(self._plan.places))):
                # What was not there goes first, to make room for what was.
                yield from (move for move in reversed(moves) if move.was is None)
                moves = [move for move in moves if move.was is not None]
            self._stage_copies()
        yield from reversed(moves)

    def _back(self, move: Move) -> None:
        try:
            spot = self._site.spot(move)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR) and move.was is None:
                return  # its folder was never made, or is gone with it
            if error.errno == errno.ELOOP and self._is_under_the_old(move):
                return  # where its folder was to come is the link that was there before
            raise
        touched, site = self._site.touched, self._site
        if touched is not None and move.number not in touched:
            # Staged at most: the path itself was not touched.
            is_ours = move.number in site.staged and move.number not in site.foreign
            if is_ours and not site.layout.is_inner(move):
                site.remove_staged(move, spot.staged)
        elif move.in_place:
            self._change_back(move, spot)
        elif move.was is None:
            self._take_away(move, spot)
        elif move.was.type is FOLDER:
            self._folder_back(move, spot, move.was)
            # A descriptor of the folder that was there before would lead nowhere now.
            self._site.tree(move).forget()
            self._clean(move, self._site.spot(move))
        else:
            self._thing_back(move, spot, move.was)

    # What must be copied back

    def _stage_copies(self) -> None:
        """Have all copies from the store beside their places, and on the disk, before any moves."""
        for move in reversed(self._plan.moves):
            was = move.was
            if was is None or was.type is FOLDER or move.in_place or not self._site.is_far(move):
                continue
            try:
                self._stage_copy(move, was)
            except OSError:
                continue  # it is tried again when its turn comes, and told then
        self._site.sync_staged()

    def _stage_copy(self, move: Move, was: State) -> None:
        try:
            spot = self._site.spot(move)
        except (FileNotFoundError, NotADirectoryError):
            pass  # its folder comes back later
        else:
            there = _placing.facts_of(*spot.place)
            if self._is_copy_back(move, there, was):
                self._site.note_brought(move, spot)
                return
            if there is not None and not self._is_ours(move, spot.place, there):
                return
        if not self._site.has_kept(move):
            return
        to = self._site.staging(move)
        journal.step("remove what was staged")
        _placing.remove(*to)
        journal.step("bring back")
        self._site.bring(move, to)

    def _is_under_the_old(self, move: Move) -> bool:
        """Whether it was to come with a folder in whose place still is what was there before."""
        if self._applied is not None or not self._site.layout.is_inner(move):
            return False
        outer = self._plan.moves[self._site.layout.outermost(move)]
        there = _placing.facts_of(*self._site.spot(outer).place)
        return there is not None and self._is_original(outer, there)

    # What was not there

    def _take_away(self, move: Move, spot: Spot) -> None:
        facts = _placing.facts_of(*spot.place)
        if self._applied is None or facts is None:
            self._clean(move, spot)  # what was only staged, or taken out and not yet removed
        if facts is None:
            return
        if not self._is_ours(move, spot.place, facts):
            raise _LeftError("it was changed or put there since, and stays")
        journal.step("take away")
        if _placing.type_of(facts) is FOLDER:
            self._rmdir(spot.folder, spot.name)
            return
        # Taken out first, then looked at again: from here on nobody can swap it.
        _placing.put(spot.place, spot.staged)
        if not self._is_ours(move, spot.staged):
            _placing.put(spot.staged, spot.place)
            raise _LeftError("it was changed just now, and stays")
        journal.step("remove")
        os.unlink(spot.temp, dir_fd=spot.temp_folder)

    # What was there

    def _thing_back(self, move: Move, spot: Spot, was: State) -> None:
        there = _placing.facts_of(*spot.place)
        is_back = there is not None and self._is_original(move, there)  # or never went
        if not is_back and self._is_copy_back(move, there, was):
            self._site.note_brought(move, spot)
            is_back = True
        if is_back:
            self._clean(move, spot)
            self._close_again(spot, was)
            return
        if there is not None and not self._is_ours(move, spot.place, there):
            self._stow(move, spot)
            raise _LeftError(f"it was changed or put there since, and stays{self._kept_as(move)}")
        self._old_to_temp(move, spot)
        if there is None:
            journal.step("put back")
            _placing.put(spot.staged, spot.place)
            self._clean(move, spot)
        else:
            self._swap_back(move, spot)
            if self._applied is None:
                self._clean(move, spot)
        self._close_again(spot, was)
        if self._site.is_far(move):
            self._site.note_brought(move, spot)

    def _close_again(self, spot: Spot, was: State) -> None:
        """A file that was closed to us and open for a copy just when its apply was killed."""
        there = _placing.facts_of(*spot.place)
        if (
            self._applied is None
            and there is not None
            and was.type is FILE
            and _placing.is_same_object(there, was)
            and there.st_mode & 0o7777 == was.mode | 0o400 != was.mode
        ):
            with _placing.handle(*spot.place) as fd:
                os.chmod(_placing.by_handle(fd), was.mode)

    def _is_copy_back(self, move: Move, there: os.stat_result | None, was: State) -> bool:
        """Whether a copy of the old thing from the store is in its place already."""
        if there is None or self._applied is None or not self._site.is_far(move):
            return False
        after = self._applied.after.get(move.number)
        is_new = after is not None and _placing.is_same_object(there, after)
        return not is_new and _looks_like(there, was) and self._site.has_kept(move)

    def _old_to_temp(self, move: Move, spot: Spot) -> None:
        """Bring the old thing beside its place, from wherever it is."""
        if self._applied is not None:
            journal.step("bring back")
            if self._site.bring_at_once(move, spot):
                return
        staged = _placing.facts_of(*spot.staged)
        if staged is not None and self._is_original(move, staged):
            return
        if staged is not None and self._applied is not None and move.number in self._site.staged:
            return  # a copy that was staged with all the others
        set_aside = (spot.temp_folder, _placing.aside(spot.temp))
        if not self._site.has_kept(move):
            facts = _placing.facts_of(*set_aside)
            if facts is None or not self._is_original(move, facts):
                raise _LeftError("what was there before is neither here nor in the store")
            self._remove_staged(move, spot, staged)
            journal.step("bring back")
            _placing.put(set_aside, spot.staged)
            return
        self._remove_staged(move, spot, staged)
        journal.step("bring back")
        self._site.bring(move, spot.staged)

    def _remove_staged(self, move: Move, spot: Spot, staged: os.stat_result | None) -> None:
        if staged is not None:
            journal.step("remove what was staged")
            self._site.remove_staged(move, spot.staged)

    def _swap_back(self, move: Move, spot: Spot) -> None:
        """The old thing is staged and ours is in its place: trade, look again, remove ours."""
        # A folder of ours only has to be empty, and need not be the same one any more.
        is_folder = move.new is not None and move.new.type is FOLDER
        swapped = False
        journal.step("swap back")
        try:
            if is_folder:
                # Under its temporary name everything in it would count as ours.
                self._refuse_if_not_empty(spot.place)
            _placing.swap(spot.staged, spot.place)
            swapped = True
            if is_folder or self._is_ours(move, spot.staged):
                journal.step("remove")
                _placing.remove(*spot.staged)
                return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if swapped:
            _placing.swap(spot.staged, spot.place)
        if move.was is not None and move.was.type is not FOLDER:
            self._stow(move, spot)
        raise _LeftError(f"it was changed or filled since, and stays{self._kept_as(move)}")

    def _stow(self, move: Move, spot: Spot) -> None:
        """Carry the old thing into the store, where it waits for whoever wants it back."""
        staged = _placing.facts_of(*spot.staged)
        if staged is None:
            return
        if self._is_original(move, staged) and self._site.keep(move, spot):
            return
        if self._site.has_kept(move):
            os.unlink(spot.temp, dir_fd=spot.temp_folder)  # the store has it, and this is a copy
        else:
            self._clean(move, spot)

    def _folder_back(self, move: Move, spot: Spot, was: State) -> None:
        there = _placing.facts_of(*spot.place)
        if there is not None and _placing.type_of(there) is FOLDER:
            return
        if there is None:
            journal.step("make a folder again")
            _placing.make_folder(spot.place, was)
        else:
            if not self._is_ours(move, spot.place, there):
                raise _LeftError("it was changed or put there since, and stays")
            staged = _placing.facts_of(*spot.staged)
            if staged is None or _placing.type_of(staged) is not FOLDER:
                _placing.remove(*spot.staged)
                journal.step("make a folder again")
                _placing.make_folder(spot.staged, was)
            self._swap_back(move, spot)

    def _change_back(self, move: Move, spot: Spot) -> None:
        was, new = move.was, move.new
        assert was is not None and new is not None  # noqa: S101 - both sides exist in place
        with _placing.handle(*spot.place) as fd:
            have = os.fstat(fd)
            # Another undo may have put a copy of it there.
            after = self._applied.after.get(move.number) if self._applied is not None else None
            if not _placing.is_same_object(have, after or was):
                raise _LeftError("something else is there now, and stays")
            modes = {was.mode, new.mode, was.mode | 0o200, new.mode | 0o200}
            times = {was.mtime_ns, new.mtime_ns}
            if have.st_mode & 0o7777 not in modes or have.st_mtime_ns not in times:
                raise _LeftError("it was changed since, and stays")
            journal.step("change attributes back")
            _placing.dress(_placing.by_handle(fd), have, was)

    # Folders, when all is back in them

    def _finish(self, note: Folder) -> None:
        was, key = note.was, (note.target, note.path)
        if was is None or (self._applied is not None and key in self._applied.strange):
            return
        tree = self._site.tree(note)
        try:
            fd = tree.folder(note.path)
        except OSError:
            return  # gone, or not a folder: told where it matters
        have = os.fstat(fd)
        made_again = not _placing.is_same_object(have, was)
        if self._applied is not None and key in self._applied.modes:
            was = replace(was, mode=self._applied.modes[key])
        mode = have.st_mode & 0o7777
        modes = {was.mode, was.mode | 0o700, 0o700}
        if note.new is not None:
            modes |= {note.new.mode, note.new.mode | 0o700, note.new.mode | 0o200}
        if mode not in modes and not (made_again and _placing.is_unfinished(mode, was)):
            self._outcome.left.append(f"{self._where(note)}: its mode was changed since")
            return
        natural = self._applied.natural if self._applied is not None else ()
        time = have.st_mtime_ns if key in natural or key in self._partial else was.mtime_ns
        journal.step("finish a folder")
        place = _placing.by_handle(fd)
        if made_again or note.new is not None:
            _placing.dress(place, have, replace(was, mtime_ns=time))
            return
        _placing.set_folder_mode(place, have, was.mode)
        _placing.set_time(place, have, time)

    # What is whose

    def _is_original(self, move: Move, facts: os.stat_result) -> bool:
        """Whether this is the very thing that was there before, not a copy of it."""
        if move.was is None or move.was.type is FOLDER:
            return False  # folders are not kept, but made again
        if self._applied is not None and self._site.is_far(move):
            return False  # gone since its copy is in the store; its inode may be another's now
        return _placing.is_same_object(facts, move.was)

    def _is_ours(self, move: Move, thing: Named, facts: os.stat_result | None = None) -> bool:
        """Whether this is what the plan put there, and nobody changed it since."""
        facts = facts or _placing.facts_of(*thing)
        new = move.new
        if facts is None or new is None:
            return False
        after = self._applied.after.get(move.number) if self._applied is not None else None
        if after is not None and not _placing.is_same_object(facts, after):
            return False
        if move.link_to is not None:
            # Another name of a file that may have got its old attributes back already.
            other = self._site.tree(move).facts(move.link_to)
            if other is not None and (other.st_dev, other.st_ino) == (facts.st_dev, facts.st_ino):
                return True
        if not _looks_like(facts, after or new):
            return False
        return new.type is not LINK or os.readlink(thing[1], dir_fd=thing[0]) == new.link

    def _refuse_if_not_empty(self, folder: Named) -> None:
        with _placing.handle(*folder) as fd:
            if os.listdir(_placing.by_handle(fd)):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    def _rmdir(self, folder: int, name: str) -> None:
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise _LeftError("it holds what podbot did not put there, and stays") from None

    def _where(self, entry: Move | Folder) -> str:
        return shown_name(self._plan.where(entry))

    def _kept_as(self, move: Move) -> str:
        if not self._site.has_kept(move):
            return ""
        kept = f"{self._plan.places[move.target].kept}/{self._plan.kept_as(move)}"
        return f"; what was there before is {kept}"

    def _clean(self, move: Move, spot: Spot) -> None:
        """Remove what is left under the temporary names, unless it is the old thing."""
        if move.number in self._site.foreign:
            return
        for name in (spot.temp, _placing.aside(spot.temp)):
            facts = _placing.facts_of(spot.temp_folder, name)
            if facts is None:
                continue
            there = _placing.facts_of(*spot.place)
            is_old = self._is_original(move, facts)
            if is_old and (there is None or there.st_ino != facts.st_ino):
                continue
            journal.step("remove what was staged")
            self._site.remove_staged(move, (spot.temp_folder, name))


def _looks_like(facts: os.stat_result, want: State) -> bool:
    """Whether a thing has the type, mode, size and time it was given."""
    if _placing.type_of(facts) is not want.type:
        return False
    if want.type is FOLDER:
        mode = facts.st_mode & 0o7777
        return mode == want.mode or _placing.is_unfinished(mode, want)
    if want.type is not LINK and facts.st_mode & 0o7777 != want.mode:
        return False
    if want.type is FILE and facts.st_size != want.size:
        return False
    return 0 <= want.mtime_ns - facts.st_mtime_ns < COARSEST_CLOCK_NS
