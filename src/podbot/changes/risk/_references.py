"""What files that run by themselves name in turn: a rule where a list is never complete.

An `.envrc` of the host sources a script, a task of an editor starts one, a list of checks names a
tool, an instruction file imports another page: changing what is named changes what runs. The same,
one level down, for what a build server and the installing of a package start. Reads the host's own
files, within bounds and roughly, a few steps far; rather too much than too little. Runs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from podbot.changes.risk._reading import Pointer, beneath, names_in, start_of
from podbot.changes.risk._words import (
    LIFECYCLE,
    Words,
    is_code,
    is_of_tasks,
    run_with,
    scripts_of,
    words_of,
)
from podbot.changes.risk.paths import fitting, is_known_name, leading, parts_of, plain
from podbot.changes.risk.rules import FOLLOWED, LISTED_CHECKS, Level
from podbot.frozen import dataclass

MAX_FOLDERS = 200
"""In how many folders files that run by themselves are looked for."""
MAX_FILES = 200
"""How many files are read, with those they name."""
MAX_USED = 60
"""How many of them may be files that only run when used."""
MAX_STEPS = 3
"""How many files may stand between what runs by itself and what counts because of it."""
MAX_DEEP = 4
"""How deep in a folder of settings files are looked for."""
MAX_INNER = 60
"""How many folders within one folder of settings are looked into."""
MAX_TEXT = 64 << 10
"""How much of one file is looked at, in bytes."""
MAX_NAMED = 2_000
"""How many places count for all of them together."""

_PACKAGE = "package.json"
_LEFT_OUT = frozenset({".git", "workspace.xml"})
"""What git stores is looked at elsewhere; JetBrains' workspace lists the files that are open."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A file to read, which file began it, and how many steps ago; ``top`` is where tools start."""

    file: str
    first: str
    step: int
    level: Level
    top: str


def named_by_what_runs(folders: Iterable[str], top: str, has_hooks: bool) -> Iterator[Pointer]:
    """What files of the host in these folders name that run by themselves there.

    ``top`` is where tools start that are given no other folder; ``has_hooks`` says that git runs
    the lists of checks.
    """
    found = [
        Reader(file, os.path.basename(file), 1, level, top)
        for folder in list(folders)[:MAX_FOLDERS]
        for file, level in _running(folder, has_hooks)
    ]
    yield from follow([each for each in found if each.level is Level.BY_ITSELF])
    yield from follow([each for each in found if each.level is Level.WHEN_USED][:MAX_USED])


def follow(waiting: list[Reader]) -> Iterator[Pointer]:
    """What files name, and what these name in turn."""
    seen: set[str] = set()
    named = 0
    while waiting and len(seen) < MAX_FILES and named < MAX_NAMED:
        reader = waiting.pop(0)
        if reader.file in seen:
            continue
        seen.add(reader.file)
        for pointer in _pointers(reader):
            named += 1
            yield pointer
            place = pointer.place
            if reader.step < MAX_STEPS and not (pointer.below or pointer.only) and _loads(place):
                waiting.append(
                    Reader(place, reader.first, reader.step + 1, reader.level, reader.top)
                )


def why(first: str, level: Level) -> str:
    """The reason of what is named by a file of the host."""
    if level is Level.BY_ITSELF:
        return f"{first} on this host runs by itself and names it"
    return f"{first} on this host names it"


def _running(folder: str, has_hooks: bool) -> Iterator[tuple[str, Level]]:
    """The files of a folder, and of folders of settings in it, that run by themselves."""
    for name, _ in names_in(folder):
        if not (name.startswith(".") or is_known_name(plain(name))) or name in _LEFT_OUT:
            continue
        path = f"{folder}/{name}"
        parts = parts_of(path)
        level = _level(parts, has_hooks)
        if level is not None:
            yield path, level
        if name.startswith("."):
            yield from _in_settings(path, parts, has_hooks)


def _in_settings(top: str, parts: list[str], has_hooks: bool) -> Iterator[tuple[str, Level]]:
    """The files in a folder of settings, which may lie some folders deep."""
    waiting = [(top, parts, 1)]
    yielded = looked = 0
    while waiting and yielded < MAX_FILES and looked < MAX_INNER:
        folder, above, depth = waiting.pop(0)
        looked += 1
        if _level([*above, "any"], has_hooks) is None and not _leads(above):
            continue
        for name, is_link in names_in(folder)[:MAX_FILES]:
            if name in _LEFT_OUT:
                continue
            path, inner = f"{folder}/{name}", [*above, plain(name)]
            if "." not in name.lstrip(".") and not is_link and os.path.isdir(path):
                if depth < MAX_DEEP:
                    waiting.append((path, inner, depth + 1))
                continue
            level = _level(inner, has_hooks)
            if level is not None:
                yielded += 1
                yield path, level


