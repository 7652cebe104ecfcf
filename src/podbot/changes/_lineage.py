"""What lay at a host path before, as far as podbot's own hand goes back: read from the journals.

A journal knows for each path what was there, what its application left there, and keeps the first
of the two. From what the host has now, that leads from one application to the one before it. Only
what is exactly as an application left it has a past here; reads only, and believes no time stamp
that anyone can set.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from podbot.changes.applying import journal
from podbot.changes.applying.journal import Journal
from podbot.changes.applying.ledger import Ledger
from podbot.changes.applying.moves import Move, Plan
from podbot.changes.model import FILE, ChangeSet, State
from podbot.errors import ChangesError
from podbot.frozen import dataclass

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Step:
    """One application at one path: what was there, what it left, where it keeps the first.

    ``merged`` is what was noted if two runs were brought together there: see `note_merges`.
    """

    run: str
    created_ns: int
    was: State | None
    after: State | None
    kept: Path | None
    merged: Noted | None

    def read_kept(self, most: int) -> bytes | None:
        """The bytes of what was there; None if the store has not that very thing any more.

        None, too, if there are more than so many.
        """
        was = self.was
        if was is None or self.kept is None or was.size > most:
            return None
        try:
            fd = os.open(self.kept, _READ)
        except OSError:
            return None
        with open(fd, "rb") as file:
            facts = os.fstat(fd)
            # On another file system it is a copy, with all that is kept of a file but its number.
            is_it = facts.st_ino == was.inode if facts.st_dev == was.device else True
            alike = (facts.st_size, facts.st_mtime_ns) == (was.size, was.mtime_ns)
            if not (is_it and alike and stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1):
                return None
            data = file.read(was.size + 1)
            return data if len(data) == was.size else None


@dataclass(frozen=True, slots=True)
class Noted:
    """The file of the run that was merged there, and whether nothing of it was left out."""

    device: int
    inode: int
    ctime_ns: int
    size: int
    mtime_ns: int
    whole: bool

    @classmethod
    def of(cls, run: State, whole: bool) -> Noted:
        """What is to be known of the file of a run."""
        return cls(run.device, run.inode, run.ctime_ns, run.size, run.mtime_ns, whole)

    def is_all_of(self, run: State) -> bool:
        """Whether a file is the one that was merged, and all of it was taken."""
        return self == Noted.of(run, whole=True)


def note_merges(own: Journal, merged: Mapping[str, Noted]) -> None:
    """Note, before anything is touched, at which absolute paths two runs are brought together."""
    if merged:
        own.mark(
            journal.MERGES,
            {
                where: [it.device, it.inode, it.ctime_ns, it.size, it.mtime_ns, it.whole]
                for where, it in merged.items()
            },
        )


def merges(own: Journal) -> Mapping[str, Noted]:
    """What was noted so, by absolute path."""
    facts = own.facts(journal.MERGES)
    if not isinstance(facts, dict):
        return {}
    try:
        return {str(where): Noted(*values) for where, values in facts.items()}
    except TypeError:
        return {}


class Lineage:
    """The past of some paths, from all journals that can still be undone."""

    def __init__(
        self, journals: Collection[Journal], paths: Collection[str], targets: Collection[str]
    ):
        from podbot.changes.applying import recovery

        self._steps: dict[str, list[Step]] = {}
        self._taken: list[tuple[str, State]] = []  # files that were replaced or removed
        self._ledger = Ledger(*targets)
        for own in journals:
            try:
                plan, result, merged = recovery.plan_of(own), recovery.result_of(own), merges(own)
            except ChangesError:
                continue  # what it did cannot be told: then there is no past
            for move in plan.moves:
                where = plan.where(move)
                if where in paths:
                    step = _step(own, plan, move, result.after.get(move.number), merged)
                    self._steps.setdefault(where, []).append(step)
                if move.was is not None and move.was.type is FILE:
                    self._taken.append((own.layer_id, move.was))
        for steps in self._steps.values():
            steps.sort(key=lambda step: step.created_ns)

    def __contains__(self, where: object) -> bool:
        return where in self._steps

    def back(self, where: str, state: State | None) -> Iterator[Step]:
        """The applications that led to a state, the latest first, for as far as they are known."""
        steps = list(self._steps.get(where, ()))
        while steps:
            step = steps.pop()
            if self._is_left(step.after, state):
                yield step
                state = step.was

    def laid_on(self, where: str, state: State | None) -> str | None:
        """The run whose application took a state away to put something else in its place."""
        steps = self._steps.get(where, ())
        return next((step.run for step in steps if self._is_left(state, step.was)), None)

    def took_a_name(self, was: State) -> str | None:
        """The run that took another name of a file away, to remove it or to put something there."""
        for run, taken in self._taken:
            if was.identity in self._ledger.earlier(taken.identity):
                return run
            looks = (taken.device, taken.inode, taken.size, taken.mtime_ns)
            if looks == (was.device, was.inode, was.size, was.mtime_ns):
                return run
        return None

    def _is_left(self, after: State | None, state: State | None) -> bool:
        """Whether a state is what an application left, perhaps moved away and back by podbot."""
        if after is None or state is None:
            return after is state
        return after.identity in self._ledger.earlier(state.identity)

    def was_before(self, where: str, state: State, since_ns: int, layer_id: str | None) -> bool:
        """Whether a sandbox that started then saw it so, or its layer has left it so."""
        return self._ledger.explains(where, state.identity, since_ns, layer_id)


def _step(
    own: Journal, plan: Plan, move: Move, after: State | None, merged: Mapping[str, Noted]
) -> Step:
    kept = None if move.in_place else Path(plan.places[move.target].kept, plan.kept_as(move))
    return Step(
        own.layer_id,
        int(plan.created * 1e9),
        move.was,
        after,
        kept,
        merged.get(plan.where(move)),
    )


def since(plan: Plan) -> Lineage:
    """What later applications did to the paths of an earlier one."""
    targets = [place.path for place in plan.places]
    later: list[Journal] = []
    for each in journal.found():
        with suppress(ChangesError):
            if each.is_active and not each.marked(journal.UNDOING):
                made = each.summary()
                if made.created > plan.created and _meet(made.targets, targets):
                    later.append(each)
    return Lineage(later, {plan.where(move) for move in plan.moves}, targets)


def of_others(changes: ChangeSet) -> list[Journal]:
    """The journals that may tell of what came to a run's targets since it began.

    Its own are among them only if there are such of others, or it was merged.
    """
    # What came from elsewhere has no start: what it began from is told by its hash.
    since_ns = changes.since_ns if changes.olds is None else 0
    others: list[Journal] = []
    own: list[Journal] = []
    for each in journal.found():
        if not each.is_active or each.marked(journal.UNDOING):
            continue
        if each.layer_id == changes.layer_id:
            own.append(each)
            continue
        try:
            made = each.summary()
        except ChangesError:
            continue
        if made.created * 1e9 > since_ns and _meet(made.targets, changes.targets):
            others.append(each)
    if not others and not any(each.marked(journal.MERGES) for each in own):
        return []
    return [*others, *own]


def _meet(some: Collection[str], others: Collection[str]) -> bool:
    """Whether any folder is, holds or lies in one of others."""
    return any(
        f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
        for one in some
        for other in others
    )
