"""`Session`: what is known during a run, as typed slices that reducers keep up to date.

A session listens on its bus. Each tool call, rendered prompt and finished prompt of its own is
kept in a slice, and the value of a successful result is dispatched like any event. It knows no
prompt, no tool and no sandbox.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from datetime import UTC, datetime
from typing import TypeVar, cast, overload

from podbot.errors import SessionError
from podbot.frozen import frozen_dict
from podbot.runtime.events import EventBus, PromptExecuted, PromptRendered, ToolInvoked
from podbot.runtime.given import expect, expect_callable, expect_methods
from podbot.runtime.logging import get_logger
from podbot.runtime.session._store import State, Store, in_reducer
from podbot.runtime.session.access import SessionMutation, SliceMutation, SliceQuery
from podbot.runtime.session.attempts import Attempt, Change
from podbot.runtime.session.reducers import Reducer, ReducerContext, append
from podbot.runtime.session.slices import Slice
from podbot.runtime.session.snapshots import Snapshot

T = TypeVar("T")
Clock = Callable[[], datetime]
Telemetry = PromptRendered | ToolInvoked | PromptExecuted

TELEMETRY: tuple[type[Telemetry], ...] = (PromptRendered, ToolInvoked, PromptExecuted)
"""The events a session keeps by itself."""

# It names folders and containers, so it is one plain word.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

_BUS = ("subscribe", "unsubscribe", "publish")

_logger = get_logger(__name__, component="runtime.session")


class Session:
    """Typed state of a run. Any thread may use it.

    ``session_id`` is made up if none is given. ``parent`` links the session to another one, whose
    `children` it joins. ``tags`` are for people and logs. ``clock`` gives aware times.
    """

    def __init__(
        self,
        *,
        bus: EventBus,
        session_id: str | None = None,
        parent: Session | None = None,
        tags: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ):
        self.session_id = os.urandom(16).hex() if session_id is None else _checked_id(session_id)
        expect_methods(bus, _BUS, "the bus of a session", SessionError)
        if parent is not None:
            expect(parent, Session, "the parent of a session", SessionError)
        self.bus = bus
        self.parent = parent
        self.tags = _checked_tags({} if tags is None else tags)
        self.clock: Clock = clock or _utc_now
        self.created_at = _first_time(self.clock)
        self._children: tuple[Session, ...] = ()
        self._lock = threading.RLock()  # a finalizer may come in between
        self._store = Store()
        # Which reducers an event runs. Replaced, never changed, so dispatching needs no lock.
        self._routes: Mapping[type, Mapping[type, Reducer[object, object]]] = {}
        self._guards: Mapping[type, Callable[[object], object]] = {}  # likewise
        for event_type in TELEMETRY:
            self._register(event_type, event_type, append)
        if parent is not None:
            parent._adopt(self)
        self._listen()

    @property
    def children(self) -> tuple[Session, ...]:
        """Sessions that named this one as their parent, oldest first."""
        return self._children

    @property
    def types(self) -> frozenset[type]:
        """Every type of slice and event this session knows: those a snapshot may safely name."""
        registered = {kind for event, slices in self._routes.items() for kind in (event, *slices)}
        return frozenset(registered | set(self._store.state))

    def query(self, slice_type: type[T]) -> SliceQuery[T]:
        """Read the slice of a type."""
        return SliceQuery(self, _checked_type(slice_type))

    @overload
    def mutate(self, slice_type: type[T]) -> SliceMutation[T]: ...
    @overload
    def mutate(self) -> SessionMutation: ...
    def mutate(self, slice_type: type[T] | None = None) -> SliceMutation[T] | SessionMutation:
        """Change the slice of a type; without a type, the session as a whole."""
        if slice_type is None:
            return SessionMutation(self)
        return SliceMutation(self, _checked_type(slice_type))

    def slice_of(self, slice_type: type[T]) -> Slice[T]:
        """The slice of a type as it is now; it will not change."""
        return self._store.slice_of(_checked_type(slice_type))

    def attempt(self) -> Attempt:
        """A ``with`` block whose changes can be taken back without touching those of others.

            with session.attempt() as attempt:
                result = work()
                if not result.success:
                    attempt.undo()

        It covers what this thread or task changes inside the block, and attempts within it. An
        exception undoes it. Changes of others to the same slices are kept: their reducers run
        again on what is left.
        """
        return self._store.attempt()

    def snapshot(self) -> Snapshot:
        """All slices as they are now. Costs nothing; `Snapshot.to_json` does the work."""
        return Snapshot(self.session_id, self.clock(), self.tags, frozen_dict(self._store.state))

    def clone(
        self,
        *,
        bus: EventBus,
        session_id: str | None = None,
        parent: Session | None = None,
        tags: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> Session:
        """A session of its own with the same values and reducers, always under another id.

        It is nobody's child unless ``parent`` says so. Tags and clock are this session's unless
        others are given.
        """
        if session_id == self.session_id:
            raise SessionError(
                f"a clone cannot have the id of its original, {session_id}",
                remedy="leave session_id out, or choose another",
            )
        made = Session(
            bus=bus,
            session_id=session_id,
            parent=parent,
            tags=self.tags if tags is None else tags,
            clock=clock or self.clock,
        )
        made._routes = self._routes
        made._store = Store(self._store.state)
        return made

    def close(self) -> None:
        """Listen no more. What it holds stays readable. A session that is collected does so too."""
        self._hush()

    def __repr__(self) -> str:
        return f"<Session {self.session_id} with {len(self._store.state)} slices>"

    # For the verbs in access.py

    def _hold(self, values: Slice[T]) -> None:
        self._store.apply((_Held(cast("Slice[object]", values)),))

    def _hold_all(self, slices: State) -> None:
        def steps(present: State) -> Iterable[Change]:
            for kind in {**present, **slices}:
                yield _Held(slices[kind] if kind in slices else Slice(kind))

        self._store.replace(steps)

    def _append(self, slice_type: type[T], value: T) -> None:
        Slice(slice_type, (value,))  # says what is wrong to the caller, not to the log
        self._store.apply((_Reduced(slice_type, cast("_AnyReducer", append), value, self),))

    def _register(
        self, slice_type: type, event_type: type, reducer: Callable[..., Iterable[object]]
    ) -> None:
        _checked_type(event_type)
        expect_callable(reducer, f"the reducer of {slice_type.__qualname__}", SessionError)
        with self._lock:
            slices = {**self._routes.get(event_type, {}), slice_type: reducer}
            self._routes = {**self._routes, event_type: slices}

    def _guard(self, event_type: type[T], check: Callable[[T], object]) -> None:
        _checked_type(event_type)
        expect_callable(check, f"the check of {event_type.__qualname__}", SessionError)
        with self._lock:
            self._guards = {**self._guards, event_type: cast("Callable[[object], object]", check)}

    def _dispatch(self, event: object) -> None:
        _checked_type(type(event))
        self._check(event)
        self._store.apply(self._steps(event))

    def _dispatch_to(self, slice_type: type, event: object) -> None:
        self._check(event)
        reducer = self._routes.get(type(event), {}).get(slice_type)
        if reducer is not None:
            self._store.apply((_Reduced(slice_type, reducer, event, self),))
        elif isinstance(event, slice_type):
            self._append(slice_type, event)
        else:
            raise SessionError(
                f"the slice of {slice_type.__qualname__} has no reducer for "
                f"{type(event).__qualname__}",
                remedy=f"call mutate({slice_type.__qualname__}).register("
                f"{type(event).__qualname__}, …) first",
            )

    def _check(self, event: object) -> None:
        check = self._guards.get(type(event))
        if check is None:
            return
        if in_reducer():
            raise SessionError(
                f"a reducer cannot dispatch {type(event).__qualname__} here: it would do more than "
                "change slices",
                remedy="dispatch it from outside of reducers",
            )
        check(event)

    def _steps(self, event: object) -> list[Change]:
        kind = type(event)
        routes = self._routes.get(kind) or {kind: cast("_AnyReducer", append)}
        return [
            _Reduced(slice_type, reducer, event, self) for slice_type, reducer in routes.items()
        ]

    # Listening

    def _listen(self) -> None:
        heard = _Listener(self)
        for event_type in TELEMETRY:
            self.bus.subscribe(event_type, heard)
        # The bus may outlive the session and must not keep it.
        self._hush = weakref.finalize(self, _unsubscribe, self.bus, heard)
        self._hush.atexit = False

    def _heard(self, event: Telemetry) -> None:
        if event.session_id not in (None, self.session_id):
            return
        steps = self._steps(event)
        if not isinstance(event, PromptRendered):
            succeeded = not isinstance(event, ToolInvoked) or event.success
            steps += self._steps_of_value(event.value) if succeeded else []
        self._store.apply(steps)

    def _steps_of_value(self, value: object) -> list[Change]:
        """What a result changes: its own slices, or those its items have reducers for."""
        if isinstance(value, tuple | list):
            known = (item for item in value if type(item) in self._routes)
            return [step for item in known for step in self._steps(item)]
        if value is None or isinstance(value, TELEMETRY) or not is_dataclass(type(value)):
            return []
        return self._steps(value)

    def _adopt(self, child: Session) -> None:
        with self._lock:
            self._children = (*self._children, child)


_AnyReducer = Callable[..., Iterable[object]]


class _Listener:
    """A session's ear on a bus, which does not keep the session alive."""

    __slots__ = ("_session",)

    def __init__(self, session: Session):
        self._session = weakref.ref(session)

    def __call__(self, event: Telemetry) -> None:
        session = self._session()
        if session is not None:
            session._heard(event)


