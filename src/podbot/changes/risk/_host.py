"""What on this host already points at a path: then changing it changes what runs.

A hook that is a link to a script of the project, a dotfile linked from the home folder, a folder
on ``PATH``, a script named in git's settings: none can be told by the path of the change alone.
Reads the host's own links, settings and environment, bounded; runs nothing and opens nothing that a
sandbox made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from podbot.changes.risk._git import Finding
from podbot.changes.risk._home_settings import named_by_home
from podbot.changes.risk._reading import Pointer, and_above, link_in, links_in, names_in, ways_to
from podbot.changes.risk._references import named_by_what_runs
from podbot.changes.risk._settings import repository_at, work_tree
from podbot.changes.risk._startup import imported_at_start, loaded_by_shells
from podbot.changes.risk.paths import fitting, parts_of
from podbot.changes.risk.rules import Level

MAX_REPOSITORIES = 200
"""How many repositories below the targets are looked at."""

_SYSTEM = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/snap/bin"})
"""Folders on PATH whose links are the system's own."""
_NOT_NAMED = frozenset({"_", "PWD", "OLDPWD", "PATH", "PYTEST_CURRENT_TEST"})
_NOT_BELOW = frozenset(
    [
        "HOME",
        "TMPDIR",
        "TMP",
        "TEMP",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "PYTHONPATH",
        "NODE_PATH",
        "GOPATH",
        "CLASSPATH",
        "MYPYPATH",
        "XDG_CACHE_HOME",
        "XDG_STATE_HOME",
        "XDG_RUNTIME_DIR",
        "PODBOT_LAYERS",
        "PODBOT_STATE",
    ]
)
"""Variables that name a folder of which not all is obeyed: the other rules tell what is."""
_SETTINGS = frozenset(
    [
        "XDG_CONFIG_HOME",
        "XDG_CONFIG_DIRS",
        "XDG_DATA_HOME",
        "ZDOTDIR",
        "CARGO_HOME",
        "RUSTUP_HOME",
        "NVM_DIR",
        "GNUPGHOME",
        "GIT_DIR",
        "GIT_TEMPLATE_DIR",
        "GIT_EXEC_PATH",
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "DOCKER_CONFIG",
        "IPYTHONDIR",
        "JUPYTER_CONFIG_DIR",
    ]
)
"""Variables that name a folder of settings: it counts even if the whole target lies in it."""
_AS_USUAL = (".config", ".local/share", ".cargo", ".rustup")
"""Where such folders are in a home if no variable says so: the table knows what is in them."""
_LIBRARIES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "GCONV_PATH")
_PACKAGES = ("site-packages", "dist-packages")


