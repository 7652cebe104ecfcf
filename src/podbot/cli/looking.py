"""The verbs of `podbot changes` that only look: list, show, diff.

They print what the library found, as it is found. Nothing on the host or in a layer is changed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from podbot.changes import records
from podbot.cli import as_data, look, overview, pager
from podbot.cli.look import Column
from podbot.cli.progress import Progress
from podbot.errors import ChangesError, Kind

if TYPE_CHECKING:
    from podbot.changes.model import ChangeSet
    from podbot.changes.records import Entry
    from podbot.changes.undo import Application
    from podbot.cli.overview import Overview

DONE = 0

Amount = tuple[int, int] | str
"""How many changes and bytes a run left, or why that cannot be told."""


def list_runs(arguments: argparse.Namespace) -> int:
    """`podbot changes list`."""
    entries = [each for each in records.entries() if arguments.all or each.layer is not None]
    amounts: list[Amount] = []
    with Progress("reading the changes", len(entries)) as progress:
        for entry in entries:
            amounts.append(_amount(entry))
            progress.done += 1
    if arguments.json:
        as_data.show({"runs": [_listed(*pair) for pair in zip(entries, amounts, strict=True)]})
    elif entries:
        page(_table(entries, amounts))
    else:
        print("no changes are waiting")
    return DONE


def _amount(entry: Entry) -> Amount:
    from podbot.changes.capture import read

    if entry.layer is None:
        return 0, 0
    try:
        changes = read(entry.layer)
    except Exception as error:  # whatever is in it, the others must be listed
        return overview.reason(error)
    return len(changes), sum(change.size for change in changes)


def _listed(entry: Entry, amount: Amount) -> dict[str, object]:
    number, size = (None, None) if isinstance(amount, str) else amount
    problem = amount if isinstance(amount, str) else None
    try:
        run = as_data.entry(entry)
    except Exception as error:  # what is noted of the layer makes no sense
        run, problem = {"id": entry.id}, problem or overview.reason(error)
    applied = _is_all_applied(entry, amount)
    return {**run, "changes_count": number, "size": size, "applied": applied, "problem": problem}


def _table(entries: Sequence[Entry], amounts: Sequence[Amount]) -> list[str]:
    columns = (
        Column("ID"),
        Column("AGE"),
        Column("STATUS"),
        Column("CHANGES"),
        Column("SIZE"),
        Column("TARGET", gives_way=True, keeps_end=True),
        Column("COMMAND", gives_way=True),
    )
    listed = list(zip(entries, amounts, strict=True))
    lines = look.table(columns, [_row_of_any(*pair) for pair in listed], look.look_of(sys.stdout))
    damaged = [(entry.id, amount) for entry, amount in listed if isinstance(amount, str)]
    return lines + [f"{id} cannot be read: {why}" for id, why in damaged]


def _row_of_any(entry: Entry, amount: Amount) -> tuple[str, ...]:
    """A row even for a layer whose own notes make no sense."""
    try:
        return _row(entry, amount)
    except Exception:
        return (entry.id, look.UNKNOWN, "damaged", look.UNKNOWN, look.UNKNOWN, "", "")


def _row(entry: Entry, amount: Amount) -> tuple[str, ...]:
    command = look.words(entry.record.command) if entry.record is not None else ""
    number, size = ("?", "?") if isinstance(amount, str) else (amount[0], look.size(amount[1]))
    return (
        entry.id,
        look.duration(time.time() - entry.started),
        "applied" if _is_all_applied(entry, amount) else overview.short_status(entry),
        str(number),
        size,
        look.name(", ".join(entry.targets)),
        f"[{look.name(entry.name)}] {command}" if entry.name else command,
    )


def _is_all_applied(entry: Entry, amount: Amount) -> bool:
    """Whether nothing is left because the host has it all."""
    from podbot.changes import undo

    if amount != (0, 0) or entry.live:
        return False
    return any(not each.undone for each in undo.applications(entry.id))


def show(arguments: argparse.Namespace) -> int:
    """`podbot changes show`."""
    from podbot.changes import undo

    entry = records.find(arguments.id)
    applications = undo.applications(entry.id)
    found = None
    if entry.layer is not None:
        found = overview.overview_of(entry, overview.changes_of(entry))
    if arguments.json:
        _show_data(entry, applications, found)
    else:
        page(_show_lines(entry, applications, found))
    return DONE


def _show_lines(
    entry: Entry, applications: Sequence[Application], found: Overview | None
) -> Iterator[str]:
    look_ = look.look_of(sys.stdout)
    yield from overview.heading(entry, look_)
    yield from overview.history(applications, look_)
    yield ""
    if found is None:
        yield "nothing is left of its changes"
        return
    yield from overview.summary(found, look_)
    if found.changes:
        yield ""
        yield from overview.read_from(entry, overview.change_lines(found, look_))


def _show_data(entry: Entry, applications: Sequence[Application], found: Overview | None) -> None:
    from podbot.changes.diff import diff

    data = as_data.entry(entry) | as_data.surroundings(entry)
    data["applications"] = [as_data.application(each) for each in applications]
    if found is None:
        as_data.show_long(data, "changes", ())
        return
    data |= as_data.totals(found)
    changes = found.changes
    told = (as_data.change(change, found, diff(changes, change)) for change in changes)
    as_data.show_long(data, "changes", overview.read_from(entry, told))


def diff(arguments: argparse.Namespace) -> int:
    """`podbot changes diff`."""
    from podbot.changes.diff import diff
    from podbot.cli.diffs import diff_lines

    entry, changes = selected(arguments)
    if arguments.patch:
        _print_patch(changes)
    elif arguments.json:
        files = (as_data.file_diff(diff(changes, change)) for change in changes)
        told = overview.read_from(entry, files)
        as_data.show_long({"id": entry.id, "live": entry.live}, "files", told)
    else:
        tell_live(entry)
        lines = diff_lines(changes, changes, look.look_of(sys.stdout))
        page(overview.read_from(entry, lines))
    return DONE


def _print_patch(changes: ChangeSet) -> None:
    from podbot.changes.patch import not_in_patch, patch

    if look.is_terminal(sys.stdout):
        raise ChangesError(
            "a patch holds the bytes as they are, and a terminal might obey them",
            kind=Kind.INVALID,
            remedy="send it to a file or a program, or leave --patch out",
        )
    sys.stdout.flush()
    for piece in patch(changes):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
    tell_lost(not_in_patch(changes))


# For all verbs


def selected(arguments: argparse.Namespace) -> tuple[Entry, ChangeSet]:
    """The run that is meant, and which of its changes."""
    from podbot.changes.select import select

    entry = records.find(arguments.id)
    changes = overview.changes_of(entry)
    return entry, select(changes, meant(changes, arguments.paths))


def meant(changes: ChangeSet, paths: Sequence[str]) -> list[str]:
    """Paths as `select` takes them: those that mean nothing in the target are meant from here."""
    import glob
    import os

    from podbot.changes.select import select

    here = os.path.realpath(os.curdir)
    found = []
    for path in paths:
        try:
            select(changes, [path])
            found.append(path)
        except ChangesError:
            found.append(path if not path else os.path.join(glob.escape(here), path))
    try:
        select(changes, found)
    except ChangesError:
        return list(paths)  # named in the error as they were given
    return found


def page(lines: Iterable[str]) -> None:
    """Print lines for whoever reads them."""
    pager.show(lines, sys.stdout)


def tell_live(entry: Entry) -> None:
    """Say that a run is not over."""
    if entry.live:
        print(f"podbot: {entry.id} still runs; this is what it has changed so far", file=sys.stderr)


def tell_lost(lost: Sequence[str]) -> None:
    """Say what a patch does not hold."""
    if lost:
        print(f"podbot: a patch cannot carry {look.count(len(lost), 'thing')}:", file=sys.stderr)
        for line in lost:
            print(f"  {look.text(line)}", file=sys.stderr)
