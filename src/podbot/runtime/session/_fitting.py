"""Whether a value fits an annotation, strictly: for the fields of dataclasses in a snapshot.

``bool`` is no ``int``, an ``int`` serves for a ``float``, one word is no sequence of words, and
containers are looked into. What cannot be decided (a callable, a protocol that says nothing at run
time) does not fit. It makes no values and knows no JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, Literal, TypeVar, Union

from podbot.runtime.hints import Hint, hints_of, opened


class UnfitError(Exception):
    """A field that holds what its annotation does not allow, or has one that says nothing."""


def check_fields(cls: type, values: Mapping[str, object]) -> None:
    """Raise `UnfitError` unless each value fits the field of a dataclass that it is named for."""
    annotations = annotations_of(cls)
    for name, value in values.items():
        if not fits(value, annotations[name]):
            shown = repr(value)
            brief = shown if len(shown) <= 60 else shown[:60] + "…"
            raise UnfitError(f"{cls.__qualname__}.{name}: {brief} is not {annotations[name]}")


@cache
def annotations_of(cls: type) -> Mapping[str, Hint]:
    """What the constructor of a dataclass takes: the annotation of each field, resolved."""
    why = f"the annotations of {cls.__qualname__} mean nothing at run time"
    return hints_of(cls, lambda error: UnfitError(f"{why} ({error})"))


def named_by(annotation: Hint) -> Iterator[type]:
    """Every class that an annotation names, at any depth."""
    what, inside = opened(annotation)
    if what is Literal:
        yield from map(type, inside or ())
        return
    if isinstance(what, type):
        yield what
    for each in inside or ():
        yield from named_by(each)


def fits(value: object, annotation: Hint) -> bool:
    """Whether a value is what an annotation says."""
    if type(annotation) is type:  # most are
        return _is(value, annotation)
    what, inside = opened(annotation)
    if what is Any:
        return True
    if isinstance(what, TypeVar):
        allowed = what.__constraints__ or (what.__bound__ or object,)
        return any(fits(value, each) for each in allowed)
    if what is Union or what is Final:
        return any(fits(value, each) for each in inside or ())
    if what is Literal:
        return any(type(value) is type(each) and value == each for each in inside or ())
    if not isinstance(what, type) or not _is(value, what):
        return False
    return inside is None or _items_fit(value, what, inside)


def _is(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind.__module__ == "collections.abc" and isinstance(value, str | bytes):
        return False
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol that cannot be checked at run time
        return False


def _items_fit(value: object, kind: type, arguments: tuple[Hint, ...]) -> bool:
    if isinstance(value, tuple) and kind is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(fits(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if isinstance(value, Mapping):
        pair: Iterable[Hint] = arguments if len(arguments) == 2 else (*arguments, object)
        return all(all(map(fits, item, pair)) for item in value.items())
    if isinstance(value, Collection):
        return all(fits(item, arguments[0]) for item in value)
    return True  # a generic class of the caller's own, whose fields are checked by themselves
