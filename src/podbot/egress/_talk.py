"""One connection of a client, from its first byte to its record: which protocol, how long, how it
ended. What a client sends first tells what it speaks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from podbot.egress._http import Http
from podbot.egress._lines import Line
from podbot.egress._noting import Entry, Turned
from podbot.egress._socks import VERSION, Socks
from podbot.egress.records import Record, Verdict

if TYPE_CHECKING:
    from podbot.egress._opening import Opener, Stream, Way
    from podbot.egress.broker import Broker, Route
    from podbot.egress.proxy import ProxyLimits
    from podbot.egress.rules import Rules

_TLS, _SOCKS4 = 0x16, 4
_LEAVING_SECONDS = 30.0

log = logging.getLogger("podbot.egress")
log.addHandler(logging.NullHandler())  # a library prints nothing; who listens gets it


class Talk:
    """A client, and what is open on its behalf."""

    def __init__(
        self,
        client: Line,
        loop: asyncio.AbstractEventLoop,
        limits: ProxyLimits,
        rules: Callable[[], Rules],
        opener: Opener,
        tell: Callable[[Record], None],
        broker: Broker | None,
    ):
        self.client, self.limits = client, limits
        self._rules, self._opener, self._tell = rules, opener, tell
        self.broker = broker
        self._lines: list[Line] = [client]
        self._entry: Entry | None = None
        self._loop = loop
        self._head_by: float | None = self._loop.time() + limits.head_seconds
        self._ending = ""
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Talk until it is over; nothing stays open."""
        try:
            await self._speak()
        except asyncio.CancelledError:
            self._note(self._ending or "the proxy was closed")
        except OSError:
            self._note("the connection broke off")
        except Exception as error:  # a mistake of ours must not let anything through
            log.exception("a connection was ended by a mistake of podbot's")
            self._note(f"podbot failed: {type(error).__name__}")
        finally:
            for line in self._lines:
                self._opener.close(line)

    async def _speak(self) -> None:
        first = await self.client.receive()
        if not first:
            return
        if first[0] == VERSION:
            await Socks(self, first).serve()
        elif first[0] in (_TLS, _SOCKS4):
            what = "TLS" if first[0] == _TLS else "SOCKS4"
            said = f"{what} was spoken to the proxy, which speaks HTTP and SOCKS5"
            self.begin().end(Verdict.REFUSED, said)
        else:
            await Http(self, first).serve()

    def end(self, why: str) -> None:
        """Make an end of it, from outside."""
        self._ending = self._ending or why
        if self.task is not None:
            self.task.cancel()

    def overdue(self) -> str | None:
        """Why it has taken too long; none if it has not."""
        now = self._loop.time()
        if self._head_by is not None and now > self._head_by:
            return f"no whole request came within {self.limits.head_seconds:g} s"
        if now - max(line.moved for line in self._lines) > self.limits.idle_seconds:
            return f"nothing moved for {self.limits.idle_seconds:g} s"
        return None

    def _note(self, why: str) -> None:
        """The record of what did not end by itself."""
        entry = self._entry
        if entry is None:
            if not self.client.received:
                return  # a connection that never said anything
            entry = self.begin()
        verdict = Verdict.REFUSED
        if entry.upstream is not None:
            verdict = Verdict.ALLOWED
        elif entry.rule is not None:
            verdict = Verdict.FAILED
        entry.end(verdict, why)

    # For those who speak a protocol

    def begin(self, method: str = "") -> Entry:
        """The record of the next request."""
        self._entry = Entry(self._tell, method)
        return self._entry

    def expect_head(self, begun: bool) -> None:
        """A request is awaited; once it has begun, all of it must come in time."""
        if begun and self._head_by is None:
            self._head_by = self._loop.time() + self.limits.head_seconds
        if not begun and self._entry is not None:
            self._entry = None  # what came before is told

    def expect_no_head(self) -> None:
        """A request has come."""
        self._head_by = None

    def judge(self, entry: Entry) -> Rules:
        """The rules that allow what is asked for; `Turned` if they do not."""
        self.expect_no_head()
        rules = self._rules()
        found = rules.judge(entry.host, entry.port, entry.method, entry.path)
        entry.rule = found.rule
        if not found.allowed:
            raise Turned(found.reason, rule=found.rule, would_allow=found.would_allow)
        return rules

    async def open(self, rules: Rules, host: str, port: int, entry: Entry, *, tunnel: bool) -> Way:
        """A connection outward on the client's behalf."""
        way = await self._opener.open(rules, host, port, tunnel=tunnel)
        entry.upstream = way.line
        self._lines.append(way.line)
        return way

    async def open_route(self, route: Route, entry: Entry) -> tuple[Line, Stream]:
        """A connection to where a route leads."""
        scheme, host, port, _ = route.place
        line, stream = await self._opener.open_route(host, port, secure=scheme == "https")
        entry.upstream = line
        self._lines.append(line)
        return line, stream

    def close(self, line: Line) -> None:
        """Close a connection outward."""
        self._lines.remove(line)
        self._opener.close(line)

    async def leave(self) -> None:
        """Say goodbye so that the last words are read: what still comes is thrown away.

        To close on what was not read would take back what the client has not read yet.
        """
        self.client.end_sending()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LEAVING_SECONDS):
                while await self.client.receive():
                    pass
