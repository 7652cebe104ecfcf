"""What became of the changes of a run, as lines for a person, with what to type next.

`podbot.review` does the work; nothing here prints or asks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from podbot.cli import remedies, wording
from podbot.cli.progress import Progress
from podbot.errors import PodbotError
from podbot.review.summary import called

if TYPE_CHECKING:
    from podbot.changes.applying.apply import Applied
    from podbot.changes.applying.undo import Undone
    from podbot.review import Consent, Review, Saved
    from podbot.runs.records import Entry

MOST_PATHS = 3
"""More than these are too many to be named in a command to paste."""
MOST_ALLOWED = 20


def allowed(consent: Consent) -> list[str]:
    """What was agreed to without being named."""
    if not consent.unnamed:
        return []
    things = wording.count(len(consent.unnamed), "thing")
    names = [f"  {called(change, consent.of)}" for change in consent.unnamed]
    return [
        f"allowed, although each runs by itself once applied: {things}",
        *wording.listed(names, MOST_ALLOWED),
    ]


def applied(found: Review, outcome: Applied) -> list[str]:
    """What was applied, for a person."""
    entry = found.entry
    if not (outcome.changed or outcome.skipped):
        return ["nothing is left to apply"]
    number = wording.count(len(outcome.changed), "change")
    lines = [f"applied {number}" if outcome.changed else "nothing was applied"]
    for change, reason in outcome.skipped:
        lines.append(_not_done(change.where, reason))
    if outcome.skipped:
        paths = _to_paste(entry, [change.where for change, _ in outcome.skipped])
        what = "that" if len(outcome.skipped) == 1 else "those"
        lines.append(f"to decide on {what}: {remedies.command('pick', entry.called, paths)}")
    if outcome.changed:
        word, left = wording.called(entry.called), _left(found)
        if left:
            lines.append(f"{wording.count(left, 'change')} left: podbot changes show {word}")
        lines.append(f"to take it back: podbot changes undo {word}")
    return lines


def _not_done(where: str, reason: str) -> str:
    """A path that was left as it is, with the reason, in which runs have their names."""
    return f"  not {wording.name(where)}: {wording.text(remedies.with_names(reason))}"


def _left(found: Review) -> int:
    """How many changes of a run the host does not have yet; none if that cannot be told."""
    try:
        return 0 if found.entry.layer is None else len(found.changes)
    except Exception:  # whatever is in the layer, what was applied must be told
        return 0


def amount(found: Review) -> str:
    """How many changes there are, as far as that can be told."""
    try:
        with Progress("reading the changes"):
            return wording.count(len(found.changes), "change")
    except PodbotError:
        return "what may be left"


def discard_question(found: Review) -> str:
    """What a person should know before they throw something away."""
    what, called = amount(found), wording.name(found.entry.called)
    question = f"throw {what} of {called} away for good"
    record = found.entry.record
    if record is not None and record.earlier:
        number = wording.count(len(record.earlier), "earlier command")
        question = f"throw all of {called}, {what}, away for good, those of {number} too"
    if any(not each.undone for each in found.applications):
        question += ", with the means to undo what was applied"
    return f"{question}?"


def undone(found: Review, outcome: Undone, paths: Sequence[str] = ()) -> list[str]:
    """What was undone, for a person who may have asked for some paths only."""
    entry = found.entry
    number = wording.count(len(outcome.restored), "path")
    lines = [f"undone: {number} as before" if outcome.restored else "nothing was undone"]
    lines += [_not_done(where, reason) for where, reason in outcome.skipped]
    for where, file in outcome.kept:
        lines.append(f"  {wording.name(where)}: what you had there is now {wording.name(file)}")
    rest = remedies.command("undo", entry.called)
    if outcome.skipped:  # without more it would be refused
        over = ("--on-conflict", "overwrite")
        rest = remedies.command("undo", entry.called, options=over)
        rest += " (puts what you have there now aside)"
    if outcome.left > outcome.left_earlier:
        lines.append(f"{_still(outcome.left - outcome.left_earlier)}: {rest}")
    if outcome.left_earlier:
        lines.append(f"{_still(outcome.left_earlier)} by an earlier application: {rest}")
    if outcome.restored:
        lines.append(_again(found, outcome, paths))
    return lines


def _again(found: Review, outcome: Undone, paths: Sequence[str]) -> str:
    """How to apply what was undone again, and not what was never applied with it."""
    entry = found.entry
    if not paths and _left(found) > len(outcome.restored):
        if len(outcome.restored) > MOST_PATHS:
            return f"to apply some of it again: {remedies.command('pick', entry.called)}"
        paths = _to_paste(entry, sorted(outcome.restored))
    return f"to apply it again: {remedies.command('apply', entry.called, paths)}"


def _to_paste(entry: Entry, paths: Sequence[str]) -> list[str]:
    """Absolute paths as one would type them, none if they are too many."""
    if len(paths) > MOST_PATHS:
        return []
    short = len(entry.targets) == 1
    return [os.path.relpath(path, entry.targets[0]) if short else path for path in paths]


def _still(count: int) -> str:
    return f"{wording.count(count, 'path')} still applied"


def saved(outcome: Saved) -> str:
    """What was saved."""
    number, size = wording.count(outcome.changes_count, "change"), wording.size(outcome.size)
    return f"saved {number} in {wording.name(outcome.file)} ({size})"
