"""Attempts: taking back what one call did to a session, and nothing else.

Other threads may change the same slices while a call is under way, so going back to how all was
before would lose their work. Instead each change is noted while an attempt is open. Undoing one
goes back to before its own first change of a slice and does again what the others did since.
Nothing here has a lock: the journal is used within the store's turns alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar, Token
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, cast

from podbot.errors import Kind, SessionError

if TYPE_CHECKING:
    from podbot.runtime.session._store import Store
    from podbot.runtime.session.slices import Slice

_innermost: ContextVar[Attempt | None] = ContextVar("podbot_attempt", default=None)


class Change(Protocol):
    """One step of the store: a slice becomes another. It never raises."""

    slice_type: type

    def __call__(self, values: Slice[object]) -> Slice[object]: ...


class Attempt:
    """A stretch of work on a session that can be taken back. Made by `Session.attempt`.

    It covers what its own thread or task does inside the ``with`` block, and attempts within it.
    An exception that leaves the block undoes it.
    """

    __slots__ = ("_outer", "_over", "_store", "_token", "_touched")

    def __init__(self, store: Store):
        self._store = store
        self._touched = False
        self._over = False
        self._outer: Attempt | None = None
        self._token: Token[Attempt | None] | None = None

    def undo(self) -> None:
        """Take back every change made so far within this attempt."""
        if self._over:
            raise SessionError(
                "this attempt is over and cannot be undone",
                kind=Kind.CLOSED,
                remedy="call undo() inside its with block, or keep a snapshot to roll back to",
            )
        if self._touched:
            self._store.take_back(self)

    def _is_within(self, other: Attempt) -> bool:
        """Whether this is the other attempt or part of it."""
        return any(each is other for each in self._outwards())

    def __enter__(self) -> Self:
        if self._token is not None:
            raise SessionError("an attempt can be entered once", remedy="ask for another one")
        self._outer = _innermost.get()
        self._store.open(self)
        self._token = _innermost.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self.undo()
        finally:
            self._over = True
            _innermost.reset(cast("Token[Attempt | None]", self._token))
            self._store.close(self)

    def _outwards(self) -> Iterator[Attempt]:
        each: Attempt | None = self
        while each is not None:
            yield each
            each = each._outer

    def _noted(self) -> None:
        """A change was made here, and so in every attempt around it."""
        for each in self._outwards():
            each._touched = True


def current(store: Store) -> Attempt | None:
    """The innermost attempt on this store that the calling thread or task is in."""
    innermost = _innermost.get()
    if innermost is None:
        return None
    mine = (each for each in innermost._outwards() if each._store is store and not each._over)
    return next(mine, None)


class _Entry:
    """One change that was made, by which attempt if any, and the slice as it was before it."""

    __slots__ = ("attempt", "before", "change")

    def __init__(self, attempt: Attempt | None, before: Slice[object], change: Change):
        self.attempt, self.before = attempt, before
        self.change: Change | None = change


class Journal:
    """Every change since the oldest open attempt began."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._dropped = 0
        self._starts: dict[Attempt, int] = {}

    def open(self, attempt: Attempt) -> None:
        """Note changes from now on."""
        self._starts[attempt] = self._dropped + len(self._entries)

    def close(self, attempt: Attempt) -> None:
        """Forget what no open attempt needs."""
        del self._starts[attempt]
        # The oldest is the first: starts only grow, and dicts keep their order.
        oldest = next(iter(self._starts.values()), self._dropped + len(self._entries))
        while self._dropped < oldest:
            self._entries.popleft()
            self._dropped += 1

    def note(self, attempt: Attempt | None, made: Iterable[tuple[Slice[object], Change]]) -> None:
        """Changes were made, each to a slice as given."""
        if not self._starts:
            return
        self._entries.extend(_Entry(attempt, before, change) for before, change in made)
        if attempt is not None:
            attempt._noted()

    def without(self, attempt: Attempt) -> dict[type, Slice[object]]:
        """The slices that an attempt changed, as they would be without it."""
        slices: dict[type, Slice[object]] = {}
        start = self._starts.get(attempt)
        if start is None:
            return slices  # closed meanwhile
        for entry in islice(self._entries, start - self._dropped, None):
            change = entry.change
            if change is None:
                continue
            if entry.attempt is not None and entry.attempt._is_within(attempt):
                slices.setdefault(change.slice_type, entry.before)
                entry.change = None
            elif change.slice_type in slices:
                entry.before = slices[change.slice_type]
                slices[change.slice_type] = change(entry.before)
        return slices
