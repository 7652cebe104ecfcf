"""Ports of a sandbox that can be reached at the host's loopback: servers in development, logins.

The other way round than a gateway: somebody connects out here, and the guest makes a socket that
connects to its own loopback and sends it over. What that is, is asked of the kernel: the guest is
hostile. Bytes then go both ways in a thread, in bounded memory, and nobody looks at them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
from typing import Self

from podbot.egress.sockets import close_at_once, close_handed, has_room
from podbot.errors import Kind, PodbotError, SandboxError
from podbot.frozen import dataclass
from podbot.sandbox import ops, wire
from podbot.sandbox.sandbox import Sandbox

HOST = "127.0.0.1"
CHUNK = 64 << 10
MOST = 256
"""Connections at once to one port; more wait to be accepted."""
LINE_SECONDS = 10.0
PAUSE_SECONDS = 0.1
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_SO_PROTOCOL, _SO_DOMAIN = 38, 39  # Python has no names for these everywhere


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a sandbox, and at which one of the host's it is to be; 0 is any that is free."""

    inside: int
    host: int

    def __post_init__(self) -> None:
        for number, least in ((self.inside, 1), (self.host, 0)):
            if not least <= number < 65536:
                raise _no_port(
                    self.inside if self.inside == self.host else f"{self.host}:{self.inside}"
                )

    @classmethod
    def of(cls, word: str | int | Port) -> Port:
        """What a person means by ``[HOST:]PORT``; without a host's port it is the same one."""
        if isinstance(word, Port):
            return word
        host, colon, inside = str(word).rpartition(":")
        numbers = (inside, host if colon else inside)
        if not all(each.isascii() and each.isdigit() and len(each) < 6 for each in numbers):
            raise _no_port(word)
        return cls(*map(int, numbers))


