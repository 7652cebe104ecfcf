"""HTTP with a client: tunnels (CONNECT) and plain requests, each judged by itself.

h11 reads and writes all of it. A plain request has a connection of its own outward, so nothing of
one request can become part of another; the client's stays open. A client that was refused is told
why, and its connection ends: nothing it sent ahead is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

import h11

from podbot.egress import _brokering as brokering
from podbot.egress import _requests
from podbot.egress._lines import Line
from podbot.egress._noting import Entry, Turned, unreachable
from podbot.egress._requests import Headers, Place
from podbot.egress._tunnel import join, stop
from podbot.egress.names import OddHostError, shown
from podbot.egress.records import Verdict

if TYPE_CHECKING:
    from podbot.egress._opening import Stream, Way
    from podbot.egress._talk import Talk
    from podbot.egress.broker import Broker

BAD = 400


class Http:
    """A client that speaks HTTP, for as long as it does."""

    def __init__(self, talk: Talk, ahead: bytes):
        self._talk, self._client = talk, talk.client
        self._ahead = bytearray(ahead)

    async def serve(self) -> None:
        """Request after request, until one is the last."""
        while await self._one():
            pass

    async def _one(self) -> bool:
        """One request; says whether another may follow."""
        conn = h11.Connection(h11.SERVER, max_incomplete_event_size=self._talk.limits.head_bytes)
        entry: Entry | None = None
        try:
            head = await self._head()
            if head is None:
                return False
            entry = self._talk.begin()
            request = self._request(conn, head)
            entry.method = request.method.decode("ascii")[:32]
            if request.method == b"CONNECT":
                await self._tunnel(conn, request, entry)
                return False
            if request.target.startswith(b"/") and self._talk.broker is not None:
                return await self._brokered(conn, request, entry, self._talk.broker)
            return await self._plain(conn, request, entry)
        except Turned as turned:
            await self._answer(conn, entry or self._talk.begin(), turned)
            return False
        except h11.RemoteProtocolError:
            # Its text has pieces of the request in it, which may be secrets.
            invalid = Turned("the request is not valid HTTP", BAD)
            await self._answer(conn, entry or self._talk.begin(), invalid)
            return False

    # Reading requests

    async def _head(self) -> bytes | None:
        """The next head, with the empty line that ends it; none if the client is done."""
        self._talk.expect_head(bool(self._ahead))
        seen = 0  # who sends byte by byte must not make us look at all of it each time
        while (end := self._ahead.find(_requests.END, max(0, seen - len(_requests.END)))) < 0:
            if _requests.is_broken(self._ahead, seen):
                raise Turned("the request has two readings: a line that does not end in CR LF", BAD)
            if len(self._ahead) > self._talk.limits.head_bytes:
                raise Turned("the request's head is too large", 431)
            seen = len(self._ahead)
            data = await self._client.receive()
            if not data:
                if self._ahead:
                    raise Turned("the request is cut short", BAD)
                return None
            self._ahead += data
            self._talk.expect_head(True)
        end += len(_requests.END)
        head = bytes(self._ahead[:end])
        if end > self._talk.limits.head_bytes:
            raise Turned("the request's head is too large", 431)
        del self._ahead[:end]
        self._talk.expect_no_head()
        return head

    def _request(self, conn: h11.Connection, head: bytes) -> h11.Request:
        twofold = _requests.two_readings(head)
        if twofold is not None:
            raise Turned(f"the request has two readings: {twofold}", BAD)
        conn.receive_data(head)
        request = conn.next_event()
        if not isinstance(request, h11.Request):
            raise Turned("the request is not valid HTTP", BAD)
        if request.http_version not in (b"1.0", b"1.1"):
            raise Turned("of HTTP only versions 1.0 and 1.1 are spoken here", 505)
        if self._ahead:
            conn.receive_data(bytes(self._ahead))
            self._ahead.clear()
        return request

    # Tunnels

    async def _tunnel(self, conn: h11.Connection, request: h11.Request, entry: Entry) -> None:
        headers = request.headers.raw_items()
        for name in (b"content-length", b"transfer-encoding"):
            if _requests.header(headers, name) not in (None, "0"):
                raise Turned("a CONNECT has no body", BAD)
        place = self._place(_requests.place_of_tunnel, request, entry, 443)
        rules = self._talk.judge(entry)
        way = await self._talk.open(rules, place.host, place.port, entry, tunnel=True)
        established = h11.Response(status_code=200, headers=[], reason=b"Connection established")
        while conn.next_event() is not h11.PAUSED:
            pass
        entry.status = 200
        await self._client.send(conn.send(established) or b"")
        await self._joined(way, entry, conn.trailing_data[0], way.ahead)

    async def _joined(self, way: Way, entry: Entry, up: bytes, down: bytes) -> None:
        """The two lines as one, until both have ended."""
        if up:
            await way.line.send(up)
        if down:
            await self._client.send(down)
        await join(self._client, way.line)
        entry.end(Verdict.ALLOWED)

    def _place(
        self, read: Callable[[str], Place], request: h11.Request, entry: Entry, usual: int
    ) -> Place:
        """Where a request goes, noted; refused if target and Host do not agree on it."""
        headers = request.headers.raw_items()
        try:
            place = read(request.target.decode("ascii"))
        except OddHostError as error:
            raise Turned(str(error), 403) from None
        entry.host, entry.port = place.host, place.port
        entry.path = place.path or None
        said = _requests.header(headers, b"host")
        if said is not None and not _requests.is_of_place(said, place, usual):
            raise Turned("the Host header differs from the target", BAD)
        return place

    # Plain requests

    async def _plain(self, conn: h11.Connection, request: h11.Request, entry: Entry) -> bool:
        place = self._place(_requests.place_of_url, request, entry, 80)
        rules = self._talk.judge(entry)
        way = await self._talk.open(rules, place.host, place.port, entry, tunnel=False)
        try:
            headers = request.headers.raw_items()
            websocket = _requests.asks_for_websocket(request.method, headers)
            outward = _outward_request(request, headers, place, way, websocket)
            exchange = Exchange(self._client, conn, way.line, websocket)
            await exchange.carry(outward, entry)
            if exchange.switched:
                up, down = conn.trailing_data[0], exchange.there.trailing_data[0]
                await self._joined(way, entry, up, down)
                return False
            entry.end(Verdict.ALLOWED)
        finally:
            self._talk.close(way.line)
        return await self._may_go_on(conn)

    async def _brokered(
        self, conn: h11.Connection, request: h11.Request, entry: Entry, broker: Broker
    ) -> bool:
        """A request of a route: the credential is added here."""
        order = await brokering.order(request, entry, broker)
        self._talk.expect_no_head()
        line, stream = await self._talk.open_route(order.route, entry)
        try:
            exchange = Exchange(self._client, conn, stream, False, brokering.answered)
            await exchange.carry(order.request, entry)
            entry.end(Verdict.ALLOWED)
        finally:
            self._talk.close(line)
        return await self._may_go_on(conn)

    async def _may_go_on(self, conn: h11.Connection) -> bool:
        """Whether another request may follow on the client's connection."""
        if conn.our_state is h11.DONE and conn.their_state is h11.DONE:
            self._ahead += conn.trailing_data[0]
            return not conn.trailing_data[1]
        if conn.their_state is h11.SEND_BODY:
            await self._talk.leave()  # the answer came before the request was whole
        return False

    # Refusing

    async def _answer(self, conn: h11.Connection, entry: Entry, turned: Turned) -> None:
        """Say why not, and what would allow it; then the connection ends."""
        if turned.rule is not None:
            entry.rule = turned.rule
        begun = conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE)
        if not begun:
            entry.status = turned.status
        entry.end(turned.verdict, turned.reason, turned.would_allow)
        if begun:
            return  # half an answer has gone out: closing tells that it is one
        if conn.our_state is h11.IDLE and conn.their_state is not h11.ERROR:
            conn = h11.Connection(h11.SERVER)  # no request was understood
        text = f"podbot: {turned.reason}\n"
        if turned.would_allow is not None:
            text += f"to allow it: --allow {_quoted(turned.would_allow)}\n"
        body = text.encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        phrase = HTTPStatus(turned.status).phrase.encode()
        head = h11.Response(status_code=turned.status, headers=headers, reason=phrase)
        data = conn.send(head) or b""
        if entry.method != "HEAD":
            data += conn.send(h11.Data(body)) or b""
        with suppress(OSError):
            await self._client.send(data)
            await self._talk.leave()


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


