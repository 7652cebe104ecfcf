"""The gate before every look at a target: what was interrupted there is healed first.

An apply or undo whose podbot died leaves its target half done. Whoever reads it then, to show
changes or to start a sandbox over it, would take that for what the user has. So all of them come
through here. It costs a look into one folder, as almost always nothing was interrupted.
"""

from __future__ import annotations

from collections.abc import Collection

from podbot.changes.applying import journal
from podbot.changes.applying.journal import Journal
from podbot.config import places


def heal_first(targets: Collection[str]) -> tuple[str, ...]:
    """Wait for whoever is at work on these folders, and heal what nobody is any more.

    Says what was healed, on whatever target. Raises `ChangesError` if one of these may be half done
    now: ``in_use`` if a living podbot does not come to its end, else what keeps it from being
    healed. A target that is not there is nobody's to look at, and no reason.
    """
    if not places.unfinished():
        return ()
    from podbot.changes.applying import recovery

    healed = recovery.put_right()
    messages = healed.messages
    if healed.busy and _concerned(targets):
        healed = recovery.put_right(None, targets)
        messages += healed.messages
    failed = dict(healed.failed)
    for own in _concerned(targets):
        if own.id in failed:
            raise failed[own.id]
    return messages


def lines() -> list[str]:
    """Heal what nobody is at work on; what was healed and what could not be, for a person."""
    if not places.unfinished():
        return []
    from podbot.changes.applying import recovery

    return recovery.recover()


def _concerned(targets: Collection[str]) -> list[Journal]:
    """What is half done on these folders, or above or below them."""
    return [own for own in journal.unfinished() if own.concerns(targets)]
