"""SOCKS5 with a client (RFC 1928): connecting to a name or an address, and nothing else of it.

Who the client is, is known by the socket it came on; so nobody is asked for a password.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from podbot.egress._noting import Entry, Turned
from podbot.egress._tunnel import join
from podbot.egress.names import OddHostError, host_of
from podbot.egress.records import Verdict

if TYPE_CHECKING:
    from podbot.egress._talk import Talk

VERSION = 5
_NOBODY_ASKED, _NO_WAY = 0, 0xFF
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_DONE, _NOT_ALLOWED, _NO_SUCH_COMMAND, _NO_SUCH_ADDRESS = 0, 2, 7, 8
_FAILED = 1


class Socks:
    """A client that speaks SOCKS5."""

    def __init__(self, talk: Talk, ahead: bytes):
        self._talk, self._client = talk, talk.client
        self._ahead = bytearray(ahead)

    async def serve(self) -> None:
        """The one connection it asks for."""
        entry = self._talk.begin("SOCKS5")
        try:
            await self._greet()
            await self._connect(entry)
        except Turned as turned:
            entry.rule = turned.rule or entry.rule
            if turned.socks:
                entry.status = turned.socks
            entry.end(turned.verdict, turned.reason, turned.would_allow)
            if turned.socks:
                await self._client.send(_reply(turned.socks))
            await self._talk.leave()

    async def _greet(self) -> None:
        (_, number) = await self._next(2)
        if _NOBODY_ASKED not in await self._next(number):
            await self._client.send(bytes((VERSION, _NO_WAY)))
            raise Turned("the client wants to log in, and here nobody has to", socks=0)
        await self._client.send(bytes((VERSION, _NOBODY_ASKED)))

    async def _connect(self, entry: Entry) -> None:
        version, command, _, kind = await self._next(4)
        if version != VERSION:
            raise Turned("the request is not SOCKS5", socks=_FAILED)
        if kind == _NAME:
            (size,) = await self._next(1)
            raw = await self._next(size)
            # A name in bytes; what is not ASCII is no name, and is never looked at again.
            text = raw.decode("ascii", "replace") if b":" not in raw and b"[" not in raw else ""
        elif kind == _IPV4:
            text = socket.inet_ntop(socket.AF_INET, await self._next(4))
        elif kind == _IPV6:
            text = socket.inet_ntop(socket.AF_INET6, await self._next(16))
        else:
            raise Turned("an address of an unknown kind", socks=_NO_SUCH_ADDRESS)
        port = int.from_bytes(await self._next(2))
        try:
            host = host_of(text)
        except OddHostError as error:
            raise Turned(str(error), socks=_NOT_ALLOWED) from None
        entry.host, entry.port = host, port
        if command != _CONNECT:
            raise Turned("only connecting is allowed of SOCKS5", socks=_NO_SUCH_COMMAND)
        if not port:
            raise Turned("there is no such port", socks=_NOT_ALLOWED)
        rules = self._talk.judge(entry)
        way = await self._talk.open(rules, host, port, entry, tunnel=True)
        entry.status = _DONE
        await self._client.send(_reply(_DONE) + way.ahead)
        if self._ahead:
            await way.line.send(bytes(self._ahead))
        await join(self._client, way.line)
        entry.end(Verdict.ALLOWED)

    async def _next(self, size: int) -> bytes:
        while len(self._ahead) < size:
            data = await self._client.receive()
            if not data:
                raise Turned("the request is cut short", socks=0)
            self._ahead += data
        taken = bytes(self._ahead[:size])
        del self._ahead[:size]
        return taken


def _reply(code: int) -> bytes:
    """An answer. The address in it is of no use to anybody, and would tell of the host."""
    return bytes((VERSION, code, 0, _IPV4)) + bytes(6)
