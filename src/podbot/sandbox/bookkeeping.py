"""What sandboxes ask of the books that are kept of their changes.

The books (records, journals) are `podbot.changes` and `podbot.runs`, which are built on sandboxes
and not the other way round. So they are known here by name only, and loaded when there is something
to ask for. What `changes` has to ask of `runs`, which is built on it, goes this way too.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from podbot.config import places
from podbot.errors import LaunchError, PodbotError
from podbot.frozen import dataclass
from podbot.sandbox.values import Guarantee

if TYPE_CHECKING:
    from podbot.sandbox.layers import Layer

_GATE = "podbot.changes.applying.gate"
_DISCARDING = "podbot.runs.discarding"
_RECORDS = "podbot.runs.records"
_NOTING = "podbot.runs.noting"


@dataclass(frozen=True, slots=True)
class Kept:
    """A layer that a sandbox leaves, and what there is to say of that sandbox.

    ``began`` is when it was opened; ``title`` is what its caller calls the work.
    """

    layer: Layer
    backend: str
    network: str
    guarantees: tuple[Guarantee, ...]
    notes: tuple[str, ...]
    title: str | None
    began: float


class _Gate(Protocol):
    def heal_first(self, targets: Collection[str]) -> tuple[str, ...]:
        """Heal what an interrupted apply or undo left on targets."""


class _Discarding(Protocol):
    def discard(self, id: str, layer: Layer | None) -> None:
        """Remove a layer and all that is known of its run."""


class _Records(Protocol):
    def remove(self, id: str) -> None:
        """Forget a run."""


class _Noting(Protocol):
    def note(self, kept: Kept) -> None:
        """Write the record of a layer, if nobody else sees to it."""

    def left(self, id: str) -> None:
        """Remove the record of a layer that is gone."""


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


def note(kept: Kept) -> None:
    """Note who made a layer, now that its sandbox is closed.

    What cannot be noted keeps nobody from closing a sandbox: the layer itself says as much, too.
    """
    with suppress(PodbotError, OSError):
        cast("_Noting", import_module(_NOTING)).note(kept)


def left(id: str) -> None:
    """A layer that a sandbox went on in held nothing any more, and is gone: so is its record."""
    if knows(id):
        with suppress(PodbotError, OSError):  # it is listed as gone, and can be discarded
            cast("_Noting", import_module(_NOTING)).left(id)
