"""Which folders of a target git ignores, by the ignore files of the host.

Only what lies on the host counts: a sandbox must not be able to say what is not worth a look. Git
itself is not run, as the settings of a repository can name programs. Folders alone are judged, and
for showing only: a rule that is read otherwise than by git costs a line more or less on a screen.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Sequence

from podbot.frozen import dataclass

MAX_FILE = 256 << 10
"""Bytes of an ignore file that are read."""


Part = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class _Rule:
    """A line of an ignore file; a part that is None stands for any number of folders."""

    parts: tuple[Part | None, ...]
    by_path: bool
    keeps: bool

    def fits(self, names: Sequence[str]) -> bool:
        """Whether it means this path, told from the folder that the file lies in."""
        at = self._after_any({0})
        for name in names if self.by_path else names[-1:]:
            fitting = {place for place in at if place < len(self.parts)}
            stay = {place for place in fitting if self.parts[place] is None}
            step = {place + 1 for place in fitting if (part := self.parts[place]) and part(name)}
            at = self._after_any(stay | step)
        return len(self.parts) in at

    def _after_any(self, places: set[int]) -> set[int]:
        skipped = {p + 1 for p in places if p < len(self.parts) and self.parts[p] is None}
        return places | skipped


class Ignored:
    """The ignore files on the way to the folders of some targets, each read once."""

    def __init__(self, targets: Sequence[str]):
        self._tops = {target: _repository(target) for target in targets}
        self._rules: dict[str, tuple[_Rule, ...]] = {}

    def is_ignored(self, target: str, folder: str) -> bool:
        """Whether the last rule that fits a folder (an absolute path) says so."""
        top = self._tops[target]
        if top is None:
            return False
        verdict = False
        at = top
        names = folder[len(top) + 1 :].split("/")
        for depth, name in enumerate(names):
            for rule in self._rules_of(at, at == top):
                if rule.fits(names[depth:]):
                    verdict = not rule.keeps
            at = f"{at}/{name}"
        return verdict

    def _rules_of(self, folder: str, is_top: bool) -> tuple[_Rule, ...]:
        known = self._rules.get(folder)
        if known is None:
            own = f"{folder}/.git/info/exclude"
            lines = [*(_lines(own) if is_top else ()), *_lines(f"{folder}/.gitignore")]
            known = self._rules[folder] = tuple(
                rule for line in lines if (rule := _rule(line)) is not None
            )
        return known


def ignores_all(text: bytes) -> bool:
    """Whether the ignore file of a folder says that nothing in it is to be kept."""
    rules = [line.strip() for line in text.splitlines() if not line.startswith(b"#")]
    return b"*" in rules and not any(line.startswith(b"!") for line in rules)


def _repository(target: str) -> str | None:
    at = target
    while at:
        if os.path.isdir(f"{at}/.git"):
            return at
        at = at.rpartition("/")[0]
    return None


def _lines(path: str) -> list[str]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return os.fsdecode(file.read(MAX_FILE)).splitlines()
    except OSError:
        return []


def _rule(line: str) -> _Rule | None:
    text = line.rstrip()
    keeps = text.startswith("!")
    text = text.removeprefix("!").removesuffix("/")
    if not text.strip("/") or text.startswith("#"):
        return None
    parts = tuple(
        # Its stars do not backtrack: a hostile name cannot make this slow.
        None if part == "**" else re.compile(fnmatch.translate(_plain(part))).match
        for part in text.removeprefix("/").split("/")
    )
    return _Rule(parts, "/" in text, keeps)


def _plain(part: str) -> str:
    """Without backslashes, which mean that what follows stands for itself."""
    return re.sub(r"\\(.)", lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], part)
