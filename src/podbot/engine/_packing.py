"""Making a tar to send into a container, as a stream of bounded parts.

Modes are kept as given; owners are root's, as for everything in an image. Links are sent as links
and never followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Literal

from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass

CHUNK = 256 * 1024
MAX_DEPTH = 100

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """Something to pack: a file with contents, a folder, or a link to ``link``."""

    path: str
    kind: Literal["file", "folder", "symlink"] = "file"
    mode: int = 0o644
    data: bytes = b""
    link: str = ""
    uid: int = 0
    gid: int = 0
    mtime: float = 0.0


def pack(entries: Iterable[Entry]) -> Iterator[bytes]:
    """A tar of these entries."""
    for entry in entries:
        yield _header(entry, len(entry.data))
        if entry.data:
            yield entry.data + bytes(-len(entry.data) % 512)
    yield bytes(1024)


def pack_tree(source: str, name: str | None = None) -> Iterator[bytes]:
    """A tar of a host file or folder, under ``name``. What is neither file, folder nor link is left
    out. Kind ``io``."""
    try:
        yield from _pack_path(source, name or os.path.basename(os.path.abspath(source)), 0)
    except OSError as error:
        raise ContainerError(
            f"{error.filename or source} cannot be read: {error.strerror or error}",
            kind=Kind.IO,
            remedy="check that it is there and that you may read it",
            subject=source,
        ) from error
    yield bytes(1024)


def _pack_path(source: str, name: str, depth: int) -> Iterator[bytes]:
    found = os.lstat(source)
    mode, mtime = stat.S_IMODE(found.st_mode), found.st_mtime
    if stat.S_ISLNK(found.st_mode):
        entry = Entry(name, "symlink", mode, link=os.readlink(source), mtime=mtime)
        yield _header(entry, 0)
    elif stat.S_ISDIR(found.st_mode):
        if depth > MAX_DEPTH:
            raise ContainerError(f"{source} lies too deep", kind=Kind.TOO_LARGE, subject=source)
        yield _header(Entry(name, "folder", mode, mtime=mtime), 0)
        for below in sorted(os.listdir(source)):
            yield from _pack_path(os.path.join(source, below), f"{name}/{below}", depth + 1)
    elif stat.S_ISREG(found.st_mode):
        yield from _pack_file(source, Entry(name, "file", mode, mtime=mtime))


def _pack_file(source: str, entry: Entry) -> Iterator[bytes]:
    fd = os.open(source, _READ)
    try:
        size = os.fstat(fd).st_size
        yield _header(entry, size)
        left = size
        while left:
            part = os.read(fd, min(CHUNK, left))
            if not part:
                part = bytes(min(CHUNK, left))  # it shrank: the header has said its size
            left -= len(part)
            yield part
        yield bytes(-size % 512)
    finally:
        os.close(fd)


def _header(entry: Entry, size: int) -> bytes:
    import tarfile

    info = tarfile.TarInfo(entry.path)
    info.type = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE}[
        entry.kind
    ]
    info.mode, info.size, info.linkname = entry.mode, size, entry.link
    info.uid, info.gid, info.mtime = entry.uid, entry.gid, int(entry.mtime)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
