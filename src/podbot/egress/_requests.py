"""What a request must keep to before it is passed on, beyond what h11 asks of it.

h11 reads some of what others read differently (a bare LF ends a line, a folded line goes on, a
length beside chunks does not count). A request with two readings is refused, not mended. Requests
go on as h11 writes them anew, never as they came.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from podbot.egress.names import OddHostError, host_of

Headers = list[tuple[bytes, bytes]]

END = b"\r\n\r\n"
_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)|\0")
_ONCE = (b"host", b"content-length", b"transfer-encoding")

# Of one line between two programs; RFC 9110, 7.6.1, and what is said to proxies alone.
_OF_THIS_LINE = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
}
# By these some servers take a request for another than the one that was judged.
_STEERING = re.compile(rb"x-http-method.*|x-method-override|x-original-.*|x-rewrite-.*", re.I)
_NEEDED = {b"transfer-encoding", b"content-length", b"host"}

_URL = re.compile(
    r"http://(?P<authority>[^/?#@\\]+)(?P<path>/[^?#\\]*)?(?P<query>\?[^#]*)?", re.IGNORECASE
)
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]+)(?::(?P<port>[0-9]{1,5}))?")


def two_readings(head: bytes) -> str | None:
    """What in a head others may read in another way; none if there is nothing. It ends with END."""
    if _BARE.search(head):
        return "a line does not end in CR LF, or there is a NUL"
    _, *lines = head[: -len(END)].split(b"\r\n")
    if any(line[:1] in (b" ", b"\t") for line in lines):
        return "a header goes on in a second line"
    names = [line.partition(b":")[0].strip().lower() for line in lines]
    for name in _ONCE:
        if names.count(name) > 1:
            return f"{name.decode()} is there twice"
    if b"content-length" in names and b"transfer-encoding" in names:
        return "a length and chunks at once"
    version = head.partition(b"\r\n")[0].rpartition(b" ")[2]
    if version == b"HTTP/1.0" and b"transfer-encoding" in names:
        return "chunks in HTTP/1.0"
    return None


def is_broken(part: bytearray, seen: int) -> bool:
    """Whether what has come of a head can be none. So much of it was looked at before."""
    return _BARE.search(part, max(0, seen - 1), len(part) - part.endswith(b"\r")) is not None


class Place:
    """Where a request goes: what its target says, in one spelling."""

    __slots__ = ("host", "path", "port", "query")

    def __init__(self, host: str, port: int, path: str = "", query: str = ""):
        self.host, self.port, self.path, self.query = host, port, path, query


def place_of_tunnel(target: str) -> Place:
    """Host and port of a CONNECT. `OddHostError` if they are none."""
    return Place(*_authority(target, None))


def place_of_url(target: str) -> Place:
    """What a plain request is for. `OddHostError` if it is no URL for a proxy."""
    match = _URL.fullmatch(target)
    if match is None:
        raise OddHostError("the target is not http://HOST[:PORT]/PATH, as a proxy is asked")
    return Place(*_authority(match["authority"], 80), match["path"] or "/", match["query"] or "")


def is_of_place(header: str, place: Place, usual: int) -> bool:
    """Whether a Host header says what the target says."""
    try:
        host, port = _authority(header, usual)
    except OddHostError:
        return False
    if host != place.host:
        return False
    # Of a tunnel some leave the port out, whichever it is.
    return port == place.port or (not place.path and header.rpartition("]")[2].count(":") == 0)


def _authority(text: str, usual: int | None) -> tuple[str, int]:
    match = _AUTHORITY.fullmatch(text)
    if match is None or (match["port"] is None and usual is None):
        raise OddHostError("the target is not HOST:PORT")
    port = int(match["port"]) if match["port"] else usual
    if not port or port > 65535:
        raise OddHostError("there is no such port")
    return host_of(match["host"]), port


def passed_on(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """The headers that are for whoever is at the far end."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    dropped = _OF_THIS_LINE | (named - _NEEDED)
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in dropped and not _STEERING.fullmatch(name)
    ]


def header(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The value of a header that is there once at the most."""
    found = next((value for each, value in headers if each.lower() == name), None)
    return None if found is None else found.decode("latin-1")


def asks_for_websocket(method: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether the line shall become a WebSocket: no other protocol may take it over."""
    wanted = (header(headers, b"upgrade") or "").strip().lower()
    tokens = (header(headers, b"connection") or "").lower().split(",")
    return method == b"GET" and wanted == "websocket" and "upgrade" in [t.strip() for t in tokens]
