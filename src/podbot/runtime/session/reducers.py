"""Reducers: how an event changes a slice.

A reducer is a pure function of the slice and the event. It may run again, when another call is
taken back, so it keeps no state and does nothing else. Raising is safe: the slice stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

from podbot.errors import SessionError
from podbot.frozen import dataclass
from podbot.runtime.events import EventBus
from podbot.runtime.given import expect_callable
from podbot.runtime.session.slices import Key, Slice

if TYPE_CHECKING:
    from podbot.runtime.session.session import Session

T = TypeVar("T")
E_contra = TypeVar("E_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class ReducerContext:
    """Where a reducer runs. What it dispatches or publishes is handled when it is done."""

    session: Session
    bus: EventBus


class Reducer(Protocol[T, E_contra]):
    """Makes the next version of a slice of ``T`` from the present one and an event."""

    def __call__(
        self, values: Slice[T], event: E_contra, *, context: ReducerContext
    ) -> Iterable[T]:
        """The values to hold from now on, as a tuple or any iterable."""
        ...


def append(values: Slice[T], event: T, *, context: ReducerContext) -> Slice[T]:
    """Keep every event once: one that equals a value already held changes nothing."""
    return values if values.position_of(event) is not None else values.appended(event)


def replace_latest(values: Slice[T], event: T, *, context: ReducerContext) -> Slice[T]:
    """Keep the newest event alone."""
    return Slice(values.item_type, (event,))


def upsert_by(key: Key[T]) -> Reducer[T, T]:
    """Keep one value for each key: an event takes the place of the value with an equal key."""

    expect_callable(key, "the key of upsert_by", SessionError)

    def upsert(values: Slice[T], event: T, *, context: ReducerContext) -> Slice[T]:
        position = values.position_of(event, key)
        return values.appended(event) if position is None else values.replaced(position, event)

    return upsert
