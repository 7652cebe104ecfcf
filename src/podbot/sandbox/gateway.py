"""The host's side of a sandbox's way out: the socket it handed out, the proxy on it, the records.

A sandbox whose policy names hosts has loopback only, as one without a network. Its set-up makes one
socket that listens there and hands it out; what connects to it inside is accepted here, outside. So
nothing inside forwards, and there is no other way. The socket is held here for as long as the
sandbox lives: a proxy that was closed is followed by another one on the same port, and nobody
inside can ever take its place.

What runs inside is hostile, and so is the guest that hands the socket out.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from podbot.errors import Kind, LaunchError, SandboxError
from podbot.frozen import frozen_dict
from podbot.sandbox import connections
from podbot.sandbox.network import Network
from podbot.sandbox.wire import HEADER

if TYPE_CHECKING:
    from podbot.egress import Proxy, Record, Route
    from podbot.sandbox.control import Control
    from podbot.sandbox.layers import Layer

HOST, PORT = "127.0.0.1", 3128
"""Where the proxy is, for those inside. The port is the usual one of proxies."""
KEPT = 10_000
"""How many connections are remembered; older ones are forgotten."""

FORCED_SECONDS = 2.0
"""How long a proxy may take to end before its socket is shut under it."""

_SO_PROTOCOL, _SO_DOMAIN = 38, 39  # Python has no names for these everywhere
_NO_PROXY = "localhost,127.0.0.1,::1"
_JAVA = (
    f"-Dhttp.proxyHost={HOST} -Dhttp.proxyPort={PORT} "
    f"-Dhttps.proxyHost={HOST} -Dhttps.proxyPort={PORT} "
    "-Dhttp.nonProxyHosts=localhost|127.*|[::1]"
)
_URL = f"http://{HOST}:{PORT}"
VARIABLES: Mapping[str, str] = frozen_dict(
    {
        # curl reads the small ones, and only a small http_proxy; most others take either.
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), _URL),
        **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), _URL),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), _NO_PROXY),
        "NODE_USE_ENV_PROXY": "1",
        "JAVA_TOOL_OPTIONS": _JAVA,
    }
)
"""What programs inside find the proxy by."""


class Gateway:
    """The way out of one sandbox. Any thread may call; what it hears of comes from the proxy's."""

    def __init__(self, network: Network, routes: tuple[Route, ...] = ()):
        self.network = network
        self._routes = routes
        self._rules = network.rules
        self._lock = threading.Lock()
        self._rules_lock = threading.Lock()
        """For the rules and the proxy that has them. Nobody waits for anything while holding it, so
        that who hears of a record may allow a host, also while somebody ends the proxy."""
        self._listener: socket.socket | None = None
        self._proxy: Proxy | None = None
        self._records: deque[Record] = deque(maxlen=KEPT)
        self._heard_count = 0
        self._hearing: list[Callable[[Record], object]] = []
        self._log: connections.Log | None = None
        self._control: Control | None = None
        _ALL.add(self)

    # The socket

    def take(self, handed: list[int]) -> None:
        """Serve what a sandbox handed out: takes over these descriptors, of which one must be it.

        Raises `LaunchError` for anything else than a socket that listens where it should.
        """
        listener = _checked(handed)
        with self._lock:
            self._let_go()
            self._listener = listener
            self._begin()

    def restart(self) -> None:
        """End the proxy with all that goes through it; a new one follows on the same port."""
        with self._lock:
            self._end()
            if self._listener is not None:
                self._begin()

    def shut(self) -> None:
        """Its sandbox ended, and may be started anew: let go of the socket."""
        with self._lock:
            self._let_go()

    def close(self) -> None:
        """End all of it; may be called twice."""
        with self._lock:
            self._let_go()
            log, self._log = self._log, None
            control, self._control = self._control, None
        if control is not None:
            control.close()  # it may just wait for the lock, to allow something
        if log is not None:
            log.close()

    def _begin(self) -> None:
        from podbot.egress import Proxy

        assert self._listener is not None  # noqa: S101 - who calls has seen to it
        broker = None
        if self._routes:
            from podbot.egress import Broker

            broker = Broker(self._routes)
        with self._rules_lock:
            proxy = self._proxy = Proxy(self._rules, self._heard, broker=broker)
        proxy.serve(self._listener.dup())

    def _end(self) -> None:
        with self._rules_lock:
            proxy, self._proxy = self._proxy, None
        if proxy is None or self._listener is None:
            return
        # A guest that kept the socket could have the proxy wait in it for ever: shut for all. (By
        # no timer: when the interpreter leaves, some versions start no thread any more.)
        if not proxy.close(FORCED_SECONDS):
            _shut(self._listener)
            proxy.close()

    def _let_go(self) -> None:
        self._end()
        listener, self._listener = self._listener, None
        if listener is not None:
            _shut(listener)  # for whoever holds it, a fork of ours too
            listener.close()

    # What goes through it

    def allow(self, host: str) -> None:
        """Let this host through too, from now on. Raises `EgressError` for what is no host."""
        with self._rules_lock:
            self._rules = self._rules.allow(host)
            if self._proxy is not None:
                self._proxy.rules = self._rules

    @property
    def records(self) -> tuple[Record, ...]:
        """What connected, the oldest first."""
        return tuple(self._records)

    @property
    def forgotten(self) -> int:
        """How many connections there were before those that are remembered."""
        return max(0, self._heard_count - KEPT)

    def hear(self, listener: Callable[[Record], object]) -> None:
        """Have this called with each record from now on, in a thread of the proxy's."""
        self._hearing.append(listener)

    def note_in(self, layer: Layer) -> None:
        """Write the records to the file beside this layer too, from now on to no other one, and
        hear there what to allow."""
        before, self._log = self._log, connections.Log(connections.place(layer))
        if before is not None:
            before.close()
        if self._control is None:
            from podbot.sandbox.control import Control

            with contextlib.suppress(OSError):  # no socket can be there: who asks is told
                self._control = Control(layer.path, self.allow)

    def _heard(self, record: Record) -> None:
        self._records.append(record)
        self._heard_count += 1
        log = self._log
        if log is not None:
            log.add(record)
        for listener in self._hearing:
            with contextlib.suppress(Exception):  # who listens must not end what goes through
                listener(record)

    def _forget(self) -> None:
        """In a fork: what is held here is the other process's, and the proxy knows it."""
        if self._listener is not None:
            self._listener.close()
        if self._control is not None:
            self._control.forget()
        self._listener, self._proxy, self._control = None, None, None
        self._lock, self._rules_lock = threading.Lock(), threading.Lock()


