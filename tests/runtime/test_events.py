"""The bus calls whoever subscribed, in order, and tells who failed."""

from __future__ import annotations

import logging
import threading
from datetime import UTC

import pytest
from session_values import AddStep, Note, Result, Settings

from podbot.runtime.events import (
    HandlerFailure,
    InProcessEventBus,
    PromptExecuted,
    PromptRendered,
    PublishResult,
    ToolInvoked,
)


def test_handlers_are_called_in_the_order_in_which_they_subscribed(bus: InProcessEventBus) -> None:
    called: list[tuple[str, Note]] = []
    for name in "abc":
        bus.subscribe(Note, lambda note, name=name: called.append((name, note)))

    result = bus.publish(Note("x"))

    assert called == [("a", Note("x")), ("b", Note("x")), ("c", Note("x"))]
    assert result == PublishResult(Note("x"), 3)
    assert result.ok
    result.raise_if_errors()


def test_an_event_goes_to_its_own_type_alone(bus: InProcessEventBus) -> None:
    called: list[object] = []
    bus.subscribe(Note, called.append)
    bus.subscribe(object, called.append)

    assert bus.publish(AddStep("x")) == PublishResult(AddStep("x"), 0)
    assert called == []


def test_a_handler_that_raises_stops_nobody_and_is_reported(
    bus: InProcessEventBus, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[Note] = []

    def broken(note: Note) -> None:
        raise ValueError("no good")

    bus.subscribe(Note, broken)
    bus.subscribe(Note, called.append)
    with caplog.at_level(logging.ERROR):
        result = bus.publish(Note("x"))

    assert called == [Note("x")]
    assert not result.ok
    assert result.handled == 2
    [failure] = result.errors
    assert isinstance(failure, HandlerFailure)
    assert failure.handler is broken
    assert "handler_failed" in caplog.text
    assert "ValueError: no good" in caplog.text
    with pytest.raises(ExceptionGroup, match="1 handlers of Note failed") as raised:
        result.raise_if_errors()
    assert raised.value.exceptions == (failure.error,)


def test_ctrl_c_in_a_handler_is_not_swallowed(bus: InProcessEventBus) -> None:
    def interrupted(note: Note) -> None:
        raise KeyboardInterrupt

    bus.subscribe(Note, interrupted)
    with pytest.raises(KeyboardInterrupt):
        bus.publish(Note("x"))


def test_who_unsubscribed_is_not_called_any_more(bus: InProcessEventBus) -> None:
    called: list[str] = []

    def first(note: Note) -> None:
        called.append("first")

    def second(note: Note) -> None:
        called.append("second")

    bus.subscribe(Note, first)
    bus.subscribe(Note, second)

    assert bus.unsubscribe(Note, first)
    assert not bus.unsubscribe(Note, first)
    bus.publish(Note("x"))
    assert bus.unsubscribe(Note, second)
    assert not bus.unsubscribe(Note, second)
    bus.publish(Note("x"))
    assert called == ["second"]


def test_what_a_handler_publishes_is_told_before_the_next_handler_is_called(
    bus: InProcessEventBus,
) -> None:
    told: list[str] = []
    bus.subscribe(Note, lambda note: bus.publish(AddStep("inner")))
    bus.subscribe(Note, lambda note: told.append("outer"))
    bus.subscribe(AddStep, lambda step: told.append(step.text))

    bus.publish(Note("x"))

    assert told == ["inner", "outer"]


def test_a_handler_may_subscribe_and_unsubscribe(bus: InProcessEventBus) -> None:
    told: list[Note] = []

    def once(note: Note) -> None:
        bus.unsubscribe(Note, once)
        bus.subscribe(Note, told.append)

    bus.subscribe(Note, once)
    bus.publish(Note("first"))  # goes through the handlers there were when it began
    bus.publish(Note("second"))

    assert told == [Note("second")]


def test_no_event_is_lost_between_32_threads(bus: InProcessEventBus) -> None:
    told: list[Note] = []
    bus.subscribe(Note, told.append)

    def publish(number: int) -> None:
        for count in range(50):
            bus.publish(Note(str(number), count))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for number in range(32):
        mine = [note.number for note in told if note.text == str(number)]
        assert mine == list(range(50))


def test_events_know_when_they_were_and_who_they_are() -> None:
    events = [
        PromptRendered("ns", "key", "# Text", tools=("ls",)),
        ToolInvoked("ns", "key", "ls", Settings({}), Result("done", Note("x"))),
        PromptExecuted("ns", "key", "scripted", text="done", value=Note("x")),
    ]

    for event in events:
        assert event.created_at.tzinfo is UTC
        assert event.session_id is None
    assert len({event.event_id for event in events}) == 3
    assert len({hash(event) for event in events}) == 3  # though parameters may hold dicts


def test_a_tool_call_shows_its_result() -> None:
    event = ToolInvoked("ns", "key", "ls", None, Result("no", Note("x"), success=False))

    assert event.value == Note("x")
    assert not event.success
