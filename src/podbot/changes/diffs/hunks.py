"""Two texts as hunks: the edits with some lines around them, and the way back from hunks to text.

Works on bytes and keeps every one of them: carriage returns, a missing last line end, bytes that
are no text. Reads no files and knows no names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import NamedTuple

from podbot.changes.diffs import _lines
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass

CONTEXT = 3
"""Equal lines around each edit."""

NO_NEWLINE = b"\\ No newline at end of file"

_OPEN_END = b"\n" + NO_NEWLINE
# What the last line ends with if the file does not end in a line end. No other line holds a line
# feed, so such a line equals no whole one.


@dataclass(frozen=True, slots=True)
class Hunk:
    """Edits that are close together, as in a unified diff.

    ``lines`` begin with a space, ``-`` or ``+`` and have no line end; `NO_NEWLINE` follows a line
    without one. Starts count from 1; a side without lines starts at the line before.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    lines: tuple[bytes, ...]

    @property
    def header(self) -> str:
        """The line that introduces it."""
        old, new = _span(self.old_start, self.old_count), _span(self.new_start, self.new_count)
        return f"@@ -{old} +{new} @@"

    @property
    def added(self) -> int:
        """How many lines it adds."""
        return sum(line.startswith(b"+") for line in self.lines)

    @property
    def removed(self) -> int:
        """How many lines it removes."""
        return sum(line.startswith(b"-") for line in self.lines)


def _span(start: int, count: int) -> str:
    return str(start) if count == 1 else f"{start},{count}"


Piece = int | tuple[int, int]
"""A hunk by its number from 0, or one of its `parts` by both numbers."""


