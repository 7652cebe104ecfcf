"""The slices of a session, and the one way to change them: one event after another.

The state is a mapping that is replaced, never changed, so whoever reads needs no lock and sees an
event either wholly or not at all. Changes take turns. A change that is asked for from within a
reducer is put off until the present one is done, and nobody inside a reducer ever waits for a
turn. So no arrangement of reducers, sessions, threads and finalizers can deadlock, unless a reducer
itself waits for another thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar, cast

from podbot.errors import SessionError
from podbot.runtime.session.attempts import Attempt, Change, Journal, current
from podbot.runtime.session.slices import Slice

T = TypeVar("T")
State = Mapping[type, Slice[object]]

_EMPTY: State = MappingProxyType({})


class _Turn(threading.local):
    """Whether this thread is within some store's turn, and for which attempt it works."""

    store: Store | None = None
    attempt: Attempt | None = None


_turn = _Turn()


def in_reducer() -> bool:
    """Whether this thread runs a reducer, of whichever session."""
    return _turn.store is not None


class Store:
    """Holds slices; any thread may read and change them."""

    def __init__(self, state: State = _EMPTY):
        self.state: State = state
        self._journal = Journal()
        self._lock = threading.Lock()
        self._put_off: deque[Callable[[], None]] = deque()

    def slice_of(self, item_type: type[T]) -> Slice[T]:
        """The slice of a type; empty if there was none."""
        found = self.state.get(item_type)
        return Slice(item_type) if found is None else cast("Slice[T]", found)

    def apply(self, changes: Iterable[Change]) -> None:
        """Make changes, all in one step for whoever reads."""
        steps, attempt = tuple(changes), self._attempt()
        self._in_turn(lambda: self._apply(steps, attempt))

    def replace(self, changes: Callable[[State], Iterable[Change]]) -> None:
        """Make changes that depend on which slices there are."""
        attempt = self._attempt()
        self._in_turn(lambda: self._apply(tuple(changes(self.state)), attempt))

    def attempt(self) -> Attempt:
        """An attempt, not yet entered."""
        if _turn.store is not None:
            raise SessionError(
                "a reducer cannot make an attempt",
                remedy="return the new values, or raise: then the slice stays as it was",
            )
        return Attempt(self)

    def open(self, attempt: Attempt) -> None:
        """Note changes from now on, so that this attempt can be taken back."""
        self._in_turn(lambda: self._journal.open(attempt))

    def take_back(self, attempt: Attempt) -> None:
        """Take back what an open attempt has changed."""
        self._in_turn(lambda: self._show(self._journal.without(attempt)))

    def close(self, attempt: Attempt) -> None:
        """This attempt will not be taken back any more."""
        self._in_turn(lambda: self._journal.close(attempt))

    def _attempt(self) -> Attempt | None:
        # A reducer works for the one who dispatched, whichever thread runs it.
        return _turn.attempt if _turn.store is self else current(self)

    def _apply(self, changes: tuple[Change, ...], attempt: Attempt | None) -> None:
        _turn.attempt = attempt
        changed: dict[type, Slice[object]] = {}
        made: list[tuple[Slice[object], Change]] = []
        for change in changes:
            kind = change.slice_type
            before = changed[kind] if kind in changed else self.slice_of(kind)
            changed[kind] = change(before)
            made.append((before, change))
        self._journal.note(attempt, made)
        self._show(changed)

    def _show(self, changed: dict[type, Slice[object]]) -> None:
        self.state = MappingProxyType({**self.state, **changed})

    def _in_turn(self, work: Callable[[], None]) -> None:
        outer = _turn.store, _turn.attempt
        try:
            if outer[0] is None:
                # Said before the lock is taken: what interrupts this thread from now on (a
                # finalizer, a signal handler) must not wait for a lock that it has itself.
                _turn.store = self
                with self._lock:
                    work()
                    self._catch_up()
            else:
                self._put_off.append(work)
            # Something may have been put off just before a turn ended. Whoever has the turn now
            # looks again after it, so nothing stays behind.
            while self._put_off:
                _turn.store = self
                if not self._lock.acquire(blocking=False):
                    break
                try:
                    self._catch_up()
                finally:
                    self._lock.release()
        finally:
            _turn.store, _turn.attempt = outer

    def _catch_up(self) -> None:
        while self._put_off:
            self._put_off.popleft()()
