"""The way out of a sandbox, from inside: a socket that listens here, for somebody elsewhere.

It is made in this network namespace, before anything runs in it, and handed out over the line.
Nothing here keeps it. Whoever has it outside accepts what comes, and its port stays taken.
"""

from __future__ import annotations

import _socket as socket
import json
import struct

from podbot.sandbox.guest.wire import HEADER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.sandbox.guest.wire import Head

HOST = "127.0.0.1"
BACKLOG = 1024


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