class Host:
    """What this host does with paths below the targets, looked up once.

    ``changed`` are absolute paths: repositories and packages are looked for on the way to them.
    """

    def __init__(
        self,
        targets: Iterable[str],
        environment: Mapping[str, str] = os.environ,
        changed: Iterable[str] = (),
    ):
        targets = tuple(targets)
        self.path_folders, self.relative_path = _path_folders(environment.get("PATH", ""))
        self._above_path = {above for folder in self.path_folders for above in and_above(folder)}
        self._named: dict[str, Finding] = {}
        self._below: dict[str, Finding] = {}
        self._within: dict[str, Finding] = {}
        self._scripts: dict[str, dict[str, Finding]] = {}
        self._above: dict[str, str] = {}
        self._hooked: set[str] = set()
        self._libraries = {
            way
            for name in _LIBRARIES
            for folder in environment.get(name, "").split(":")
            for way in ways_to(folder)
        }
        on_the_way, packages, folders = _on_the_way(targets, changed)
        tops = [top for target in targets for top in (target, work_tree(target))]
        home = environment.get("HOME", "")
        links = [*tops, home, f"{home}/.config", *self._links_of_path()]
        self._note_all(_named_by_environment(environment, targets))
        for top in dict.fromkeys([*tops, *on_the_way]):
            repository = repository_at(top, environment)
            self._note_all(repository.pointers)
            if repository.has_hooks:
                self._hooked.add(top)
        for target in targets:
            top = work_tree(target)
            within = (folder for folder in folders if f"{folder}/".startswith(f"{target}/"))
            has_hooks = top in self._hooked or target in self._hooked
            places = dict.fromkeys([top, target, *within])
            self._note_all(named_by_what_runs(places, top, has_hooks))
        for folder in dict.fromkeys(links):
            self._note_all(self._telling_links(folder))
        self._note_all(loaded_by_shells(environment))
        self._note_all(named_by_home(targets, environment))
        self._note_all(imported_at_start(dict.fromkeys([*tops, *on_the_way]), packages))
        for folder in self._libraries:
            self._note_above(folder, "programs load libraries from there first")

    def pointed_at(self, where: str) -> Finding | None:
        """Why the host would run or obey what lies at an absolute path, if it does."""
        found = [self._named.get(where), self._within.get(where.rpartition("/")[0])]
        if self._below:
            found += (self._below.get(above) for above in and_above(where))
        strongest: Finding | None = None
        for finding in found:
            if finding is not None and (strongest is None or _is_stronger(finding, strongest)):
                strongest = finding
        return strongest

    def runs_by_itself(self, where: str) -> bool:
        """Whether the host runs or obeys what lies there by itself."""
        finding = self.pointed_at(where)
        return finding is not None and finding[0] is Level.BY_ITSELF

    def scripts_called(self, where: str) -> Mapping[str, Finding]:
        """The scripts of a package.json that something on the host runs, each with why."""
        return self._scripts.get(where, {})

    def knows(self, where: str) -> bool:
        """Whether anything on the host points at an absolute path or leads through it."""
        return any(
            where in places for places in (self._named, self._above, self._below, self._scripts)
        )

    def uses(self, folder: str) -> bool:
        """Whether the host runs or obeys all that lies in a folder."""
        if folder in self._libraries or folder in self._within:
            return True
        return any(above in self._below for above in and_above(folder))

    def reached_through(self, where: str) -> Finding | None:
        """Why the host would run or obey something that lies below an absolute path."""
        reason = self._above.get(where)
        return None if reason is None else (Level.BY_ITSELF, f"the way there leads here: {reason}")

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

    def has_hooks(self, where: str) -> bool:
        """Whether it lies in a repository that has git hooks installed."""
        return bool(self._hooked) and any(above in self._hooked for above in and_above(where))

    def holds_what_runs(self, folder: str) -> bool:
        """Whether something that runs by itself lies in a folder of the host, or will."""
        if self.leads_to_path(folder) or folder in self._libraries or folder in self._above:
            return True
        if self.runs_by_itself(folder) or folder in self._within:
            return True
        names = parts_of(folder)
        return any(
            Level.BY_ITSELF in fitting([*names, *inner]) or ".git" in inner
            for inner in (parts_of(name) for name, _ in names_in(folder))
        )

    def _links_of_path(self) -> list[str]:
        return [folder for folder in self.path_folders if folder not in _SYSTEM]

    def _telling_links(self, folder: str) -> Iterator[Pointer]:
        """Links with a telling name, such as ``~/.bashrc`` to a file kept elsewhere."""
        on_path = folder in self.path_folders
        for name in links_in(folder):
            path = f"{folder}/{name}"
            # Named like a file that is obeyed, or like a folder of which all is.
            names = parts_of(path)
            rules = fitting(names) | fitting([*names, "any"])
            if Level.BY_ITSELF in rules:
                says = rules[Level.BY_ITSELF].reason
            elif on_path and not os.path.isdir(path):
                says = "it is a command on your PATH"
            else:
                continue
            reason = f"{name} on this host is a link to it: {says}"
            yield Pointer(link_in(folder, name), reason, below=True)

    def _note_all(self, pointers: Iterable[Pointer]) -> None:
        for pointer in pointers:
            finding = (pointer.level, pointer.reason)
            for way in ways_to(pointer.place):
                if pointer.scripts:
                    called = self._scripts.setdefault(way, {})
                    called.update({name: finding for name in pointer.scripts if name not in called})
                    continue
                places = self._below if pointer.below else self._named
                places = self._within if pointer.only else places
                if way not in places or _is_stronger(finding, places[way]):
                    places[way] = finding
                if pointer.level is Level.BY_ITSELF:
                    self._note_above(way, pointer.reason)

    def _note_above(self, place: str, reason: str) -> None:
        for above in and_above(place.rpartition("/")[0]):
            if above in self._above:
                break  # and then all above it are
            self._above[above] = reason


def _is_stronger(one: Finding, other: Finding) -> bool:
    return one[0] is Level.BY_ITSELF and other[0] is not Level.BY_ITSELF


def _on_the_way(
    targets: Iterable[str], changed: Iterable[str]
) -> tuple[list[str], list[str], list[str]]:
    """Folders within the targets, above what changed.

    Those that have a ``.git``, those that hold packages, and all of them, the outermost first.
    """
    seen = set(targets)
    repositories: list[str] = []
    packages: list[str] = []
    for path in changed:
        nearest = path.rpartition("/")[0]
        for folder in and_above(nearest) if nearest not in seen else ():
            if folder in seen:
                break
            seen.add(folder)
            if folder.endswith(_PACKAGES):
                packages.append(folder)
            if os.path.lexists(f"{folder}/.git") and len(repositories) < MAX_REPOSITORIES:
                repositories.append(folder)
    packages += [target for target in targets if target.endswith(_PACKAGES)]
    return repositories, packages, sorted(seen, key=lambda folder: folder.count("/"))


def _path_folders(value: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """The absolute folders on PATH, as written and as they really are; and the relative ones."""
    written = value.split(":") if value else []
    absolute = {way for folder in written if os.path.isabs(folder) for way in ways_to(folder)}
    relative = {os.path.normpath(folder) for folder in written if not os.path.isabs(folder)}
    return frozenset(absolute), tuple(sorted(relative))


def _named_by_environment(
    environment: Mapping[str, str], targets: tuple[str, ...]
) -> Iterator[Pointer]:
    """Paths that are the value of a variable, such as BASH_ENV or XDG_CONFIG_HOME."""
    home = environment.get("HOME", "")
    usual = {f"{home}/{name}" for name in _AS_USUAL}
    for name, value in environment.items():
        if name in _NOT_NAMED or "/" not in value:
            continue
        for word in re.split(r"[:\s]+", value):
            place = os.path.normpath(word)
            if not word.startswith("/") or place == "/":
                continue
            yield Pointer(place, f"your environment names it, in {name}")
            holds_target = any(f"{target}/".startswith(f"{place}/") for target in targets)
            counts = name in _SETTINGS if holds_target else name not in _NOT_BELOW
            if counts and place not in usual and os.path.isdir(place):
                yield Pointer(place, f"your environment names its folder, in {name}", below=True)
