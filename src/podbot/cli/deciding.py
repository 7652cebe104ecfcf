"""The verbs of `podbot changes` that do something: apply, pick, undo, save, load.

They find what is meant, have it done by `podbot.review`, and tell the outcome.
"""

from __future__ import annotations

import argparse
import glob
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from podbot import review
from podbot.changes.applying.apply import Applied, check_targets
from podbot.cli import as_data, care, outcomes, picking, remedies, summaries, wording
from podbot.cli.progress import Progress
from podbot.cli.remedies import Given, typed
from podbot.cli.showing import (
    opened,
    selected,
    tell_how_to_decide,
    tell_in_conflict,
    tell_live,
    tell_lost,
    tell_undecided,
)
from podbot.cli.summaries import doing
from podbot.cli.talk import talk_on, tell, warn
from podbot.config import places
from podbot.errors import ChangesError, Kind
from podbot.review import Consent, Picked, Review, data
from podbot.review.reading import refuse_live
from podbot.runs import records

DONE, NO = 0, 1
ALL = "all"
MOST_NAMED = 3
"""More than these are too many to be named in a command to paste."""


def apply(arguments: argparse.Namespace) -> int:
    """`podbot changes apply`."""
    found, changes = selected(arguments)
    given = Given.of(arguments)
    consent = _consent(found, given)
    with _telling_interrupts(found, "applied"), doing("applying", found, given):
        applied = found.apply(Picked(changes), allow=consent, on_conflict=given.on_conflict)
    if not arguments.json:
        for line in outcomes.allowed(consent):
            tell(line)
    return _show_applied(found, applied, consent.paths, arguments.json)


def _consent(found: Review, given: Given) -> Consent:
    """What was agreed to on the command line."""
    words, word = given.allow_flagged, found.entry.called
    with typed(word, given):
        consent = found.consent(ALL in words or words, given.paths)
    try:
        consent.check()
    except ChangesError as error:
        remedy = f"look at it: {_command_to_look(word, consent)}\n"
        remedy += f"          then name it itself: {remedies.allowing(word, given)}"
        raise ChangesError(error.message, kind=error.kind, remedy=remedy) from None
    return consent


def _command_to_look(word: str, consent: Consent) -> str:
    """The command that shows what a folder of packages does not answer for."""
    several = len(consent.of.targets) > 1
    changes = [flag.change for flag in consent.strangers]
    paths = dict.fromkeys(each.where if several else each.path for each in changes)
    if len(paths) > MOST_NAMED or any(glob.escape(path) != path for path in paths):
        return remedies.command("show", word)
    return remedies.command("diff", word, [*paths])


def pick(arguments: argparse.Namespace) -> int:
    """`podbot changes pick`."""
    found, changes = selected(arguments)
    with typed(found.entry.called, Given.of(arguments)):
        refuse_live(found.entry, "applied")
        check_targets(changes)
    talk = talk_on(sys.stderr if arguments.json else sys.stdout)
    talk.forget_typed()
    try:
        picked = picking.pick(found, summaries.summarized(found, changes), talk)
    except KeyboardInterrupt:
        talk.say("\nnothing was applied")
        raise
    if picked is None or not picked.changes:
        talk.say("nothing was applied" if picked is None else "nothing was taken")
        if arguments.json:
            _show_applied(found, Applied("", "", (), ()), [], json=True)
        return NO
    for line in picking.staying(picked):
        talk.say(line)
    with _telling_interrupts(found, "applied"), doing("applying", found, Given("apply")):
        applied = found.apply(picked)
    return _show_applied(found, applied, sorted(picked.consented), arguments.json)


def _show_applied(found: Review, applied: Applied, allowed: list[str], json: bool) -> int:
    if json:
        answer = {**data.applied(applied), **data.texts("allowed", allowed)}
        as_data.show({"id": found.entry.id, **answer})
    else:
        tell("\n".join(outcomes.applied(found, applied)))
    return NO if applied.skipped and not applied.changed else DONE


