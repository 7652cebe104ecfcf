"""The end of `podbot run`: tell what was changed, and let the person decide.

Everything is told on stderr, as stdout belongs to the command. Whatever happens here, an answer
that is not given keeps the changes for later: Enter, the end of input, Ctrl-C.
"""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from podbot.cli import actions, as_data, care, overview, pager, picking, remedies, wording
from podbot.cli.diffs import diffs_but_folded
from podbot.cli.overview import MOST_LISTED, Overview
from podbot.cli.talk import Talk, talk_on
from podbot.errors import ChangesError, Kind, PodbotError
from podbot.runs import records

if TYPE_CHECKING:
    from podbot.cli.picking import Picked
    from podbot.runs.records import Entry

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


def finish(entry_id: str, decision: Decision, *, json: bool = False) -> int:
    """Tell what a run changed and do what was decided with it; 0, or 2 if that was refused.

    With ``json`` nothing is asked, and one line of JSON on stderr tells it instead of text: the
    keys of `podbot changes show --json` without the changes themselves, and ``outcome``
    (``nothing``, ``applied``, ``discarded``, ``kept``), with ``applied`` or ``error``.
    """
    talk = talk_on(sys.stderr)
    end = _End(entry_id, talk, json)
    try:
        return end.come(decision)
    except KeyboardInterrupt:
        talk.say()
        end.tell_kept()
        return DONE
    except PodbotError as error:
        end.tell_failure(error)
        return FAILED


class _End:
    """One run that is over, and what is still to be said of it."""

    def __init__(self, entry_id: str, talk: Talk, json: bool):
        self.id, self.talk, self.json = entry_id, talk, json
        self.called = entry_id
        self.data: dict[str, object] = {"id": entry_id}

    def come(self, decision: Decision) -> int:
        """Do what was decided, or ask."""
        healed = actions.heal()
        if healed:
            self.data |= as_data.texts("healed", healed)
            if not self.json:
                self.talk.say("\n".join(f"podbot: {_named(line)}" for line in healed))
        entry = self._entry()
        changes = None if entry is None or entry.layer is None else overview.changes_of(entry)
        if entry is None or changes is None or not (changes or changes.notes):
            self._tell_nothing(entry, asked=decision == "ask")
            return DONE
        found = overview.overview_of(entry, changes)
        self.data |= as_data.entry(entry) | as_data.totals(found)
        if not self.json:
            self.talk.say("\n".join(care.summary(found, self.talk.display, MOST_LISTED)))
        if decision == "apply":
            self._apply(entry, found)
        elif decision == "discard":
            self._discard(entry)
        elif decision == "keep" or self.json:
            self.tell_kept()
        else:
            self._ask(entry, found)
        return DONE

    def _entry(self) -> Entry | None:
        try:
            entry = records.find(self.id)
        except ChangesError as error:
            if error.kind is Kind.UNKNOWN_ID:
                return None  # a run without changes leaves nothing
            raise
        self.called = entry.called
        return entry

    # The menu

    def _ask(self, entry: Entry, found: Overview) -> None:
        self.talk.forget_typed()
        while True:
            answer = self.talk.ask(MENU)
            word = (answer or "k").lower()
            try:
                if word in ("k", "keep"):
                    self.tell_kept()
                    return
                if word in ("r", "review"):
                    pager.show(_everything(found, self.talk), self.talk.out)
                    self._tell_what_runs(found)
                elif word in ("a", "apply", "p", "pick"):
                    ask = picking.pick if word[0] == "p" else picking.take_all
                    if self._applied(entry, ask(found, self.talk)):
                        return
                elif word in ("s", "save"):
                    self._save(entry, found)
                elif word in ("d", "discard"):
                    if self.talk.is_sure(actions.discard_question(entry, found.changes)):
                        self._discard(entry)
                        return
                else:
                    self.talk.say(MENU_HELP)
            except PodbotError as error:
                self.talk.say(f"podbot: {_named(str(error))}")

    def _tell_what_runs(self, found: Overview) -> None:
        """Once more: what was shown since has moved it off the screen."""
        lines = care.by_itself(found, self.talk.display, most=MOST_LISTED)
        if lines:
            self.talk.say("\n".join(lines))

    def _applied(self, entry: Entry, picked: Picked | None) -> bool:
        """Apply what was taken; whether anything was."""
        if picked is None or not picked.changes:
            self.talk.say("nothing was taken")
            return False
        for remark in picked.remarks:
            self.talk.say(remark)
        applied = actions.apply_picked(entry, picked)
        self.talk.say("\n".join(actions.told_applied(entry, applied)))
        return True

    def _save(self, entry: Entry, found: Overview) -> None:
        file = self.talk.ask("save as (FILE.tar for everything, FILE.patch for git):")
        if not file:
            return
        saved = actions.save(found.changes, file)
        self.talk.say(actions.told_saved(found.changes, saved))
        for line in saved.not_carried:
            self.talk.say(f"  not in the patch: {wording.text(line)}")

    # What may become of it

    def _apply(self, entry: Entry, found: Overview) -> None:
        applied = actions.apply(entry, found.changes)
        self.data |= {"outcome": "applied", "applied": as_data.applied(applied)}
        self._tell(*actions.told_applied(entry, applied))

    def _discard(self, entry: Entry) -> None:
        actions.discard(entry)
        self.data["outcome"] = "discarded"
        self._tell(f"discarded {wording.name(entry.called)}")

    def tell_kept(self) -> None:
        """Say where the changes are, and how to go on."""
        self.data["outcome"] = "kept"
        word = wording.called(self.called)
        self._tell(
            f"kept as {wording.name(self.called)}; go on with:",
            f"  podbot changes show {word}     (or: diff, apply, pick, save, discard)",
            f"  podbot run --in {word} -- …    to work on in the same sandbox",
        )

    def tell_failure(self, error: PodbotError) -> None:
        """Say why it was not done; the changes are kept."""
        self.data |= as_data.failure(error)
        if not self.json:
            self.talk.say(f"podbot: {_named(str(error))}")
        self.tell_kept()

    def _tell_nothing(self, entry: Entry | None, *, asked: bool) -> None:
        if entry is not None and entry.layer is not None and not entry.live:
            from podbot.changes.applying.applied import applications

            # Nothing in it differs from the host; that may be as the host has all of it.
            if all(each.undone for each in applications(entry.id)):
                entry.layer.discard()
        self.data["outcome"] = "nothing"
        if self.json or asked:
            self._tell("nothing was changed")

    def _tell(self, *lines: str) -> None:
        self.talk.say(json_format.dumps(self.data) if self.json else "\n".join(lines))


def _named(message: str) -> str:
    return wording.message(remedies.with_names(message))


def _everything(found: Overview, talk: Talk) -> Iterator[str]:
    yield from wording.wrapped(care.total(found, talk.display), talk.display.width)
    yield ""
    yield from overview.change_lines(found, talk.display)
    yield ""
    yield from diffs_but_folded(found, talk.display)
    yield from care.warnings(found, talk.display)
