"""The record of one connection or request, while it is still going on."""

from __future__ import annotations

import time
from collections.abc import Callable

from podbot.egress._lines import Line
from podbot.egress.records import Record, Verdict

_LONGEST = 1024


class Entry:
    """What will be a record; told once, however it ends."""

    def __init__(self, tell: Callable[[Record], None], method: str = ""):
        self._tell = tell
        self._began, self._clock = time.time(), time.monotonic()
        self._told = False
        self.method = method[:_LONGEST]
        self.host, self.port = "", 0
        self.path: str | None = None
        self.rule: str | None = None
        self.status: int | None = None
        self.upstream: Line | None = None

    def end(self, verdict: Verdict, reason: str = "", would_allow: str | None = None) -> None:
        """Tell it, unless it was."""
        if self._told:
            return
        self._told = True
        line = self.upstream
        self._tell(
            Record(
                self._began,
                self.host,
                self.port,
                self.method,
                None if self.path is None else self.path[:_LONGEST],
                verdict,
                self.rule,
                reason[:_LONGEST],
                would_allow,
                line.sent if line is not None else 0,
                line.received if line is not None else 0,
                self.status,
                time.monotonic() - self._clock,
            )
        )


class Turned(Exception):
    """A request is not carried out. What to say, and what to note."""

    def __init__(
        self,
        reason: str,
        status: int = 403,
        *,
        verdict: Verdict = Verdict.REFUSED,
        rule: str | None = None,
        would_allow: str | None = None,
        socks: int = 2,
    ):
        super().__init__(reason)
        self.reason, self.status, self.verdict = reason, status, verdict
        self.rule, self.would_allow, self.socks = rule, would_allow, socks


def unreachable(reason: str, status: int = 502, socks: int = 4) -> Turned:
    """What was allowed cannot be reached."""
    return Turned(reason, status, verdict=Verdict.FAILED, socks=socks)
