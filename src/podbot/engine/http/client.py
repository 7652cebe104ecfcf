"""Calls to an engine: connections that are kept, time limits, and errors that say what was tried.

One `Client` belongs to one endpoint. It may be used by several threads; each call has a connection
to itself, and an idle one is used again. A fork of the process starts with none. It knows HTTP and
what engines put into error replies, not what the calls are for.
"""

from __future__ import annotations

import json
import os
import select
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from podbot.engine.http import exchange, replies
from podbot.engine.http.exchange import (
    Body,
    Head,
    HungUpError,
    Incoming,
    ProtocolError,
    Request,
    Wire,
)
from podbot.engine.http.hijacked import Hijacked
from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass, field

if TYPE_CHECKING:
    from podbot.engine.http.exchange import Line

CALL_SECONDS = 60.0
MAX_REPLY = 32 * 1024 * 1024
MAX_ERROR = 64 * 1024
MAX_IDLE = 4

CAUSES = {
    b"that name is already in use": Kind.NAME_IN_USE,
    b"image not known": Kind.IMAGE_NOT_FOUND,
    b"no such container": Kind.CONTAINER_NOT_FOUND,
    b"container state improper": Kind.CONTAINER_NOT_RUNNING,
    b"this container does not have a cgroup": Kind.UNSUPPORTED,
}


