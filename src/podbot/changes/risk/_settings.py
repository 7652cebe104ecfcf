"""What the host's git settings and installed hooks name: changing such a file changes what runs.

Reads the settings of a repository, of the user and of the system, and what they include; of hooks
only the words. Reads within bounds, understands them roughly and rather too much than too little;
git is never run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice

from podbot.changes.late import expression
from podbot.changes.risk._git import is_stored
from podbot.changes.risk._reading import Pointer, beneath, link_in, links_in, names_in, start_of
from podbot.changes.risk._references import Reader, follow, pointers_of
from podbot.changes.risk._words import words_of
from podbot.changes.risk.rules import Level
from podbot.frozen import dataclass, replace

MAX_INCLUDED = 50
"""How many setting files are read for one repository."""
MAX_HOOKS = 100
"""How many hooks of one folder are looked at."""
MAX_NAMED = 5_000
"""How many places the settings of one repository can name; folders of hooks always count."""
MAX_HOOK = 64 << 10
"""How much of a hook is looked at, in characters."""

HOOKS = "the host's git takes its hooks from this folder"
_NAMED = "the host's git settings name it"
_INCLUDED = "the host's git settings include it"
_WORDS = expression(r"[\s\"'`;&|()<>{}=!,]+")
_TASKS = {
    "make": "Makefile makefile GNUmakefile",
    "just": "justfile Justfile .justfile",
    "npm": "package.json",
    "npx": "package.json",
    "pnpm": "package.json",
    "yarn": "package.json",
    "rake": "Rakefile",
    "tox": "tox.ini",
    "nox": "noxfile.py",
}
"""Commands in a hook that take what to do from a file of the project."""
_TASK = expression(rf"(?:^|[;&|(]|\bexec)[ \t]*({'|'.join(_TASKS)})\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of a git config: ``section.key = value``, and the file it stands in."""

    section: str
    key: str
    value: str
    file: str


@dataclass(frozen=True, slots=True)
class Repository:
    """What git on this host runs and obeys in one work tree."""

    top: str
    pointers: tuple[Pointer, ...]
    has_hooks: bool


def repository_at(top: str, environment: Mapping[str, str]) -> Repository:
    """What the host's git does in a folder that is the top of a work tree, or may become it."""
    folders = _git_folders(top)
    files = [f"{folder}/{name}" for folder in folders for name in ("config", "config.worktree")]
    hooks = [f"{folder}/hooks" for folder in folders]
    pointers: list[Pointer] = []
    for setting in settings_of([*files, *_files_of_user(environment)]):
        if setting.key == "hookspath":
            hooks.append(beneath(top, os.path.expanduser(setting.value)))
            pointers += _hooks_folder(hooks[-1])
        elif setting.section in ("include", "includeif"):
            pointers.append(Pointer(_included(setting), _INCLUDED))
        elif len(pointers) < MAX_NAMED:
            pointers += islice(_named_by(setting, top), MAX_NAMED)
    has_hooks = False
    for folder in dict.fromkeys(hooks):
        if os.path.islink(folder):
            pointers.append(Pointer(folder, HOOKS, below=True))
        installed = [name for name, _ in names_in(folder) if not name.endswith(".sample")]
        has_hooks = has_hooks or bool(installed)
        pointers += _linked_hooks(folder)
        for name in installed[:MAX_HOOKS]:
            pointers += _named_in_hook(folder, name, top)
        pointers += _followed(folder, installed, top)
    return Repository(top, tuple(pointers), has_hooks)


def work_tree(target: str) -> str:
    """The nearest folder at or above a target that has a ``.git``; the target itself if none."""
    folder = target
    while folder:
        if os.path.lexists(f"{folder}/.git"):
            return folder
        folder = folder.rpartition("/")[0]
    return target


def settings_of(files: list[str]) -> Iterator[Setting]:
    """The settings of git configs that could name a program, with those of files they include."""
    waiting, seen = list(files), set[str]()
    while waiting and len(seen) < MAX_INCLUDED:
        file = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        for setting in _settings(file):
            if setting.section in ("include", "includeif"):
                if setting.key != "path":
                    continue
                waiting.append(_included(setting))  # whatever its condition: it may come true
            yield setting


def _files_of_user(environment: Mapping[str, str]) -> list[str]:
    home = environment.get("HOME", "")
    config = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    files = [
        environment.get("GIT_CONFIG_GLOBAL", ""),
        f"{home}/.gitconfig",
        f"{config}/git/config",
        environment.get("GIT_CONFIG_SYSTEM") or "/etc/gitconfig",
    ]
    return [file for file in files if os.path.isabs(file)]


def _git_folders(top: str) -> list[str]:
    """Where git keeps hooks and settings for a folder: its own data, and what that shares."""
    data = f"{top}/.git"
    pointer = start_of(data)
    if pointer.startswith("gitdir:"):
        data = beneath(top, pointer.removeprefix("gitdir:").strip())
    shared = start_of(f"{data}/commondir").strip()
    return [data, beneath(data, shared)] if shared else [data]


# Settings

