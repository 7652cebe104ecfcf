"""Stopping containers that nobody uses: when each was used last, and one thread that minds them.

The thread holds no sandbox: one that is forgotten is collected and closed as ever.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Protocol

LEAST_WAIT = 0.05


class Use:
    """Whether something is in use, and since when not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._last = time.monotonic()

    def begin(self) -> None:
        """A call begins."""
        with self._lock:
            self._calls += 1

    def end(self) -> None:
        """A call ended."""
        with self._lock:
            self._calls -= 1
            self._last = time.monotonic()

    def seconds(self) -> float:
        """For how long nobody has called; zero while someone does."""
        with self._lock:
            return 0.0 if self._calls else time.monotonic() - self._last


class Idler(Protocol):
    """Something that can be unused, and be stopped then."""

    def unused(self) -> float:
        """For how many seconds nobody has used it."""
        ...

    def stop_if_unused(self, seconds: float) -> None:
        """Stop it, unless someone came to use it meanwhile."""
        ...


_minded: list[tuple[weakref.ref[Idler], float]] = []
_came = 0  # how many ever
_guard = threading.Lock()
_changed = threading.Condition(_guard)
_thread: threading.Thread | None = None


def mind(idler: Idler, seconds: float) -> None:
    """Stop it whenever nobody has used it for so long."""
    global _thread, _came  # noqa: PLW0603 - one a process
    with _guard:
        _minded.append((weakref.ref(idler), seconds))
        _came += 1
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="podbot-idle", daemon=True)
            _thread.start()
        _changed.notify()


def _run() -> None:
    while True:
        with _guard:
            now, seen = list(_minded), _came
        wait = _stop_idle(now)
        with _guard:
            if not _minded:
                global _thread  # noqa: PLW0603 - one a process
                _thread = None
                return
            if seen == _came:  # else one came while nobody listened for it
                _changed.wait(wait)


def _stop_idle(now: list[tuple[weakref.ref[Idler], float]]) -> float:
    """Stop what is due; gives how long until something may be."""
    wait = 3600.0
    for entry in now:
        idler = entry[0]()
        if idler is None:
            with _guard:
                _minded.remove(entry)
            continue
        left = entry[1] - idler.unused()
        if left <= 0:
            idler.stop_if_unused(entry[1])
            left = entry[1]
        wait = min(wait, left)
        del idler  # or this thread would keep it from being collected
    return max(wait, LEAST_WAIT)
