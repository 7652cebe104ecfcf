"""The verbs of `podbot changes` that only look: list, show, diff.

They print what the library found, as it is found. Nothing on the host or in a layer is changed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from podbot.changes.risk.rules import Level
from podbot.cli import care, overview, pager, remedies, wording
from podbot.cli.progress import Progress
from podbot.cli.talk import tell, warn
from podbot.cli.wording import Column
from podbot.errors import ChangesError, Kind
from podbot.frozen import replace
from podbot.runs import records

if TYPE_CHECKING:
    import argparse

    from podbot.changes.applying.applied import Application
    from podbot.changes.folding import Fold
    from podbot.changes.model import ChangeSet
    from podbot.cli.overview import Overview
    from podbot.runs.records import Entry

DONE = 0

Amount = tuple[int, int] | str
"""How many changes and bytes a run left, or why that cannot be told."""


def list_runs(arguments: argparse.Namespace) -> int:
    """`podbot changes list`: for a person the runs of this folder, as data all of them."""
    from podbot.cli import as_data

    here = records.here()
    known = records.entries()
    every = [each for each in known if arguments.all or each.layer is not None]
    near = [each for each in every if here is None or each.is_about(here)]
    entries = every if arguments.all or arguments.json else near
    amounts: list[Amount] = []
    with Progress("reading the changes", len(entries)) as progress:
        for entry in entries:
            amounts.append(_amount(entry))
            progress.done += 1
    if arguments.json:
        listed = [_listed(*pair, here) for pair in zip(entries, amounts, strict=True)]
        as_data.show({"runs": listed})
        return DONE
    elsewhere = len(every) - len(entries)
    more = f"{wording.count(elsewhere, 'run')} elsewhere: podbot changes list --all"
    if entries:
        page([*_table(entries, amounts), *([more] if elsewhere else [])])
    else:
        tell("no changes are waiting" + (f" here; {more}" if elsewhere else ""))
        lost = [each for each in known if each.lost and (here is None or each.is_about(here))]
        if lost:
            called = wording.called(lost[0].called)
            gone = wording.count(len(lost), "run")
            tell(
                f"those of {gone} here are gone, and nobody discarded them:"
                f" podbot changes show {called} says more"
            )
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


def _listed(entry: Entry, amount: Amount, here: str | None) -> dict[str, object]:
    from podbot.cli import as_data

    number, size = (None, None) if isinstance(amount, str) else amount
    problem = amount if isinstance(amount, str) else None
    try:
        run = as_data.entry(entry)
    except Exception as error:  # what is noted of the layer makes no sense
        run, problem = {"id": entry.id}, problem or overview.reason(error)
    applied = _is_all_applied(entry, amount)
    data = {**run, "changes_count": number, "size": size, "applied": applied, "problem": problem}
    return {**data, "here": here is None or entry.is_about(here)}


def _table(entries: Sequence[Entry], amounts: Sequence[Amount]) -> list[str]:
    columns = (
        Column("RUN", gives_way=True, is_typed=True),
        Column("AGE"),
        Column("STATUS"),
        Column("CHANGES"),
        Column("SIZE"),
        Column("TARGET", gives_way=True, keeps_end=True),
        Column("COMMAND", gives_way=True),
    )
    listed = list(zip(entries, amounts, strict=True))
    lines = wording.table(
        columns, [_row_of_any(*pair) for pair in listed], wording.display_of(sys.stdout)
    )
    damaged = [
        (wording.name(entry.called), amount) for entry, amount in listed if isinstance(amount, str)
    ]
    return lines + [f"{called} cannot be read: {why}" for called, why in damaged]


def _row_of_any(entry: Entry, amount: Amount) -> tuple[str, ...]:
    """A row even for a layer whose own notes make no sense."""
    try:
        return _row(entry, amount)
    except Exception:
        return (
            wording.name(entry.called),
            wording.UNKNOWN,
            "damaged",
            wording.UNKNOWN,
            wording.UNKNOWN,
            "",
            "",
        )


def _row(entry: Entry, amount: Amount) -> tuple[str, ...]:
    number, size = ("?", "?") if isinstance(amount, str) else (amount[0], wording.size(amount[1]))
    return (
        wording.name(entry.called),
        wording.duration(time.time() - entry.started),
        "applied" if _is_all_applied(entry, amount) else overview.short_status(entry),
        str(number),
        size,
        wording.name(", ".join(entry.targets)),
        wording.text(entry.made_by),
    )


def _is_all_applied(entry: Entry, amount: Amount) -> bool:
    """Whether nothing is left because the host has it all."""
    from podbot.changes.applying.applied import applications

    if amount != (0, 0) or entry.live:
        return False
    return any(not each.undone for each in applications(entry.id))


def show(arguments: argparse.Namespace) -> int:
    """`podbot changes show`."""
    from podbot.changes.applying.applied import applications

    entry = records.find(arguments.id, records.here())
    made = applications(entry.id)
    found = None
    if entry.layer is not None:
        found = overview.overview_of(entry, overview.changes_of(entry))
    if arguments.json:
        _show_data(entry, made, found)
    else:
        page(_show_lines(entry, made, found, every=arguments.all))
    return DONE


def _show_lines(
    entry: Entry, applications: Sequence[Application], found: Overview | None, *, every: bool
) -> Iterator[str]:
    display = wording.display_of(sys.stdout)
    yield from overview.heading(entry, display)
    yield from overview.history(applications, display)
    yield ""
    if found is None:
        if entry.lost:
            told = f"its changes are gone, and nobody discarded them: {overview.HOW_LOST}"
            yield from wording.wrapped(told, display.width)
        else:
            yield "nothing is left of its changes"
        return
    yield from wording.wrapped(care.total(found, display), display.width)
    if found.changes:
        runs = len({flag.change.where for flag in found.flagged(Level.BY_ITSELF)})
        if runs:
            told = "runs by itself" if runs == 1 else "run by themselves"
            line = display.paint(f"{runs} of them {told} once applied: see the end", "danger")
            yield from wording.wrapped(line, display.width)
        yield ""
        yield from overview.read_from(entry, overview.change_lines(found, display, every=every))
    needs = care.warnings(found, display, every=every)
    if needs:
        yield ""
        yield from needs


def _show_data(entry: Entry, applications: Sequence[Application], found: Overview | None) -> None:
    from podbot.changes.diffs.diff import diff
    from podbot.cli import as_data

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
    from podbot.changes.diffs.diff import diff
    from podbot.cli import as_data

    if arguments.patch and arguments.json:
        raise ChangesError(
            "--patch and --json are two formats",
            kind=Kind.INVALID,
            remedy="leave one of them out: --json has the changed lines as data",
        )
    entry, changes, whole = selected(arguments, alone=True)
    if arguments.patch:
        _print_patch(entry, changes)
    elif arguments.json:
        files = (
            as_data.file_diff(diff(changes, change), changes.merges.get(change.where))
            for change in changes
        )
        told = overview.read_from(entry, files)
        as_data.show_long({"id": entry.id, "live": entry.live}, "files", told)
    else:
        tell_live(entry)
        page(overview.read_from(entry, _diff_lines(entry, changes, whole, arguments)))
    return DONE


def _diff_lines(
    entry: Entry, changes: ChangeSet, whole: ChangeSet, arguments: argparse.Namespace
) -> Iterator[str]:
    from podbot.changes.folding import folds
    from podbot.cli.diffs import diff_lines, diffs_but_folded

    display = wording.display_of(sys.stdout)
    paths = meant(changes, arguments.paths)
    # Who names such a folder, or something in it, wants to see it.
    if arguments.all or all(_is_named(fold, paths) for fold in folds(changes, whole)):
        return diff_lines(changes, changes, display)
    found = overview.overview_of(entry, changes, whole)
    unfolded = {
        change.where for fold in found.folds if _is_named(fold, paths) for change in fold.changes
    }
    folded = {where: fold for where, fold in found.folded.items() if where not in unfolded}
    return diffs_but_folded(replace(found, folded=folded), display)


def _is_named(fold: Fold, paths: Sequence[str]) -> bool:
    import posixpath

    names = (posixpath.normpath(path) for path in paths)
    folders = [fold.path] if fold.source is None else [fold.path, fold.source]
    roots = [root for path in folders for root in (path, f"{fold.target}/{path}")]
    return any(f"{name}/".startswith(f"{root}/") for name in names for root in roots)


def _print_patch(entry: Entry, changes: ChangeSet) -> None:
    from podbot.changes import undecided
    from podbot.changes.diffs.patch import not_in_patch, patch

    if wording.is_terminal(sys.stdout):
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
    if undecided.lines(changes):
        tell_how_to_decide(entry.called)


# For all verbs


def selected(
    arguments: argparse.Namespace, alone: bool = False
) -> tuple[Entry, ChangeSet, ChangeSet]:
    """The run that is meant, which of its changes, and all of them.

    ``alone``: the others need not be looked at, and may be missing in the last.
    """
    from podbot.changes.select import select
    from podbot.cli.which import run_of

    entry = run_of(arguments)
    changes = overview.changes_of(entry, arguments.paths if alone else ())
    return entry, select(changes, meant(changes, arguments.paths)), changes


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
        called = wording.name(entry.called)
        warn(f"podbot: {called} still runs; this is what it has changed so far")


def tell_undecided(lines: Sequence[str], called: str) -> None:
    """Say what an archive has of this run alone, as another did something to it, too."""
    if lines:
        warn("podbot: another run did these, too; saved is what this one did:")
        for line in lines:
            warn(f"  {wording.message(remedies.with_names(line))}")
        tell_how_to_decide(called)


def tell_how_to_decide(called: str) -> None:
    """What to do about lines that two runs changed."""
    warn(f"podbot: to decide first: {remedies.command('pick', called)}")


def tell_lost(lost: Sequence[str]) -> None:
    """Say what a patch does not hold."""
    if lost:
        warn(f"podbot: a patch cannot carry {wording.count(len(lost), 'thing')}:")
        for line in lost:
            warn(f"  {wording.text(remedies.with_names(line))}")
