"""The one thread that stops what nobody uses."""

from __future__ import annotations

import threading

from small_engine import until

from podbot.sandbox.container import _idling


class Idle:
    """Something that nobody uses, and that notes when it is stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def unused(self) -> float:
        return 100.0

    def stop_if_unused(self, seconds: float) -> None:
        self.stopped.set()


class Busy(Idle):
    """Something that is used, and during whose looking at another one comes."""

    def __init__(self) -> None:
        super().__init__()
        self.late: Idle | None = None

    def unused(self) -> float:
        if self.late is None:
            self.late = Idle()
            _idling.mind(self.late, 1.0)
        return 0.0


def test_what_comes_while_the_others_are_looked_at_is_minded_too() -> None:
    first = Busy()
    _idling.mind(first, 3600.0)
    assert until(lambda: first.late is not None and first.late.stopped.is_set())
    assert not first.stopped.is_set()
