"""The tar format, as far as podbot writes it: what a member is, and its headers as bytes.

Every member is a PAX header and a ustar header, so that other programs read the archive as well.
Nothing here touches a file system. `_tar_reading` takes exactly this and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum

from podbot.changes import next_steps
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass
from podbot.tar_reading import BLOCK, RECORD
from podbot.visible import visible

MAX_SEGMENTS = 4096
"""How many pieces of data a file with holes may be stored in."""
MAX_ID, MAX_SIZE = 0o7777777, 0o77777777777
"""The largest numbers that the fields of a plain header hold."""
XATTR = "SCHILY.xattr."
OPAQUE = "user.overlay.opaque"

Segments = tuple[tuple[int, int], ...]
"""Where the data of a file with holes is: offsets and lengths, in order."""


class MemberType(StrEnum):
    """What a member is, by its letter in the archive."""

    FILE = "0"
    HARD_LINK = "1"
    LINK = "2"
    WHITEOUT = "3"
    FOLDER = "5"
    FIFO = "6"


@dataclass(frozen=True, slots=True)
class Member:
    """One member. ``size`` counts holes; names are as `os.fsdecode` gives them."""

    name: str
    type: MemberType
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    mtime_ns: int = 0
    link: str = ""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    segments: Segments | None = None


def bad(message: str, name: str | None = None) -> ChangesError:
    """The error for an archive that is not what it should be, with the member it is about."""
    where = f"{shown(name)}: " if name is not None else ""
    return ChangesError(
        f"the archive cannot be loaded: {where}{message}",
        kind=Kind.BAD_ARCHIVE,
        remedy=next_steps.SAVED_ALONE,
    )


def shown(name: str, limit: int = 200) -> str:
    """A name from an archive, safe to show."""
    text = visible(name).replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= limit else f"{text[:limit]}…"


# Writing

_PAX = Member("", MemberType.FILE, 0o644)


def header(member: Member) -> bytes:
    """The headers of a member; its data follows, padded (see `padding`)."""
    stored = member.size if member.type is MemberType.FILE else 0
    ending = "/" if member.type is MemberType.FOLDER else ""
    name, records = os.fsencode(member.name + ending), {"mtime": _decimal(member.mtime_ns)}
    if member.segments is not None:
        records |= {"GNU.sparse.major": b"1", "GNU.sparse.minor": b"0"}
        records |= {"GNU.sparse.name": name, "GNU.sparse.realsize": b"%d" % member.size}
        stored = len(_sparse_map(member.segments)) + sum(size for _, size in member.segments)
        name = b"GNUSparseFile.0/" + name[-60:].rpartition(b"/")[2]
    if not name.isascii() or len(name) > 100:
        records["path"] = name
    link = os.fsencode(member.link)
    if not link.isascii() or len(link) > 100:
        records["linkpath"] = link
    numbers = (("uid", member.uid, MAX_ID), ("gid", member.gid, MAX_ID), ("size", stored, MAX_SIZE))
    records |= {key: b"%d" % number for key, number, limit in numbers if number > limit}
    for xattr, value in member.xattrs:
        records[XATTR + xattr.replace("%", "%25").replace("=", "%3D")] = value
    extended = _pax(records)
    short = name[-80:].rpartition(b"/")[2]
    about = _ustar(b"PaxHeaders/" + short, b"x", len(extended), _PAX)
    return (
        about + extended + padding(len(extended))
        + _ustar(name, member.type.encode(), stored, member, link)
        + (_sparse_map(member.segments) if member.segments is not None else b"")
    )  # fmt: skip


def padding(size: int) -> bytes:
    """What fills the last block of so many bytes."""
    return bytes(-size % BLOCK)


def end_of(written: int) -> bytes:
    """What ends an archive of so many bytes."""
    return bytes(2 * BLOCK + -(written + 2 * BLOCK) % RECORD)


def _pax(records: Mapping[str, bytes]) -> bytes:
    lines = []
    if not all(_is_utf8(value) for value in records.values()):
        records = {"hdrcharset": b"BINARY", **records}
    for key, value in records.items():
        body = b" %s=%s\n" % (os.fsencode(key), value)
        length = len(body) + 1
        while len(b"%d" % length) + len(body) != length:
            length = len(b"%d" % length) + len(body)
        lines.append(b"%d%s" % (length, body))
    return b"".join(lines)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _ustar(name: bytes, letter: bytes, size: int, member: Member, link: bytes = b"") -> bytes:
    """A plain header; what does not fit into it is in the extended one."""
    before = b"".join(
        (
            _field(name),
            b"%07o\0" % member.mode,
            b"%07o\0" % _fitting(member.uid, MAX_ID),
            b"%07o\0" % _fitting(member.gid, MAX_ID),
            b"%011o\0" % _fitting(size, MAX_SIZE),
            b"%011o\0" % _fitting(max(member.mtime_ns // 10**9, 0), MAX_SIZE),
        )
    )
    after = letter + _field(link) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(167)
    return before + b"%06o\0 " % (sum(before) + sum(after) + 8 * 32) + after


def _field(text: bytes) -> bytes:
    if not text.isascii():
        text = text.decode("ascii", "replace").replace("\ufffd", "_").encode("ascii")
    return text[:100].ljust(100, b"\0")


def _fitting(number: int, limit: int) -> int:
    return number if number <= limit else 0


def _decimal(ns: int) -> bytes:
    seconds, rest = divmod(abs(ns), 10**9)
    return b"%s%d.%09d" % (b"-" if ns < 0 else b"", seconds, rest)


def _sparse_map(segments: Segments) -> bytes:
    text = b"".join(
        b"%d\n" % number for number in (len(segments), *(n for s in segments for n in s))
    )
    return text + padding(len(text))
