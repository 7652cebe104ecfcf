"""The few risks that only contents tell: install scripts, the first two bytes, a command named.

Reads little, from files that a sandbox may have written; what of a package cannot be read or
understood counts as the riskier of the two.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from functools import lru_cache

from podbot.changes.late import expression
from podbot.changes.model import Change, ChangeKind, Contents, FileType
from podbot.changes.risk._words import LIFECYCLE
from podbot.changes.risk.paths import home_depths, parts_of

MAX_PACKAGE = 1 << 20
"""The largest package.json that is looked into, in bytes."""


def install_scripts_changed(contents: Contents, change: Change) -> bool:
    """Whether a package.json has other scripts that npm runs by itself as it installs."""
    return bool(scripts_changed(contents, change, LIFECYCLE))


def scripts_changed(contents: Contents, change: Change, names: Iterable[str]) -> list[str]:
    """Which of these scripts of a package.json are others than before."""
    if change.new is None or change.new.type is not FileType.FILE:
        return []
    after = _scripts(contents, change, new=True)
    before: dict[str, object] | None = {}
    if change.old is not None and change.old.type is FileType.FILE:
        before = _scripts(contents, change, new=False)
        if before is None and after is not None:
            return list(names)
    if after is None:
        return list(names)
    return [name for name in names if after.get(name) != (before or {}).get(name)]


def _scripts(contents: Contents, change: Change, new: bool) -> dict[str, object] | None:
    try:
        with contents.open_new(change) if new else contents.open_old(change) as file:
            text = file.read(MAX_PACKAGE + 1)
        if len(text) > MAX_PACKAGE:
            return None
        package = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    scripts = package.get("scripts") if isinstance(package, dict) else None
    return scripts if isinstance(scripts, dict) else {}


MAX_SETTINGS = 64 << 10
"""How much of a tool's settings is looked at, in bytes."""

SETTINGS = frozenset(
    ("cfg", "conf", "config", "cue", "dhall", "hcl", "ini", "json", "json5", "jsonc", "kdl", "lua",
     "nix", "pkl", "plist", "properties", "rc", "ron", "star", "toml", "xml", "yaml", "yml")
)  # fmt: skip
"""How the names of tools' settings end."""

_NAMES_COMMAND = expression(
    rb"""^[\s\-{,]{0,80}["']?[\w.-]{0,40}
    (?:command|cmd|exec|run|script|hook|shell|program|executable|binary|entrypoint|plugin|loader
    |require|wrapper|runner|linker)s?
    (?:["']?\s{0,8}[:=]|\.[\w.-]{1,40}["']?\s{0,8}[:=])
    |^\s{0,8}\[{1,2}[\w."' -]{0,80}(?:script|hook|command|task)s?[\w."' -]{0,80}\]""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)


def may_be_settings(path: str) -> bool:
    """Whether a path of a target is where tools look for settings: a dot-file, one in a folder of
    dot-files, or a file at the top that is named like settings."""
    *folders, name = path.split("/")
    if name.startswith("."):
        return True
    is_named_so = "." not in name or name.rpartition(".")[2].lower() in SETTINGS
    near = folders[-2:]
    return is_named_so and (
        any(each.startswith(".") and "cache" not in each.lower() for each in near)
        or (not folders and "." in name)
    )


SCRIPTS = frozenset(
    ("awk", "cjs", "el", "fish", "hook", "janet", "jl", "js", "lua", "mjs", "nu", "php", "pl",
     "ps1", "py", "r", "rb", "scm", "tcl", "ts", "vim", "zsh")
)  # fmt: skip
"""How the names of what interpreters run end."""


def is_among_settings_of_home(change: Change) -> bool:
    """Whether a file lies where tools keep their settings at home: under a dot-name, at any depth.

    Not in caches, which are full of other people's files, nor in a project that lies there.
    """
    where = change.where
    return "/." in where and _holds_settings_of_home(change.target, where.rpartition("/")[0], where)


def _holds_settings_of_home(target: str, folder: str, where: str) -> bool:
    parts = parts_of(where)
    for depth in home_depths(parts):
        if len(parts) == depth + 1:
            return parts[depth].startswith(".")
    return _is_folder_of_settings(target, folder)


@lru_cache(maxsize=4096)
def _is_folder_of_settings(target: str, folder: str) -> bool:
    parts = parts_of(folder)
    for depth in home_depths(parts):
        names = parts[depth:]
        if not names or not names[0].startswith(".") or any("cache" in name for name in names):
            continue
        # The target may be such a folder itself; what is deeper, or has a .git, is a project.
        inside = len(parts_of(target)) - depth
        if inside <= 0 or (inside <= DEEPEST and not os.path.lexists(f"{target}/.git")):
            return True
    return False


DEEPEST = 2
"""How many names below a home folder a target may be and still be a folder of settings."""


@lru_cache(maxsize=4096)
def is_folder_of_tools(folder: str) -> bool:
    """Whether it is where a tool installs itself at home: ``~/.x`` and a folder or two below.

    Whatever the tool is called, its ``bin`` is on the PATH of who has it.
    """
    parts = parts_of(folder)
    return any(
        0 < len(parts) - depth <= DEEPEST + 1
        and parts[depth].startswith(".")
        and not any("cache" in name for name in parts[depth:])
        and not os.path.lexists(f"{folder}/.git")
        for depth in home_depths(parts)
    )


def is_program_text(path: str) -> bool:
    """Whether a name ends as those of scripts do."""
    return path.rpartition("/")[2].rpartition(".")[2].lower() in SCRIPTS and "." in path


def is_named_like_settings(path: str) -> bool:
    """Whether a name ends as those of settings do, or not at all."""
    name = path.rpartition("/")[2]
    stem, _, ending = name.rpartition(".")
    return not stem or ending.lower() in SETTINGS


def names_command(contents: Contents, change: Change) -> bool:
    """Whether settings say what to run; what cannot be read might."""
    if change.new is None or change.new.type is not FileType.FILE:
        return False
    try:
        with contents.open_new(change) as file:
            text = file.read(MAX_SETTINGS)
    except OSError:
        return False  # told where it is compared
    return text.startswith(b"#!") or _NAMES_COMMAND.search(text) is not None


def is_script(contents: Contents, change: Change) -> bool:
    """Whether a file without an ending is a script for an interpreter, though not executable."""
    name = change.path.rpartition("/")[2]
    if "." in name.lstrip(".") or change.new is None or change.new.type is not FileType.FILE:
        return False
    if change.new.size < 3 or change.kind is ChangeKind.HARD_LINK:
        return False
    try:
        with contents.open_new(change) as file:
            return file.read(2) == b"#!"
    except OSError:
        return False
