"""Healing what an interrupted apply or undo left behind: the host gets back what it had.

An application that did not come to its end is taken back, an undo that did not is completed. What
the user changed since is left alone and told. Runs before every apply and undo, and before anyone
looks at a target (see `gate`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import zip_longest

from podbot.changes.applying import _asides, _locks, _placing, _remembering, journal
from podbot.changes.applying._backward import Applied, Outcome, take_back
from podbot.changes.applying._forward import LOOK, Result, open_up
from podbot.changes.applying._parts import Part, only
from podbot.changes.applying._remembering import Entry, Touched, now_at
from podbot.changes.applying._site import Site
from podbot.changes.applying.journal import Journal
from podbot.changes.applying.ledger import Ledger
from podbot.changes.applying.moves import Move, Plan, as_json, moved_to, of_data
from podbot.changes.diffs.text import listed, shown_name
from podbot.changes.model import FILE, FOLDER, State
from podbot.changes.tree import Tree
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass, replace
from podbot.sandbox import layers

_TRY_AGAIN = "put it right; it is tried again by the next command on changes, or `podbot gc`"


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was healed, as lines; and what could not be, by the journal's id.

    ``busy``: something was left alone, as a living podbot is at work there. ``healed`` are the
    journals that were brought to an end.
    """

    messages: tuple[str, ...] = ()
    failed: tuple[tuple[str, ChangesError], ...] = ()
    busy: bool = False
    healed: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """All of it for a person."""
        return [*self.messages, *(str(error) for _, error in self.failed)]


def recover() -> list[str]:
    """Heal what was interrupted, but for what living podbots are at work on; says what was done."""
    return put_right().lines


def put_right(wait: float | None = 0, over: Collection[str] | None = None) -> Recovered:
    """The same, and tells apart what was healed and what could not be.

    ``over`` means only what concerns these targets. With a ``wait`` for whoever is at work on its
    targets this raises as `locks.held` does.
    """
    found = Recovered()
    for each in journal.found():
        if not _needs_care(each) or not (over is None or each.concerns(over)):
            continue
        with _alone(each, wait) as alone:
            if not alone:
                found = replace(found, busy=True)
            elif each.folder.exists() and _needs_care(each):
                found = _put_right(each, found)
    journal.clear_whole()
    return found


def _put_right(own: Journal, found: Recovered) -> Recovered:
    try:
        if not own.planned or _is_over(own):
            own.remove()
            return found
        messages = _healed(own)
    except (ChangesError, OSError) as error:
        return replace(found, failed=(*found.failed, (own.id, _unhealed(own, error))))
    return replace(found, messages=(*found.messages, *messages), healed=(*found.healed, own.id))


@contextmanager
def at_work(targets: Collection[str], doing: str, run: str | None) -> Iterator[Recovered]:
    """Hold these targets, with nothing half done on them but what cannot be healed.

    Raises `ChangesError` (kind ``in_use``) where another podbot does not come to its end.
    """
    before = put_right()
    while True:
        with _locks.held(targets, doing, run):
            failed = {id for id, _ in before.failed}
            left = [
                each
                for each in journal.found()
                if each.is_unfinished and each.id not in failed and each.concerns(targets)
            ]
            if not left:
                try:
                    yield before
                finally:
                    journal.clear_whole()
                return
        # Someone died just now, or is at work on another target of what is half done on ours. Never
        # wait for that with our own in hand: they might be waiting for us.
        more = put_right(None, targets)
        before = Recovered(
            (*before.messages, *more.messages),
            (*before.failed, *more.failed),
            healed=(*before.healed, *more.healed),
        )


@contextmanager
def _alone(own: Journal, wait: float | None) -> Iterator[bool]:
    """Hold the targets of a journal; one without a plan is its maker's, as long as that lives."""
    targets = _targets(own)
    if targets is None:
        yield not _locks.is_anyone_at_work() and not own.planned
        return
    with _locks.held(targets, "healing", own.layer_id, wait) as held:
        yield held


def _targets(own: Journal) -> tuple[str, ...] | None:
    """Where it may have written; None if nowhere yet. What nobody can tell any more is nothing."""
    if not own.planned:
        return None
    try:
        return own.summary().targets
    except ChangesError:
        return ()


def _needs_care(own: Journal) -> bool:
    """Whether it was left half done, or nobody can want it any more."""
    return not own.planned or own.is_unfinished or _is_over(own)


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
    return own.is_undone and layers.get(own.layer_id) is None and not own.newer()


