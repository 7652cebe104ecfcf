"""The event loop of a proxy: accepts, watches the clock, and ends everything in the end.

Loaded when the first connection comes, as asyncio and h11 take longer to load than many a command
to run.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import h11

from podbot.egress._lines import Line
from podbot.egress._noting import Entry
from podbot.egress._opening import Opener, Resolver, system_resolver
from podbot.egress._talk import Talk, log
from podbot.egress.records import Record, Verdict
from podbot.egress.sockets import has_room

if TYPE_CHECKING:
    from podbot.egress.broker import Broker
    from podbot.egress.proxy import ProxyLimits
    from podbot.egress.rules import Rules

_AT_ONCE = 64  # connections accepted before others have their turn
_PAUSE = 0.1


class Service:
    """What runs in the thread of a proxy."""

    def __init__(
        self,
        limits: ProxyLimits,
        rules: Callable[[], Rules],
        on_record: Callable[[Record], None] | None,
        *,
        resolver: Resolver | None,
        environment: Mapping[str, str],
        lines: set[Line],
        broker: Broker | None = None,
    ):
        self._loop = asyncio.SelectorEventLoop()
        self._limits, self._rules, self._on_record = limits, rules, on_record
        self._lines, self.listeners = lines, list[socket.socket]()
        self._broker = broker
        self._talks: set[Talk] = set()
        self._opener = Opener(resolver or system_resolver, environment, limits.dial_seconds, lines)
        self._watching = False

    def run(self, waker: int, news: Callable[[], bool]) -> None:
        """Serve until ``news`` says no more; it is asked whenever the waker is readable."""

        def woken() -> None:
            os.eventfd_read(waker)
            if not news():
                self._loop.stop()

        self._loop.add_reader(waker, woken)
        try:
            if news():
                self._loop.run_forever()
        finally:
            self._end(waker)

    def serve(self, listener: socket.socket) -> None:
        """Accept on a listening socket."""
        listener.setblocking(False)
        self.listeners.append(listener)
        self._loop.add_reader(listener, self._accept, listener)

    def adopt(self, sock: socket.socket) -> None:
        """Take a connection."""
        line = Line(sock, self._loop)
        if len(self._talks) >= self._limits.connections:
            self._turn_away(line, f"more than {self._limits.connections} connections at once")
            return
        if not has_room(sock):
            self._turn_away(line, "so many descriptors are open that no more can be spared")
            return
        self._lines.add(line)
        talk = Talk(
            line, self._loop, self._limits, self._rules, self._opener, self._tell, self._broker
        )
        self._talks.add(talk)
        talk.task = self._loop.create_task(talk.run())
        talk.task.add_done_callback(lambda _: self._over(talk))
        if not self._watching:
            self._watching = True
            self._loop.call_later(self._interval, self._watch)

    def _over(self, talk: Talk) -> None:
        self._talks.discard(talk)
        self._opener.close(talk.client)  # which one that was ended before its first step has not

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._not_accepted(listener, error)
                return
            self.adopt(sock)

    def _not_accepted(self, listener: socket.socket, error: OSError) -> None:
        if error.errno in (errno.EBADF, errno.EINVAL, errno.ENOTSOCK):
            # Somebody shut it down, whoever shares it.
            self._loop.remove_reader(listener)
            self.listeners.remove(listener)
            listener.close()
        elif error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            # It would be readable again at once: let some of those there are end first.
            self._loop.remove_reader(listener)
            self._loop.call_later(_PAUSE, self._accept_again, listener)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self.listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _turn_away(self, line: Line, reason: str) -> None:
        entry = Entry(self._tell)
        entry.status = 503
        conn = h11.Connection(h11.SERVER)
        headers = [("Content-Length", "0"), ("Connection", "close")]
        answer = conn.send(h11.Response(status_code=503, headers=headers, reason=b"Too many"))
        with suppress(OSError):
            line.sock.send(answer or b"")
        line.close()
        entry.end(Verdict.REFUSED, reason)

    @property
    def _interval(self) -> float:
        return min(1.0, self._limits.head_seconds / 4, self._limits.idle_seconds / 4)

    def _watch(self) -> None:
        """End what takes too long."""
        for talk in list(self._talks):
            why = talk.overdue()
            if why is not None:
                talk.end(why)
        self._watching = bool(self._talks)
        if self._watching:
            self._loop.call_later(self._interval, self._watch)

    def _tell(self, record: Record) -> None:
        if self._on_record is None:
            return
        try:
            self._on_record(record)
        except Exception:  # whoever listens must not decide over connections by failing
            log.exception("a record could not be told")

    def _end(self, waker: int) -> None:
        self._loop.remove_reader(waker)
        for listener in self.listeners:
            self._loop.remove_reader(listener)
            listener.close()
        for talk in list(self._talks):
            talk.end("the proxy was closed")
        tasks = [talk.task for talk in self._talks if talk.task is not None]
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.close()
