"""Two edits of one text brought together: pure, on bytes, never by guessing.

Compares both sides with the text they began from, by the very edits a diff shows. Edits with at
least one untouched line between them are both made; the same edit on both sides is made once; all
others are an overlap, to be decided by a person. What has no lines to compare (binary, large) is
no merge at all. Knows nothing of files or runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain

from podbot.changes.diffs import hunks
from podbot.changes.diffs._lines import Edit
from podbot.changes.diffs.hunks import Edited
from podbot.frozen import dataclass

MAX_BYTES = 8 * 1024 * 1024
"""Texts larger than this are not merged, as they are not compared line by line either."""
MAX_LINES = 250_000
"""Nor are texts with more lines than this."""
BINARY_CHECK = 8000
"""Where a NUL makes a file binary, as git has it."""
TOO_LARGE = "it is too large to be compared line by line"


class Choice(StrEnum):
    """What to take where both sides changed the same lines."""

    HOST = "host"
    RUN = "run"
    HOST_FIRST = "host, then run"
    RUN_FIRST = "run, then host"
    BASE = "base"


@dataclass(frozen=True, slots=True)
class Overlap:
    """Lines that both sides changed, each in its own way: as both had them, and as each has them.

    The numbers are those of the first of these lines in each text, from 1 on; of a side that has
    none of them, the line they would stand before.
    """

    base_at: int
    host_at: int
    run_at: int
    base: bytes
    host: bytes
    run: bytes

    def taken(self, choice: Choice) -> bytes:
        """The lines that a choice means."""
        if choice is Choice.BASE:
            return self.base
        if choice in (Choice.HOST, Choice.RUN):
            return self.host if choice is Choice.HOST else self.run
        both = (self.host, self.run)
        return _after_each_other(both if choice is Choice.HOST_FIRST else both[::-1])


@dataclass(frozen=True, slots=True)
class Merged:
    """The text that both sides give: bytes that are resolved, and overlaps that are not, in order.

    ``problem`` says why there is no such text; then there are no parts.
    """

    parts: tuple[bytes | Overlap, ...] = ()
    problem: str | None = None

    @property
    def overlaps(self) -> tuple[Overlap, ...]:
        """What is to be decided."""
        return tuple(part for part in self.parts if isinstance(part, Overlap))

    @property
    def contents(self) -> bytes | None:
        """The whole text, if nothing is left to decide."""
        return None if self.problem or self.overlaps else self.decided(())

    def decided(self, choices: Sequence[Choice]) -> bytes:
        """The whole text with a choice for each overlap, in their order."""
        rest = iter(choices)
        chosen = (p.taken(next(rest)) if isinstance(p, Overlap) else p for p in self.parts)
        return _after_each_other(tuple(chosen))


def merge(base: bytes | None, host: bytes, run: bytes) -> Merged:
    """What two sides made of one text, as one text; of none at all if the base is None.

    What both added anew is one overlap unless it is the same, even where one of them is empty:
    nobody took the lines of the other out.
    """
    if run in (host, base):
        return Merged((host,))
    if base == host:
        return Merged((run,))
    problem = _problem(base or b"", host, run)
    if problem is not None:
        return Merged(problem=problem)
    if base is None:
        return Merged((Overlap(1, 1, 1, b"", host, run),))
    return Merged(tuple(_parts(hunks.edited(base, host), hunks.edited(base, run))))


def _problem(*sides: bytes) -> str | None:
    """Why texts are not to be compared line by line."""
    if any(b"\0" in side[:BINARY_CHECK] for side in sides):
        return "it is binary"
    if any(len(side) > MAX_BYTES or side.count(b"\n") > MAX_LINES for side in sides):
        return TOO_LARGE
    return None


def _parts(host: Edited, run: Edited) -> Iterator[bytes | Overlap]:
    """What is resolved, and what overlaps, from the top to the bottom."""
    resolved: list[bytes] = []
    at = host_shift = run_shift = 0
    for ours, theirs in _groups(host.edits, run.edits):
        start = min(edit.old_from for edit in chain(ours, theirs))
        end = max(edit.old_to for edit in chain(ours, theirs))
        resolved += host.old[at:start]
        host_at, run_at = start + host_shift, start + run_shift
        host_shift += sum(_growth(edit) for edit in ours)
        run_shift += sum(_growth(edit) for edit in theirs)
        host_lines = host.new[host_at : end + host_shift]
        run_lines = run.new[run_at : end + run_shift]
        at = end
        if not theirs or host_lines == run_lines:
            resolved += host_lines
        elif not ours:
            resolved += run_lines
        else:
            if resolved:
                yield hunks.joined(resolved)
                resolved = []
            texts = (hunks.joined(each) for each in (host.old[start:end], host_lines, run_lines))
            yield Overlap(start + 1, host_at + 1, run_at + 1, *texts)
    resolved += host.old[at:]
    if resolved:
        yield hunks.joined(resolved)


def _groups(host: Sequence[Edit], run: Sequence[Edit]) -> Iterator[tuple[list[Edit], list[Edit]]]:
    """Edits of both sides, together where no untouched line lies between them."""
    waiting = sorted(
        [(edit, True) for edit in host] + [(edit, False) for edit in run],
        key=lambda each: (each[0].old_from, each[0].old_to),
    )
    group: tuple[list[Edit], list[Edit]] = ([], [])
    end = -1
    for edit, of_host in waiting:
        if edit.old_from > end >= 0:
            yield group
            group = ([], [])
        group[0 if of_host else 1].append(edit)
        end = max(end, edit.old_to)
    if end >= 0:
        yield group


def _growth(edit: Edit) -> int:
    return (edit.new_to - edit.new_from) - (edit.old_to - edit.old_from)


def _after_each_other(parts: Sequence[bytes]) -> bytes:
    """Texts one after the other; only the last line of all may be without a line end."""
    result = bytearray()
    for part in parts:
        if part and result and not result.endswith(b"\n"):
            result += b"\n"
        result += part
    return bytes(result)
