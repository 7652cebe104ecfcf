"""The verbs of `podbot changes` that do something: apply, pick, undo, save, load, discard.

They find what is meant, have it done by `actions`, and tell the outcome.
"""

from __future__ import annotations

import argparse
import os
import sys

from podbot.changes import records
from podbot.changes.apply import Applied
from podbot.changes.model import ChangeSet
from podbot.changes.records import Entry
from podbot.cli import actions, as_data, look, overview, picking
from podbot.cli.looking import selected, tell_live, tell_lost
from podbot.cli.talk import talk_on
from podbot.errors import PodbotError

DONE, NO = 0, 1


def apply(arguments: argparse.Namespace) -> int:
    """`podbot changes apply`."""
    _heal()
    entry, changes = selected(arguments)
    named: list[str] = arguments.allow_flagged
    applied = actions.apply(
        entry,
        changes,
        allow_flagged="all" in named or _allowed(changes, named),
        on_conflict=arguments.on_conflict,
    )
    return _told(entry, applied, arguments.json)


def _allowed(changes: ChangeSet, paths: list[str]) -> list[str]:
    """What may run by itself; a path that no change has is meant from the current folder."""
    here = os.path.realpath(os.curdir)
    known = {name for change in changes for name in (change.path, change.where)}
    return [path if path in known else os.path.normpath(os.path.join(here, path)) for path in paths]


def pick(arguments: argparse.Namespace) -> int:
    """`podbot changes pick`."""
    _heal()
    entry, changes = selected(arguments)
    actions.refuse_live(entry, "applied")
    found = overview.overview_of(entry, changes)
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
            as_data.show({"id": entry.id, **as_data.applied(Applied("", "", (), ()))})
        return NO
    for remark in picked.remarks:
        talk.say(remark)
    return _told(entry, actions.apply_picked(entry, picked), arguments.json)


def _told(entry: Entry, applied: Applied, json: bool) -> int:
    if json:
        as_data.show({"id": entry.id, **as_data.applied(applied)})
    else:
        print("\n".join(actions.told_applied(entry, applied)))
    return NO if applied.skipped and not applied.changed else DONE


def undo(arguments: argparse.Namespace) -> int:
    """`podbot changes undo`."""
    _heal()
    entry = records.find(arguments.id)
    undone = actions.undo(entry)
    if arguments.json:
        as_data.show({"id": entry.id, **as_data.undone(undone)})
    else:
        print("\n".join(actions.told_undone(entry, undone)))
    return DONE


def save(arguments: argparse.Namespace) -> int:
    """`podbot changes save`."""
    entry, changes = selected(arguments)
    tell_live(entry)
    saved = actions.save(changes, arguments.file)
    if arguments.json:
        as_data.show({"id": entry.id, **as_data.saved(saved)})
        return DONE
    print(actions.told_saved(changes, saved))
    tell_lost(saved.not_carried)
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
    targets = look.name(", ".join(entry.targets))
    print(f"loaded {look.name(arguments.file)} as {entry.id}, over {targets}")
    print("\n".join(overview.summary(found, look.look_of(sys.stdout), overview.MOST_LISTED)))
    print(f"go on with: podbot changes show {entry.id}")
    return DONE


def discard(arguments: argparse.Namespace) -> int:
    """`podbot changes discard`."""
    _heal()
    entry = records.find(arguments.id)
    actions.refuse_live(entry, "discarded")
    if not (arguments.yes or arguments.json) and look.is_terminal(sys.stdin):
        talk = talk_on(sys.stderr)
        talk.forget_typed()
        if not talk.is_sure(actions.discard_question(entry, _changes(entry))):
            talk.say(f"{entry.id} is kept")
            return NO
    actions.discard(entry)
    if arguments.json:
        as_data.show({"id": entry.id, "discarded": True})
    else:
        print(f"discarded {entry.id}")
    return DONE


def _changes(entry: Entry) -> ChangeSet | None:
    """What would be lost, None if that cannot be told."""
    try:
        return overview.changes_of(entry)
    except PodbotError:
        return None


def _heal() -> None:
    for line in actions.heal():
        print(f"podbot: {look.message(line)}", file=sys.stderr)
