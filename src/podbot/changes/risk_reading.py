"""Reading what the host itself has, within bounds: starts of files, names in folders, links.

For the modules that look for what already points at a path. Nothing is run or written; what is not
there, or not ours to read, is nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

MAX_ENTRIES = 5_000
"""How many names of one folder are looked at."""
MAX_READ = 1 << 20
"""How much of one file is read, in bytes."""
MAX_STEPS = 40
"""How many links are followed on the way to one place, as the kernel does."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A place the host runs or obeys, and why; ``below``: so is all that lies below it."""

    place: str
    reason: str
    below: bool = False


def beneath(top: str, path: str) -> str:
    """A path as seen from a folder, by its words."""
    return os.path.normpath(os.path.join(top, path))


def and_above(path: str) -> Iterator[str]:
    """A path and the folders above it, innermost first; not the root."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def start_of(path: str) -> str:
    """The start of a regular file, nothing for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
            return os.fsdecode(file.read(MAX_READ))
    except (OSError, ValueError):
        return ""


def names_in(folder: str) -> list[tuple[str, bool]]:
    """The first names in a folder, and whether each is a link."""
    found: list[tuple[str, bool]] = []
    try:
        with os.scandir(folder or "/nonexistent") as entries:
            for entry in entries:
                if len(found) >= MAX_ENTRIES:
                    break
                found.append((entry.name, entry.is_symlink()))
    except (OSError, ValueError):
        pass  # not there, or not ours to read: then nothing of the user's is in it
    return found


def links_in(folder: str) -> Iterator[tuple[str, str]]:
    """The links among them, with their paths."""
    return ((name, f"{folder}/{name}") for name, is_link in names_in(folder) if is_link)


def ways_to(path: str) -> list[str]:
    """A path as written, then after each link of the host on the way: any of them leads there."""
    path = os.path.normpath(path)
    ways = [path]
    if not os.path.isabs(path) or "\0" in path:
        return []
    while len(ways) <= MAX_STEPS:
        after = _after_first_link(path)
        if after is None:
            break
        path = after
        ways.append(path)
    return ways


def _after_first_link(path: str) -> str | None:
    if os.path.realpath(path) == path:
        return None
    for slash in re.finditer(r"/|$", path):
        if slash.start() == 0:
            continue
        try:
            link = os.readlink(path[: slash.start()])
        except OSError:
            continue
        folder = os.path.dirname(path[: slash.start()])
        return os.path.normpath(os.path.join(folder, link, path[slash.start() + 1 :]))
    return None
