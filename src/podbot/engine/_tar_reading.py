"""The members of a tar that came out of a container: hostile, and written by any program.

`podbot.tar_reading` checks the format; here is what a member may be, and every name is checked.
Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass
from podbot.tar_reading import CHUNK, Header, Read, Rules, TarStream

MAX_NAMES = 64 * 1024
"""The most bytes of a header that holds long names."""
MAX_MEMBERS = 1_000_000
MAX_DEPTH = 200
MAX_NAME = 255

MemberKind = Literal["file", "folder", "symlink", "hardlink", "other"]

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
        self._stream = TarStream(read, Rules(bad, MAX_NAMES, foreign=True, headers=MAX_MEMBERS))

    def members(self) -> Iterator[Member]:
        """Each member; read its data with `data` before taking the next."""
        while (header := self._stream.header()) is not None:
            yield self._member(header)

    def data(self) -> Iterator[bytes]:
        """The present member's contents, in parts."""
        while part := self._stream.part(CHUNK):
            yield part

    def _member(self, header: Header) -> Member:
        kind = _KINDS.get(header.letter)
        if kind is None or any(name.startswith("GNU.sparse") for name in header.records):
            raise bad("it has an entry of an unknown kind")
        size = self._stream.left
        if kind not in ("file", "hardlink") and size:
            raise bad("an entry without contents has some")
        name = header.records.get("path") or header.name
        link = header.records.get("linkpath") or header.link
        return Member(
            path=safe_path(_text(name)),
            kind=kind,
            mode=header.mode,
            size=size,
            mtime=_seconds(header),
            link=_text(link) if kind in ("symlink", "hardlink") else "",
        )


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


def _seconds(header: Header) -> float:
    """When it was changed; 0 for what is no time."""
    said = header.records.get("mtime")
    try:
        found = float(said) if said else float(header.mtime)
    except ValueError:
        found = 0.0
    return found if 0 <= found < 1e11 else 0.0


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
