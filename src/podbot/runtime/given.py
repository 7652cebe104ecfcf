"""What callers give, looked at where it comes in.

A thing of the wrong type would fail later, in the depths, with an error that names neither the
thing nor what to do. Types are for type checkers; this is for everyone else. Nothing here looks
into values: what they say is checked by whoever uses them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from podbot.errors import PodbotError

T = TypeVar("T")


def expect(
    value: object, wanted: type | tuple[type, ...], what: str, error: type[PodbotError]
) -> None:
    """Raise ``error`` unless ``value`` is one of what is wanted. ``what`` names its place."""
    if not isinstance(value, wanted):
        kinds = wanted if isinstance(wanted, tuple) else (wanted,)
        names = " or ".join(_with_article(kind.__name__) for kind in kinds)
        raise error(f"{what} is {described(value)}, not {names}", remedy=f"pass {names}")


def expect_callable(value: object, what: str, error: type[PodbotError]) -> None:
    """Raise ``error`` unless ``value`` can be called."""
    if not callable(value):
        raise error(f"{what} is {described(value)}, not a function", remedy="pass a function")


def expect_methods(
    value: object, names: tuple[str, ...], what: str, error: type[PodbotError]
) -> None:
    """Raise ``error`` unless ``value`` has these methods, as what it stands for has."""
    lacking = [name for name in names if not callable(getattr(value, name, None))]
    if lacking or isinstance(value, type):
        raise error(
            f"{what} is {described(value)}, which lacks the methods that are needed: "
            f"{', '.join(names)}",
            remedy="pass an object that has them",
        )


def expect_each(
    values: object, wanted: type[T], what: str, error: type[PodbotError]
) -> tuple[T, ...]:
    """The values, if they are several of what is wanted (or none); else raise ``error``."""
    name = _with_article(wanted.__name__)
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise error(
            f"{what} must be a list, each item {name}, but is {described(values)}",
            remedy=f"put {name} into a list, or several",
        )
    found = tuple(values)
    for number, value in enumerate(found):
        if not isinstance(value, wanted):
            expect(value, wanted, f"item {number} of {what}", error)
    return found


def described(value: object) -> str:
    """What something is, in words, without showing what it holds."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return _with_article(type(value).__name__)


def _with_article(name: str) -> str:
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"
