"""What of a run may be in a patch, which is applied where nobody asks any more.

A patch is made against what the host has now. Of a file that the host has changed since the run
began, it would take back what the host did: such a file is left out, and told. Reads only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from podbot.changes.diffs.text import shown_name
from podbot.frozen import dataclass, replace

if TYPE_CHECKING:
    from podbot.changes.drift import Conflict
    from podbot.changes.model import ChangeSet


@dataclass(frozen=True, slots=True)
class ForPatch:
    """Changes without those in conflict with the host, and a line for each of these."""

    changes: ChangeSet
    in_conflict: tuple[str, ...]


def for_patch(changes: ChangeSet) -> ForPatch:
    """What a patch may hold; what another run did, too, is still in it (see `undecided`)."""
    from podbot.changes import undecided

    found = _taken_back(undecided.without_undecided(changes))
    if not found:
        return ForPatch(changes, ())
    lines = (f"{shown_name(each.change.path or '.')}: {each.message}" for each in found.values())
    kept = tuple(change for change in changes if change.where not in found)
    return ForPatch(replace(changes, changes=kept), tuple(lines))


def _taken_back(changes: ChangeSet) -> Mapping[str, Conflict]:
    """Conflicts with what the host did, which whoever has the patch would undo, by their path."""
    from podbot.changes import drift

    kinds = (drift.ConflictKind.CHANGED, drift.ConflictKind.DELETED)
    return {each.change.where: each for each in drift.conflicts(changes) if each.kind in kinds}
