"""The members of an archive of changes, which may lie: only what `_tar` writes, all of it checked.

`podbot.tar_reading` checks the format and refuses what other programs also write. Here is what a
member may be, with its holes. Sizes are checked before anything is held in memory. Nothing here
touches a file system.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from podbot.changes.archive._tar import (
    MAX_SEGMENTS,
    XATTR,
    Member,
    MemberType,
    Segments,
    bad,
    shown,
)
from podbot.tar_reading import BLOCK, Header, Rules, TarStream, decimal

MAX_PAX = 1 << 20
"""The largest extended header that is read, in bytes."""

_SECONDS = re.compile(rb"(-?)(\d{1,12})(?:\.(\d{1,9}))?")


class Reader:
    """The members of an archive, one after the other, from a stream that may lie."""

    def __init__(self, file: BinaryIO):
        self._stream = TarStream(
            file.read, Rules(lambda message: bad(shown(message)), MAX_PAX, known=_is_known)
        )

    def member(self) -> Member | None:
        """The next member, None at the end. What was not read of the last one is an error."""
        if self._stream.left:
            raise bad("its data was not read")
        header = self._stream.header()
        return None if header is None else self._described(header)

    def data(self, size: int) -> bytes:
        """Up to so many bytes of the data of the member; empty at its end."""
        return self._stream.data(size)

    def chunks(self, member: Member) -> Iterator[tuple[int, bytes]]:
        """The data of a file with the offset of each piece; holes are left out."""
        for start, length in (
            member.segments if member.segments is not None else ((0, member.size),)
        ):
            offset, end = start, start + length
            while offset < end:
                chunk = self.data(end - offset)
                if not chunk:
                    raise bad("its data ends too soon", member.name)
                yield offset, chunk
                offset += len(chunk)
        if self._stream.left:
            raise bad("it has more data than its size", member.name)

    def _described(self, header: Header) -> Member:
        plain = _plain(header)
        extended = _Extended(header.records, plain)
        stored = self._stream.left
        if plain.type is not MemberType.FILE and stored:
            raise bad("it has data and should have none", plain.name)
        size, segments = stored, None
        if "GNU.sparse.major" in header.records:
            size = extended.number("GNU.sparse.realsize", -1)
            segments = self._segments(extended, size)
        name = extended.text("GNU.sparse.name" if segments is not None else "path", plain.name)
        if plain.type is MemberType.FOLDER:
            name = name.removesuffix("/")
        return Member(
            name,
            plain.type,
            plain.mode,
            extended.number("uid", plain.uid),
            extended.number("gid", plain.gid),
            size,
            extended.mtime(plain.mtime_ns),
            extended.text("linkpath", plain.link),
            extended.xattrs(),
            segments,
        )

    def _segments(self, extended: _Extended, size: int) -> Segments:
        if extended.number("GNU.sparse.major", 0) != 1 or extended.number("GNU.sparse.minor", 1):
            raise bad("its holes are described in an unknown way", extended.name)
        read = 0

        def numbers() -> Iterator[int]:
            nonlocal read
            held = b""
            while True:
                line, newline, rest = held.partition(b"\n")
                if newline:
                    held = rest
                    yield _decimal(line, extended.name)
                    continue
                block = self.data(BLOCK)
                if len(block) < BLOCK or len(held) > BLOCK:
                    raise bad("the list of its holes is broken", extended.name)
                read += BLOCK
                held += block

        found = numbers()
        count = next(found)
        if count > MAX_SEGMENTS:
            raise bad("it has too many holes", extended.name)
        segments, end = [], 0
        for _ in range(count):
            start, length = next(found), next(found)
            if start < end or start + length > size:
                raise bad("its holes are not valid", extended.name)
            segments.append((start, length))
            end = start + length
        if sum(length for _, length in segments) != self._stream.left:
            raise bad("its data and its holes do not agree", extended.name)
        return tuple(segments)


class _Extended:
    """The records of an extended header over the fields of the plain one."""

    def __init__(self, records: Mapping[str, bytes], plain: Member):
        self._records = records
        self.name = self.text("path", plain.name)

    def text(self, key: str, default: str) -> str:
        value = self._records.get(key)
        return default if value is None else os.fsdecode(value)

    def number(self, key: str, default: int) -> int:
        value = self._records.get(key)
        number = default if value is None else _decimal(value, self.name)
        if number < 0:
            raise bad(f"{key} is missing", self.name)
        return number

    def mtime(self, default: int) -> int:
        value = self._records.get("mtime")
        if value is None:
            return default
        match = _SECONDS.fullmatch(value)
        if match is None:
            raise bad("its time is not valid", self.name)
        ns = int(match[2]) * 10**9 + int((match[3] or b"0").ljust(9, b"0"))
        return -ns if match[1] else ns

    def xattrs(self) -> tuple[tuple[str, bytes], ...]:
        return tuple(
            sorted(
                (key[len(XATTR) :].replace("%3D", "=").replace("%25", "%"), value)
                for key, value in self._records.items()
                if key.startswith(XATTR)
            )
        )


_KNOWN = frozenset(
    {
        "path", "linkpath", "size", "mtime", "uid", "gid", "hdrcharset",
        "GNU.sparse.major", "GNU.sparse.minor", "GNU.sparse.name", "GNU.sparse.realsize",
    }
)  # fmt: skip


def _is_known(key: str) -> bool:
    return key in _KNOWN or key.startswith(XATTR)


def _plain(header: Header) -> Member:
    """The fields of a plain header."""
    name = os.fsdecode(header.name)
    try:
        type = MemberType(header.letter.decode("latin-1"))
    except ValueError:
        raise bad("it is of a kind that no change has", name) from None
    if type is MemberType.WHITEOUT and header.device != (0, 0):
        raise bad("it is a device, and not the mark of a deletion", name)
    return Member(
        name,
        type,
        header.mode,
        header.uid,
        header.gid,
        header.size,
        header.mtime * 10**9,
        os.fsdecode(header.link),
    )


def _decimal(text: bytes, name: str) -> int:
    return decimal(text, lambda message: bad(message, name))
