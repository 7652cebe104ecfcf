"""Reading what an engine said: JSON of bounded size, and fields of the type they should have.

An engine's reply carries what images, containers and other people put into it. A field of the
wrong type is an error of kind ``engine_protocol``, an absent one is its type's empty value, and
text that is shown to people has its control characters made visible.
"""

from __future__ import annotations

from collections.abc import Mapping

from podbot import json_fields
from podbot.errors import ContainerError, Kind

MAX_TEXT = 2000

Fields = Mapping[str, object]


def parse(data: bytes) -> object:
    """JSON, strictly: no NaN, no bottomless nesting."""
    try:
        return json_fields.parsed(data)
    except ValueError as error:
        raise nonsense(f"not JSON: {error}") from None


def nonsense(what: str) -> ContainerError:
    """The error for a reply that is not valid."""
    return ContainerError(
        f"the engine's reply is not valid: {visible(what)}",
        kind=Kind.ENGINE_PROTOCOL,
        remedy="check that a Docker or Podman engine answers at that endpoint",
    )


class _Field(json_fields.Fields):
    """One field of an object, in which null is as good as nothing."""

    __slots__ = ()

    def __init__(self, values: Fields, name: str):
        found = values.get(name)
        super().__init__({} if found is None else {name: found})

    def wrong(self, name: str, wanted: str) -> ContainerError:
        return nonsense(f"{name} is {_SAID.get(wanted, f'not {wanted}')}")


_SAID = {
    "text": "not a string",
    "a list of text": "not a list of strings",
    "a flag": "neither true nor false",
}


def fields(value: object, what: str = "the reply") -> Fields:
    """An object, which it must be."""
    if not isinstance(value, dict):
        raise nonsense(f"{what} is not an object")
    return value


def below(value: Fields, name: str) -> Fields:
    """An object inside; empty if absent."""
    found = value.get(name)
    return {} if found is None else fields(found, name)


def text(value: Fields, name: str) -> str:
    """A string; empty if absent."""
    return _Field(value, name).text(name, "")


def whole(value: Fields, name: str) -> int:
    """A whole number; zero if absent."""
    found = value.get(name)
    if isinstance(found, float) and found.is_integer():
        return int(found)
    if found is not None and type(found) is not int:
        raise nonsense(f"{name} is not a whole number")
    return found or 0


def flag(value: Fields, name: str) -> bool:
    """True or false; false if absent."""
    return _Field(value, name).flag(name)


def objects(value: object, what: str = "the reply") -> list[Fields]:
    """A list of objects; empty if absent."""
    return [fields(entry, what) for entry in _Field({what: value}, what).items(what, [])]


def texts(value: Fields, name: str) -> tuple[str, ...]:
    """A list of strings; empty if absent."""
    return _Field(value, name).texts(name, [])


def text_map(value: Fields, name: str) -> dict[str, str]:
    """An object of strings; empty if absent."""
    found = below(value, name)
    return {key: text(found, key) for key in found}


def visible(words: str) -> str:
    """Text for people: bounded, and nothing in it that a terminal would act on."""
    shown = "".join(
        char if char == "\n" or char.isprintable() else char.encode("unicode_escape").decode()
        for char in words.strip()
    )
    return shown if len(shown) <= MAX_TEXT else shown[:MAX_TEXT] + "…"
