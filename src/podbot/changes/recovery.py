"""Healing what an interrupted apply or undo left behind: the host gets back what it had.

An application that did not come to its end is taken back, an undo that did not is completed. What
the user changed since is left alone and told. Runs before every apply and undo; whoever lists
changes may run it, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType

from podbot.changes import drift, journal, placing
from podbot.changes.backward import Applied, Outcome, take_back
from podbot.changes.forward import LOOK, Result, open_up
from podbot.changes.journal import Journal
from podbot.changes.model import FILE, FOLDER, Identity, State
from podbot.changes.moves import Folder, Move, Plan, as_json, of_data
from podbot.changes.site import Site
from podbot.changes.text import listed, shown_name
from podbot.changes.tree import Tree
from podbot.errors import ChangesError, Kind
from podbot.sandbox.overlay import layers

Entry = Move | Folder

_TRY_AGAIN = "put it right; it is tried again by the next command on changes, or `podbot gc`"


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was healed, as lines; and what could not be, by the journal's id."""

    told: tuple[str, ...] = ()
    failed: tuple[tuple[str, ChangesError], ...] = ()

    @property
    def lines(self) -> list[str]:
        """All of it for a person."""
        return [*self.told, *(str(error) for _, error in self.failed)]


def recover() -> list[str]:
    """Heal what was interrupted, unless a living podbot is at work; says what was done."""
    return put_right().lines


def put_right() -> Recovered:
    """The same, and tells apart what was healed and what could not be."""
    if not journal.found():
        return Recovered()
    with journal.locked(wait=0) as held:
        return _put_right() if held else Recovered()


def heal() -> list[str]:
    """The same as `recover` for whoever holds the lock."""
    return _put_right().lines


def _put_right() -> Recovered:
    told: list[str] = []
    failed: list[tuple[str, ChangesError]] = []
    for each in journal.found():
        if each.planned and not _is_over(each) and each.marked(journal.UNDONE):
            continue
        try:
            if not each.planned or _is_over(each):
                each.remove()
            else:
                told += _healed(each)
        except (ChangesError, OSError) as error:
            failed.append((each.id, _unhealed(each, error)))
    return Recovered(tuple(told), tuple(failed))


def _unhealed(own: Journal, error: ChangesError | OSError) -> ChangesError:
    if isinstance(error, ChangesError):
        return ChangesError(
            f"{own.id} cannot be healed: {error.message}", kind=error.kind, remedy=error.remedy
        )
    reason = error.strerror or str(error)
    # A descriptor tells a person nothing.
    if isinstance(error.filename, str) and not error.filename.startswith("/proc/self/fd/"):
        reason += f" ({shown_name(error.filename)})"
    return ChangesError(
        f"{own.id} cannot be healed: {reason}", kind=Kind.APPLY_FAILED, remedy=_TRY_AGAIN
    )


def _is_over(own: Journal) -> bool:
    """Whether nobody can want it any more: undone, and its changes are gone."""
    return own.marked(journal.UNDONE) and layers.get(own.layer_id) is None


def _healed(own: Journal) -> list[str]:
    undoing, done = own.marked(journal.UNDOING), own.marked(journal.DONE)
    waiting = own.marked(journal.LEFTOVER) or own.marked(journal.OPENED)
    if done and not undoing and not waiting:
        return []
    plan = own.read()
    with opened(plan) as site:
        if undoing:
            outcome = undo_on(own, site, result_of(own))
            what = "undoing changes was interrupted: it is done now"
        elif done:
            result = result_of(own)
            _close_again(own, site, result)
            sweep(own, site, result)
            remember_applied(site, result)
            return []
        else:
            outcome = roll_back(own, site)
            what = "applying changes was interrupted: the host has what it had before"
    if outcome.failed:
        raise ChangesError(
            f"not all could be taken back:\n{listed([*outcome.left, *outcome.failed])}",
            kind=Kind.APPLY_FAILED,
            remedy=_TRY_AGAIN,
        )
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(plan.created))
    return [f"{own.id} ({when}): {what}", *outcome.left]


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
    others = _linked(site)
    outcome = take_back(site)
    _remember_back(own, site, others)
    if outcome.left and not outcome.failed:
        own.mark(journal.UNDONE, {"left": outcome.left})
    elif not outcome.failed:
        own.remove()
    return outcome


