"""The output of a spawned process, read straight from the pipe it writes to.

The host makes the pipes and sends their far ends along with the request, so a gigabyte of output
never passes through the guest, and a reader who is slow holds up nobody but its own process. The
near ends are the host's own: nothing a guest does can make reading them more than reading bytes.
Only channels over a local socket can pass descriptors; others carry output in frames.
"""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from podbot.errors import Kind, SandboxError
from podbot.sandbox.channel import closed_error

SLICE_SECONDS = 0.2
"""How long a reader waits before it looks whether the pipe was closed under it."""


def _pipe(capacity: int) -> tuple[int, int]:
    near, far = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):  # over the user's share of pipe memory: the usual size will do
        fcntl.fcntl(near, fcntl.F_SETPIPE_SZ, min(capacity, 1 << 20))
    os.set_blocking(near, False)
    return near, far


class OutputPipes:
    """Both streams of one process. ``far`` are the ends it writes to."""

    def __init__(self, capacity: int):
        try:
            out = _pipe(capacity)
            try:
                err = _pipe(capacity)
            except OSError:
                for fd in out:
                    os.close(fd)
                raise
        except OSError as error:
            raise SandboxError(
                f"no pipe for the output: {error.strerror}",
                kind=Kind.OUT_OF_DESCRIPTORS,
                remedy="close processes you are done with, or raise ulimit -n",
            ) from None
        self.stdout, self.stderr = PipeReader(out[0]), PipeReader(err[0])
        self.far = (out[1], err[1])

    @property
    def ended(self) -> bool:
        """Whether both streams were read to their end."""
        return self.stdout.ended and self.stderr.ended

    def close_far(self) -> None:
        """Let go of the far ends once they were sent; else the end is never seen."""
        for fd in self.far:
            os.close(fd)
        self.far = (-1, -1)

    def close(self) -> None:
        """Let go of the near ends."""
        self.stdout.close()
        self.stderr.close()


class PipeReader:
    """The near end of one pipe: for one thread, or one task, at a time."""

    def __init__(self, fd: int):
        self._fd = fd
        self._turn = threading.Lock()
        self._closed = False
        self._ended = False
        self._unwatch: Callable[[], object] | None = None

    @property
    def ended(self) -> bool:
        """Whether its end was seen."""
        return self._ended

    def read(self, size: int, timeout: float | None) -> bytes | None:
        """The next bytes; empty at the end, None when nothing came in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._turn:
            while True:
                data = self.take(size)
                if data is not None:
                    return data
                left = SLICE_SECONDS if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return None
                poller = select.poll()
                poller.register(self._fd, select.POLLIN)
                poller.poll(max(1, int(min(left, SLICE_SECONDS) * 1000)))

    async def read_async(self, size: int, timeout: float | None) -> bytes | None:
        """As `read`, from an event loop."""
        import asyncio  # sync callers do without it

        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            data = self.take(size)
            if data is not None:
                return data
            left = SLICE_SECONDS if deadline is None else deadline - loop.time()
            if left <= 0:
                return None
            ready = asyncio.Event()
            loop.add_reader(self._fd, ready.set)
            self._unwatch = lambda: loop.remove_reader(self._fd)
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, SLICE_SECONDS)):
                        await ready.wait()
            finally:
                self._stop_watching()

    def take(self, size: int) -> bytes | None:
        """What is there now; empty at the end, None for nothing yet."""
        if self._closed:
            raise closed_error()
        if self._ended:
            return b""
        try:
            data = os.read(self._fd, size)
        except BlockingIOError:
            return None
        if not data:
            self._ended = True
            os.close(self._fd)
        return data

    def close(self) -> None:
        """Let go; a reader that waits is told. For an event loop's reader, in that loop."""
        self._closed = True
        with self._turn:
            if not self._ended:
                self._ended = True
                self._stop_watching()
                os.close(self._fd)

    def _stop_watching(self) -> None:
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()
