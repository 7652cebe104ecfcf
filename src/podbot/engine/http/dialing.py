"""Opening a connection to an engine, and saying precisely why it could not be opened.

A socket on this machine can be missing (``socket_not_found``) or forbidden
(``permission_denied``); whatever else goes wrong, and everything over a network, is
``connection_failed``.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from typing import TYPE_CHECKING

from podbot.engine.finding.endpoints import Endpoint
from podbot.errors import ContainerError, Kind

if TYPE_CHECKING:
    import ssl

    from podbot.engine.http.exchange import Line
    from podbot.engine.http.tls import TlsSocket

DIAL_SECONDS = 10.0


class SocketDialer:
    """Connects to a socket file."""

    host = "d"  # engines want one; it means nothing on a socket

    def __init__(self, path: str, shown: str | None = None):
        self.path = path
        self._shown = shown or path

    def dial(self, seconds: float | None) -> socket.socket:
        """A connected socket."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(_at_most(seconds))
            sock.connect(self.path)
        except BaseException as error:
            sock.close()
            if isinstance(error, OSError):
                raise socket_error(error, self.path) from error
            raise
        return sock

    def close(self) -> None:
        """Nothing was started."""


class TcpDialer:
    """Connects to a port, with TLS if it has a context for it."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None):
        self._endpoint = endpoint
        self._context = context
        bracketed = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        self.host = f"{bracketed}:{endpoint.port}"

    def dial(self, seconds: float | None) -> socket.socket | TlsSocket:
        """A connected socket."""
        place = (self._endpoint.host, self._endpoint.port)
        try:
            sock = socket.create_connection(place, _at_most(seconds))
        except OSError as error:
            raise self._failed(error) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is None:
            return sock
        from podbot.engine.http.tls import TlsSocket

        try:
            return TlsSocket(sock, self._context, self._endpoint.host)
        except OSError as error:  # every error of TLS is one
            sock.close()
            raise self._not_trusted(error) from error
        except BaseException:
            sock.close()
            raise

    def close(self) -> None:
        """Nothing was started."""

    def _failed(self, error: OSError) -> ContainerError:
        return ContainerError(
            f"no engine can be reached at {self._endpoint}: {error.strerror or error}",
            kind=Kind.CONNECTION_FAILED,
            remedy="check the host and port, and that the engine listens there",
            subject=str(self._endpoint),
        )

    def _not_trusted(self, error: OSError) -> ContainerError:
        said = getattr(error, "verify_message", "") or error.strerror or str(error)
        return ContainerError(
            f"no TLS with the engine at {self._endpoint}: {said}",
            kind=Kind.CONNECTION_FAILED,
            remedy="point DOCKER_CERT_PATH at a folder with the engine's ca.pem"
            " (and cert.pem and key.pem, if it wants to know you)",
            subject=str(self._endpoint),
        )


def _at_most(seconds: float | None) -> float:
    return DIAL_SECONDS if seconds is None else min(seconds, DIAL_SECONDS)


def socket_error(error: OSError, path: str) -> ContainerError:
    """Why a socket file could not be connected to."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ContainerError(
            f"there is no engine socket at {path}",
            kind=Kind.SOCKET_NOT_FOUND,
            remedy="start the service (systemctl --user start podman.socket), or name the socket"
            " with PODBOT_ENGINE_SOCKET",
            subject=path,
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ContainerError(
            f"this user may not use the engine socket {path}",
            kind=Kind.PERMISSION_DENIED,
            remedy="use your own engine (systemctl --user start podman.socket), or have yourself"
            " let in to this one (its group, for Docker)",
            subject=path,
        )
    if error.errno == errno.ECONNREFUSED and not _is_socket(path):
        why = "it is not a socket"
    elif error.errno == errno.ECONNREFUSED:
        why = "nobody listens"
    else:
        why = error.strerror or str(error)
    return ContainerError(
        f"no engine answers at {path}: {why}",
        kind=Kind.CONNECTION_FAILED,
        remedy="start or restart the engine's service",
        subject=path,
    )


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return True  # gone meanwhile: it was one


def peer_uid(sock: Line) -> int | None:
    """The user whose process listens at the other end of a socket file; none for others."""
    if not isinstance(sock, socket.socket) or sock.family != socket.AF_UNIX:
        return None
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", data)[1])
