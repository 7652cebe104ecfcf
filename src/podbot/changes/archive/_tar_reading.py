"""Reading a tar archive that may lie: only what `_tar` writes, and all of it checked.

What other programs also write (GNU long names, global headers, prefixes, numbers in base 256, other
types) is refused: each is another way to say something twice. A stream is enough.
Sizes are checked before anything is held in memory. Nothing here touches a file system.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from podbot.changes.archive._tar import (
    BLOCK,
    CHUNK,
    MAX_SEGMENTS,
    RECORD,
    XATTR,
    Member,
    MemberType,
    Segments,
    bad,
    shown,
)

MAX_PAX = 1 << 20
"""The largest extended header that is read, in bytes."""

_RECORD = re.compile(rb"([1-9]\d{0,6}) ([^=\n\0]{1,300})=")
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_SECONDS = re.compile(rb"(-?)(\d{1,12})(?:\.(\d{1,9}))?")


class Reader:
    """The members of an archive, one after the other, from a stream that may lie."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._left = 0
        self._padding = 0

    def member(self) -> Member | None:
        """The next member, None at the end. What was not read of the last one is an error."""
        if self._left:
            raise bad("its data was not read")
        self._skip_padding()
        block = self._block()
        if not block.strip(b"\0"):
            self._end()
            return None
        records: dict[str, bytes] = {}
        if block[156:157] == b"x":
            size = _checked(block).size
            if size > MAX_PAX:
                raise bad("an extended header is too large")
            records = _records(self._exactly(size))
            self._exactly(-size % BLOCK)
            block = self._block()
            if block[156:157] == b"x":
                raise bad("a member has two extended headers")
        return self._described(_checked(block), records)

    def data(self, size: int) -> bytes:
        """Up to so many bytes of the data of the member; empty at its end."""
        if not self._left:
            return b""
        found = self._exactly(min(size, self._left, CHUNK))
        self._left -= len(found)
        return found

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
        if self._left:
            raise bad("it has more data than its size", member.name)

    def _described(self, plain: Member, records: Mapping[str, bytes]) -> Member:
        extended = _Extended(records, plain)
        stored = extended.number("size", plain.size)
        if plain.type is not MemberType.FILE and stored:
            raise bad("it has data and should have none", plain.name)
        self._left, self._padding = stored, -stored % BLOCK
        size, segments = stored, None
        if "GNU.sparse.major" in records:
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
            raise bad("its holes are told in a way that is not known", extended.name)
        read = 0

        def numbers() -> Iterator[int]:
            nonlocal read
            held = b""
            while True:
                line, newline, rest = held.partition(b"\n")
                if newline:
                    held = rest
                    yield _number(line, extended.name)
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
                raise bad("its holes make no sense", extended.name)
            segments.append((start, length))
            end = start + length
        if sum(length for _, length in segments) != self._left:
            raise bad("its data and its holes do not agree", extended.name)
        return tuple(segments)

    def _skip_padding(self) -> None:
        if self._padding and self._exactly(self._padding).strip(b"\0"):
            raise bad("something hides between its members")
        self._padding = 0

    def _end(self) -> None:
        if self._block().strip(b"\0"):
            raise bad("it ends in the middle")
        rest = self._file.read(RECORD)
        if rest and rest.strip(b"\0"):
            raise bad("something follows its end")

    def _block(self) -> bytes:
        return self._exactly(BLOCK)

    def _exactly(self, size: int) -> bytes:
        """So many bytes, never more than the largest extended header at a time."""
        found = bytearray()
        while len(found) < size:
            chunk = self._file.read(min(size - len(found), CHUNK))
            if not chunk:
                raise bad("it is cut off")
            found += chunk
        return bytes(found)


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
        number = default if value is None else _number(value, self.name)
        if number < 0:
            raise bad(f"{key} is missing", self.name)
        return number

    def mtime(self, default: int) -> int:
        value = self._records.get("mtime")
        if value is None:
            return default
        match = _SECONDS.fullmatch(value)
        if match is None:
            raise bad("its time makes no sense", self.name)
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


def _records(text: bytes) -> dict[str, bytes]:
    """The records of an extended header: known ones only, each once."""
    found: dict[str, bytes] = {}
    at = 0
    while at < len(text):
        match = _RECORD.match(text, at)
        if match is None:
            raise bad("an extended header is broken")
        end = at + int(match[1])
        if end > len(text) or end <= match.end() or text[end - 1 : end] != b"\n":
            raise bad("an extended header is broken")
        key = os.fsdecode(match[2])
        if key in found or not (key in _KNOWN or key.startswith(XATTR)):
            raise bad(f"an extended header has an unknown or double entry {shown(key)}")
        found[key] = text[match.end() : end - 1]
        at = end
    return found


def _checked(block: bytes) -> Member:
    """The fields of a plain header whose checksum is right; "x" counts as a file here."""
    if block[257:265] != b"ustar\x0000":
        raise bad("it is not a tar archive of the right kind")
    if _octal(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * 32:
        raise bad("a header is damaged")
    if _until_zero(block[345:500]):
        raise bad("a header uses a prefix")
    name = os.fsdecode(_until_zero(block[:100]))
    letter = block[156:157]
    try:
        type = MemberType.FILE if letter == b"x" else MemberType(letter.decode("latin-1"))
    except ValueError:
        raise bad("it is of a kind that no change has", name) from None
    if type is MemberType.WHITEOUT and (_octal(block[329:337]) or _octal(block[337:345])):
        raise bad("it is a device, and not the mark of a deletion", name)
    mode = _octal(block[100:108])
    if mode > 0o7777:
        raise bad("its mode makes no sense", name)
    return Member(
        name,
        type,
        mode,
        _octal(block[108:116]),
        _octal(block[116:124]),
        _octal(block[124:136]),
        _octal(block[136:148]) * 10**9,
        os.fsdecode(_until_zero(block[157:257])),
    )


def _until_zero(field: bytes) -> bytes:
    text, _, rest = field.partition(b"\0")
    if rest.strip(b"\0"):
        raise bad("a header is damaged")
    return text


def _octal(field: bytes) -> int:
    match = _OCTAL.fullmatch(field)
    if match is None:
        raise bad("a number in a header makes no sense")
    return int(match[1] or b"0", 8)


def _number(text: bytes, name: str) -> int:
    if not re.fullmatch(rb"\d{1,18}", text):
        raise bad("a number makes no sense", name)
    return int(text)
