"""Which lines of one text became which lines of another: pure, exact, and bounded.

Knows nothing of files or hunks. Few edits are found by Myers' walk, many by walking between lines
that are unique on both sides. All work is paid for from one budget: texts made to be hard to
compare get a coarser answer, never a wrong one and never a slow one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

QUICK_EDITS = 12
"""How many edits are tried for before the lines are counted."""
MOST_EDITS = 96
"""How many edits one walk may find; more means looking for unique lines first."""
STRIDE_EDITS = 24
"""How many edits a walk takes at once where no line is unique."""
BUDGET = 1_000_000
"""Steps one comparison may take; a step is about half a microsecond."""
MAX_SLIDE = 16
"""How far an edit is moved over equal lines to where a person would have made it."""

_CHUNK = 64


class Edit(NamedTuple):
    """Lines from ``old_from`` up to ``old_to`` gave way to ``new_from`` up to ``new_to``."""

    old_from: int
    old_to: int
    new_from: int
    new_to: int


class _Range(NamedTuple):
    """A stretch of both sides that is still to be compared."""

    old_from: int
    old_to: int
    new_from: int
    new_to: int


_Run = tuple[int, int, int]
"""Where equal lines begin, old and new, and how many they are."""


def edits(old: Sequence[bytes], new: Sequence[bytes]) -> list[Edit]:
    """What to replace in ``old`` to get ``new``: in order, with an equal line between any two."""
    return _gaps(_Comparison(list(old), list(new)).runs(), len(old), len(new))


def slid(found: list[Edit], old: Sequence[bytes], new: Sequence[bytes], margin: int) -> list[Edit]:
    """The same edits, each insertion or deletion moved to where it reads best.

    Between equal lines there is more than one true place for it: it should begin with the least
    indented line. The first and last ``margin`` lines are left alone.
    """
    result: list[Edit] = []
    for number, edit in enumerate(found):
        if edit.old_from == edit.old_to:
            lines, start, end = new, edit.new_from, edit.new_to
        elif edit.new_from == edit.new_to:
            lines, start, end = old, edit.old_from, edit.old_to
        else:
            result.append(edit)
            continue
        room_above, room_below = edit.old_from - margin, len(old) - edit.old_to - margin
        if result:  # one equal line stays between two edits
            room_above = min(room_above, edit.old_from - result[-1].old_to - 1)
        if number + 1 < len(found):
            room_below = min(room_below, found[number + 1].old_from - edit.old_to - 1)
        shift = _best_shift(lines, start, end, (room_above, room_below))
        result.append(Edit(*(place + shift for place in edit)) if shift else edit)
    return result


def _best_shift(lines: Sequence[bytes], start: int, end: int, room: tuple[int, int]) -> int:
    up = down = 0
    most_up, most_down = min(room[0], MAX_SLIDE), min(room[1], MAX_SLIDE)
    while up < most_up and lines[start - up - 1] == lines[end - up - 1]:
        up += 1
    while down < most_down and lines[start + down] == lines[end + down]:
        down += 1
    if not up and not down:
        return 0
    # The lowest place of those that read equally well, as git has it.
    return min(range(down, -up - 1, -1), key=lambda shift: _awkwardness(lines[start + shift]))


def _awkwardness(first: bytes) -> int:
    """How odd an edit looks that begins with this line: by its indentation, blank lines worst."""
    text = first.lstrip(b" \t")
    if not text.strip():
        return 1000
    return 8 * first.count(b"\t", 0, len(first) - len(text)) + len(first) - len(text)


class _Comparison:
    """One comparison and what is left of its budget."""

    def __init__(self, old: list[bytes], new: list[bytes]):
        self._old = old
        self._new = new
        self._budget = BUDGET

    def runs(self) -> list[_Run]:
        """All equal stretches that were found, in order."""
        found: list[_Run] = []
        # Last in, first out: what comes first in the text is pushed last, so runs come in order.
        ahead: list[_Range | _Run] = [_Range(0, len(self._old), 0, len(self._new))]
        while ahead:
            item = ahead.pop()
            if isinstance(item, _Range):
                ahead += reversed(self._split(item))
            else:
                found.append(item)
        return found

    def _split(self, part: _Range) -> list[_Range | _Run]:
        """Equal lines of a stretch, and the smaller stretches between them still to be compared."""
        old_from, old_to, new_from, new_to = part
        head = _common_head(self._old, self._new, part)
        tail = _common_tail(
            self._old, self._new, _Range(old_from + head, old_to, new_from + head, new_to)
        )
        inner = _Range(old_from + head, old_to - tail, new_from + head, new_to - tail)
        found: list[_Range | _Run] = []
        if head:
            found.append((old_from, new_from, head))
        if inner.old_from < inner.old_to and inner.new_from < inner.new_to:
            found += self._compare(inner)
        if tail:
            found.append((inner.old_to, inner.new_to, tail))
        return found

    def _compare(self, part: _Range) -> list[_Range | _Run]:
        old = self._old[part.old_from : part.old_to]
        new = self._new[part.new_from : part.new_to]
        self._budget -= len(old) + len(new)
        if self._budget <= 0:
            return []
        if abs(len(old) - len(new)) <= QUICK_EDITS:
            runs, end = self._walk(old, new, QUICK_EDITS)
            if end == (len(old), len(new)):
                return [(part.old_from + x, part.new_from + y, size) for x, y, size in runs]
        # Lines the other side does not have cannot be matched: leave them out of the search.
        old_counts, new_counts = Counter(old), Counter(new)
        common = old_counts.keys() & new_counts.keys()
        if not common:
            return []
        old_places = [place for place, line in enumerate(old) if line in common]
        new_places = [place for place, line in enumerate(new) if line in common]
        kept_old = [old[place] for place in old_places]
        kept_new = [new[place] for place in new_places]
        if abs(len(kept_old) - len(kept_new)) <= MOST_EDITS:
            runs, end = self._walk(kept_old, kept_new, MOST_EDITS)
            if end == (len(kept_old), len(kept_new)):
                return _spread(runs, old_places, new_places, part)
        unique = {line for line in common if old_counts[line] == new_counts[line] == 1}
        anchors = _anchors(kept_old, kept_new, unique)
        if anchors:
            return _between(_spread(anchors, old_places, new_places, part), part)
        return self._stride((kept_old, kept_new), (old_places, new_places), part)

    def _stride(
        self,
        kept: tuple[list[bytes], list[bytes]],
        places: tuple[list[int], list[int]],
        part: _Range,
    ) -> list[_Range | _Run]:
        """Without a unique line: go as far as some edits lead, and again from there."""
        old, new = kept
        runs: list[_Run] = []
        x = y = 0
        while self._budget > 0 and x < len(old) and y < len(new):
            window = 4 * MOST_EDITS
            far_x, far_y = x + window, y + window
            found, (gone_x, gone_y) = self._walk(old[x:far_x], new[y:far_y], STRIDE_EDITS)
            runs += [(x + run_x, y + run_y, size) for run_x, run_y, size in found]
            x, y = x + gone_x, y + gone_y
        return _spread(runs, *places, part)

    def _walk(
        self, old: list[bytes], new: list[bytes], most: int
    ) -> tuple[list[_Run], tuple[int, int]]:
        """Myers' greedy walk: the fewest edits, and how far up to ``most`` of them lead."""
        height, width = len(old), len(new)
        # reach[k]: how far down the old side the walk has come on diagonal k; negative k wrap.
        reach = [0] * (2 * most + 3)
        trace: list[list[int]] = []
        for count in range(most + 1):
            trace.append(reach[:])
            steps = 0
            low = -count + 2 * max(0, count - width)
            high = count - 2 * max(0, count - height)
            for k in range(low, high + 1, 2):
                above, left = reach[k + 1], reach[k - 1]
                x = above if k == -count or (k != count and left < above) else left + 1
                y = x - k
                if x < height and y < width and old[x] == new[y]:
                    start = x
                    x = _follow(old, new, x, y)
                    y = x - k
                    steps += (x - start) >> 4
                reach[k] = x
                if x >= height and y >= width:
                    self._budget -= steps + count
                    return _retrace(trace, (height, width)), (height, width)
            self._budget -= steps + count
            if self._budget <= 0:
                break
        ends = [
            (reach[k], reach[k] - k)
            for k in range(low, high + 1, 2)
            if reach[k] <= height and reach[k] - k <= width
        ]
        end = max(ends, key=sum, default=(0, 0))
        return _retrace(trace, end), end


