"""The verbs of `podbot changes` that do something: apply, pick, undo, save, load.

They find what is meant, have it done by `actions`, and tell the outcome.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from podbot.changes.applying.apply import Applied
from podbot.cli import actions, as_data, care, consent, overview, picking, remedies, wording
from podbot.cli.remedies import Given
from podbot.cli.showing import (
    selected,
    tell_how_to_decide,
    tell_live,
    tell_lost,
    tell_undecided,
)
from podbot.cli.talk import talk_on, tell, warn
from podbot.cli.which import run_of
from podbot.config import places
from podbot.runs.records import Entry

DONE, NO = 0, 1


def apply(arguments: argparse.Namespace) -> int:
    """`podbot changes apply`."""
    entry, changes, whole = selected(arguments)
    given = Given.of(arguments)
    agreed = consent.consent(changes, whole, entry.called, given)
    with _telling_interrupts(entry, "applied"):
        applied = actions.apply(
            entry,
            changes,
            allow_flagged=agreed.paths,
            on_conflict=arguments.on_conflict,
            given=given,
        )
    if not arguments.json:
        for line in agreed.told(changes):
            tell(line)
    return _told(entry, applied, agreed.paths, arguments.json)


def pick(arguments: argparse.Namespace) -> int:
    """`podbot changes pick`."""
    entry, changes, whole = selected(arguments)
    actions.refuse_live(entry, "applied")
    found = overview.overview_of(entry, changes, whole)
    talk = talk_on(sys.stderr if arguments.json else sys.stdout)
    talk.forget_typed()
    try:
        picked = picking.pick(found, talk)
    except KeyboardInterrupt:
        talk.say("\nnothing was applied")
        raise
    if picked is None or not picked.changes:
        talk.say("nothing was applied" if picked is None else "nothing was taken")
        if arguments.json:
            _told(entry, Applied("", "", (), ()), [], json=True)
        return NO
    for remark in picked.remarks:
        talk.say(remark)
    with _telling_interrupts(entry, "applied"):
        applied = actions.apply_picked(entry, picked)
    return _told(entry, applied, sorted(picked.consented), arguments.json)


def _told(entry: Entry, applied: Applied, allowed: list[str], json: bool) -> int:
    if json:
        told = {**as_data.applied(applied), **as_data.texts("allowed", allowed)}
        as_data.show({"id": entry.id, **told})
    else:
        tell("\n".join(actions.told_applied(entry, applied)))
    return NO if applied.skipped and not applied.changed else DONE


def undo(arguments: argparse.Namespace) -> int:
    """`podbot changes undo`."""
    entry = run_of(arguments)
    with _telling_interrupts(entry, "undone"):
        undone = actions.undo(entry, arguments.paths, arguments.on_conflict)
    _tell_healed(undone.recovered)
    if arguments.json:
        as_data.show({"id": entry.id, **as_data.undone(undone)})
    else:
        tell("\n".join(actions.told_undone(entry, undone, arguments.paths)))
    return NO if undone.skipped and not undone.restored else DONE


def save(arguments: argparse.Namespace) -> int:
    """`podbot changes save`."""
    entry, changes, _ = selected(arguments)
    tell_live(entry)
    saved = actions.save(changes, arguments.file)
    if arguments.json:
        as_data.show({"id": entry.id, **as_data.saved(saved)})
        return DONE
    tell(actions.told_saved(changes, saved))
    tell_lost(saved.not_carried)
    if saved.format == "tar":
        tell_undecided(saved.undecided, entry.called)
    elif saved.undecided:
        tell_how_to_decide(entry.called)
    return DONE


def load(arguments: argparse.Namespace) -> int:
    """`podbot changes load`."""
    entry = actions.load(arguments.file, arguments.target, as_saved=arguments.as_saved)
    try:
        found = overview.overview_of(entry, overview.changes_of(entry))
    except BaseException:
        if entry.layer is not None:
            actions.unload(entry.layer)
        raise
    if arguments.json:
        as_data.show({**as_data.entry(entry), **as_data.totals(found)})
        return DONE
    targets = wording.name(", ".join(entry.targets))
    tell(f"loaded {wording.name(arguments.file)} as {wording.name(entry.called)}, over {targets}")
    print("\n".join(care.summary(found, wording.display_of(sys.stdout), overview.MOST_LISTED)))
    tell(f"go on with: podbot changes show {wording.called(entry.called)}")
    return DONE


@contextmanager
def _telling_interrupts(entry: Entry, done: str) -> Iterator[None]:
    """After Ctrl-C put right what is half done, and say what was done in the end: all or nothing.

    A second Ctrl-C leaves that to the next command.
    """
    before = _state(entry)
    try:
        yield
    except KeyboardInterrupt:
        if places.unfinished():
            warn("podbot: interrupted; putting right what is half done …")
            actions.heal()
        if places.unfinished():
            told = "something is half done; the next podbot command puts it right"
        elif _state(entry) == before:
            told = f"nothing was {done}"
        else:
            told = f"all the same it was {done}"
        warn(f"podbot: interrupted; {told}")
        raise


def _state(entry: Entry) -> list[tuple[str, bool, int]]:
    from podbot.changes.applying.applied import applications

    return [(each.id, each.undone, each.paths) for each in applications(entry.id)]


def _tell_healed(lines: Iterable[str]) -> None:
    for line in lines:
        warn(f"podbot: {wording.message(remedies.with_names(line))}")
