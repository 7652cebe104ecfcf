"""How far long work is, for whoever wants to know: the library tells, and shows nothing itself.

    with progress.listening(show):
        apply_changes(found)

``show`` is called with each `Step`, many times a second at worst, in the thread that works; it
should return at once and raise nothing. Without a listener telling costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from podbot.frozen import dataclass

T = TypeVar("T")

EVERY = 64
"""How many things are done between two steps that are told."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is being done, and how much of it is done already.

    ``total`` is None where nobody knows yet. ``waiting`` says that nothing is being done, as
    somebody else has to end first; ``healed``, that this is what a crash had left half done, and
    what became of it.
    """

    doing: str
    done: int = 0
    total: int | None = None
    waiting: bool = False
    healed: bool = False


Listener = Callable[[Step], None]

_listener: ContextVar[Listener | None] = ContextVar("podbot_progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have what is done within told to someone, and to nobody else."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(step: Step) -> None:
    """Tell whoever listens."""
    listener = _listener.get()
    if listener is not None:
        listener(step)


def counted(items: Iterable[T], doing: str, total: int | None = None) -> Iterable[T]:
    """The same items; tells how many were taken while they are."""
    if _listener.get() is None:
        return items
    return _counted(items, doing, total)


def _counted(items: Iterable[T], doing: str, total: int | None) -> Iterator[T]:
    tell(Step(doing, 0, total))
    for number, item in enumerate(items):
        if number and not number % EVERY:
            tell(Step(doing, number, total))
        yield item
