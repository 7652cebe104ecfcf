"""TLS to an engine: always verified, with the certificates that Docker's variables name.

``DOCKER_CERT_PATH`` is a folder that may hold ``ca.pem`` (whom to trust), ``cert.pem`` and
``key.pem`` (who we are). There is no way to skip verification. The socket is the library's TLS over
buffers of our own, because its ready-made socket cannot end one direction of a stream without
losing what comes in the other.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress

from podbot.engine.finding.endpoints import Endpoint
from podbot.errors import ConfigError, Kind

VERIFY = "DOCKER_TLS_VERIFY"
FOLDER = "DOCKER_CERT_PATH"

RECORD = 16 * 1024  # the most that one record holds


def context(environment: Mapping[str, str]) -> ssl.SSLContext:
    """The context for connections, as the variables say."""
    folder = environment.get(FOLDER, "")
    if not folder and environment.get(VERIFY):
        folder = os.path.expanduser("~/.docker")
    authority, certificate, key = (
        os.path.join(folder, name) for name in ("ca.pem", "cert.pem", "key.pem")
    )
    try:
        known = authority if folder and os.path.exists(authority) else None
        made = ssl.create_default_context(cafile=known)
        if folder and os.path.exists(certificate):
            made.load_cert_chain(certificate, key)
    except OSError as error:  # every error of TLS is one
        raise ConfigError(
            f"the certificates in {folder} cannot be used: {error.strerror or error}",
            kind=Kind.INVALID,
            remedy=f"{FOLDER} is a folder with ca.pem, cert.pem and key.pem, readable by you",
            field=FOLDER,
        ) from error
    return made


class TlsSocket:
    """A socket that speaks TLS; two threads may use it, one for each direction."""

    def __init__(self, sock: socket.socket, made: ssl.SSLContext, host: str):
        """Shake hands on a connected socket. Raises `OSError`, of which TLS's own are some."""
        self._sock = sock
        self._encrypted_in, self._encrypted_out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = made.wrap_bio(self._encrypted_in, self._encrypted_out, server_hostname=host)
        self._ahead = bytearray()
        self._lock = threading.Lock()
        while not self._shaken():
            self._flush()
            self._receive()
        self._flush()

    @property
    def pending(self) -> int:
        """Bytes that `recv` may give without waiting for the network."""
        return len(self._ahead) or self._tls.pending() or self._encrypted_in.pending

    def recv(self, limit: int) -> bytes:
        """What is there; nothing at the end."""
        while True:
            with self._lock:
                data = self._decrypt(limit)
            if data is not None:
                return data
            self._receive()

    def send(self, data: bytes | memoryview) -> int:
        """Send some of it; says how much."""
        part = data[:RECORD]
        with self._lock:
            self._tls.write(part)
        self._flush()
        return len(part)

    def sendall(self, data: bytes | memoryview) -> None:
        """Send all of it."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.send(rest) :]

    def close_write(self) -> None:
        """Say that nothing more will be sent; what comes can still be read."""
        with self._lock:
            # What has arrived must be out of the way: it would be lost at the next step.
            while data := self._decrypt(RECORD, keep=True):
                self._ahead += data
            with suppress(OSError):  # the other side has not said so yet
                self._tls.unwrap()
        self._flush()

    def fileno(self) -> int:
        """The descriptor below."""
        return self._sock.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """How long each call may take."""
        self._sock.settimeout(seconds)

    def setblocking(self, flag: bool) -> None:
        """Whether `recv` waits. Sending always does, for one record at most."""
        self._sock.setblocking(flag)

    def shutdown(self, how: int) -> None:
        """End the connection below, whoever waits for it."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _shaken(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _decrypt(self, limit: int, keep: bool = False) -> bytes | None:
        """What can be read of what has arrived; none if more must arrive first."""
        if self._ahead and not keep:
            data = bytes(self._ahead[:limit])
            del self._ahead[:limit]
            return data
        try:
            return self._tls.read(limit)
        except ssl.SSLWantReadError:
            return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def _receive(self) -> None:
        data = self._sock.recv(4 * RECORD)
        with self._lock:
            if data:
                self._encrypted_in.write(data)
            else:
                self._encrypted_in.write_eof()

    def _flush(self) -> None:
        """Send what TLS has to say, even if the socket would rather not wait."""
        with self._lock:
            rest = memoryview(self._encrypted_out.read())
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except BlockingIOError:
                select.select([], [self._sock], [])


def wanted(endpoint: Endpoint, environment: Mapping[str, str]) -> bool:
    """Whether to speak TLS with an endpoint."""
    if endpoint.scheme == "tcp":
        return bool(environment.get(VERIFY))  # any text, as Docker reads it
    return endpoint.scheme == "https"
