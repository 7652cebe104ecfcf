"""What is known of a run before deciding on its changes, as lines for a person.

The findings come from `podbot.review` (whose `data` makes JSON of them). Decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, State
from podbot.changes.risk.rules import Level
from podbot.cli import remedies, wording
from podbot.cli.progress import Progress
from podbot.cli.wording import Display, Style
from podbot.review.summary import called, called_path
from podbot.sandbox import connections

if TYPE_CHECKING:
    from podbot.changes.applying.applied import Application
    from podbot.changes.diffs.diff import FileDiff
    from podbot.changes.drift import Conflict
    from podbot.changes.folding import Fold
    from podbot.cli.remedies import Given
    from podbot.review import Review, Summary
    from podbot.runs.records import Entry, Past

MOST_HOSTS = 12
"""How many hosts a line names."""
MOST_LISTED = 20
"""How many flags or conflicts a summary names before it only counts."""
CHANGE_INDENT = 26
"""Where the names begin in a list of changes."""
MOST_LETTERS = 4
"""How many unusual letters of a name are spelled out."""

LETTERS: dict[ChangeKind, tuple[str, Style | None]] = {
    ChangeKind.ADDED: ("A", "added"),
    ChangeKind.MODIFIED: ("M", None),
    ChangeKind.DELETED: ("D", "removed"),
    ChangeKind.REPLACED: ("T", "warning"),
    ChangeKind.RENAMED: ("R", None),
    ChangeKind.MODE: ("m", None),
    ChangeKind.LINK: ("L", None),
    ChangeKind.HARD_LINK: ("H", None),
    ChangeKind.SPECIAL: ("S", "warning"),
}
"""How a change is marked in a list, and in which colour."""

_SAID = {
    ChangeKind.MODE: "changed in mode or time",
    ChangeKind.LINK: "symbolic link",
    ChangeKind.HARD_LINK: "hard link",
    ChangeKind.SPECIAL: "special file",
}

STYLES: dict[Level, Style] = {Level.BY_ITSELF: "danger", Level.WHEN_USED: "warning"}


@contextmanager
def doing(what: str, found: Review, given: Given) -> Iterator[None]:
    """Say what is being done with a run if it takes long, and if it fails, what to type."""
    with remedies.typed(found.entry.called, given), Progress(what):
        yield


def summarized(found: Review, changes: ChangeSet | None = None) -> Summary:
    """All about the changes of a run, or about some of them; says what is done if it takes long."""
    with Progress("reading the changes"):
        whole = found.changes
    with Progress("looking for what needs care"):
        if changes is None or changes is whole:
            return found.summary
        return found.summary_of(changes)


# Names and amounts


def described(change: Change, changes: ChangeSet) -> str:
    """A change by its name, with where it came from or leads to."""
    shown = called(change, changes)
    if change.kind in (ChangeKind.RENAMED, ChangeKind.HARD_LINK) and change.source is not None:
        source = called_path(change, changes, change.source)
        arrow = "→" if change.kind is ChangeKind.RENAMED else "is also"
        return f"{source} {arrow} {shown}"
    if change.new is not None and change.new.type is FileType.LINK:
        return f"{shown} → {wording.name(change.new.link or '')}"
    return shown


def counted(found: Summary) -> str:
    """How many of each kind: ``3 added, 1 deleted``."""
    numbers = found.counts.items()
    return ", ".join(f"{count} {_SAID.get(kind, kind.value)}" for kind, count in numbers if count)


def side(state: State | None) -> str:
    """What lies at a path, in a few words."""
    if state is None:
        return "nothing"
    when = wording.moment(state.mtime_ns / 1e9)
    if state.type is FileType.FILE:
        return f"{wording.size(state.size)} of {when}"
    if state.type is FileType.LINK:
        return f"link to {wording.name(state.link or '')}"
    return f"{state.type} of {when}"


# Lines


def heading(entry: Entry, display: Display) -> list[str]:
    """What was run, when and how it ended."""
    title = entry.id + (f" ({wording.name(entry.name)})" if entry.name else "")
    rows = [("run", title), ("status", _status(entry))]
    record = entry.record
    if record is not None:
        for past in record.earlier:
            command = wording.words(past.command) or "a program"
            rows.append(("earlier", f"{command}, {ending(past)}"))
        if record.command:
            rows.append(("command", wording.words(record.command)))
    if entry.made_by and (record is None or record.title is not None or not record.command):
        rows.append(("made by", wording.text(entry.made_by)))
    rows.append(("started", _started(entry)))
    rows += [("target", wording.name(target)) for target in entry.targets]
    if record is not None:
        rows.append(
            ("sandbox", f"{wording.name(record.backend)}, network {wording.name(record.network)}")
        )
        rows += [("net", line) for line in network_lines(entry)]
        open_ = [each for each in record.guarantees if not each.enforced]
        rows += [("gap", f"{wording.name(each.name)}: {wording.text(each.by)}") for each in open_]
        if record.notes:
            from podbot.cli.notes import typed  # a list needs none of it

            rows += [("note", wording.text(typed(note))) for note in record.notes]
    return _labelled(rows, display)


def network_lines(entry: Entry) -> list[str]:
    """What a run reached through the proxy, and what it was refused; nothing if it had none."""
    if entry.layer is None or not connections.place(entry.layer).exists():
        return []
    from podbot.review.connections import contacts  # few runs have any
    from podbot.sandbox.telemetry import is_telemetry

    found = contacts(entry)
    quiet = [each for each in found if each.verdict == "refused" and is_telemetry(each.host)]
    lines = []
    for word in ("allowed", "failed", "refused"):
        places = [
            f"{wording.name(each.host)}:{each.port}" + (f" ({each.count})" * (each.count > 1))
            for each in found
            if each.verdict == word and each not in quiet
        ]
        if word == "refused" and quiet:
            times = sum(each.count for each in quiet)
            places.append("telemetry" + f" ({times})" * (times > 1))
        if places:
            said = "reached" if word == "allowed" else word
            lines.append(f"{said}: {', '.join(wording.listed(places, MOST_HOSTS))}")
    return lines


def _labelled(rows: Iterable[tuple[str, str]], display: Display) -> list[str]:
    lines = (f"{display.paint(wording.padded(word, 8), 'title')} {text}" for word, text in rows)
    return [row for line in lines for row in wording.wrapped(line, display.width, 9)]


def _status(entry: Entry) -> str:
    if entry.status == "running":
        return "running: this is what it has changed so far"
    if entry.status == "broken off":
        return "broken off: podbot was killed; what it had changed is there"
    if entry.status != "kept" and entry.record is not None and entry.record.ended is not None:
        return ending(entry.record.past)
    return entry.status


def short_status(entry: Entry) -> str:
    """The same in a word or two."""
    record = entry.record
    if record is None or record.ended is None or entry.status in ("running", "kept"):
        return entry.status
    return "failed" if record.error is not None else ending(record.past).replace(" status", "")


def _started(entry: Entry) -> str:
    ago = wording.duration(max(0.0, time.time() - entry.started))
    text = f"{wording.moment(entry.started)} ({ago} ago)"
    if entry.record is not None and entry.record.ended is not None:
        text += f", took {wording.duration(entry.record.ended - entry.record.started)}"
    return text


def ending(past: Past) -> str:
    """How a run ended."""
    if past.error is not None:
        return f"podbot failed: {wording.text(past.error)}"
    if past.timed_out:
        return "timed out"
    if past.signal is not None:
        return f"killed by signal {past.signal}"
    if past.exit_status is None:
        return "broken off" if past.ended is None else "ended"
    return f"exit status {past.exit_status}"


def history(applications: Iterable[Application], display: Display) -> list[str]:
    """What was applied, and undone again."""
    rows = []
    for each in applications:
        text = f"{wording.moment(each.when)}, {wording.count(each.paths, 'path')}"
        rows.append(("undone" if each.undone else "applied", text))
        rows += [("", f"not taken back: {wording.text(why)}") for why in each.left]
    return _labelled(rows, display)


def conflict_text(conflict: Conflict) -> str:
    """What stands in the way of a change, and both sides."""
    # What the policy hid was not looked at, which is not the same as nothing being there.
    host = "hidden" if conflict.kind == "hidden" else side(conflict.host)
    sides = f"host: {host}; sandbox: {side(conflict.change.new)}"
    return f"{wording.text(remedies.with_names(conflict.message))} ({sides})"


def change_line(change: Change, summary: Summary, diff: FileDiff, display: Display) -> str:
    """One change in a list: its letter, lines, size, name, and what is special about it."""
    letter, style = LETTERS[change.kind]
    lines = f"+{diff.added} -{diff.removed}" if diff.added or diff.removed else ""
    if diff.binary or diff.large:
        lines = "binary" if diff.binary else "large"  # there are lines that nobody has been shown
    text = f"{display.paint(letter, style)}  {lines:<11}  {_amount(change):>8}  "
    text += display.paint(described(change, summary.changes), style)
    text += _remarks(change, summary, display)
    return text + (
        "  " + display.paint("! was text, is binary now", "danger") if diff.was_text else ""
    )


def change_title(change: Change, summary: Summary, display: Display) -> str:
    """One change by itself: what happened, to which name, and what is special about it."""
    text = f"{_SAID.get(change.kind, change.kind.value)} {described(change, summary.changes)}"
    amount = _amount(change)
    text = display.paint(f"{text}, {amount}" if amount else text, "title")
    return text + _remarks(change, summary, display)


def _amount(change: Change) -> str:
    is_file = change.new is not None and change.new.type is FileType.FILE
    return wording.size(change.size) if is_file else ""


def _remarks(change: Change, summary: Summary, display: Display) -> str:
    text = ""
    marks = [*_marks(change), *_odd_letters(change)]
    if marks:
        text += f"  ({'; '.join(marks)})"
    flags = summary.flags.get(change.where, ())
    for level in Level:
        if any(flag.level is level for flag in flags):
            text += "  " + display.paint(f"! {level}", STYLES[level])
    if change.where in summary.conflicts:
        text += "  " + display.paint("! conflict", "danger")
    return text


def _odd_letters(change: Change) -> list[str]:
    """Letters in its names that look like others, or that move those beside them."""
    from podbot.changes.diffs.text import unusual_letters

    link = change.new.link if change.new is not None else None
    letters = dict.fromkeys(
        letter
        for name in (change.path, change.source, link)
        if name is not None
        for letter in unusual_letters(name)
    )
    if not letters:
        return []
    more = ", …" if len(letters) > MOST_LETTERS else ""
    return [f"unusual letters: {', '.join([*letters][:MOST_LETTERS])}{more}"]


def _marks(change: Change) -> list[str]:
    """What changed besides the contents."""
    from podbot.changes.diffs.states import WORDS, differences

    old, new = change.old, change.new
    if new is None:
        return []
    if old is not None and old.type is not new.type:
        return [f"was a {WORDS[old.type]}", *differences(None, new)]
    marks = differences(old, new)
    # A diff has a header for the right to run a file; here it is a mark like the others.
    if old is not None and old.executable != new.executable:
        marks = [mark for mark in marks if not mark.startswith("mode ")]
        marks.insert(0, f"mode {old.mode:04o} → {new.mode:04o}")
    return marks


def change_lines(summary: Summary, display: Display, *, every: bool = False) -> Iterator[str]:
    """A line for each change, compared as it is read; one for each folder that may be folded."""
    from podbot.changes.diffs.diff import diff

    for change in summary.changes:
        if every or not summary.is_folded(change):
            line = change_line(change, summary, diff(summary.changes, change), display)
            yield from wording.wrapped(line, display.width, CHANGE_INDENT)
    for fold in () if every else summary.folds:
        number = summary.folded_in(fold)
        if number:
            yield from wording.wrapped(folded_line(fold, summary, number), display.width, 3)


def folded_line(fold: Fold, summary: Summary, number: int | None = None) -> str:
    """A folder as one line: how many changes (``number`` of them not told apart), size, and why."""
    place = place_of(fold, summary.changes)
    if fold.source is not None:
        return f"   {_moved(fold, place, summary.changes)}"
    count = len(fold.changes)
    among = "" if number in (None, count) else f"{number} of "
    changes, size = wording.count(count, "change"), wording.size(fold.size)
    return f"   {among}{changes} in {place}, {size}: {fold.why}"


def _moved(fold: Fold, place: str, changes: ChangeSet) -> str:
    """The move of a folder as it is: ``a/ → b/ (1,234 files, 5 KiB)``."""
    whole = fold.source if len(changes.targets) == 1 else f"{fold.target}/{fold.source}"
    files = sum(change.kind is ChangeKind.RENAMED for change in fold.changes)
    files += sum(
        change.new is not None and change.new.type is not FileType.FOLDER
        for change in fold.changes
        if change.kind is not ChangeKind.RENAMED
    )
    return f"{wording.name(whole or '')}/ → {place} ({files:,} files, {wording.size(fold.size)})"


def place_of(fold: Fold, changes: ChangeSet) -> str:
    """The folder of a fold by its name."""
    whole = fold.path if len(changes.targets) == 1 else f"{fold.target}/{fold.path}"
    return f"{wording.name(whole)}/"
