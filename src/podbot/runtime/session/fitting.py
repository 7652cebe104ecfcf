"""Whether a value fits an annotation, strictly: for the fields of dataclasses in a snapshot.

``bool`` is no ``int``, an ``int`` serves for a ``float``, one word is no sequence of words, and
containers are looked into. What cannot be decided (a callable, a protocol that says nothing at run
time) does not fit. It makes no values and knows no JSON.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Final, Literal, NewType, TypeVar, Union, get_args, get_origin

Annotation = object
"""Whatever may stand after the colon of a field."""


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
def annotations_of(cls: type) -> Mapping[str, Annotation]:
    """What the constructor of a dataclass takes: the annotation of each field, resolved."""
    try:
        hints = typing.get_type_hints(cls)
    except Exception as error:  # whatever evaluating an annotation raises
        raise UnfitError(
            f"the annotations of {cls.__qualname__} mean nothing at run time ({error})"
        ) from error
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def named_by(annotation: Annotation) -> Iterator[type]:
    """Every class that an annotation names, at any depth."""
    if isinstance(annotation, NewType):
        yield from named_by(annotation.__supertype__)
    origin = get_origin(annotation)
    if origin is Literal:
        yield from map(type, get_args(annotation))
        return
    kind = annotation if origin is None else origin
    if isinstance(kind, type):
        yield kind
    for argument in get_args(annotation):
        yield from named_by(argument)


def fits(value: object, annotation: Annotation) -> bool:
    """Whether a value is what an annotation says."""
    if type(annotation) is type:  # most are
        return _is(value, annotation)
    if annotation is Any:
        return True
    if annotation is None:
        return value is None
    if isinstance(annotation, NewType):
        return fits(value, annotation.__supertype__)
    if isinstance(annotation, TypeVar):
        allowed = annotation.__constraints__ or (annotation.__bound__ or object,)
        return any(fits(value, each) for each in allowed)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in arguments)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    if origin is Final:
        return fits(value, arguments[0])
    if origin is None:
        return isinstance(annotation, type) and _is(value, annotation)
    return isinstance(origin, type) and _is(value, origin) and _items_fit(value, origin, arguments)


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


def _items_fit(value: object, kind: type, arguments: tuple[Annotation, ...]) -> bool:
    if isinstance(value, tuple) and kind is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(fits(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if isinstance(value, Mapping):
        pair: Iterable[Annotation] = arguments if len(arguments) == 2 else (*arguments, object)
        return all(all(map(fits, item, pair)) for item in value.items())
    if isinstance(value, Collection):
        return all(fits(item, arguments[0]) for item in value)
    return True  # a generic class of the caller's own, whose fields are checked by themselves
