"""Records of layers that a program kept by itself: who opened them, and when.

Sandboxes ask for it through `podbot.sandbox.bookkeeping` when they are closed. Where a `Run` sees
to the record, as for `podbot run`, this leaves it alone.
"""

from __future__ import annotations

import os
import time

from podbot.frozen import replace
from podbot.runs import records
from podbot.runs.records import MAX_EARLIER, Record
from podbot.sandbox import layers
from podbot.sandbox.bookkeeping import Kept

_seen_to: set[str] = set()
"""The layers whose records are written by a `Run` of this process."""


def see_to(id: str) -> None:
    """Somebody else writes the record of a layer, until it is released."""
    _seen_to.add(id)


def release(id: str) -> None:
    """Nobody does any more."""
    _seen_to.discard(id)


def note(kept: Kept) -> None:
    """Write the record of a layer that a sandbox leaves, if nobody else sees to it.

    It does not wait for the disk, as what was written to the layer did not either.
    """
    layer = kept.layer
    if layer.id in _seen_to:
        return
    now, before = time.time(), records.read(layer.id)
    if before is not None and before.owner != os.getpid() and before.started > kept.began:
        return  # somebody went on in it the moment it was let go: theirs says what it is now
    if before is not None and _is_same_work(before, kept):
        records.write(replace(before, ended=now), durable=False)
        return
    record = Record(
        id=layer.id,
        name=None if before is None else before.name,
        command=(),
        targets=layer.targets,
        backend=kept.backend,
        network=kept.network,
        started=layer.created if before is None else kept.began,
        owner=os.getpid(),
        ended=now,
        guarantees=kept.guarantees,
        notes=kept.notes,
        earlier=() if before is None else (*before.earlier, before.past)[-MAX_EARLIER:],
        title=kept.title or (layer.title if before is None else None),
        program=layers.program(),
    )
    records.write(record, durable=False)


def _is_same_work(before: Record, kept: Kept) -> bool:
    """Whether this process goes on in its own layer, as after a sandbox was lost."""
    return (
        before.owner == os.getpid()
        and not before.command
        and before.title == (kept.title or kept.layer.title)
    )


def left(id: str) -> None:
    """Remove the record of a layer that is gone, unless something of it can still be undone."""
    if id not in _seen_to and not is_applied(id):
        records.remove(id)


def is_applied(id: str) -> bool:
    """Whether something is left to undo of a run, which takes its record to be named."""
    from podbot.changes.applying.applied import applications

    return any(not each.undone for each in applications(id))
