"""Python's regular expressions in ripgrep's words, wherever both mean the same by them."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, ClassVar, Literal

    Check = Literal["none", "wide", "all"]
    Translated = tuple[str, Check, bool]
    """(pattern, what to check, whether rg may watch for binary files)"""


# Characters whose case partners go beyond the two ASCII letters, as Python's re sees them.
_FOLDS = {"i": "[iI\u0130\u0131]", "s": "[sS\u017f]", "k": "[kK\u212a]"}


# With less in each match, a long line could hold so many that counting them takes too much memory.
_SHORTEST_COUNTED = 3


def rg_pattern(pattern: str, ignore_case: bool) -> Translated | None:
    """The same pattern for ripgrep, or None where the two engines may read it differently.

    Gives (text, check, watched): with ``check`` "none" ripgrep's lines are the answer; with "wide"
    those with a byte beyond ASCII, and with "all" every line, must be matched once more by Python.
    ``watched`` is whether rg may watch for binary files and count what it found: it takes a NUL
    for the end of a line then, which loses matches of patterns that a NUL fits.
    """
    try:
        parser = getattr(re, "_parser", None) or __import__("sre_parse")
        tree = parser.parse(pattern)
        flags = tree.state.flags
        ignore_case = ignore_case or bool(flags & re.IGNORECASE)
        if flags & (re.ASCII | re.LOCALE):
            return None
        translator = _Translator(ignore_case)
        text = translator.sequence(tree)
        watched = not translator.nul and tree.getwidth()[0] >= _SHORTEST_COUNTED
        return f"(?i){text}" if ignore_case else text, translator.check, watched
    except (_Different, RecursionError):
        return None


class _Different(Exception):
    """The two engines may disagree about this."""


class _Translator:
    """Writes a parsed Python pattern in ripgrep's syntax."""

    ANY = r"(?:.|(?-u:[\x80-\xff]))"
    WIDE = r"[^\x00-\x7f]|(?-u:[\x80-\xff])"
    CATEGORIES: ClassVar[dict[str, str]] = {
        "CATEGORY_DIGIT": "[0-9]", "CATEGORY_NOT_DIGIT": "[^0-9]",
        "CATEGORY_WORD": "[0-9A-Za-z_]", "CATEGORY_NOT_WORD": "[^0-9A-Za-z_]",
        "CATEGORY_SPACE": r"[\t\x0b\x0c\r\x1c-\x1f ]",
        "CATEGORY_NOT_SPACE": r"[^\t\x0b\x0c\r\x1c-\x1f ]",
    }  # fmt: skip

    def __init__(self, ignore_case: bool) -> None:
        self._fold = ignore_case
        self.check: Check = "wide" if ignore_case else "none"
        self.nul = False  # whether some part of it may fit a NUL

    def _wide(self) -> None:
        if self.check == "none":
            self.check = "wide"

    def sequence(self, items: Iterable[tuple[object, Any]]) -> str:
        return "".join(self._item(str(op), value) for op, value in items)

    def _item(self, op: str, value: Any) -> str:
        if op == "LITERAL":
            return self._literal(value)
        if op == "ANY":
            self._wide()
            self.nul = True
            return self.ANY
        if op == "NOT_LITERAL":
            self._wide()
            self.nul = True
            if self._fold:
                raise _Different
            return f"(?:[^{self._escape(value)}]|{self.WIDE})"
        if op == "IN":
            return self._set(value)
        if op == "BRANCH":
            return "(?:" + "|".join(self.sequence(branch) for branch in value[1]) + ")"
        if op == "SUBPATTERN":
            _, add, remove, inner = value
            if add or remove:
                raise _Different
            return f"(?:{self.sequence(inner)})"
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeat(*value)
        if op == "AT":
            return self._anchor(str(value))
        raise _Different

    def _repeat(self, low: int, high: int, inner: Iterable[tuple[object, Any]]) -> str:
        text = self.sequence(inner)
        most = None if str(high) == "MAXREPEAT" else high
        if low > 1000 or (most or 0) > 1000 or not text:
            raise _Different
        return f"(?:{text}){{{low},{'' if most is None else most}}}"

    def _anchor(self, where: str) -> str:
        if where in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
            return "^"
        if where in ("AT_END", "AT_END_STRING"):
            return "$"
        if where in ("AT_BOUNDARY", "AT_NON_BOUNDARY"):
            self.check = "all"  # left out here: ripgrep finds more lines, Python sorts them
            return "(?:)"
        raise _Different

    def _literal(self, value: int) -> str:
        char = chr(value)
        if char == "\n" or 0xD800 <= value <= 0xDFFF:
            raise _Different
        if self._fold:
            if value > 127:
                raise _Different
            return _FOLDS.get(char.lower(), self._escape(value))
        return self._escape(value)

    def _escape(self, value: int) -> str:
        char = chr(value)
        if char.isalnum() and value < 128:
            return char
        self.nul = self.nul or not value
        if value == 10 or 0xD800 <= value <= 0xDFFF:
            raise _Different
        return rf"\x{{{value:x}}}"

    def _set(self, items: Iterable[tuple[object, Any]]) -> str:
        negated, singles = False, ""
        wide: list[str] = []
        for op, value in items:
            name = str(op)
            if name == "NEGATE":
                negated = True
            elif name == "LITERAL":
                singles += self._escape(value)
                if self._fold and (value > 127 or chr(value).lower() in _FOLDS):
                    raise _Different
            elif name == "RANGE":
                low, high = value
                if self._fold or (low <= 0xDFFF and high >= 0xD800) or low <= 10 <= high:
                    raise _Different
                singles += self._escape(low) + "-" + self._escape(high)
            elif name == "CATEGORY" and str(value) in self.CATEGORIES:
                wide.append(self.CATEGORIES[str(value)])
                self.nul = self.nul or "_NOT_" in str(value)
            else:
                raise _Different
        if negated and wide:
            raise _Different
        if negated:
            self._wide()
            self.nul = True
            return f"(?:[^{singles}]|{self.WIDE})"
        options = ([f"[{singles}]"] if singles else []) + wide
        if wide:
            self._wide()
            options.append(self.WIDE)
        return "(?:" + "|".join(options) + ")"
