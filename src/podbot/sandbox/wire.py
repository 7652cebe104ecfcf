"""The wire: how a host and a guest write frames, and how the host reads hostile ones.

A frame is eight bytes (two big-endian lengths), a small JSON object (the head) and raw bytes
(the payload). The host sends requests, the guest replies, many may be under way at once; a reply
may come in several frames, all but the last marked ``more``. Pure parsing: no I/O here, and
nothing the guest writes can do worse than raise `GuestLostError`.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Mapping

from podbot import json_fields
from podbot.errors import GuestLostError, Kind
from podbot.frozen import dataclass

HEADER = struct.Struct("!II")
MAX_HEAD = 256 * 1024
"""The longest head the host accepts."""
MAX_PAYLOAD = 1024 * 1024
"""The longest payload of one frame, either way."""
MAX_REQUEST_HEAD = 4 * 1024 * 1024
"""The longest head a guest accepts: an argv and an environment may be long."""
CHUNK = 64 * 1024
"""How much is read at once while no large payload is under way."""

# Made once: json.dumps with options makes an encoder each time.
_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_from_json = json.JSONDecoder().raw_decode

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]


@dataclass(slots=True)
class Frame:
    """One parsed frame."""

    head: dict[str, JsonValue]
    payload: bytes | bytearray


def encode(head: Mapping[str, object], payload_size: int = 0) -> bytes:
    """The bytes that go before a payload of this size."""
    body = _to_json(head).encode("ascii")
    if len(body) > MAX_REQUEST_HEAD or payload_size > MAX_PAYLOAD:
        raise ValueError("frame too large to send")
    return HEADER.pack(len(body), payload_size) + body


def broken(what: str) -> GuestLostError:
    """The error for a guest that does not speak the protocol."""
    return GuestLostError(
        f"the guest broke the protocol: {what}",
        kind=Kind.PROTOCOL,
        remedy="close this sandbox and open a new one; what ran inside may have tampered with it",
    )


class Decoder:
    """Turns received bytes into frames.

    A driver asks `want`: with a view it receives straight into it and reports by `filled`;
    with ``None`` it receives up to `CHUNK` bytes and passes them to `feed`. Then `take` gives
    the whole frames so far. Memory is bounded by one frame and one chunk.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._frames: deque[Frame] = deque()
        self._head: dict[str, JsonValue] | None = None
        self._large: bytearray | None = None
        self._have = 0

    def want(self) -> memoryview | None:
        """Where to receive the rest of a large payload, if one is under way."""
        if self._large is None:
            return None
        return memoryview(self._large)[self._have :]

    def filled(self, count: int) -> None:
        """``count`` bytes were received into the view `want` gave."""
        if self._large is None or self._head is None:
            raise RuntimeError("filled() without a view from want()")
        self._have += count
        if self._have == len(self._large):
            self._frames.append(Frame(self._head, self._large))
            self._head = self._large = None

    def feed(self, data: bytes) -> None:
        """Bytes received while no large payload was under way."""
        buffer = self._buffer
        buffer += data
        start, size = 0, len(buffer)
        while size - start >= HEADER.size:
            head_size, payload_size = HEADER.unpack_from(buffer, start)
            if head_size > MAX_HEAD or payload_size > MAX_PAYLOAD:
                raise broken(f"a frame of {head_size} + {payload_size} bytes")
            body = start + HEADER.size
            end = body + head_size
            if size < end:
                break
            if size - end < payload_size:
                if payload_size <= CHUNK:
                    break
                self._head = _parse(bytes(buffer[body:end]))
                self._large = bytearray(payload_size)
                self._have = size - end
                self._large[: self._have] = buffer[end:]
                start = size
                break
            head = _parse(bytes(buffer[body:end]))
            start = end + payload_size
            self._frames.append(Frame(head, bytes(buffer[end:start])))
        if start:
            del buffer[:start]

    def take(self) -> Frame | None:
        """The next whole frame, if there is one."""
        return self._frames.popleft() if self._frames else None


def _parse(body: bytes) -> dict[str, JsonValue]:
    try:
        text = body.decode("utf-8")
        head, end = _from_json(text)
    except (ValueError, RecursionError):
        raise broken("a head that is not JSON") from None
    if not isinstance(head, dict) or end != len(text):
        raise broken("a head that is not an object")
    return head


class Fields(json_fields.Fields):
    """Reads a guest's JSON object field by field; what is missing or of another type is refused."""

    __slots__ = ()

    def wrong(self, name: str, wanted: str) -> GuestLostError:
        """A guest that writes this does not speak the protocol."""
        return broken(f"{name} is not {wanted}")

    def sizes(self, name: str, count: int, total: int) -> list[int]:
        """So many sizes of parts that add up to the whole."""
        value = self._values.get(name)
        if not isinstance(value, list) or len(value) != count:
            raise self.wrong(name, f"a list of {count}")
        found = [size for size in value if type(size) is int and size >= 0]
        if len(found) != count or sum(found) != total:
            raise broken(f"{name} do not add up")
        return found


def rows(payload: bytes | bytearray) -> list[JsonValue]:
    """A payload that is a JSON list."""
    try:
        value = json_fields.parsed(payload)
    except ValueError:
        raise broken("a payload that is not JSON") from None
    if not isinstance(value, list):
        raise broken("a payload that is not a list")
    return value
