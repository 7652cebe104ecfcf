"""The proxy: takes listening sockets and connections, and keeps to its rules.

One port speaks HTTP (tunnels and plain requests) and SOCKS5. All of it happens in one thread, which
is started with the first socket; until a connection comes that thread only waits.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections import deque

from podbot.egress.rules import Rules
from podbot.errors import EgressError, Kind
from podbot.frozen import dataclass

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from podbot.egress._lines import Line
    from podbot.egress._service import Service
    from podbot.egress.broker import Broker
    from podbot.egress.records import Record


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """What clients of a proxy can make it spend."""

    connections: int = 1024
    """At once; more are turned away."""
    head_bytes: int = 64 * 1024
    """Of one request or answer, before its body."""
    head_seconds: float = 30.0
    """For a whole head, from its first byte; for the first one from the connection."""
    idle_seconds: float = 1200.0
    """Without a byte either way: some models think for long."""
    dial_seconds: float = 30.0
    """For finding and connecting to the other side."""


class Proxy:
    """Lets through what its rules allow. To be closed, or used as a context manager.

    ``on_record`` is called from the proxy's thread, once for each connection, and for each request
    of plain HTTP, when it has ended; it should be quick. ``broker`` has the routes on which it adds
    credentials. ``resolver`` gives the addresses of a name
    (the system's, unless given). ``environment`` has the variables that name the host's own proxy
    (the process's, unless given).
    """

    def __init__(
        self,
        rules: Rules | None = None,
        on_record: Callable[[Record], None] | None = None,
        *,
        broker: Broker | None = None,
        limits: ProxyLimits | None = None,
        resolver: Callable[[str], Sequence[str]] | None = None,
        environment: Mapping[str, str] | None = None,
    ):
        self._rules = Rules() if rules is None else rules
        self._on_record, self._limits = on_record, limits or ProxyLimits()
        self._resolver, self._broker = resolver, broker
        self._environment = os.environ if environment is None else environment
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waker = -1
        self._given: deque[tuple[bool, socket.socket]] = deque()
        self._waiting: list[socket.socket] = []
        self._service: Service | None = None
        self._lines: set[Line] = set()
        self._closed = False
        self._process = os.getpid()

    @property
    def rules(self) -> Rules:
        """What is allowed. Setting it counts for whatever is asked from now on."""
        return self._rules

    @rules.setter
    def rules(self, rules: Rules) -> None:
        with self._lock:
            self._rules = rules

    def allow(self, word: str) -> None:
        """Allow one more word, from now on."""
        with self._lock:
            self._rules = self._rules.allow(word)

    def serve(self, listener: socket.socket) -> None:
        """Accept on a listening socket, of whatever network, until closed. It is the proxy's now.

        A copy that somebody else keeps goes on listening afterwards.
        """
        try:
            listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            streams = listener.type == socket.SOCK_STREAM
        except OSError:
            listens = streams = False
        if not (listens and streams):
            raise EgressError(
                "the proxy was given a socket that does not listen",
                kind=Kind.BAD_LISTENER,
                remedy="bind it and call listen() first",
            )
        self._give(True, listener)

    def adopt(self, connection: socket.socket) -> None:
        """Take one connection that came another way. It is the proxy's now."""
        if connection.type != socket.SOCK_STREAM or connection.fileno() < 0:
            raise EgressError(
                "the proxy was given a socket that is no open stream", kind=Kind.BAD_LISTENER
            )
        self._give(False, connection)

    def close(self, timeout: float | None = None) -> bool:
        """Close every listener and connection, and wait until the thread has ended.

        Says whether it has, which with a ``timeout`` in seconds it may not: then it hangs in a
        listener that somebody else has too. It may be called again.
        """
        with self._lock:
            self._closed = True
            thread = self._thread
            if thread is None or os.getpid() != self._process:
                return True
            if self._waker >= 0:  # else it has ended by itself
                os.eventfd_write(self._waker, 1)
        if thread is not threading.current_thread():
            thread.join(timeout)
            return not thread.is_alive()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _give(self, listens: bool, sock: socket.socket) -> None:
        with self._lock:
            if os.getpid() != self._process:
                raise EgressError(
                    "this proxy belongs to the parent of this process",
                    kind=Kind.FOREIGN_PROCESS,
                    remedy="make one here",
                )
            if self._closed:
                raise EgressError("the proxy is closed", kind=Kind.CLOSED)
            if self._thread is None:
                self._start()
            self._given.append((listens, sock))
            os.eventfd_write(self._waker, 1)

    def _start(self) -> None:
        """Start the thread. Where there is no room for it nothing was given."""
        thread = threading.Thread(target=self._work, name="podbot-egress", daemon=True)
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            _STARTED.add(self)
            thread.start()
        except BaseException:
            _STARTED.discard(self)
            waker, self._waker = self._waker, -1
            os.close(waker)
            raise
        self._thread = thread

    # In the thread

    def _work(self) -> None:
        try:
            if self._somebody_came() and self._has_room():
                from podbot.egress._service import Service

                self._service = Service(
                    self._limits,
                    lambda: self._rules,
                    self._on_record,
                    resolver=self._resolver,
                    environment=self._environment,
                    lines=self._lines,
                    broker=self._broker,
                )
                self._service.run(self._waker, self._news)
        finally:
            _STARTED.discard(self)
            with self._lock:
                self._closed = True
                left = [*self._waiting, *(sock for _, sock in self._given)]
                waker, self._waker = self._waker, -1
            for sock in left:
                sock.close()
            os.close(waker)

    def _somebody_came(self) -> bool:
        """Wait until the first connection is there, at no cost; says no if closed before."""
        import select

        poller = select.poll()
        poller.register(self._waker, select.POLLIN)
        while not self._closed:
            with self._lock:
                if any(not listens for listens, _ in self._given):
                    return True
                for _, sock in self._given:
                    self._waiting.append(sock)
                    poller.register(sock, select.POLLIN)
                self._given.clear()
            for number, _ in poller.poll():
                if number != self._waker:
                    return not self._closed
                os.eventfd_read(self._waker)
        return False

    def _has_room(self) -> bool:
        """Wait until there are descriptors for what takes some; says no if closed before."""
        import select

        poller = select.poll()
        poller.register(self._waker, select.POLLIN)
        while not self._closed:
            found: list[int] = []
            try:
                while len(found) < _NEEDED:
                    found.append(os.dup(self._waker))
                return True
            except OSError:  # whoever has them may let go of some
                if poller.poll(_PAUSE_MILLISECONDS):
                    os.eventfd_read(self._waker)
            finally:
                for number in found:
                    os.close(number)
        return False

    def _news(self) -> bool:
        """Hand the service what was given since; says no once closed."""
        with self._lock:
            given = [*((True, sock) for sock in self._waiting), *self._given]
            self._waiting.clear()
            self._given.clear()
            if self._closed:
                self._waiting.extend(sock for _, sock in given)
                return False
        assert self._service is not None  # noqa: S101 - it is who asks
        for listens, sock in given:
            if listens:
                self._service.serve(sock)
            else:
                self._service.adopt(sock)
        return True

    def _forget(self) -> None:
        """In a fork: let go of what belongs to the parent, without ending it."""
        self._lock = threading.Lock()  # whoever held it is not here
        self._thread = None
        service = self._service
        sockets = [*self._waiting, *(sock for _, sock in self._given)]
        sockets += service.listeners if service is not None else []
        for sock in [*sockets, *(line.sock for line in list(self._lines))]:
            sock.close()


_NEEDED, _PAUSE_MILLISECONDS = 16, 100
_STARTED: weakref.WeakSet[Proxy] = weakref.WeakSet()


def _forget_all() -> None:
    for proxy in list(_STARTED):
        proxy._forget()
    _STARTED.clear()


os.register_at_fork(after_in_child=_forget_all)
