"""Contents as git stores them in patches: blob ids and binary literals.

Streams from open files in pieces, so that a file of any size costs no memory. A file that changes
between the two times it is read is noticed, never written into a patch half and half.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from base64 import b85encode
from collections.abc import Iterator
from typing import BinaryIO

from podbot.errors import ChangesError, Kind
from podbot.sandbox import extents

NO_BLOB = "0" * 40
"""The id of what is not there."""

_LINE = 52
# Git writes the number of bytes of a line as one letter.
_LENGTHS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ENCODED_LINE = 65
_BLOCK = _LINE * 1024


def blob_id(data: bytes) -> str:
    """The name git gives to contents that are in memory."""
    digest = _digest(len(data))
    digest.update(data)
    return digest.hexdigest()


def _digest(size: int) -> hashlib._Hash:
    # Git's names, which protect nothing here.
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def file_id(file: BinaryIO) -> tuple[str, int]:
    """The name git gives to an open file's contents, and their size."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    digest = _digest(size)
    read = 0
    for piece in extents.pieces(file):
        digest.update(piece)
        read += len(piece)
    if read != size:
        raise _changed()
    return digest.hexdigest(), size


def literal(file: BinaryIO, blob: str, size: int) -> Iterator[bytes]:
    """A file as one half of a binary patch. It must be what `file_id` said of it."""
    yield b"literal %d\n" % size
    file.seek(0)
    digest = _digest(size)
    packer = zlib.compressobj()
    waiting = b""
    for piece in extents.pieces(file):
        digest.update(piece)
        waiting += packer.compress(piece)
        whole = len(waiting) - len(waiting) % _BLOCK
        if whole:
            yield _encoded(waiting[:whole])
            waiting = waiting[whole:]
    if digest.hexdigest() != blob:
        raise _changed()
    yield _encoded(waiting + packer.flush()) + b"\n"


def _encoded(data: bytes) -> bytes:
    """Packed bytes as lines of git's base 85, each with its length in front."""
    text = b85encode(data, pad=True)
    lines = []
    for number, start in enumerate(range(0, len(data), _LINE)):
        length = min(_LINE, len(data) - start)
        at = number * _ENCODED_LINE
        lines.append(b"%c%s\n" % (_LENGTHS[length - 1], text[at : at + _ENCODED_LINE]))
    return b"".join(lines)


def _changed() -> ChangesError:
    return ChangesError(
        "a file changed while it was read",
        kind=Kind.IO,
        remedy="try again when nothing writes to it",
    )
