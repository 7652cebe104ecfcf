"""What egress tests talk to and through: small servers on the loopback, and clients by hand.

Nothing here leaves the machine: names are resolved by the tests.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from podbot.egress import HOST_NAME, Proxy, Record, Rules

PATIENCE = 60.0
"""Seconds within which something that must happen does, on however busy a machine."""


def listening() -> socket.socket:
    """A socket that listens on the loopback."""
    return socket.create_server(("127.0.0.1", 0), backlog=512)


class Server:
    """Serves each connection by a function, in a thread of its own."""

    def __init__(self, serve: Callable[[socket.socket], None]):
        self._serve = serve
        self._listener = listening()
        self.port: int = self._listener.getsockname()[1]
        self.came = 0
        self._live: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.came += 1
            self._live.add(sock)
            threading.Thread(target=self._one, args=(sock,), daemon=True).start()

    def _one(self, sock: socket.socket) -> None:
        with suppress(OSError), sock:
            self._serve(sock)
        self._live.discard(sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE)
        for sock in list(self._live):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def echo(sock: socket.socket) -> None:
    """Send back whatever comes, until the other side ends."""
    while data := sock.recv(65536):
        sock.sendall(data)


def read_head(sock: socket.socket) -> bytes:
    """Up to the empty line."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(1)
        if not more:
            break
        data += more
    return data


def read_all(sock: socket.socket) -> bytes:
    """Up to the end."""
    data = bytearray()
    with suppress(ConnectionError):
        while more := sock.recv(65536):
            data += more
    return bytes(data)


def answering(answer: bytes, heard: list[bytes] | None = None) -> Callable[[socket.socket], None]:
    """Serves: reads one head, gives one answer."""

    def serve(sock: socket.socket) -> None:
        head = read_head(sock)
        if heard is not None:
            heard.append(head)
        sock.sendall(answer)

    return serve


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class Through:
    """A proxy at work, and what it told."""

    def __init__(self, proxy: Proxy, port: int, records: list[Record]):
        self.proxy, self.port, self.records = proxy, port, records

    def client(self) -> socket.socket:
        """A connection to the proxy."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def says(self, *pieces: bytes) -> bytes:
        """All that the proxy answers to this."""
        with self.client() as sock:
            for piece in pieces:
                sock.sendall(piece)
            return read_all(sock)

    def tunnel(self, host: str, port: int) -> tuple[socket.socket, bytes]:
        """A CONNECT, and the head of its answer."""
        sock = self.client()
        place = f"{host}:{port}"
        sock.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
        return sock, read_head(sock)

    def get(self, url: str, *headers: str) -> bytes:
        """All that is answered to a plain request."""
        host = url.split("/")[2]
        lines = [f"GET {url} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
        return self.says(("\r\n".join(lines) + "\r\n\r\n").encode())

    def record(self, number: int = 0) -> Record:
        """The record of that number, once it was told."""
        wait_until(lambda: len(self.records) > number)
        return self.records[number]


def wait_until(true: Callable[[], object]) -> None:
    """Wait for a state."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.005)


@contextmanager
def proxied(rules: Rules, names: dict[str, list[str]] | None = None, **more: object) -> Iterator[
    Through
]:  # fmt: skip
    """A proxy that serves the loopback; names lead where they are said to."""
    records: list[Record] = []
    known = names or {}
    more = {"environment": {}, "resolver": lambda name: known.get(name, [])} | more
    listener = listening()
    port = listener.getsockname()[1]
    with Proxy(rules, records.append, **more) as proxy:  # type: ignore[arg-type]
        proxy.serve(listener)
        yield Through(proxy, port, records)


def named(server: Server) -> str:
    """The word that allows a server of these."""
    return f"{HOST_NAME}:{server.port}"
