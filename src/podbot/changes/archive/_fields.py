"""The fields of a manifest that a stranger wrote.

Paths and links are held to be relative, canonical and short enough. Nothing here touches a file
system.
"""

from __future__ import annotations

import json
import os

from podbot import json_fields
from podbot.changes.archive._tar import bad
from podbot.changes.model import FileType
from podbot.errors import ChangesError

NAME = ".podbot/manifest.json"
MAX_PATH = 4095
MAX_NAME = 255


def decoded(text: bytes) -> object:
    """What a JSON text says."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise bad("its manifest is damaged", NAME) from None


class Fields(json_fields.Fields):
    """The fields of a JSON object in a manifest; an error says ``bad_archive``."""

    __slots__ = ()

    def wrong(self, name: str, wanted: str) -> ChangesError:
        """What to raise for a manifest that says this."""
        whole = wanted == "an object"
        return bad("its manifest is damaged" if whole else f"{name} is not valid", NAME)

    def time(self, name: str) -> int:
        """A time in ns."""
        return self.number(name, -(10**21), 10**21)

    def file_type(self) -> FileType:
        """What sort of file its ``type`` says."""
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
        """Where a link leads: anywhere, but in words that a link can hold."""
        link = self.text("link")
        encoded = _encoded(link)
        if not encoded or len(encoded) > MAX_PATH:
            raise bad("it is a link that cannot be", link)
        return link


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
