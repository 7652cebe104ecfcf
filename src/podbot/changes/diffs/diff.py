"""What one change did, line by line: for a person to read, to pick from, and for a patch.

A change is looked at when asked for and by itself, so that a set of any size costs what is looked
at. Contents are read through the change set and compared here; no program is run on them, least
of all one that a repository names. Colours and pagers are the business of the CLI.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from podbot.changes.diffs import _headers, hunks, sides, states
from podbot.changes.diffs._headers import Names, Spelling
from podbot.changes.diffs.hunks import Hunk
from podbot.changes.diffs.sides import Side
from podbot.changes.diffs.text import shown_lines, shown_name
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass

WAS_TEXT = "was text, is binary now"
"""How the note begins of a file whose lines can no longer be compared."""
ESCAPED = "(its lines, with \\x00 for each NUL:)"
"""Stands above hunks that are only for looking at."""


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The difference one change makes.

    ``binary`` and large files have no hunks; ``note`` gives their sizes, and whatever else a diff
    does not show: owners, modes, attributes, why a file could not be read. ``escaped`` are the
    hunks of small files that only their NULs make binary: to be looked at, never to be applied.
    """

    change: Change
    names: Names
    hunks: tuple[Hunk, ...] = ()
    binary: bool = False
    note: str | None = None
    similarity: int | None = None
    large: bool = False
    was_text: bool = False
    escaped: tuple[Hunk, ...] = ()

    @property
    def headers(self) -> tuple[str, ...]:
        """What git writes above the hunks, without the index; odd names are quoted."""
        return tuple(self._headers(_headers.quoted))

    @property
    def added(self) -> int:
        """Lines that are new."""
        return sum(hunk.added for hunk in self.hunks)

    @property
    def removed(self) -> int:
        """Lines that are gone."""
        return sum(hunk.removed for hunk in self.hunks)

    def _headers(self, spell: Spelling) -> list[str]:
        lines = _headers.extended(self.change, self.names, self.similarity, spell)
        if self.hunks:
            lines += _headers.sides(self.change, self.names, spell)
        return lines


def diff(changes: ChangeSet, change: Change) -> FileDiff:
    """Look at one change. Files that cannot be read, are binary or large get a note instead."""
    if change.kind is ChangeKind.MODE:
        return FileDiff(change, _headers.names(changes, change), note=_note(change, None, None))
    old, new = sides.old_side(changes, change), sides.new_side(changes, change)
    return compared(changes, change, old, new)


def compared(changes: ChangeSet, change: Change, old: Side, new: Side) -> FileDiff:
    """The same for two sides that have been read."""
    called = _headers.names(changes, change)
    found: tuple[Hunk, ...] = ()
    if old.data is not None and new.data is not None:
        found = hunks.hunks(old.data, new.data)
    similarity = None
    if change.kind is ChangeKind.RENAMED:
        similarity = _similarity(changes, change, (old, new), found)
    binary = old.binary or new.binary
    return FileDiff(
        change,
        called,
        found,
        binary,
        _note(change, old, new),
        similarity,
        large=not binary and any(side.data is None and not side.problem for side in (old, new)),
        was_text=_was_text(change, old, new),
        escaped=_escaped(old, new) if binary else (),
    )


def _escaped(old: Side, new: Side) -> tuple[Hunk, ...]:
    if old.seen is None or new.seen is None:
        return ()
    return hunks.hunks(old.seen, new.seen)


def _was_text(change: Change, old: Side, new: Side) -> bool:
    """Whether a text became something whose lines nobody is shown: one NUL is enough for that."""
    was_file = change.old is not None and change.old.type is FileType.FILE
    return was_file and old.size > 0 and not (old.binary or old.problem) and new.binary