def undo(arguments: argparse.Namespace) -> int:
    """`podbot changes undo`."""
    found, paths = opened(arguments), arguments.paths
    try:
        with _telling_interrupts(found, "undone"), doing("undoing", found, Given.of(arguments)):
            undone = found.undo(paths, on_conflict=arguments.on_conflict)
    except ChangesError as error:
        if error.kind is Kind.NOTHING_TO_UNDO and arguments.id == records.LAST:
            raise _nothing_of_the_last(error) from error.__cause__
        raise
    for line in undone.recovered:
        warn(f"podbot: {wording.message(remedies.with_names(line))}")
    if arguments.json:
        as_data.show({"id": found.entry.id, **data.undone(undone)})
    else:
        tell("\n".join(outcomes.undone(found, undone, paths)))
    return NO if undone.skipped and not undone.restored else DONE


def _nothing_of_the_last(error: ChangesError) -> ChangesError:
    """The same error; the run before may be what was meant, as the last one applied here is."""
    from podbot.changes.applying.applied import applications
    from podbot.review import finding

    applied = [
        (each.when, entry.called)
        for entry in finding.entries(records.here())
        for each in applications(entry.id)
        if not each.undone
    ]
    if not applied:
        return error
    _, called = max(applied)
    remedy = f"what was applied here last is of {wording.name(called)}: "
    remedy += remedies.command("undo", called)
    return ChangesError(error.message, kind=error.kind, remedy=remedy)


def save(arguments: argparse.Namespace) -> int:
    """`podbot changes save`."""
    found, _ = selected(arguments)
    tell_live(found.entry)
    with doing("saving", found, Given.of(arguments)):
        saved = found.save(arguments.file, arguments.paths)
    if arguments.json:
        as_data.show({"id": found.entry.id, **data.saved(saved)})
        return DONE
    tell(outcomes.saved(saved))
    tell_lost(saved.not_carried)
    tell_in_conflict(saved.in_conflict, found.entry.called)
    if saved.format == "tar":
        tell_undecided(saved.undecided, found.entry.called)
    elif saved.undecided:
        tell_how_to_decide(found.entry.called)
    return DONE


def load(arguments: argparse.Namespace) -> int:
    """`podbot changes load`."""
    within = None if arguments.as_saved else os.curdir
    with typed("", Given.of(arguments)), Progress("loading"):
        command = ("podbot", "changes", "load", os.path.abspath(arguments.file))
        try:
            found = review.load(arguments.file, arguments.target, within=within, command=command)
        except ChangesError as error:
            raise _of_a_patch(error, arguments.file) from error.__cause__
    entry = found.entry
    if arguments.json:
        as_data.show({**data.entry(entry), **data.totals(found.summary)})
        return DONE
    targets = wording.name(", ".join(entry.targets))
    tell(f"loaded {wording.name(arguments.file)} as {wording.name(entry.called)}, over {targets}")
    display = wording.display_of(sys.stdout)
    print("\n".join(care.summary(found.summary, display, summaries.MOST_LISTED)))
    tell(f"go on with: podbot changes show {wording.called(entry.called)}")
    return DONE


def _of_a_patch(error: ChangesError, file: str) -> ChangesError:
    """The same error; of a patch, which `save` writes too, with what to do with one."""
    if error.kind is not Kind.BAD_ARCHIVE or not file.endswith((".patch", ".diff")):
        return error
    remedy = (
        f"a patch is for git: {wording.words(['git', 'apply', file])}\n"
        "          what can be loaded is a tarball: podbot changes save ID FILE.tar"
    )
    return ChangesError(error.message, kind=error.kind, remedy=remedy)


@contextmanager
def _telling_interrupts(found: Review, done: str) -> Iterator[None]:
    """After Ctrl-C put right what is half done, and say what was done in the end: all or nothing.

    A second Ctrl-C leaves that to the next command.
    """
    before = _state(found.entry.id)
    try:
        yield
    except KeyboardInterrupt:
        if places.unfinished():
            warn("podbot: interrupted; putting right what is half done …")
            review.heal()
        if places.unfinished():
            outcome = "something is half done; the next podbot command puts it right"
        elif _state(found.entry.id) == before:
            outcome = f"nothing was {done}"
        else:
            outcome = f"all the same it was {done}"
        warn(f"podbot: interrupted; {outcome}")
        raise


def _state(id: str) -> list[tuple[str, bool, int]]:
    from podbot.changes.applying.applied import applications

    return [(each.id, each.undone, each.paths) for each in applications(id)]
