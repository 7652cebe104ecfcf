"""What a command wrote into the throw-away home, outside of every target: it is about to be lost.

Looked at while the sandbox still stands, so that a person can be told; what is nobody's work
(caches and histories, as nearly every tool leaves some) is not counted. It must not take long,
whatever lies there: it is bounded, and goes by descriptors, as the writer may still be at it.
"""

from __future__ import annotations

import os
import re

from podbot.sandbox.layers import Layer, mounts

MOST_ENTRIES = 2000
DEEPEST = 8

_TOOLS = frozenset(
    {
        ".bun", ".bundle", ".cache", ".cargo", ".config/go/telemetry", ".dbus", ".dotnet", ".gem",
        ".gradle", ".ivy2", ".local/share/gem", ".local/share/pnpm", ".local/state", ".m2", ".npm",
        ".nuget", ".pki", ".pnpm-store", ".rustup", ".sbt", ".yarn", "go/pkg",
    }
)  # fmt: skip
"""Folders that tools fill with what they can have again."""
_HISTORIES = (
    r"\.\w*_history|\.\w*hst|\.viminfo|\.wget-hsts|\.zcompdump.*|\.Xauthority|\.ICEauthority"
)
"""Files at the top of a home in which programs remember what was typed, and the like. Not compiled
ahead: most runs leave nothing to compare."""


def written(layer: Layer) -> tuple[str, ...]:
    """The files and links of the home that go with the sandbox, by their paths; some of very many.

    The nearest come first, and those without a dot before the others.
    """
    home = mounts.home()
    search = _Search()
    try:
        upper = os.open(layer.throw_away_home, _FOLDER)
    except OSError:  # there is none: a target holds the home, or the backend has no such thing
        return ()
    try:
        search.into(upper, "", 0)
    finally:
        os.close(upper)
    if home is None:
        return ()
    nearest = sorted(search.found, key=lambda path: (path.startswith("."), path.count("/"), path))
    return tuple(f"{home}/{path}" for path in nearest)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Search:
    """One search, with what it may still spend."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._left = MOST_ENTRIES

    def into(self, folder: int, at: str, depth: int) -> None:
        """Take note of what was written in a folder, and below."""
        below = []
        with os.scandir(folder) as listed:
            for entry in listed:
                if self._left <= 0:
                    return
                self._left -= 1
                path = at + entry.name
                if path in _TOOLS or (not depth and re.fullmatch(_HISTORIES, path)):
                    continue
                # Neither is what overlay marks as removed: a device.
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
                elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                    self.found.append(path)
        for name in sorted(below) if depth < DEEPEST else ():
            try:
                inner = os.open(name, _FOLDER, dir_fd=folder)
            except OSError:  # closed, or gone meanwhile
                continue
            try:
                self.into(inner, f"{at}{name}/", depth + 1)
            finally:
                os.close(inner)
