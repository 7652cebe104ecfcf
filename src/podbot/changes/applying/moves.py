"""What an application does to the host, as plain values: one move for each path it touches.

The plan is complete before anything is touched and says of each path what was there, so that every
move can be taken back from the plan and the file system alone. Nothing here reads or writes files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

from podbot.changes.model import FileType, State
from podbot.frozen import dataclass, replace
from podbot.json_fields import LARGEST, Fields, parsed

Data = list[Any]
"""A state as JSON holds it."""
_TYPES = {kind.value: kind for kind in FileType}
_WORDS = {False: "false", True: "true"}


@dataclass(frozen=True, slots=True)
class Move:
    """What becomes of one path. Moves are made in the order of ``number``, undone backwards.

    ``was`` is what the host has, ``new`` what it gets; one of them may be None. ``link_to`` is a
    path in the same target to make it a hard link to. ``in_place`` changes attributes only.
    ``host_unchanged`` says that the host had not touched it meanwhile, so that what podbot leaves
    there is no drift either. ``part_of`` is the path that a file was moved to which goes from here.
    """

    number: int
    target: int
    path: str
    was: State | None
    new: State | None
    link_to: str | None = None
    in_place: bool = False
    host_unchanged: bool = True
    part_of: str | None = None


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is made, removed, changed, or whose entries change.

    ``was`` is None if it is made; ``new`` are attributes it gets at the end, None leaves its own;
    ``mtime_ns`` is the time it gets, None leaves what comes by itself. ``host_unchanged`` as
    for a move.
    """

    target: int
    path: str
    was: State | None
    new: State | None
    mtime_ns: int | None = None
    host_unchanged: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """A target, and the folder (on the same file system, if there is one) that keeps its old."""

    path: str
    kept: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All that one application does. ``token`` makes its temporary names its own.

    ``shelf`` says how many things one folder of the store keeps: 0 for all of them. ``roots`` are
    device and inode of each place: a disk may have another number after the next start.
    """

    token: str
    layer_id: str | None
    created: float
    places: tuple[Place, ...]
    moves: tuple[Move, ...]
    folders: tuple[Folder, ...]
    shelf: int = 0
    roots: tuple[tuple[int, int], ...] = ()

    def where(self, entry: Move | Folder) -> str:
        """The absolute host path."""
        target = self.places[entry.target].path
        return f"{target}/{entry.path}" if entry.path else target

    def kept_as(self, move: Move) -> str:
        """The name in its store of what was at a path."""
        if not self.shelf:
            return str(move.number)
        return f"{move.number // self.shelf}/{move.number}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Every host path that gets something else or other attributes."""
        entries: list[Move | Folder] = [*self.moves]
        entries += [note for note in self.folders if note.was and note.new]
        return tuple(self.where(entry) for entry in entries)

    def on(self, devices: Mapping[int, int]) -> Plan:
        """The same with other numbers for some devices."""
        return replace(
            self,
            moves=tuple(replace(move, was=moved_to(devices, move.was)) for move in self.moves),
            folders=tuple(replace(note, was=moved_to(devices, note.was)) for note in self.folders),
            roots=tuple((devices.get(device, device), inode) for device, inode in self.roots),
        )

    def lines(self) -> Iterator[str]:
        """The plan as lines of JSON; the last one says that it is whole."""
        yield json.dumps(
            {
                "version": 1,
                "token": self.token,
                "layer": self.layer_id,
                "created": self.created,
                "paths": len(self.moves) + sum(1 for note in self.folders if note.was and note.new),
                "places": [[place.path, place.kept] for place in self.places],
                "shelf": self.shelf,
                "roots": self.roots,
            }
        )
        for move in self.moves:
            link_to = "null" if move.link_to is None else _quoted(move.link_to)
            yield (
                f'["m", {move.number}, {move.target}, {_quoted(move.path)}, {as_json(move.was)}, '
                f"{as_json(move.new)}, {link_to}, {_WORDS[move.in_place]}, "
                f"{_WORDS[move.host_unchanged]}"
                + ("]" if move.part_of is None else f", {_quoted(move.part_of)}]")
            )
        for note in self.folders:
            yield (
                f'["f", {note.target}, {_quoted(note.path)}, {as_json(note.was)}, '
                f"{as_json(note.new)}, {'null' if note.mtime_ns is None else note.mtime_ns}, "
                f"{_WORDS[note.host_unchanged]}]"
            )
        yield json.dumps(["end", len(self.moves), len(self.folders)])

    @classmethod
    def of_lines(cls, lines: Iterator[str]) -> Plan:
        """Read it back; `ValueError` if it is not whole."""
        head = Head(parsed(next(lines, "null")))
        if head.number("version") != 1:
            raise ValueError("not a journal this version can read")
        moves: list[Move] = []
        folders: list[Folder] = []
        for kind, *rest in _entries(lines):
            if kind == "m":
                number, target, path, was, new, *more = rest
                moves.append(Move(number, target, path, of_data(was), of_data(new), *more))
            elif kind == "f":
                target, path, was, new, *more = rest
                folders.append(Folder(target, path, of_data(was), of_data(new), *more))
            elif kind == "end" and rest == [len(moves), len(folders)]:
                return cls(
                    head.text("token"), head.optional_text("layer"), head.seconds("created"),
                    head.places(), tuple(moves), tuple(folders),
                    head.optional_number("shelf") or 0, head.roots(),
                )  # fmt: skip
        raise ValueError("the journal is cut short")


