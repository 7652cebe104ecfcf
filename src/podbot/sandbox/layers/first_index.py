"""Git's index of a target as a sandbox found it, kept in the layer.

Git on the host writes the index anew whenever it looks (`git status`, a prompt, an editor), and git
inside replaces it, so that nothing of the first is left in the layer. What it listed is needed to
tell such a look from work of the host's. The bytes are kept as they are: to read what they list
would take longer than the start of a sandbox may.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from podbot.sandbox import extents

PATH = ".git/index"
MAX_SIZE = 16 * 1024 * 1024
"""A larger one is not kept: more than a hundred thousand files, and too slow to copy."""


def file(layer: Path, index: int) -> str:
    """Where that of a target is, in a layer that has it."""
    return f"{os.fspath(layer)}/{index}.index"


def keep(layer: Path, index: int, target: str) -> None:
    """Keep that of a target, if there is one; what cannot be kept makes a conflict more."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        source = os.open(f"{target}/{PATH}", os.O_RDONLY | flags)
    except OSError:
        return
    try:
        facts = os.fstat(source)
        if stat.S_ISREG(facts.st_mode) and facts.st_size <= MAX_SIZE:
            _copied(source, file(layer, index))
    finally:
        os.close(source)


def _copied(source: int, path: str) -> None:
    try:
        to = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        extents.copy(source, to)
    except OSError:  # the disk is full: half of one says nothing
        os.unlink(path)
    finally:
        os.close(to)
