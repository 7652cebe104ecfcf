"""What happens during a run, told to whoever listens: the bus, and the events podbot publishes.

The bus is synchronous: `publish` calls each handler in the caller's thread, in the order in which
they subscribed, and comes back when all have run. A handler that raises stops nobody; its error is
in the `PublishResult`. No lock is held while a handler runs, so a handler may publish, subscribe
or query. Nothing here knows prompts or tools: a tool's result is any `ToolOutcome`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, TypeVar, cast, runtime_checkable

from podbot.errors import SessionError
from podbot.frozen import dataclass, field
from podbot.runtime.given import expect, expect_callable
from podbot.runtime.logging import get_logger

E = TypeVar("E")
Handler = Callable[[E], object]
"""What is called with each event of the type it subscribed to. What it returns is ignored."""

_logger = get_logger(__name__, component="runtime.events")


@runtime_checkable  # so that a snapshot read back can be checked
class ToolOutcome(Protocol):
    """What the runtime needs to know of a tool's result."""

    @property
    def message(self) -> str:
        """What the model is told."""

    @property
    def value(self) -> object:
        """The typed result, if there is one."""

    @property
    def success(self) -> bool:
        """Whether the tool did what was asked."""


def _now() -> datetime:
    return datetime.now(UTC)


def _new_id() -> str:
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True)
class PromptRendered:
    """A prompt became text for a model."""

    prompt_ns: str
    prompt_key: str
    text: str
    tools: tuple[str, ...] = ()
    session_id: str | None = None
    created_at: datetime = field(default_factory=_now)
    event_id: str = field(default_factory=_new_id)

    def __hash__(self) -> int:
        return hash(self.event_id)


@dataclass(frozen=True, slots=True)
class ToolInvoked:
    """A tool was called, with or without success.

    ``params`` are the parsed parameters, or what came when it could not be parsed. ``call_id`` is
    the model's name for the call; ``event_id`` is this event's own.
    """

    prompt_ns: str
    prompt_key: str
    name: str
    params: object
    result: ToolOutcome
    session_id: str | None = None
    call_id: str | None = None
    created_at: datetime = field(default_factory=_now)
    event_id: str = field(default_factory=_new_id)

    # Parameters may hold dicts, which have no hash, and a log of calls must not be slow for it.
    def __hash__(self) -> int:
        return hash(self.event_id)

    @property
    def value(self) -> object:
        """The value of the result."""
        return self.result.value

    @property
    def success(self) -> bool:
        """Whether the tool did what was asked."""
        return self.result.success


@dataclass(frozen=True, slots=True)
class PromptExecuted:
    """A model finished with a prompt: what it said, and the typed answer if one was asked for."""

    prompt_ns: str
    prompt_key: str
    adapter: str
    text: str | None = None
    value: object = None
    session_id: str | None = None
    created_at: datetime = field(default_factory=_now)
    event_id: str = field(default_factory=_new_id)

    def __hash__(self) -> int:
        return hash(self.event_id)


@dataclass(frozen=True, slots=True)
class HandlerFailure:
    """A handler that raised, and what."""

    handler: Handler[object]
    error: Exception


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What became of one event: how many handlers were called, and which of them failed."""

    event: object
    handled: int
    errors: tuple[HandlerFailure, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no handler failed."""
        return not self.errors

    def raise_if_errors(self) -> None:
        """Raise what the handlers raised, together, for callers who want that."""
        if self.errors:
            name = type(self.event).__name__
            errors = [failure.error for failure in self.errors]
            raise ExceptionGroup(f"{len(errors)} handlers of {name} failed", errors)


class EventBus(Protocol):
    """The seam: what a session and a prompt need of a bus."""

    def subscribe(self, event_type: type[E], handler: Handler[E]) -> None:
        """Call ``handler`` with each event of exactly this type, from now on."""

    def unsubscribe(self, event_type: type[E], handler: Handler[E]) -> bool:
        """Stop it. False if it had not subscribed."""

    def publish(self, event: object) -> PublishResult:
        """Tell all who subscribed to the event's type; return when all have been called."""
        ...


class InProcessEventBus:
    """An `EventBus` within one process; any thread may use it."""

    def __init__(self) -> None:
        # Appending, removing and copying a list are each one step for other threads, and for a
        # session that is collected in the middle of a line here; a lock would make that one hang.
        self._handlers: defaultdict[type, list[Handler[object]]] = defaultdict(list)

    def subscribe(self, event_type: type[E], handler: Handler[E]) -> None:
        """Call ``handler`` with each event of exactly this type, from now on."""
        expect(event_type, type, "the type of event to subscribe to", SessionError)
        expect_callable(handler, f"the handler of {event_type.__qualname__}", SessionError)
        self._handlers[event_type].append(cast("Handler[object]", handler))

    def unsubscribe(self, event_type: type[E], handler: Handler[E]) -> bool:
        """Stop it. False if it had not subscribed. A publish under way may still call it once."""
        try:
            self._handlers[event_type].remove(cast("Handler[object]", handler))
        except ValueError:
            return False
        return True

    def publish(self, event: object) -> PublishResult:
        """Tell all who subscribed to the event's type; return when all have been called.

        What a handler publishes meanwhile is told at once, before the next handler is called.
        """
        handlers = tuple(self._handlers.get(type(event), ()))
        failures: list[HandlerFailure] = []
        for handler in handlers:
            try:
                handler(event)
            except Exception as error:
                failures.append(HandlerFailure(handler, error))
                _logger.error(
                    "handler_failed",
                    error=error,
                    event_type=type(event).__qualname__,
                    handler=handler,
                )
        return PublishResult(event, len(handlers), tuple(failures))