def _follow(old: list[bytes], new: list[bytes], x: int, y: int) -> int:
    """Where the equal lines that begin at x and y end, on the old side."""
    last = min(len(old), len(new) + x - y)
    shift = y - x
    x += 1
    near = min(last, x + 8)
    while x < near and old[x] == new[x + shift]:
        x += 1
    if x < near:
        return x
    # Slices are compared in C; only the chunk that differs is gone through line by line.
    while x + _CHUNK <= last and old[x : x + _CHUNK] == new[x + shift : x + shift + _CHUNK]:
        x += _CHUNK
    while x < last and old[x] == new[x + shift]:
        x += 1
    return x


def _retrace(trace: list[list[int]], end: tuple[int, int]) -> list[_Run]:
    """The equal runs on the way a walk took to a point."""
    x, y = end
    runs: list[_Run] = []
    for count in range(len(trace) - 1, -1, -1):
        reach = trace[count]
        k = x - y
        if count == 0:
            came_x, start_x = 0, 0
        elif k == -count or (k != count and reach[k - 1] < reach[k + 1]):
            came_x = start_x = reach[k + 1]
            k += 1
        else:
            came_x = reach[k - 1]
            start_x = came_x + 1
            k -= 1
        if x > start_x:
            size = x - start_x
            runs.append((start_x, y - size, size))
        x, y = came_x, came_x - k
    runs.reverse()
    return runs


