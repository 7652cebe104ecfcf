"""Going through changes one by one with a person, down to single hunks; applies nothing itself.

Nothing is taken without an answer, and what runs by itself or is in conflict with the host needs a
full ``yes`` of its own. What was taken is made whole at the end: a file brings the new folders it
needs, and a folder goes only if all that was in it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType
from podbot.cli import look, overview, pager
from podbot.cli.diffs import body, diff_lines, hunk_lines
from podbot.cli.overview import Overview
from podbot.cli.talk import Talk

if TYPE_CHECKING:
    from podbot.changes.diff import FileDiff

MOST_SHOWN = 60
"""Lines that are shown with a question; the rest on request."""

YES = "yes"

_KEYS = {
    "y": "take this",
    "n": "leave this",
    "a": "take this and all that is left of this file",
    "d": "leave this and all that is left of this file",
    "s": "decide on each thing in this folder",
    "v": "view all of it",
    "q": "stop asking: leave this and all after it, apply what was taken",
    "?": "this help; Ctrl-C or Ctrl-D stop and apply nothing",
}


@dataclass(frozen=True, slots=True)
class Picked:
    """What a person took; ``changes`` is whole in itself.

    By absolute path: the ``hunks`` of what was taken in part, what was ``consented`` to although
    it runs by itself, and what is ``overwriting`` the host's. ``remarks`` say what was adjusted.
    """

    changes: ChangeSet
    hunks: Mapping[str, frozenset[int]]
    consented: frozenset[str]
    overwriting: frozenset[str]
    remarks: tuple[str, ...] = ()


class _StoppedError(Exception):
    """The person wants no more questions."""


class _EndedError(Exception):
    """There are no more answers."""


def pick(found: Overview, talk: Talk) -> Picked | None:
    """Ask about each change; None if the answers ended before the questions."""
    return _picked(found, talk, _Picking.ask_all)


def take_all(found: Overview, talk: Talk) -> Picked | None:
    """Take everything, but ask about what needs a consent of its own."""
    return _picked(found, talk, _Picking.take_all)


def _picked(found: Overview, talk: Talk, go_through: Callable[[_Picking], None]) -> Picked | None:
    picking = _Picking(found, talk)
    try:
        go_through(picking)
    except _StoppedError:
        pass
    except _EndedError:
        return None
    changes, remarks = whole(found.changes, picking.taken)
    kept = {change.where for change in changes}
    return Picked(
        changes,
        {where: chosen for where, chosen in picking.hunks.items() if where in kept},
        frozenset(picking.consented & kept),
        frozenset(picking.overwriting & kept),
        tuple(remarks),
    )


@dataclass(slots=True)
class _Picking:
    """The answers so far, by absolute path."""

    found: Overview
    talk: Talk
    taken: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    hunks: dict[str, frozenset[int]] = field(default_factory=dict)
    consented: set[str] = field(default_factory=set)
    overwriting: set[str] = field(default_factory=set)

    def ask_all(self) -> None:
        every = self.found.changes.changes
        for number, change in enumerate(every):
            if change.where in self.settled:
                continue
            below = self._in_folder(change, number)
            self.talk.say()
            self.talk.say(f"({number + 1}/{len(every)}) " + self._line(change))
            if not self._possible(change):
                self._leave(change, *below)
            elif below:
                self._ask_folder(change, below)
            else:
                self._ask_change(change)

    def take_all(self) -> None:
        every = self.found.changes.changes
        for number, change in enumerate(every):
            if change.where in self.settled:
                continue
            if self._needs_consent(change):
                self.talk.say()
                self.talk.say(self._line(change))
                if not (self._possible(change) and self._consents(change)):
                    self._leave(change, *self._in_folder(change, number))
                    continue
            self._take(change)

    def _in_folder(self, change: Change, number: int) -> list[Change]:
        """What cannot be taken without a folder: it follows the folder itself."""
        every = self.found.changes.changes
        if not _holds_others(change):
            return []
        prefix = f"{change.path}/"
        rest = (every[other] for other in range(number + 1, len(every)))
        return [*takewhile(lambda o: o.target == change.target and o.path.startswith(prefix), rest)]

    def _ask_folder(self, change: Change, below: Sequence[Change]) -> None:
        what = "the removal of all in it" if _is_lost(change) else "all in it"
        size = look.size(sum(each.size for each in below))
        question = f"take {what} ({look.count(len(below), 'change')}, {size})?"
        answer = self._answer(question, "ynsvq?", [change, *below])
        if answer == "q":
            raise _StoppedError
        if answer == "n" or not self._consents(change):
            self._leave(change, *below)
        elif answer == "y":
            self._take(change, *(each for each in below if not self._needs_consent(each)))
        else:
            self.settled.add(change.where)
            if _is_lost(change):
                self.taken.add(change.where)  # stays after all if anything in it stays

    def _ask_change(self, change: Change) -> None:
        from podbot.changes.diff import diff

        compared = diff(self.found.changes, change)
        if len(compared.hunks) > 1 and _is_edit(change):
            self._ask_hunks(change, compared)
            return
        self._show([*body(compared, self.talk.look)])
        answer = self._answer("take it?", "ynadvq?", [change])
        if answer == "q":
            raise _StoppedError
        if answer in "ya" and self._consents(change):
            self._take(change)
        else:
            self._leave(change)

    def _ask_hunks(self, change: Change, compared: FileDiff) -> None:
        chosen: set[int] = set()
        total, answer = len(compared.hunks), ""
        for number in range(total):
            self._show([*hunk_lines(compared, number, self.talk.look)])
            answer = self._answer(f"take hunk {number + 1} of {total}?", "ynadvq?", [change])
            if answer in "ya":
                chosen.update(range(number, total) if answer == "a" else (number,))
            if answer in "adq":
                break
        self.settled.add(change.where)
        if chosen and self._consents(change):
            self.taken.add(change.where)
            if len(chosen) < total:
                self.hunks[change.where] = frozenset(chosen)
        if answer == "q":
            raise _StoppedError

    def _answer(self, question: str, keys: str, viewed: Sequence[Change]) -> str:
        """One of the keys; views and explains until it gets one that decides."""
        while True:
            answer = self.talk.ask(f"{question} [{','.join(keys)}]")
            if answer is None:
                raise _EndedError
            if answer == "v":
                pager.show(self._diffs(viewed), self.talk.out)
            elif len(answer) != 1 or answer not in keys or answer == "?":
                self.talk.say("\n".join(f"  {key}  {_KEYS[key]}" for key in keys))
            else:
                return answer

    def _consents(self, change: Change) -> bool:
        """Whether a person wants it in spite of what it does; one question for each reason."""
        where = change.where
        flags = self.found.by_itself(change)
        if flags:
            reasons = "; ".join(look.text(flag.reason) for flag in flags)
            if not self._says_yes(f"It runs by itself once applied: {reasons}."):
                return False
            self.consented.add(where)
        if where in self.found.conflicts:
            reason = overview.told_conflict(self.found.conflicts[where])
            warning = f"In conflict: {reason}. Taking it overwrites what the host has."
            if not self._says_yes(warning):
                return False
            self.overwriting.add(where)
        return True

    def _says_yes(self, warning: str) -> bool:
        self.talk.say(self.talk.look.paint(warning, "danger"))
        answer = self.talk.ask(f"type {YES} to take it, anything else to leave it:")
        if answer is None:
            raise _EndedError
        return answer == YES

    def _needs_consent(self, change: Change) -> bool:
        return bool(self.found.by_itself(change)) or change.where in self.found.conflicts

    def _possible(self, change: Change) -> bool:
        """Whether it can be applied at all; says why not."""
        from podbot.changes.drift import ConflictKind

        conflict = self.found.conflicts.get(change.where)
        if conflict is None or conflict.kind in (ConflictKind.CHANGED, ConflictKind.DELETED):
            return True
        self.talk.say(f"cannot be applied: {look.text(conflict.message)}")
        return False

    def _take(self, *changes: Change) -> None:
        self.taken |= {change.where for change in changes}
        self.settled |= {change.where for change in changes}

    def _leave(self, *changes: Change) -> None:
        self.settled |= {change.where for change in changes}

    def _line(self, change: Change) -> str:
        return overview.change_title(change, self.found, self.talk.look)

    def _show(self, lines: list[str]) -> None:
        more = len(lines) - MOST_SHOWN
        if more > 1:
            lines = [*lines[:MOST_SHOWN], f"… {more} more lines: v shows them"]
        if lines:
            self.talk.say("\n".join(lines))

    def _diffs(self, changes: Sequence[Change]) -> Iterator[str]:
        return diff_lines(self.found.changes, changes, self.talk.look)


# Which changes need which


def whole(changes: ChangeSet, taken: Collection[str]) -> tuple[ChangeSet, list[str]]:
    """The taken changes with the new folders they need, without folders that cannot go.

    Gives also a remark for each such folder.
    """
    chosen = _with_new_folders(changes, taken)
    staying: set[str] = set()
    for change in changes:
        if change.old is not None and change.where not in chosen:
            staying |= _above(change, _old_path(change))
    remarks = []
    # From the inside out: a folder that stays keeps the one around it.
    for change in reversed(changes.changes):
        if change.where in chosen and _is_lost(change) and change.where in staying:
            chosen.discard(change.where)
            staying |= _above(change, change.path)
            remarks.append(f"{overview.called(change, changes)} stays: not all in it was taken")
    return _narrowed(changes, chosen), remarks[::-1]


def _with_new_folders(changes: ChangeSet, taken: Collection[str]) -> set[str]:
    from podbot.changes.select import is_new_folder

    new = {change.where for change in changes if is_new_folder(change)}
    chosen = set(taken)
    for change in changes:
        if change.where in taken and change.new is not None:
            chosen |= _above(change, change.path) & new
    return chosen


def _above(change: Change, path: str) -> set[str]:
    """The folders around a path of the change, up to the target."""
    found = set()
    while path:
        path = path.rpartition("/")[0]
        found.add(f"{change.target}/{path}" if path else change.target)
    return found


def _old_path(change: Change) -> str:
    return change.source or change.path if change.kind is ChangeKind.RENAMED else change.path


def _narrowed(changes: ChangeSet, chosen: Collection[str]) -> ChangeSet:
    """Only the chosen ones; a folder keeps its time only if nothing in it was left out."""
    from podbot.changes.select import folder_of

    touched: dict[bool, set[str]] = {True: set(), False: set()}
    for change in changes:
        for path in change.paths:
            touched[change.where in chosen].add(folder_of(f"{change.target}/{path}"))
    complete = touched[True] - touched[False]
    return replace(
        changes,
        changes=tuple(change for change in changes if change.where in chosen),
        folder_times={w: time for w, time in changes.folder_times.items() if w in complete},
    )


def _holds_others(change: Change) -> bool:
    from podbot.changes.select import is_new_folder

    return _is_lost(change) or is_new_folder(change)


def _is_lost(change: Change) -> bool:
    """Whether a folder goes, for good or for something else."""
    was = change.old is not None and change.old.type is FileType.FOLDER
    return was and (change.new is None or change.new.type is not FileType.FOLDER)


def _is_edit(change: Change) -> bool:
    """Whether its hunks can be taken one by one."""
    sides = (change.old, change.new)
    return change.kind in (ChangeKind.MODIFIED, ChangeKind.RENAMED) and all(
        side is not None and side.type is FileType.FILE for side in sides
    )
