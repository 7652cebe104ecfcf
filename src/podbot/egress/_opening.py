"""Opening a connection outward: resolve, judge every address, dial one that was judged.

The address that was judged is the very one that is dialled; a name is never looked up twice. With a
proxy of the host's own in between the name is given to that, as it may be all it goes by; what the
host's resolver says of the name is judged all the same.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import h11

from podbot.egress._lines import Line
from podbot.egress._noting import Turned, unreachable
from podbot.egress._outward import NextProxy, Outward
from podbot.egress._tls import TlsLine, trusting
from podbot.egress.names import HOST_NAME, is_address, shown
from podbot.egress.rules import Rules
from podbot.egress.sockets import has_room

LOOPBACK = ("127.0.0.1", "::1")
LOOKUPS = 64
"""Threads that wait for a resolver at once; it may leave them waiting for long."""

REFUSED, UNREACHABLE, FAILED = 5, 4, 1  # codes of SOCKS5

Resolver = Callable[[str], Sequence[str]]
Stream = Line | TlsLine


def system_resolver(host: str) -> Sequence[str]:
    """The addresses of a name, as this machine sees them."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(each[4][0]) for each in found))


class Way:
    """An open connection: the line, what came on it already, and the proxy it leads to, if any."""

    __slots__ = ("ahead", "line", "via")

    def __init__(self, line: Line, ahead: bytes = b"", via: NextProxy | None = None):
        self.line, self.ahead, self.via = line, ahead, via


