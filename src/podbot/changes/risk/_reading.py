"""Reading what the host itself has, within bounds: starts of files, names in folders, links.

For the modules that look for what already points at a path. Nothing is run or written; what is not
there, or not ours to read, is nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from podbot.changes.risk.rules import Level
from podbot.frozen import dataclass

MAX_ENTRIES = 5_000
"""How many names of one folder are looked at."""
MAX_READ = 1 << 20
"""How much of one file is read, in bytes."""
MAX_STEPS = 40
"""How many links are followed on the way to one place, as the kernel does."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A place the host runs or obeys, and why; ``below``: so is all that lies below it.

    ``only``: just what lies in the folder itself. ``scripts``: of a package.json only these count.
    """

    place: str
    reason: str
    below: bool = False
    level: Level = Level.BY_ITSELF
    only: bool = False
    scripts: frozenset[str] = frozenset()


def beneath(top: str, path: str) -> str:
    """A path as seen from a folder, by its words."""
    return os.path.normpath(os.path.join(top, path))


def and_above(path: str) -> Iterator[str]:
    """A path and the folders above it, innermost first; not the root."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def start_of(path: str, most: int = MAX_READ) -> str:
    """The start of a regular file, nothing for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            return ""
        # (what the kernel makes up as it is read has no size)
        return os.fsdecode(os.read(fd, min(most, facts.st_size or most)))
    except OSError:
        return ""
    finally:
        os.close(fd)


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


def links_in(folder: str) -> Iterator[str]:
    """The names of the links among them."""
    return (name for name, is_link in names_in(folder) if is_link)


def link_in(folder: str, name: str) -> str:
    """Where a link in a folder points, one step far."""
    try:
        return os.path.join(os.path.realpath(folder), os.readlink(f"{folder}/{name}"))
    except OSError:
        return f"{folder}/{name}"  # it went away


def ways_to(path: str) -> list[str]:
    """A path as written, then after each link of the host on the way: any of them leads there."""
    path = os.path.normpath(path)
    if not path.startswith("/") or "\0" in path:
        return []
    path = "/" + path.lstrip("/")
    ways = [path]
    end = 0
    while end < len(path) and len(ways) <= MAX_STEPS:
        # What lies before `end` is no link, so the words of a link there mean what they say.
        after = path.find("/", end + 1)
        after = len(path) if after < 0 else after
        try:
            link = os.readlink(path[:after])
        except OSError as error:
            if error.errno != errno.EINVAL:
                break  # nothing there, or not ours to see
            end = after
            continue
        rest = path[after + 1 :]
        path = "/" + os.path.normpath(os.path.join(path[:end] or "/", link, rest)).lstrip("/")
        end = 0 if link.startswith(("/", "..")) or "/.." in link else end
        ways.append(path)
    return ways
