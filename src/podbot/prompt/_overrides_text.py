"""Overrides as JSON data, and back from data that anyone may have written.

    {"version": 1, "ns": ..., "key": ..., "tag": ...,
     "sections": {place: {"hash": ..., "text": ...}},
     "tools": {name: {"description": {...}, "parameters": {name: {...}}}}}

Decoding is strict: an unknown name, a wrong type or a text that is too long is an error. Nothing
here touches files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from podbot.errors import PromptError
from podbot.prompt.json_text import quoted
from podbot.prompt.overrides import (
    PARAMETER_LENGTH,
    SECTION_LENGTH,
    PromptOverrides,
    TextOverride,
    ToolOverride,
)
from podbot.prompt.result import Json
from podbot.prompt.tool import DESCRIPTION_LENGTH, checked_description

VERSION = 1
MAX_ENTRIES = 1_000

T = TypeVar("T")
_HASH = re.compile(r"[0-9a-f]{64}")


def encoded(overrides: PromptOverrides) -> dict[str, Json]:
    """Overrides as JSON data."""
    sections: dict[str, Json] = {
        place: _encoded(text) for place, text in overrides.sections.items()
    }
    tools: dict[str, Json] = {}
    for name, tool in overrides.tools.items():
        said: dict[str, Json] = {}
        if tool.description is not None:
            said["description"] = _encoded(tool.description)
        if tool.parameters:
            said["parameters"] = {key: _encoded(text) for key, text in tool.parameters.items()}
        tools[name] = said
    return {
        "version": VERSION,
        "ns": overrides.ns,
        "key": overrides.key,
        "tag": overrides.tag,
        "sections": sections,
        "tools": tools,
    }


def decoded(data: Json) -> PromptOverrides:
    """Overrides from JSON data; raises `ValueError` with a reason."""
    found = _record(data, "the file", {"version", "ns", "key", "tag"}, {"sections", "tools"})
    if found["version"] != VERSION or isinstance(found["version"], bool):
        raise ValueError(f"only version {VERSION} can be read")
    return PromptOverrides(
        ns=_text(found["ns"], "ns", 1_000),
        key=_text(found["key"], "key", 64),
        tag=_text(found["tag"], "tag", 64),
        sections=_each(found.get("sections", {}), "sections", _section),
        tools=_each(found.get("tools", {}), "tools", _tool),
    )


def _encoded(text: TextOverride) -> dict[str, Json]:
    return {"hash": text.hash, "text": text.text}


def _section(data: Json, place: str) -> TextOverride:
    return _override(data, place, SECTION_LENGTH)


def _tool(data: Json, place: str) -> ToolOverride:
    found = _record(data, place, set(), {"description", "parameters"})
    description = None
    if "description" in found:
        description = _override(found["description"], place, DESCRIPTION_LENGTH)
        try:
            checked_description(description.text, place)
        except PromptError as error:
            raise ValueError(error.message) from None
    return ToolOverride(
        description, _each(found.get("parameters", {}), f"{place}.parameters", _parameter)
    )


def _parameter(data: Json, place: str) -> TextOverride:
    return _override(data, place, PARAMETER_LENGTH)


def _override(data: Json, place: str, length: int) -> TextOverride:
    found = _record(data, place, {"hash", "text"}, set())
    digest = _text(found["hash"], f"{place}.hash", 64)
    if _HASH.fullmatch(digest) is None:
        raise ValueError(f"{place}.hash is not a SHA-256 in hexadecimal")
    return TextOverride(digest, _text(found["text"], f"{place}.text", length))


def _each(data: Json, place: str, decode: Callable[[Json, str], T]) -> Mapping[str, T]:
    if not isinstance(data, dict) or len(data) > MAX_ENTRIES:
        raise ValueError(f"{place} is not an object of at most {MAX_ENTRIES} entries")
    return {name: decode(said, f"{place}[{quoted(name)}]") for name, said in data.items()}


def _record(data: Json, place: str, needed: set[str], more: set[str]) -> dict[str, Json]:
    if not isinstance(data, dict):
        raise ValueError(f"{place} is not an object")
    for name in sorted(needed - data.keys()):
        raise ValueError(f"{place} has no {name}")
    for name in sorted(data.keys() - needed - more):
        raise ValueError(f"{place} has {quoted(name)}, which is unknown")
    return data


def _text(value: Json, place: str, length: int) -> str:
    if not isinstance(value, str) or len(value) > length:
        raise ValueError(f"{place} is not text of at most {length} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{place} holds half of a character (a lone surrogate)") from None
    return value