def undo_on(own: Journal, site: Site, result: Result) -> Outcome:
    """Undo a whole application, or go on with it; the journal is marked as being undone."""
    others = _linked(site)
    outcome = take_back(site, _applied(own, result))
    _remember_back(own, site, others)
    if not outcome.failed:
        own.mark(journal.UNDONE, {"left": outcome.left})
        if not outcome.left:
            own.drop_kept()
        journal.forget_touched()
    return outcome


@contextmanager
def opened_up(own: Journal, site: Site, result: Result) -> Iterator[Mapping[tuple[int, str], int]]:
    """Look into folders that an application left closed; they are closed again if nobody stays.

    Gives the modes they have while they are not open.
    """
    if all(state is None or state.mode & 0o500 == 0o500 for state in result.folders):
        yield {}
        return
    own.mark(journal.OPENED)
    try:
        yield open_up(site, rights=LOOK)
    finally:
        if not own.marked(journal.UNDOING):
            _close_again(own, site, result)
        own.unmark(journal.OPENED)


def _close_again(own: Journal, site: Site, result: Result) -> None:
    """Give folders that were opened the mode that the application left them with."""
    if not own.marked(journal.OPENED):
        return
    for note, after in reversed([*zip(site.plan.folders, result.folders, strict=True)]):
        now = _now(site, note)
        if now is None or after is None:
            continue
        if now.st_mode & 0o7777 == after.mode | 0o700 != after.mode:
            with suppress(OSError):
                place = placing.by_handle(site.tree(note).folder(note.path))
                journal.step("close a folder")
                os.chmod(place, after.mode)
    own.unmark(journal.OPENED)


def sweep(own: Journal, site: Site, result: Result) -> None:
    """Remove old things from beside their places: the store has copies of them."""
    numbers = own.facts(journal.LEFTOVER)
    left = [site.plan.moves[number] for number in numbers] if isinstance(numbers, list) else []
    touched = {(move.target, site.staging_folder(move)) for move in left}
    open_up(site, touched)
    for move in left:
        with suppress(FileNotFoundError, NotADirectoryError):
            folder = site.tree(move).folder(site.staging_folder(move))
            journal.step("sweep")
            placing.remove(folder, journal.temporary(site.plan, move))
    for note, after in zip(site.plan.folders, result.folders, strict=True):
        if after is not None and (note.target, note.path) in touched:
            journal.step("sweep a folder")
            with suppress(FileNotFoundError, NotADirectoryError):
                place = placing.by_handle(site.tree(note).folder(note.path))
                have = os.stat(place)
                placing.set_folder_mode(place, have, after.mode)
                placing.set_time(place, have, after.mtime_ns)
    own.unmark(journal.LEFTOVER)


# What is noted at the end


def note_done(own: Journal, result: Result) -> None:
    """The end mark, with what the host has now: undo compares with it."""
    after = (f"[{number}, {as_json(state)}]" for number, state in result.after.items())
    folders = (as_json(state) for state in result.folders)
    text = f'{{"after": [{", ".join(after)}], "folders": [{", ".join(folders)}]}}'
    own.mark_as(journal.DONE, text)


def result_of(own: Journal) -> Result:
    """What was noted with the end mark; raises `ChangesError` if it cannot be read."""
    facts = own.facts(journal.DONE)
    if not isinstance(facts, dict):
        raise own.broken(ValueError("its end mark holds nothing"))
    try:
        after = {int(number): of_data(state) for number, state in facts["after"]}
        return Result(after, [of_data(state) for state in facts["folders"]])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise own.broken(error) from None


