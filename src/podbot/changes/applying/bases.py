"""What a sandbox saw at a path before another run was applied there, from that run's undo store.

The ledger knows whose application was the first to touch a path since the sandbox started, and that
nobody had touched it before; its journal says what was there, and its store keeps it for as long as
it can be undone. Only reads.
"""

from __future__ import annotations

import os
from contextlib import suppress
from io import FileIO
from typing import BinaryIO

from podbot.changes.applying import journal
from podbot.changes.applying.ledger import Ledger
from podbot.changes.applying.moves import Move, Plan
from podbot.changes.model import FILE, State
from podbot.errors import ChangesError
from podbot.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Base:
    """What was at a path: its state, and where its bytes are kept if it was a file.

    ``journal`` is the id of the application that took it away.
    """

    state: State
    journal: str
    file: str | None = None

    def open(self) -> BinaryIO:
        """The bytes of a file; `OSError` if they are not kept any more."""
        if self.file is None:
            raise FileNotFoundError("no file is kept")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = FileIO(os.open(self.file, flags), "rb")
        facts = os.fstat(file.fileno())
        if (facts.st_size, facts.st_mtime_ns) != (self.state.size, self.state.mtime_ns):
            file.close()
            raise FileNotFoundError("what is kept is not what was there")
        return file


class Bases:
    """The bases of one target's paths for a sandbox that started at ``since_ns``."""

    def __init__(self, ledger: Ledger, since_ns: int):
        self._ledger, self._since = ledger, since_ns
        self._plans: dict[str, Plan | None] = {}
        self._moves: dict[str, dict[int, Move]] = {}

    def of(self, where: str) -> Base | None:
        """What a sandbox saw at an absolute path, if that is certain and still kept."""
        fact = self._ledger.base(where, self._since)
        plan = self._plan(fact.deed.journal) if fact is not None else None
        if fact is None or plan is None:
            return None
        if fact.row.move < 0:
            note = next((note for note in plan.folders if plan.where(note) == where), None)
            was = None if note is None else note.was
            if note is None or was is None or fact.row.before != was.identity:
                return None
            # If it was taken back then, the sandbox saw it as it had been applied.
            was_applied = fact.deed.began == int(plan.created * 1e9)
            seen = was if was_applied or note.new is None else note.new
            return Base(seen, fact.deed.journal)
        move = self._moves[fact.deed.journal].get(fact.row.move)
        was = move.was if move is not None else None
        if move is None or was is None or plan.where(move) != where:
            return None
        if fact.row.before != was.identity:
            return None  # it was taken back then: what the sandbox saw is what had been applied
        kept = None
        if was.type is FILE:
            kept = f"{plan.places[move.target].kept}/{plan.kept_as(move)}"
            if move.in_place or not os.path.lexists(kept):
                return None
        return Base(was, fact.deed.journal, kept)

    def _plan(self, id: str) -> Plan | None:
        if id not in self._plans:
            self._plans[id] = None
            own = journal.named(id)
            if own is not None and own.planned:
                with suppress(ChangesError):
                    plan = self._plans[id] = own.read()
                    self._moves[id] = {move.number: move for move in plan.moves}
        return self._plans[id]
