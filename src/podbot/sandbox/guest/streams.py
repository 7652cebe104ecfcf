"""The guest's ends of a child's streams: read and written as the loop finds them ready."""

from __future__ import annotations

import collections
import errno
import os
import select

from podbot.sandbox.guest.wire import READ_SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from podbot.sandbox.guest.requests import Guest
    from podbot.sandbox.guest.wire import Bytes


def close_quietly(fd: int) -> None:
    """Close a descriptor that may be closed already."""
    try:
        os.close(fd)
    except OSError:
        pass


class Output:
    """One output stream of a child: what was read, and how it ended."""

    def __init__(
        self,
        guest: Guest,
        fd: int,
        limit: int,
        on_change: Callable[[], object],
        mode: Literal["cut", "wait", "drop"],
    ) -> None:
        """``mode``: "cut" keeps the start, "wait" stops reading, "drop" keeps the end."""
        self._guest, self.fd, self._limit, self._mode = guest, fd, limit, mode
        self._on_change = on_change
        self.parts: collections.deque[Bytes] = collections.deque()
        self.size = 0
        self.lost = 0
        self.ended = False
        os.set_blocking(fd, False)
        guest.loop.watch(fd, self._ready)

    def _ready(self, _events: int) -> None:
        room = self._limit - self.size
        if self._mode == "wait" and (room <= 0 or self._guest.wire.congested):
            self._guest.loop.unwatch(self.fd)
            return
        try:
            data = os.read(self.fd, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # a terminal whose other end is closed says EIO
        if not data:
            self.close()
        elif self._mode == "cut":
            if room > 0:
                self.parts.append(data[:room])
                self.size += len(self.parts[-1])
            self.lost += max(0, len(data) - max(0, room))
        else:
            self.parts.append(data)
            self.size += len(data)
            while self._mode == "drop" and self.size > self._limit and len(self.parts) > 1:
                gone = self.parts.popleft()
                self.size -= len(gone)
                self.lost += len(gone)
        self._on_change()

    def drain(self) -> None:
        """Take what is in the pipe right now."""
        while not self.ended:
            before = self.size + self.lost
            self._ready(0)
            if self.size + self.lost == before:
                return

    def pause(self) -> None:
        """Leave what comes in the pipe, until `resume` or `drain`."""
        if not self.ended:
            self._guest.loop.unwatch(self.fd)

    def resume(self) -> None:
        """Read on."""
        if not self.ended:
            self._guest.loop.watch(self.fd, self._ready)

    def take(self, size: int) -> Bytes:
        """Up to ``size`` bytes off the front."""
        taken: list[Bytes] = []
        got = 0
        while self.parts and got < size:
            part = self.parts.popleft()
            if len(part) > size - got:
                self.parts.appendleft(memoryview(part)[size - got :])
                part = memoryview(part)[: size - got]
            taken.append(part)
            got += len(part)
        self.size -= got
        if self._mode == "wait" and not self.ended and self.size < self._limit:
            self._guest.loop.watch(self.fd, self._ready)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def text(self) -> bytes:
        """All of it."""
        return b"".join(self.parts)

    def clear(self) -> None:
        """Forget what was read."""
        self.parts.clear()
        self.size = self.lost = 0

    def close(self) -> None:
        """No more of this stream."""
        if not self.ended:
            self.ended = True
            self._guest.loop.unwatch(self.fd)
            os.close(self.fd)

    def release(self) -> None:
        """Keep reading to nowhere, so that what still writes is not killed by a closed pipe."""
        if not self.ended:
            self._guest.loop.watch(self.fd, self._discard)

    def _discard(self, _events: int) -> None:
        try:
            if os.read(self.fd, READ_SIZE):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()


class Input:
    """Writes queued bytes to a child's stdin as it takes them."""

    def __init__(self, guest: Guest, fd: int) -> None:
        self._guest, self._fd = guest, fd
        self._queue: collections.deque[tuple[memoryview, Callable[[OSError | None], object] | None]]
        self._queue = collections.deque()
        self._closing = False
        self.closed = False
        os.set_blocking(fd, False)

    def put(
        self,
        data: Bytes,
        done: Callable[[OSError | None], object] | None = None,
        close: bool = False,
    ) -> None:
        """Queue data; ``done(error)`` is called when all of it was taken, or refused."""
        self._queue.append((memoryview(data), done))
        self._closing = self._closing or close
        self._push(0)

    def _push(self, _events: int) -> None:
        while self._queue and not self.closed:
            view, done = self._queue[0]
            try:
                sent = os.write(self._fd, view) if len(view) else 0
            except BlockingIOError:
                self._guest.loop.watch(self._fd, self._push, select.EPOLLOUT)
                return
            except OSError as error:
                self.close(error)
                return
            if sent < len(view):
                self._queue[0] = (view[sent:], done)
                continue
            self._queue.popleft()
            if done is not None:
                done(None)
        if not self.closed:
            self._guest.loop.unwatch(self._fd)
            if self._closing:
                self.close()

    def close(self, error: OSError | None = None) -> None:
        """The child sees the end of its input; what waits is refused."""
        if self.closed:
            return
        self.closed = True
        self._guest.loop.unwatch(self._fd)
        os.close(self._fd)
        while self._queue:
            _, done = self._queue.popleft()
            if done is not None:
                done(error or OSError(errno.EPIPE, os.strerror(errno.EPIPE)))
