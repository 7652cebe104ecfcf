"""A connected socket for coroutines: tries first and waits only if it must, and counts.

What has been received and not sent on is one piece of at most 64 KiB for each direction: a side
that is slow slows the other, and memory stays flat whatever goes through.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from podbot.egress.sockets import close_at_once

PIECE = 64 * 1024
TURN = 16
"""Pieces after which others have their turn."""


class Line:
    """One side of a connection. Closing it is for whoever made it."""

    __slots__ = ("_loop", "_pieces", "moved", "received", "sent", "sock")

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop):
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError):  # small answers at once; a peer that vanished is noticed
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.sock, self._loop = sock, loop
        self.received = self.sent = self._pieces = 0
        self.moved = loop.time()
        """When bytes last went through."""

    async def receive(self) -> bytes:
        """What is there, as soon as something is; nothing at the end."""
        while True:
            try:
                data = self.sock.recv(PIECE)
            except (BlockingIOError, InterruptedError):
                await self.readable()
                continue
            self.count_received(len(data))
            await self.take_turns()
            return data

    async def take_turns(self) -> None:
        """To be called for each piece: a side that is never behind would leave others no turn."""
        self._pieces += 1
        if self._pieces % TURN == 0:
            await asyncio.sleep(0)

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of it."""
        rest = memoryview(data)
        while rest:
            try:
                sent = self.sock.send(rest)
            except (BlockingIOError, InterruptedError):
                await self.writable()
                continue
            self.count_sent(sent)
            rest = rest[sent:]

    def count_received(self, size: int) -> None:
        """Note that so much came."""
        self.received += size
        self.moved = self._loop.time()

    def count_sent(self, size: int) -> None:
        """Note that so much went."""
        self.sent += size
        self.moved = self._loop.time()

    async def readable(self) -> None:
        """Wait until there is something to receive, or the end."""
        ready = self._loop.create_future()
        number = self.sock.fileno()
        self._loop.add_reader(number, _wake, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(number)

    async def writable(self) -> None:
        """Wait until something can be sent."""
        ready = self._loop.create_future()
        number = self.sock.fileno()
        self._loop.add_writer(number, _wake, ready)
        try:
            await ready
        finally:
            self._loop.remove_writer(number)

    def end_sending(self) -> None:
        """Say that nothing more will be sent; what comes can still be received."""
        with suppress(OSError):  # the other side was faster
            self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection, even if a fork of this process holds a copy of it."""
        if self.sock.fileno() >= 0:
            close_at_once(self.sock)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
