"""Undoing an application, or a part of it: the host gets back, bit for bit, what it had.

Where the host moved on since, it is refused before anything is touched, or leaves that out, or sets
what the host has now aside and goes on. What was replaced is taken from the journal's store; an
undo that is interrupted is completed by whoever comes next. Writes only what an application wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from podbot.changes import given, next_steps
from podbot.changes.applying import _asides, journal, ledger, recovery
from podbot.changes.applying._choosing import Choice, choose
from podbot.changes.applying._moved_on import Check, LayerFiles
from podbot.changes.applying._parts import half_done
from podbot.changes.applying._parts import only as only_part
from podbot.changes.applying.applied import Application, applications
from podbot.changes.applying.journal import Journal
from podbot.changes.applying.moves import Folder, Plan, as_json
from podbot.changes.applying.recovery import Recovered
from podbot.changes.diffs.text import listed
from podbot.changes.given import OnConflict, Paths
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass
from podbot.sandbox.layers import Layer


@dataclass(frozen=True, slots=True)
class Undone:
    """What was undone: the application, and the absolute paths that are as they were before.

    ``skipped`` are paths that stay as they are, each with the reason. ``kept`` are paths of which
    the host had a newer version, each with the file that it is in now. ``left`` is how many paths
    of its layer can be undone later, ``left_earlier`` how many of them by earlier applications.
    ``recovered`` says what an earlier interruption left to be healed first.
    """

    id: str
    restored: tuple[str, ...]
    recovered: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    left: int = 0
    left_earlier: int = 0


def undo(journal_or_layer_id: str, *, only: Paths = (), on_conflict: OnConflict = "stop") -> Undone:
    """Undo an application, or the latest of a layer that is not undone yet.

    ``only`` are patterns as for `select`: what else was applied stays, and can be undone later.
    Where the host moved on, ``on_conflict`` stops before anything is touched, leaves that out
    (``skip``), or sets what the host has now aside (``overwrite``) and says where it is.

    What could not be undone stays in the journal's store, and the next call tries it again.

    Raises `ChangesError`: ``nothing_to_undo``; ``nothing_selected``; ``undo_refused`` where the
    host moved on since, naming the files; ``permission`` where a folder is not ours to write;
    ``disk_full`` and ``apply_failed`` if it cannot be done; ``in_use``.
    """
    on_conflict = given.one_of("on_conflict", on_conflict, given.ON_CONFLICT)
    only = given.paths("only", only)
    with _latest_alone(journal_or_layer_id) as (own, before):
        plan, recovered = recovery.plan_of(own), tuple(before.lines)
        if own.is_undone:  # that was cut short, and is done now
            return Undone(own.id, plan.paths, recovered, (), (), *_left(own))
        choice = Choice(None, (), ())
        if own.marked(journal.UNDOING):
            own.unmark(journal.UNDONE)
        else:
            choice = _begin(own, plan, only, on_conflict)
            if choice.part is not None and not choice.part:
                return Undone(own.id, (), recovered, choice.skipped, (), *_left(own))
        part = recovery.undoing_part(own, plan)
        with recovery.opened(part) as site:
            kept = tuple(
                (
                    plan.where(Folder(one.target, one.path, None, None)),
                    str(_asides.place_of(site, one)),
                )
                for one in _asides.noted(own)
            )
            try:
                outcome = recovery.undo_on(own, site, recovery.result_of(own))
            except OSError as error:
                raise _not_undone([error.strerror or str(error)]) from error
    if outcome.left or outcome.failed:
        raise _not_undone([*outcome.left, *outcome.failed])
    return Undone(own.id, part.paths, recovered, choice.skipped, kept, *_left(own))


def _not_undone(reasons: Sequence[str]) -> ChangesError:
    return ChangesError(
        f"not all could be undone:\n{listed(reasons)}",
        kind=Kind.APPLY_FAILED,
        remedy="put it right and undo it once more: that goes on with what is left",
    )


def _left(own: Journal) -> tuple[int, int]:
    """How many paths of its layer can still be undone, and how many of them were applied earlier.

    What was applied twice is one path, and that of the later application.
    """
    here = set(own.read().paths) if own.is_active else set[str]()
    earlier: set[str] = set()
    for other in journal.of_layer(own.layer_id):
        if other != own and other.is_active:
            with suppress(ChangesError):  # one that cannot be read is told where it is undone
                earlier |= set(other.read().paths)
    return len(here | earlier), len(earlier - here)


@contextmanager
def _latest_alone(name: str) -> Iterator[tuple[Journal, Recovered]]:
    """The application that is meant, with its targets held."""
    own = _latest(name)
    if own is None:
        raise _nothing(name, recovery.recover())
    while own is not None:
        with recovery.at_work(own.summary().targets, "undoing", own.layer_id) as before:
            was_cut_short = own.id in before.healed and own.is_undone
            if was_cut_short or _latest(name) == own:
                yield own, before
                return
        own = _latest(name)  # another podbot has undone that one, or applied more, meanwhile
    raise _nothing(name, before.lines)


def _begin(own: Journal, plan: Plan, only: Sequence[str], on_conflict: OnConflict) -> Choice:
    """Find out what can be undone, and note that it is being undone."""
    result = recovery.result_of(own)
    with recovery.opened(plan) as site, recovery.opened_up(own, site, result) as opened:
        check = Check(site, result, opened, LayerFiles(own, site))
        choice = choose(plan, check.clashes(), only, on_conflict)
        facts: dict[str, object] = {"natural": check.natural(), "modes": check.modes()}
        facts["strange"] = check.strange()
        facts["instead"] = [[n, json.loads(as_json(state))] for n, state in check.instead.items()]
        if choice.part is None:
            check.refuse_if_no_room()
            site.refuse_if_not_ours("run as its owner, or make it writable for you")
        elif not choice.part:
            return choice
        else:
            facts["natural"] = [*check.natural(), *half_done(plan, choice.part)]
            facts |= choice.part.data()
            with recovery.opened(only_part(plan, choice.part)) as part:
                Check(part, result, opened, LayerFiles(own, part)).refuse_if_no_room()
                part.refuse_if_not_ours("run as its owner, or make it writable for you")
        first = _asides.free_number(place.kept for place in plan.places)
        facts["aside"] = [
            _asides.aside(target, path, stat, number)
            for number, (target, path, stat) in enumerate(choice.aside, first)
        ]
        own.mark(journal.UNDOING, facts)
        return choice


def forget(layer_id: str, layer: Layer | None = None) -> Path | None:
    """Remove the journals of a layer and all they kept: what was applied is applied for good.

    ``layer`` is put away first, and not under the hands of an apply that reads from it; gives where
    it waits to be removed.
    """
    trash = None
    targets = {target for own in journal.of_layer(layer_id) for target in _targets(own)}
    targets |= set(layer.targets if layer is not None else ())
    with recovery.at_work(targets, "discarding", layer_id):
        if layer is not None:
            trash = layer.put_away()
        for own in journal.of_layer(layer_id):
            if own.marked(journal.UNDONE) or (
                own.marked(journal.DONE) and not own.marked(journal.UNDOING)
            ):
                own.remove()
        ledger.prune(targets)
    return trash


def _targets(own: Journal) -> tuple[str, ...]:
    try:
        return own.summary().targets
    except ChangesError:
        return ()  # it has no plan that anyone could carry out


def _latest(name: str) -> Journal | None:
    candidates = [own for own in journal.found() if name in (own.id, own.layer_id)]
    return next((own for own in reversed(candidates) if own.is_active), None)


def _nothing(name: str, healed: Iterable[str]) -> ChangesError:
    """What to raise if there is nothing to undo; an apply of it may just have been taken back."""
    return ChangesError(
        "\n".join([*healed, f"nothing that was applied from {name!r} is left to undo"]),
        kind=Kind.NOTHING_TO_UNDO,
        remedy=next_steps.APPLIED,
    )


__all__ = ["Application", "Undone", "applications", "forget", "undo"]
