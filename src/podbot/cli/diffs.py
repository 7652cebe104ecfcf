"""Diffs with colours; what they say is the business of `podbot.changes.diffs.diff`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from podbot.changes.diffs.diff import ESCAPED, WAS_TEXT, FileDiff, diff, for_people
from podbot.changes.diffs.hunks import Hunk
from podbot.changes.diffs.text import shown_lines
from podbot.changes.drift import Conflict, ConflictKind
from podbot.changes.model import Change, ChangeSet
from podbot.cli import merges, remedies, wording
from podbot.cli.summaries import folded_line
from podbot.cli.wording import Display, Style, wrapped
from podbot.review.summary import Summary

_STYLES: dict[str, Style] = {"+": "added", "-": "removed", "@": "hunk", "\\": "faint"}


def diffs_but_folded(found: Summary, display: Display) -> Iterator[str]:
    """The diffs of all changes that the line for their folder does not cover; then those lines."""
    chosen = [change for change in found.changes if not found.is_folded(change)]
    yield from diff_lines(found.changes, chosen, display, found.conflicts)
    for fold in found.folds:
        hidden = found.folded_in(fold)
        if hidden:
            title = f"{folded_line(fold, found, hidden).strip()}; --all shows them"
            yield from wrapped(display.paint(title, "title"), display.width)


def diff_lines(
    changes: ChangeSet,
    chosen: Iterable[Change],
    display: Display,
    conflicts: Mapping[str, Conflict],
) -> Iterator[str]:
    """The diffs of some changes, compared as they are read; ``conflicts`` are by their path."""
    for change in chosen:
        conflict = conflicts.get(change.where)
        if conflict is not None and conflict.kind != ConflictKind.OVERLAP:
            yield display.paint(f"(in conflict: {_why(conflict)})", "danger")
        in_hunks = False
        for line in for_people(diff(changes, change)):
            # No line above the hunks begins like this, and each line in them has its mark.
            in_hunks = in_hunks or line.startswith("@@ ")
            above: Style = "danger" if line.startswith(f"({WAS_TEXT}") else "title"
            yield display.paint(line, _STYLES.get(line[:1]) if in_hunks else above)
        merge = changes.merges.get(change.where)
        if merge is not None:
            yield from merges.sides(merge, display)


def _why(conflict: Conflict) -> str:
    """What the host did; the lines of an overlap say more, and stand below its diff."""
    said = wording.text(remedies.with_names(conflict.message))
    if conflict.host is None:
        return said
    return f"{said}; these lines are against what it has now"


def body(compared: FileDiff, display: Display) -> Iterator[str]:
    """A diff without the lines that only name the file."""
    if compared.note is not None:
        yield display.paint(f"({compared.note})", "danger" if compared.was_text else None)
    if compared.escaped:
        yield ESCAPED
    for hunk in compared.hunks or compared.escaped:
        yield from lines_of(hunk, display)


def lines_of(hunk: Hunk, display: Display) -> Iterator[str]:
    """The lines of one hunk, below its header."""
    yield display.paint(hunk.header, "hunk")
    for line in shown_lines(hunk.lines):
        yield display.paint(line, _STYLES.get(line[:1]))
