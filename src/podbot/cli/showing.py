"""The verbs of `podbot changes` that only look: list, show, diff.

They print what the library found, as it is found. Nothing on the host or in a layer is changed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from podbot.changes.risk.rules import Level
from podbot.cli import care, pager, remedies, summaries, wording
from podbot.cli.progress import Progress
from podbot.cli.remedies import Given, typed
from podbot.cli.talk import tell, warn
from podbot.cli.wording import Column
from podbot.errors import ChangesError, Kind
from podbot.frozen import replace
from podbot.review import finding
from podbot.review.reading import HOW_LOST, read_from
from podbot.runs import records

if TYPE_CHECKING:
    import argparse

    from podbot.changes.applying.applied import Application
    from podbot.changes.folding import Fold
    from podbot.changes.model import ChangeSet
    from podbot.review import Listed, Review, Summary
    from podbot.runs.records import Entry

DONE = 0


def list_runs(arguments: argparse.Namespace) -> int:
    """`podbot changes list`: for a person the runs of this folder, as data all of them."""
    here = records.here()
    with Progress("reading the changes"):
        known = finding.entries()
    every = [each for each in known if arguments.all or each.layer is not None]
    near = [each for each in every if here is None or each.is_about(here)]
    entries = every if arguments.all or arguments.json else near
    runs: list[Listed] = []
    with Progress("reading the changes", len(entries)) as progress:
        for run in finding.listed(entries):
            runs.append(run)
            progress.done += 1
    for path in records.unreadable():
        warn(
            f"podbot: the record {wording.message(str(path))} is damaged, so its run is listed"
            " without it; remove the file if that is all right"
        )
    if arguments.json:
        from podbot.cli import as_data
        from podbot.review import data

        as_data.show({"runs": [data.listed(run, here) for run in runs]})
        return DONE
    elsewhere = len(every) - len(entries)
    more = f"{wording.count(elsewhere, 'run')} elsewhere: podbot changes list --all"
    if entries:
        page([*_table(runs), *([more] if elsewhere else [])])
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


def _table(runs: Sequence[Listed]) -> list[str]:
    columns = (
        Column("RUN", gives_way=True, is_typed=True),
        Column("AGE"),
        Column("STATUS"),
        Column("CHANGES"),
        Column("SIZE"),
        Column("TARGET", gives_way=True, keeps_end=True),
        Column("COMMAND", gives_way=True),
    )
    rows = [_row_of_any(run) for run in runs]
    lines = wording.table(columns, rows, wording.display_of(sys.stdout))
    return lines + [
        f"{wording.name(run.entry.called)} cannot be read: {run.problem}"
        for run in runs
        if run.problem is not None
    ]


def _row_of_any(run: Listed) -> tuple[str, ...]:
    """A row even for a layer whose own notes are not valid."""
    try:
        return _row(run)
    except Exception:
        called, unknown = wording.name(run.entry.called), wording.UNKNOWN
        return (called, unknown, "damaged", unknown, unknown, "", "")


def _row(run: Listed) -> tuple[str, ...]:
    entry = run.entry
    return (
        wording.name(entry.called),
        wording.duration(time.time() - entry.started),
        "applied" if run.applied else summaries.short_status(entry),
        wording.UNKNOWN if run.changes_count is None else str(run.changes_count),
        wording.UNKNOWN if run.size is None else wording.size(run.size),
        wording.name(", ".join(entry.targets)),
        wording.text(entry.made_by),
    )


def show(arguments: argparse.Namespace) -> int:
    """`podbot changes show`."""
    from podbot.review import Review

    here = records.here()
    found = Review(finding.find(arguments.id, here), here)
    with typed(found.entry.called, Given.of(arguments)):
        with Progress("reading the changes"):
            made = found.applications
        about = None if found.entry.layer is None else summaries.summarized(found)
        if arguments.json:
            _show_data(found.entry, made, about)
        else:
            page(_show_lines(found.entry, made, about, every=arguments.all))
    return DONE


def _show_lines(
    entry: Entry, applications: Sequence[Application], found: Summary | None, *, every: bool
) -> Iterator[str]:
    display = wording.display_of(sys.stdout)
    yield from summaries.heading(entry, display)
    yield from summaries.history(applications, display)
    yield ""
    if found is None:
        if entry.lost:
            text = f"its changes are gone, and nobody discarded them: {HOW_LOST}"
            yield from wording.wrapped(text, display.width)
        else:
            yield "nothing is left of its changes"
        return
    yield from wording.wrapped(care.total(found, display), display.width)
    if found.changes:
        runs = len({flag.change.where for flag in found.flagged(Level.BY_ITSELF)})
        if runs:
            verb = "runs by itself" if runs == 1 else "run by themselves"
            line = display.paint(f"{runs} of them {verb} once applied: see the end", "danger")
            yield from wording.wrapped(line, display.width)
        yield ""
        yield from read_from(entry, summaries.change_lines(found, display, every=every))
    needs = care.warnings(found, display, every=every)
    if needs:
        yield ""
        yield from needs


def _show_data(entry: Entry, applications: Sequence[Application], found: Summary | None) -> None:
    from podbot.cli import as_data
    from podbot.review import data

    changes = () if found is None else read_from(entry, data.changes(found))
    as_data.show_long(data.shown(entry, applications, found), "changes", changes)


def diff(arguments: argparse.Namespace) -> int:
    """`podbot changes diff`."""
    if arguments.patch and arguments.json:
        raise ChangesError(
            "--patch and --json cannot be used together",
            kind=Kind.INVALID,
            remedy="leave one of them out: --json has the changed lines as data",
        )
    found, changes = selected(arguments, alone=True)
    entry = found.entry
    with typed(entry.called, Given.of(arguments)):
        if arguments.patch:
            _print_patch(entry, changes)
        elif arguments.json:
            from podbot.cli import as_data
            from podbot.review import data

            files = read_from(entry, data.files(changes))
            as_data.show_long({"id": entry.id, "live": entry.live}, "files", files)
        else:
            tell_live(entry)
            page(read_from(entry, _diff_lines(found, changes, arguments)))
    return DONE


def _diff_lines(found: Review, changes: ChangeSet, arguments: argparse.Namespace) -> Iterable[str]:
    from podbot.changes import drift
    from podbot.changes.folding import folds
    from podbot.cli.diffs import diff_lines, diffs_but_folded
    from podbot.review.picking import meant_by

    display = wording.display_of(sys.stdout)
    paths = meant_by(changes, arguments.paths, found.here)
    # Who names such a folder, or something in it, wants to see it.
    whole = found.changes
    if arguments.all or all(_is_named(fold, paths) for fold in folds(changes, whole)):
        conflicts = {each.change.where: each for each in drift.conflicts(changes)}
        return diff_lines(changes, changes, display, conflicts)
    about = summaries.summarized(found, changes)
    unfolded = {
        change.where for fold in about.folds if _is_named(fold, paths) for change in fold.changes
    }
    folded = {where: fold for where, fold in about.folded.items() if where not in unfolded}
    return diffs_but_folded(replace(about, folded=folded), display)


def _is_named(fold: Fold, paths: Sequence[str]) -> bool:
    import posixpath

    names = (posixpath.normpath(path) for path in paths)
    folders = [fold.path] if fold.source is None else [fold.path, fold.source]
    roots = [root for path in folders for root in (path, f"{fold.target}/{path}")]
    return any(f"{name}/".startswith(f"{root}/") for name in names for root in roots)


def _print_patch(entry: Entry, changes: ChangeSet) -> None:
    from podbot.changes import undecided
    from podbot.changes.diffs.patch import not_in_patch, patch
    from podbot.review.for_patch import for_patch

    if wording.is_terminal(sys.stdout):
        raise ChangesError(
            "a patch holds the bytes as they are, and a terminal might obey them",
            kind=Kind.INVALID,
            remedy="send it to a file or a program, or leave --patch out",
        )
    sys.stdout.flush()
    chosen = for_patch(changes)
    for piece in patch(chosen.changes):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
    tell_lost(not_in_patch(chosen.changes))
    tell_in_conflict(chosen.in_conflict, entry.called)
    if undecided.lines(changes):
        tell_how_to_decide(entry.called)


# For all verbs


def opened(arguments: argparse.Namespace, paths: Sequence[str] = ()) -> Review:
    """The run that is meant, before paths that may follow it."""
    from podbot.review import Review

    here = records.here()
    with typed(arguments.id, Given.of(arguments)):
        return Review(finding.find(arguments.id, here, before_paths=True), here, paths)


def selected(arguments: argparse.Namespace, alone: bool = False) -> tuple[Review, ChangeSet]:
    """The run that is meant, and which of its changes.

    ``alone``: the others need not be looked at, and may be missing in it.
    """
    found = opened(arguments, arguments.paths if alone else ())
    with summaries.doing("reading the changes", found, Given.of(arguments)):
        return found, found.select(arguments.paths)


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


def tell_in_conflict(lines: Sequence[str], called: str) -> None:
    """Say what a patch leaves out, as it would take back what the host did."""
    if lines:
        warn("podbot: left out of the patch, which would take back what the host has now:")
        for line in lines:
            warn(f"  {wording.text(remedies.with_names(line))}")
        warn(f"podbot: to see both sides: {remedies.command('diff', called)}")
        warn(
            f"        to decide on each: {remedies.command('pick', called)};"
            " or save a FILE.tar, which keeps all"
        )


def tell_how_to_decide(called: str) -> None:
    """What to do about lines that two runs changed."""
    warn(f"podbot: to decide first: {remedies.command('pick', called)}")


def tell_lost(lost: Sequence[str]) -> None:
    """Say what a patch does not hold."""
    if lost:
        warn(f"podbot: a patch cannot carry {wording.count(len(lost), 'thing')}:")
        for line in lost:
            warn(f"  {wording.text(remedies.with_names(line))}")
