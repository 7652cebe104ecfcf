"""A connection that an engine turned into a raw stream: attach, and exec with its streams.

It looks like a socket (`recv`, `send`, `sendall`, `fileno`, `settimeout`, `close`) and can be used
in both directions at once by two threads. What came with the engine's reply is given out first, so
poll it only while `pending` is zero. Without a terminal the engine wraps what the container says in
frames; `Frames` takes them apart.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

from podbot.engine.http import replies
from podbot.engine.http.exchange import CHUNK, Wire
from podbot.errors import ContainerError, Kind

STDIN, STDOUT, STDERR = 0, 1, 2
_HEADER = 8


class Hijacked:
    """A raw stream to a container."""

    def __init__(self, wire: Wire):
        self._wire = wire
        self._sock = wire.sock

    @property
    def pending(self) -> int:
        """Bytes that `recv` may give without waiting for the network."""
        return self._wire.ahead or getattr(self._sock, "pending", 0)  # TLS has a buffer too

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """How long each `recv` and `send` may take; ``0`` means not to wait."""
        self._sock.settimeout(seconds)

    def setblocking(self, flag: bool) -> None:
        """Whether to wait at all."""
        self._sock.setblocking(flag)

    def recv(self, limit: int = CHUNK) -> bytes:
        """What is there; nothing at the end."""
        if self._wire.ahead:
            return self._wire.read_some(limit)
        return self._sock.recv(limit)

    def send(self, data: bytes | memoryview) -> int:
        """Send some of it; says how much."""
        return self._sock.send(data)

    def sendall(self, data: bytes | memoryview) -> None:
        """Send all of it."""
        self._sock.sendall(data)

    def parts(self, *, framed: bool) -> Iterator[tuple[int, bytes]]:
        """All that comes until it ends, as ``(stream, data)``. Kind ``connection_failed``."""
        frames = Frames()
        while data := self._heard():
            if framed:
                yield from frames.feed(data)
            else:
                yield STDOUT, data
        if not frames.whole:
            raise replies.nonsense("its stream ends in the middle of a frame")

    def _heard(self) -> bytes:
        try:
            return self.recv()
        except TimeoutError:
            raise
        except OSError as error:
            raise ContainerError(
                "the connection to the command was lost",
                kind=Kind.CONNECTION_FAILED,
                remedy="check that the engine's service still runs; the command may still run too",
            ) from error

    def close_write(self) -> None:
        """No more input: what runs inside sees its standard input end."""
        if isinstance(self._sock, socket.socket):
            self._sock.shutdown(socket.SHUT_WR)
        else:
            self._sock.close_write()

    def hang_up(self) -> None:
        """End it for every thread that uses it, before one of them closes it."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the stream. What runs inside goes on."""
        self._sock.close()

    def __enter__(self) -> Hijacked:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Frames:
    """Takes apart the frames an engine puts around the two output streams.

    Feed it what arrives; it gives back ``(stream, data)`` as soon as there is any, without waiting
    for the end of a frame, so that a frame's size says nothing about memory.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._stream = STDOUT
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The parts in ``data``."""
        at = 0
        while at < len(data):
            if self._left == 0:
                taken = data[at : at + _HEADER - len(self._head)]
                self._head += taken
                at += len(taken)
                if len(self._head) == _HEADER:
                    self._begin()
                continue
            part = data[at : at + self._left]
            at += len(part)
            self._left -= len(part)
            yield self._stream, part

    @property
    def whole(self) -> bool:
        """Whether the stream may end here."""
        return self._left == 0 and not self._head

    def _begin(self) -> None:
        stream = self._head[0]
        if stream not in (STDIN, STDOUT, STDERR) or any(self._head[1:4]):
            raise replies.nonsense("its stream is not framed as it should be")
        # What an engine calls stdin is an echo, which belongs to the output.
        self._stream = STDERR if stream == STDERR else STDOUT
        self._left = int.from_bytes(self._head[4:], "big")
        self._head.clear()
