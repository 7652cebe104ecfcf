"""JSON from a model or from a file someone else may have written: read strictly, and bounded.

Refused are texts that are too long or too deep, a name that comes twice in one object, and the
numbers JSON does not have (NaN, Infinity). The error says where, so that the writer can mend it.
Nothing here knows what the data means.
"""

from __future__ import annotations

import json

from podbot.json_fields import RepeatedNameError, parsed
from podbot.prompt.result import Json

_SHOWN = 60


class JsonTextError(ValueError):
    """The text is not JSON as it is wanted here; the message says why, in a few words."""


def load(text: str, limit: int) -> Json:
    """The data in ``text``, which may have ``limit`` characters at most."""
    if len(text) > limit:
        raise JsonTextError(f"it has {len(text)} characters, {limit} are allowed")
    try:
        data: Json = parsed(text, unique=True)  # type: ignore[assignment]  # what JSON can say
    except json.JSONDecodeError as error:
        raise JsonTextError(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except RepeatedNameError as error:
        why = f"the name {quoted(error.name)} comes twice in one object"
        raise JsonTextError(why) from None
    except ValueError as error:  # such as an integer of thousands of digits
        raise JsonTextError(short(str(error), 200)) from None
    return data


def quoted(text: str) -> str:
    """A text of someone else's, in quotes, cut short, in ASCII."""
    return json.dumps(short(text, _SHOWN))


def short(text: str, length: int) -> str:
    """The text, or its beginning with three dots."""
    return text if len(text) <= length else f"{text[:length]}..."
