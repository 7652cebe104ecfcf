"""Going through changes one by one with a person, down to single hunks; applies nothing itself.

Nothing is taken without an answer, and what runs by itself or is in conflict with the host needs a
full ``yes`` of its own. What was taken is made whole at the end by `review.picking`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from podbot.changes.diffs.hunks import Hunk, Piece, parts
from podbot.changes.folding import FEWEST, Fold
from podbot.changes.model import Change
from podbot.cli import merges, pager, remedies, summaries, wording
from podbot.cli.diffs import body, diff_lines, lines_of
from podbot.cli.talk import Talk
from podbot.frozen import dataclass, field
from podbot.review.picking import Picked, holds_others, is_edit, is_lost, picked
from podbot.review.summary import Summary, called

if TYPE_CHECKING:
    from podbot.changes.diffs.diff import FileDiff
    from podbot.review import Review

MOST_SHOWN = 60
"""Lines that are shown with a question; the rest on request."""

YES = "yes"

_KEYS = {
    "y": "take this",
    "n": "leave this",
    "a": "take this and all that is left of this file",
    "d": "leave this and all that is left of this file",
    "s": "split it: decide on each thing in this folder, on each edit of this hunk",
    "A": "take this and all the rest; asks only about what runs by itself and about conflicts",
    "v": "view all of it",
    "q": "stop asking: leave this and all after it, apply what was taken",
    "?": "this help; Ctrl-C or Ctrl-D stop and apply nothing",
}


class _StoppedError(Exception):
    """The person wants no more questions."""


class _EndedError(Exception):
    """There are no more answers."""


def pick(run: Review, found: Summary, talk: Talk) -> Picked | None:
    """Ask about each change; None if the answers ended before the questions."""
    return _picked(run, found, talk, _Picking.ask_all)


def take_all(run: Review, found: Summary, talk: Talk) -> Picked | None:
    """Take everything, but ask about what needs a consent of its own."""
    return _picked(run, found, talk, _Picking.take_all)


def staying(picked: Picked) -> list[str]:
    """What of it does not go, for a person."""
    names = [called(each, picked.changes) for each in picked.staying]
    return [f"{name} stays: not all in it was taken" for name in names]


def _picked(
    run: Review, found: Summary, talk: Talk, go_through: Callable[[_Picking], None]
) -> Picked | None:
    """Ask first which lines to take where two runs changed the same: then they are one change."""
    try:
        changes = merges.decided(found, talk)
    except merges.EndedError:
        return None
    if changes is not found.changes:
        found = summaries.summarized(run, changes)
    picking = _Picking(found, talk)
    try:
        go_through(picking)
    except _StoppedError:
        pass
    except _EndedError:
        return None
    return picked(
        found.changes, picking.taken, picking.hunks, picking.consented, picking.overwriting
    )


@dataclass(slots=True)
class _Picking:
    """The answers so far, by absolute path."""

    found: Summary
    talk: Talk
    taken: set[str] = field(default_factory=set)
    decided: set[str] = field(default_factory=set)
    hunks: dict[str, frozenset[Piece]] = field(default_factory=dict)
    consented: set[str] = field(default_factory=set)
    overwriting: set[str] = field(default_factory=set)
    split: set[tuple[str, str]] = field(default_factory=set)
    all_the_rest: bool = False
    declined: bool = False

    def ask_all(self) -> None:
        every = self.found.changes.changes
        for number, change in enumerate(every):
            if change.where in self.decided:
                continue
            if self.all_the_rest:
                self._take_unless_declined(change, number)
                continue
            if self._asked_with_others(change):
                continue
            fold = self._fold(change)
            below = self._in_folder(change, number)
            self.talk.say()
            count = f"({number + 1}/{len(every)}) "
            if fold is not None:
                self.talk.say(count + summaries.folded_line(fold, self.found).strip())
                self._ask_fold(fold)
                continue
            self.talk.say(count + self._line(change))
            if not self._possible(change):
                self._leave(change, *below)
            elif below:
                self._ask_folder(change, below)
            else:
                self._ask_change(change)

    def take_all(self) -> None:
        for number, change in enumerate(self.found.changes.changes):
            if change.where not in self.decided:
                self._take_unless_declined(change, number)
        if self.declined and self.taken:
            # Who said no to one thing may want to look again at the others.
            self.talk.say()
            question = f"apply the other {wording.count(len(self.taken), 'change')}?"
            if self._answer(question, "yn?", ()) == "n":
                self.taken.clear()

    def _take_unless_declined(self, change: Change, number: int) -> None:
        if not self.found.needs_consent(change):
            self._take(change)
        elif not self._asked_with_others(change):
            self.talk.say()
            self.talk.say(self._line(change))
            if self._possible(change) and self._consents(change):
                self._take(change)
            else:
                self._leave(change, *self._in_folder(change, number))

    # Folders that are one line

    def _fold(self, change: Change) -> Fold | None:
        """The folder to decide on as a whole, when the first thing in it is met."""
        fold = self.found.folded.get(change.where)
        if fold is None or (fold.target, fold.path) in self.split:
            return None
        return fold if self._is_plain(change) else None

    def _is_plain(self, change: Change) -> bool:
        return self.found.is_folded(change) and not self.found.needs_consent(change)

    def _ask_fold(self, fold: Fold) -> None:
        plain = [each for each in fold.changes if self._is_plain(each)]
        size = wording.size(sum(each.size for each in plain))
        question = f"take what is in it ({wording.count(len(plain), 'change')}, {size})?"
        answer = self._answer(question, "ynsAvq?", plain)
        if answer == "q":
            raise _StoppedError
        if answer == "n":
            self._leave(*fold.changes)
        elif answer == "s":
            self.split.add((fold.target, fold.path))
            self.talk.say("one by one:")
        else:
            self.all_the_rest = answer == "A"
            self._take(*plain)

    def _asked_with_others(self, change: Change) -> bool:
        """One question for all that a folder of packages brings and that runs by itself."""
        fold = self.found.folded.get(change.where)
        if fold is None or not self.found.is_packaged(change):
            return False
        others = [
            each
            for each in fold.changes
            if each.where not in self.decided and self.found.is_packaged(each)
        ]
        if len(others) < FEWEST:
            return False
        self.talk.say()
        place = summaries.place_of(fold, self.found.changes)
        names = [called(each, self.found.changes) for each in others]
        self.talk.say("\n".join(wording.listed(names, summaries.MOST_LISTED)))
        if self._says_yes(
            f"{place} brings these {len(others)}, as such folders do: each runs by itself"
            " once applied."
        ):
            self.consented |= {each.where for each in others}
            self._take(*others)
        else:
            self._leave(*others)
        return True

    # One by one

    def _in_folder(self, change: Change, number: int) -> list[Change]:
        """What cannot be taken without a folder: it follows the folder itself."""
        every = self.found.changes.changes
        if not holds_others(change):
            return []
        prefix = f"{change.path}/"
        rest = (every[other] for other in range(number + 1, len(every)))
        return [*takewhile(lambda o: o.target == change.target and o.path.startswith(prefix), rest)]

    def _ask_folder(self, change: Change, below: Sequence[Change]) -> None:
        what = "the removal of all in it" if is_lost(change) else "all in it"
        size = wording.size(sum(each.size for each in below))
        question = f"take {what} ({wording.count(len(below), 'change')}, {size})?"
        answer = self._answer(question, "ynsAvq?", [change, *below])
        if answer == "q":
            raise _StoppedError
        self.all_the_rest = answer == "A"
        if answer == "n" or not self._consents(change):
            self._leave(change, *below)
        elif answer in "yA":
            self._take(change, *(each for each in below if not self.found.needs_consent(each)))
        else:
            self.decided.add(change.where)
            if is_lost(change):
                self.taken.add(change.where)  # stays after all if anything in it stays

    def _ask_change(self, change: Change) -> None:
        from podbot.changes.diffs.diff import diff

        compared = diff(self.found.changes, change)
        if is_edit(change) and (
            len(compared.hunks) > 1 or (compared.hunks and len(parts(compared.hunks[0])) > 1)
        ):
            self._ask_hunks(change, compared)
            return
        self._show([*body(compared, self.talk.display)])
        answer = self._answer("take it?", "ynadAvq?", [change])
        if answer == "q":
            raise _StoppedError
        self.all_the_rest = answer == "A"
        if answer in "yaA" and self._consents(change):
            self._take(change)
        else:
            self._leave(change)

    def _ask_hunks(self, change: Change, compared: FileDiff) -> None:
        chosen: set[Piece] = set()
        left: list[tuple[Piece, Hunk]] = [*enumerate(compared.hunks)]
        total, number, answer = len(left), 0, ""
        while left:
            piece, hunk = left.pop(0)
            number += 1
            pieces = parts(hunk) if isinstance(piece, int) else ()
            self._show([*lines_of(hunk, self.talk.display)])
            keys = "ynadsAvq?" if len(pieces) > 1 else "ynadAvq?"
            answer = self._answer(f"take hunk {number} of {total}?", keys, [change])
            if answer == "s" and isinstance(piece, int):
                left[:0] = [((piece, part), each) for part, each in enumerate(pieces)]
                number, total = number - 1, total + len(pieces) - 1
                continue
            if answer in "yaA":
                chosen.add(piece)
            if answer in "aA":
                chosen.update(piece for piece, _ in left)
            if answer in "adAq":
                break
        self.decided.add(change.where)
        self.all_the_rest = answer == "A"
        if chosen and self._consents(change):
            self.taken.add(change.where)
            if not chosen >= set(range(len(compared.hunks))):
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
            reasons = "; ".join(wording.text(flag.reason) for flag in flags)
            if not self._says_yes(f"It runs by itself once applied: {reasons}."):
                return False
            self.consented.add(where)
        if where in self.found.conflicts:
            reason = summaries.conflict_text(self.found.conflicts[where])
            warning = f"In conflict: {reason}. Taking it overwrites what the host has."
            if not self._says_yes(warning):
                return False
            self.overwriting.add(where)
        return True

    def _says_yes(self, warning: str) -> bool:
        self.talk.say(self.talk.display.paint(warning, "danger"))
        answer = self.talk.ask(f"type {YES} to take it, anything else to leave it:")
        if answer is None:
            raise _EndedError
        if answer != YES:
            self.declined = True
        return answer == YES

    def _possible(self, change: Change) -> bool:
        """Whether it can be applied at all; says why not."""
        if self.found.is_possible(change):
            return True
        conflict = self.found.conflicts[change.where]
        self.talk.say(f"cannot be applied: {wording.text(remedies.with_names(conflict.message))}")
        return False

    def _take(self, *changes: Change) -> None:
        self.taken |= {change.where for change in changes}
        self.decided |= {change.where for change in changes}

    def _leave(self, *changes: Change) -> None:
        self.decided |= {change.where for change in changes}

    def _line(self, change: Change) -> str:
        return summaries.change_title(change, self.found, self.talk.display)

    def _show(self, lines: list[str]) -> None:
        more = len(lines) - MOST_SHOWN
        if more > 1:
            lines = [*lines[:MOST_SHOWN], f"… {more} more lines: v shows them"]
        self.talk.show(lines)

    def _diffs(self, changes: Sequence[Change]) -> Iterator[str]:
        conflicts = self.found.conflicts
        return diff_lines(self.found.changes, changes, self.talk.display, conflicts)
