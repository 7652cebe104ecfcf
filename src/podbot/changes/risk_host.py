"""What on this host already points at a path: then changing it changes what runs.

A hook that is a link to a script of the project, a dotfile linked from the home folder, a folder
on ``PATH``, a script named in git's settings: none can be told by the path of the change alone.
Reads the host's own links, settings and environment, bounded; runs nothing and opens nothing that a
sandbox made.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping

from podbot.changes.risk_git import Finding
from podbot.changes.risk_paths import fitting, parts_of
from podbot.changes.risk_rules import Level

MAX_ENTRIES = 5_000
"""How many names of one folder are looked at."""
MAX_SETTINGS = 1 << 20
"""How much of a setting file is read, in bytes."""

_SYSTEM = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/snap/bin"})
"""Folders on PATH whose links are the system's own."""
_NOT_NAMED = frozenset({"_", "PWD", "OLDPWD", "PATH", "PYTEST_CURRENT_TEST"})
_LIBRARIES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "GCONV_PATH")


class Host:
    """What this host does with paths below the targets, looked up once."""

    def __init__(self, targets: Iterable[str], environment: Mapping[str, str] = os.environ):
        self._environment = environment
        self.path_folders, self.relative_path = _path_folders(environment.get("PATH", ""))
        self._above_path = {above for folder in self.path_folders for above in _and_above(folder)}
        self._named = dict(_named_by_environment(environment))
        self._libraries = {
            os.path.realpath(folder)
            for name in _LIBRARIES
            for folder in environment.get(name, "").split(":")
            if os.path.isabs(folder)
        }
        self._below: dict[str, str] = {}
        home = environment.get("HOME", "")
        tops = [top for target in targets for top in dict.fromkeys((target, _work_tree(target)))]
        for top in dict.fromkeys(tops):
            self._look_at_repository(top)
        for folder in dict.fromkeys([*tops, home, f"{home}/.config", *self._links_of_path()]):
            self._look_at_links(folder)

    def pointed_at(self, where: str) -> Finding | None:
        """Why the host would run or obey what lies at an absolute path, if it does."""
        reason = self._named.get(where)
        if reason is None and self._below:
            for above in _and_above(where):
                if above in self._below:
                    reason = self._below[above]
                    break
        return None if reason is None else (Level.BY_ITSELF, reason)

    def is_on_path(self, where: str) -> bool:
        """Whether it lies in a folder that commands are looked for in."""
        folder, _, _ = where.rpartition("/")
        return folder in self.path_folders or any(
            folder.endswith(f"/{relative}") for relative in self.relative_path
        )

    def leads_to_path(self, where: str) -> bool:
        """Whether it is such a folder, or one above it."""
        return where in self._above_path

    def is_loaded(self, where: str) -> bool:
        """Whether it lies in a folder that libraries are loaded from first."""
        return where.rpartition("/")[0] in self._libraries

    def _links_of_path(self) -> list[str]:
        return [folder for folder in self.path_folders if folder not in _SYSTEM]

    def _look_at_links(self, folder: str) -> None:
        """Links with a telling name, such as ``~/.bashrc`` to a file kept elsewhere."""
        on_path = folder in self.path_folders
        for name, path in _links(folder):
            # Named like a file that is obeyed, or like a folder of which all is.
            names = parts_of(path)
            rules = fitting(names) | fitting([*names, "any"])
            if Level.BY_ITSELF in rules:
                says = rules[Level.BY_ITSELF].reason
            elif on_path and not os.path.isdir(path):
                says = "it is a command on your PATH"
            else:
                continue
            self._points(os.path.realpath(path), f"{name} on this host is a link to it: {says}")

    def _look_at_repository(self, top: str) -> None:
        """Hooks and settings of the repository a target lies in."""
        for data in _git_folders(top):
            if os.path.islink(f"{data}/hooks"):
                reason = "the host's git takes its hooks from this folder"
                self._points(os.path.realpath(f"{data}/hooks"), reason)
            for name, path in _links(f"{data}/hooks"):
                reason = f"the git hook {name} on this host is a link to it"
                self._points(os.path.realpath(path), reason)
            for key, value in _settings(f"{data}/config"):
                self._obey_setting(top, key, value)

    def _obey_setting(self, top: str, key: str, value: str) -> None:
        folder = os.path.expanduser(value)
        if key == "hookspath":
            self._points(_beneath(top, folder), "the host's git takes its hooks from this folder")
            return
        for word in re.split(r"[\s\"';&|()=]+", value):
            if "/" in word or "." in word:
                place = _beneath(top, os.path.expanduser(word))
                if place != top:
                    self._named.setdefault(place, "the host's git settings name it")

    def _points(self, place: str, reason: str) -> None:
        self._below.setdefault(place, reason)


def _beneath(top: str, path: str) -> str:
    return os.path.normpath(os.path.join(top, path))


def _and_above(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _path_folders(value: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """The absolute folders on PATH, as written and as they really are; and the relative ones."""
    written = value.split(":") if value else []
    absolute = {os.path.normpath(folder) for folder in written if os.path.isabs(folder)}
    absolute |= {os.path.realpath(folder) for folder in absolute}
    relative = {os.path.normpath(folder) for folder in written if not os.path.isabs(folder)}
    return frozenset(absolute), tuple(sorted(relative))


def _named_by_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Paths that are the value of a variable, such as BASH_ENV or PYTHONSTARTUP."""
    for name, value in environment.items():
        if name in _NOT_NAMED or "/" not in value:
            continue
        for word in re.split(r"[:\s]+", value):
            if word.startswith("/") and word != "/":
                yield os.path.realpath(word), f"your environment names it, in {name}"


def _links(folder: str) -> Iterator[tuple[str, str]]:
    try:
        with os.scandir(folder or "/nonexistent") as entries:
            for count, entry in enumerate(entries):
                if count >= MAX_ENTRIES:
                    return
                if entry.is_symlink():
                    yield entry.name, entry.path
    except OSError:
        return  # not there, or not ours to read: then nothing of the user's is in it


def _work_tree(target: str) -> str:
    """The nearest folder at or above a target that has a ``.git``; the target itself if none."""
    for folder in _and_above(target):
        if os.path.lexists(f"{folder}/.git"):
            return folder
    return target


def _git_folders(top: str) -> list[str]:
    """Where git keeps hooks and settings for a folder: its own data, and what that shares."""
    data = f"{top}/.git"
    pointer = _read(data)
    if pointer.startswith("gitdir:"):
        data = _beneath(top, pointer.removeprefix("gitdir:").strip())
    shared = _read(f"{data}/commondir").strip()
    return [data, _beneath(data, shared)] if shared else [data]


_SECTION = re.compile(r"\s*\[\s*([\w.-]+)")
_SETTING = re.compile(r"\s*(?:\[[^\]]*\]\s*)?([\w-]+)\s*=\s*(.*)")
_HARMLESS = frozenset({"remote", "branch", "user", "submodule", "color", "push", "pull", "init"})


def _settings(file: str) -> Iterator[tuple[str, str]]:
    """The settings of a git config that could name a program; no file is included."""
    section = ""
    for line in _read(file).splitlines():
        head = _SECTION.match(line)
        if head is not None:
            section = head[1].lower()
        setting = _SETTING.match(line)
        if setting is not None and section not in _HARMLESS:
            yield setting[1].lower(), setting[2].strip().strip('"')


def _read(path: str) -> str:
    """The start of a regular file, nothing for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
            return os.fsdecode(file.read(MAX_SETTINGS))
    except (OSError, ValueError):
        return ""
