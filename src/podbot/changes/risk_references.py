"""What files that run by themselves name in turn: a rule where a list is never complete.

An `.envrc` of the host sources a script, a task of an editor starts one, a list of checks names a
tool, an instruction file imports another page: changing what is named changes what runs. Reads the
host's own files, within bounds and roughly, a few steps far; rather too much than too little.
Runs nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from podbot.changes.late import expression
from podbot.changes.risk_paths import fitting, is_known_name, parts_of, plain
from podbot.changes.risk_reading import Pointer, beneath, names_in, start_of
from podbot.changes.risk_rules import LISTED_CHECKS, Level

MAX_FOLDERS = 200
"""In how many folders files that run by themselves are looked for."""
MAX_FILES = 200
"""How many files are read, with those they name."""
MAX_STEPS = 3
"""How many files may stand between what runs by itself and what counts because of it."""
MAX_TEXT = 64 << 10
"""How much of one file is looked at, in characters."""
MAX_NAMED = 2_000
"""How many places count for all of them together."""

_SETTINGS = expression(
    r"\.(?:jsonc?|json5|toml|ya?ml|xml|iml|ini|cfg|conf|pkl|kdl|plist|code-workspace|hcl)$",
    re.IGNORECASE,
)
_PAGES = expression(r"\.(?:md|mdc|markdown|txt|rst)$|rules$", re.IGNORECASE)
_CODE = expression(
    r"\.(?:sh|bash|zsh|ksh|fish|csh|py|js|cjs|mjs|ts|rb|pl|php|lua|r|jl|vim|el|tcl|awk|nu|ps1)$",
    re.IGNORECASE,
)
_COMMENT = expression(r"^[ \t]*(?:#(?!!)|//|--|;|\")[^\n]*", re.MULTILINE)
_WORD = expression(r"[^\s\"'`;&|()<>{}\[\]=!,]+")
_STARTERS = (
    r"\.|source|source_env|source_env_if_exists|dotenv|dotenv_if_exists|exec|eval|command|env|"
    r"nohup|sudo|bash|sh|zsh|dash|ksh|fish|python[\d.]*|node|deno|bun|tsx|ruby|perl|php|lua|"
    r"Rscript|uv|npx|run"
)
_LOADED = expression(
    rf"(?:^|[\s;&|({{`])(?:{_STARTERS})[ \t]+(?:-[^\s]+[ \t]+)*"
    r"(\"[^\"\n]+\"|'[^'\n]+'|[^\s;&|)\"'`]+)",
    re.MULTILINE,
)
_CALLED = expression(
    r"\b(?:source|load|sys\.source|dofile|loadfile|require|require_relative|include|import|from|"
    r"execfile|run_path|spawn|readfile)\b\s*\(?\s*[\"']([^\"'\n]+)[\"']"
)
_IMPORTED = expression(r"^[ \t]*(?:import|from)[ \t]+([\w.]+)", re.MULTILINE)
_FOLDERS = expression(
    r"(?:^|[\s;&|])(?:PATH_add|path_add|load_prefix|use_nix|layout)[ \t]+(\S+)", re.MULTILINE
)
_COMMAND = expression(
    # No more is asked of what stands before the word: it would be tried at every character.
    r"(?:command|cmd|program|script|executable|binary|exec|run|entry|entrypoint|"
    r"args|hook|tool|shell|runtime|interpreter|path|server|task|main|plugin|extends|file)s?"
    r"[\"']?\s*[:=]\s*(\[[^\]]{0,1000}\]?|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[^\n]*)",
    re.IGNORECASE,
)
_IMPORTED_PAGE = expression(r"(?:^|\s)@([\w./~-]*[\w])", re.MULTILINE)


def named_by_what_runs(folders: Iterable[str], top: str, has_hooks: bool) -> Iterator[Pointer]:
    """What files of the host in these folders name that run by themselves there.

    ``top`` is where tools start that are given no other folder; ``has_hooks`` says that git runs
    the lists of checks.
    """
    waiting = [
        (file, os.path.basename(file), 1)
        for folder in list(folders)[:MAX_FOLDERS]
        for file in _running(folder, has_hooks)
    ]
    yield from follow(waiting, top)


def follow(waiting: list[tuple[str, str, int]], top: str) -> Iterator[Pointer]:
    """What files name: each is given with the name of what began it, and how many steps ago."""
    seen: set[str] = set()
    named = 0
    while waiting and len(seen) < MAX_FILES and named < MAX_NAMED:
        file, first, step = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        reason = f"{first} on this host runs by itself and names it"
        for place, below in _places(file, top, is_first=step == 1):
            if place == file or f"{top}/".startswith(f"{place}/"):
                continue
            named += 1
            yield Pointer(place, reason, below=below)
            if step < MAX_STEPS and not below and _is_code(place):
                waiting.append((place, first, step + 1))


def _running(folder: str, has_hooks: bool) -> Iterator[str]:
    """The files of a folder, and of folders of settings in it, that run by themselves."""
    for name, _ in names_in(folder):
        if not (name.startswith(".") or is_known_name(plain(name))) or name == ".git":
            continue
        path = f"{folder}/{name}"
        parts = parts_of(path)
        if _counts(parts, has_hooks):
            yield path
        elif name.startswith(".") and _counts([*parts, "any"], has_hooks):
            for inner, _ in names_in(path)[:MAX_FILES]:
                if _counts([*parts, plain(inner)], has_hooks):
                    yield f"{path}/{inner}"


def _counts(parts: list[str], has_hooks: bool) -> bool:
    rules = fitting(parts)
    if Level.BY_ITSELF in rules:
        return True
    return has_hooks and any(rule.reason == LISTED_CHECKS for rule in rules.values())


def _places(file: str, top: str, *, is_first: bool) -> Iterator[tuple[str, bool]]:
    """The places a file names, and whether all below each counts."""
    text = start_of(file)[:MAX_TEXT]
    if not text or "\0" in text:
        return
    folder = os.path.dirname(file)
    for word, below in dict.fromkeys(_words(file, text, is_first=is_first)):
        for place in _meant(word, folder, top):
            yield place, below


def _words(file: str, text: str, *, is_first: bool) -> Iterator[tuple[str, bool]]:
    if _PAGES.search(file):
        yield from ((word, False) for word in _IMPORTED_PAGE.findall(text))
        return
    if _SETTINGS.search(file):
        for value in _COMMAND.findall(text):
            yield from ((word, False) for word in _WORD.findall(value) if _is_path(word))
        return
    text = _COMMENT.sub("", text)
    for found in (*_LOADED.findall(text), *_CALLED.findall(text)):
        yield found.strip("\"'"), False
    for module in _IMPORTED.findall(text):
        name = module.strip(".").replace(".", "/")
        yield from ((f"{name}{ending}", False) for ending in (".py", "/__init__.py"))
    for found in _FOLDERS.findall(text):
        yield found.strip("\"'"), True
    if is_first:
        yield from ((word, False) for word in _WORD.findall(text) if "/" in word)


def _is_path(word: str) -> bool:
    return "/" in word or _CODE.search(word) is not None or _SETTINGS.search(word) is not None


def _meant(word: str, folder: str, top: str) -> Iterator[str]:
    """The places a word can mean, for a tool that starts at the top or beside the file."""
    word = word.removeprefix("file://")
    if word.startswith("$"):  # some variable, and then a path
        word = word.partition("/")[2]
    if not word or word in (".", "..") or word.startswith("-") or "\0" in word:
        return
    word = os.path.expanduser(word)
    if word.startswith("/"):
        yield os.path.normpath(word)
        return
    yield beneath(top, word)
    if folder != top:
        yield beneath(folder, word)


def _is_code(path: str) -> bool:
    """Whether a file of the host is one that loads others: by its name, or how it begins."""
    return _CODE.search(path) is not None or start_of(path)[:2] == "#!"
