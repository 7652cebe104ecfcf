"""What a sandbox changed, read from its layer and compared with the real folder.

Small on purpose: names, contents and links. Modes, times and renames, and applying a change, come
with podbot's change sets. Nothing in a layer is trusted: links are never followed, and odd bytes
are spelled out before a person sees them.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from podbot.sandbox import Layer


@dataclass(frozen=True, slots=True)
class Change:
    """One path that is not as it was; ``old`` and ``new`` are contents, None for nothing there."""

    path: str
    verb: Literal["added", "changed", "deleted"]
    old: bytes | None
    new: bytes | None

    def diff(self) -> list[str]:
        """The change as unified diff lines, safe to print."""
        if b"\0" in (self.old or b"") + (self.new or b""):
            return [f"binary file {self.path} {self.verb}"]
        lines = difflib.unified_diff(
            (self.old or b"").decode("utf-8", "backslashreplace").splitlines(),
            (self.new or b"").decode("utf-8", "backslashreplace").splitlines(),
            "/dev/null" if self.old is None else f"a/{self.path}",
            "/dev/null" if self.new is None else f"b/{self.path}",
            lineterm="",
        )
        return [printable(line) for line in lines]


def read_changes(layer: Layer, index: int = 0) -> list[Change]:
    """Every change to one target, sorted by path."""
    lower = Path(layer.targets[index])
    # A layer that is a copy hides all of the real folder, as an opaque folder does.
    found = _compare(layer.upper(index), lower, "", opaque=layer.method == "copy")
    return sorted(found, key=lambda change: change.path)


def _compare(upper: Path, lower: Path, prefix: str, opaque: bool) -> Iterator[Change]:
    names = set(os.listdir(upper))
    for name in names:
        above, below, path = upper / name, lower / name, prefix + name
        mode = above.lstat().st_mode
        if stat.S_ISCHR(mode) and above.lstat().st_rdev == 0:  # a whiteout: deleted
            yield from _deleted(below, path)
        elif stat.S_ISDIR(mode):
            covers = opaque or _is_opaque(above) or not _is_folder(below)
            if os.path.lexists(below) and not _is_folder(below):
                yield from _deleted(below, path)  # a file gave way to a folder
            if not os.path.lexists(below) and not os.listdir(above):
                yield Change(path + "/", "added", None, b"")
            yield from _compare(above, below, path + "/", covers)
        else:
            if _is_folder(below):
                yield from _deleted(below, path)  # a folder gave way to a file
            old = None if _is_folder(below) else _content(below)
            new = _content(above)
            if old != new:
                yield Change(path, "added" if old is None else "changed", old, new)
    if opaque and _is_folder(lower):
        for name in set(os.listdir(lower)) - names:
            yield from _deleted(lower / name, prefix + name)


def _deleted(lower: Path, path: str) -> Iterator[Change]:
    if _is_folder(lower):
        for name in sorted(os.listdir(lower)):
            yield from _deleted(lower / name, f"{path}/{name}")
    elif os.path.lexists(lower):
        yield Change(path, "deleted", _content(lower), None)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_opaque(folder: Path) -> bool:
    try:
        return os.getxattr(folder, "user.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False


def _content(path: Path) -> bytes | None:
    """A file's bytes, a link's target, a word for anything else; None if there is nothing."""
    if path.is_symlink():
        return b"link to " + os.fsencode(os.readlink(path))
    if path.is_file():
        return path.read_bytes()
    return b"special file" if os.path.lexists(path) else None


def printable(text: str) -> str:
    """Text from inside with control and bidirectional characters spelled out."""
    return "".join(
        char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode()
        for char in text
    )
