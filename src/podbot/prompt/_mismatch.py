"""What does not fit in the arguments of a call, in sentences that a model can act on.

A problem names its place, what was expected there and what came. Whatever is quoted from arguments
is cut short: they are hostile input. Nothing here decides what fits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from podbot.frozen import dataclass
from podbot.nearest import nearest
from podbot.prompt._shapes import (
    Array,
    Choice,
    FieldShape,
    OneOf,
    Record,
    Row,
    Scalar,
    Shape,
    Table,
    json_kind,
)
from podbot.prompt.json_text import quoted, short

_INTEGERS = 1 << 63


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where (empty: everywhere), and a sentence that begins there."""

    place: str
    text: str


class Mismatch(Exception):
    """Something does not fit. Only `arguments.parsed` lets its sentences out."""

    def __init__(self, problems: list[Problem]):
        super().__init__()
        self.problems = problems

    @classmethod
    def of(cls, text: str) -> Mismatch:
        """One problem, here."""
        return cls([Problem("", text)])

    def below(self, name: str) -> list[Problem]:
        """The same problems, seen from the record or array that holds this place."""
        return [
            Problem(f"{name}{_joined(problem.place)}", problem.text) for problem in self.problems
        ]


def fits_64_bits(value: int) -> bool:
    """Whether a whole number is of a size that other programs can hold."""
    return -_INTEGERS <= value < _INTEGERS


def expectation(shape: Shape) -> str:
    """What is expected, in words that follow "expected"."""
    match shape:
        case Scalar(kind):
            return {
                "string": "a string",
                "integer": "a whole number",
                "number": "a number",
                "boolean": "true or false",
                "null": "null",
            }[kind]
        case Choice(values):
            return "one of " + ", ".join(_written(said) for said, _ in values)
        case Array(item):
            return f"an array, each item {expectation(item)}"
        case Row(items):
            return f"an array of {len(items)}: " + ", ".join(map(expectation, items))
        case Table(value):
            return f"an object, each value {expectation(value)}"
        case OneOf(members):
            return " or ".join(map(expectation, members))
        case Record():
            return "an object"


def _written(value: object) -> str:
    return quoted(value) if isinstance(value, str) else json.dumps(value)


def unexpected(expected: str, value: object) -> Mismatch:
    """What was expected, and what came."""
    return Mismatch.of(f"expected {expected}, got {_described(value)}")


def _described(value: object) -> str:
    match json_kind(value):
        case "string":
            text = str(value)
            size = f" of {len(text)} characters" if len(text) > 60 else ""
            return f"the string {quoted(text)}{size}"
        case "number":
            return f"the number {_number_text(value)}"
        case "object":
            return "an object"
        case "array" if isinstance(value, list | tuple):
            return f"an array of {len(value)} items"
        case "array":
            return f"a value of type {type(value).__name__}"
        case _:
            return _written(value)


def _number_text(value: object) -> str:
    # Python refuses to write out whole numbers of many thousand digits.
    if isinstance(value, int) and not fits_64_bits(value):
        return "(more than 64 bits)"
    return str(value)


def missing(field: FieldShape) -> str:
    """What to send for a field that was left out and must not be."""
    text = f"is required: {expectation(field.shape)}"
    return f"{text} ({field.description})" if field.description else text


def extras(shape: Record, value: Mapping[object, object], limit: int) -> list[Problem]:
    """Names that are no fields, ``limit`` of them at most, each with the names there are."""
    names = [field.name for field in shape.fields]
    known = ", ".join(names) or "none"
    unknown = [name for name in value if name not in names]
    return [
        Problem(quoted(str(name)), f"is no parameter{_guess(str(name), names)}; there are: {known}")
        for name in unknown[:limit]
    ]


def _guess(name: str, names: list[str]) -> str:
    close = nearest(short(name, 60), names)
    return f" (did you mean {close}?)" if close else ""


def _joined(place: str) -> str:
    return f".{place}" if place and not place.startswith("[") else place
