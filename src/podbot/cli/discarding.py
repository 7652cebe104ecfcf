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

from podbot import review
from podbot.cli import as_data, outcomes, wording
from podbot.cli.progress import Progress
from podbot.cli.remedies import Given, typed, with_names
from podbot.cli.talk import Talk, talk_on, tell
from podbot.errors import ChangesError, Kind
from podbot.review import Review, data, finding
from podbot.review.reading import refuse_live
from podbot.runs import records

if TYPE_CHECKING:
    from podbot.errors import PodbotError
    from podbot.runs.records import Entry

DONE, NO, FAILED = 0, 1, 2
MOST_LISTED = 20


def discard(arguments: argparse.Namespace) -> int:
    """`podbot changes discard`."""
    many = arguments.all or arguments.older_than is not None
    if arguments.id and many:
        raise ChangesError(
            "runs cannot be named together with --all or --older-than",
            kind=Kind.INVALID,
            remedy="leave out the names, or leave out --all and --older-than",
        )
    if many:
        # The runs of this folder, or with --all those everywhere; of these the old ones.
        here = None if arguments.all else records.here()
        with Progress("looking for runs"):
            meant = finding.entries(here, older_than=arguments.older_than)
        return _discard_many(meant, arguments)
    if not arguments.id:
        raise ChangesError(
            "nothing was named to throw away",
            kind=Kind.INVALID,
            remedy="name runs (`podbot changes list` has them), or say --older-than 7d (those of "
            "this folder), --all (everywhere), or both",
        )
    here = records.here()
    named = {entry.id: entry for entry in (finding.find(word, here) for word in arguments.id)}
    if len(named) == 1:
        (entry,) = named.values()
        with typed(entry.called, Given.of(arguments)):
            return _discard_one(entry, arguments)
    return _discard_many(list(named.values()), arguments)


def _discard_one(entry: Entry, arguments: argparse.Namespace) -> int:
    refuse_live(entry, "discarded")
    found, called = Review(entry), wording.name(entry.called)
    if not (arguments.yes or arguments.json) and wording.is_terminal(sys.stdin):
        talk = talk_on(sys.stderr)
        talk.forget_typed()
        if not _says_yes(talk, outcomes.discard_question(found)):
            talk.say(f"{called} is kept")
            return NO
    with Progress("removing"):
        found.discard()
    if arguments.json:
        as_data.show({"id": entry.id, "discarded": True})
    else:
        tell(f"discarded {called}")
    return DONE


def _discard_many(entries: Sequence[Entry], arguments: argparse.Namespace) -> int:
    running = [entry for entry in entries if entry.live]
    chosen = [entry for entry in entries if not entry.live]
    if chosen and not arguments.yes and not _is_sure(chosen, arguments):
        talk_on(sys.stderr).say("nothing was discarded")
        return NO
    with Progress("removing"):
        done = review.discard(chosen)
    problems = [(run, None if run.problem is None else _why(run.problem)) for run in done]
    results = [*((review.Discarded(entry), "it still runs") for entry in running), *problems]
    if arguments.json:
        as_data.show({"runs": [data.discarded(run, why) for run, why in results]})
    else:
        _tell([(run.entry, why) for run, why in results])
    return FAILED if any(why is not None for _, why in problems) else DONE


def _why(problem: PodbotError) -> str:
    return wording.message(with_names(str(problem)))


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
    what = outcomes.amount(Review(entry)) if entry.layer is not None else "0 changes"
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
