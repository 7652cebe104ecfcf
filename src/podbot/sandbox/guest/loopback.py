"""Ways between a sandbox's loopback and outside, from inside: sockets made here, used elsewhere.

A socket belongs to the network namespace it was made in. The one that listens is made before
anything runs, and handed out over the line: whoever has it outside accepts what comes, and its port
stays taken. The others are connections to what listens here. Nothing here keeps any of them.
"""

from __future__ import annotations

import _socket as socket
import json
import os
import select
import struct

from podbot.sandbox.guest.wire import HEADER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.sandbox.guest.wire import Head

HOST, HOST_6 = "127.0.0.1", "::1"
BACKLOG = 1024
ANSWER_MILLISECONDS = 50


def listening(port: int) -> socket.socket:
    """A socket that listens on loopback, at a port that nobody can share."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind((HOST, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def connecting(port: int) -> int:
    """A socket that is connected to a port of loopback, or is about to be; nobody waits for it."""
    try:
        return _connecting(socket.AF_INET, HOST, port)
    except OSError as error:
        try:
            return _connecting(socket.AF_INET6, HOST_6, port)
        except OSError:
            raise error from None


def _connecting(family: int, host: str, port: int) -> int:
    kind = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    line = socket.socket(family, kind)
    try:
        try:
            line.connect((host, port))
        except BlockingIOError:
            poller = select.poll()
            poller.register(line, select.POLLOUT)
            # On loopback the answer is there at once, unless the other side is behind.
            if poller.poll(ANSWER_MILLISECONDS):
                error = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    raise OSError(error, os.strerror(error)) from None
    except BaseException:
        line.close()
        raise
    return line.detach()


def hand_out(line: int, head: Head, listener: socket.socket) -> None:
    """Send a frame with a socket along, and let go of that."""
    body = json.dumps(head).encode("ascii")
    over = socket.socket(fileno=line)
    try:
        rights = struct.pack("i", listener.fileno())
        with_it = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        over.sendmsg([HEADER.pack(len(body), 0) + body], with_it)
    finally:
        over.detach()
        listener.close()
