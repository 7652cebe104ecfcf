"""Diffs with colours; what they say is the business of `podbot.changes.diff`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from podbot.changes.diff import FileDiff, diff, for_people
from podbot.changes.model import Change, ChangeSet
from podbot.changes.text import shown_lines
from podbot.cli.look import Look, Style

_STYLES: dict[str, Style] = {"+": "added", "-": "removed", "@": "hunk", "\\": "faint"}


def diff_lines(changes: ChangeSet, chosen: Iterable[Change], look: Look) -> Iterator[str]:
    """The diffs of some changes, compared as they are read."""
    for change in chosen:
        in_hunks = False
        for line in for_people(diff(changes, change)):
            # No line above the hunks begins like this, and each line in them has its mark.
            in_hunks = in_hunks or line.startswith("@@ ")
            yield look.paint(line, _STYLES.get(line[:1]) if in_hunks else "title")


def body(compared: FileDiff, look: Look) -> Iterator[str]:
    """A diff without the lines that only name the file."""
    if compared.note is not None:
        yield f"({compared.note})"
    for number in range(len(compared.hunks)):
        yield from hunk_lines(compared, number, look)


def hunk_lines(compared: FileDiff, number: int, look: Look) -> Iterator[str]:
    """One hunk, counted from 0."""
    hunk = compared.hunks[number]
    yield look.paint(hunk.header, "hunk")
    for line in shown_lines(hunk.lines):
        yield look.paint(line, _STYLES.get(line[:1]))