def _healed(own: Journal) -> list[str]:
    undoing, done = own.marked(journal.UNDOING), own.marked(journal.DONE)
    plan = plan_of(own)
    with opened(undoing_part(own, plan) if undoing else plan) as site:
        if undoing:
            outcome = undo_on(own, site, result_of(own))
            what = "undoing changes was interrupted: it is done now"
        elif done:
            result = result_of(own)
            _close_again(own, site, result)
            _remembering.touched(own, site, result, sweep(own, site, result))
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
    """The places of a plan; those that are not there any more count as such.

    That is so, too, for one where another folder is now, as when a disk is not mounted yet.
    """
    with ExitStack() as stack:
        trees: list[Tree | None] = []
        for place, root in zip_longest(plan.places, plan.roots):
            try:
                tree = stack.enter_context(Tree(place.path))
            except OSError:
                trees.append(None)
                continue
            is_same = root is None or os.fstat(tree.folder("")).st_ino == root[1]
            trees.append(tree if is_same else None)
        yield stack.enter_context(Site(plan, trees))


def roll_back(own: Journal, site: Site) -> Outcome:
    """Take an application back that did not come to its end."""
    others = _linked(site)
    outcome = take_back(site)
    _sync(site, outcome)
    _remembering.taken_back(own, site, others, {})
    if outcome.left and not outcome.failed:
        own.mark(journal.UNDONE, {"left": outcome.left})
    elif not outcome.failed:
        own.remove()
    return outcome


def undo_on(own: Journal, site: Site, result: Result) -> Outcome:
    """Undo an application, or go on with it; the journal is marked as being undone.

    The site is that of `undoing_part`: of all that is left of the plan, or of a part of that.
    """
    _asides.put_aside(own, site)
    others = _linked(site)
    outcome = take_back(site, _applied(own, result))
    _sync(site, outcome)
    _remembering.taken_back(own, site, others, result.after)
    part = Part.of(own.facts(journal.UNDOING))
    if part is not None:
        if not outcome.failed:
            _note_taken(own, site, replace(part, moves=part.moves - outcome.left_moves))
    elif not outcome.failed:
        own.mark(journal.UNDONE, {"left": outcome.left})
        if not outcome.left:
            own.drop_kept()
    return outcome


def _sync(site: Site, outcome: Outcome) -> None:
    """What is back must be on the disk before anything says so, or what it came from goes."""
    try:
        site.sync()
    except OSError as error:
        outcome.failed.append(f"waiting for the disk: {error.strerror or error}")


def undoing_part(own: Journal, plan: Plan) -> Plan:
    """What of an application is being undone: all that is left of it, or a part of that."""
    with own.reading():
        part = Part.of(own.facts(journal.UNDOING))
        return plan if part is None else only(plan, part)


def _note_taken(own: Journal, site: Site, part: Part) -> None:
    """A part was taken back: from now on the rest is what was applied."""
    folders = _folders_taken(own)
    facts = own.facts(journal.UNDOING)
    strange = facts.get("strange", ()) if isinstance(facts, dict) else ()
    for index, note in enumerate(site.plan.folders):
        if [note.target, note.path] in strange:
            continue  # what was left is not there, and this is none of ours
        now = now_at(site, note) if note.was is not None else None
        if now is not None and _placing.type_of(now) is FOLDER:
            with suppress(OSError):
                folders[index] = site.tree(note).state(note.path)
    before = Part.of(own.facts(journal.TAKEN))
    taken = part if before is None else before | part
    rows = [[index, json.loads(as_json(state))] for index, state in folders.items()]
    own.mark(journal.TAKEN, {**taken.data(), "folders": rows})
    own.unmark(journal.UNDOING)


def _folders_taken(own: Journal) -> dict[int, State | None]:
    """What folders of the plan are like since some of it was taken back."""
    facts = own.facts(journal.TAKEN)
    rows = facts.get("folders", ()) if isinstance(facts, dict) else ()
    return {index: of_data(state) for index, state in rows}


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
        now = now_at(site, note)
        if now is None or after is None:
            continue
        if now.st_mode & 0o7777 == after.mode | 0o700 != after.mode:
            with suppress(OSError):
                place = _placing.by_handle(site.tree(note).folder(note.path))
                journal.step("close a folder")
                os.chmod(place, after.mode)
    own.unmark(journal.OPENED)


