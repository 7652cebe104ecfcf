"""One HTTP/1.1 exchange over a connected socket: a request out, a reply in.

Written here because the library's own client costs more to load (its mail parser, its TLS) than
all of the engine's calls take, counts time for each read instead of for the whole reply, and does
not hand back a connection that became a raw stream. Every size is bounded and what breaks the
protocol is an error: replies are read as if the engine were not to be trusted. Nothing here knows
what the requests mean.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from podbot.frozen import dataclass

if TYPE_CHECKING:
    from podbot.engine.http.tls import TlsSocket

    Line = socket.socket | TlsSocket

MAX_HEAD = 64 * 1024
MAX_HEADERS = 128
CHUNK = 64 * 1024

_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")

Body = bytes | Iterable[bytes]


class ProtocolError(Exception):
    """The other side does not speak HTTP as it should."""


class HungUpError(ConnectionError):
    """The other side closed the connection before it had answered."""


def quoted(text: str) -> str:
    """A part of a path or query, with everything but plain letters escaped."""
    return "".join(
        chr(byte) if byte in _UNRESERVED else f"%{byte:02X}"
        for byte in text.encode("utf-8", "surrogateescape")
    )


def target(path: str, query: Mapping[str, str] | None) -> str:
    """The request target of a path whose parts are quoted already."""
    if not query:
        return path
    return path + "?" + "&".join(f"{quoted(name)}={quoted(text)}" for name, text in query.items())


class Wire:
    """A connection: its socket, what was read ahead of need, and until when it may wait."""

    def __init__(self, sock: Line):
        self.sock = sock
        self._ahead = bytearray()
        self._deadline: float | None = None

    def allow(self, seconds: float | None) -> None:
        """Let everything from now on take this long together; ``None`` is for ever."""
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self.sock.settimeout(seconds)

    def send(self, data: bytes | memoryview) -> None:
        """Send all of it."""
        self._arm()
        self.sock.sendall(data)

    def read_some(self, limit: int = CHUNK) -> bytes:
        """What is there, at most ``limit`` bytes; nothing at the end."""
        if self._ahead:
            data = bytes(self._ahead[:limit])
            del self._ahead[:limit]
            return data
        self._arm()
        return self.sock.recv(limit)

    def read_line(self, limit: int) -> bytes:
        """A line without its end; at most ``limit`` bytes."""
        seen = 0
        while (end := self._ahead.find(b"\n", seen)) < 0:
            seen = len(self._ahead)
            if seen > limit:
                raise ProtocolError("a line of the reply is too long")
            self._arm()
            data = self.sock.recv(CHUNK)
            if not data:
                if not self._ahead:
                    raise HungUpError("the connection was closed")
                raise ProtocolError("the reply ends in the middle of a line")
            self._ahead += data
        if end > limit:
            raise ProtocolError("a line of the reply is too long")
        line = bytes(self._ahead[:end])
        del self._ahead[: end + 1]
        return line.removesuffix(b"\r")

    @property
    def ahead(self) -> int:
        """How many bytes were read ahead of need."""
        return len(self._ahead)

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    def _arm(self) -> None:
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer in time")
            self.sock.settimeout(left)


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask for. A body that is not bytes is sent in chunks as it is made."""

    method: str
    target: str
    host: str
    headers: Mapping[str, str]
    body: Body | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """How a reply begins. Names of headers are in lower case."""

    status: int
    reason: str
    headers: Mapping[str, str]
    old: bool = False
    """Whether it is HTTP/1.0, where a connection serves once."""


