"""Files by their extents: what is data is read, and what is a hole is known to be zeros.

A disk image of gigabytes may hold a few blocks. Comparing, hashing and copying here cost what is
written, not what the size says. A file system that knows no holes calls everything data, so the
result never depends on them: holes that differ between two files of the same bytes do not count.
Must not know whose files these are, nor what becomes of them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import BinaryIO

CHUNK = 1 << 20
"""How much is held in memory of each file."""

_BEGINNING = 64 * 1024
_ZEROS = bytes(CHUNK)
_NO_HOLES_KNOWN = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})

Extent = tuple[int, int]
"""Where data begins, and where it ends."""


def data(fd: int, size: int) -> Iterator[Extent]:
    """Where the first ``size`` bytes of an open file have data, in order; moves its position."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left, or the file was cut short
                return
            if error.errno not in _NO_HOLES_KNOWN:
                raise
            start, end = at, size
        if start >= size or end <= at:
            return
        yield start, min(end, size)
        at = end


def amount(fd: int) -> int:
    """How many bytes of an open file are data: what a copy of it takes."""
    facts = os.fstat(fd)
    if facts.st_blocks * 512 >= facts.st_size:
        return facts.st_size
    return sum(end - start for start, end in data(fd, facts.st_size))


def copy(source: int, to: int) -> None:
    """Fill a new, empty file with what another has now, holes included."""
    size = os.fstat(source).st_size
    for start, end in data(source, size):
        at = start
        while at < end:
            chunk = os.pread(source, min(CHUNK, end - at), at)
            if not chunk:
                break  # it was cut short meanwhile: there is no more to copy
            at += os.pwrite(to, chunk, at)
    os.ftruncate(to, min(size, os.fstat(source).st_size))


def pieces(file: BinaryIO) -> Iterator[bytes]:
    """All bytes of a file from its beginning, never more than `CHUNK` of them at once."""
    size = _size_if_sparse(file)
    if size is None:
        while chunk := file.read(CHUNK):
            yield chunk
        return
    fd, at = file.fileno(), 0
    for start, end in data(fd, size):
        yield from _zeros(start - at)
        at = start
        while at < end:
            chunk = os.pread(fd, min(CHUNK, end - at), at)
            if not chunk:
                return  # it was cut short meanwhile
            yield chunk
            at += len(chunk)
    yield from _zeros(size - at)


def same(one: BinaryIO, other: BinaryIO) -> bool:
    """Whether two files, open at their beginning, hold the same bytes."""
    count = _BEGINNING
    while True:
        ours, theirs = exactly(one, count), exactly(other, count)
        if ours != theirs:
            return False
        if len(ours) < count:
            return True
        count = CHUNK
        # Most files end before; only of those that do not it is worth asking for holes.
        if _size_if_sparse(one) is not None and _size_if_sparse(other) is not None:
            return _same_data(one.fileno(), other.fileno())


def _same_data(one: int, other: int) -> bool:
    size = os.fstat(one).st_size
    if os.fstat(other).st_size != size:
        return False
    for start, end in _either(data(one, size), data(other, size)):
        for at in range(start, end, CHUNK):
            length = min(CHUNK, end - at)
            if _read_at(one, length, at) != _read_at(other, length, at):
                return False
    return True


def _either(ours: Iterator[Extent], theirs: Iterator[Extent]) -> Iterator[Extent]:
    """Where one or the other has data, each place once."""
    done = 0
    one, other = next(ours, None), next(theirs, None)
    while one or other:
        if other is None or (one is not None and one <= other):
            extent, one = one, next(ours, None)
        else:
            extent, other = other, next(theirs, None)
        assert extent is not None  # noqa: S101 - one of them is there
        start, end = max(extent[0], done), extent[1]
        if start < end:
            yield start, end
            done = end


def exactly(file: BinaryIO, size: int) -> bytes:
    """So many bytes, fewer only at the end: a raw file may give fewer at any time."""
    found = file.read(size)
    while found and len(found) < size:
        more = file.read(size - len(found))
        if not more:
            break
        found += more
    return found


def _read_at(fd: int, size: int, at: int) -> bytes:
    found = os.pread(fd, size, at)
    while found and len(found) < size:
        more = os.pread(fd, size - len(found), at + len(found))
        if not more:
            break
        found += more
    return found


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield _ZEROS[:count]
        count -= CHUNK


def _size_if_sparse(file: BinaryIO) -> int | None:
    """How large a file is that has holes; None for any other, and for what is not on a disk."""
    try:
        facts = os.fstat(file.fileno())
    except (OSError, ValueError, AttributeError):
        return None
    return facts.st_size if facts.st_blocks * 512 < facts.st_size else None
