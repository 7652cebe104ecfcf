"""Reading a tar stream that may lie: headers and data, member after member, in bounded memory.

The standard library's reader takes a header's word for how much to read at once, knows formats that
nobody sends, and raises what it likes. Here the format is checked, as strictly as `Rules` say. What
a member may be, and where it may go, is for whoever reads to check. Nothing here touches a file
system.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from podbot.errors import PodbotError
from podbot.frozen import dataclass

BLOCK = 512
RECORD = 20 * BLOCK
CHUNK = 256 * 1024
"""The most that is read, and held, at once."""

Read = Callable[[int], bytes]
"""Gives at most so many bytes, and none at the end."""

_RECORD = re.compile(rb"([1-9]\d{0,6}) ([^=\n\0]{1,300})=")
_DECIMAL = re.compile(rb"\d{1,18}")
_MAGIC = b"ustar\x0000"


@dataclass(frozen=True, slots=True)
class Rules:
    """How much of the format is taken, and how a breach of it is told.

    - ``bad`` makes the error, of a sentence.
    - ``extended``: the most bytes that one extended header, or one long name, may have.
    - ``foreign``: take what other programs write as well: GNU long names, global headers, prefixes,
      numbers in base 256, several extended headers, any records, no blocks of zeros at the end.
      Without it all of these are refused, each being another way to say something twice, and so is
      whatever hides between the members or behind the end.
    - ``known``: without ``foreign``, which records there may be.
    - ``headers``: the most there may be in all.
    """

    bad: Callable[[str], PodbotError]
    extended: int
    foreign: bool = False
    known: Callable[[str], bool] = lambda key: False
    headers: int | None = None


class Header:
    """What the headers of one member say; a field is read, and checked, when it is asked for.

    ``records`` are those of its extended headers: what they say goes before the plain fields.
    """

    __slots__ = ("_block", "_rules", "records")

    def __init__(self, block: bytes, rules: Rules, records: Mapping[str, bytes]):
        self._block = block
        self._rules = rules
        self.records = records

    @property
    def letter(self) -> bytes:
        """What kind of member it is."""
        return self._block[156:157]

    @property
    def name(self) -> bytes:
        """The plain field, with its prefix."""
        name, prefix = self._text(0, 100), self._text(345, 500)
        if not prefix:
            return name
        if not self._rules.foreign:
            raise self._rules.bad("a header uses a prefix")
        return prefix + b"/" + name if self._block[257:262] == b"ustar" else name

    @property
    def link(self) -> bytes:
        """Where a link leads."""
        return self._text(157, 257)

    @property
    def mode(self) -> int:
        """The permissions, and nothing else."""
        mode = self._number(100, 108)
        if mode > 0o7777 and not self._rules.foreign:
            raise self._rules.bad("its mode is not valid")
        return mode & 0o7777

    @property
    def uid(self) -> int:
        """Whose it is."""
        return self._number(108, 116)

    @property
    def gid(self) -> int:
        """Which group's it is."""
        return self._number(116, 124)

    @property
    def size(self) -> int:
        """How much data follows."""
        said = self.records.get("size")
        return self._number(124, 136) if said is None else decimal(said, self._rules.bad)

    @property
    def mtime(self) -> int:
        """When it was changed, in seconds."""
        return self._number(136, 148)

    @property
    def device(self) -> tuple[int, int]:
        """Its numbers, if it is one."""
        return self._number(329, 337), self._number(337, 345)

    def check(self) -> None:
        """See that it is whole, and without ``foreign`` that each field is well formed."""
        if not self._rules.foreign and self._block[257:265] != _MAGIC:
            raise self._rules.bad("it is not a tar archive of the right kind")
        if self._number(148, 156) != _sum(self._block):
            raise self._rules.bad("a header is damaged, or it is no tar at all")
        if not self._rules.foreign:
            _ = self.name, self.link, self.mode, self.uid, self.gid, self.mtime

    def _text(self, start: int, end: int) -> bytes:
        text, _, rest = self._block[start:end].partition(b"\0")
        if rest.strip(b"\0") and not self._rules.foreign:
            raise self._rules.bad("a header is damaged")
        return text

    def _number(self, start: int, end: int) -> int:
        found = _number(self._block[start:end], self._rules.foreign)
        if found is None:
            raise self._rules.bad("a number in a header is not valid")
        return found


