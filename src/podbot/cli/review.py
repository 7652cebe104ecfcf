"""The end of `podbot run`: tell what was changed, and let the person decide.

Everything is told on stderr, as stdout belongs to the command. Whatever happens here, an answer
that is not given keeps the changes for later: Enter, the end of input, Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal

from podbot import review
from podbot.cli import care, outcomes, pager, picking, remedies, summaries, wording
from podbot.cli.diffs import diffs_but_folded
from podbot.cli.progress import Progress
from podbot.cli.remedies import Given
from podbot.cli.summaries import MOST_LISTED, doing
from podbot.cli.talk import Talk, talk_on
from podbot.errors import ChangesError, Kind, PodbotError
from podbot.review import Review, Summary, data

if TYPE_CHECKING:
    from podbot.review import Picked
    from podbot.review.data import Data

Decision = Literal["ask", "apply", "discard", "keep"]

DONE, FAILED = 0, 2

MENU = "[r]eview [a]pply [p]ick [s]ave [k]eep [d]iscard [?] (Enter keeps):"
MENU_HELP = """\
  r  review: every change with its lines, then this menu again
  a  apply all; asks about what runs by itself and about conflicts
  p  pick: decide on each change and each hunk, then apply what was taken
  s  save to a FILE.tar (everything) or a FILE.patch (for git), then this menu
  k  keep for later, as do Enter, Ctrl-C and Ctrl-D
  d  discard: throw it away for good; asks first"""


def finish(entry_id: str, decision: Decision, program: str = "run") -> int:
    """Tell what a run changed and do what was decided with it; 0, or 2 if that was refused.

    ``program`` is the one of ours that tells it.
    """
    return _End(entry_id, program).see_to(decision)


def finish_as_data(entry_id: str, decision: Decision) -> tuple[int, Data]:
    """The same without a word and a question, and what is to be told.

    That is the keys of `podbot changes show --json` without the changes themselves, and ``outcome``
    (``nothing``, ``applied``, ``discarded``, ``kept``), with ``applied`` or ``error``.
    """
    end = _End(entry_id, "run", json=True)
    return end.see_to(decision), end.data


class _End:
    """One run that is over, and what is still to be said of it."""

    def __init__(self, entry_id: str, program: str, *, json: bool = False):
        self.program = program
        self.id, self.talk, self.json = entry_id, talk_on(sys.stderr), json
        self.called = entry_id
        self.data: Data = {"id": entry_id}

    def see_to(self, decision: Decision) -> int:
        """Do what was decided; what was refused or left is kept."""
        try:
            self._come(decision)
        except KeyboardInterrupt:
            self._tell()
            self._tell_kept()
        except PodbotError as error:
            self.data |= data.failure(error)
            self._tell(self._refused(error))
            self._tell_kept()
            return FAILED
        return DONE

    def _refused(self, error: PodbotError) -> str:
        """Why it was not done. What runs by itself is not listed again: it is right above."""
        text = str(error)
        if error.kind is Kind.FLAGGED:
            text = "nothing was applied, as some of it runs by itself once applied (see above)"
            text += f"\n  remedy: {error.remedy}"
        return f"podbot {self.program}: {_named(text)}"

    def _come(self, decision: Decision) -> None:
        found = self._opened()
        if found is None or not self._is_anything(found):
            self._tell_nothing(found, asked=decision == "ask")
            return
        about = summaries.summarized(found)
        self.data |= data.entry(found.entry) | data.totals(about)
        self._tell(*care.summary(about, self.talk.display, MOST_LISTED))
        if decision == "apply":
            self._apply(found)
        elif decision == "discard":
            self._discard(found)
        elif decision == "keep" or self.json:
            self._tell_kept()
        else:
            self._ask(found, about)

    def _opened(self) -> Review | None:
        try:
            found = review.open(self.id)
        except ChangesError as error:
            if error.kind is Kind.UNKNOWN_ID:
                return None  # a run without changes leaves nothing
            raise
        self.called = found.entry.called
        return found

    def _is_anything(self, found: Review) -> bool:
        """Whether there is something to decide on; says first what had to be healed."""
        if found.entry.layer is None:
            return False
        with nullcontext() if self.json else Progress("reading the changes"):
            changes = found.changes
        if found.healed:
            self.data |= data.texts("healed", found.healed)
        return bool(changes or changes.notes)

    # The menu

    def _ask(self, found: Review, about: Summary) -> None:
        self.talk.forget_typed()
        while True:
            answer = self.talk.ask(MENU)
            word = (answer or "k").lower()
            try:
                if word in ("k", "keep"):
                    self._tell_kept()
                    return
                if word in ("r", "review"):
                    pager.show(_everything(about, self.talk), self.talk.out)
                    self._tell_what_runs(about)
                elif word in ("a", "apply", "p", "pick"):
                    ask = picking.pick if word[0] == "p" else picking.take_all
                    if self._applied(found, ask(found, about, self.talk)):
                        return
                elif word in ("s", "save"):
                    self._save(found)
                elif word in ("d", "discard"):
                    if self.talk.is_sure(outcomes.discard_question(found)):
                        self._discard(found)
                        return
                else:
                    self.talk.say(MENU_HELP)
            except PodbotError as error:
                self.talk.say(f"podbot {self.program}: {_named(str(error))}")

    def _tell_what_runs(self, about: Summary) -> None:
        """Once more: what was shown since has moved it off the screen."""
        lines = care.by_itself(about, self.talk.display, most=MOST_LISTED)
        if lines:
            self.talk.say("\n".join(lines))

    def _applied(self, found: Review, picked: Picked | None) -> bool:
        """Apply what was taken; whether anything was."""
        if picked is None or not picked.changes:
            self.talk.say("nothing was taken")
            return False
        for line in picking.staying(picked):
            self.talk.say(line)
        self._apply(found, picked)
        return True

    def _save(self, found: Review) -> None:
        file = self.talk.ask("save as (FILE.tar for everything, FILE.patch for git):")
        if not file:
            return
        with doing("saving", found, Given("save", file=file)):
            saved = found.save(file)
        self.talk.say(outcomes.saved(saved))
        for line in saved.not_carried:
            self.talk.say(f"  not in the patch: {wording.text(line)}")
        for line in saved.in_conflict:
            self.talk.say(f"  not in the patch, in conflict: {wording.text(line)}")

    # What may become of it

    def _apply(self, found: Review, only: Picked | Sequence[str] = ()) -> None:
        with doing("applying", found, Given("apply")):
            applied = found.apply(only)
        self.data |= {"outcome": "applied", "applied": data.applied(applied)}
        self._tell(*outcomes.applied(found, applied))

    def _discard(self, found: Review) -> None:
        with doing("removing", found, Given("discard")):
            found.discard()
        self.data["outcome"] = "discarded"
        self._tell(f"discarded {wording.name(self.called)}")

    def _tell_kept(self) -> None:
        """Say where the changes are, and how to go on."""
        self.data["outcome"] = "kept"
        word = wording.called(self.called)
        self._tell(
            f"kept as {wording.name(self.called)}; go on with:",
            f"  podbot changes show {word}     (or: diff, apply, pick, save, discard)",
            f"  podbot run --in {word} -- …    to work on in the same sandbox",
        )

    def _tell_nothing(self, found: Review | None, *, asked: bool) -> None:
        layer = None if found is None or found.entry.live else found.entry.layer
        # Nothing in it differs from the host; that may be as the host has all of it.
        if found and layer and all(each.undone for each in found.applications):
            layer.discard()
        self.data["outcome"] = "nothing"
        if asked:
            self._tell("nothing was changed")

    def _tell(self, *lines: str) -> None:
        if not self.json:
            self.talk.say("\n".join(lines))


def _named(message: str) -> str:
    return wording.message(remedies.with_names(message))


def _everything(found: Summary, talk: Talk) -> Iterator[str]:
    yield from wording.wrapped(care.total(found, talk.display), talk.display.width)
    yield ""
    yield from summaries.change_lines(found, talk.display)
    yield ""
    yield from diffs_but_folded(found, talk.display)
    yield from care.warnings(found, talk.display)
