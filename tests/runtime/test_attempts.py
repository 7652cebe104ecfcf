"""An attempt takes back what it did itself, whatever others did meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_values import AddStep, Note, Plan, Result

from podbot.errors import Kind, SessionError
from podbot.runtime.events import InProcessEventBus, ToolInvoked
from podbot.runtime.session import Attempt, ReducerContext, Session, Slice, replace_latest

# A machine under load is slow; that says nothing about what is tested.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Refused(Exception):
    """Leaves a block."""


def elsewhere(work: object) -> None:
    """Run something in another thread, to its end."""
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def texts(session: Session) -> str:
    return "".join(note.text for note in session.query(Note).all())


def test_what_succeeds_stays(session: Session) -> None:
    with session.attempt():
        session.mutate(Note).dispatch(Note("a"))

    assert texts(session) == "a"


def test_an_exception_undoes_an_attempt_and_goes_on(session: Session) -> None:
    session.mutate(Note).seed(Note("a"))
    with pytest.raises(Refused), session.attempt():
        session.mutate(Note).dispatch(Note("b"))
        session.mutate(Plan).seed(Plan("p"))
        session.mutate().reset()
        raise Refused

    assert texts(session) == "a"
    assert session.query(Plan).all() == ()


def test_undo_takes_back_and_what_comes_after_it_stays(session: Session) -> None:
    with session.attempt() as attempt:
        attempt.undo()  # nothing yet
        session.mutate(Note).dispatch(Note("a"))
        attempt.undo()
        attempt.undo()
        assert texts(session) == ""
        session.mutate(Note).dispatch(Note("b"))

    assert texts(session) == "b"


def test_undo_can_be_repeated_within_one_attempt(session: Session) -> None:
    with session.attempt() as attempt:
        for text in "abc":
            session.mutate(Note).dispatch(Note(text))
            attempt.undo()

    assert texts(session) == ""


def test_what_others_did_meanwhile_stays(session: Session) -> None:
    session.mutate(Note).seed(Note("a"))
    with session.attempt() as attempt:
        session.mutate(Note).dispatch(Note("b"))
        elsewhere(lambda: session.mutate(Note).dispatch(Note("c")))
        session.mutate(Note).dispatch(Note("d"))
        elsewhere(lambda: session.mutate(Plan).seed(Plan("p")))
        attempt.undo()

    assert texts(session) == "ac"
    assert session.query(Plan).all() == (Plan("p"),)


def test_what_another_skipped_as_a_duplicate_is_there_after_all(session: Session) -> None:
    with session.attempt() as attempt:
        session.mutate(Note).dispatch(Note("a"))
        elsewhere(lambda: session.mutate(Note).dispatch(Note("a")))
        attempt.undo()

    assert texts(session) == "a"


def test_overlapping_attempts_undo_their_own(session: Session) -> None:
    with session.attempt() as one:
        session.mutate(Note).dispatch(Note("a"))

        def other() -> None:
            with session.attempt() as attempt:
                session.mutate(Note).dispatch(Note("b"))
                attempt.undo()
                session.mutate(Note).dispatch(Note("c"))

        elsewhere(other)
        session.mutate(Note).dispatch(Note("d"))
        assert texts(session) == "acd"
        one.undo()

    assert texts(session) == "c"


def test_the_one_that_began_first_may_end_first(session: Session) -> None:
    began, may_end = threading.Event(), threading.Event()

    def other() -> None:
        with session.attempt() as attempt:
            session.mutate(Note).dispatch(Note("b"))
            began.set()
            may_end.wait(60)
            attempt.undo()

    thread = threading.Thread(target=other)
    with session.attempt():
        session.mutate(Note).dispatch(Note("a"))
        thread.start()
        assert began.wait(60)
        session.mutate(Note).dispatch(Note("c"))
    may_end.set()
    thread.join()

    assert texts(session) == "ac"


def test_an_inner_attempt_is_part_of_the_outer_one(session: Session) -> None:
    with session.attempt() as outer:
        session.mutate(Note).dispatch(Note("a"))
        with session.attempt() as inner:
            session.mutate(Note).dispatch(Note("b"))
            inner.undo()
            session.mutate(Note).dispatch(Note("c"))
        assert texts(session) == "ac"
        outer.undo()

    assert texts(session) == ""


def test_attempts_on_two_sessions_do_not_mix(session: Session, bus: InProcessEventBus) -> None:
    other = Session(bus=bus)
    with session.attempt() as mine, other.attempt() as theirs:
        session.mutate(Note).dispatch(Note("a"))
        other.mutate(Note).dispatch(Note("b"))
        theirs.undo()
        assert (texts(session), texts(other)) == ("a", "")
        other.mutate(Note).dispatch(Note("c"))
        mine.undo()

    assert (texts(session), texts(other)) == ("", "c")


def test_what_the_bus_brings_belongs_to_the_attempt(
    session: Session, bus: InProcessEventBus
) -> None:
    with session.attempt() as attempt:
        bus.publish(ToolInvoked("ns", "key", "inner", None, Result("", Note("a"))))
        attempt.undo()
    bus.publish(ToolInvoked("ns", "key", "outer", None, Result("", success=False)))

    assert [event.name for event in session.query(ToolInvoked).all()] == ["outer"]
    assert texts(session) == ""


def test_what_a_reducer_dispatches_belongs_to_the_attempt(session: Session) -> None:
    def talkative(
        values: Slice[Plan], event: AddStep, *, context: ReducerContext
    ) -> Sequence[Plan]:
        context.session.mutate(Note).dispatch(Note(event.text))
        return (Plan(event.text),)

    session.mutate(Plan).register(AddStep, talkative)
    with session.attempt() as attempt:
        session.mutate().dispatch(AddStep("a"))
        assert texts(session) == "a"
        attempt.undo()

    assert texts(session) == ""
    assert session.query(Plan).all() == ()


def test_a_task_of_its_own_is_covered_and_a_foreign_one_is_not(session: Session) -> None:
    async def work() -> None:
        with session.attempt() as attempt:
            await asyncio.to_thread(session.mutate(Note).dispatch, Note("a"))
            await asyncio.create_task(dispatch(Note("b")))
            attempt.undo()

    async def dispatch(note: Note) -> None:
        session.mutate(Note).dispatch(note)

    async def both() -> None:
        foreign = asyncio.create_task(dispatch(Note("d")))
        await work()
        await foreign

    asyncio.run(both())

    assert texts(session) == "d"


def test_a_thread_that_outlives_the_attempt_is_not_covered(session: Session) -> None:
    with session.attempt():
        late = contextvars.copy_context()
    with session.attempt() as attempt:
        late.run(session.mutate(Note).dispatch, Note("a"))
        attempt.undo()

    assert texts(session) == "a"


def test_an_attempt_that_is_over_cannot_be_undone(session: Session) -> None:
    with session.attempt() as attempt:
        session.mutate(Note).dispatch(Note("a"))

    with pytest.raises(SessionError, match="is over") as raised:
        attempt.undo()
    assert raised.value.kind is Kind.CLOSED
    with pytest.raises(SessionError, match="can be entered once"):
        attempt.__enter__()
    assert texts(session) == "a"


def test_a_reducer_cannot_make_an_attempt(session: Session) -> None:
    errors: list[SessionError] = []

    def curious(values: Slice[Note], event: Note, *, context: ReducerContext) -> Slice[Note]:
        with pytest.raises(SessionError, match="a reducer cannot make an attempt") as raised:
            context.session.attempt()
        errors.append(raised.value)
        return values.appended(event)

    session.mutate(Note).register(Note, curious)
    session.mutate(Note).dispatch(Note("a"))

    assert len(errors) == 1
    assert texts(session) == "a"


def test_a_reducer_that_undoes_an_attempt_is_obeyed_when_it_is_done(session: Session) -> None:
    attempts: list[Attempt] = []

    def judge(values: Slice[Note], event: Note, *, context: ReducerContext) -> Slice[Note]:
        if event.text == "bad":
            attempts[0].undo()
        return values.appended(event)

    session.mutate(Note).register(Note, judge)
    with session.attempt() as attempt:
        attempts.append(attempt)
        session.mutate(Note).dispatch(Note("a"))
        session.mutate(Note).dispatch(Note("bad"))

    assert texts(session) == ""


def test_an_undo_that_comes_after_the_end_finds_nothing(session: Session) -> None:
    """As when a reducer asked for it, and its turn came late."""
    with session.attempt() as attempt:
        session.mutate(Note).dispatch(Note("a"))
    session._store.take_back(attempt)

    assert texts(session) == "a"


def test_nothing_is_noted_when_no_attempt_is_open(session: Session) -> None:
    journal = session._store._journal
    with session.attempt():
        with session.attempt():
            session.mutate(Note).dispatch(Note("a"))
        assert len(journal._entries) == 1
    session.mutate(Note).dispatch(Note("b"))

    assert not journal._entries
    assert not journal._starts


def test_only_what_an_open_attempt_needs_is_kept(session: Session) -> None:
    journal = session._store._journal
    began, may_end = threading.Event(), threading.Event()

    def young() -> None:
        with session.attempt():
            began.set()
            may_end.wait(60)

    thread = threading.Thread(target=young)
    with session.attempt():
        for number in range(10):
            session.mutate(Note).dispatch(Note("x", number))
        thread.start()
        assert began.wait(60)
        session.mutate(Note).dispatch(Note("y"))
        assert len(journal._entries) == 11
    kept = len(journal._entries)
    may_end.set()
    thread.join()

    assert kept == 1
    assert not journal._entries


# Any order of work of three callers, some of whom fail: those who fail leave no trace.

STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("dsn"), st.integers(0, 9)), max_size=25
)


@settings(PATIENT, max_examples=60)
@given(steps=STEPS, failing=st.sets(st.integers(0, 2)), order=st.permutations(range(3)))
def test_those_who_fail_leave_no_trace(
    steps: list[tuple[int, str, int]], failing: set[int], order: list[int]
) -> None:
    def outcome(callers: set[int], fail: set[int]) -> tuple[object, ...]:
        session = Session(bus=InProcessEventBus())
        session.mutate(Plan).register(Note, replace_by_note)
        session.mutate(Note).register(Note, append_always)
        contexts = {caller: contextvars.copy_context() for caller in callers}
        attempts = {caller: session.attempt() for caller in callers}
        for caller in callers:
            contexts[caller].run(attempts[caller].__enter__)
        for caller, verb, number in steps:
            if caller in callers:
                contexts[caller].run(change, session, verb, number)
        for caller in order:
            if caller in callers:
                contexts[caller].run(finish, attempts[caller], caller in fail)
        return session.query(Note).all(), session.query(Plan).all()

    assert outcome({0, 1, 2}, failing) == outcome({0, 1, 2} - failing, set())


def change(session: Session, verb: str, number: int) -> None:
    if verb == "d":
        session.mutate().dispatch(Note("n", number))
    elif verb == "s":
        session.mutate(Note).seed(Note("seeded", number))
    else:
        with session.attempt() as inner:
            session.mutate().dispatch(Note("inner", number))
            if number % 2:
                inner.undo()


def finish(attempt: Attempt, fails: bool) -> None:
    if fails:
        attempt.undo()
    attempt.__exit__(None, None, None)


def append_always(values: Slice[Note], event: Note, *, context: ReducerContext) -> Slice[Note]:
    return values.appended(event)


def replace_by_note(values: Slice[Plan], event: Note, *, context: ReducerContext) -> Slice[Plan]:
    last = values[-1].title if values else ""
    return replace_latest(values, Plan(f"{last}{event.number}"), context=context)