class TarStream:
    """The members of a stream, one after the other. ``left`` is what is unread of the present."""

    def __init__(self, read: Read, rules: Rules):
        self.left = 0
        self._read = read
        self._rules = rules
        self._padding = 0
        self._headers = 0

    def header(self) -> Header | None:
        """The next member, None at the end. What was not read of the last one is passed over."""
        records: dict[str, bytes] = {}
        extended = False
        while True:
            self._pass_over()
            block = self._block()
            if not block.strip(b"\0"):
                self._end(extended)
                return None
            header = Header(block, self._rules, records)
            if not self._is_extended(header):
                self._begin(header)
                return header
            if extended and not self._rules.foreign:
                raise self._rules.bad("a member has two extended headers")
            extended = True
            self._begin(Header(block, self._rules, {}))
            self._note(header.letter, records)

    def part(self, limit: int) -> bytes:
        """Some of the present member's data, at most so many bytes; none at its end."""
        if not self.left:
            return b""
        found = self._some(min(limit, self.left, CHUNK))
        self.left -= len(found)
        return found

    def data(self, size: int) -> bytes:
        """So many bytes of the present member's data, or `CHUNK`, or what is left of it."""
        size = min(size, self.left, CHUNK)
        self.left -= size
        return self._exactly(size)

    def _is_extended(self, header: Header) -> bool:
        return header.letter == b"x" or (
            self._rules.foreign and header.letter in (b"g", b"L", b"K")
        )

    def _begin(self, header: Header) -> None:
        self._headers += 1
        if self._rules.headers is not None and self._headers > self._rules.headers:
            raise self._rules.bad(f"it has more than {self._rules.headers} entries")
        header.check()
        self.left = header.size
        self._padding = -self.left % BLOCK

    def _note(self, letter: bytes, records: dict[str, bytes]) -> None:
        """What an extended header says of the member behind it."""
        if self.left > self._rules.extended:
            raise self._rules.bad("an extended header is too large: it has names that are too long")
        text, self.left = self._exactly(self.left), 0
        if letter == b"x":
            self._records(text, records)
        elif letter == b"g":
            self._records(text, {})  # of no member: read for its form alone
        else:
            records["path" if letter == b"L" else "linkpath"] = text.rstrip(b"\0")

    def _records(self, text: bytes, into: dict[str, bytes]) -> None:
        """Records of the form ``length key=value\\n``."""
        at = 0
        while at < len(text):
            match = _RECORD.match(text, at)
            end = at + int(match[1]) if match else 0
            if match is None or not match.end() < end <= len(text) or text[end - 1] != ord("\n"):
                raise self._rules.bad("an extended header is broken")
            key = match[2].decode("utf-8", "surrogateescape")
            if not self._rules.foreign and (key in into or not self._rules.known(key)):
                raise self._rules.bad(f"an extended header has an unknown or double entry {key}")
            into[key] = text[match.end() : end - 1]
            at = end

    def _pass_over(self) -> None:
        while self.left:
            self.part(CHUNK)
        while self._padding:
            part = self._some(self._padding)
            if part.strip(b"\0") and not self._rules.foreign:
                raise self._rules.bad("something hides between its members")
            self._padding -= len(part)

    def _block(self) -> bytes:
        """A header; zeros, or nothing, at the end."""
        first = self._read(BLOCK)
        if not first and self._rules.foreign:
            return b""  # some programs leave out the empty blocks at the end
        return first + self._exactly(BLOCK - len(first))

    def _end(self, extended: bool) -> None:
        if self._rules.foreign:
            while self._read(CHUNK):  # so that the connection can be used again
                pass
        elif extended or self._block().strip(b"\0"):
            raise self._rules.bad("it ends in the middle")
        elif self._read(RECORD).strip(b"\0"):
            raise self._rules.bad("something follows its end")

    def _exactly(self, size: int) -> bytes:
        """So many bytes, of which no more than a part is read at once."""
        found = bytearray()
        while len(found) < size:
            part = self._some(min(size - len(found), CHUNK))
            if len(part) == size:
                return part
            found += part
        return bytes(found)

    def _some(self, limit: int) -> bytes:
        part = self._read(limit)
        if not part:
            raise self._rules.bad("it is cut off")
        return part


def decimal(text: bytes, bad: Callable[[str], PodbotError]) -> int:
    """A number of an extended header."""
    if not _DECIMAL.fullmatch(text):
        raise bad("a number is not valid")
    return int(text)


def looks_like_tar(start: bytes) -> bool:
    """Whether what begins like this can be a tar."""
    block = start[:BLOCK]
    if len(block) < BLOCK:
        return False
    return not block.strip(b"\0") or _number(block[148:156], foreign=True) == _sum(block)


def _sum(block: bytes) -> int:
    return sum(block[:148]) + 8 * ord(" ") + sum(block[156:])


def _number(field: bytes, foreign: bool) -> int | None:
    """The number in a field of a header; None if it is none."""
    if foreign and field[0] == 0x80:  # base 256, for what octal digits cannot hold
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0") if foreign else field.lstrip(b" ").rstrip(b" \0")
    if digits.strip(b"01234567"):
        return None
    return int(digits, 8) if digits else 0
