"""Fields of a JSON object that a stranger wrote: each is of the type it must have, or an error.

Paths and links are held to be relative, canonical and short enough. Nothing here touches a file
system.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TypeVar

from podbot.changes.archive._tar import bad
from podbot.changes.model import FileType

NAME = ".podbot/manifest.json"
MAX_PATH = 4095
MAX_NAME = 255

_Value = TypeVar("_Value")


def decoded(text: bytes) -> object:
    """What a JSON text says."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise bad("its manifest is damaged", NAME) from None


class Fields:
    """The fields of a JSON object, each of the type it must have."""

    def __init__(self, data: object):
        if not isinstance(data, Mapping):
            raise bad("its manifest is damaged", NAME)
        self._data: Mapping[object, object] = data

    def has(self, name: str) -> bool:
        """Whether there is such a field, and not null."""
        return self._data.get(name) is not None

    def part(self, name: str) -> Fields:
        return Fields(self._data.get(name))

    def text(self, name: str) -> str:
        return self._typed(name, str)

    def flag(self, name: str) -> bool:
        return self._typed(name, bool)

    def real(self, name: str) -> float:
        value = self._data.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
            raise bad(f"{name} is not valid", NAME)
        return float(value)

    def number(self, name: str, limit: int) -> int:
        return self._within(name, 0, limit)

    def time(self, name: str) -> int:
        return self._within(name, -(10**21), 10**21)

    def texts(self, name: str, limit: int) -> tuple[str, ...]:
        found: list[object] = self._typed(name, list)
        if len(found) > limit or not all(isinstance(one, str) for one in found):
            raise bad(f"{name} is not valid", NAME)
        return tuple(map(str, found))

    def file_type(self) -> FileType:
        try:
            return FileType(self.text("type"))
        except ValueError:
            raise bad("its type is not one that files have", NAME) from None

    def path(self, name: str) -> str:
        """A relative path without steps back, spelled in the one way that names it."""
        path = self.text(name)
        encoded = _encoded(path)
        if encoded is None or len(encoded) > MAX_PATH:
            raise bad("its path cannot be a path", path)
        if path and any(
            step in (b"", b".", b"..") or len(step) > MAX_NAME for step in encoded.split(b"/")
        ):
            raise bad("its path leads elsewhere or has too long a name", path)
        return path

    def link(self) -> str:
        link = self.text("link")
        encoded = _encoded(link)
        if not encoded or len(encoded) > MAX_PATH:
            raise bad("it is a link that cannot be", link)
        return link

    def _typed(self, name: str, wanted: type[_Value]) -> _Value:
        value = self._data.get(name)
        if not isinstance(value, wanted):
            raise bad(f"{name} is not valid", NAME)
        return value

    def _within(self, name: str, low: int, high: int) -> int:
        value = self._data.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise bad(f"{name} is not valid", NAME)
        return value


def is_encodable(text: str) -> bool:
    """Whether a text can be the bytes of a path at all; whether of one that exists is not asked."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _encoded(text: str) -> bytes | None:
    """The bytes of a name; None if it has none, or others would be spelled the same."""
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        return None
    return None if b"\0" in encoded or os.fsdecode(encoded) != text else encoded
