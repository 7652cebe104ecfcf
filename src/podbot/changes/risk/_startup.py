"""What the host's shells and Pythons load as they start: files that their start files name.

A file sourced from ``~/.bashrc``, a module imported by a ``*.pth``. Reads the host's own start
files, within bounds and roughly; runs nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from glob import iglob
from itertools import islice

from podbot.changes.late import expression
from podbot.changes.risk._reading import Pointer, beneath, names_in, start_of

MAX_START_FILES = 60
"""How many start files are read, with those they load."""
MAX_ENVIRONMENTS = 50
"""How many folders of Python packages are looked at."""
MAX_PLACES = 50
MAX_NAMED = 200
"""How many places and modules of their start files count."""

_OF_SHELLS = [
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_aliases",
    ".bash_logout",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".kshrc",
    ".shrc",
    ".xprofile",
    ".xinitrc",
    ".xsession",
    ".config/fish/config.fish",
]
_LOADS = expression(r"(?:^|[\s;&|({])\\?(?:\.|source)[ \t]+(\"[^\"\n]+\"|'[^'\n]+'|[^\s;&|)\"']+)")
_SETS = expression(r"(?:^|[\s;])(\w+)=(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|\"']*)")
_VARIABLE = expression(r"\$(?:(\w+)|\{(\w+)(?:[^\w}][^}]*)?\})")
_IMPORTS = expression(r"\b(?:import|from)[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*)")
_CALLED = expression(r"(?:__import__|import_module)\(\s*['\"](\w+)")


def loaded_by_shells(environment: Mapping[str, str]) -> Iterator[Pointer]:
    """Files that the start files in the home folder load, and what these load in turn."""
    home = environment.get("HOME", "")
    if not os.path.isabs(home) or home == "/":
        return
    folders = dict.fromkeys((home, environment.get("ZDOTDIR") or home))
    waiting = [f"{folder}/{name}" for folder in folders for name in _OF_SHELLS]
    seen: set[str] = set()
    known = dict(environment)
    while waiting and len(seen) < MAX_START_FILES:
        file = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        text = start_of(file)
        for name, value in _SETS.findall(text):
            known.setdefault(name, _expanded(value.strip("\"'"), known))
        reason = f"{os.path.basename(file)} on this host loads it"
        for word in _LOADS.findall(text):
            place = _expanded(word.strip("\"'"), known)
            if not place.startswith("/"):
                continue
            fixed = re.split(r"[*?\[$]", place, maxsplit=1)[0]
            if fixed != place:  # any file there, as far as the words tell
                place = fixed.rpartition("/")[0]
                if place and not f"{home}/".startswith(f"{place}/"):
                    yield Pointer(place, reason, below=True)
                continue
            waiting.append(os.path.normpath(place))
            yield Pointer(waiting[-1], reason)


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """A word with the variables that are known put in, the home folder too."""

    def value(match: re.Match[str]) -> str:
        return known.get(match[1] or match[2], match[0])

    if text == "~" or text.startswith("~/"):
        text = known.get("HOME", "") + text[1:]
    return _VARIABLE.sub(value, text)[:4096]


def imported_at_start(tops: Iterable[str], packages: Iterable[str]) -> Iterator[Pointer]:
    """Modules that ``*.pth`` files import whenever Python starts.

    Looked for in the virtual environments at the given tops, and in these folders of packages.
    """
    found = [
        folder
        for top in tops
        for name in (".venv", "venv", "env", ".env")
        for folder in islice(iglob(f"{_quoted(top)}/{name}/lib/python*/site-packages"), 4)
    ]
    for folder in islice(dict.fromkeys([*packages, *found]), MAX_ENVIRONMENTS):
        yield from _imported_from(folder)


def _quoted(path: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", path)


def _imported_from(folder: str) -> Iterator[Pointer]:
    """What the files ``*.pth`` of one folder import, from there or from the places they add."""
    places, sayers = [folder], dict[str, str]()
    for name, _ in names_in(folder):
        if not name.endswith(".pth") or len(sayers) + len(places) > MAX_NAMED:
            continue
        for line in start_of(f"{folder}/{name}").splitlines():
            if line.startswith(("import ", "import\t")):
                for module in _modules(line):
                    sayers.setdefault(module, name)
            elif line.strip() and not line.startswith("#"):
                places.append(beneath(folder, line.strip()))
    for place in dict.fromkeys(places[:MAX_PLACES]):
        for module, sayer in islice(sayers.items(), MAX_NAMED):
            reason = f"Python imports it at every start: {sayer} on this host says so"
            yield Pointer(f"{place}/{module}", reason, below=True)
            yield Pointer(f"{place}/{module}.py", reason)


def _modules(code: str) -> list[str]:
    """The outermost names of the modules that a line imports."""
    imported = [one for many in _IMPORTS.findall(code) for one in re.split(r"[\s,]+", many)]
    return [one.partition(".")[0] for one in [*imported, *_CALLED.findall(code)]]
