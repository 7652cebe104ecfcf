"""A tree of files in memory: what the memory backend keeps instead of a disk.

Paths mean here what they mean to a kernel, below one root that nothing leaves: a ``..`` or a link
that would is refused. Knows nothing of requests, locks or limits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from podbot.errors import Kind, SandboxError
from podbot.sandbox.channel import refusal

ROOT = "/workspace"
MAX_LINKS = 40
MAX_NAME = 255
MAX_PATH = 4096


@dataclass(slots=True, eq=False)
class File:
    """A regular file."""

    data: bytes = b""
    mode: int = 0o644
    mtime_ns: int = field(default_factory=time.time_ns)


@dataclass(slots=True, eq=False)
class Folder:
    """A folder."""

    children: dict[str, Node] = field(default_factory=dict)
    mode: int = 0o755
    mtime_ns: int = field(default_factory=time.time_ns)


@dataclass(slots=True, eq=False)
class Link:
    """A symbolic link."""

    target: str
    mode: int = 0o777
    mtime_ns: int = field(default_factory=time.time_ns)


Node = File | Folder | Link


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads: the folder, the name in it, and what is there, if anything.

    The root has no name. ``above`` are the folders from the root down to ``folder``.
    """

    folder: Folder
    name: str
    node: Node | None
    above: tuple[Folder, ...]

    @property
    def path(self) -> str:
        """The path from the root down, which no link is part of."""
        names = []
        for above, below in pairwise((*self.above, self.folder)):
            names += [name for name, node in above.children.items() if node is below]
        return "/".join([ROOT, *names, *([self.name] if self.name else [])])

    def put(self, node: Node) -> None:
        """Let this place hold ``node``."""
        self.folder.children[self.name] = node
        self.folder.mtime_ns = time.time_ns()

    def clear(self) -> None:
        """Let this place hold nothing."""
        del self.folder.children[self.name]
        self.folder.mtime_ns = time.time_ns()


class Tree:
    """The root folder, and the way from a path to a place."""

    def __init__(self) -> None:
        self.root = Folder()

    def find(self, path: str, *, follow: bool = True, make: bool = False) -> Place:
        """The place a path names. ``make`` makes the folders on the way."""
        todo = deque(_parts(path))
        trail: list[tuple[str, Folder]] = [("", self.root)]
        links = 0
        while todo:
            name = todo.popleft()
            if name == "..":
                if len(trail) == 1:
                    raise _escape(path)
                trail.pop()
                continue
            here = trail[-1][1]
            node = here.children.get(name)
            if isinstance(node, Link) and (follow or todo):
                links += 1
                if links > MAX_LINKS:
                    raise refuse(Kind.PATH_ESCAPE, f"{path}: too many links to follow")
                if node.target.startswith("/"):
                    del trail[1:]
                todo.extendleft(reversed(_parts(node.target)))
            elif not todo:
                if node is not None and not isinstance(node, Folder) and path.endswith("/"):
                    raise refuse(Kind.NOT_DIRECTORY, f"{path}: not a folder")
                return Place(here, name, node, tuple(folder for _, folder in trail))
            elif isinstance(node, Folder):
                trail.append((name, node))
            elif node is not None:
                raise refuse(Kind.NOT_DIRECTORY, f"{path}: not a folder")
            elif make:
                made = here.children[name] = Folder()
                trail.append((name, made))
            else:
                raise _missing(path)
        # The path ended in `..`, or named the root.
        name, folder = trail.pop()
        above = tuple(other for _, other in trail)
        return Place(above[-1] if above else folder, name, folder, above)

    def need(self, path: str, *, follow: bool = True) -> tuple[Place, Node]:
        """As `find`, but there must be something."""
        place = self.find(path, follow=follow)
        if place.node is None:
            raise _missing(path)
        return place, place.node

    def file(self, path: str) -> File:
        """The regular file at a path."""
        node = self.need(path)[1]
        if isinstance(node, File):
            return node
        raise refuse(Kind.IS_DIRECTORY, f"{path}: is a folder")

    def folder(self, path: str) -> Folder:
        """The folder at a path."""
        node = self.need(path)[1]
        if isinstance(node, Folder):
            return node
        raise refuse(Kind.NOT_DIRECTORY, f"{path}: not a folder")


def walk(folder: Folder, above: str = "") -> Iterator[tuple[str, Node]]:
    """Everything below a folder, with paths that begin with ``above``; links not followed."""
    waiting = [(above, folder)]
    while waiting:
        prefix, here = waiting.pop()
        for name, node in here.children.items():
            yield prefix + name, node
            if isinstance(node, Folder):
                waiting.append((f"{prefix}{name}/", node))


def refuse(kind: Kind, message: str) -> SandboxError:
    """The error a guest's refusal of this kind would have become."""
    return refusal({"kind": kind.value, "message": message})


def _missing(path: str) -> SandboxError:
    """The error for a path that leads to nothing."""
    return refuse(Kind.NOT_FOUND, f"{path}: no such file or folder")


def _escape(path: str) -> SandboxError:
    return refuse(Kind.PATH_ESCAPE, f"{path}: leads out of {ROOT}")


def _parts(path: str) -> list[str]:
    """The names of a path, from the root or from wherever one stands."""
    try:
        size = len(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise refuse(Kind.BAD_PATH, f"{path!a}: not a file name") from None
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if size > MAX_PATH or any(
        len(part.encode("utf-8", "surrogateescape")) > MAX_NAME for part in parts
    ):
        raise refuse(Kind.BAD_PATH, f"{path[:80]}…: too long a name")
    if path.startswith("/"):
        if parts[:1] != [ROOT[1:]]:
            raise _escape(path)
        del parts[0]
    return parts
