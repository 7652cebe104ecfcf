"""What a handler is told of its call: deadlines, cancellation, progress."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from podbot.errors import Kind, ToolValidationError
from podbot.prompt import Cancellation, Deadline, MarkdownSection, Progress, Prompt, ToolContext
from podbot.runtime.session import Session


def context_of(
    session: Session, deadline: Deadline | None = None, cancellation: Cancellation | None = None
) -> ToolContext:
    prompt = Prompt(
        ns="tests", key="context", sections=[MarkdownSection(key="a", title="A", template="")]
    )
    return ToolContext(
        prompt=prompt,
        session=session,
        bus=session.bus,
        call_id="7",
        deadline=deadline,
        cancellation=cancellation or Cancellation(),
    )


def test_a_deadline_counts_down_to_zero() -> None:
    assert 3000 < Deadline.after(3600).remaining() <= 3600
    assert Deadline.after(-1).remaining() == 0.0


def test_without_a_deadline_there_is_no_end(session: Session) -> None:
    context = context_of(session)

    context.check()
    context.report(1)  # nobody listens, and nothing happens

    assert context.remaining() is None


def test_a_handler_learns_that_its_time_is_over(session: Session) -> None:
    context = context_of(session, Deadline.after(-1))

    assert context.remaining() == 0.0
    with pytest.raises(ToolValidationError, match="deadline of the call 7") as caught:
        context.check()
    assert caught.value.kind is Kind.TIMEOUT


def test_a_handler_learns_that_its_call_was_cancelled(session: Session) -> None:
    cancellation = Cancellation()
    context = context_of(session, cancellation=cancellation)
    context.check()

    cancellation.cancel()

    with pytest.raises(ToolValidationError, match="cancelled") as caught:
        context.check()
    assert caught.value.kind is Kind.CANCELLED


def test_progress_reaches_the_caller(session: Session) -> None:
    seen: list[Progress] = []
    context = ToolContext(
        prompt=context_of(session).prompt,
        session=session,
        bus=session.bus,
        call_id="7",
        deadline=None,
        cancellation=Cancellation(),
        on_progress=seen.append,
    )

    context.report(1, 3, "one")
    context.report(2)

    assert seen == [Progress(1, 3, "one"), Progress(2, None, None)]


def test_cancelling_calls_back_once_and_only_those_still_registered() -> None:
    cancellation = Cancellation()
    called: list[str] = []
    cancellation.on_cancel(lambda: called.append("kept"))
    take_back = cancellation.on_cancel(lambda: called.append("taken back"))
    take_back()
    take_back()

    cancellation.cancel()
    cancellation.cancel()
    cancellation.on_cancel(lambda: called.append("late"))()

    assert called == ["kept", "late"]
    assert cancellation.cancelled


def test_a_callback_that_fails_does_not_keep_the_others_from_being_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cancellation = Cancellation()
    called: list[str] = []

    def broken() -> None:
        raise RuntimeError("broken")

    cancellation.on_cancel(broken)
    cancellation.on_cancel(lambda: called.append("second"))
    cancellation.cancel()

    assert called == ["second"]
    assert "on_cancel_failed" in caplog.text
    assert cancellation.cancelled


def test_a_thread_can_wait_for_the_cancellation() -> None:
    cancellation = Cancellation()
    assert not cancellation.wait(0)
    woken = threading.Event()

    def wait() -> None:
        if cancellation.wait(60):
            woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    cancellation.cancel()
    thread.join(60)

    assert woken.is_set()
    late = Cancellation()
    late.cancel()
    assert late.wait(0)


def test_what_is_stopped_is_asked_again_until_there_is_something_to_stop() -> None:
    cancellation = Cancellation()
    ready, stopped = threading.Event(), threading.Event()

    def stop() -> bool:
        if ready.is_set():
            stopped.set()
        return stopped.is_set()

    with cancellation.stopping(stop):
        cancellation.cancel()  # comes back at once
        assert not stopped.is_set()
        ready.set()
        assert stopped.wait(60)


def test_what_is_over_is_not_stopped_any_more() -> None:
    cancellation = Cancellation()
    late: list[Callable[[], object]] = []
    cancellation.on_cancel = lambda callback: late.append(callback) or (lambda: None)  # type: ignore[method-assign, func-returns-value]
    asked: list[bool] = []

    with cancellation.stopping(lambda: asked.append(True) or True):  # type: ignore[func-returns-value]
        late[0]()
    late[0]()

    assert asked == [True]


def test_asking_again_ends_with_the_block() -> None:
    cancellation = Cancellation()
    with cancellation.stopping(lambda: False):
        cancellation.cancel()
    for thread in threading.enumerate():
        if thread.name == "podbot-cancel":
            thread.join(60)
            assert not thread.is_alive()


def test_what_was_cancelled_before_is_stopped_at_once() -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    asked: list[bool] = []
    with cancellation.stopping(lambda: asked.append(True) or True):  # type: ignore[func-returns-value]
        assert asked == [True]
