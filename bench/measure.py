"""Timing several sides against each other, fairly.

The sides of a race take turns inside each round, so that whatever else the machine does meets all
of them alike. Each sample stands alone: the collector is off, and a pause before it lets the
previous side's aftermath (the kernel takes a network namespace down long after its last process
is gone) end outside the clock. Must not know what it times.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# Enough for a child to be reaped, yet too short for the processors to fall asleep: waking one up
# costs as much as the smallest things measured here.
SETTLE = 0.0005


@dataclass(frozen=True, slots=True)
class Side:
    """One thing to time: ``run`` on the clock, after ``before`` off it."""

    run: Callable[[], object]
    before: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """How often each side runs, and how long the machine rests before each sample."""

    rounds: int
    settle: float = SETTLE
    warm_up: int = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some samples and their slow end: nine of ten are no worse."""

    median: float
    p90: float

    @classmethod
    def of(cls, samples: list[float]) -> Spread:
        """The spread of durations, or of anything else where less is better."""
        if len(samples) == 1:
            return cls(samples[0], samples[0])
        tenths = statistics.quantiles(samples, n=10, method="inclusive")
        return cls(statistics.median(samples), tenths[-1])

    def rate(self, amount: float) -> Spread:
        """The same samples as ``amount`` per unit; the slow end is then the smaller number."""
        return Spread(amount / self.median, amount / self.p90)


def race(sides: Mapping[str, Side], pace: Pace) -> dict[str, Spread]:
    """Run all sides in turn; gives the spread of each in milliseconds."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(-pace.warm_up, pace.rounds):
        gc.collect()
        # Another side begins each round, so that none always comes after the same one.
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            duration = _sample(sides[name], pace.settle)
            if number >= 0:
                samples[name].append(duration)
    return {name: Spread.of(durations) for name, durations in samples.items()}


def _sample(side: Side, settle: float) -> float:
    if side.before is not None:
        side.before()
    time.sleep(settle)
    gc.disable()
    try:
        start = time.perf_counter_ns()
        side.run()
        return (time.perf_counter_ns() - start) / 1e6
    finally:
        gc.enable()
