"""One side of a change as bytes, read within bounds.

What is large or binary is recognised by its beginning and never held whole. A file that cannot be
read is a side with a problem, not an exception: the other changes can still be looked at.
"""

from __future__ import annotations

import os
from typing import BinaryIO

from podbot.changes.model import Change, ChangeSet, FileType, State
from podbot.frozen import dataclass
from podbot.sandbox import extents

MAX_BYTES = 8 * 1024 * 1024
"""Files larger than this are not compared line by line."""
MAX_LINES = 250_000
"""Nor are files with more lines than this."""
BINARY_CHECK = 8000
"""Where git, too, looks for a NUL to tell binary from text."""
MAX_ESCAPED = 64 * 1024
"""A file up to this size whose NULs alone keep it from being a text can be shown all the same."""
CHUNK = 1024 * 1024
"""How much of a file is held where it is not held whole."""


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of the contents: ``data`` if they are a text of a bearable size.

    Nothing at all (``size`` 0, ``data`` empty) stands for what git has no contents for: what is
    absent, a folder, a FIFO, …. ``with_nuls`` is a small file that is text but for its NULs: git
    calls it binary, and a person should see it.
    """

    size: int = 0
    data: bytes | None = b""
    binary: bool = False
    problem: str | None = None
    with_nuls: bytes | None = None

    @property
    def seen(self) -> bytes | None:
        """What a person can be shown line by line."""
        return self.with_nuls if self.data is None else self.data


NOTHING = Side()


def old_side(changes: ChangeSet, change: Change) -> Side:
    """The contents before."""
    return _side(changes, change, change.old, old=True)


def new_side(changes: ChangeSet, change: Change) -> Side:
    """The contents after."""
    return _side(changes, change, change.new, old=False)


def open_side(changes: ChangeSet, change: Change, old: bool) -> BinaryIO:
    """The file of a side; `OSError` where there is none."""
    return changes.contents.open_old(change) if old else changes.contents.open_new(change)


def _side(changes: ChangeSet, change: Change, state: State | None, old: bool) -> Side:
    if state is None:
        return NOTHING
    if state.type is FileType.LINK:
        data = os.fsencode(state.link or "")
        return Side(len(data), data)
    if state.type is not FileType.FILE:
        return NOTHING
    try:
        with open_side(changes, change, old) as file:
            return _read(file, state.size)
    except OSError as error:
        return Side(state.size, None, problem=error.strerror or str(error))


def _read(file: BinaryIO, size: int) -> Side:
    if size > MAX_BYTES:
        return Side(size, None, b"\0" in file.read(BINARY_CHECK))
    # One byte more than the state says, to see whether it is still true.
    data = file.read(size + 1)
    if len(data) != size:  # it is being written to: read on to its end, or to the limit
        data += extents.exactly(file, MAX_BYTES + 1 - len(data))
    if data.find(b"\0", 0, BINARY_CHECK) >= 0:
        kept = data if _is_text_but_for_nuls(data) else None
        return Side(len(data), None, binary=True, with_nuls=kept)
    if len(data) > MAX_BYTES or (len(data) > MAX_LINES and data.count(b"\n") > MAX_LINES):
        return Side(len(data), None)
    return Side(len(data), data)


def _is_text_but_for_nuls(data: bytes) -> bool:
    rest = data.replace(b"\0", b"") if len(data) <= MAX_ESCAPED else b""
    try:
        return bool(rest.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def same_bytes(changes: ChangeSet, change: Change) -> bool:
    """Whether both sides hold the same, without holding either in memory."""
    try:
        with (
            open_side(changes, change, old=True) as old,
            open_side(changes, change, old=False) as new,
        ):
            return extents.same(old, new)
    except OSError:
        return False