def _entries(lines: Iterator[str]) -> Iterator[Data]:
    """What lines say, many at a time: parsing them one by one takes twice as long."""
    while batch := list(islice(lines, 1000)):
        found = parsed(f"[{','.join(batch)}]", whole=True)
        assert isinstance(found, list)  # noqa: S101 - there are brackets around it
        yield from found


class Head(Fields):
    """The first line of a plan."""

    __slots__ = ()

    def places(self) -> tuple[Place, ...]:
        """The targets."""
        return tuple(Place(*_texts(row)) for row in self.items("places"))

    def roots(self) -> tuple[tuple[int, int], ...]:
        """Device and inode of each; none in the journals of the first versions."""
        found = []
        for row in self.items("roots", []):
            device, inode = _numbers(row)
            found.append((device, inode))
        return tuple(found)


def _texts(row: object) -> tuple[str, str]:
    match row:
        case [str(one), str(other)]:
            return one, other
    raise ValueError("a place is not two paths")


def _numbers(row: object) -> Data:
    if not isinstance(row, list) or set(map(type, row)) != {int}:
        raise ValueError("a number is missing")
    if not -LARGEST <= min(row) <= max(row) <= 2 * LARGEST + 1:
        raise ValueError("a number is too large for a file to have")
    return row


def moved_to(devices: Mapping[int, int], state: State | None) -> State | None:
    """A state with another number for its device, if that has one."""
    if state is None or state.device not in devices:
        return state
    return replace(state, device=devices[state.device])


def as_json(state: State | None) -> str:
    """A state as JSON. By hand, as journals hold thousands of them."""
    if state is None:
        return "null"
    link = "null" if state.link is None else _quoted(state.link)
    xattrs = _xattrs_as_json(state) if state.xattrs else "[]"
    return (
        f'["{state.type}", {state.mode}, {state.uid}, {state.gid}, {state.size}, {state.mtime_ns}, '
        f"{state.ctime_ns}, {state.device}, {state.inode}, {state.links}, {link}, {state.rdev}, "
        f"{xattrs}]"
    )


def _xattrs_as_json(state: State) -> str:
    from base64 import b64encode

    coded = ((name, b64encode(value).decode("ascii")) for name, value in state.xattrs)
    return json.dumps(list(coded))


def of_data(data: Data | None) -> State | None:
    """A state from what `as_json` gave; trusted, as it comes from a folder that is ours alone."""
    if data is None:
        return None
    type, *rest, xattrs = data
    _numbers(rest[:9])
    _numbers(rest[10:])
    if xattrs:
        from base64 import b64decode

        rest.append(tuple((name, b64decode(value)) for name, value in xattrs))
    return State(_TYPES[type], *rest)