def sweep(own: Journal, site: Site, result: Result) -> list[Touched]:
    """Remove old things from beside their places: the store has copies of them.

    Gives the files that are still there under other names, which are touched by that.
    """
    others: list[Touched] = []
    numbers = own.facts(journal.LEFTOVER)
    wanted = {*numbers} if isinstance(numbers, list) else set()
    left = [move for move in site.plan.moves if move.number in wanted]
    touched = {(move.target, site.staging_folder(move)) for move in left}
    open_up(site, touched)
    for move in left:
        with suppress(FileNotFoundError, NotADirectoryError):
            folder = site.tree(move).folder(site.staging_folder(move))
            journal.step("sweep")
            other = _removed(folder, journal.temporary(site.plan, move), move)
            others += [other] if other is not None else []
    for note, after in zip(site.plan.folders, result.folders, strict=True):
        if after is not None and (note.target, note.path) in touched:
            journal.step("sweep a folder")
            with suppress(FileNotFoundError, NotADirectoryError):
                place = _placing.by_handle(site.tree(note).folder(note.path))
                have = os.stat(place)
                _placing.set_folder_mode(place, have, after.mode)
                _placing.set_time(place, have, after.mtime_ns)
    site.sync()
    own.unmark(journal.LEFTOVER)
    return others


def _removed(folder: int, name: str, move: Move) -> Touched | None:
    """Remove an old thing; what became of it if that was only one of its names."""
    was = move.was
    if was is None or was.type is not FILE or was.links == 1:
        _placing.remove(folder, name)
        return None
    with _placing.handle(folder, name) as fd:
        facts = os.fstat(fd)
        os.unlink(name, dir_fd=folder)
        if not _placing.is_same(facts, was):
            return None
        left = os.fstat(fd)
    return (move.target, was, State.of(left, None, was.xattrs)) if left.st_nlink else None


# What is noted at the end


def note_done(own: Journal, result: Result) -> None:
    """The end mark, with what the host has now: undo compares with it."""
    after = (f"[{number}, {as_json(state)}]" for number, state in result.after.items())
    folders = (as_json(state) for state in result.folders)
    text = f'{{"after": [{", ".join(after)}], "folders": [{", ".join(folders)}]}}'
    own.mark_as(journal.DONE, text)


def plan_of(own: Journal) -> Plan:
    """The plan of a journal, with devices by their numbers of today."""
    plan = own.read()
    devices = _renumbered(own)
    return plan.on(devices) if devices else plan


def _renumbered(own: Journal) -> dict[int, int]:
    """The devices of targets that got another number since, as disks do when a host starts."""
    found: dict[int, int] = {}
    summary = own.summary()
    for path, (device, inode) in zip(summary.targets, summary.roots, strict=False):
        with suppress(OSError):
            now = os.lstat(path)
            if now.st_ino == inode and now.st_dev != device:
                found[device] = now.st_dev
    return found


def result_of(own: Journal) -> Result:
    """What was noted with the end mark; raises `ChangesError` if it cannot be read."""
    facts = own.facts(journal.DONE)
    if not isinstance(facts, dict):
        raise own.broken(ValueError("its end mark holds nothing"))
    with own.reading():
        after = {int(number): of_data(state) for number, state in facts["after"]}
        since = _folders_taken(own)
        states = [of_data(state) for state in facts["folders"]]
        folders = [since.get(index, state) for index, state in enumerate(states)]
    if devices := _renumbered(own):
        after = {number: moved_to(devices, state) for number, state in after.items()}
        folders = [moved_to(devices, state) for state in folders]
    return Result(after, folders)


def _applied(own: Journal, result: Result) -> Applied:
    """What undo must know: the states after the application, and what folders to leave alone."""
    facts = own.facts(journal.UNDOING)
    notes = facts if isinstance(facts, dict) else {}
    known = Ledger(*own.summary().targets)
    after = {number: _as_given_back(state, known) for number, state in result.after.items()}
    with own.reading():
        after |= {number: of_data(state) for number, state in notes.get("instead", ())}
        return Applied(
            after,
            natural={(target, path) for target, path in notes.get("natural", ())},
            modes={(target, path): mode for target, path, mode in notes.get("modes", ())},
            strange={(target, path) for target, path in notes.get("strange", ())},
        )


def _as_given_back(state: State | None, known: Ledger) -> State | None:
    """A state with the number it has since podbot took it away and gave it back, perhaps a copy."""
    if state is None or known.latest(state.identity) == state.identity:
        return state
    device, inode, ctime_ns = known.latest(state.identity)
    return replace(state, device=device, inode=inode, ctime_ns=ctime_ns)


def _linked(site: Site) -> list[tuple[Entry, State]]:
    """Files of the host that got another name: they stay, but are touched when that goes."""
    placed = {(move.target, move.path) for move in site.plan.moves}
    found: list[tuple[Entry, State]] = []
    for move in site.plan.moves:
        if move.link_to is not None and (move.target, move.link_to) not in placed:
            other = Move(-1, move.target, move.link_to, None, None, host_unchanged=False)
            now = now_at(site, other)
            if now is not None:
                found.append((other, State.of(now, None, ())))
    return found
