"""What the host did to a path while a sandbox worked on it: a conflict, never overwritten silently.

Told by ctime, which nobody can set, against the start of the sandbox; what podbot itself wrote to
the host from the same layer does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from podbot.changes.model import Change, ChangeSet, State


class ConflictKind(StrEnum):
    """Why a change cannot simply be applied."""

    CHANGED = "changed"
    """The host changed it too, or put something there."""
    DELETED = "deleted"
    """The host removed what the sandbox changed."""
    HIDDEN = "hidden"
    """The policy hid this path: it is never written, whatever the caller says."""
    BLOCKED = "blocked"
    """Its folder is gone, or is not a folder any more."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A change and what stands in its way. ``host`` is what is there now."""

    change: Change
    path: str
    kind: ConflictKind
    host: State | None
    message: str


def conflicts(changes: ChangeSet) -> tuple[Conflict, ...]:
    """Every conflict as the host stands now."""
    raise NotImplementedError
