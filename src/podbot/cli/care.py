"""What of a run needs care, in few lines: for `show`, the end of `podbot run`, and its menu.

What runs by itself comes last, next to the question that follows, and so stays in sight. Folders
of packages, builds and the like are one line each; what runs by itself in them is named
nevertheless, but for the commands that every such folder brings, which are one line as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from podbot.changes.folding import FEWEST
from podbot.changes.model import Change
from podbot.changes.risk.rules import COMMAND_FOLDER, Level
from podbot.cli import merges, wording
from podbot.cli.summaries import STYLES, conflict_text, counted, folded_line, network_lines
from podbot.cli.wording import Display
from podbot.review.summary import called, called_path

if TYPE_CHECKING:
    from podbot.changes.risk.judging import Flag
    from podbot.review import Summary

BY_ITSELF = "runs by itself once applied:"
WHEN_USED = "runs when used:"
CONFLICTS = "conflicts with what the host has now:"
FOLDED = "folders told in one line (`podbot changes show --all` lists all of it):"


def summary(found: Summary, display: Display, most: int | None = None) -> list[str]:
    """The changes in few lines: how many, how large, and what needs care."""
    reached = [f"network, {line}" for line in network_lines(found.entry)]
    rest = [*folders(found, display), *warnings(found, display, most=most)]
    return [total(found, display), *reached, *rest]


def total(found: Summary, display: Display) -> str:
    """How many changes there are and how large they are."""
    text = "nothing is left to apply"
    if found.changes:
        number = wording.count(len(found.changes), "change")
        text = f"{number}: {counted(found)}; {wording.size(found.size)}"
    return display.paint(text, "title")


def folders(found: Summary, display: Display) -> list[str]:
    """A line for each folder that is told in one."""
    if not found.folds:
        return []
    rows = [folded_line(fold, found)[1:] for fold in found.folds]
    return _section(FOLDED, rows, display, None)


def warnings(
    found: Summary, display: Display, *, most: int | None = None, every: bool = False
) -> list[str]:
    """Flags and conflicts, each with its reason; at most so many rows of each sort.

    ``every``: also what the line for a folder covers.
    """
    used = [
        _flag_line(flag, found)
        for flag in found.flagged(Level.WHEN_USED)
        if every or not found.is_expected(flag)
    ]
    lines = _section(display.paint(WHEN_USED, STYLES[Level.WHEN_USED]), used, display, most)
    conflicts = [
        f"  {called_path(each.change, found.changes, each.path)}: {conflict_text(each)}"
        for each in found.conflicts.values()
    ]
    lines += _section(display.paint(CONFLICTS, "danger"), conflicts, display, most)
    merged = [
        f"  {called(change, found.changes)}: with changes of {merges.runs(merge)}"
        for change, merge in found.merged
    ]
    lines += _section(display.paint(merges.TITLE, "title"), merged, display, most)
    unseen = [f"  {wording.text(note)}" for note in found.changes.notes]
    lines += _section(display.paint("not seen:", "warning"), unseen, display, most)
    return lines + by_itself(found, display, most=most, every=every)


def by_itself(
    found: Summary, display: Display, *, most: int | None = None, every: bool = False
) -> list[str]:
    """What runs by itself: the least expected last, and named whatever is left out."""
    rows: list[str] = []
    if not every:
        for folder in found.flags_by_folder(Level.BY_ITSELF):
            if folder.expected:
                rows += _commands([flag.change for flag in folder.expected], found)
    flags = [
        flag for flag in found.flagged(Level.BY_ITSELF) if every or not found.is_expected(flag)
    ]
    # What packages brought comes first: among many lines the last ones are those that are seen.
    flags.sort(key=lambda flag: flag.change.where not in found.folded)
    rows += [_flag_line(flag, found) for flag in flags]
    title = display.paint(BY_ITSELF, STYLES[Level.BY_ITSELF])
    return _section(title, rows, display, most, keep_end=True)


def _commands(changes: Sequence[Change], found: Summary) -> list[str]:
    """The commands of a folder of packages, with those named that this host has elsewhere."""
    if len(changes) < FEWEST:
        return [f"  {called(change, found.changes)}: {COMMAND_FOLDER}" for change in changes]
    first = changes[0]
    folder = called_path(first, found.changes, first.path.rpartition("/")[0], folder=True)
    names = [change.path.rpartition("/")[2] for change in changes]
    import shutil

    known = [wording.name(name) for name in names if shutil.which(name) is not None]
    line = f"  {folder}: {len(names)} commands, each can take the place of another"
    return [f"{line}; this host has {', '.join(known)} too" if known else line]


def _flag_line(flag: Flag, found: Summary) -> str:
    return f"  {called(flag.change, found.changes)}: {wording.text(flag.reason)}"


def _section(
    title: str, lines: Sequence[str], display: Display, most: int | None, *, keep_end: bool = False
) -> list[str]:
    """A title and its rows; of many only the first, or with ``keep_end`` the last."""
    if not lines:
        return []
    items = [wording.wrapped(line, display.width, 4) for line in lines]
    kept = _kept(items[::-1] if keep_end else items, most)
    left = len(items) - len(kept)
    more = [f"  … and {left} more: `podbot changes show` has them"] if left else []
    if keep_end:
        rows = [*more, *(row for item in kept[::-1] for row in item)]
    else:
        rows = [*(row for item in kept for row in item), *more]
    return [*wording.wrapped(title, display.width), *rows]


def _kept(items: Sequence[list[str]], most: int | None) -> list[list[str]]:
    """As many items from the first on as there is room for, with a row for the rest."""
    if most is None or sum(map(len, items)) <= most:
        return list(items)
    kept: list[list[str]] = []
    room = most - 1
    for item in items:
        room -= len(item)
        if room < 0 and kept:
            break
        kept.append(item)
    return kept
