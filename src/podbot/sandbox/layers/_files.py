"""How what lies in the layer folder is called, and how it is locked."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

META = "layer.json"
HIDDEN = "hidden.json"
FILLING = "filling"
DISCARDED = "discarded"
TRASH = ".trash-"
NAME = re.compile(rf"(?:{re.escape(TRASH)})?\d{{8}}-\d{{6}}-[0-9a-f]{{8}}")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock for a moment; `BlockingIOError` if someone else has it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
