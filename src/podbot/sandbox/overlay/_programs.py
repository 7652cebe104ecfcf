"""What podbot itself needs inside: the interpreter it runs on, the kernel's, and ripgrep.

They may lie below a folder that every sandbox has for itself, such as /tmp; then they are shown
there, at every name they go by. Names are taken as the kernel takes them: through links, and with
``..`` where it comes after one.
"""

from __future__ import annotations

import os
import sys

from podbot.sandbox import interpreter
from podbot.sandbox.layers.mounts import is_below
from podbot.sandbox.overlay.shared import PRIVATE

MOST_LINKS = 40


def locations(python: str | None) -> tuple[str, ...]:
    """Where the programs are, by the names they go by; ``python`` is the kernel's interpreter."""
    named = [sys.prefix, sys.base_prefix, *filter(None, [interpreter.ripgrep()])]
    for program in (sys.executable, python):
        if program and os.path.isabs(program):
            named += [os.path.dirname(os.path.dirname(step)) for step in _steps(program)]
    return tuple(dict.fromkeys(named))


def needed(python: str | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """What to show where below the private folders, by place, and folders that must exist there.

    The latter are those that a name leaves again by ``..``; they may be empty.
    """
    shown: dict[str, str] = {}
    passed: set[str] = set()
    for name in locations(python):
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
