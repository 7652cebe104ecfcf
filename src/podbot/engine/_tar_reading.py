"""Reading a tar that came out of a container, as the hostile thing it is.

A stream in, members out, one at a time, in bounded memory: the standard library's reader takes a
header's word for how much to read at once, knows formats that nobody sends, and raises what it
likes. Every name is checked here; nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass

BLOCK = 512
MAX_NAMES = 64 * 1024
"""The most bytes of a header that holds long names."""
MAX_MEMBERS = 1_000_000
MAX_DEPTH = 200
MAX_NAME = 255
CHUNK = 256 * 1024

MemberKind = Literal["file", "folder", "symlink", "hardlink", "other"]
Read = Callable[[int], bytes]

_KINDS: dict[bytes, MemberKind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hardlink",
    b"2": "symlink",
    b"5": "folder",
    b"3": "other",
    b"4": "other",
    b"6": "other",
}


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of an archive. ``path`` is its names from the top, none of them special."""

    path: tuple[str, ...]
    kind: MemberKind
    mode: int
    size: int
    mtime: float
    link: str = ""


class TarReader:
    """The members of a tar stream. ``read(n)`` gives at most n bytes, nothing at the end."""

    def __init__(self, read: Read):
        self._read = read
        self._kept = b""
        self._left = 0  # of the present member's data
        self._padding = 0

    def members(self) -> Iterator[Member]:
        """Each member; read its data with `data` before taking the next."""
        long: dict[str, str] = {}
        for _ in range(MAX_MEMBERS):
            self._skip()
            header = self._block()
            if not header.strip(b"\0"):
                self._drain()
                return
            _check_sum(header)
            kind, size = header[156:157], _number(header[124:136])
            self._left, self._padding = size, -size % BLOCK
            if kind in (b"x", b"g"):
                records = _pax(self._names(size))
                long |= records if kind == b"x" else {}
            elif kind in (b"L", b"K"):
                name = self._names(size).rstrip(b"\0").decode("utf-8", "surrogateescape")
                long["path" if kind == b"L" else "linkpath"] = name
            else:
                yield self._member(header, long)
                long = {}
        raise bad(f"it has more than {MAX_MEMBERS} entries")

    def data(self) -> Iterator[bytes]:
        """The present member's contents, in parts."""
        while self._left:
            yield self._take(min(CHUNK, self._left))

    def _member(self, header: bytes, long: dict[str, str]) -> Member:
        kind = _KINDS.get(header[156:157])
        if kind is None or any(name.startswith("GNU.sparse") for name in long):
            raise bad("it has an entry of an unknown kind")
        if "size" in long:
            self._left = _decimal(long["size"])
        if kind not in ("file", "hardlink") and self._left:
            raise bad("an entry without contents has some")
        self._padding = -self._left % BLOCK
        name = long.get("path") or _header_name(header)
        link = long.get("linkpath") or _text(header[157:257])
        return Member(
            path=safe_path(name),
            kind=kind,
            mode=_number(header[100:108]) & 0o7777,
            size=self._left,
            mtime=_seconds(long.get("mtime"), header),
            link=link if kind in ("symlink", "hardlink") else "",
        )

    def _names(self, size: int) -> bytes:
        if size > MAX_NAMES:
            raise bad("it has names that are too long")
        return b"".join(self.data())

    def _skip(self) -> None:
        for _ in self.data():
            pass
        while self._padding:
            part = self._some(self._padding)
            if not part:
                raise bad("it was cut short")
            self._padding -= len(part)

    def _block(self) -> bytes:
        header = b""
        while len(header) < BLOCK:
            part = self._some(BLOCK - len(header))
            if not part:
                if header:
                    raise bad("it was cut short")
                return b""  # some writers leave out the empty blocks at the end
            header += part
        return header

    def _take(self, limit: int) -> bytes:
        part = self._some(limit)
        if not part:
            raise bad("it was cut short")
        self._left -= len(part)
        return part

    def _some(self, limit: int) -> bytes:
        return self._read(limit)

    def _drain(self) -> None:
        """Read what is left, so that the connection can be used again."""
        while self._read(CHUNK):
            pass


def safe_path(name: str) -> tuple[str, ...]:
    """The parts of a name, if none of them could lead anywhere else."""
    if name.startswith("/") or "\0" in name:
        raise bad("a name in it is not relative")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise bad("a name in it leads out of it")
    if len(parts) > MAX_DEPTH or any(len(part.encode("utf-8", "surrogateescape")) > MAX_NAME
                                     for part in parts):  # fmt: skip
        raise bad("a name in it is too long")
    return parts


def bad(why: str) -> ContainerError:
    """The error for an archive that is not what it should be."""
    return ContainerError(
        f"the archive from the container cannot be used: {why}",
        kind=Kind.BAD_ARCHIVE,
        remedy="nothing of it was kept; look at what is in the container",
    )


def looks_like_tar(header: bytes) -> bool:
    """Whether a first block can begin a tar."""
    if len(header) < BLOCK:
        return False
    try:
        return not header.strip(b"\0") or _sum(header) == _number(header[148:156])
    except ContainerError:
        return False


def _check_sum(header: bytes) -> None:
    if _sum(header) != _number(header[148:156]):
        raise bad("it is damaged, or no tar at all")


def _sum(header: bytes) -> int:
    return sum(header[:148]) + 8 * ord(" ") + sum(header[156:BLOCK])


def _number(field: bytes) -> int:
    if field[0] == 0x80:  # base 256, for what octal digits cannot hold
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if digits.strip(b"01234567"):
        raise bad("a number in it makes no sense")
    return int(digits, 8) if digits else 0


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise bad("a size in it makes no sense")
    return int(text)


def _seconds(text: str | None, header: bytes) -> float:
    try:
        found = float(text) if text else float(_number(header[136:148]))
    except ValueError:
        found = 0.0
    return found if 0 <= found < 1e11 else 0.0


def _header_name(header: bytes) -> str:
    name, prefix = _text(header[:100]), _text(header[345:500])
    return f"{prefix}/{name}" if prefix and header[257:262] == b"ustar" else name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _pax(data: bytes) -> dict[str, str]:
    """Records of the form ``length key=value\\n``."""
    found: dict[str, str] = {}
    while data:
        length, space, _ = data.partition(b" ")
        if not space or not length.isdigit() or len(length) > 8:
            raise bad("its long names make no sense")
        size = int(length)
        record = data[len(length) + 1 : size]
        if size > len(data) or size <= len(length) + 1 or not record.endswith(b"\n"):
            raise bad("its long names make no sense")
        key, equals, value = record[:-1].partition(b"=")
        if not equals:
            raise bad("its long names make no sense")
        name = key.decode("utf-8", "surrogateescape")
        found[name] = value.decode("utf-8", "surrogateescape")
        data = data[size:]
    return found
