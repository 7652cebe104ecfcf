"""Reading what an engine said: JSON of bounded size, and fields of the type they should have.

An engine's reply carries what images, containers and other people put into it. A field of the
wrong type is an error of kind ``engine_protocol``, an absent one is its type's empty value, and
text that is shown to people has its control characters made visible.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from podbot.errors import ContainerError, Kind

MAX_TEXT = 2000

Fields = Mapping[str, object]


def parse(data: bytes) -> object:
    """JSON, strictly: no NaN, no bottomless nesting."""
    try:
        found: object = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise nonsense(f"not JSON: {error}") from None
    return found


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def nonsense(what: str) -> ContainerError:
    """The error for a reply that is not valid."""
    return ContainerError(
        f"the engine's reply is not valid: {visible(what)}",
        kind=Kind.ENGINE_PROTOCOL,
        remedy="check that a Docker or Podman engine answers at that endpoint",
    )


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
    found = value.get(name)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise nonsense(f"{name} is not a string")
    return found


def whole(value: Fields, name: str) -> int:
    """A whole number; zero if absent."""
    found = value.get(name)
    if found is None:
        return 0
    if isinstance(found, float) and found.is_integer():
        return int(found)
    if not isinstance(found, int) or isinstance(found, bool):
        raise nonsense(f"{name} is not a whole number")
    return found


def flag(value: Fields, name: str) -> bool:
    """True or false; false if absent."""
    found = value.get(name)
    if found is None:
        return False
    if not isinstance(found, bool):
        raise nonsense(f"{name} is neither true nor false")
    return found


def objects(value: object, what: str = "the reply") -> list[Fields]:
    """A list of objects; empty if absent."""
    return [fields(entry, what) for entry in _listed(value, what)]


def texts(value: Fields, name: str) -> tuple[str, ...]:
    """A list of strings; empty if absent."""
    found = _listed(value.get(name), name)
    if not all(isinstance(entry, str) for entry in found):
        raise nonsense(f"{name} is not a list of strings")
    return tuple(str(entry) for entry in found)


def text_map(value: Fields, name: str) -> dict[str, str]:
    """An object of strings; empty if absent."""
    found = below(value, name)
    return {key: text(found, key) for key in found}


def _listed(value: object, what: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise nonsense(f"{what} is not a list")
    return value


def visible(words: str) -> str:
    """Text for people: bounded, and nothing in it that a terminal would act on."""
    shown = "".join(
        char if char == "\n" or char.isprintable() else char.encode("unicode_escape").decode()
        for char in words.strip()
    )
    return shown if len(shown) <= MAX_TEXT else shown[:MAX_TEXT] + "…"
