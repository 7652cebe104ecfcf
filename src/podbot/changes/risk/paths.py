"""Finding the rules a path fits, quickly and whatever the disk makes of its spelling.

Names are compared as the most forgiving file system would: without case, without code points that
are not shown, without what Windows cuts off. One that fits nothing here may still be flagged for
what it is (see `risk`). Only text is looked at, never the disk.
"""

from __future__ import annotations

import os
import pwd
import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from fnmatch import translate
from functools import lru_cache

from podbot.changes.risk.rules import FRESH_ROOTS, RULES, Level, Rule
from podbot.frozen import dataclass

# Windows' short names, as git guards them: see `is_ntfs_dotgit` and its siblings there.
_SHORT = {
    "git~1": ".git",
    **{f"gitmod~{n}": ".gitmodules" for n in range(1, 5)},
    "gi7eba~1": ".gitmodules",
    **{f"gitatt~{n}": ".gitattributes" for n in range(1, 5)},
    "gi7d29~1": ".gitattributes",
}
_SIMPLE = re.compile(r"[\w.+@-]*\w", re.ASCII)


@lru_cache(maxsize=16384)
def plain(name: str) -> str:
    """A name as the most forgiving disk would compare it."""
    if _SIMPLE.fullmatch(name):
        return name.lower()
    text = name
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        text = "".join(char for char in text if not _is_ignored(char))
    text = text.casefold()
    if ":" in text:  # Windows: the name of a stream within the file
        text = text.partition(":")[0] or text
    # Windows drops trailing dots and spaces; "." and ".." are never names here.
    text = text.rstrip(". ") or text
    return _SHORT.get(text, text)


def _is_ignored(char: str) -> bool:
    """Code points that HFS+, APFS or a case-folding ext4 do not count."""
    return unicodedata.category(char) == "Cf" or char in "\u034f\u115f\u1160\u17b4\u17b5\u3164" or (
        "\ufe00" <= char <= "\ufe0f" or "\u180b" <= char <= "\u180f"
    )  # fmt: skip


def parts_of(path: str) -> list[str]:
    """The names of a path, outermost first, each `plain`."""
    if "\\" in path:  # Windows takes it for a slash
        path = path.replace("\\", "/")
    parts = [plain(name) for name in path.split("/") if name]
    return _without_fresh_root(parts)


class _Start(Enum):
    ANYWHERE = ""
    ROOT = "/"
    HOME = "~/"


