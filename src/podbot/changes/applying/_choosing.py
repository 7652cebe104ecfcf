"""What of an application is to be undone: what is named, what goes with it, and what has to stay.

A file that was renamed comes back together with the new name's going. What lies in a folder that
comes back needs the folder, a folder that goes needs all in it to go. Decides only, from values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from os import stat_result

from podbot.changes.applying._moved_on import Clash
from podbot.changes.applying._parts import Part
from podbot.changes.applying.moves import Move, Plan
from podbot.changes.diffs.text import listed, shown_name
from podbot.changes.given import OnConflict
from podbot.changes.model import FOLDER
from podbot.changes.select import places_named
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass

Key = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Choice:
    """What is undone now: all that is left if ``part`` is None.

    ``skipped`` are absolute paths with the reason, ``aside`` what goes out of the way first.
    """

    part: Part | None
    skipped: tuple[tuple[str, str], ...]
    aside: tuple[tuple[int, str, stat_result], ...]


def choose(
    plan: Plan, clashes: Sequence[Clash], only: Sequence[str], on_conflict: OnConflict
) -> Choice:
    """Decide; raises `ChangesError` (``undo_refused``, ``nothing_selected``)."""
    return _Choosing(plan, clashes).choose(only, on_conflict)


class _Choosing:
    def __init__(self, plan: Plan, clashes: Sequence[Clash]):
        self._plan, self._clashes = plan, clashes
        self._by_path = {(move.target, move.path): move for move in plan.moves}
        self._notes = {
            (note.target, note.path): index
            for index, note in enumerate(plan.folders)
            if note.was is not None and note.new is not None
        }
        self._below: dict[Key, list[Move]] = defaultdict(list)
        for move in plan.moves:
            above = move.path
            while above:
                above = above.rpartition("/")[0]
                if (move.target, above) in self._by_path:
                    self._below[(move.target, above)].append(move)
        self._partners: dict[int, set[int]] = defaultdict(set)
        for move in plan.moves:
            to = self._by_path.get((move.target, move.part_of or ""))
            if move.part_of is not None and to is not None:
                self._partners[move.number].add(to.number)
                self._partners[to.number].add(move.number)
        self._numbers = {move.number: move for move in plan.moves}

    def choose(self, only: Sequence[str], on_conflict: OnConflict) -> Choice:
        moves, dressed = self._wanted(only)
        mine = [clash for clash in self._clashes if self._concerns(clash, moves, dressed)]
        if mine and on_conflict == "stop":
            raise self._refused(mine)
        skipped: dict[str, str] = {}
        aside: list[tuple[int, str, stat_result]] = []
        for clash in mine:
            if on_conflict == "overwrite" and clash.ways is not None:
                aside += [(clash.entry.target, path, facts) for path, facts in clash.ways]
                continue
            if _is_gone_anyway(clash):
                continue
            skipped.setdefault(self._plan.where(clash.entry), clash.reason)
            moves, dressed = self._drop(clash, moves, dressed)
        moves = self._without_what_hangs(moves, skipped)
        aside = [one for one in aside if self._is_needed(one, moves)]
        part = Part(frozenset(moves), frozenset(dressed))
        is_all = len(moves) == len(self._plan.moves) and len(dressed) == len(self._notes)
        return Choice(None if is_all else part, tuple(skipped.items()), tuple(aside))

    def _wanted(self, only: Sequence[str]) -> tuple[set[int], set[int]]:
        """What is named, with what must go along."""
        if not only:
            return set(self._numbers), set(self._notes.values())
        targets = [place.path for place in self._plan.places]
        everything = [*self._by_path, *self._notes]
        chosen = places_named([(targets[index], path) for index, path in everything], only)
        keys = {key for key in everything if (targets[key[0]], key[1]) in chosen}
        moves = {self._by_path[key].number for key in keys if key in self._by_path}
        waiting = list(moves)
        while waiting:
            more = self._goes_along(self._numbers[waiting.pop()]) - moves
            moves |= more
            waiting += more
        return moves, {self._notes[key] for key in keys if key in self._notes}

    def _goes_along(self, move: Move) -> set[int]:
        found = set(self._partners[move.number])
        if move.was is not None:
            found |= {above.number for above in self._returning_above(move)}
        if _makes_folder(move):
            found |= {one.number for one in self._below[(move.target, move.path)] if one.new}
        return found

    def _returning_above(self, move: Move) -> list[Move]:
        """Moves that took away a folder it lay in."""
        found, above = [], move.path
        while above:
            above = above.rpartition("/")[0]
            one = self._by_path.get((move.target, above))
            if one is not None and one.was is not None and one.was.type is FOLDER:
                found.append(one)
        return found

    def _concerns(self, clash: Clash, moves: set[int], dressed: set[int]) -> bool:
        entry = clash.entry
        if isinstance(entry, Move):
            return entry.number in moves
        made = self._by_path.get((entry.target, entry.path))
        note = self._notes.get((entry.target, entry.path))
        return (made is not None and made.number in moves) or (note is not None and note in dressed)

    def _drop(self, clash: Clash, moves: set[int], dressed: set[int]) -> tuple[set[int], set[int]]:
        entry = clash.entry
        if isinstance(entry, Move):
            return moves - {entry.number} - self._partners[entry.number], dressed
        made = self._by_path.get((entry.target, entry.path))
        note = self._notes.get((entry.target, entry.path))
        gone = {made.number} if made is not None else set()
        return moves - gone, dressed - ({note} if note is not None else set())

    def _without_what_hangs(self, moves: set[int], skipped: dict[str, str]) -> set[int]:
        """Leave out what cannot be undone without something that stays."""
        while True:
            for number in sorted(moves):
                reason = self._hangs_on(self._numbers[number], moves)
                if reason is not None:
                    skipped.setdefault(self._plan.where(self._numbers[number]), reason)
                    moves = moves - {number} - self._partners[number]
                    break
            else:
                return moves

    def _hangs_on(self, move: Move, moves: set[int]) -> str | None:
        if move.was is not None:
            for above in self._returning_above(move):
                if above.number not in moves:
                    return f"{shown_name(above.path)}, in which it was, stays as it is"
        if _makes_folder(move):
            for one in self._below[(move.target, move.path)]:
                if one.new is not None and one.number not in moves:
                    return f"it still holds {shown_name(one.path)}, which stays"
        return None

    def _is_needed(self, one: tuple[int, str, stat_result], moves: set[int]) -> bool:
        """Whether what it is in the way of is undone."""
        target, path, _ = one
        move = self._by_path.get((target, path))
        if move is not None:
            return move.number in moves
        above = self._by_path.get((target, path.rpartition("/")[0]))
        return above is not None and above.number in moves

    def _refused(self, clashes: Sequence[Clash]) -> ChangesError:
        lines = [f"{shown_name(self._plan.where(one.entry))}: {one.reason}" for one in clashes]
        return ChangesError(
            f"the host moved on since these changes were applied:\n{listed(lines)}",
            kind=Kind.UNDO_REFUSED,
            remedy="leave these out (on_conflict='skip'), or put them aside and undo all"
            " (on_conflict='overwrite')",
        )


def _is_gone_anyway(clash: Clash) -> bool:
    """Whether someone removed what an undo would only remove."""
    return isinstance(clash.entry, Move) and clash.entry.was is None and clash.ways == ()


def _makes_folder(move: Move) -> bool:
    """Whether it made a folder, or put one in the place of something else."""
    return move.new is not None and move.new.type is FOLDER
