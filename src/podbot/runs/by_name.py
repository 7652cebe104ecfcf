"""The verbs of the library that take a run: by its id, the start of one, its name, or ``last``.

The modules that do the work know whole ids alone, as they are asked by each other. This only finds
out which run is meant, as the command line does; a whole id needs no looking for, so a run whose
record is gone can still be undone by it.
"""

from __future__ import annotations

import re

from podbot.changes.applying import applied, undo
from podbot.changes.applying.applied import Application
from podbot.changes.applying.undo import Undone
from podbot.changes.given import OnConflict, Paths
from podbot.errors import ChangesError, Kind
from podbot.runs import discarding, records

_APPLICATION = re.compile(r"(?P<run>.+)\.\d+")
"""The id of an application: that of its run, and what tells it from the others of that run."""


def undo_changes(run: str, *, only: Paths = (), on_conflict: OnConflict = "stop") -> Undone:
    """Undo the latest application of a run that is not undone yet, or the one with this id.

    ``only`` are patterns as for `select_changes`, or one alone: what else was applied stays, and
    can be undone later. Where the host moved on, ``on_conflict`` stops before anything is touched,
    leaves that out (``skip``), or sets what the host has now aside (``overwrite``) and says where
    it is.

    Raises `ChangesError`: what `find` raises, ``nothing_to_undo``, ``nothing_selected``,
    ``undo_refused`` where the host moved on since, ``permission``, ``disk_full``, ``apply_failed``
    and ``in_use``.
    """
    return undo.undo(_id(run), only=only, on_conflict=on_conflict)


def applications(run: str) -> list[Application]:
    """What was applied from a run, oldest first."""
    return applied.applications(_id(run))


def discard_changes(run: str) -> None:
    """Throw the changes of a run away for good: its layer, its record, and the means to undo.

    What was applied stays. Raises `ChangesError`: what `find` raises, ``state_failed``, and
    ``in_use`` while its sandbox works or its changes are applied or undone.
    """
    entry = records.find(run)
    if entry.live:
        raise ChangesError(
            f"{entry.called} still runs: its changes cannot be discarded yet",
            kind=Kind.IN_USE,
            remedy="wait until it ends, or close its sandbox",
        )
    discarding.discard(entry.id, entry.layer)


def _id(word: str) -> str:
    application = _APPLICATION.fullmatch(word)
    whole = records.is_id(word) or (application is not None and records.is_id(application["run"]))
    return word if whole else records.find(word).id