def _applied(own: Journal, result: Result) -> Applied:
    """What undo must know: the states after the application, and what folders to leave alone."""
    facts = own.facts(journal.UNDOING)
    notes = facts if isinstance(facts, dict) else {}
    return Applied(
        result.after,
        natural={(target, path) for target, path in notes.get("natural", ())},
        modes={(target, path): mode for target, path, mode in notes.get("modes", ())},
    )


def note_links(own: Journal, site: Site, linked: Iterable[tuple[int, str, State]]) -> None:
    """Files that got or lost a name, and with it another ctime, are still the same files."""
    pairs: list[tuple[Identity, Identity]] = []
    for target, path, was in linked:
        now = _now(site, Move(-1, target, path, None, None))
        if now is not None and _same_looks(now, was):
            pairs.append((was.identity, _identity(now)))
    for move in site.plan.moves:
        if move.was is not None and move.was.links > 1 and move.was.type is FILE:
            facts = site.kept_facts(move)
            if facts is not None and placing.is_same(facts, move.was):
                pairs.append((move.was.identity, _identity(facts)))
    if pairs:
        journal.note_touched(pairs, own)


def remember_applied(
    site: Site, result: Result, others: Mapping[str, State] = MappingProxyType({})
) -> None:
    """What an application left is no drift, as long as it is still that."""
    plan = site.plan
    written: dict[str, Identity | None] = {where: now.identity for where, now in others.items()}
    for move in plan.moves:
        after = result.after[move.number]
        written[plan.where(move)] = None if after is None else after.identity
    for note, then in zip(plan.folders, result.folders, strict=True):
        now = _now(site, note)
        if note.settled and now is not None and then is not None and _same_looks(now, then):
            written[plan.where(note)] = _identity(now)
    _remember(plan.layer_id, written)


def _remember_back(own: Journal, site: Site, others: list[tuple[Entry, State]]) -> None:
    """What is back in its place is no drift, unless it was before or someone changed it since."""
    plan = site.plan
    written: dict[str, Identity | None] = {}
    pairs: list[tuple[Identity, Identity]] = []
    entries: list[Entry] = [*plan.moves, *plan.folders]
    for entry, was in (*((entry, entry.was) for entry in entries), *others):
        facts = _now(site, entry)
        if facts is None or was is None:
            if facts is None and was is None and entry.settled:
                written[plan.where(entry)] = None
        elif _same_looks(facts, was):
            now = _identity(facts)
            if entry.settled:
                written[plan.where(entry)] = now
            pairs.append((was.identity, now))
    _remember(plan.layer_id, written)
    journal.note_touched(pairs, own)


def _linked(site: Site) -> list[tuple[Entry, State]]:
    """Files of the host that got another name: they stay, but are touched when that goes."""
    placed = {(move.target, move.path) for move in site.plan.moves}
    found: list[tuple[Entry, State]] = []
    for move in site.plan.moves:
        if move.link_to is not None and (move.target, move.link_to) not in placed:
            other = Move(-1, move.target, move.link_to, None, None, settled=False)
            now = _now(site, other)
            if now is not None:
                found.append((other, State.of(now, None, ())))
    return found


def _now(site: Site, entry: Entry) -> os.stat_result | None:
    try:
        return site.tree(entry).facts(entry.path)
    except OSError:
        return None


def _identity(facts: os.stat_result) -> Identity:
    return facts.st_dev, facts.st_ino, facts.st_ctime_ns


def _same_looks(now: os.stat_result, then: State) -> bool:
    """Whether it has the same mode and owner, and if it is no folder the same size and time."""
    if (
        now.st_mode & 0o7777 != then.mode
        or now.st_uid != then.uid
        or now.st_gid != then.gid
        or placing.type_of(now) is not then.type
    ):
        return False
    if then.type is FOLDER:
        return True
    return now.st_size == then.size and now.st_mtime_ns == then.mtime_ns


def _remember(layer_id: str | None, written: Mapping[str, Identity | None]) -> None:
    with suppress(OSError):  # without it there would be conflicts that are none, and no harm
        drift.remember(layer_id, written)