_ANYWHERE, _ROOT, _HOME = _Start.ANYWHERE, _Start.ROOT, _Start.HOME


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One pattern taken apart: names or expressions, and where they must stand."""

    order: int
    names: tuple[str | _Glob, ...]
    start: _Start
    below: bool

    def fits(self, parts: Sequence[str], at: int, homes: Sequence[int]) -> bool:
        """Whether it fits with its first name at a position."""
        length = len(self.names)
        end = at + length
        if at < 0 or (end >= len(parts) if self.below else end != len(parts)):
            return False
        return self._starts(at, homes) and self._names(parts, at, length)

    def leads_through(self, parts: Sequence[str], length: int, homes: Sequence[int]) -> bool:
        """Whether the path ends in its first names: a folder on the way to what it means."""
        at = len(parts) - length
        return at >= 0 and self._starts(at, homes) and self._names(parts, at, length)

    def reaches(self, parts: Sequence[str], at: int, homes: Sequence[int]) -> bool:
        """Whether it can fit something in this folder, with its first name at a position."""
        if self.below:
            return self.fits([*parts, ""], at, homes)
        length = len(parts) - at
        is_next = at >= 0 and length + 1 == len(self.names)
        return is_next and self._starts(at, homes) and self._names(parts, at, length)

    def begins(self, parts: Sequence[str], at: int) -> bool:
        """Whether its names stand at a position, whatever follows."""
        return self._names(parts, at, len(self.names))

    def _starts(self, at: int, homes: Sequence[int]) -> bool:
        if self.start is _ANYWHERE:
            return True
        return at == 0 if self.start is _ROOT else at in homes

    def _names(self, parts: Sequence[str], at: int, length: int) -> bool:
        for wanted, name in zip(self.names[:length], parts[at : at + length], strict=True):
            if isinstance(wanted, str):
                if wanted != name:
                    return False
            elif not wanted.fits(name):
                return False
        return True

    @property
    def is_particular(self) -> bool:
        """Whether a folder on the way says by its name alone what it is for."""
        first = self.names[0]
        named = isinstance(first, str) and first.startswith(".")
        return named or self.start is not _ANYWHERE or (self.below and len(self.names) == 1)


class _Glob:
    """A name that is known in part.

    Nearly all are a beginning and an end, which takes no expression: to compile one for each would
    be most of what it takes to look at a small run.
    """

    def __init__(self, text: str):
        self._start, _, self._end = text.partition("*")
        self._least = len(self._start) + len(self._end)
        self._text = text if any(mark in self._start + self._end for mark in "*?[") else None
        self._whole: re.Pattern[str] | None = None

    def fits(self, name: str) -> bool:
        """Whether a name is one of those."""
        if self._text is None:
            is_long_enough = len(name) >= self._least
            return is_long_enough and name.startswith(self._start) and name.endswith(self._end)
        if self._whole is None:
            self._whole = re.compile(translate(self._text))
        return self._whole.match(name) is not None


def _taken_apart(order: int, text: str) -> _Pattern:
    # In few steps: there are many hundreds of them at every start.
    start = _ANYWHERE
    if text[0] == "/":
        start, text = _ROOT, text[1:]
    elif text[:2] == "~/":
        start, text = _HOME, text[2:]
    names: list[str | _Glob] = [*text.split("/")]
    below = names[-1] == "**"
    if below:
        names.pop()
    if "*" in text:
        names = [_Glob(name) if "*" in name else name for name in text.split("/")[: len(names)]]
    return _Pattern(order, tuple(names), start, below)


class _Table:
    """All patterns, found by a name that must occur, or tried on the last name alone."""

    def __init__(self, rules: Sequence[Rule]):
        self._rules = rules
        self._by_name: dict[str, list[tuple[_Pattern, int]]] = {}
        self._on_the_way: dict[str, list[tuple[_Pattern, int]]] = {}
        loose: list[tuple[int, str]] = []
        for order, rule in enumerate(rules):
            for text in rule.patterns:
                pattern = _taken_apart(order, text)
                if pattern.is_particular:
                    self._note_folders(pattern)
                exact = [i for i, name in enumerate(pattern.names) if isinstance(name, str)]
                if exact:
                    name = pattern.names[exact[-1]]
                    assert isinstance(name, str)  # noqa: S101 - chosen so, above
                    self._by_name.setdefault(name, []).append((pattern, exact[-1]))
                elif pattern.start is _HOME:
                    self._by_name.setdefault("", []).append((pattern, 0))
                else:
                    loose.append((order, text))
        self._starts: tuple[str, ...] = ()
        self._ends: dict[str, tuple[str, ...]] = {}
        self._within: tuple[str, ...] = ()
        for _, text in loose:
            self._note_literals(text)
        self._loose = _Loose(loose)

    def _note_folders(self, pattern: _Pattern) -> None:
        """Remember the last name of each folder on the way; one that varies tells too little."""
        for length in range(1, len(pattern.names) + (1 if pattern.below else 0)):
            name = pattern.names[length - 1]
            if isinstance(name, str):
                self._on_the_way.setdefault(name, []).append((pattern, length))

    def fitting(self, parts: Sequence[str], homes: Sequence[int]) -> dict[Level, Rule]:
        """The first rule of each level that a path fits."""
        if not parts:
            return {}
        found: list[int] = []
        by_name = self._by_name
        for at, name in enumerate(parts):
            for pattern, key in by_name.get(name, ()):
                if pattern.fits(parts, at - key, homes):
                    found.append(pattern.order)
        if homes:
            for pattern, _ in by_name.get("", ()):
                found += [pattern.order for at in homes if pattern.fits(parts, at, homes)]
        if self._may_be_loose(parts[-1]):
            loose = self._loose.order(parts[-1])
            if loose is not None:
                found.append(loose)
        return self._first(found)

    def knows(self, name: str) -> bool:
        """Whether any pattern is about things of this name, wherever they lie."""
        return name in self._by_name or self._may_be_loose(name)

    def is_quiet(self, parts: Sequence[str], homes: Sequence[int]) -> bool:
        """Whether no pattern fits things because they lie in this folder."""
        if homes and len(parts) in homes:
            return False  # some only ask for a home folder
        return not any(
            pattern.reaches(parts, at - key, homes)
            for at, name in enumerate(parts)
            for pattern, key in self._by_name.get(name, ())
        )

    def _may_be_loose(self, name: str) -> bool:
        """Whether it is worth trying those: a quick look at how the name begins and ends."""
        if name.endswith(self._ends.get(name.rpartition(".")[2], ())):
            return True
        if name.startswith(self._starts):
            return True
        for word in self._within:  # noqa: SIM110 - thousands of names, and here it is quicker
            if word in name:
                return True
        return False

    def _note_literals(self, text: str) -> None:
        """Remember what a name must have to fit a loose pattern, whichever part tells most."""
        start, *inner, end = text.split("*")
        if len(start) > len(end):
            self._starts += (start,)
        elif "." in end:
            ending = end.rpartition(".")[2]
            self._ends[ending] = (*self._ends.get(ending, ()), end)
        else:
            self._within += (end or max(inner, key=len, default=""),)

    def leading(self, parts: Sequence[str], homes: Sequence[int]) -> dict[Level, Rule]:
        """The same for a path that is a folder on the way to what a rule means."""
        if not parts:
            return {}
        return self._first(
            [
                pattern.order
                for pattern, length in self._on_the_way.get(parts[-1], ())
                if pattern.leads_through(parts, length, homes)
            ]
        )

    def _first(self, orders: list[int]) -> dict[Level, Rule]:
        found: dict[Level, Rule] = {}
        for order in sorted(orders):
            found.setdefault(self._rules[order].level, self._rules[order])
        return found


class _Loose:
    """All that only know a part of the last name; the first that fits wins."""

    def __init__(self, texts: Sequence[tuple[int, str]]):
        self._globs = [(order, _Glob(text)) for order, text in texts]

    @lru_cache(maxsize=16384)  # noqa: B019 - the one table there is lives as long as we do
    def order(self, name: str) -> int | None:
        """Which rule is the first to fit a name."""
        return next((order for order, glob in self._globs if glob.fits(name)), None)


_TABLE = _Table(RULES)
_FRESH = [_taken_apart(0, text) for text in FRESH_ROOTS]


def fitting(parts: Sequence[str]) -> dict[Level, Rule]:
    """The first rule of each level that a path (see `parts_of`) fits."""
    return _TABLE.fitting(parts, home_depths(parts))


def leading(parts: Sequence[str]) -> dict[Level, Rule]:
    """The same for a folder on the way to what a rule means, such as ``.vscode``."""
    return _TABLE.leading(parts, home_depths(parts))


def is_quiet(parts: Sequence[str]) -> bool:
    """Whether things in a folder fit no rule because of where they lie."""
    return _TABLE.is_quiet(parts, home_depths(parts))


def is_known_name(name: str) -> bool:
    """Whether there may be rules for things of this `plain` name, in some folders or in all."""
    return _TABLE.knows(name)


def home_depths(parts: Sequence[str]) -> list[int]:
    """How many names in a path are those of a home folder: of this user's or of another's."""
    depths = []
    if parts[:1] == ["root"]:
        depths.append(1)
    elif len(parts) > 1 and parts[0] == "home":
        depths.append(2)
    for home in _homes(os.environ.get("HOME", "")):
        if len(home) not in depths and list(parts[: len(home)]) == home:
            depths.append(len(home))
    return depths


@lru_cache(maxsize=4)
def _homes(home: str) -> list[list[str]]:
    found = {home} if os.path.isabs(home) else set()
    with suppress(KeyError):  # a user without an entry
        found.add(pwd.getpwuid(os.getuid()).pw_dir)
    found |= {os.path.realpath(one) for one in found}
    return [[plain(name) for name in one.split("/") if name] for one in found if one != "/"]


def _without_fresh_root(parts: list[str]) -> list[str]:
    """Cut off what lies above the innermost fresh root; a mark keeps the rest from the root."""
    if "worktrees" not in parts:
        return parts
    ends = [
        at + len(pattern.names)
        for pattern in _FRESH
        for at in range(len(parts) - len(pattern.names))
        if pattern.begins(parts, at)
    ]
    return ["\0", *parts[max(ends) :]] if ends else parts
