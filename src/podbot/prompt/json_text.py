"""JSON from a model or from a file someone else may have written: read strictly, and bounded.

Refused are texts that are too long or too deep, a name that comes twice in one object, and the
numbers JSON does not have (NaN, Infinity). The error says where, so that the writer can mend it.
Nothing here knows what the data means.
"""

from __future__ import annotations

import json
from typing import NoReturn

from podbot.prompt.result import Json

_SHOWN = 60


class JsonTextError(ValueError):
    """The text is not JSON as it is wanted here; the message says why, in a few words."""


def load(text: str, limit: int) -> Json:
    """The data in ``text``, which may have ``limit`` characters at most."""
    if len(text) > limit:
        raise JsonTextError(f"it has {len(text)} characters, {limit} are allowed")
    try:
        data: Json = _DECODER.decode(text)
    except JsonTextError:
        raise
    except json.JSONDecodeError as error:
        raise JsonTextError(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise JsonTextError("it is nested too deep") from None
    except ValueError as error:  # an integer of thousands of digits
        raise JsonTextError(short(str(error), 200)) from None
    return data


def quoted(text: str) -> str:
    """A text of someone else's, in quotes, cut short, in ASCII."""
    return json.dumps(short(text, _SHOWN))


def short(text: str, length: int) -> str:
    """The text, or its beginning with three dots."""
    return text if len(text) <= length else f"{text[:length]}..."


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise JsonTextError(f"the name {quoted(name)} comes twice in one object")
            seen.add(name)
    return found


def _constant(name: str) -> NoReturn:
    raise JsonTextError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
