"""The types of a tool's parameters, read once into shapes.

A shape says which JSON is accepted and what it becomes; the parser (`arguments`) and the schema
(`schema`) are both made from it, so that they cannot disagree. A type that has no clear JSON form
is refused here, when the tool is made, and not when a model calls it. Nothing here sees arguments.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Literal, Union

from podbot.errors import PromptError
from podbot.frozen import dataclass
from podbot.runtime.hints import Hint, hints_of, opened

ScalarKind = Literal["string", "integer", "number", "boolean", "null"]
JsonScalar = str | int | float | bool | None

_SCALARS: dict[object, ScalarKind] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_ARRAYS: dict[object, Callable[[list[object]], object]] = {
    list: list,
    Sequence: tuple,
    MutableSequence: list,
}
_TABLES = (dict, Mapping, MutableMapping)
_NESTING = 8


@dataclass(frozen=True, slots=True)
class Scalar:
    """One plain value."""

    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few values: what JSON says, and what the handler gets for it."""

    values: tuple[tuple[JsonScalar, object], ...]


@dataclass(frozen=True, slots=True)
class Array:
    """Any number of items of one shape."""

    item: Shape
    make: Callable[[list[object]], object]


@dataclass(frozen=True, slots=True)
class Row:
    """A fixed number of items, each of its own shape; a tuple for the handler."""

    items: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Names with values of one shape; a dict for the handler."""

    value: Shape


@dataclass(frozen=True, slots=True)
class OneOf:
    """Any one of several shapes that JSON itself tells apart."""

    members: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a field's metadata says of its size. None: nothing."""

    minimum: float | None = None
    maximum: float | None = None
    min_length: int | None = None
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class FieldShape:
    """One field of a record."""

    name: str
    shape: Shape
    required: bool
    default: object
    description: str
    bounds: Bounds | None


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass."""

    cls: type
    fields: tuple[FieldShape, ...]


Shape = Scalar | Choice | Array | Row | Table | OneOf | Record

NO_DEFAULT: object = object()
NAME, VALUE = "name", "value"
"""What a table may be written as too: a list of objects with these two, one for each name."""


def record_of(cls: object) -> Record:
    """The shape of a tool's parameters: a dataclass, or None for a tool that takes none."""
    if cls is None or cls is type(None):
        return Record(type(None), ())
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise _refused(str(getattr(cls, "__name__", cls)), "the parameters are not a dataclass")
    return _record(cls, (cls.__name__,))


def json_kinds(shape: Shape) -> frozenset[str]:
    """The kinds of JSON value that this shape may accept."""
    match shape:
        case Scalar(kind):
            return frozenset({"number" if kind == "integer" else kind})
        case Choice(values):
            return frozenset(json_kind(value) for value, _ in values)
        case OneOf(members):
            return frozenset().union(*map(json_kinds, members))
        case Array() | Row():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


def json_kind(value: object) -> str:
    """What JSON calls this value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def _record(cls: type, place: tuple[str, ...]) -> Record:
    if len(place) > _NESTING:
        raise _refused(
            ".".join(place), f"it is nested more than {_NESTING} deep, or contains itself"
        )
    why = "its annotations cannot be read"
    hints = hints_of(cls, lambda error: _refused(".".join(place), f"{why} ({error})"))
    return Record(cls, tuple(_fields(cls, hints, place)))


def _fields(cls: type, hints: Mapping[str, Hint], place: tuple[str, ...]) -> Iterator[FieldShape]:
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        here = (*place, field.name)
        has_default = field.default is not dataclasses.MISSING
        optional = has_default or field.default_factory is not dataclasses.MISSING
        shape = _shape(hints[field.name], here)
        yield FieldShape(
            name=field.name,
            shape=shape,
            required=not optional,
            default=field.default if has_default else NO_DEFAULT,
            description=_description(field.metadata, here),
            bounds=_bounds(field.metadata, shape, here),
        )


def _description(metadata: Mapping[str, object], place: tuple[str, ...]) -> str:
    text = metadata.get("description", "")
    if not isinstance(text, str):
        raise _refused(".".join(place), "its description is not text")
    return text


def _bounds(metadata: Mapping[str, object], shape: Shape, place: tuple[str, ...]) -> Bounds | None:
    names = [field.name for field in dataclasses.fields(Bounds)]
    given = {name: metadata[name] for name in names if metadata.get(name) is not None}
    if not given:
        return None
    if any(
        isinstance(value, bool) or not isinstance(value, int | float) for value in given.values()
    ):
        raise _refused(".".join(place), "a bound in its metadata is not a number")
    sized = {"minimum": {"number"}, "maximum": {"number"}}
    for name in given:
        if not json_kinds(shape) & sized.get(name, {"string", "array", "object"}):
            raise _refused(".".join(place), f"{name} does not go with its type")
    return Bounds(**given)  # type: ignore[arg-type]  # checked above


def _shape(hint: Hint, place: tuple[str, ...]) -> Shape:
    what, inside = opened(hint)
    if inside is not None:
        return _generic(hint, what, inside, place)
    if what in _SCALARS:
        return Scalar(_SCALARS[what])
    if isinstance(what, type) and issubclass(what, enum.Enum):
        return _choice([(member.value, member) for member in what], place)
    if isinstance(what, type) and dataclasses.is_dataclass(what):
        return _record(what, place)
    raise _formless(what, place)


def _generic(hint: Hint, what: object, inside: tuple[Hint, ...], place: tuple[str, ...]) -> Shape:
    if what is Literal:
        return _choice([(value, value) for value in inside], place)
    if what is Union:
        return _one_of(tuple(_shape(each, place) for each in inside), place)
    if what is tuple and inside:
        if inside[-1] is Ellipsis:
            return Array(_shape(inside[0], place), tuple)
        return Row(tuple(_shape(each, place) for each in inside))
    if what in _ARRAYS:
        return Array(_shape(inside[0], place), _ARRAYS[what])
    if what in _TABLES and inside[0] is str:
        return Table(_shape(inside[1], place))
    raise _formless(hint, place)


def _choice(values: list[tuple[object, object]], place: tuple[str, ...]) -> Choice:
    kept: list[tuple[JsonScalar, object]] = []
    for said, meant in values:
        if not isinstance(said, str | int | None):
            raise _refused(".".join(place), f"{said!r} cannot be chosen in JSON")
        kept.append((said, meant))
    return Choice(tuple(kept))


def _one_of(members: tuple[Shape, ...], place: tuple[str, ...]) -> OneOf:
    seen: set[str] = set()
    for member in members:
        kinds = json_kinds(member)
        if kinds & seen:
            raise _refused(".".join(place), "JSON cannot tell the members of its union apart")
        seen |= kinds
    return OneOf(members)


def _formless(hint: Hint, place: tuple[str, ...]) -> PromptError:
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    return _refused(".".join(place), f"{name} has no strict JSON form")


def _refused(place: str, reason: str) -> PromptError:
    return PromptError(
        f"the parameter type {place} cannot be given to a model: {reason}",
        remedy="use str, int, float, bool, None, Literal, an Enum of those, tuple, list, "
        "Mapping[str, ...], another dataclass, or a union of these that JSON tells apart",
    )
