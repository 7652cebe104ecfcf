"""`podbot changes discard`: throw runs away, one, several, old ones, or all.

What is thrown away is gone for good, so whoever does not name it is told all of it before, and
asked; where nobody can be asked, ``--yes`` has to say so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from podbot.cli import actions, as_data, overview, wording
from podbot.cli.remedies import with_names
from podbot.cli.talk import Talk, talk_on, tell
from podbot.errors import ChangesError, Kind, PodbotError
from podbot.runs import records

if TYPE_CHECKING:
    from podbot.changes.model import ChangeSet
    from podbot.runs.records import Entry

DONE, NO, FAILED = 0, 1, 2
MOST_LISTED = 20


def discard(arguments: argparse.Namespace) -> int:
    """`podbot changes discard`."""
    many = arguments.all or arguments.older_than is not None
    if arguments.id and many:
        raise ChangesError(
            "runs are named, or all or old ones are meant: not both",
            kind=Kind.INVALID,
            remedy="leave out the names, or --all and --older-than",
        )
    if many:
        return _discard_many(_meant(arguments), arguments)
    if not arguments.id:
        raise ChangesError(
            "it is not said what to throw away",
            kind=Kind.INVALID,
            remedy="name runs (`podbot changes list` has them), or say --older-than 7d (those of "
            "this folder), --all (everywhere), or both",
        )
    here = records.here()
    named = {entry.id: entry for entry in (records.find(word, here) for word in arguments.id)}
    if len(named) == 1:
        (entry,) = named.values()
        return _discard_one(entry, arguments)
    return _discard_many(list(named.values()), arguments)


def _discard_one(entry: Entry, arguments: argparse.Namespace) -> int:
    actions.refuse_live(entry, "discarded")
    called = wording.name(entry.called)
    if not (arguments.yes or arguments.json) and wording.is_terminal(sys.stdin):
        talk = talk_on(sys.stderr)
        talk.forget_typed()
        if not _says_yes(talk, actions.discard_question(entry, _changes(entry))):
            talk.say(f"{called} is kept")
            return NO
    actions.discard(entry)
    if arguments.json:
        as_data.show({"id": entry.id, "discarded": True})
    else:
        tell(f"discarded {called}")
    return DONE


def _meant(arguments: argparse.Namespace) -> list[Entry]:
    """The runs of this folder, or with ``--all`` those everywhere; of these the old ones."""
    here = None if arguments.all else records.here()
    found = [entry for entry in records.entries() if here is None or entry.is_about(here)]
    if arguments.older_than is not None:
        since = time.time() - arguments.older_than
        found = [entry for entry in found if entry.started < since]
    return found


def _discard_many(entries: Sequence[Entry], arguments: argparse.Namespace) -> int:
    running = [entry for entry in entries if entry.live]
    chosen = [entry for entry in entries if not entry.live]
    if chosen and not arguments.yes and not _is_sure(chosen, arguments):
        talk_on(sys.stderr).say("nothing was discarded")
        return NO
    outcomes: list[tuple[Entry, str | None]] = [(entry, "it still runs") for entry in running]
    for entry in chosen:
        try:
            actions.discard(entry)
            outcomes.append((entry, None))
        except PodbotError as error:
            outcomes.append((entry, wording.message(with_names(str(error)))))
    if arguments.json:
        as_data.show({"runs": [_as_data(entry, why) for entry, why in outcomes]})
    else:
        _tell(outcomes)
    return FAILED if any(why is not None for entry, why in outcomes if not entry.live) else DONE


def _is_sure(chosen: Sequence[Entry], arguments: argparse.Namespace) -> bool:
    """Whether a person wants it; those who named each run and cannot be asked have said so."""
    if arguments.json or not wording.is_terminal(sys.stdin):
        if arguments.id:
            return True
        raise ChangesError(
            f"{wording.count(len(chosen), 'run')} would be thrown away, and nobody can be asked",
            kind=Kind.INVALID,
            remedy="say --yes; `podbot changes list` shows what there is",
        )
    talk = talk_on(sys.stderr)
    talk.forget_typed()
    lines = [f"  {_described(entry)}" for entry in chosen]
    talk.say("\n".join(wording.listed(lines, MOST_LISTED)))
    what = "this one" if len(chosen) == 1 else f"these {len(chosen)}"
    return _says_yes(talk, f"throw {what} away for good, with the means to undo what was applied?")


def _says_yes(talk: Talk, question: str) -> bool:
    """Whether it is a yes; Ctrl-C is told as the no that it is."""
    try:
        return talk.is_sure(question)
    except KeyboardInterrupt:
        talk.say("\nnothing was discarded")
        raise


def _described(entry: Entry) -> str:
    ago = wording.duration(max(0.0, time.time() - entry.started))
    changes = _changes(entry) if entry.layer is not None else ()
    what = "what may be left" if changes is None else wording.count(len(changes), "change")
    targets = wording.name(", ".join(entry.targets))
    return f"{wording.name(entry.called)}: {what} of {ago} ago over {targets}"


def _tell(outcomes: Sequence[tuple[Entry, str | None]]) -> None:
    done = [wording.name(entry.called) for entry, why in outcomes if why is None]
    if not outcomes:
        tell("there is nothing to discard")
    if done:
        tell(f"discarded {', '.join(done)}")
    for entry, why in outcomes:
        if why is not None:
            tell(f"not {wording.name(entry.called)}: {why}")


def _as_data(entry: Entry, why: str | None) -> dict[str, object]:
    return {"id": entry.id, "discarded": why is None, **as_data.text("problem", why)}


def _changes(entry: Entry) -> ChangeSet | None:
    """What would be lost, None if that cannot be told."""
    try:
        return overview.changes_of(entry)
    except PodbotError:
        return None
