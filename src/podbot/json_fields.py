"""JSON that someone else wrote, read strictly: its text, and the fields of its objects.

The someone is a guest, an engine, a model, a stranger's archive or an older podbot. Each field is
of the type it must have, or an error, which the reader chooses. Every start loads this: it imports
next to nothing, and knows nothing of what the data means.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Self

LARGEST = 2**63 - 1


class RepeatedNameError(ValueError):
    """An object has two values for a name, and nobody can say which of them was meant."""

    def __init__(self, name: str):
        super().__init__("an object has a key twice")
        self.name = name


def parsed(text: str | bytes | bytearray, *, unique: bool = False, whole: bool = False) -> object:
    """What a JSON text says, or `ValueError`: no NaN, no bottomless nesting.

    ``unique``: nor a name that comes twice in one object (`RepeatedNameError`). ``whole``: nor a
    number that is not whole, and so none that is too large for one either (``1e999``).
    """
    if not isinstance(text, str):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        found: object = (_UNIQUE if unique else _WHOLE if whole else _STRICT).decode(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_fraction(number: str) -> NoReturn:
    raise ValueError(f"{number[:40]} is not a whole number")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise RepeatedNameError(name)
            seen.add(name)
    return found


# Made once: json.loads with options makes a decoder each time.
_STRICT = json.JSONDecoder(parse_constant=_refuse)
_WHOLE = json.JSONDecoder(parse_constant=_refuse, parse_float=_refuse_fraction)
_UNIQUE = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_object)


class Fields:
    """The fields of an object. One that is missing or of another type is an error (see `wrong`).

    ``absent`` is what a missing field counts as; None: there must be one.
    """

    __slots__ = ("_values",)

    def __init__(self, values: object, name: str = "it"):
        if not isinstance(values, dict):
            raise self.wrong(name, "an object")
        self._values: dict[str, object] = values

    def wrong(self, name: str, wanted: str) -> Exception:
        """The error for a field, or the whole, that is not what it must be."""
        return ValueError(f"{name} is not {wanted}")

    def has(self, name: str) -> bool:
        """Whether there is such a field, and not null."""
        return self._values.get(name) is not None

    def part(self, name: str) -> Self:
        """An object inside."""
        return type(self)(self._values.get(name), name)

    def text(self, name: str, absent: str | None = None) -> str:
        """A string."""
        value = self._values.get(name, absent)
        if not isinstance(value, str):
            raise self.wrong(name, "text")
        return value

    def optional_text(self, name: str) -> str | None:
        """A string or nothing."""
        return self.text(name) if self.has(name) else None

    def flag(self, name: str, absent: bool | None = False) -> bool:
        """True or false."""
        value = self._values.get(name, absent)
        if not isinstance(value, bool):
            raise self.wrong(name, "a flag")
        return value

    def number(self, name: str, low: int = 0, high: int = LARGEST) -> int:
        """A whole number within bounds."""
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(name, f"a number from {low} to {high}")
        return value

    def optional_number(self, name: str, low: int = 0, high: int = LARGEST) -> int | None:
        """A whole number within bounds, or nothing."""
        return self.number(name, low, high) if self.has(name) else None

    def seconds(self, name: str) -> float:
        """A finite, non-negative number of seconds: how long, or since when."""
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
            raise self.wrong(name, "a number of seconds")
        return float(value)

    def items(self, name: str, absent: list[object] | None = None) -> list[object]:
        """A list of whatever."""
        value = self._values.get(name, absent)
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        return value

    def texts(self, name: str, absent: list[object] | None = None) -> tuple[str, ...]:
        """A list of strings."""
        items = self.items(name, absent)
        found = tuple(each for each in items if isinstance(each, str))
        if len(found) != len(items):
            raise self.wrong(name, "a list of text")
        return found
