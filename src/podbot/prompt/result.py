"""What a tool gives back, and how a model is shown it.

A result is data: a sentence for the model, a typed value for programs, and whether the tool did
what it was asked. Rendering is bounded, because what a value holds may come from inside a sandbox.
Nothing here runs a tool.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import os
from collections.abc import Mapping, Set
from typing import Generic, Protocol, TypeVar, runtime_checkable

from podbot.errors import PromptError
from podbot.frozen import dataclass
from podbot.runtime.given import expect

R_co = TypeVar("R_co", covariant=True)

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""What `json.dumps` takes."""

RENDER_LIMIT = 200_000
"""Characters of a rendered result, unless the caller asks for another number."""

_DEPTH = 32


@runtime_checkable
class Renders(Protocol):
    """A value that knows how a model should read it; others are shown as JSON."""

    def render(self) -> str:
        """The value as text."""
        ...


@dataclass(frozen=True, slots=True)
class ToolResult(Generic[R_co]):
    """How a tool call ended.

    ``message`` is for the model and says, on failure, what to do next. ``value`` is for programs
    and reducers; the model sees it too unless ``exclude_value_from_context``.
    """

    message: str
    value: R_co | None
    success: bool = True
    exclude_value_from_context: bool = False

    def __post_init__(self) -> None:
        expect(self.message, str, "the message of a ToolResult", PromptError)

    def render(self, limit: int = RENDER_LIMIT) -> str:
        """What a model is shown: the message, then the value, cut at ``limit`` characters."""
        text = self.message
        if self.value is not None and not self.exclude_value_from_context:
            text = f"{text}\n\n{_shown(self.value)}" if text else _shown(self.value)
        if len(text) <= limit:
            return text
        return f"{text[:limit]}\n[truncated: {limit} of {len(text)} characters shown]"

    def as_data(self) -> dict[str, Json]:
        """The same as JSON data, for adapters that carry structure."""
        value = None if self.exclude_value_from_context else as_json(self.value)
        return {"success": self.success, "message": self.message, "value": value}


def failure(message: str) -> ToolResult[object]:
    """A failing result without a value."""
    return ToolResult(message=message, value=None, success=False)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Renders):
        return value.render()
    return json.dumps(as_json(value), ensure_ascii=False)


def as_json(value: object, depth: int = _DEPTH) -> Json:
    """A value as JSON data: dataclasses become objects, sequences lists, the rest text.

    A dataclass that is no object to its readers, such as a path, has a method ``__podbot_json__``.
    """
    if isinstance(value, enum.Enum):
        return as_json(value.value, depth)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth == 0:
        return "..."
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = getattr(type(value), "__podbot_json__", None)
        if own is not None:
            return as_json(own(value), depth - 1)
        return {
            field.name: as_json(getattr(value, field.name), depth - 1)
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): as_json(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | Set):
        return [as_json(item, depth - 1) for item in value]
    return _text(value)


def _text(value: object) -> str:
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    return str(value)
