"""A small server that speaks an engine's protocol, with answers that a test writes.

For what a real engine does not do on demand: odd replies, early ends, other versions. It listens
on any socket, with TLS if a test wraps it, and remembers what it was asked.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PODMAN = {"Api-Version": "1.41", "Libpod-Api-Version": "4.3.1", "Server": "Libpod/4.3.1 (linux)"}
DOCKER = {"Api-Version": "1.47", "Server": "Docker/27.5.1 (linux)"}


@dataclass
class Asked:
    """A request that arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def json(self) -> dict[str, object]:
        return dict(json.loads(self.body))


Answer = bytes | Callable[[socket.socket, Asked], object]


def reply(
    body: bytes | str | object = b"", status: int = 200, headers: dict[str, str] | None = None
) -> bytes:
    """A whole reply; what is neither bytes nor text is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    if isinstance(body, str):
        data = body.encode()
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def chunked(parts: Iterable[bytes], status: int = 200) -> bytes:
    """A whole reply in chunks."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part)
    return b"HTTP/1.1 %d Said\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % (status, body)


@dataclass
class StandIn:
    """An engine's stand-in. ``routes`` map ``"METHOD regex"`` to answers, the last added first."""

    listener: socket.socket
    ping: dict[str, str] = field(default_factory=lambda: dict(PODMAN))
    tls: ssl.SSLContext | None = None
    asked: list[Asked] = field(default_factory=list)
    routes: list[tuple[str, Answer]] = field(default_factory=list)
    connections: int = 0

    def __post_init__(self) -> None:
        self.on(r"GET /_ping", lambda *_: reply(b"OK", headers=self.ping))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def on(self, route: str, answer: Answer) -> None:
        """Answer so from now on."""
        self.routes.insert(0, (route, answer))

    @property
    def last(self) -> Asked:
        """The last request that was not a ping."""
        return next(each for each in reversed(self.asked) if each.path != "/_ping")

    def paths(self) -> list[str]:
        """Method and path of each request that was not a ping."""
        return [f"{each.method} {each.path}" for each in self.asked if each.path != "/_ping"]

    def close(self) -> None:
        """Stop listening, and hang up."""
        # Wakes the thread that waits for connections; close alone would not.
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.hang_up()

    def hang_up(self) -> None:
        """Close every connection, as an engine does with idle ones."""
        opened, self._open = self._open, []
        for each in opened:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            stream = connection.makefile("rb")
            while (asked := _read(stream)) is not None:
                self.asked.append(asked)
                if not self._answer(connection, asked):
                    break
            stream.close()
        except (OSError, ValueError):
            pass
        finally:
            connection.close()

    def _answer(self, connection: socket.socket, asked: Asked) -> bool:
        line = f"{asked.method} {asked.path}"
        for route, answer in self.routes:
            if re.fullmatch(route, line):
                data = answer if isinstance(answer, bytes) else answer(connection, asked)
                if not isinstance(data, bytes):
                    return False  # it took the connection over
                connection.sendall(data)
                return not data.startswith(b"!")
        connection.sendall(reply({"message": f"no answer for {line}"}, 404))
        return True


def _read(stream: object) -> Asked | None:
    line = stream.readline()  # type: ignore[attr-defined]
    if not line.strip():
        return None
    method, target, _ = line.decode().split(" ")
    headers = {}
    while header := stream.readline().strip():  # type: ignore[attr-defined]
        name, _, value = header.decode().partition(":")
        headers[name.lower()] = value.strip()
    return Asked(method, target, headers, _body(stream, headers))


def _body(stream: object, headers: dict[str, str]) -> bytes:
    read = stream.read  # type: ignore[attr-defined]
    if headers.get("transfer-encoding") != "chunked":
        return bytes(read(int(headers.get("content-length", 0))))
    body = b""
    while size := int(stream.readline(), 16):  # type: ignore[attr-defined]
        body += read(size)
        stream.readline()  # type: ignore[attr-defined]
    stream.readline()  # type: ignore[attr-defined]
    return body


def on_socket(path: Path, **given: object) -> StandIn:
    """A stand-in on a socket file."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return StandIn(listener, **given)  # type: ignore[arg-type]


def on_port(**given: object) -> StandIn:
    """A stand-in on a loopback port."""
    return StandIn(socket.create_server(("127.0.0.1", 0)), **given)  # type: ignore[arg-type]


def frame(stream: int, data: bytes) -> bytes:
    """What an engine puts around output."""
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data
