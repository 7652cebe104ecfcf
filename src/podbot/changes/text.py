"""Bytes of unknown origin as text a person can trust: whatever would not be seen is spelled out.

Control characters, escape sequences, bidirectional and zero-width characters, tags, fillers,
carriage returns and bytes that are not UTF-8. Must not be used for anything but showing: two
different texts may be shown alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from podbot.sandbox.channel import visible

# Letters and marks by their category, so that `str.isprintable` lets them pass, but nothing is
# drawn for them. The selector that makes an emoji of a symbol may follow a symbol.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0e\uffa0"
    "\U000e0100-\U000e01ef]|(?<![\u203c-\u3299\U0001f000-\U0001faff])\ufe0f"
)
# Spelled here, so that \xa0 always means a byte that is no UTF-8 and never this character.
_LATIN = re.compile("[\u0080-\u00a0\u00ad]")
_BAD_BYTE = re.compile("[\udc80-\udcff]")


def shown(text: str) -> str:
    """Text with everything unseen spelled out; line ends and tabs stay."""
    if _is_plain(text):
        return text
    text = _LATIN.sub(_by_number, text)
    text = _BAD_BYTE.sub(lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", text)
    return _UNSEEN.sub(_by_number, visible(text))


def shown_name(name: str) -> str:
    """A file name on one line."""
    return shown(name).replace("\n", "\\n").replace("\t", "\\t")


def shown_lines(lines: Iterable[bytes]) -> Iterator[str]:
    """Lines of a file, each without its line end."""
    text = b"\n".join(lines).decode("utf-8", "surrogateescape")
    # Line by line only if one of them needs it, which is rare.
    if _is_plain(text.replace("\n", "").replace("\t", "")):
        yield from text.split("\n")
    else:
        yield from map(shown, text.split("\n"))


def _is_plain(text: str) -> bool:
    return text.isprintable() and (text.isascii() or not _UNSEEN.search(text))


def _by_number(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
