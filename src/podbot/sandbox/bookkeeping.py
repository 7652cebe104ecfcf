"""What sandboxes ask of the books that are kept of their changes.

The books (records, journals) are `podbot.changes` and `podbot.runs`, which are built on sandboxes
and not the other way round. So they are known here by name only, and loaded when there is something
to ask for. What `changes` has to ask of `runs`, which is built on it, goes this way too.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from podbot.config import places
from podbot.errors import LaunchError, PodbotError

if TYPE_CHECKING:
    from podbot.sandbox.layers import Layer

_GATE = "podbot.changes.applying.gate"
_DISCARDING = "podbot.runs.discarding"
_RECORDS = "podbot.runs.records"


class _Gate(Protocol):
    def heal_first(self, targets: Collection[str]) -> tuple[str, ...]:
        """Heal what an interrupted apply or undo left on targets."""


class _Discarding(Protocol):
    def discard(self, id: str, layer: Layer | None) -> None:
        """Remove a layer and all that is known of its run."""


class _Records(Protocol):
    def remove(self, id: str) -> None:
        """Forget a run."""


def heal_first(targets: Collection[str]) -> tuple[str, ...]:
    """Have targets whole before a sandbox shows them: says what was half done, as notes.

    Costs a look into one folder unless something was interrupted. Raises `LaunchError` if a target
    stays half done.
    """
    if not places.unfinished():
        return ()
    try:
        return cast("_Gate", import_module(_GATE)).heal_first(targets)
    except PodbotError as error:
        raise LaunchError(error.message, kind=error.kind, remedy=error.remedy) from error


def knows(id: str) -> bool:
    """Whether there is anything in the books of a run."""
    return places.has_books(id)


def discard(id: str, layer: Layer | None) -> None:
    """Remove a layer and all that is known of its run."""
    cast("_Discarding", import_module(_DISCARDING)).discard(id, layer)


def forget(id: str) -> None:
    """Remove the record of a layer that never came to be."""
    cast("_Records", import_module(_RECORDS)).remove(id)
