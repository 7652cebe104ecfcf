"""What podbot itself did to a target since a sandbox began: that is no change of the host's.

It applies and undoes runs while others are at work. What the ledger proves to be of its doing is
neither lost nor left to apply. Reads only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from podbot.changes.applying.bases import Bases
from podbot.changes.applying.ledger import Fact, Ledger
from podbot.changes.model import FileType, State


class OwnDeeds:
    """The ledger, asked for one layer: paths are absolute, on the host."""

    def __init__(self, target: str, layer_id: str, since_ns: int):
        self._layer_id, self._since = layer_id, since_ns
        self._ledger = Ledger(target)
        self._bases = Bases(self._ledger, since_ns)

    def took(self, where: str) -> bool:
        """Whether podbot took it away, applying or undoing another run."""
        return self._ledger.removed(where, self._since)

    def another_took(self, where: str) -> bool:
        """The same where this run itself was not the last to take it away."""
        return self.took(where) and self._ledger.at(where)[-1].deed.layer_id != self._layer_id

    def alone_touched(self, folder: str, facts: os.stat_result) -> bool:
        """Whether nobody else made or removed entries of a host folder."""
        now = (facts.st_dev, facts.st_ino, facts.st_ctime_ns)
        return self._ledger.only_podbot_touched(folder, now, self._since)

    def dressed(self, folder: str, new: State) -> bool:
        """Whether a folder is as it was at the start, and another run's changes made it differ."""
        if new.type is not FileType.FOLDER:
            return False
        base = self._bases.of(folder)
        return base is not None and new.is_dressed_as(base.state)

    def applied(self, where: str, old: State, new: State) -> bool:
        """Of a file that cannot be read: whether it is what podbot made of this very one.

        What cannot be read cannot be said to be the same otherwise. What an undo gave back is not.
        """
        return new.looks_like(old) and any(
            row.copy
            and deed.layer_id == self._layer_id
            and row.left == old.identity
            and new.ctime_ns < deed.ended
            for row, deed in self._ledger.at(where)
        )

    def put_in(self, where: str, ctime_ns: int, folder: str, now: State) -> bool:
        """Of something that cannot be seen as ``folder`` is closed to us: whether podbot put it
        there from this layer, and nobody was in there since: whoever lets himself in touches the
        folder, which is ``now`` so. ``ctime_ns`` is of what the layer has.
        """
        return self._is_last(where, ctime_ns, folder, now, taken=False)

    def took_out(self, where: str, ctime_ns: int, folder: str, now: State) -> bool:
        """The same of something that is gone: whether podbot took it out of there."""
        return self._is_last(where, ctime_ns, folder, now, taken=True)

    def _is_last(self, where: str, ctime_ns: int, folder: str, now: State, taken: bool) -> bool:
        done = self._ledger.at(where)
        if not done:
            return False
        last, deed = done[-1]
        if (last.left is None) is not taken or not self._is_applied(done):
            return False
        if deed.layer_id != self._layer_id or ctime_ns >= deed.ended:
            return False
        return any(
            row.left == now.identity and later.ended >= deed.ended
            for row, later in self._ledger.at(folder)
        )

    def _is_applied(self, done: Sequence[Fact]) -> bool:
        """Whether what was done last was an application, or came with one; no taking back."""
        last, deed = done[-1]
        if last.move >= 0 or last.left is None:
            return last.copy
        # Folders that changed have no origin in the row of their application.
        changed = {
            row.left
            for row, other in done
            if other.journal == deed.journal and row.move < 0 and row.origin is None
        }
        return not changed or not changed.isdisjoint(self._ledger.earlier(last.left))
