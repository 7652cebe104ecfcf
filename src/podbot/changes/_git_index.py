"""What a git index lists, without what it remembers of the files on disk.

Prompts and editors run `git status`, which writes the index anew with other times and inode numbers
and lists just what it listed before. Two indexes are the same here if they list the same: path,
mode, object, stage and flags. Extensions that are caches do not count; one that git must understand
to read the list (a split index, …) makes it unreadable, and what is unreadable is like nothing.

The bytes are a stranger's: every length is checked, and nothing is read twice.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import BinaryIO

MAX_SIZE = 32 * 1024 * 1024
"""A larger index is not read."""
LONGEST = 4096
"""The longest path that is believed; no file can have a longer one."""
MAX_PATHS = 2 * MAX_SIZE
"""Bytes of all paths together."""

NAME = "index"
_HEADER = struct.Struct(">4sII")
_STAT_AND_MODE = struct.Struct(">24xI12x")
_EXTENDED = 0x4000
_KEPT_FLAGS = 0xB000
"""Assume-valid and the stage; the rest is the length of the name, and what follows it."""
_PADDED = 8

Listing = tuple[tuple[bytes, int, bytes, int, int], ...]
"""Path, mode, object, flags and further flags of each entry, in order."""


class _MalformedError(Exception):
    """It is no index that is understood."""


def is_index(path: str) -> bool:
    """Whether a path is one where git keeps an index."""
    steps = path.split("/")
    return steps[-1] == NAME and ".git" in steps[:-1]


def same_listing(one: BinaryIO, other: BinaryIO) -> bool:
    """Whether two open files are indexes that list the same."""
    first = listing(one.read(MAX_SIZE + 1))
    return first is not None and first == listing(other.read(MAX_SIZE + 1))


def digest_of_listing(file: BinaryIO) -> str | None:
    """What an open index lists, in short; None if it is none, or cannot be read."""
    found = listing(file.read(MAX_SIZE + 1))
    return None if found is None else _digest("sha256", repr(found).encode()).hex()


def tracked_below(folder: str) -> frozenset[str]:
    """What the index of the host's repository around a folder lists in it, as seen from there."""
    top = folder
    while top and not os.path.lexists(f"{top}/.git"):
        top = top.rpartition("/")[0]
    if not top:
        return frozenset()
    data = f"{top}/.git"
    pointer = _read(data, LONGEST)
    if pointer.startswith(b"gitdir:"):
        data = os.path.join(top, os.fsdecode(pointer[len(b"gitdir:") :].strip()))
    prefix = os.fsencode(folder[len(top) + 1 :] + "/" if folder != top else "")
    return frozenset(
        os.fsdecode(path[len(prefix) :])
        for path, *_ in listing(_read(f"{data}/{NAME}", MAX_SIZE + 1)) or ()
        if path.startswith(prefix)
    )


def _read(path: str, most: int) -> bytes:
    """The start of a regular file of the host; nothing of anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return file.read(most) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except (OSError, ValueError):
        return b""


def listing(data: bytes) -> Listing | None:
    """What an index lists; None if it is none, or cannot be read."""
    for size, algorithm in ((20, "sha1"), (32, "sha256")):
        body, check = data[:-size], data[-size:]
        if len(data) > MAX_SIZE or len(body) < _HEADER.size:
            return None
        # Git may be told not to compute it: then it is all zeros.
        if any(check) and _digest(algorithm, body) != check:
            continue
        try:
            return _listed(body, size)
        except (_MalformedError, struct.error):
            continue
    return None


def _listed(body: bytes, hash_size: int) -> Listing:
    signature, version, count = _HEADER.unpack_from(body)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise _MalformedError
    fixed = _STAT_AND_MODE.size + hash_size + 2
    if count * (fixed + 1) > len(body):
        raise _MalformedError
    found = []
    at, path, length = _HEADER.size, b"", 0
    for _ in range(count):
        start = at
        (mode,) = _STAT_AND_MODE.unpack_from(body, at)
        at += _STAT_AND_MODE.size
        object_id = body[at : at + hash_size]
        (flags,) = struct.unpack_from(">H", body, at + hash_size)
        at += hash_size + 2
        further = 0
        if flags & _EXTENDED:
            if version == 2:
                raise _MalformedError
            (further,) = struct.unpack_from(">H", body, at)
            at += 2
        before = path
        if version == 4:
            strip, at = _varint(body, at)
            if strip > len(path):
                raise _MalformedError
            path = path[: len(path) - strip]
        else:
            path = b""
        end = body.find(b"\0", at)
        if end < 0 or len(path) + end - at > LONGEST:
            raise _MalformedError
        path += body[at:end]
        length += len(path)
        if length > MAX_PATHS:
            raise _MalformedError  # version 4 can make much of little
        at = end + 1
        if version != 4:
            at += -(at - start) % _PADDED
        stage = flags & _KEPT_FLAGS
        found.append((path, mode, object_id, stage, further))
        if not path or (len(found) > 1 and path < before):
            raise _MalformedError  # git sorts them
    _check_extensions(body, at)
    return tuple(found)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A number as pack files have offsets, and where it ends."""
    value = 0
    for step in range(5):
        if at >= len(body):
            break
        byte = body[at]
        at += 1
        value = (value + 1 << 7 if step else 0) | byte & 0x7F
        if not byte & 0x80:
            return value, at
    raise _MalformedError


def _check_extensions(body: bytes, at: int) -> None:
    """All to the end must be extensions that git itself may leave out."""
    while at < len(body):
        name, size = struct.unpack_from(">4sI", body, at)
        at += 8 + size
        optional = b"A" <= name[:1] <= b"Z"
        # Of a sparse index the folders are entries, too: that extension only says so.
        if at > len(body) or not (optional or (name == b"sdir" and not size)):
            raise _MalformedError


def _digest(algorithm: str, data: bytes) -> bytes:
    import hashlib  # slow to load, and most reviews meet no index

    return hashlib.new(algorithm, data, usedforsecurity=False).digest()
