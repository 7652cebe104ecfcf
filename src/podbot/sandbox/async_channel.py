"""The channel's async driver: the same core as `channel.SocketChannel`, from an event loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

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
    foreign_error,
    send_with,
)

READS_A_TURN = 16
"""How many reads one readiness may do before other tasks get their turn."""


class _Outgoing:
    """A frame on its way out."""

    __slots__ = ("begun", "descriptors", "view")

    def __init__(self, data: bytes, descriptors: tuple[int, ...]):
        self.view = memoryview(data)
        self.descriptors = descriptors
        self.begun = False


class AsyncSocketChannel:
    """A channel over a connected stream socket, for one event loop.

    Frames wait in a queue and always go out whole: half of one, left by a cancelled task, would
    garble every request after it.
    """

    def __init__(self, sock: socket.socket, died: Callable[[], SandboxError | None]):
        sock.setblocking(False)
        self._sock = sock
        self._died = died
        self._mux = Mux()
        self._decoder = wire.Decoder()
        self._outgoing: deque[_Outgoing] = deque()
        self._owner = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)

    async def call(self, call: Call) -> Reply:
        """As `SocketChannel.call`; cancelling the task cancels the request."""
        if os.getpid() != self._owner:
            raise foreign_error()
        pending, data = self._mux.begin(call)
        future = self._waiter(pending)
        frame = self._transmit(data, call.payload, call.descriptors)
        try:
            async with asyncio.timeout(call.patience):
                await future
        except TimeoutError:
            await self._abandon(pending, call, frame)
            raise SandboxError(
                "the guest did not answer in time",
                kind=Kind.GUEST_UNRESPONSIVE,
                remedy="close this sandbox and open a new one",
            ) from None
        except BaseException:
            await self._abandon(pending, call, frame)
            raise
        return pending.result()

    def close(self) -> None:
        """Fail every call under way and let go of the socket."""
        if os.getpid() == self._owner:
            self._stop(closed_error())
        self._sock.close()

    def release(self) -> None:
        """Close from any thread, or when the loop is gone: a sandbox may be collected anywhere."""
        if os.getpid() != self._owner:
            self._sock.close()
            return
        with suppress(OSError):  # closed before
            self._sock.shutdown(socket.SHUT_RDWR)
        # The loop watches the descriptor, so it must be the one that closes it.
        if not self.in_loop(self.close):
            self._sock.close()

    def in_loop(self, action: Callable[[], None]) -> bool:
        """Have the loop do something, from any thread; False if the loop is gone."""
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:
            return False
        return True

    def _waiter(self, pending: Pending) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        pending.wake = lambda: None if future.done() else future.set_result(None)
        return future

    async def _abandon(self, pending: Pending, call: Call, frame: _Outgoing) -> None:
        """Have the guest kill what it started, and wait a little for its word that it did."""
        if not frame.begun and self._mux.lost is None:
            self._outgoing = deque(other for other in self._outgoing if other is not frame)
        elif call.cancel and not pending.done and self._mux.lost is None:
            dead = self._waiter(pending)
            self._transmit(wire.encode({"id": 0, "op": "cancel", "target": pending.number}), b"")
            # No word: gone or stuck, and closing the sandbox is what kills it then.
            with suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    await dead
        self._mux.forget(pending)

    def _transmit(
        self,
        data: bytes,
        payload: bytes | bytearray | memoryview,
        descriptors: tuple[int, ...] = (),
    ) -> _Outgoing:
        frame = _Outgoing(b"".join((data, payload)) if len(payload) else data, descriptors)
        self._outgoing.append(frame)
        if len(self._outgoing) == 1:
            self._writable()
        return frame

    def _writable(self) -> None:
        while self._outgoing:
            frame = self._outgoing[0]
            try:
                if frame.descriptors and not frame.begun:
                    sent = send_with(self._sock, frame.view, frame.descriptors)
                else:
                    sent = self._sock.send(frame.view, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._writable)
                return
            except OSError:
                self._lose()
                return
            frame.begun = True
            frame.view = frame.view[sent:]
            if not frame.view:
                self._outgoing.popleft()
        self._loop.remove_writer(self._sock)

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
            self._loop.remove_writer(self._sock)
        self._outgoing.clear()
        self._mux.fail(error)


class AsyncAdapter:
    """Lets an async sandbox use a backend that answers in process (memory)."""

    def __init__(self, channel: Channel):
        self._channel = channel

    async def call(self, call: Call) -> Reply:
        """Answer; what may take long, in a thread."""
        if call.cancel:
            return await asyncio.to_thread(self._channel.call, call)
        await asyncio.sleep(0)
        return self._channel.call(call)

    def close(self) -> None:
        """Let go."""
        self._channel.close()

    release = close

    def in_loop(self, action: Callable[[], None]) -> bool:
        """Do something now: nothing here belongs to a loop."""
        action()
        return True
