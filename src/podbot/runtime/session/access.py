"""What `Session.query` and `Session.mutate` hand out: a few verbs on one slice, or on all.

Reading needs no lock and never waits. Every change goes through the session's store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from podbot.errors import SessionError
from podbot.runtime.given import expect, expect_callable
from podbot.runtime.session.reducers import Reducer
from podbot.runtime.session.slices import Slice
from podbot.runtime.session.snapshots import Snapshot

if TYPE_CHECKING:
    from podbot.runtime.session.session import Session

T = TypeVar("T")
E = TypeVar("E")


class SliceQuery(Generic[T]):
    """Reads one slice, as it is at each call."""

    __slots__ = ("_session", "_type")

    def __init__(self, session: Session, slice_type: type[T]):
        self._session, self._type = session, slice_type

    def latest(self) -> T | None:
        """The last value; None if there is none."""
        values = self._session.slice_of(self._type)
        return values[-1] if values else None

    def all(self) -> tuple[T, ...]:
        """Every value, oldest first."""
        return self._session.slice_of(self._type).all()

    def where(self, predicate: Callable[[T], bool]) -> tuple[T, ...]:
        """The values for which the predicate is true, oldest first."""
        expect_callable(predicate, "the predicate of where()", SessionError)
        return tuple(filter(predicate, self._session.slice_of(self._type)))


class SliceMutation(Generic[T]):
    """Changes one slice."""

    __slots__ = ("_session", "_type")

    def __init__(self, session: Session, slice_type: type[T]):
        self._session, self._type = session, slice_type

    def seed(self, values: T | Iterable[T]) -> None:
        """Hold exactly this value, or these, whatever was there. No reducer runs."""
        several = isinstance(values, Iterable) and not isinstance(values, self._type)
        given = cast("Iterable[T]", values if several else (values,))
        self._session._hold(Slice(self._type, given))

    def clear(self) -> None:
        """Hold nothing."""
        self._session._hold(Slice(self._type))

    def append(self, value: T) -> None:
        """Hold this value too, unless an equal one is there. No registered reducer runs."""
        self._session._append(self._type, value)

    def dispatch(self, event: object) -> None:
        """Run this slice's reducer for the event; without one, append an event of its own type.

        Other slices do not see the event: `Session.mutate` without a type tells them all.
        """
        self._session._dispatch_to(self._type, event)

    def register(self, event_type: type[E], reducer: Reducer[T, E]) -> None:
        """Run ``reducer`` on this slice for each event of exactly this type.

        A slice has one reducer for a type of event: a second one takes the place of the first.
        """
        self._session._register(self._type, event_type, reducer)

    def guard(self, event_type: type[E], check: Callable[[E], object]) -> None:
        """Call ``check`` with each event of this type that a program dispatches, before a reducer.

        It may do what the event says, and what it raises refuses the event: whoever dispatched
        gets the error. Values of tools do not come here, as a tool has done what they say. One
        check for a type of event: a second one takes the place of the first. Clones have none.
        """
        self._session._guard(event_type, check)


class SessionMutation:
    """Changes the session as a whole."""

    __slots__ = ("_session",)

    def __init__(self, session: Session):
        self._session = session

    def dispatch(self, event: object) -> None:
        """Run every reducer that is registered for the event; without any, append it."""
        self._session._dispatch(event)

    def reset(self) -> None:
        """Empty every slice. Reducers stay."""
        self._session._hold_all({})

    def rollback(self, snapshot: Snapshot) -> None:
        """Hold exactly what the snapshot holds; slices it does not know become empty."""
        expect(snapshot, Snapshot, "what to roll back to", SessionError)
        self._session._hold_all(snapshot.slices)
