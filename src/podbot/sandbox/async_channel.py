"""The channel's async driver: the same core as `channel.SocketChannel`, from an event loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from podbot.errors import GuestLostError, Kind, SandboxError
from podbot.sandbox import wire
from podbot.sandbox.channel import (
    CANCEL_SECONDS,
    Call,
    Channel,
    Mux,
    Pending,
    Reply,
    closed_error,
)

READS_A_TURN = 16
"""How many reads one readiness may do before other tasks get their turn."""


class AsyncSocketChannel:
    """A channel over a connected stream socket, for one event loop."""

    def __init__(self, sock: socket.socket, died: Callable[[], SandboxError | None]):
        sock.setblocking(False)
        self._sock = sock
        self._died = died
        self._mux = Mux()
        self._decoder = wire.Decoder()
        self._owner = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._loop.add_reader(sock, self._readable)

    async def call(self, call: Call) -> Reply:
        """As `SocketChannel.call`; cancelling the task cancels the request."""
        if os.getpid() != self._owner:
            raise SandboxError(
                "this sandbox belongs to the process that opened it, not to its fork",
                kind=Kind.FOREIGN_PROCESS,
                remedy="open a sandbox in the child process",
            )
        pending, data = self._mux.begin(call)
        future: asyncio.Future[None] = self._loop.create_future()
        pending.wake = lambda: None if future.done() else future.set_result(None)
        try:
            async with asyncio.timeout(call.patience):
                await self._transmit(data, call.payload)
                await future
        except TimeoutError:
            await self._abandon(pending, call)
            raise SandboxError(
                "the guest did not answer in time",
                kind=Kind.GUEST_UNRESPONSIVE,
                remedy="close this sandbox and open a new one",
            ) from None
        except BaseException:
            await self._abandon(pending, call)
            raise
        return pending.result()

    def close(self) -> None:
        """Fail every call under way and let go of the socket."""
        if os.getpid() == self._owner:
            self._stop(closed_error())
        self._sock.close()

    async def _abandon(self, pending: Pending, call: Call) -> None:
        """Have the guest kill what it started, and wait a little for its word that it did."""
        if call.cancel and not pending.done and self._mux.lost is None:
            dead: asyncio.Future[None] = self._loop.create_future()
            pending.wake = lambda: None if dead.done() else dead.set_result(None)
            note = wire.encode({"id": 0, "op": "cancel", "target": pending.number})
            try:
                async with asyncio.timeout(CANCEL_SECONDS):
                    await self._transmit(note, b"")
                    await dead
            except (TimeoutError, SandboxError):
                pass  # gone or stuck: closing the sandbox is what kills it then
        self._mux.forget(pending)

    async def _transmit(self, data: bytes, payload: bytes | bytearray | memoryview) -> None:
        if len(payload):
            data = b"".join((data, payload))
        async with self._sending:
            if self._mux.lost is not None:
                raise self._mux.lost
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            except (BrokenPipeError, ConnectionResetError):
                self._lose()
                return
            if sent < len(data):
                # Half a frame would garble every request after it, so a cancelled task lets
                # the rest go out first.
                rest = asyncio.ensure_future(self._finish(memoryview(data)[sent:]))
                try:
                    await asyncio.shield(rest)
                except asyncio.CancelledError:
                    await asyncio.wait([rest], timeout=CANCEL_SECONDS)
                    raise

    async def _finish(self, view: memoryview) -> None:
        try:
            await self._loop.sock_sendall(self._sock, view)
        except OSError:
            self._lose()

    def _readable(self) -> None:
        decoder = self._decoder
        try:
            for _ in range(READS_A_TURN):
                view = decoder.want()
                if view is not None:
                    count = self._sock.recv_into(view)
                    decoder.filled(count)
                else:
                    data = self._sock.recv(wire.CHUNK)
                    count = len(data)
                    decoder.feed(data)
                if not count:
                    self._lose()
                    return
                while (frame := decoder.take()) is not None:
                    self._mux.dispatch(frame)
        except BlockingIOError:
            return
        except OSError:
            self._lose()
        except GuestLostError as error:
            self._stop(error)

    def _lose(self) -> None:
        self._stop(
            self._died()
            or GuestLostError(
                "the sandbox ended while it was in use",
                kind=Kind.GUEST_LOST,
                remedy="open a new one; files already written are still in its layer",
            )
        )

    def _stop(self, error: SandboxError) -> None:
        if self._sock.fileno() >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(self._sock)
        self._mux.fail(error)


class AsyncAdapter:
    """Lets an async sandbox use a backend that answers at once (memory)."""

    def __init__(self, channel: Channel):
        self._channel = channel

    async def call(self, call: Call) -> Reply:
        """Answer, having let other tasks run."""
        await asyncio.sleep(0)
        return self._channel.call(call)

    def close(self) -> None:
        """Let go."""
        self._channel.close()
