"""What files of the home folder name in a target: settings elsewhere that run what lies there.

A hook of an agent, a unit of systemd, `~/.vimrc` or `~/.ssh/config` may name a script of a project
by its path; changing that script then changes what runs. Reads the user's own settings, within
bounds: only files that tools read as settings, no keys and logins, no histories and states. Only
places within the targets are ever told. Runs nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from podbot.changes.late import expression
from podbot.changes.risk._reading import Pointer, links_in, names_in, start_of
from podbot.changes.risk._references import Reader, follow, pointers_of, why
from podbot.changes.risk._words import is_code, is_settings, words_of
from podbot.changes.risk.paths import fitting, leading, parts_of, plain
from podbot.changes.risk.rules import Level
from podbot.frozen import replace

MAX_FILES = 400
"""How many files of the home folder are read."""
MAX_FOLDERS = 250
"""In how many of its folders files are looked for."""
MAX_ENTRIES = 200
"""How many names of one of these folders are looked at."""
MAX_DEEP = 4
"""How deep below the home folder."""
MAX_TEXT = 64 << 10
"""How much of one file is looked at; one that is larger is a state and no settings."""

_UNITS = (".service", ".socket", ".timer", ".path", ".desktop", ".mount", ".rules", ".rc", ".theme")
_STATES = frozenset(
    ("projects", "sessions", "session", "session-env", "workspacestorage", "globalstorage",
     "history", "file-history", "logs", "log", "extensions", "node_modules", "site-packages",
     "backups", "snapshots", "shell-snapshots", "todos", "telemetry", "statsig", "undo", "swap",
     "view", "crash reports", "blob_storage", "indexeddb", "local storage", "session storage",
     "service worker", "gpucache", "objects", "registry", "toolchains", "versions", "lib",
     "cache", "tmp", "trash", "workspace", "plugged", "bundle", "pack", "databases",
     "oh-my-zsh", ".git")
)  # fmt: skip
_SECRET = frozenset(
    (".gnupg", ".pki", ".netrc", ".git-credentials", ".password-store", ".pypirc", ".npmrc",
     ".pgpass", "credentials", "credentials.json", ".credentials.json", "auth.json", "hosts.yml",
     "authorized_keys", "known_hosts", ".aws", ".azure", ".kube", ".docker", "gcloud", "gh", "op")
)  # fmt: skip
"""What holds keys and logins: it is not read, whatever else it may say."""
_NOT_SETTINGS = expression(
    r"hist|\.log$|viminfo|lesshst|\.bak$|\.old$|\.lock$|\.db$|\.sqlite|recent|^id_|\.pem$|\.key$"
    r"|\.pub$|cookie|token|secret|xauthority|iceauthority|\.pid$|\.cache$|cache",
    re.IGNORECASE,
)
_HOMES = ("~/", "$HOME/", "HOME/", "%h/")
_WORDS = expression(r"[^\s\"'`;&|()<>{}\[\]=!,:]+")
_TALK = expression(r"^[ \t]*(?:#(?!!)|//|--|;|\"[ \t])[^\n]*", re.MULTILINE)


def named_by_home(targets: Sequence[str], environment: Mapping[str, str]) -> Iterator[Pointer]:
    """Places within the targets that settings in the home folder name."""
    home = os.path.normpath(environment.get("HOME", ""))
    if not os.path.isabs(home) or home == "/":
        return
    marks = _marks(home, targets)
    if not marks:
        return
    others = [target for target in targets if target != home]
    waiting: list[Reader] = []
    for file, level in _settings(home, environment):
        text = start_of(file, MAX_TEXT + 1)
        if len(text) > MAX_TEXT or "\0" in text or not any(mark in text for mark in marks):
            continue
        reader = Reader(file, _called(file, home), 1, level, home)
        for pointer in _named_in(reader, text):
            found = _within(pointer, targets)
            if found is not None:
                yield found
                if not (found.below or found.only or found.scripts):
                    waiting.append(Reader(pointer.place, reader.first, 2, level, home))
    for reader in waiting:
        top = next((each for each in others if f"{reader.file}/".startswith(f"{each}/")), home)
        if is_code(reader.file) or start_of(reader.file, 2) == "#!":
            yield from follow([Reader(reader.file, reader.first, 2, reader.level, top)])


def _marks(home: str, targets: Sequence[str]) -> list[str]:
    """Words of which one must occur in a file that names something in a target."""
    names = {os.path.basename(target) for target in targets}
    if any(f"{home}/".startswith(f"{target}/") for target in targets):
        return ["/"]  # all that it names lies there
    for name in links_in(home):
        place = os.path.realpath(f"{home}/{name}")
        if any(
            f"{target}/".startswith(f"{place}/") or place.startswith(f"{target}/")
            for target in targets
        ):
            names.add(name)
    return sorted(name for name in names if name)


def _settings(home: str, environment: Mapping[str, str]) -> Iterator[tuple[str, Level]]:
    """The files of settings in a home, with how what they name runs: outermost first."""
    config = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    waiting = [(home, 0), *([(config, 1)] if os.path.isabs(config) else [])]
    seen: set[str] = set()
    yielded = 0
    while waiting and len(seen) < MAX_FOLDERS:
        folder, depth = waiting.pop(0)
        if folder in seen:
            continue
        seen.add(folder)
        above = parts_of(folder)
        for name, _ in names_in(folder)[:MAX_ENTRIES]:
            lower = plain(name)
            if (depth == 0 and not name.startswith(".")) or lower in _SECRET or lower in _STATES:
                continue
            path, parts = f"{folder}/{name}", [*above, lower]
            if _is_folder(path, name):
                if depth < MAX_DEEP and not _NOT_SETTINGS.search(lower) and _holds(parts):
                    waiting.append((path, depth + 1))
                continue
            rules = fitting(parts)
            if not rules or yielded >= MAX_FILES or not _is_of_settings(name):
                continue
            yielded += 1
            yield path, Level.BY_ITSELF if Level.BY_ITSELF in rules else Level.WHEN_USED


def _is_folder(path: str, name: str) -> bool:
    # Nearly all with an ending are files, and to ask for each takes long.
    return not name.endswith((".json", ".toml", ".conf", ".sh", *_UNITS)) and os.path.isdir(path)


def _holds(parts: list[str]) -> bool:
    """Whether there may be settings in a folder that are read without being asked for."""
    return bool(fitting([*parts, "any"])) or bool(leading(parts))


def _is_of_settings(name: str) -> bool:
    if _NOT_SETTINGS.search(name):
        return False
    known = is_settings(name) or is_code(name) or name.endswith(_UNITS)
    return known or "." not in name.lstrip(".") or name.endswith(("rc", "profile"))


def _called(file: str, home: str) -> str:
    return f"~/{file[len(home) + 1 :]}" if file.startswith(f"{home}/") else file


def _named_in(reader: Reader, text: str) -> Iterator[Pointer]:
    """What settings name, by the words that are paths, and from where they say it is started."""
    words = words_of(reader.file, text, is_first=not is_settings(reader.file))
    yield from pointers_of(words, reader)
    if reader.level is not Level.BY_ITSELF:
        return  # it may be a list of files that were open
    reason = why(reader.first, reader.level)
    for word in dict.fromkeys(_WORDS.findall(_TALK.sub("", text))):
        starts = [start for start in _HOMES if word.startswith(start)]
        path = f"{reader.top}/{word[len(starts[0]) :]}" if starts else word
        if path.startswith("/") and path.count("/") > 1:
            yield Pointer(os.path.normpath(path), reason)


def _within(pointer: Pointer, targets: Sequence[str]) -> Pointer | None:
    """A pointer to a place in a target; to all in it, if it is the target itself."""
    for place in dict.fromkeys((pointer.place, os.path.realpath(pointer.place))):
        if any(place.startswith(f"{target}/") for target in targets):
            return pointer
        if pointer.below and place in targets:
            return replace(pointer, place=place, below=False, only=True)
    return None
