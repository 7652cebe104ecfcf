"""A slice: the values of one type that a session holds, in order.

It is immutable and cheap to extend: values lie in full chunks that all versions share, and a
short tail that is copied. So keeping an older version, and going back to it, costs nothing, and a
slice of ten thousand entries grows as quickly as an empty one. A slice finds values by hash when
it is asked to, for reducers that keep no duplicates. It knows no session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Generic, NamedTuple, Self, TypeVar, overload

from podbot.errors import SessionError

T = TypeVar("T")
Key = Callable[[T], object]

CHUNK = 256


class Slice(Sequence[T]):
    """Values of ``item_type``, oldest first: a read-only sequence."""

    __slots__ = ("_all", "_chunks", "_index", "_tail", "item_type")
    __hash__ = None  # type: ignore[assignment]  # equal to a tuple with the same values

    def __init__(self, item_type: type[T], values: Iterable[T] = ()):
        everything = tuple(values)
        for value in everything:
            _check(value, item_type)
        whole = len(everything) - len(everything) % CHUNK
        self.item_type = item_type
        self._chunks = tuple(everything[at : at + CHUNK] for at in range(0, whole, CHUNK))
        self._tail = everything[whole:]
        self._index: _Index[T] | None = None
        self._all: tuple[T, ...] | None = everything

    def appended(self, value: T) -> Slice[T]:
        """This slice with one more value at its end."""
        _check(value, self.item_type)
        tail = (*self._tail, value)
        index = self._index and self._index.appended(value)
        if len(tail) < CHUNK:
            return self._made(self._chunks, tail, index)
        return self._made((*self._chunks, tail), (), index)

    def replaced(self, position: int, value: T) -> Slice[T]:
        """This slice with another value at a position, counted from 0."""
        _check(value, self.item_type)
        index = self._index and self._index.replaced(position, value)
        number, at = divmod(position, CHUNK)
        if number == len(self._chunks):
            return self._made(self._chunks, _with(self._tail, at, value), index)
        chunk = _with(self._chunks[number], at, value)
        return self._made(_with(self._chunks, number, chunk), self._tail, index)

    def position_of(self, value: T, key: Key[T] | None = None) -> int | None:
        """Where a value equal to this one is, or one with an equal ``key``; None if nowhere.

        The first call for a key goes through the slice once; what is appended later is known.
        """
        if self._index is None or self._index.key is not key:
            self._index = _Index.of(self, key)
        wanted = value if key is None else key(value)
        for position in self._index.candidates(wanted):
            found = self[position] if key is None else key(self[position])
            if found == wanted:
                return position
        return None

    def all(self) -> tuple[T, ...]:
        """Every value, as a tuple."""
        if self._all is None:
            self._all = tuple(self)
        return self._all

    def __len__(self) -> int:
        return len(self._chunks) * CHUNK + len(self._tail)

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from chunk
        yield from self._tail

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...
    def __getitem__(self, at: int | slice) -> T | tuple[T, ...]:
        if isinstance(at, slice):
            return self.all()[at]
        length = len(self)
        position = at + length if at < 0 else at
        if not 0 <= position < length:
            raise IndexError(f"a slice of {length} values has none at {at}")
        number, at = divmod(position, CHUNK)
        return self._tail[at] if number == len(self._chunks) else self._chunks[number][at]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Slice):
            return self is other or self.all() == other.all()
        return self.all() == other if isinstance(other, tuple) else NotImplemented

    def __repr__(self) -> str:
        return f"Slice({self.item_type.__qualname__}, {self.all()!r})"

    def _made(
        self, chunks: tuple[tuple[T, ...], ...], tail: tuple[T, ...], index: _Index[T] | None
    ) -> Slice[T]:
        made: Slice[T] = Slice.__new__(Slice)
        made.item_type, made._chunks, made._tail = self.item_type, chunks, tail
        made._index, made._all = index, None
        return made


class _Span(NamedTuple):
    """Which hashes are in a few neighbouring chunks, together."""

    first: int
    size: int
    marks: frozenset[int]


class _Index(Generic[T]):
    """Where each hash is, in the chunks of a slice. Immutable too, and shared in the same way.

    To look up a hash in each chunk would take longer the more there are: spans of 1, 2, 4, … chunks
    say first where it cannot be.
    """

    __slots__ = ("_chunks", "_seen", "_spans", "_tail", "key")

    def __init__(
        self,
        key: Key[T] | None,
        chunks: tuple[tuple[int, ...], ...],
        seen: tuple[frozenset[int], ...],
        spans: tuple[_Span, ...],
        tail: tuple[int, ...],
    ):
        self.key, self._chunks, self._seen, self._spans = key, chunks, seen, spans
        self._tail = tail

    @classmethod
    def of(cls, values: Slice[T], key: Key[T] | None) -> Self:
        hashes = [_hash(value if key is None else key(value)) for value in values]
        whole = len(hashes) - len(hashes) % CHUNK
        chunks = tuple(tuple(hashes[at : at + CHUNK]) for at in range(0, whole, CHUNK))
        spans: tuple[_Span, ...] = ()
        for number in range(len(chunks)):
            spans = _spanning(spans, _Span(number, 1, frozenset(chunks[number])))
        return cls(key, chunks, tuple(map(frozenset, chunks)), spans, tuple(hashes[whole:]))

    def appended(self, value: T) -> _Index[T]:
        tail = (*self._tail, self._hash_of(value))
        if len(tail) < CHUNK:
            return _Index(self.key, self._chunks, self._seen, self._spans, tail)
        marks = frozenset(tail)
        spans = _spanning(self._spans, _Span(len(self._chunks), 1, marks))
        return _Index(self.key, (*self._chunks, tail), (*self._seen, marks), spans, ())

    def replaced(self, position: int, value: T) -> _Index[T] | None:
        """Itself, if nothing changes for it; else None: it is made again when it is needed."""
        number, at = divmod(position, CHUNK)
        chunk = self._tail if number == len(self._chunks) else self._chunks[number]
        return self if chunk[at] == self._hash_of(value) else None

    def candidates(self, wanted: object) -> Iterator[int]:
        """Positions with the hash of what is wanted."""
        mark = _hash(wanted)
        for first, size, marks in self._spans:
            if mark in marks:
                for number in range(first, first + size):
                    if mark in self._seen[number]:
                        yield from _places(self._chunks[number], mark, number * CHUNK)
        if mark in self._tail:
            yield from _places(self._tail, mark, len(self._chunks) * CHUNK)

    def _hash_of(self, value: T) -> int:
        return _hash(value if self.key is None else self.key(value))


def _spanning(spans: tuple[_Span, ...], last: _Span) -> tuple[_Span, ...]:
    """The spans with one more: two of a size become one."""
    while spans and spans[-1].size == last.size:
        before = spans[-1]
        last = _Span(before.first, before.size + last.size, before.marks | last.marks)
        spans = spans[:-1]
    return (*spans, last)


def _places(hashes: tuple[int, ...], mark: int, start: int) -> list[int]:
    return [start + at for at, found in enumerate(hashes) if found == mark]


def _hash(value: object) -> int:
    """A hash for anything: equal values have equal ones.

    A dataclass that holds a dict or a list has no hash of its own; then its other fields serve.
    """
    try:
        return hash(value)
    except TypeError:
        pass
    if is_dataclass(value):
        parts = [_hash(getattr(value, field.name)) for field in fields(value) if field.compare]
        return hash((type(value), *parts))
    return hash(tuple(map(_hash, value))) if type(value) is tuple else 0


def _with(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _check(value: object, item_type: type) -> None:
    if not isinstance(value, item_type):
        raise SessionError(
            f"a slice of {item_type.__qualname__} cannot hold a {type(value).__qualname__}",
            remedy=f"give it instances of {item_type.__qualname__}",
        )
