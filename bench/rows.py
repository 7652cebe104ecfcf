"""The values a benchmark gives: rows with a verdict, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.measure import Spread

Verdict = Literal["ok", "MISSED", "info", "skipped", "FAILED"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a value must stay within."""

    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Whether the value keeps to it."""
        return value >= self.limit if self.at_least else value <= self.limit

    def used(self, value: float) -> float:
        """How much of what is allowed the value takes: up to 1 is within."""
        if self.at_least:
            return self.limit / value if value else float("inf")
        if self.limit == 0:
            return 0.0 if value <= 0 else float("inf")
        return max(value, 0.0) / self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result. With a rival its value is the ratio of the medians."""

    benchmark: str
    what: str
    ours: Spread
    unit: str = "ms"
    rival: Spread | None = None
    rival_name: str = ""
    target: Target | None = None

    @property
    def value(self) -> float:
        """What the target is about."""
        return self.ours.median if self.rival is None else self.ours.median / self.rival.median

    @property
    def verdict(self) -> Verdict:
        """Whether the target was met, if there is one."""
        if self.target is None:
            return "info"
        return "ok" if self.target.met(self.value) else "MISSED"


@dataclass(frozen=True, slots=True)
class Absent:
    """A benchmark that gave nothing, and why."""

    benchmark: str
    what: str
    reason: str
    verdict: Literal["skipped", "FAILED"]


Outcome = Row | Absent
