"""What a handler is told of its call: deadlines, cancellation, progress."""

from __future__ import annotations

import threading

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
    assert 50 < Deadline.after(60).remaining() <= 60
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