_SECTION = expression(r'\s*\[\s*([\w-]+)[^"\]]*(?:"(?:[^"\\]|\\.)*"\s*)?\]?')
_SETTING = expression(r"\s*([\w-]+)\s*=\s*(.*)", re.DOTALL)
_HARMLESS = frozenset({"remote", "branch", "user", "submodule", "color", "push", "pull", "init"})
_STILL_OBEYED = frozenset({"uploadpack", "receivepack", "vcs", "update", "templatedir"})


def _settings(file: str) -> Iterator[Setting]:
    section = ""
    for line in start_of(file).replace("\r\n", "\n").replace("\\\n", "").split("\n"):
        head = _SECTION.match(line)
        if head is not None:
            section = head[1].lower()
        setting = _SETTING.match(line, head.end() if head is not None else 0)
        if setting is None:
            continue
        key = setting[1].lower()
        if section not in _HARMLESS or key in _STILL_OBEYED:
            yield Setting(section, key, _value(setting[2]), file)


def _value(text: str) -> str:
    """A value as git reads it: quotes and comments gone, escapes undone."""
    found: list[str] = []
    quoted = escaped = False
    for char in text:
        if escaped:
            found.append({"n": "\n", "t": "\t"}.get(char, char))
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char in "#;" and not quoted:
            break
        else:
            found.append(char)
    return "".join(found).strip()


def _included(setting: Setting) -> str:
    # As git does: from the folder of the file that includes it.
    return beneath(os.path.dirname(setting.file), os.path.expanduser(setting.value))


def _named_by(setting: Setting, top: str) -> Iterator[Pointer]:
    if "/" in setting.value and " " in setting.value.strip():
        # As a line for a shell, which may begin with a step into some folder. (Only where there
        # may be one: to look takes expressions that take long to make ready.)
        reader = Reader(setting.file, _NAMED, 1, Level.BY_ITSELF, top)
        words = words_of("value.sh", setting.value.removeprefix("!"), is_first=True)
        yield from (replace(each, reason=_NAMED) for each in pointers_of(words, reader))
    if setting.key == "templatedir":
        yield Pointer(beneath(top, os.path.expanduser(setting.value)), _NAMED, below=True)
    for word in _WORDS.split(setting.value):
        if "/" in word or "." in word:
            place = beneath(top, os.path.expanduser(word))
            if not f"{top}/".startswith(f"{place}/"):
                yield Pointer(place, _NAMED)


# Hooks


def _hooks_folder(folder: str) -> Iterator[Pointer]:
    yield Pointer(folder, HOOKS, below=True)
    above, _, name = folder.rpartition("/")
    if name == "_":  # husky: what lies there runs what lies beside it
        yield Pointer(above, HOOKS, below=True)


def _linked_hooks(folder: str) -> Iterator[Pointer]:
    for name in links_in(folder):
        reason = f"the git hook {name} on this host is a link to it"
        yield Pointer(link_in(folder, name), reason, below=True)


def _named_in_hook(folder: str, name: str, top: str) -> Iterator[Pointer]:
    text = start_of(f"{folder}/{name}")[:MAX_HOOK]
    if "\0" in text:
        return  # a program that cannot be read
    reason = f"the git hook {name} on this host names it"
    for word in dict.fromkeys(_WORDS.split(text)):
        for place in _meant(word, folder, top):
            if not f"{top}/".startswith(f"{place}/") and not _is_data(place, top):
                yield Pointer(place, reason)
    for task in dict.fromkeys(_TASK.findall(text)):
        for file in _TASKS[task].split():
            yield Pointer(f"{top}/{file}", reason)


def _followed(folder: str, installed: list[str], top: str) -> Iterator[Pointer]:
    """What the hooks of a folder start in other folders, and what that loads in turn."""
    folders = [folder]
    if os.path.basename(folder) == "_":  # husky: what lies there runs what lies beside it
        folders.append(os.path.dirname(folder))
    hooks = [f"{folder}/{name}" for name in installed[:MAX_HOOKS]]
    for beside in folders[1:]:
        hooks += (f"{beside}/{name}" for name, _ in names_in(beside)[:MAX_HOOKS])
    readers = [Reader(hook, os.path.basename(hook), 1, Level.BY_ITSELF, top) for hook in hooks]
    for pointer in follow(readers):
        if not _is_data(pointer.place, top):
            yield pointer


def _is_data(place: str, top: str) -> bool:
    """Whether it is what git stores, which every commit changes: hooks look at it, no more."""
    rest = place.removeprefix(f"{top}/.git/").split("/")
    return place.startswith(f"{top}/.git/") and (
        is_stored(rest) or rest == ["index"] or (len(rest) == 1 and rest[0].isupper())
    )


def _meant(word: str, folder: str, top: str) -> Iterator[str]:
    """The places a word of a hook can mean, which git starts at the top of the work tree."""
    if word.startswith("$"):  # some variable, and then a path
        word = word.partition("/")[2]
    if not word or "\0" in word or word.startswith("-"):
        return
    word = os.path.expanduser(word)
    if word.startswith("/"):
        yield os.path.normpath(word)
        word = word.lstrip("/")  # what `$(…)/` left over
    yield beneath(top, word)
    yield beneath(folder, word)
    if "/" not in word and "." in word:  # python -m a.b
        module = beneath(top, word.replace(".", "/"))
        yield f"{module}.py"
        yield f"{module}/__init__.py"
        yield f"{module}/__main__.py"