def send(wire: Wire, request: Request, seconds: float | None = None) -> None:
    """Send a request with its body. Each part of a body made meanwhile may take ``seconds``."""
    headers = {"Host": request.host, "User-Agent": "podbot", **request.headers}
    body = request.body
    if isinstance(body, bytes):
        headers["Content-Length"] = str(len(body))
    elif body is not None:
        headers["Transfer-Encoding"] = "chunked"
    elif request.method not in ("GET", "HEAD", "DELETE"):
        headers["Content-Length"] = "0"
    lines = [f"{request.method} {request.target} HTTP/1.1"]
    lines += [f"{name}: {text}" for name, text in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header of a request holds a line break")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    if body is None or isinstance(body, bytes):
        wire.send(head + (body or b""))
        return
    wire.send(head)
    for part in body:
        if part:  # an empty chunk would end the body
            wire.allow(seconds)
            wire.send(b"%x\r\n%b\r\n" % (len(part), part))
    wire.allow(seconds)
    wire.send(b"0\r\n\r\n")


def read_head(wire: Wire) -> Head:
    """The first lines of the reply; provisional ones (100 Continue) are skipped."""
    while True:
        head = _read_head(wire)
        if head.status != 100:
            return head


def _read_head(wire: Wire) -> Head:
    left = MAX_HEAD
    line = wire.read_line(left)
    version, _, rest = line.partition(b" ")
    status, _, reason = rest.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(status) != 3 or not status.isdigit():
        raise ProtocolError("what answers does not speak HTTP")
    headers: dict[str, str] = {}
    while line := wire.read_line(left):
        left -= len(line)
        name, colon, value = line.decode("latin-1").partition(":")
        name, value = name.lower(), value.strip(" \t")
        if left <= 0 or len(headers) >= MAX_HEADERS:
            raise ProtocolError("the head of the reply is too long")
        if not colon or not name or not _TOKEN.issuperset(name):
            raise ProtocolError("a header of the reply is not valid")
        if headers.get(name, value) != value:
            if name in ("content-length", "transfer-encoding"):
                raise ProtocolError("the reply says twice how long it is")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return Head(int(status), reason.decode("latin-1"), headers, version == b"HTTP/1.0")


class Incoming:
    """The body of a reply, read part by part."""

    def __init__(self, wire: Wire, method: str, head: Head):
        self._wire = wire
        self._left: int | None = None  # bytes of the body, or of this chunk, still to come
        self._chunked = False
        self.done = False
        closing = head.headers.get("connection", "").lower()
        self.keeps = not head.old and "close" not in closing
        coding = head.headers.get("transfer-encoding", "").lower()
        length = head.headers.get("content-length", "")
        if method == "HEAD" or head.status in (204, 304) or 100 <= head.status < 200:
            self.done = True
        elif coding == "chunked":
            self._chunked, self._left = True, 0
        elif coding not in ("", "identity"):
            raise ProtocolError("the reply is coded in an unknown way")
        elif length:
            self._left = _count(length.encode("latin-1"), b"0123456789", 10)
            self.done = self._left == 0
        else:
            self.keeps = False  # ends with the connection

    def read_some(self, limit: int = CHUNK) -> bytes:
        """What is there of it; nothing at its end."""
        if self.done:
            return b""
        if self._chunked and self._left == 0 and self._next_chunk() == 0:
            return b""
        wanted = limit if self._left is None else min(limit, self._left)
        data = self._wire.read_some(wanted)
        if self._left is None:
            self.done = not data
            return data
        if not data:
            raise ProtocolError("the reply was cut short")
        self._left -= len(data)
        if self._left == 0:
            if self._chunked:
                self._expect_line_end()
            else:
                self.done = True
        return data

    def read_all(self, limit: int) -> bytes:
        """All of it, if it is no longer than ``limit``."""
        parts, size = [], 0
        while part := self.read_some():
            size += len(part)
            if size > limit:
                raise ProtocolError(f"the reply is longer than {limit} bytes")
            parts.append(part)
        return b"".join(parts)

    def _next_chunk(self) -> int:
        """How long the next chunk is; the last one is empty, and ends the body."""
        size = self._wire.read_line(1024).partition(b";")[0].strip(b" \t")
        self._left = _count(size.lower(), b"0123456789abcdef", 16)
        if self._left == 0:
            lines = 0
            while self._wire.read_line(MAX_HEAD):
                lines += 1
                if lines > MAX_HEADERS:
                    raise ProtocolError("the end of the reply is too long")
            self.done = True
        return self._left

    def _expect_line_end(self) -> None:
        if self._wire.read_line(2):
            raise ProtocolError("a chunk of the reply has the wrong length")


def _count(text: bytes, digits: bytes, base: int) -> int:
    if not text or len(text) > 15 or text.strip(digits):
        raise ProtocolError("the reply does not say how long it is")
    return int(text, base)
