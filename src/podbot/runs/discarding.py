"""Throwing a run away: its layer, its record, and the means to undo what was applied from it.

The one way to do so, for the command and for `Layer.discard` alike. The layer is out of sight first
and removed last: if whoever does it is killed in between, what is left of it says whose books are
still to be closed, and the next one to tidy up does that.
"""

from __future__ import annotations

from podbot.changes.applying import undo
from podbot.runs import records, unchanged
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer


def discard(id: str, layer: Layer | None) -> None:
    """Throw the changes of a run away for good, and all that is known of it.

    Raises `SandboxError` (``invalid``) while its sandbox lives, and `ChangesError`: ``in_use``
    while changes are applied or undone, ``state_failed``.
    """
    trash = undo.forget(id, layer)
    records.remove(id)
    unchanged.remove(id)
    if trash is not None:
        layers.remove(trash)


def finish() -> tuple[str, ...]:
    """Close the books of runs whose discarding was cut short; gives their ids."""
    found = layers.put_away_before()
    for id, trash in found.items():
        undo.forget(id)
        records.remove(id)
        layers.remove(trash)
    return tuple(found)
