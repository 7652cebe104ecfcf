"""Frames in and out. The host's side is `podbot.sandbox.wire`; the two must agree.

A frame is two lengths, a JSON object (the head) and raw bytes (the payload). What the host sends is
trusted, but for its size.
"""

from __future__ import annotations

import _socket as socket
import collections
import json
import os
import select
import stat
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from podbot.sandbox.guest.loop import Loop

    Head = dict[str, Any]
    """The JSON object of a frame, as the host or the guest wrote it."""
    Bytes = bytes | memoryview


PROTOCOL = 1
HEADER = struct.Struct("!II")
MAX_PAYLOAD = 1024 * 1024
MAX_HEAD = 4 * 1024 * 1024
QUEUE_LIMIT = 8 * 1024 * 1024
READ_SIZE = 65536  # larger buffers come from mmap, and each costs its page faults anew
ANCILLARY_SIZE = 64
# Made once: json.dumps with options makes an encoder each time.
to_json = json.JSONEncoder(separators=(",", ":")).encode


def as_socket(fd: int) -> socket.socket | None:
    """A descriptor as a socket, which can carry other descriptors; None if it is not one."""
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return None
    return socket.socket(fileno=os.dup(fd))


NOTHING = memoryview(b"")


class Wire:
    """Frames in and out, over one descriptor or two."""

    def __init__(
        self,
        loop: Loop,
        in_fd: int,
        out_fd: int,
        on_request: Callable[[Head, bytes], object],
        on_end: Callable[[], object],
    ) -> None:
        self._loop, self._in, self._out = loop, in_fd, out_fd
        self._on_request, self._on_end = on_request, on_end
        self._buffer = bytearray()
        self._queue: collections.deque[memoryview] = collections.deque()
        self._queued = 0
        self.descriptors: collections.deque[int] = collections.deque()
        self._socket = as_socket(in_fd)
        os.set_blocking(in_fd, False)
        os.set_blocking(out_fd, False)
        loop.watch(in_fd, self._ready)

    def close(self) -> None:
        """Let go of what is not the caller's."""
        if self._socket is not None:
            self._socket.close()

    @property
    def congested(self) -> bool:
        """Whether the host is so far behind that producers should wait."""
        return self._queued > QUEUE_LIMIT

    def send(self, head: Head, payload: Bytes = b"") -> None:
        """Queue a reply; a payload larger than a frame goes in parts."""
        view = memoryview(payload)
        while len(view) > MAX_PAYLOAD:
            self._put({"id": head["id"], "more": True}, view[:MAX_PAYLOAD])
            view = view[MAX_PAYLOAD:]
        self._put(head, view)

    def _put(self, head: Head, view: memoryview) -> None:
        body = to_json(head).encode("ascii")
        data = HEADER.pack(len(body), len(view)) + body
        if 0 < len(view) <= 65536:
            data, view = b"".join((data, view)), NOTHING
        idle = not self._queue
        self._queue.append(memoryview(data))
        self._queued += len(data)
        if view:
            self._queue.append(view)
            self._queued += len(view)
        if idle:
            self._flush()

    def _flush(self) -> None:
        queue = self._queue
        while queue:
            try:
                sent = os.writev(self._out, list(queue)[:16] if len(queue) > 1 else queue)
            except BlockingIOError:
                break
            except OSError:
                self._on_end()
                return
            self._queued -= sent
            while sent:
                first = queue[0]
                if sent < len(first):
                    queue[0] = first[sent:]
                    break
                sent -= len(first)
                queue.popleft()
        self._rearm()

    def _rearm(self) -> None:
        """Ask for what we can use: room to write if we wait for it, requests unless congested."""
        if self._in == self._out:
            events = 0 if self.congested else select.EPOLLIN
            events |= select.EPOLLOUT if self._queue else 0
            self._set(self._in, events)
        else:
            self._set(self._in, 0 if self.congested else select.EPOLLIN)
            if self._queue:
                self._loop.watch(self._out, self._ready, select.EPOLLOUT)
            else:
                self._loop.unwatch(self._out)

    _armed = select.EPOLLIN

    def _set(self, fd: int, events: int) -> None:
        if events != self._armed:
            self._armed = events
            self._loop.watch(fd, self._ready, events)

    def _ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            self._receive()

    def _receive(self) -> None:
        try:
            if self._socket is None:
                data = os.read(self._in, READ_SIZE)
            else:
                # Ours alone from the first moment: a command started meanwhile must not get them.
                data, ancillary, _, _ = self._socket.recvmsg(
                    READ_SIZE, ANCILLARY_SIZE, socket.MSG_CMSG_CLOEXEC
                )
                for _, _, raw in ancillary:
                    self.descriptors.extend(struct.unpack(f"{len(raw) // 4}i", raw))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._on_end()
            return
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= HEADER.size:
            head_size, payload_size = HEADER.unpack_from(buffer, start)
            if head_size > MAX_HEAD or payload_size > MAX_PAYLOAD:
                self._on_end()
                return
            body = start + HEADER.size
            end = body + head_size + payload_size
            if len(buffer) < end:
                break
            head = json.loads(bytes(buffer[body : body + head_size]))
            payload = bytes(buffer[body + head_size : end])
            start = end
            self._on_request(head, payload)
        if start:
            del buffer[:start]