class Publication:
    """A port of a sandbox at the host's loopback, until it is closed. ``address`` is where."""

    def __init__(self, sandbox: Sandbox, port: Port):
        if not sandbox._passes_descriptors:
            raise SandboxError(
                f"port {port.inside} cannot be published: no socket gets out of this sandbox",
                kind=Kind.UNSUPPORTED,
                remedy="use the overlay backend, or an engine on this machine with runc or crun",
            )
        self.port = port
        self._sandbox = sandbox
        self._pairs: dict[int, _Pair] = {}
        try:
            self._listener = socket.create_server((HOST, port.host), backlog=64)
        except OSError as error:
            raise SandboxError(
                f"port {port.host} of this machine cannot be had: {os.strerror(error.errno or 0)}",
                kind=Kind.INVALID,
                remedy=f"choose another, or any that is free: 0:{port.inside}",
            ) from None
        self.address: tuple[str, int] = self._listener.getsockname()
        self._ended, self._wake = os.pipe2(os.O_CLOEXEC)
        self._paused: float | None = None
        self._poll = select.poll()
        self._poll.register(self._ended, select.POLLIN)
        self._poll.register(self._listener, select.POLLIN)
        self._thread = threading.Thread(target=self._work, name="podbot-publish", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it, and what goes through it; may be called twice."""
        wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # In the thread

    def _work(self) -> None:
        try:
            while True:
                for fd, _ in self._poll.poll(self._patience()):
                    if fd == self._ended:
                        return
                    if fd == self._listener.fileno():
                        self._accept()
                    elif fd in self._pairs:  # else its other side was told of just before
                        self._move(self._pairs[fd])
        finally:
            for pair in set(self._pairs.values()):
                pair.close()
            self._listener.close()
            os.close(self._ended)

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:  # it would be readable again at once
                self._pause()
            return  # else whoever it was has gone
        if not has_room(near):
            near.close()
            return
        try:
            far = connected(self._sandbox, self.port.inside)
        except (PodbotError, OSError):
            near.close()  # nobody listens in there, or the sandbox is gone
            return
        pair = _Pair(near, far)
        self._pairs |= dict.fromkeys(pair.numbers, pair)
        if len(self._pairs) >= 2 * MOST:
            self._poll.unregister(self._listener)
        self._move(pair)

    def _pause(self) -> None:
        """Let what goes through go on, and some of it end, before more is accepted."""
        self._poll.unregister(self._listener)
        self._paused = time.monotonic() + PAUSE_SECONDS

    def _patience(self) -> float | None:
        """How long to wait for something, in milliseconds; accepts again when that is over."""
        if self._paused is None:
            return None
        left = self._paused - time.monotonic()
        if left > 0:
            return left * 1000 + 1
        self._paused = None
        self._poll.register(self._listener, select.POLLIN)
        return None

    def _move(self, pair: _Pair) -> None:
        full = len(self._pairs) >= 2 * MOST
        wanted = pair.move()
        for number in pair.numbers:
            with contextlib.suppress(KeyError):
                self._poll.unregister(number)
            if wanted is not None and wanted[number]:
                self._poll.register(number, wanted[number])
        if wanted is None:
            for number in pair.numbers:
                del self._pairs[number]
            pair.close()
            if full:
                self._poll.register(self._listener, select.POLLIN)


class _Pair:
    """Two sockets, and what is on its way between them."""

    def __init__(self, near: socket.socket, far: socket.socket):
        self._sockets = (near, far)
        self.numbers = (near.fileno(), far.fileno())
        self._ways = (_Way(near, far), _Way(far, near))

    def move(self) -> dict[int, int] | None:
        """Move what can be moved now; gives what to wait for, None once both ways have ended."""
        wanted = dict.fromkeys(self.numbers, 0)
        try:
            for way in self._ways:
                if not way.over:
                    number, event = way.step()
                    wanted[number] |= event
        except OSError:
            return None  # one of them broke
        return None if all(way.over for way in self._ways) else wanted

    def close(self) -> None:
        for each in self._sockets:
            close_at_once(each)  # a fork of ours, or the guest, may hold it too


class _Way:
    """One direction."""

    def __init__(self, source: socket.socket, sink: socket.socket):
        self._source, self._sink = source, sink
        self._held = memoryview(b"")
        self.over = False

    def step(self) -> tuple[int, int]:
        """Move one chunk, as far as nobody has to wait; gives what to wait for."""
        # At each call: the flag of the socket itself is the guest's to change as well.
        at_once = socket.MSG_DONTWAIT
        try:
            if not self._held:
                self._held = memoryview(self._source.recv(CHUNK, at_once))
                if not self._held:
                    self.over = True
                    self._sink.shutdown(socket.SHUT_WR)
                    return self._source.fileno(), 0
        except BlockingIOError:
            return self._source.fileno(), select.POLLIN
        try:
            sent = self._sink.send(self._held, at_once | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        self._held = self._held[sent:]
        if self._held:
            return self._sink.fileno(), select.POLLOUT
        return self._source.fileno(), select.POLLIN


def connected(sandbox: Sandbox, port: int) -> socket.socket:
    """A connection to a port of a sandbox's loopback, as the guest made it; it may be under way.

    Raises kind ``io`` if nothing listens there, and ``protocol`` for anything else than that.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            sandbox._run(ops.connect(port, theirs.fileno()))
        ours.settimeout(LINE_SECONDS)
        try:
            _, fds, _, _ = socket.recv_fds(ours, 1, 2, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            fds = []
    if len(fds) == 1:
        with contextlib.suppress(OSError):
            line = socket.socket(fileno=fds[0])
            if _is_connection(line, port):
                return line
            fds = [line.detach()]
    for fd in fds:
        close_handed(fd)
    raise wire.broken("no connection where one was promised")


def _is_connection(line: socket.socket, port: int) -> bool:
    def option(number: int) -> int:
        return line.getsockopt(socket.SOL_SOCKET, number)

    if option(_SO_DOMAIN) not in (socket.AF_INET, socket.AF_INET6):
        return False
    if (option(socket.SO_TYPE), option(_SO_PROTOCOL), option(socket.SO_ACCEPTCONN)) != (
        socket.SOCK_STREAM, socket.IPPROTO_TCP, 0,
    ):  # fmt: skip
        return False
    try:
        return line.getpeername()[:2] in ((HOST, port), ("::1", port))
    except OSError as error:
        return error.errno == errno.ENOTCONN  # under way, or refused meanwhile


def _no_port(word: object) -> SandboxError:
    return SandboxError(
        f"{str(word)!r:.80} is no port to publish",
        kind=Kind.INVALID,
        remedy="write PORT, or HOST:PORT with the port of this machine first, such as 8080:3000",
    )
