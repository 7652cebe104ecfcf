"""What podbot itself needs inside: the interpreter it runs on, the kernel's, and ripgrep.

They may lie below a folder that every sandbox has for itself, such as /tmp; then they are shown
there, at every name they go by. Names are taken as the kernel takes them: through links, and with
``..`` where it comes after one.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache

from podbot.sandbox import interpreter
from podbot.sandbox.layers.mounts import is_below
from podbot.sandbox.overlay.shared import PRIVATE

MOST_LINKS = 40


def folders(python: str | None, path: str) -> tuple[str, ...]:
    """Where the programs are, and those of PATH, without links."""
    return _folders(_locations(python, sys.executable, sys.prefix, sys.base_prefix), path)


@lru_cache(maxsize=8)
def _folders(locations: tuple[str, ...], path: str) -> tuple[str, ...]:
    named = (*locations, *path.split(":"))
    return tuple(dict.fromkeys(os.path.realpath(name) for name in named if os.path.isabs(name)))


@lru_cache(maxsize=8)
def _locations(python: str | None, own: str, *prefixes: str) -> tuple[str, ...]:
    """Where the programs are, by the names they go by; they stay there as long as we run."""
    named = [*prefixes, *filter(None, [interpreter.ripgrep()])]
    for program in (own, python):
        if program and os.path.isabs(program):
            named += [os.path.dirname(os.path.dirname(step)) for step in _steps(program)]
    return tuple(dict.fromkeys(named))


def needed(python: str | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """What to show where below the private folders, by place, and folders that must exist there.

    The latter are those that a name leaves again by ``..``; they may be empty.
    """
    return _needed(_locations(python, sys.executable, sys.prefix, sys.base_prefix))


@lru_cache(maxsize=8)
def _needed(locations: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    shown: dict[str, str] = {}
    passed: set[str] = set()
    for name in locations:
        real = os.path.realpath(name)
        plain = os.path.normpath(name)
        for place in {real, plain} if os.path.realpath(plain) == real else {real}:
            if _is_private(place) and os.path.exists(real):
                shown[place] = real
        parts = name.split("/")
        ways = ("/".join(parts[:at]) for at, part in enumerate(parts) if part == "..")
        passed.update(filter(_is_private, map(os.path.normpath, ways)))
    outer = {p: real for p, real in shown.items() if not any(is_below(p, o) for o in shown)}
    beside = [
        folder
        for folder in sorted(passed)
        if not any(
            f"{a}/".startswith(f"{b}/") for o in outer for a, b in ((folder, o), (o, folder))
        )
    ]
    return outer, tuple(beside)


def _steps(program: str) -> list[str]:
    """A program's path, and what it is if it is a link, and so on."""
    found = [program]
    while os.path.islink(program) and len(found) < MOST_LINKS:
        program = os.path.join(os.path.dirname(program), os.readlink(program))
        found.append(program)
    return found


def _is_private(path: str) -> bool:
    return any(is_below(path, folder) for folder in PRIVATE)
