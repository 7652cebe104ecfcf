"""What an application does to the host, as plain values: one move for each path it touches.

The plan is complete before anything is touched and says of each path what was there, so that every
move can be taken back from the plan and the file system alone. Nothing here reads or writes files.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from podbot.changes.model import FileType, State

Data = list[Any]
"""A state as JSON holds it."""
_TYPES = {kind.value: kind for kind in FileType}


@dataclass(frozen=True, slots=True)
class Move:
    """What becomes of one path. Moves are made in the order of ``number``, undone backwards.

    ``was`` is what the host has, ``new`` what it gets; one of them may be None. ``link_to`` is a
    path in the same target to make it a hard link to. ``in_place`` changes attributes only.
    ``settled`` says that the host had not touched it meanwhile, so that what podbot leaves there
    is no drift either.
    """

    number: int
    target: int
    path: str
    was: State | None
    new: State | None
    link_to: str | None = None
    in_place: bool = False
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is made, removed, changed, or whose entries change.

    ``was`` is None if it is made; ``new`` are attributes it gets at the end, None leaves its own;
    ``mtime_ns`` is the time it gets, None leaves what comes by itself. ``settled`` as for a move.
    """

    target: int
    path: str
    was: State | None
    new: State | None
    mtime_ns: int | None = None
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """A target, and the folder (on the same file system, if there is one) that keeps its old."""

    path: str
    kept: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All that one application does. ``token`` makes its temporary names its own."""

    token: str
    layer_id: str | None
    created: float
    places: tuple[Place, ...]
    moves: tuple[Move, ...]
    folders: tuple[Folder, ...]

    def where(self, entry: Move | Folder) -> str:
        """The absolute host path."""
        target = self.places[entry.target].path
        return f"{target}/{entry.path}" if entry.path else target

    @property
    def paths(self) -> tuple[str, ...]:
        """Every host path that gets something else or other attributes."""
        entries: list[Move | Folder] = [*self.moves]
        entries += [note for note in self.folders if note.was and note.new]
        return tuple(self.where(entry) for entry in entries)

    def lines(self) -> Iterator[str]:
        """The plan as lines of JSON; the last one says that it is whole."""
        yield json.dumps(
            {
                "version": 1,
                "token": self.token,
                "layer": self.layer_id,
                "created": self.created,
                "paths": len(self.paths),
                "places": [[place.path, place.kept] for place in self.places],
            }
        )
        for move in self.moves:
            yield json.dumps(
                ["m", move.number, move.target, move.path, as_data(move.was), as_data(move.new),
                 move.link_to, move.in_place, move.settled]
            )  # fmt: skip
        for note in self.folders:
            yield json.dumps(
                ["f", note.target, note.path, as_data(note.was), as_data(note.new), note.mtime_ns,
                 note.settled]
            )  # fmt: skip
        yield json.dumps(["end", len(self.moves), len(self.folders)])

    @classmethod
    def of_lines(cls, lines: Iterator[str]) -> Plan:
        """Read it back; `ValueError` if it is not whole."""
        head = json.loads(next(lines, "null"))
        if not isinstance(head, dict) or head.get("version") != 1:
            raise ValueError("not a journal this version can read")
        moves: list[Move] = []
        folders: list[Folder] = []
        for line in lines:
            kind, *rest = json.loads(line)
            if kind == "m":
                number, target, path, was, new, *more = rest
                moves.append(Move(number, target, path, of_data(was), of_data(new), *more))
            elif kind == "f":
                target, path, was, new, *more = rest
                folders.append(Folder(target, path, of_data(was), of_data(new), *more))
            elif kind == "end" and rest == [len(moves), len(folders)]:
                places = tuple(Place(path, kept) for path, kept in head["places"])
                return cls(
                    head["token"], head["layer"], head["created"], places,
                    tuple(moves), tuple(folders),
                )  # fmt: skip
        raise ValueError("the journal is cut short")


def as_data(state: State | None) -> Data | None:
    """A state as JSON can hold it."""
    if state is None:
        return None
    return [
        state.type.value, state.mode, state.uid, state.gid, state.size, state.mtime_ns,
        state.ctime_ns, state.device, state.inode, state.links, state.link, state.rdev,
        [[name, base64.b64encode(value).decode("ascii")] for name, value in state.xattrs]
        if state.xattrs else [],
    ]  # fmt: skip


def of_data(data: Data | None) -> State | None:
    """A state from what `as_data` gave; trusted, as it comes from a folder that is ours alone."""
    if data is None:
        return None
    *rest, xattrs = data
    rest[0] = _TYPES[rest[0]]
    rest.append(tuple([(name, base64.b64decode(value)) for name, value in xattrs]))
    return State(*rest)