class _Held:
    """The change to given values, whatever was there."""

    __slots__ = ("slice_type", "values")

    def __init__(self, values: Slice[object]):
        self.slice_type: type = values.item_type
        self.values = values

    def __call__(self, values: Slice[object]) -> Slice[object]:
        return self.values


class _Reduced:
    """The change that a reducer makes for an event. A failing one is logged and changes nothing."""

    __slots__ = ("event", "reducer", "session", "slice_type")

    def __init__(self, slice_type: type, reducer: _AnyReducer, event: object, session: Session):
        self.slice_type, self.reducer = slice_type, reducer
        self.event, self.session = event, session

    def __call__(self, values: Slice[object]) -> Slice[object]:
        context = ReducerContext(self.session, self.session.bus)
        try:
            made = self.reducer(values, self.event, context=context)
            if isinstance(made, Slice) and made.item_type is self.slice_type:
                return made
            return Slice(self.slice_type, made)
        except Exception as error:
            _logger.error(
                "reducer_failed",
                error=error,
                session_id=self.session.session_id,
                slice=self.slice_type.__qualname__,
                event_type=type(self.event).__qualname__,
                reducer=getattr(self.reducer, "__qualname__", type(self.reducer).__qualname__),
            )
            return values


def _unsubscribe(bus: EventBus, heard: _Listener) -> None:
    for event_type in TELEMETRY:
        bus.unsubscribe(event_type, heard)


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _first_time(clock: Clock) -> datetime:
    """What a clock says, if it is one: a naive time would compare with no other."""
    expect_callable(clock, "the clock of a session", SessionError)
    now: object = clock()
    expect(now, datetime, "what the clock of a session says", SessionError)
    if isinstance(now, datetime) and now.tzinfo is not None:
        return now
    raise SessionError(
        "the clock of a session gives times without a zone",
        remedy="pass one that gives aware times: lambda: datetime.now(UTC)",
    )


def _checked_id(session_id: object) -> str:
    if not isinstance(session_id, str) or not _ID.fullmatch(session_id):
        raise SessionError(
            f"{session_id!r} cannot be the id of a session",
            remedy="use 1 to 64 letters, digits, '_', '.' and '-', the first a letter or digit",
        )
    return session_id


def _checked_tags(tags: Mapping[str, object]) -> Mapping[str, str]:
    expect(tags, Mapping, "the tags of a session", SessionError)
    checked: dict[str, str] = {}
    pairs: Iterable[tuple[object, object]] = tags.items()  # callers need not be typed
    for key, value in pairs:
        if not isinstance(key, str) or not isinstance(value, str):
            raise SessionError(
                f"the tag {key!r} is not text", remedy="give strings as names and as values"
            )
        checked[key] = value
    return frozen_dict(checked)


def _is_dataclass_type(kind: object) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


def _checked_type(kind: type[T]) -> type[T]:
    if not _is_dataclass_type(kind):
        raise SessionError(
            f"{kind!r} is not a dataclass, and slices and events must be",
            remedy="declare it with @dataclass(frozen=True, slots=True)",
        )
    return kind