def parts(hunk: Hunk) -> tuple[Hunk, ...]:
    """A hunk as several, one for each edit; they do not overlap, and together are the hunk."""
    starts = [0]
    edit_end: int | None = None
    for number, line in enumerate(hunk.lines):
        if line[:1] in (b"+", b"-"):
            if edit_end is not None and number > edit_end:
                starts.append((edit_end + number + 1) // 2)  # the lines between are shared
            edit_end = number + 1
        elif line[:1] == b"\\" and edit_end == number:
            edit_end = number + 1
    found = []
    old = hunk.old_start - (hunk.old_count > 0)
    new = hunk.new_start - (hunk.new_count > 0)
    for start, end in pairwise([*starts, len(hunk.lines)]):
        lines_ = hunk.lines[start:end]
        old_count = sum(line[:1] in (b" ", b"-") for line in lines_)
        new_count = sum(line[:1] in (b" ", b"+") for line in lines_)
        found.append(
            Hunk(old + (old_count > 0), old_count, new + (new_count > 0), new_count, lines_)
        )
        old, new = old + old_count, new + new_count
    return tuple(found)


def hunks(old: bytes, new: bytes) -> tuple[Hunk, ...]:
    """What turns one text into the other."""
    if old == new:
        return ()
    if not old or not new:
        return (_whole(old, new),)
    part, before = _compared(old, new)
    result: list[Hunk] = []
    found, first = part.edits, 0
    for number in range(1, len(found) + 1):
        if number < len(found) and found[number].old_from - found[number - 1].old_to <= 2 * CONTEXT:
            continue
        result.append(_hunk(found[first:number], part.old, part.new, before))
        first = number
    return tuple(result)


class Edited(NamedTuple):
    """Two texts as lines (see `split`), and the edits between them that hunks are made of."""

    old: list[bytes]
    new: list[bytes]
    edits: list[_lines.Edit]


def edited(old: bytes, new: bytes) -> Edited:
    """The same edits as `hunks` shows, by the lines of the whole texts."""
    pair = split(old), split(new)
    if old == new or not old or not new:
        whole = _lines.Edit(0, len(pair[0]), 0, len(pair[1]))
        return Edited(*pair, [] if old == new else [whole])
    part, before = _compared(old, new)
    return Edited(*pair, [_lines.Edit(*(at + before for at in edit)) for edit in part.edits])


def _compared(old: bytes, new: bytes) -> tuple[Edited, int]:
    """The part in which two texts differ, and how many lines stand above it in both."""
    start, old_end, new_end = _differing_part(old, new)
    old_lines, new_lines = split(old, start, old_end), split(new, start, new_end)
    found = _lines.edits(old_lines, new_lines)
    # Not into lines that are to be context, unless that is where the file begins or ends.
    margin = 0 if start == 0 and old_end == len(old) else CONTEXT
    found = _lines.slid(found, old_lines, new_lines, margin)
    return Edited(old_lines, new_lines, found), old.count(b"\n", 0, start)


def split(data: bytes, start: int = 0, end: int | None = None) -> list[bytes]:
    """Lines without their line end; one that has none is marked, so that it equals no other."""
    end = len(data) if end is None else end
    parts = data[start:end].split(b"\n")
    last = parts.pop()
    if last:
        parts.append(last + _OPEN_END)
    return parts


def merged(found: tuple[Hunk, ...], chosen: Collection[Piece], old: bytes) -> bytes:
    """The old text with only some of the hunks, or of their parts, applied.

    Raises `ChangesError` (kind ``conflict``) if a hunk does not fit the text it is applied to.
    """
    old_lines = split(old)
    result: list[bytes] = []
    at = 0
    for number, hunk in _taken(found, chosen):
        before, after = _sides(hunk)
        # A side without lines names the line it comes after.
        start = hunk.old_start - 1 if hunk.old_count else hunk.old_start
        end = start + len(before)
        fits = old_lines[start:end] == before
        # An open end can only be the last line, also of a text that has grown meanwhile.
        if not fits or (after and after[-1].endswith(_OPEN_END) and end < len(old_lines)):
            raise ChangesError(
                f"hunk {number} does not fit: line {hunk.old_start} is not as it was",
                kind=Kind.CONFLICT,
                remedy="look at the changes again: the file was changed meanwhile",
            )
        result += old_lines[at:start]
        result += after
        at = end
    result += old_lines[at:]
    return joined(result)


def _taken(found: tuple[Hunk, ...], chosen: Collection[Piece]) -> Iterator[tuple[int, Hunk]]:
    """What was chosen, in the order of the text; a hunk that is taken whole has no parts."""
    whole = {piece for piece in chosen if isinstance(piece, int)}
    some = {piece for piece in chosen if not isinstance(piece, int)}
    for number in whole | {hunk for hunk, _ in some}:
        if not 0 <= number < len(found):
            raise ChangesError(
                f"there is no hunk {number}; there are {len(found)}, counted from 0",
                kind=Kind.INVALID,
            )
    for number, hunk in enumerate(found):
        if number in whole:
            yield number, hunk
            continue
        wanted = sorted(part for of, part in some if of == number)
        pieces = parts(hunk) if wanted else ()
        for part in wanted:
            if not 0 <= part < len(pieces):
                raise ChangesError(
                    f"hunk {number} has no part {part}; it has {len(pieces)}, counted from 0",
                    kind=Kind.INVALID,
                )
            yield number, pieces[part]


def joined(parts: list[bytes]) -> bytes:
    """The reverse of `split`."""
    if not parts:
        return b""
    text = b"\n".join(parts)
    return text.removesuffix(_OPEN_END) if parts[-1].endswith(_OPEN_END) else text + b"\n"


def _sides(hunk: Hunk) -> tuple[list[bytes], list[bytes]]:
    """The lines of a hunk before and after, as `split` gives them."""
    before: list[bytes] = []
    after: list[bytes] = []
    for number, line in enumerate(hunk.lines):
        mark, text = line[:1], line[1:]
        if mark == b"\\":
            continue
        if hunk.lines[number + 1 : number + 2] == (NO_NEWLINE,):
            text += _OPEN_END
        if mark != b"+":
            before.append(text)
        if mark != b"-":
            after.append(text)
    return before, after


def _whole(old: bytes, new: bytes) -> Hunk:
    """All of a text that came or went."""
    gone, come = split(old), split(new)
    shown = [*(b"-" + line for line in gone), *(b"+" + line for line in come)]
    return Hunk(min(len(gone), 1), len(gone), min(len(come), 1), len(come), _ended(shown))


def _hunk(
    found: list[_lines.Edit], old_lines: list[bytes], new_lines: list[bytes], before: int
) -> Hunk:
    at = max(0, found[0].old_from - CONTEXT)
    end = min(len(old_lines), found[-1].old_to + CONTEXT)
    old_start = at
    new_start = found[0].new_from - (found[0].old_from - at)
    shown: list[bytes] = []
    for edit in found:
        shown += [b" " + line for line in old_lines[at : edit.old_from]]
        shown += [b"-" + line for line in old_lines[edit.old_from : edit.old_to]]
        shown += [b"+" + line for line in new_lines[edit.new_from : edit.new_to]]
        at = edit.old_to
    shown += [b" " + line for line in old_lines[at:end]]
    old_count = end - old_start
    new_count = found[-1].new_to + (end - found[-1].old_to) - new_start
    return Hunk(
        before + old_start + (old_count > 0),
        old_count,
        before + new_start + (new_count > 0),
        new_count,
        _ended(shown),
    )


def _ended(shown: list[bytes]) -> tuple[bytes, ...]:
    """Lines of a hunk with the mark of an open end on a line of its own."""
    # Only the last line of a side can be one, but the old one may stand before many new ones.
    if not any(line.endswith(_OPEN_END) for line in shown):
        return tuple(shown)
    result: list[bytes] = []
    for line in shown:
        if line.endswith(_OPEN_END):
            result += [line.removesuffix(_OPEN_END), NO_NEWLINE]
        else:
            result.append(line)
    return tuple(result)


def _differing_part(old: bytes, new: bytes) -> tuple[int, int, int]:
    """Where the sides begin to differ and where each ends to, with room for context around it.

    Found on whole bytes, so that only what lies between is ever taken apart into lines.
    """
    start = old.rfind(b"\n", 0, _equal_head(old, new)) + 1
    tail = _equal_tail(old, new, start)
    # The tail may begin inside a line, which then belongs to what differs.
    line_end = old.find(b"\n", len(old) - tail) + 1 if tail else 0
    tail = len(old) - line_end if line_end else 0
    spare = CONTEXT + _lines.MAX_SLIDE
    for _ in range(spare):
        if not start:
            break
        start = old.rfind(b"\n", 0, start - 1) + 1
    end = len(old) - tail
    for _ in range(spare):
        if end == len(old):
            break
        end = old.find(b"\n", end) + 1 or len(old)
    return start, end, len(new) - (len(old) - end)


def _equal_head(old: bytes, new: bytes) -> int:
    """How many bytes both begin with."""
    return _as_far_as(min(len(old), len(new)), lambda at, end: old[at:end] == new[at:end])


def _equal_tail(old: bytes, new: bytes, start: int) -> int:
    """How many bytes both end with, not counting what comes before ``start``."""
    return _as_far_as(
        min(len(old), len(new)) - start,
        lambda at, end: old[len(old) - end : len(old) - at] == new[len(new) - end : len(new) - at],
    )


def _as_far_as(most: int, same: Callable[[int, int], bool]) -> int:
    """How far two sides agree: in steps that grow while they do, then shrink."""
    at, step = 0, 256
    growing = True
    while step:
        end = at + step
        if end <= most and same(at, end):
            at = end
            step = step * 2 if growing else step
        else:
            growing = False
            step //= 2
    return at
