"""Sockets that somebody hostile had a hand in: how many may be held, and how they are closed.

Whoever connects chooses how many they are, and a socket that was made inside a sandbox has the
options that were set there; those of a listener are those of all that it accepts.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
from contextlib import suppress

_AT_ONCE = struct.pack("ii", 0, 0)


def has_room(sock: socket.socket) -> bool:
    """Whether the process can spare the descriptor of this socket: a quarter of them is for others.

    The lowest that is free is always the next, so that its number tells. Without that whoever
    connects could leave none to the program that podbot is a part of.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most == resource.RLIM_INFINITY or sock.fileno() < most - most // 4


def close_at_once(sock: socket.socket) -> None:
    """End a connection and close it; nobody waits until what is left in it has arrived."""
    with suppress(OSError):  # what SO_LINGER says closing would wait for
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    with suppress(OSError):  # the other side was faster
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def close_handed(fd: int) -> None:
    """Close a descriptor that somebody handed over, whatever it is."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        with suppress(OSError):
            os.close(fd)
    else:
        close_at_once(sock)