def _outward_request(
    request: h11.Request, given: Headers, place: Place, way: Way, websocket: bool
) -> h11.Request:
    """A plain request as whoever is at the far end gets it."""
    target = place.path + place.query
    authority = shown(place.host, place.port) if place.port != 80 else _bracketed(place.host)
    headers: Headers = [(b"Host", authority.encode())]
    headers += [each for each in _requests.passed_on(given) if each[0].lower() != b"host"]
    if way.via is not None:
        target = f"http://{authority}{target}"
        headers += [(name.encode(), value.encode()) for name, value in way.via.headers]
    if websocket:
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    else:
        headers.append((b"Connection", b"close"))
    return h11.Request(method=request.method, target=target, headers=headers)


class Exchange:
    """One plain request and its answer, on their way at the same time."""

    def __init__(
        self,
        client: Line,
        conn: h11.Connection,
        stream: Stream,
        websocket: bool,
        answered: Callable[[Headers], Headers] = _requests.passed_on,
    ):
        self._client, self._conn, self._line = client, conn, stream
        self._websocket, self._answered = websocket, answered
        self.there = h11.Connection(h11.CLIENT)
        self.switched = False
        """Whether the line has become a WebSocket."""

    async def carry(self, request: h11.Request, entry: Entry) -> None:
        """The request outward, and the answer back, at the same time."""
        await self._sent(request)
        loop = asyncio.get_running_loop()
        body = loop.create_task(self._body())
        answer = loop.create_task(self._answer(entry))
        try:
            await asyncio.wait({body, answer}, return_when=asyncio.FIRST_COMPLETED)
            if body.done() and not answer.done():
                body.result()
            await answer
        finally:
            await stop(body, answer)

    async def _body(self) -> None:
        while True:
            event = self._conn.next_event()
            await self._client.take_turns()
            if event is h11.NEED_DATA:
                self._conn.receive_data(await self._client.receive())
            elif isinstance(event, h11.Data):
                try:
                    await self._sent(h11.Data(event.data))
                except OSError:
                    return  # it takes no more; what it says to that is on its way
            elif isinstance(event, h11.EndOfMessage):
                with suppress(OSError):
                    await self._sent(h11.EndOfMessage())
                return
            else:
                raise Turned("the request is cut short", BAD)

    async def _answer(self, entry: Entry) -> None:
        try:
            while await self._event(entry):
                pass
        except (h11.ProtocolError, _SilentError):
            raise unreachable("the answer was not valid HTTP, or cut short") from None

    async def _event(self, entry: Entry) -> bool:
        """One thing that comes back; says whether more is to come."""
        event = self.there.next_event()
        await self._client.take_turns()  # a piece can be thousands of chunks
        if event is h11.NEED_DATA:
            try:
                data = await self._line.receive()
            except OSError:
                raise _SilentError from None
            self.there.receive_data(data)
        elif isinstance(event, h11.InformationalResponse):
            return await self._informed(event, entry)
        elif isinstance(event, h11.Response):
            entry.status = event.status_code
            headers = self._answered(event.headers.raw_items())
            names = [name.lower() for name, _ in headers]
            if b"transfer-encoding" in names:  # a length beside it does not count
                headers = [each for each in headers if each[0].lower() != b"content-length"]
            await self._back(
                h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
            )
        elif isinstance(event, h11.Data):
            await self._back(h11.Data(event.data))
        elif isinstance(event, h11.EndOfMessage):
            await self._back(h11.EndOfMessage())
            return False
        else:
            raise _SilentError
        return True

    async def _informed(self, event: h11.InformationalResponse, entry: Entry) -> bool:
        if event.status_code != 101:
            if self._conn.their_http_version == b"1.1":
                headers = _requests.passed_on(event.headers.raw_items())
                await self._back(
                    h11.InformationalResponse(
                        status_code=event.status_code, headers=headers, reason=event.reason
                    )
                )
            return True
        if not self._websocket:
            raise _SilentError
        headers = _requests.passed_on(event.headers.raw_items())
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        entry.status = 101
        await self._back(
            h11.InformationalResponse(status_code=101, headers=headers, reason=event.reason)
        )
        self.switched = True
        return False

    async def _sent(self, event: h11.Event) -> None:
        data = self.there.send(event)
        if data:
            await self._line.send(data)

    async def _back(self, event: h11.Event) -> None:
        data = self._conn.send(event)
        if data:
            await self._client.send(data)


class _SilentError(Exception):
    """The far end broke off, or said something that no answer is."""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