class Opener:
    """Opens connections of one proxy."""

    def __init__(
        self,
        resolver: Resolver,
        environment: Mapping[str, str],
        seconds: float,
        lines: set[Line],
    ):
        self._resolver, self._outward, self._seconds = resolver, Outward(environment), seconds
        self._environment = environment
        self._context: ssl.SSLContext | None = None
        self._lookups = asyncio.Semaphore(LOOKUPS)
        self._lines = lines
        """Those that are open."""

    async def open(self, rules: Rules, host: str, port: int, *, tunnel: bool) -> Way:
        """A connection to a host that the rules allow; `Turned` if there can be none."""
        try:
            async with asyncio.timeout(self._seconds):
                return await self._open(rules, host, port, tunnel)
        except TimeoutError:
            reason = f"{shown(host, port)} did not answer within {self._seconds:g} s"
            raise unreachable(reason, 504) from None

    async def _open(self, rules: Rules, host: str, port: int, tunnel: bool) -> Way:
        if host == HOST_NAME:
            return Way(await self._dial(host, LOOPBACK, port))
        via = self._outward.next_proxy(host, port, tunnel=tunnel)
        addresses = (host,) if is_address(host) else await self._judged(rules, host, port, via)
        if via is None:
            return Way(await self._dial(host, addresses, port))
        return await self._through(via, host, port, tunnel=tunnel)

    async def _through(self, via: NextProxy, host: str, port: int, *, tunnel: bool) -> Way:
        """A connection by way of the host's own proxy."""
        there = (via.host,) if is_address(via.host) else await self._resolve(via.host)
        line = await self._dial("the host's own proxy", there, via.port)
        if not tunnel:
            return Way(line, via=via)
        try:
            return Way(line, await _connected_by(via, line, shown(host, port)), via)
        except BaseException:
            self.close(line)
            raise

    async def open_route(self, host: str, port: int, *, secure: bool) -> tuple[Line, Stream]:
        """A connection to where a route leads: named on the host, so its addresses are not judged.

        With TLS it is known who is there, wherever a name leads.
        """
        try:
            async with asyncio.timeout(self._seconds):
                if host == HOST_NAME:
                    line = await self._dial(host, LOOPBACK, port)
                else:
                    line = (await self._routed(host, port)).line
                if not secure:
                    return line, line
                try:
                    if self._context is None:
                        self._context = trusting(self._environment)
                    stream = TlsLine(line, self._context, host)
                    await stream.shake_hands()
                except BaseException:
                    self.close(line)
                    raise
                return line, stream
        except TimeoutError:
            reason = f"{shown(host, port)} did not answer within {self._seconds:g} s"
            raise unreachable(reason, 504) from None

    async def _routed(self, host: str, port: int) -> Way:
        via = self._outward.next_proxy(host, port, tunnel=True)
        if via is not None:
            return await self._through(via, host, port, tunnel=True)
        addresses = (host,) if is_address(host) else await self._resolve(host)
        return Way(await self._dial(host, addresses, port))

    def close(self, line: Line) -> None:
        """Close a line that was opened."""
        self._lines.discard(line)
        line.close()

    async def _judged(
        self, rules: Rules, host: str, port: int, via: NextProxy | None
    ) -> Sequence[str]:
        """The addresses of a name that may be dialled; at least one, but for a proxy's own."""
        try:
            found = await self._resolve(host)
        except Turned:
            if via is None:
                raise
            return ()  # it may be known to the host's proxy alone
        judged = [(address, rules.judge_address(address, port)) for address in found]
        allowed = [address for address, judgement in judged if judgement.allowed]
        if not allowed:
            near = judged[0][1]
            raise Turned(
                f"{host} leads to an address that is not allowed: {near.reason}",
                rule=near.rule,
                would_allow=near.would_allow,
            )
        return allowed

    async def _resolve(self, host: str) -> Sequence[str]:
        """The addresses of a name. A thread asks, as resolvers know no other way to wait."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Sequence[str]] = loop.create_future()
        await self._lookups.acquire()

        def finish(found: Sequence[str]) -> None:
            self._lookups.release()
            if not done.done():
                done.set_result(found)

        def ask() -> None:
            try:
                found = self._resolver(host)
            except (OSError, UnicodeError):
                found = ()
            except BaseException:
                found = ()  # a resolver of somebody else: no name is not a name that is allowed
            with suppress(RuntimeError):  # the proxy was closed meanwhile
                loop.call_soon_threadsafe(finish, found)

        threading.Thread(target=ask, name="podbot-egress-lookup", daemon=True).start()
        found = await done
        if not found:
            raise unreachable(f"the name {host} leads nowhere: this machine cannot resolve it")
        return found

    async def _dial(self, host: str, addresses: Sequence[str], port: int) -> Line:
        """A line to the first of these addresses that answers."""
        failed = OSError(errno.EHOSTUNREACH, "no route to it")
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = None
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
                if not has_room(sock):
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_connect(sock, (address, port))
            except OSError as error:
                if sock is not None:
                    sock.close()
                failed = error
            except BaseException:
                if sock is not None:
                    sock.close()
                raise
            else:
                line = Line(sock, asyncio.get_running_loop())
                self._lines.add(line)
                return line
        code = REFUSED if failed.errno == errno.ECONNREFUSED else UNREACHABLE
        if failed.errno in (errno.EMFILE, errno.ENFILE):
            code = FAILED
        why = os.strerror(failed.errno) if failed.errno else "it cannot be reached"
        raise unreachable(f"no connection to {shown(host, port)}: {why}", socks=code)


async def _connected_by(via: NextProxy, line: Line, place: str) -> bytes:
    """Have the next proxy connect; gives what came after its answer."""
    there = h11.Connection(h11.CLIENT)
    request = h11.Request(method="CONNECT", target=place, headers=[("Host", place), *via.headers])
    await line.send(there.send(request) or b"")
    await line.send(there.send(h11.EndOfMessage()) or b"")
    try:
        while True:
            event = there.next_event()
            if event is h11.NEED_DATA:
                there.receive_data(await line.receive())
            elif isinstance(event, h11.Response):
                break
            elif not isinstance(event, h11.InformationalResponse):
                raise unreachable("the host's own proxy hung up")
    except (h11.RemoteProtocolError, OSError):
        raise unreachable("the host's own proxy broke off") from None
    if not 200 <= event.status_code < 300:
        raise unreachable(f"the host's own proxy refused with {event.status_code}")
    return there.trailing_data[0]
