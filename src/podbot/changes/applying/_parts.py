"""A part of an application: what of it was taken back already, and what is being taken back now.

An undo may take back some of the moves and leave the others undoable. The journal's ``taken`` mark
says which were, and what the folders in which others remain are like since; its ``undoing`` mark
says which are meant this time. Both are plans with fewer moves: who carries one out needs to know
nothing of this. Values only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from podbot.changes.applying.moves import Folder, Move, Plan
from podbot.changes.model import FOLDER
from podbot.frozen import dataclass, replace


@dataclass(frozen=True, slots=True)
class Part:
    """Some moves, by number, and some folders that get their attributes back, by index."""

    moves: frozenset[int]
    dressed: frozenset[int] = frozenset()

    @classmethod
    def of(cls, facts: object) -> Part | None:
        """What a mark says, None if it says nothing of parts."""
        if not isinstance(facts, Mapping) or facts.get("moves") is None:
            return None
        return cls(frozenset(facts["moves"]), frozenset(facts.get("dressed", ())))

    def data(self) -> dict[str, list[int]]:
        """The same for a mark."""
        return {"moves": sorted(self.moves), "dressed": sorted(self.dressed)}

    def __bool__(self) -> bool:
        return bool(self.moves or self.dressed)

    def __or__(self, other: Part) -> Part:
        return Part(self.moves | other.moves, self.dressed | other.dressed)


def without(plan: Plan, part: Part) -> Plan:
    """What is left of a plan when a part was taken back. It has as many folders as before."""
    gone = {(move.target, move.path) for move in plan.moves if move.number in part.moves}
    made = {
        (move.target, move.path)
        for move in plan.moves
        if move.new is not None and move.new.type is FOLDER
    }
    folders = tuple(
        # A folder that the plan made and that was taken away is nobody's business any more.
        Folder(note.target, note.path, None, None, host_unchanged=note.host_unchanged)
        if note.was is None and (note.target, note.path) in gone & made
        else replace(note, new=None)
        if index in part.dressed
        else note
        for index, note in enumerate(plan.folders)
    )
    moves = tuple(move for move in plan.moves if move.number not in part.moves)
    return replace(plan, moves=moves, folders=folders)


def only(plan: Plan, part: Part) -> Plan:
    """The part of a plan that is taken back now; the folders it does not touch are let alone."""
    moves = tuple(move for move in plan.moves if move.number in part.moves)
    touched = _touched(moves)
    folders = []
    for index, note in enumerate(plan.folders):
        key = (note.target, note.path)
        if index in part.dressed or key in touched["self"]:
            folders.append(note)
        elif key in touched["within"] and note.was is not None:
            # It keeps the attributes that the application gave it.
            was = note.was if note.new is None else replace(note.new, mtime_ns=note.was.mtime_ns)
            was = replace(was, device=note.was.device, inode=note.was.inode)
            folders.append(replace(note, was=was, new=None))
        else:
            folders.append(
                Folder(note.target, note.path, None, None, host_unchanged=note.host_unchanged)
            )
    return replace(plan, moves=moves, folders=tuple(folders))


def half_done(plan: Plan, part: Part) -> list[tuple[int, str]]:
    """Folders in which other moves remain: they have neither the time of before nor of after."""
    rest = tuple(move for move in plan.moves if move.number not in part.moves)
    inside = _touched(rest)["within"]
    return [
        (note.target, note.path)
        for index, note in enumerate(plan.folders)
        if (note.target, note.path) in inside or (note.new and index not in part.dressed)
    ]


def _touched(moves: Collection[Move]) -> dict[str, set[tuple[int, str]]]:
    return {
        "self": {(move.target, move.path) for move in moves},
        "within": {(move.target, move.path.rpartition("/")[0]) for move in moves},
    }
