"""Arguments of a call into the dataclass a handler takes: strictly, and with answers for models.

A parser is compiled from the shape of a type once, and used for every call. It coerces nothing
except a whole number where a float is asked for, and collects what is wrong, so that a model can
correct everything at once: which field, what was expected, what came. Arguments are hostile input;
whatever is quoted from them is cut short. Nothing here runs a handler.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping

from podbot.errors import PodbotError, ToolValidationError
from podbot.prompt import json_text
from podbot.prompt._mismatch import (
    Mismatch,
    Problem,
    expectation,
    extras,
    fits_64_bits,
    missing,
    unexpected,
)
from podbot.prompt._shapes import (
    NAME,
    VALUE,
    Array,
    Bounds,
    Choice,
    FieldShape,
    OneOf,
    Record,
    Row,
    Scalar,
    ScalarKind,
    Shape,
    Table,
    json_kind,
    json_kinds,
    record_of,
)
from podbot.prompt.json_text import quoted, short

MAX_CHARACTERS = 8 << 20
"""Of the arguments of one call as text, and of each string in them."""

_PROBLEMS = 8

Parser = Callable[[object], object]


@functools.lru_cache(maxsize=1024)
def parser_of(cls: type | None) -> Parser:
    """The parser of a tool's parameter type; raises `PromptError` if there can be none."""
    return _compiled(record_of(cls))


def parsed(cls: type | None, tool: str, arguments: object) -> object:
    """The parameters of a call: an instance of ``cls``, or None where the tool takes none.

    ``arguments`` is a mapping, JSON text of an object, or None for no arguments. Raises
    `ToolValidationError`, whose message tells a model how to correct itself.
    """
    if isinstance(arguments, str):
        arguments = _loaded(tool, arguments)
    try:
        return parser_of(cls)({} if arguments is None else arguments)
    except Mismatch as mismatch:
        lines = [_line(problem) for problem in mismatch.problems[:_PROBLEMS]]
        if len(mismatch.problems) > _PROBLEMS:
            lines.append("- and more")
        raise ToolValidationError(
            "\n".join([f"the arguments of {tool} do not fit:", *lines]),
            remedy="correct these and call the tool again",
        ) from None


def _loaded(tool: str, text: str) -> object:
    try:
        return json_text.load(text, MAX_CHARACTERS) if text.strip() else {}
    except json_text.JsonTextError as error:
        raise ToolValidationError(
            f"the arguments of {tool} are not valid JSON: {error}",
            remedy="send one JSON object with the parameters of the tool",
        ) from None


def _line(problem: Problem) -> str:
    return f"- {problem.place}: {problem.text}" if problem.place else f"- {problem.text}"


# Compiling


def _compiled(shape: Shape) -> Parser:
    match shape:
        case Scalar(kind):
            return _SCALARS[kind]
        case Choice():
            return _choice(shape)
        case Array():
            return _array(shape)
        case Row():
            return _row(shape)
        case Table():
            return _table(shape)
        case OneOf():
            return _one_of(shape)
        case Record():
            return _record(shape)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise unexpected("a string", value)
    if len(value) > MAX_CHARACTERS:
        raise Mismatch.of(f"is too long: {len(value)} characters, {MAX_CHARACTERS} are allowed")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Mismatch.of(
                f"holds half of a character (a lone surrogate) at position {error.start}; "
                "send valid Unicode"
            ) from None
    return value


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise unexpected("a whole number", value)
    if not fits_64_bits(value):
        raise Mismatch.of("is too large: whole numbers must fit into 64 bits")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise unexpected("a number", value)
    if isinstance(value, int):
        return float(_integer(value))
    if not math.isfinite(value):
        raise unexpected("a finite number", value)
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise unexpected("true or false", value)
    return value


def _null(value: object) -> None:
    if value is not None:
        raise unexpected("null", value)


_SCALARS: Mapping[ScalarKind, Parser] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "null": _null,
}


def _choice(shape: Choice) -> Parser:
    # By type too: JSON's 1 and true are equal in Python.
    meant = {(type(said), said): value for said, value in shape.values}
    expected = expectation(shape)

    def parse(value: object) -> object:
        if isinstance(value, str | int | None) and (type(value), value) in meant:
            return meant[type(value), value]
        raise unexpected(expected, value)

    return parse


def _array(shape: Array) -> Parser:
    item, make = _compiled(shape.item), shape.make
    expected = expectation(shape)

    def parse(value: object) -> object:
        if not isinstance(value, list | tuple):
            raise unexpected(expected, value)
        try:
            return make([item(part) for part in value])
        except Mismatch:
            raise _items(value, [item] * len(value)) from None

    return parse


def _row(shape: Row) -> Parser:
    items = [_compiled(item) for item in shape.items]
    expected = expectation(shape)

    def parse(value: object) -> object:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            raise unexpected(expected, value)
        try:
            return tuple(item(part) for item, part in zip(items, value, strict=True))
        except Mismatch:
            raise _items(value, items) from None

    return parse


