"""Many threads on one session: nothing is lost, nobody waits for ever, and it stays quick."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import pytest
from session_values import AddStep, Note, Plan, Result

from podbot.runtime import events
from podbot.runtime.events import InProcessEventBus, ToolInvoked
from podbot.runtime.session import ReducerContext, Session, Slice, upsert_by
from podbot.runtime.session.slices import CHUNK

THREADS, EACH = 32, 40
DEADLINE = 300.0
"""Seconds after which a thread counts as hanging, on a machine that is very busy."""


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    """Threads take turns far more often than usual, so that a race is met."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def together(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run something in many threads at once; fail if one hangs or raises."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            barrier.wait(DEADLINE)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert not errors


def count_steps(values: Sequence[Plan], event: AddStep, *, context: ReducerContext) -> list[Plan]:
    return [Plan(str(int(values[-1].title) + 1))] if values else [Plan("1")]


def test_no_event_of_32_threads_is_lost(session: Session, bus: InProcessEventBus) -> None:
    session.mutate(Plan).register(AddStep, count_steps)

    def work(number: int) -> None:
        for count in range(EACH):
            session.mutate(Note).dispatch(Note(str(number), count))
            event = ToolInvoked("ns", "key", str(number), count, Result("", AddStep("x")))
            assert bus.publish(event).ok
            assert session.slice_of(Note).position_of(Note(str(number), count)) is not None

    together(work)

    assert len(session.query(Note).all()) == THREADS * EACH
    assert len(session.query(ToolInvoked).all()) == THREADS * EACH
    assert session.query(Plan).latest() == Plan(str(THREADS * EACH))
    calls = session.query(ToolInvoked).all()
    for number in range(THREADS):  # each thread's in its own order
        assert [call.params for call in calls if call.name == str(number)] == list(range(EACH))