def _leads(parts: list[str]) -> bool:
    rules = leading(parts)
    return any(level is Level.BY_ITSELF or rule.reason in FOLLOWED for level, rule in rules.items())


def _level(parts: list[str], has_hooks: bool) -> Level | None:
    """How what a file names runs; None if it does not follow from the file."""
    rules = fitting(parts)
    if Level.BY_ITSELF in rules:
        return Level.BY_ITSELF
    reasons = {rule.reason for rule in rules.values()}
    if has_hooks and LISTED_CHECKS in reasons:
        return Level.BY_ITSELF
    # What a script of Python's imports is mostly the project itself.
    is_followed = not reasons.isdisjoint(FOLLOWED) and not parts[-1].endswith(".py")
    return Level.WHEN_USED if is_followed else None


def _pointers(reader: Reader) -> Iterator[Pointer]:
    text = start_of(reader.file, MAX_TEXT)
    if not text or "\0" in text:
        return
    if os.path.basename(reader.file) == _PACKAGE and reader.step == 1:
        yield from _of_scripts(run_with(scripts_of(text), LIFECYCLE), reader)
        return
    is_first = reader.step == 1 and (
        reader.level is Level.BY_ITSELF or os.path.basename(reader.file).startswith(".")
    )
    yield from pointers_of(words_of(reader.file, text, is_first=is_first), reader)


def pointers_of(words: Words, reader: Reader) -> Iterator[Pointer]:
    """The places that words can mean, of those that lie within reach of the tools."""
    reason, top = why(reader.first, reader.level), reader.top
    folder = os.path.dirname(reader.file)
    starts = [top] if folder == top else [top, folder]
    starts += [
        place for given in words.starts for place in _meant(given, starts) if place not in starts
    ]
    # What a build goes over is most of a project.
    folders = words.below if reader.level is Level.BY_ITSELF else ()
    for below, given in ((False, words.names), (True, folders)):
        for word in given:
            for place in _meant(word, starts) if word != "." else starts:
                if place == reader.file:
                    continue
                if not f"{top}/".startswith(f"{place}/"):
                    yield Pointer(place, reason, below, reader.level)
                elif below and place == top:
                    # Not all that lies anywhere below: then it would be everything.
                    yield Pointer(place, reason, level=reader.level, only=True)
    for start in starts:
        for name in words.tasks:
            yield Pointer(f"{start}/{name}", reason, level=reader.level)
        if words.scripts:
            yield from _called(f"{start}/{_PACKAGE}", words.scripts, reader)


def _called(package: str, words: frozenset[str], reader: Reader) -> Iterator[Pointer]:
    """What the scripts of a package name that are called, and the package for their sake."""
    scripts = scripts_of(start_of(package))
    called = run_with(scripts, [name for name in scripts if name in words])
    if called:
        reason = f"{reader.first} on this host runs a script of it that changed"
        yield Pointer(package, reason, level=reader.level, scripts=frozenset(called))
        first = Reader(package, reader.first, reader.step, reader.level, os.path.dirname(package))
        yield from _of_scripts(called, first)


def _of_scripts(called: dict[str, str], reader: Reader) -> Iterator[Pointer]:
    text = "\n".join(called.values())
    words = words_of("package.sh", text, is_first=True)
    yield from pointers_of(
        Words(words.names, words.below, words.starts, words.tasks),
        Reader(reader.file, reader.first, reader.step, reader.level, os.path.dirname(reader.file)),
    )


def _meant(word: str, starts: list[str]) -> Iterator[str]:
    """The places a word can mean, for a tool that starts in one of some folders."""
    word = word.removeprefix("file://")
    if word.startswith("%h/"):  # what systemd calls the home folder
        word = f"~{word[2:]}"
    if word.startswith("$"):  # some variable, and then a path
        word = word.partition("/")[2]
    if not word or word in (".", "..") or word.startswith("-") or "\0" in word:
        return
    word = os.path.expanduser(word)
    if word.startswith("/"):
        yield os.path.normpath(word)
        word = word.lstrip("/")  # what `${…}/` and `$(…)/` left over
    for start in starts if word else ():
        yield beneath(start, word)


def _loads(path: str) -> bool:
    """Whether a file of the host is one that loads others: by its name, or how it begins."""
    return is_code(path) or is_of_tasks(path) or start_of(path, 2) == "#!"