def _shut(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)


_ALL: weakref.WeakSet[Gateway] = weakref.WeakSet()


def _forget_in_child() -> None:
    for gateway in list(_ALL):
        gateway._forget()


os.register_at_fork(after_in_child=_forget_in_child)


def received(line: socket.socket, size: int, handed: list[int]) -> bytes:
    """Some bytes, and the descriptors that came along with them: ours alone from the start."""
    data, fds, _, _ = socket.recv_fds(line, size, _MOST, socket.MSG_CMSG_CLOEXEC)
    handed += fds
    if len(handed) > _MOST:  # with each byte some more could come, until there is room for none
        raise _hostile(f"{len(handed)} descriptors and more, in place of one")
    return data


def handed_out(line: socket.socket, seconds: float) -> list[int]:
    """What a guest sends along with its first frame. Raises `LaunchError` if it sends none."""
    handed: list[int] = []
    line.settimeout(seconds)
    try:
        data = b""
        size = HEADER.size
        while len(data) < size:
            part = received(line, size - len(data), handed)
            if not part:
                raise _hostile("nothing: it hung up")
            data += part
            if size == HEADER.size == len(data):
                head, payload = HEADER.unpack(data)
                if head > _MOST_SAID or payload:
                    raise _hostile("a frame that is none of a guest's")
                size += head
    except BaseException as error:
        _close(handed)
        if isinstance(error, OSError):  # it came too late, or the line broke
            raise _hostile(f"nothing: {error}") from None
        raise
    finally:
        line.settimeout(None)
    return handed


_MOST_SAID = 4096
_MOST = 4
"""How many descriptors are looked at; the kernel closes what is more."""


def _close(handed: list[int]) -> None:
    from podbot.egress.sockets import close_handed

    while handed:
        close_handed(handed.pop())


def _checked(handed: list[int]) -> socket.socket:
    """The one socket, if it is what it should be; whatever else there is is closed."""
    try:
        if len(handed) != 1:
            raise _hostile(f"{len(handed)} descriptors in place of one")
        try:
            listener = socket.socket(fileno=handed[0])
        except OSError as error:
            raise _hostile(f"no socket: {error.strerror}") from None
        handed.clear()
        try:
            listener.set_inheritable(False)
            _check(listener)
        except BaseException as error:
            handed.append(listener.detach())
            if isinstance(error, OSError):
                raise _hostile(str(error)) from None
            raise
        return listener
    finally:
        _close(handed)


def _check(listener: socket.socket) -> None:
    wanted = {
        "family": (_SO_DOMAIN, socket.AF_INET),
        "type": (socket.SO_TYPE, socket.SOCK_STREAM),
        "protocol": (_SO_PROTOCOL, socket.IPPROTO_TCP),
        "listening": (socket.SO_ACCEPTCONN, 1),
        "shared port": (socket.SO_REUSEPORT, 0),
    }
    for name, (option, value) in wanted.items():
        found = listener.getsockopt(socket.SOL_SOCKET, option)
        if found != value:
            raise _hostile(f"a socket whose {name} is {found} and not {int(value)}")
    if listener.getsockname() != (HOST, PORT):
        raise _hostile(f"a socket at {listener.getsockname()}")


def _hostile(what: str) -> SandboxError:
    return LaunchError(
        f"the sandbox should have handed out a socket that listens at {HOST}:{PORT}, "
        f"and gave {what}",
        kind=Kind.PROTOCOL,
        remedy="use an image whose python3 can be trusted",
    )
