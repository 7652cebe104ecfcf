"""Healing what an interrupted apply or undo left behind: the host gets back what it had.

An application that did not come to its end is taken back, an undo that did not is completed. What
the user changed since is left alone and told. Runs before every apply and undo; whoever lists
changes may run it, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from podbot.changes import drift, journal, placing
from podbot.changes.backward import Applied, Outcome, take_back
from podbot.changes.forward import Result
from podbot.changes.journal import Journal
from podbot.changes.model import State
from podbot.changes.moves import Folder, Move, Plan, as_data, of_data, state_of
from podbot.changes.site import Site
from podbot.changes.tree import Tree
from podbot.errors import ChangesError


def recover() -> list[str]:
    """Heal what was interrupted, unless a living podbot is at work; says what was done."""
    if not journal.found():
        return []
    with journal.locked(wait=0) as held:
        return heal() if held else []


def heal() -> list[str]:
    """The same for whoever holds the lock."""
    told: list[str] = []
    for each in journal.found():
        if not each.planned:
            each.remove()
        elif not each.marked(journal.UNDONE):
            try:
                told += _healed(each)
            except (ChangesError, OSError) as error:
                told.append(f"{each.id} cannot be healed: {error}")
    return told


def _healed(own: Journal) -> list[str]:
    undoing, done = own.marked(journal.UNDOING), own.marked(journal.DONE)
    if done and not undoing and not own.marked(journal.LEFTOVER):
        return []
    plan = own.read()
    with opened(plan) as site:
        if undoing:
            outcome = undo_on(own, site)
            what = "undoing changes was interrupted: it is done now"
        elif done:
            sweep(own, site)
            return []
        else:
            outcome = roll_back(own, site)
            what = "applying changes was interrupted: the host has what it had before"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(plan.created))
    return [f"{own.id} ({when}): {what}", *outcome.left, *outcome.failed]


@contextmanager
def opened(plan: Plan) -> Iterator[Site]:
    """The places of a plan; those that are not there any more count as such."""
    with ExitStack() as stack:
        trees: list[Tree | None] = []
        for place in plan.places:
            try:
                trees.append(stack.enter_context(Tree(place.path)))
            except OSError:
                trees.append(None)
        yield stack.enter_context(Site(plan, trees))


def roll_back(own: Journal, site: Site) -> Outcome:
    """Take an application back that did not come to its end."""
    outcome = take_back(site)
    remember(site)
    if outcome.left and not outcome.failed:
        own.mark(journal.UNDONE, {"left": outcome.left})
    elif not outcome.failed:
        own.remove()
    return outcome


def undo_on(own: Journal, site: Site) -> Outcome:
    """Undo a whole application, or go on with it; the journal is marked as being undone."""
    outcome = take_back(site, applied(own))
    remember(site)
    if not outcome.failed:
        own.mark(journal.UNDONE, {"left": outcome.left})
        if not outcome.left:
            own.drop_kept()
    return outcome


def sweep(own: Journal, site: Site) -> None:
    """Remove old things from beside their places: the store has copies of them."""
    numbers = own.facts(journal.LEFTOVER)
    for number in numbers if isinstance(numbers, list) else []:
        move = site.plan.moves[number]
        with suppress(FileNotFoundError):
            spot = site.spot(move)
            journal.step("sweep")
            placing.remove(spot.folder, spot.temp)
    own.unmark(journal.LEFTOVER)


# What is noted at the end


def note_done(own: Journal, result: Result) -> None:
    """The end mark, with what the host has now: undo compares with it."""
    after = [[number, as_data(state)] for number, state in result.after.items()]
    folders = [as_data(state) for state in result.folders]
    own.mark(journal.DONE, {"after": after, "folders": folders})


def result_of(own: Journal) -> Result:
    """What was noted with the end mark; raises `ChangesError` if it cannot be read."""
    facts = own.facts(journal.DONE)
    try:
        assert isinstance(facts, dict)  # noqa: S101 - written by us, below a folder that is ours
        after = {int(number): of_data(state) for number, state in facts["after"]}
        return Result(after, [of_data(state) for state in facts["folders"]])
    except (AssertionError, ValueError, TypeError, KeyError) as error:
        raise own.broken(error) from None


def applied(own: Journal) -> Applied:
    """What undo must know: the states after the application, and what folders to leave alone."""
    facts = own.facts(journal.UNDOING)
    notes = facts if isinstance(facts, dict) else {}
    return Applied(
        result_of(own).after,
        natural={(target, path) for target, path in notes.get("natural", ())},
        modes={(target, path): mode for target, path, mode in notes.get("modes", ())},
    )


def remember(site: Site) -> None:
    """What is back in its place is no drift, unless it was before."""
    plan = site.plan
    entries: list[Move | Folder] = [*plan.moves, *plan.folders]
    written: dict[str, State | None] = {}
    for entry in entries:
        if entry.settled:
            with suppress(OSError):
                facts = site.tree(entry).facts(entry.path)
                written[plan.where(entry)] = facts and state_of(facts, None, ())
    remember_written(plan.layer_id, written)


def remember_written(layer_id: str | None, written: dict[str, State | None]) -> None:
    """Tell drift what is podbot's own; without it there would be conflicts, but no harm."""
    with suppress(OSError):
        drift.remember(layer_id, written)
