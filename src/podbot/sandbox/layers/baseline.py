"""A manifest of a plain folder: enough to tell later, without a copy, what was touched since.

Used for a sandbox whose files are a copy (the fallback of the overlay backend, a filled container
workspace): the manifest of the copy is made before anything runs over it. The ctime of an entry
cannot be set, so an entry whose inode and ctime are as they were was not touched.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from podbot.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Baseline:
    """Inode and ctime of everything that was in a folder, by relative path."""

    entries: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> Baseline:
        """What is in a folder now; links are not followed."""
        return cls(dict(_walk(os.fspath(folder))))

    @classmethod
    def read(cls, file: Path) -> Baseline:
        """A manifest that was written before."""
        entries = {}
        with open(file, encoding="ascii") as lines:
            for line in lines:
                path, inode, ctime = json.loads(line)
                entries[str(path)] = (int(inode), int(ctime))
        return cls(entries)

    def write(self, file: Path) -> None:
        """Keep it, whole or not at all."""
        draft = file.with_name(f"{file.name}.new")
        with open(draft, "w", encoding="ascii") as lines:
            for path, (inode, ctime) in self.entries.items():
                lines.write(json.dumps([path, inode, ctime]) + "\n")
        os.rename(draft, file)

    def untouched(self, path: str, facts: os.stat_result) -> bool:
        """Whether an entry is the one that was there, as it was. For folders: the same one."""
        known = self.entries.get(path)
        if known is None or known[0] != facts.st_ino:
            return False
        return stat.S_ISDIR(facts.st_mode) or known[1] == facts.st_ctime_ns


def _walk(root: str) -> Iterator[tuple[str, tuple[int, int]]]:
    folders = [(root, "")]
    while folders:
        folder, prefix = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                path = prefix + entry.name
                facts = entry.stat(follow_symlinks=False)
                yield path, (facts.st_ino, facts.st_ctime_ns)
                if stat.S_ISDIR(facts.st_mode):
                    folders.append((entry.path, f"{path}/"))