class Dialer(Protocol):
    """How to get a fresh connection to an engine."""

    host: str
    """What to say in the Host header."""

    def dial(self, seconds: float | None) -> Line:
        """A connected socket; raises `ContainerError` of a kind that says what is wrong."""
        ...

    def close(self) -> None:
        """End what was started to reach the engine."""
        ...


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a call is for, so that its failure can say so.

    ``kind`` is the kind of error when the engine refuses. Where ``missing`` is given, what is not
    there has that kind, or the kind of its cause; ``conflict`` is for what is in the way.
    """

    doing: str
    kind: Kind = Kind.ENGINE_FAILED
    subject: str | None = None
    missing: Kind | None = None
    conflict: Kind | None = None
    remedies: Mapping[Kind, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """One call, with a body of bytes (given, or made as they are sent) or of JSON.

    ``seconds`` is the time for all of it; where bytes stream in either direction, for each part.
    """

    method: str
    path: str
    purpose: Purpose
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    json: object = None
    seconds: float | None = CALL_SECONDS


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply that was read whole."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    def json(self) -> object:
        """Its body, parsed strictly."""
        return replies.parse(self.data)


class Client:
    """Speaks to one engine."""

    def __init__(self, dialer: Dialer, endpoint: str):
        self._dialer = dialer
        self.endpoint = endpoint
        self._idle: list[Wire] = []
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False

    def adopt(self, sock: Line) -> None:
        """Use a connection that was made already."""
        self._put_back(Wire(sock))

    def call(self, call: Call, accept: tuple[int, ...] = ()) -> Answer:
        """Make a call and read the whole reply.

        A status from 400 on is an error, unless ``accept`` names it.
        """
        wire, head = self._begin(call)
        keep = False
        try:
            incoming = Incoming(wire, call.method, head)
            data = incoming.read_all(MAX_REPLY)
            keep = incoming.done and incoming.keeps and not wire.ahead
        except (OSError, ProtocolError) as error:
            raise self._lost(call, error) from error
        finally:
            if keep:
                self._put_back(wire)
            else:
                wire.close()
        if head.status >= 400 and head.status not in accept:
            raise refusal(call.purpose, head, data)
        return Answer(head.status, head.headers, data)

    def stream(self, call: Call) -> Streaming:
        """Make a call whose reply is read as it comes."""
        wire, head = self._begin(call)
        try:
            incoming = Incoming(wire, call.method, head)
            if head.status >= 400:
                raise refusal(call.purpose, head, incoming.read_all(MAX_REPLY))
        except (OSError, ProtocolError) as error:
            wire.close()
            raise self._lost(call, error) from error
        except BaseException:
            wire.close()
            raise
        return Streaming(self, wire, incoming, call, head)

    def hijack(self, call: Call) -> Hijacked:
        """Make a call after which the connection is a raw stream in both directions."""
        upgrade = {"Connection": "Upgrade", "Upgrade": "tcp", **call.headers}
        wire, head = self._begin(call, upgrade)
        try:
            if head.status not in (101, 200):
                raise refusal(
                    call.purpose, head, Incoming(wire, call.method, head).read_all(MAX_REPLY)
                )
            if "content-length" in head.headers or "transfer-encoding" in head.headers:
                raise ProtocolError("it did not open a stream")
        except (OSError, ProtocolError) as error:
            wire.close()
            raise self._lost(call, error) from error
        except BaseException:
            wire.close()
            raise
        wire.allow(None)
        return Hijacked(wire)

    def close(self) -> None:
        """Close every idle connection and end what was started to reach the engine."""
        self._closed = True
        for wire in self._take_all():
            wire.close()
        self._dialer.close()

    def _begin(self, call: Call, headers: Mapping[str, str] | None = None) -> tuple[Wire, Head]:
        """Send a call and read how the reply begins."""
        if self._closed:
            raise ContainerError(
                f"cannot {call.purpose.doing}: the engine at {self.endpoint} was closed",
                kind=Kind.CLOSED,
                remedy="connect again",
                subject=call.purpose.subject,
            )
        request = self._request(call, headers or call.headers)
        # An engine may close a connection at the very moment it is used, or end while it is called.
        # Only what changes nothing is tried once more: the first try may have arrived.
        tries = 2 if call.method in ("GET", "HEAD") else 1
        while True:
            tries -= 1
            wire = self._take_idle() or Wire(self._dialer.dial(call.seconds))
            try:
                return wire, self._attempt(wire, request, call.seconds)
            except (OSError, ProtocolError) as error:
                wire.close()
                if tries == 0 or not isinstance(error, ConnectionError):
                    raise self._lost(call, error) from error
            except BaseException:
                wire.close()
                raise

    def _request(self, call: Call, headers: Mapping[str, str]) -> Request:
        body = call.body
        if call.json is not None:
            body = json.dumps(call.json).encode()
            headers = {"Content-Type": "application/json", **headers}
        target = exchange.target(call.path, call.query)
        return Request(call.method, target, self._dialer.host, headers, body)

    def _attempt(self, wire: Wire, request: Request, seconds: float | None) -> Head:
        wire.allow(seconds)
        try:
            exchange.send(wire, request, seconds)
        except (BrokenPipeError, ConnectionResetError):
            # An engine that refuses an upload answers before it has read all of it.
            try:
                return exchange.read_head(wire)
            except (OSError, ProtocolError):
                pass
            raise
        wire.allow(seconds)
        return exchange.read_head(wire)

    def _take_idle(self) -> Wire | None:
        self._forget_after_fork()
        while True:
            with self._lock:
                if not self._idle:
                    return None
                wire = self._idle.pop()
            poll = select.poll()
            poll.register(wire.sock, select.POLLIN)
            if not poll.poll(0):
                return wire
            wire.close()  # closed by the engine, or it speaks unasked

    def _put_back(self, wire: Wire) -> None:
        self._forget_after_fork()
        with self._lock:
            if not self._closed and len(self._idle) < MAX_IDLE:
                self._idle.append(wire)
                return
        wire.close()

    def _take_all(self) -> list[Wire]:
        with self._lock:
            taken, self._idle = self._idle, []
        return taken

    def _forget_after_fork(self) -> None:
        if self._process != os.getpid():
            self._lock = threading.Lock()
            self._process = os.getpid()
            for wire in self._take_all():
                wire.close()

    def _lost(self, call: Call, error: Exception) -> ContainerError:
        purpose = call.purpose
        if isinstance(error, ProtocolError):
            return ContainerError(
                f"cannot {purpose.doing}: the engine at {self.endpoint} answered nonsense: {error}",
                kind=Kind.ENGINE_PROTOCOL,
                remedy="check that a Docker or Podman engine answers at that endpoint",
                subject=purpose.subject,
            )
        if isinstance(error, TimeoutError):
            why = f"gave no answer within {call.seconds:g} s" if call.seconds else "gave no answer"
        elif isinstance(error, HungUpError):
            why = "closed the connection without an answer"
        else:
            why = f"was lost: {error.strerror or error}" if isinstance(error, OSError) else "died"
        return ContainerError(
            f"cannot {purpose.doing}: the engine at {self.endpoint} {why}",
            kind=Kind.CONNECTION_FAILED,
            remedy="check that the engine's service still runs, then try again",
            subject=purpose.subject,
        )


class Streaming:
    """A reply that is read as it comes. Closing it before its end ends the connection."""

    def __init__(self, client: Client, wire: Wire, incoming: Incoming, call: Call, head: Head):
        self._client, self._wire, self._incoming = client, wire, incoming
        self._call = call
        self.headers = head.headers
        self._over = False

    def read_some(self, limit: int = exchange.CHUNK) -> bytes:
        """What is there; nothing at the end."""
        if self._over:
            return b""
        # Each part may take as long as a call: the whole has no end in sight.
        self._wire.allow(self._call.seconds)
        try:
            data = self._incoming.read_some(limit)
        except (OSError, ProtocolError) as error:
            self.close()
            raise self._client._lost(self._call, error) from error
        if not data:
            self._finish()
        return data

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read_some():
            yield data

    def lines(self, limit: int = 1024 * 1024) -> Iterator[bytes]:
        """Its lines; one that is longer than ``limit`` is an error."""
        rest = b""
        for data in self:
            *whole, rest = (rest + data).split(b"\n")
            yield from (line for line in whole if line.strip())
            if len(rest) > limit:
                self.close()
                raise replies.nonsense(f"a line of it is longer than {limit} bytes")
        if rest.strip():
            yield rest

    def _finish(self) -> None:
        self._over = True
        if self._incoming.done and self._incoming.keeps and not self._wire.ahead:
            self._client._put_back(self._wire)
        else:
            self._wire.close()

    def close(self) -> None:
        """Stop reading."""
        if not self._over:
            self._over = True
            self._wire.close()

    def __enter__(self) -> Streaming:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refusal(purpose: Purpose, head: Head, data: bytes) -> ContainerError:
    """The error for a reply that says no."""
    kind = _kind(purpose, head.status, data)
    said = said_in(data) or head.reason or f"status {head.status}"
    return ContainerError(
        f"cannot {purpose.doing}: {said}",
        kind=kind,
        remedy=purpose.remedies.get(kind),
        subject=purpose.subject,
    )


def _kind(purpose: Purpose, status: int, data: bytes) -> Kind:
    if purpose.missing is not None:
        for cause, kind in CAUSES.items():
            # Podman answers much with 500 and tells the cause in words of its own.
            if b'"' + cause + b'"' in data[:MAX_ERROR]:
                return kind
        if status == 404:
            return purpose.missing
    if status == 409 and purpose.conflict is not None:
        return purpose.conflict
    return purpose.kind


def said_in(data: bytes) -> str:
    """The message in an error reply: engines send an object, proxies send anything."""
    try:
        found = replies.parse(data[:MAX_ERROR])
    except ContainerError:
        return replies.visible(data[: replies.MAX_TEXT].decode("utf-8", "replace"))
    if isinstance(found, dict):
        for name in ("message", "error", "cause"):
            if isinstance(found.get(name), str) and found[name].strip():
                return replies.visible(found[name])
    return ""