def _common_head(old: list[bytes], new: list[bytes], part: _Range) -> int:
    x, y = part.old_from, part.new_from
    most = min(part.old_to - x, part.new_to - y)
    size = 0
    while size + _CHUNK <= most and (
        old[x + size : x + size + _CHUNK] == new[y + size : y + size + _CHUNK]
    ):
        size += _CHUNK
    while size < most and old[x + size] == new[y + size]:
        size += 1
    return size


def _common_tail(old: list[bytes], new: list[bytes], part: _Range) -> int:
    x, y = part.old_to, part.new_to
    most = min(x - part.old_from, y - part.new_from)
    size = 0
    while size + _CHUNK <= most and (
        old[x - size - _CHUNK : x - size] == new[y - size - _CHUNK : y - size]
    ):
        size += _CHUNK
    while size < most and old[x - size - 1] == new[y - size - 1]:
        size += 1
    return size


def _anchors(old: list[bytes], new: list[bytes], unique: set[bytes]) -> list[_Run]:
    """Unique lines that come in the same order on both sides: as many as there can be."""
    if not unique:
        return []
    where = {line: place for place, line in enumerate(new) if line in unique}
    pairs = [(place, where[line]) for place, line in enumerate(old) if line in unique]
    # The longest rising sequence: patience sorting, with a way back through the piles.
    tops: list[int] = []
    members: list[int] = []
    before: list[int] = []
    for number, (_, place) in enumerate(pairs):
        pile = bisect_left(tops, place)
        before.append(members[pile - 1] if pile else -1)
        tops[pile : pile + 1] = [place]
        members[pile : pile + 1] = [number]
    chain: list[_Run] = []
    number = members[-1]
    while number >= 0:
        chain.append((*pairs[number], 1))
        number = before[number]
    chain.reverse()
    return chain


def _spread(
    runs: list[_Run], old_places: list[int], new_places: list[int], part: _Range
) -> list[_Range | _Run]:
    """Runs found among kept lines, as runs of the whole text."""
    spread: list[_Range | _Run] = []
    at = (-1, -1)
    size = 0
    for run_x, run_y, count in runs:
        for step in range(count):
            x = part.old_from + old_places[run_x + step]
            y = part.new_from + new_places[run_y + step]
            if size and (x, y) == (at[0] + size, at[1] + size):
                size += 1
                continue
            if size:
                spread.append((*at, size))
            at, size = (x, y), 1
    if size:
        spread.append((*at, size))
    return spread


def _between(anchors: list[_Range | _Run], part: _Range) -> list[_Range | _Run]:
    """Anchors with the stretches before, between and after them."""
    found: list[_Range | _Run] = []
    x, y = part.old_from, part.new_from
    for anchor in anchors:
        old_at, new_at, size = anchor[:3]
        if old_at > x and new_at > y:
            found.append(_Range(x, old_at, y, new_at))
        found.append(anchor)
        x, y = old_at + size, new_at + size
    if part.old_to > x and part.new_to > y:
        found.append(_Range(x, part.old_to, y, part.new_to))
    return found


def _gaps(runs: list[_Run], old_size: int, new_size: int) -> list[Edit]:
    """What lies between the equal runs."""
    found: list[Edit] = []
    x = y = 0
    for run_x, run_y, size in [*runs, (old_size, new_size, 0)]:
        if run_x > x or run_y > y:
            found.append(Edit(x, run_x, y, run_y))
        x, y = run_x + size, run_y + size
    return found
