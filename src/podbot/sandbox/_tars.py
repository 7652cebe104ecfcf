"""Trees as tar streams, into a sandbox and out of it: for programs that have an archive already.

Built on the verbs of `ops`, as `transfer` is, and as wary: what a guest lists is checked by name,
and an archive that comes from anywhere is read by `tar_reading`, member by member. No member leads
out of the folder it is unpacked in, through a link neither, and nothing of the host is touched.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Protocol

from podbot.errors import FileError, Kind
from podbot.sandbox import ops, wire
from podbot.sandbox._transfer import MAX_ENTRIES, names_below, stays_inside
from podbot.sandbox.ops import Op
from podbot.sandbox.values import FileInfo, TransferResult
from podbot.tar_reading import Header, Rules, TarStream
from podbot.visible import visible

LONGEST_NAME = 64 * 1024
"""The longest name, and the longest extended header, of a member."""


class Writable(Protocol):
    """What a tar stream is written to: a file, a socket's file, a buffer."""

    def write(self, data: bytes, /) -> object:
        """Take some bytes."""


class Readable(Protocol):
    """What a tar stream is read from."""

    def read(self, size: int, /) -> bytes:
        """Give at most so many bytes, and none at the end."""


# Out


def download_tar(path: str, stream: Writable, max_bytes: int) -> Op[TransferResult]:
    """Write a file or a folder as a tar; a folder's members are named from it down."""
    info = yield from ops.stat(path, follow=True)
    entries = [info]
    if info.is_dir:
        entries = yield from ops.list_(path, recursive=True, max_entries=MAX_ENTRIES)
        if len(entries) > MAX_ENTRIES:
            raise wire.broken("more entries than asked for")
    files = size = 0
    skipped: list[tuple[str, str]] = []
    for entry in entries:
        name = "/".join(names_below(path, entry.path)) if info.is_dir else _base(path)
        if not (entry.is_file or entry.is_dir or entry.kind == "link"):
            skipped.append((name, f"a {entry.kind}"))
            continue
        if entry.kind == "link" and not ops.is_native(entry.link_target):
            skipped.append((name, "a link that leads to no name"))
            continue
        member = _member(name, entry)
        if entry.is_file:
            if size + entry.size > max_bytes:
                raise _too_large(max_bytes)
            stream.write(_header(member))
            yield from _send_file(entry, stream)
            files, size = files + 1, size + entry.size
        else:
            stream.write(_header(member))
    stream.write(bytes(2 * tarfile.BLOCKSIZE))
    return TransferResult(files, size, tuple(skipped))


def _send_file(entry: FileInfo, stream: Writable) -> Op[None]:
    """Exactly the bytes its header says: one that shrank is an error, one that grew is cut."""
    got = yield from ops.read_into(
        entry.path, lambda part: stream.write(bytes(part)), 0, entry.size
    )
    if got != entry.size:
        raise FileError(
            f"{visible(entry.path)} changed while it was read",
            kind=Kind.IO,
            remedy="try again when nothing writes to it",
        )
    stream.write(bytes(-entry.size % tarfile.BLOCKSIZE))


def _member(name: str, entry: FileInfo) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode = entry.mode
    member.mtime = entry.mtime_ns // 1_000_000_000
    if entry.is_dir:
        member.type = tarfile.DIRTYPE
    elif entry.is_file:
        member.size = entry.size
    else:
        member.type, member.linkname = tarfile.SYMTYPE, entry.link_target or ""
    return member


def _header(member: tarfile.TarInfo) -> bytes:
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


# In


def upload_tar(stream: Readable, path: str, max_bytes: int) -> Op[TransferResult]:
    """Unpack a tar into the folder ``path``, which is made if it is not there."""
    root = path.rstrip("/") or "/"
    yield from ops.mkdir(root, parents=True, exist_ok=True)
    tar = TarStream(stream.read, Rules(_bad, LONGEST_NAME, foreign=True, headers=4 * MAX_ENTRIES))
    files = size = 0
    skipped: list[tuple[str, str]] = []
    links: set[tuple[str, ...]] = set()
    while (header := tar.header()) is not None:
        names = _names_of(header)
        if not names:
            continue  # the folder itself
        place = "/".join((root.rstrip("/"), *names))
        shown = "/".join(names)
        if any(names[:depth] in links for depth in range(1, len(names))):
            raise _bad(f"{visible(shown)} lies behind a link of the archive")
        if header.letter in _FILES:
            if size + tar.left > max_bytes:
                raise _too_large(max_bytes)
            if names in links:  # a file in the place of a link is no way through it
                yield from ops.remove(place, recursive=False, missing_ok=True)
                links.discard(names)
            size += yield from ops.write_from(place, _parts(tar), "replace", header.mode & 0o777)
            files += 1
        elif header.letter == tarfile.DIRTYPE:
            yield from ops.mkdir(place, parents=True, exist_ok=True)
        elif header.letter == tarfile.SYMTYPE:
            target = _text(header.records.get("linkpath", header.link))
            if not stays_inside(len(names) - 1, target):
                skipped.append((shown, "a link that leads out"))
                continue
            yield from ops.remove(place, recursive=False, missing_ok=True)
            yield from ops.symlink(place, target)
            links.add(names)
        else:
            skipped.append((shown, "neither a file, a folder nor a link"))
    return TransferResult(files, size, tuple(skipped))


_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)


def _names_of(header: Header) -> tuple[str, ...]:
    """Where a member goes, from the folder down; none for the folder itself."""
    name = _text(header.records.get("path", header.name))
    names = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in names or not all(ops.is_native(part) for part in names):
        raise _bad(f"a member is named {visible(name[:200])}, which leads out")
    return names


def _parts(tar: TarStream) -> Iterator[bytes]:
    while part := tar.part(ops.PART):
        yield part


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _bad(problem: str) -> FileError:
    return FileError(
        f"this is no tar that can be unpacked: {problem}",
        kind=Kind.INVALID,
        remedy="pack it again, uncompressed, with plain relative names",
    )


def _too_large(max_bytes: int) -> FileError:
    return FileError(
        f"more than {max_bytes} bytes to copy",
        kind=Kind.TOO_LARGE,
        remedy="raise max_bytes=, or copy a part of it",
    )