def for_people(file_diff: FileDiff) -> Iterator[str]:
    """The lines to show, without line ends: everything that would not be seen is spelled out."""
    yield from file_diff._headers(shown_name)
    if file_diff.note is not None:
        yield f"({file_diff.note})"
    if file_diff.escaped:
        yield ESCAPED
    for hunk in file_diff.hunks or file_diff.escaped:
        yield hunk.header
        yield from shown_lines(hunk.lines)


def merged(file_diff: FileDiff, chosen: Collection[hunks.Piece], old: bytes) -> bytes:
    """The old contents with only the chosen hunks applied, by their number from 0.

    Raises `ChangesError`: kind ``conflict`` if ``old`` is not what the hunks were made from, kind
    ``invalid`` for a hunk that is not there and for what is not a file on both sides.
    """
    change = file_diff.change
    for state in (change.old, change.new):
        if state is not None and state.type is not FileType.FILE:
            raise ChangesError(
                f"{shown_name(change.where)} is not a file on both sides: it has no hunks to pick",
                kind=Kind.INVALID,
                remedy="take or leave the change as a whole",
            )
    return hunks.merged(file_diff.hunks, chosen, old)


def _similarity(
    changes: ChangeSet, change: Change, pair: tuple[Side, Side], found: tuple[Hunk, ...]
) -> int:
    """How much of the file stayed, in percent; 100 only for the very same bytes."""
    old, new = pair
    if old.data is None or new.data is None:
        return 100 if old.size == new.size and sides.same_bytes(changes, change) else 0
    if not found:
        return 100
    gone = sum(len(line) for hunk in found for line in hunk.lines if line.startswith(b"-"))
    return max(0, min(99, (old.size - gone) * 100 // max(old.size, new.size)))


def _note(change: Change, old: Side | None, new: Side | None) -> str | None:
    """What the headers and hunks do not tell."""
    said = []
    if change.kind is ChangeKind.HARD_LINK and change.source is not None:
        said.append(f"another name for {shown_name(change.source)}")
    said += _types(change)
    if old is not None and new is not None:
        said += _contents(change, old, new)
    if change.new is not None:
        said += states.differences(change.old, change.new)
    if change.kind is ChangeKind.MODE and not said and change.old and change.new:
        said += [] if change.old.executable != change.new.executable else ["another time only"]
    return "; ".join(said) or None


def _types(change: Change) -> list[str]:
    """What there is on the sides that git has no word for."""
    old = change.old.type if change.old else None
    new = change.new.type if change.new else None
    if old is new:
        anew = change.kind is ChangeKind.REPLACED
        return ["removed and made anew"] if anew else _device(change)
    if {old, new} <= {None, FileType.FILE, FileType.LINK}:
        return []
    if old is None and new is not None:
        return [f"new {states.WORDS[new]}"]
    if new is None and old is not None:
        return [f"deleted {states.WORDS[old]}"]
    assert old is not None and new is not None  # noqa: S101 - a change has at least one side
    return [f"a {states.WORDS[old]} gave way to a {states.WORDS[new]}"]


def _device(change: Change) -> list[str]:
    if change.old is None or change.new is None or change.old.rdev == change.new.rdev:
        return []
    old, new = (f"{os.major(it.rdev)}:{os.minor(it.rdev)}" for it in (change.old, change.new))
    return [f"device {old} → {new}"]


def _contents(change: Change, old: Side, new: Side) -> list[str]:
    """Why contents are not shown."""
    said = [
        f"the {name} contents cannot be read: {side.problem}"
        for name, side in (("old", old), ("new", new))
        if side.problem
    ]
    if old.data is not None and new.data is not None:
        return said
    if _was_text(change, old, new):
        said.append(WAS_TEXT)
    kind = "binary" if old.binary or new.binary else "large"
    if change.old is None or change.old.type is not FileType.FILE:
        said.append(f"{kind}, {new.size:,} bytes")
    elif change.new is None or change.new.type is not FileType.FILE:
        said.append(f"{kind}, {old.size:,} bytes")
    else:
        said.append(f"{kind}, {old.size:,} → {new.size:,} bytes")
    return said