def test_failing_calls_of_some_threads_take_nothing_from_the_others(session: Session) -> None:
    session.mutate(Plan).register(AddStep, count_steps)

    def work(number: int) -> None:
        for count in range(EACH // 2):
            with session.attempt() as attempt:
                session.mutate(Note).dispatch(Note(str(number), count))
                session.mutate().dispatch(AddStep("x"))
                if number % 2:
                    attempt.undo()

    together(work)

    kept = THREADS // 2 * (EACH // 2)
    assert session.query(Plan).latest() == Plan(str(kept))
    assert len(session.query(Note).all()) == kept
    assert not session.query(Note).where(lambda note: int(note.text) % 2 == 1)
    assert not session._store._journal._entries


def test_sessions_that_feed_each_other_from_many_threads_do_not_deadlock() -> None:
    buses = InProcessEventBus(), InProcessEventBus()
    sessions = [Session(bus=bus) for bus in buses]

    def feeding(
        other: Session,
    ) -> Callable[..., Slice[Note]]:
        def reduce(values: Slice[Note], event: Note, *, context: ReducerContext) -> Slice[Note]:
            if event.text == "ping":
                other.mutate(Note).dispatch(Note("pong", event.number))
                other.bus.publish(ToolInvoked("ns", "key", "t", event.number, Result("")))
                other.query(Note).latest()
            return values.appended(event)

        return reduce

    sessions[0].mutate(Note).register(Note, feeding(sessions[1]))
    sessions[1].mutate(Note).register(Note, feeding(sessions[0]))

    def work(number: int) -> None:
        for count in range(EACH):
            sessions[number % 2].mutate(Note).dispatch(Note("ping", number * EACH + count))

    together(work, 8)

    for session in sessions:
        kinds = [note.text for note in session.query(Note).all()]
        assert (kinds.count("ping"), kinds.count("pong")) == (4 * EACH, 4 * EACH)
        assert len(session.query(ToolInvoked).all()) == 4 * EACH


def test_a_reader_never_sees_half_of_an_event(session: Session) -> None:
    def as_note(values: Slice[Note], event: AddStep, *, context: ReducerContext) -> Slice[Note]:
        return values.appended(Note("x", len(values)))

    session.mutate(Plan).register(AddStep, count_steps)
    session.mutate(Note).register(AddStep, as_note)
    session.mutate().dispatch(AddStep("x"))
    torn: list[tuple[int, str]] = []

    def work(number: int) -> None:
        for _ in range(EACH):
            if number % 2:
                session.mutate().dispatch(AddStep("x"))
            else:
                slices = session.snapshot().slices
                held = len(slices[Note]), slices[Plan][-1].title  # type: ignore[attr-defined]
                if str(held[0]) != held[1]:
                    torn.append(held)

    together(work, 8)

    assert not torn


def test_children_of_many_threads_are_all_there(session: Session, bus: InProcessEventBus) -> None:
    together(lambda number: [Session(bus=bus, parent=session) for _ in range(5)] and None)

    assert len(session.children) == THREADS * 5


@pytest.mark.parametrize("undo", [False, True])
def test_a_finalizer_may_use_the_session_wherever_the_collector_strikes(undo: bool) -> None:
    """It is made to strike at every line. A lock that its own thread waits for would hang here.

    Three times at each line: what it puts off is done by lines at which it would strike again.
    """
    session = Session(bus=(bus := InProcessEventBus()))
    session.mutate(AddStep).register(AddStep, lambda values, event, context: values.appended(event))
    home = str(Path(events.__file__).parent)
    struck: Counter[tuple[str, int]] = Counter()

    def strike(frame: FrameType, event: str, argument: object) -> object:
        place = frame.f_code.co_filename, frame.f_lineno
        if not place[0].startswith(home):
            return None
        if event == "line" and struck[place] < 3:
            struck[place] += 1
            session.mutate(AddStep).dispatch(AddStep("x"))
            Session(bus=bus).close()
        return strike

    def work(number: int) -> None:
        before = sys.gettrace()
        sys.settrace(strike)  # type: ignore[arg-type]
        try:
            for count in range(3):
                with session.attempt() as attempt, session.attempt():
                    session.mutate(Note).dispatch(Note("x", count))
                    if undo:
                        attempt.undo()
                session.mutate(Note).dispatch(Note("y", count))
                bus.publish(ToolInvoked("ns", "key", "t", None, Result("")))
                Session(bus=bus, parent=session).close()
        finally:
            sys.settrace(before)

    together(work, 1)

    assert len(struck) > 100
    assert undo or len(session.query(AddStep).all()) == struck.total()  # none is lost
    assert "".join(note.text for note in session.query(Note).all()) == ("yyy" if undo else "xyxyxy")
    assert len(session.query(ToolInvoked).all()) == 3
    assert not session._store._journal._entries


def struck_once(at: int) -> tuple[Session, int]:
    """A session after a dispatch that another one interrupted at one line; how many there were."""
    session = Session(bus=InProcessEventBus())
    home = str(Path(events.__file__).parent)
    lines = 0

    def strike(frame: FrameType, event: str, argument: object) -> object:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(home):
            return None
        lines += event == "line"
        if event == "line" and lines == at:
            session.mutate(AddStep).dispatch(AddStep("x"))
        return strike

    before = sys.gettrace()
    sys.settrace(strike)  # type: ignore[arg-type]
    try:
        session.mutate(Note).dispatch(Note("x"))
    finally:
        sys.settrace(before)
    return session, lines


def test_what_a_finalizer_asked_for_is_done_when_the_interrupted_change_is() -> None:
    _, lines = struck_once(0)
    assert lines > 50

    for at in range(1, lines + 1):
        session, _ = struck_once(at)
        assert session.query(Note).all() == (Note("x"),)
        assert session.query(AddStep).all() == (AddStep("x"),)


# It stays linear: what one call costs does not grow with what is there. Counted, not timed.


def work_of(call: Callable[[], object]) -> int:
    """How many lines of Python a call runs."""
    lines = 0

    def tracer(frame: object, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return tracer

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # what is collected meanwhile is none of its work
    sys.settrace(tracer)  # type: ignore[arg-type]
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return lines


def test_a_call_after_ten_thousand_costs_what_the_first_one_did(
    session: Session, bus: InProcessEventBus
) -> None:
    session.mutate(Note).register(Note, upsert_by(lambda note: note.number))

    def call(number: int) -> None:
        with session.attempt() as attempt:
            session.mutate(AddStep).dispatch(AddStep(str(number)))
            attempt.undo()
        value = Note("note", number)
        bus.publish(ToolInvoked("ns", "key", "t", {"a": 1}, Result("", value), session_id="s1"))

    for number in range(3):
        call(number)
    first = work_of(lambda: call(3))
    for number in range(4, 10_000):
        call(number)
    last = work_of(lambda: call(10_000))

    # Each full chunk is asked once whether it knows a value: one line for each slice.
    assert last <= first + 2 * 3 * (10_000 // CHUNK)


def test_going_back_to_before_a_call_looks_at_no_entry(session: Session) -> None:
    session.mutate(Note).seed(Note("note", number) for number in range(10_000))
    snapshot = session.snapshot()
    session.mutate(Note).dispatch(Note("more"))

    assert work_of(lambda: session.mutate().rollback(snapshot)) < 200
    assert session.slice_of(Note) is snapshot.slices[Note]
