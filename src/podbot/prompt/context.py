"""What a tool's handler is told about the call it serves, and how it answers while it runs.

The context carries the prompt, the session and the bus of one call, its deadline, and two hooks: a
cancellation that the caller may set from another thread, and progress that the handler may report.
Nothing here knows of sandboxes or of any protocol that carries calls.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from podbot.errors import Kind, PromptError, ToolValidationError
from podbot.frozen import dataclass
from podbot.runtime.given import expect
from podbot.runtime.logging import get_logger

if TYPE_CHECKING:
    from podbot.prompt.prompt import Prompt
    from podbot.runtime.events import EventBus
    from podbot.runtime.session import Session

_ASK_AGAIN = 0.01
"""Seconds until a cancelled call that is between two steps is looked at again."""

_logger = get_logger(__name__, component="prompt.context")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock after which nobody waits for the answer any more."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The deadline that many seconds from now."""
        expect(seconds, (int, float), "the time until a deadline", PromptError)
        if math.isnan(seconds):
            raise PromptError("the time until a deadline is NaN", remedy="pass a number of seconds")
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left; zero when it has passed."""
        return max(0.0, self.at - time.monotonic())


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call has come: ``done`` of ``total`` (None: not known), and a word about it."""

    done: float
    total: float | None = None
    message: str | None = None


class Cancellation:
    """Set once, by whoever no longer wants the answer; seen by the handler.

    A handler that blocks says what ends that with `stopping` or `on_cancel`; one that loops calls
    `ToolContext.check`. Every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        self._cancelled = False
        self._callbacks: list[Callable[[], object]] = []

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Say that the answer is no longer wanted. The second time does nothing.

        What a callback raises is logged.
        """
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
            callbacks, self._callbacks = self._callbacks, []
            if self._event is not None:
                self._event.set()
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # the others must still be told
                _logger.error("on_cancel_failed", error=error)

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have ``callback`` called once on `cancel` (at once if that was before now).

        Gives a function that takes the registration back.
        """
        with self._lock:
            if not self._cancelled:
                self._callbacks.append(callback)
                return lambda: self._forget(callback)
        callback()
        return lambda: None

    @contextmanager
    def stopping(self, stop: Callable[[], bool]) -> Iterator[None]:
        """Have ``stop`` end what is done in the ``with`` block, on `cancel`.

        It says whether there was something to end. If not, it is asked again until there is, or
        the block is over; so a moment between two steps is none in which a cancel gets lost. After
        the block it is never called: what its thread does next is no longer this.
        """
        lock, over = threading.Lock(), False

        def tried() -> bool:
            with lock:
                return over or stop()

        def insist() -> None:
            while not tried():
                time.sleep(_ASK_AGAIN)

        def begin() -> None:
            if not tried():  # whoever cancels does not wait
                threading.Thread(target=insist, name="podbot-cancel", daemon=True).start()

        forget = self.on_cancel(begin)
        try:
            yield
        finally:
            forget()
            with lock:
                over = True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is cancelled, for so many seconds at most; whether it is."""
        with self._lock:
            if self._event is None:
                self._event = threading.Event()
                if self._cancelled:
                    self._event.set()
        return self._event.wait(timeout)

    def _forget(self, callback: Callable[[], object]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)


def no_progress(progress: Progress) -> None:
    """For callers who do not want to know."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The call that a handler serves. ``deadline`` is None when nobody set one."""

    prompt: Prompt
    session: Session
    bus: EventBus
    call_id: str
    deadline: Deadline | None
    cancellation: Cancellation
    on_progress: Callable[[Progress], object] = no_progress

    def remaining(self) -> float | None:
        """Seconds until the deadline, or None."""
        return None if self.deadline is None else self.deadline.remaining()

    def report(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the caller how far this call has come."""
        self.on_progress(Progress(done, total, message))

    def check(self) -> None:
        """Raise `ToolValidationError` if the call was cancelled or its deadline has passed."""
        if self.cancellation.cancelled:
            raise ToolValidationError(
                f"the call {self.call_id} was cancelled",
                kind=Kind.CANCELLED,
                remedy="call the tool again if its answer is still wanted",
            )
        if self.deadline is not None and self.deadline.remaining() == 0.0:
            raise ToolValidationError(
                f"the deadline of the call {self.call_id} has passed",
                kind=Kind.TIMEOUT,
                remedy="ask for less in one call, or allow it more time",
            )
