"""Bytes of unknown origin as text a person can trust: whatever would not be seen is spelled out.

Control characters, escape sequences, bidirectional and zero-width characters, tags, fillers,
carriage returns and bytes that are not UTF-8. Must not be used for anything but showing: two
different texts may be shown alike.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from podbot.changes.late import expression
from podbot.visible import visible

# Letters and marks by their category, so that `str.isprintable` lets them pass, but nothing is
# drawn for them. The selector that makes an emoji of a symbol may follow a symbol.
_UNSEEN = expression(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0e\uffa0"
    "\U000e0100-\U000e01ef]|(?<![\u203c-\u3299\U0001f000-\U0001faff])\ufe0f"
)
# Spelled here, so that \xa0 always means a byte that is no UTF-8 and never this character.
_LATIN = expression("[\u0080-\u00a0\u00ad]")
_BLANK = "\\x20"
_WORDS = expression(r"[^\W\d_]+")
_LIKE_SLASH_OR_DOT = frozenset("\u2024\u2044\u2215\u29f8\ufe52\uff0e\uff0f")
# By the first word of a letter's name: scripts with letters that are drawn like Latin ones.
_LATIN_LIKE = frozenset(
    ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "MATHEMATICAL", "FULLWIDTH")
)
# Cyrillic, then Greek.
_TWINS = frozenset(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u04bb\u0501\u051b\u051d"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0405\u0406\u0408"
    "\u03bf\u03bd\u03c1\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1"
    "\u03a4\u03a5\u03a7"
)
_BAD_BYTE = expression("[\udc80-\udcff]")


def shown(text: str) -> str:
    """Text with everything unseen spelled out; line ends and tabs stay."""
    if _is_plain(text):
        return text
    text = _LATIN.sub(_by_number, text)
    text = _BAD_BYTE.sub(lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", text)
    return _UNSEEN.sub(_by_number, visible(text))


def shown_line(sentence: str) -> str:
    """A sentence on one line; names in it that were spelled out before stay as they are."""
    return shown(sentence).replace("\n", "\\n").replace("\t", "\\t")


def shown_name(name: str) -> str:
    """A file name on one line, where no backslash of its own and no blank at an end deceives."""
    text = shown_line(name.replace("\\", "\\\\"))
    if text.startswith(" "):
        text = _BLANK + text[1:]
    return text[:-1] + _BLANK if text.endswith(" ") else text


def unusual_letters(name: str) -> list[str]:
    """What in a name may be taken for something else, as ``U+0430``; nothing for most names.

    Letters that are written from the right, signs that look like a slash or a dot, and letters of
    other scripts among Latin ones, or that all look like Latin ones. A word in one script is not
    unusual, whichever it is.
    """
    if name.isascii():
        return []
    found = [char for char in name if char in _LIKE_SLASH_OR_DOT or _is_from_the_right(char)]
    has_latin = any("a" <= char.lower() <= "z" for char in name)
    for word in _WORDS.findall(name):
        if not word.isascii():
            found += _posing(word, has_latin)
    return [f"U+{ord(char):04X}" for char in dict.fromkeys(found)]


def _is_from_the_right(char: str) -> bool:
    return unicodedata.bidirectional(char) in ("R", "AL")


def _posing(word: str, beside_latin: bool) -> list[str]:
    """Letters of a word that pose as Latin."""
    scripts = [unicodedata.name(char, "").partition(" ")[0] for char in word]
    other = [char for char, script in zip(word, scripts, strict=True) if script in _LATIN_LIKE]
    mixed = "LATIN" in scripts
    twins = beside_latin and len(word) > 1 and set(word) <= _TWINS
    return other if mixed or twins else []


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


LISTED = 20
"""How many lines of a list an error names before it only counts."""


def listed(lines: Sequence[str]) -> str:
    """Lines for the message of an error, each indented."""
    shown_ones = [f"  {line}" for line in lines[:LISTED]]
    if len(lines) > LISTED:
        shown_ones.append(f"  … and {len(lines) - LISTED} more")
    return "\n".join(shown_ones)


def _by_number(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
