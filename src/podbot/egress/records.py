"""What is known of one connection or request afterwards: never a secret.

Queries, headers, bodies and passwords are not in here, nor any text that is not known to be a
host's name.
"""

from __future__ import annotations

from enum import StrEnum

from podbot.frozen import dataclass


class Verdict(StrEnum):
    """What became of it."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    FAILED = "failed"
    """It was allowed, and the other side could not be reached."""


@dataclass(frozen=True, slots=True)
class Record:
    """One connection, or one request of plain HTTP. Told when it has ended."""

    time: float
    """When it began, in seconds since 1970."""
    host: str
    """In its one spelling; empty if what was asked for is no host."""
    port: int
    method: str
    """``CONNECT``, ``SOCKS5``, or that of a plain request; empty if it was neither."""
    path: str | None
    """Of plain HTTP only, without its query."""
    verdict: Verdict
    rule: str | None
    """The word that decided; none if no word is about this host."""
    reason: str
    """Why it was refused, or how it failed or ended early; empty if all went well."""
    would_allow: str | None = None
    """The word that would allow it; none if nothing would, or it was allowed."""
    bytes_up: int = 0
    bytes_down: int = 0
    status: int | None = None
    """What the client was told: of HTTP, or the code of SOCKS5."""
    seconds: float = 0.0

    def as_data(self) -> dict[str, str | int | float | None]:
        """It as JSON has it, under keys that stay."""
        return {
            "time": round(self.time, 3),
            "host": self.host,
            "port": self.port,
            "method": self.method,
            "path": self.path,
            "verdict": self.verdict.value,
            "rule": self.rule,
            "reason": self.reason,
            "would_allow": self.would_allow,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "status": self.status,
            "seconds": round(self.seconds, 4),
        }
