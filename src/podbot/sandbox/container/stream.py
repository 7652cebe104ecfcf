"""A guest reached through its engine: frames over the container's own standard input and output.

For engines and runtimes that let no socket of ours through. Two threads carry bytes between the
engine's raw stream and a socket, so that whoever talks to the guest sees a socket as ever; only
descriptors cannot be passed along. What the guest says on its standard error is kept for the case
that it does not start.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque

from podbot.engine import Frames, Hijacked
from podbot.engine.hijacked import STDERR
from podbot.errors import ContainerError

CHUNK = 256 * 1024
MAX_SAID = 4000


class Stream:
    """Both directions, carried until either side ends. ``near`` is the end to talk on."""

    def __init__(self, hijacked: Hijacked):
        self.near, self._far = socket.socketpair()
        self._hijacked = hijacked
        self._said: deque[bytes] = deque()
        hijacked.settimeout(None)
        for carry in (self._carry_in, self._carry_out):
            threading.Thread(target=carry, name="podbot-stream", daemon=True).start()

    @property
    def said(self) -> str:
        """The end of what came on standard error. Text from inside: hostile."""
        return b"".join(self._said)[-MAX_SAID:].decode("utf-8", "replace")

    def _carry_in(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._far.recv(CHUNK):
                self._hijacked.sendall(data)
        with contextlib.suppress(OSError):
            self._hijacked.close_write()  # the guest sees its line closed, and ends

    def _carry_out(self) -> None:
        frames = Frames()
        with contextlib.suppress(OSError, ContainerError):
            while data := self._hijacked.recv(CHUNK):
                for stream, part in frames.feed(data):
                    if stream == STDERR:
                        self._keep(part)
                    else:
                        self._far.sendall(part)
        for end in (self._far, self._hijacked):
            # Shut before closing: the other thread may sit in a call on it.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR) if isinstance(end, socket.socket) else None
            end.close()

    def _keep(self, part: bytes) -> None:
        self._said.append(part)
        while sum(map(len, self._said)) > MAX_SAID + CHUNK:
            self._said.popleft()