def _items(value: list[object] | tuple[object, ...], parsers: list[Parser]) -> Mismatch:
    """What is wrong with the items, as far as anyone would read it."""
    problems: list[Problem] = []
    for number, (parser, part) in enumerate(zip(parsers, value, strict=True)):
        try:
            parser(part)
        except Mismatch as mismatch:
            problems += mismatch.below(f"[{number}]")
        if len(problems) > _PROBLEMS:
            break
    return Mismatch(problems)


def _table(shape: Table) -> Parser:
    item = _compiled(shape.value)
    expected = expectation(shape)

    def parse(value: object) -> dict[str, object]:
        pairs = _pairs(value)
        if pairs is None:
            raise unexpected(expected, value)
        found: dict[str, object] = {}
        problems: list[Problem] = []
        for name, part in pairs:
            try:
                found[_string(name)] = item(part)
            except Mismatch as mismatch:
                problems += mismatch.below(f"[{quoted(str(name))}]")
                if len(problems) > _PROBLEMS:
                    break
        if problems:
            raise Mismatch(problems)
        return found

    return parse


def _pairs(value: object) -> Collection[tuple[object, object]] | None:
    """The names and values of a table, as an object or as a list of names with values."""
    if isinstance(value, Mapping):
        return value.items()
    if not isinstance(value, list | tuple):
        return None
    pairs: dict[object, object] = {}
    for item in value:
        if not isinstance(item, Mapping) or set(item) != {NAME, VALUE}:
            return None
        name = item[NAME]
        if not isinstance(name, str) or name in pairs:
            return None
        pairs[name] = item[VALUE]
    return pairs.items()


def _one_of(shape: OneOf) -> Parser:
    by_kind: dict[str, Parser] = {}
    for table in shape.members:
        if isinstance(table, Table):  # which may be a list too, where nothing else is one
            by_kind["array"] = _compiled(table)
    for member in shape.members:
        by_kind |= dict.fromkeys(json_kinds(member), _compiled(member))
    expected = expectation(shape)

    def parse(value: object) -> object:
        parser = by_kind.get(json_kind(value))
        if parser is None:
            raise unexpected(expected, value)
        return parser(value)

    return parse


def _record(shape: Record) -> Parser:
    if shape.cls is type(None):
        return _nothing
    fields = tuple((field, field.name, _bounded(field)) for field in shape.fields)
    make: Callable[..., object] = shape.cls

    def parse(value: object) -> object:
        if not isinstance(value, Mapping):
            raise unexpected("an object", value)
        found: dict[str, object] = {}
        left_out = 0
        problems: list[Problem] = []
        for field, name, parser in fields:
            if name not in value:
                if field.required:
                    problems.append(Problem(name, missing(field)))
                continue
            if value[name] is None and not (field.required or "null" in json_kinds(field.shape)):
                left_out += 1  # as providers write it that know no optional parameters
                continue
            try:
                found[name] = parser(value[name])
            except Mismatch as mismatch:
                problems += mismatch.below(name)
        if problems or len(found) + left_out != len(value):
            raise Mismatch(problems + extras(shape, value, _PROBLEMS + 1))
        return _made(make, found)

    return parse


def _made(make: Callable[..., object], found: dict[str, object]) -> object:
    """The dataclass, which may have rules of its own about its fields."""
    try:
        return make(**found)
    except PodbotError as error:
        raise Mismatch.of(short(error.message, 500)) from None
    except ValueError as error:
        raise Mismatch.of(short(str(error), 500)) from None


def _nothing(value: object) -> None:
    if not isinstance(value, Mapping):
        raise unexpected("an object", value)
    if value:
        raise Mismatch.of("the tool takes no parameters; send an empty object")


def _bounded(field: FieldShape) -> Parser:
    parser, bounds = _compiled(field.shape), field.bounds
    if bounds is None:
        return parser

    def parse(value: object) -> object:
        meant = parser(value)
        if value is not None:
            _check(value, bounds)
        return meant

    return parse


def _check(value: object, bounds: Bounds) -> None:
    if isinstance(value, int | float):
        if bounds.minimum is not None and value < bounds.minimum:
            raise Mismatch.of(f"is {value}, at least {bounds.minimum} is allowed")
        if bounds.maximum is not None and value > bounds.maximum:
            raise Mismatch.of(f"is {value}, at most {bounds.maximum} is allowed")
    elif isinstance(value, str | list | tuple | Mapping):
        unit = "characters" if isinstance(value, str) else "items"
        if bounds.min_length is not None and len(value) < bounds.min_length:
            raise Mismatch.of(f"has {len(value)} {unit}, at least {bounds.min_length} are needed")
        if bounds.max_length is not None and len(value) > bounds.max_length:
            raise Mismatch.of(f"has {len(value)} {unit}, at most {bounds.max_length} are allowed")
