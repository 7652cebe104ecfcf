"""A session holds typed slices, changed by reducers, fed by its bus."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import pytest
from session_values import AddStep, Note, Plan, Result, Settings

from podbot.errors import Kind, SessionError
from podbot.runtime.events import InProcessEventBus, PromptExecuted, PromptRendered, ToolInvoked
from podbot.runtime.session import (
    ReducerContext,
    Session,
    Slice,
    append,
    replace_latest,
    upsert_by,
)


def add_step(values: Sequence[Plan], event: AddStep, *, context: ReducerContext) -> tuple[Plan]:
    last = values[-1] if values else Plan("untitled")
    return (Plan(last.title, (*last.steps, Note(event.text))),)


def broken(values: Slice[Plan], event: AddStep, *, context: ReducerContext) -> Slice[Plan]:
    raise ValueError("no good")


def called(session: Session, value: object = None, *, success: bool = True) -> ToolInvoked:
    result = Result("done", value, success)
    return ToolInvoked("ns", "key", "tool", None, result, session_id=session.session_id)


# Reading


def test_an_unknown_slice_is_empty(session: Session) -> None:
    assert session.query(Note).latest() is None
    assert session.query(Note).all() == ()
    assert session.query(Note).where(lambda note: True) == ()


def test_a_query_sees_the_latest_all_and_those_that_match(session: Session) -> None:
    session.mutate(Note).seed([Note("a", 1), Note("b", 2), Note("c", 3)])

    assert session.query(Note).latest() == Note("c", 3)
    assert session.query(Note).all() == (Note("a", 1), Note("b", 2), Note("c", 3))
    assert session.query(Note).where(lambda note: note.number > 1) == (Note("b", 2), Note("c", 3))


@pytest.mark.parametrize("kind", [int, str, dict, Note("x")])
def test_only_dataclasses_make_slices(session: Session, kind: type) -> None:
    for ask in (session.query, session.mutate):
        with pytest.raises(SessionError, match="is not a dataclass"):
            ask(kind)


# Changing


def test_seed_replaces_and_takes_one_or_many(session: Session) -> None:
    notes = session.mutate(Note)
    notes.seed(Note("a"))
    assert session.query(Note).all() == (Note("a"),)

    notes.seed(Note(text) for text in "bcb")
    assert [note.text for note in session.query(Note).all()] == ["b", "c", "b"]


def test_clear_empties_one_slice_and_reset_all(session: Session) -> None:
    session.mutate(Note).seed(Note("a"))
    session.mutate(Plan).seed(Plan("p"))
    session.mutate(Note).clear()

    assert session.query(Note).all() == ()
    assert session.query(Plan).all() == (Plan("p"),)

    session.mutate(Plan).register(AddStep, add_step)
    session.mutate().reset()
    assert session.query(Plan).all() == ()
    session.mutate(Plan).dispatch(AddStep("still registered"))
    assert session.query(Plan).all() == (Plan("untitled", (Note("still registered"),)),)


def test_append_keeps_each_value_once(session: Session) -> None:
    notes = session.mutate(Note)
    for text in "abab":
        notes.append(Note(text))
        notes.dispatch(Note(text))

    assert session.query(Note).all() == (Note("a"), Note("b"))


def test_append_keeps_values_without_a_hash_once(session: Session) -> None:
    for name in ("a", "b", "a"):
        session.mutate(Settings).append(Settings({"x": "1"}, name))

    assert [each.name for each in session.query(Settings).all()] == ["a", "b"]


def test_replace_latest_keeps_one_value(session: Session) -> None:
    session.mutate(Note).register(Note, replace_latest)
    session.mutate(Note).seed([Note("a"), Note("b")])
    session.mutate(Note).dispatch(Note("c"))

    assert session.query(Note).all() == (Note("c"),)


def test_upsert_by_keeps_one_value_for_each_key(session: Session) -> None:
    session.mutate(Note).register(Note, upsert_by(lambda note: note.text))
    for text, number in [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("b", 2)]:
        session.mutate(Note).dispatch(Note(text, number))

    assert session.query(Note).all() == (Note("a", 2), Note("b", 2), Note("c", 1))


def test_a_reducer_makes_a_slice_from_events_of_another_type(session: Session) -> None:
    session.mutate(Plan).seed(Plan("p"))
    session.mutate(Plan).register(AddStep, add_step)
    session.mutate(Plan).dispatch(AddStep("one"))
    session.mutate().dispatch(AddStep("two"))

    assert session.query(Plan).all() == (Plan("p", (Note("one"), Note("two"))),)
    assert session.query(AddStep).all() == ()  # a reducer took care of it


def test_an_event_reaches_every_slice_that_registered_for_it(session: Session) -> None:
    def as_note(values: Sequence[Note], event: AddStep, *, context: object) -> Iterable[Note]:
        return (*values, Note(event.text))

    session.mutate(Plan).register(AddStep, add_step)
    session.mutate(Note).register(AddStep, as_note)
    session.mutate(AddStep).register(AddStep, append)
    session.mutate().dispatch(AddStep("one"))
    session.mutate(Note).dispatch(AddStep("for notes alone"))

    assert session.query(Plan).latest() == Plan("untitled", (Note("one"),))
    assert session.query(Note).all() == (Note("one"), Note("for notes alone"))
    assert session.query(AddStep).all() == (AddStep("one"),)


def test_an_event_nobody_registered_for_is_appended_to_its_own_slice(session: Session) -> None:
    session.mutate().dispatch(AddStep("one"))

    assert session.query(AddStep).all() == (AddStep("one"),)


def test_a_second_reducer_takes_the_place_of_the_first(session: Session) -> None:
    for _ in range(2):  # as when a section is made twice on one session
        session.mutate(Plan).register(AddStep, add_step)
    session.mutate(Plan).dispatch(AddStep("one"))

    assert session.query(Plan).latest() == Plan("untitled", (Note("one"),))


def test_what_makes_no_sense_is_refused_with_a_remedy(session: Session) -> None:
    wrong: Note = Plan("x")  # type: ignore[assignment]
    with pytest.raises(SessionError, match="has no reducer for AddStep") as raised:
        session.mutate(Plan).dispatch(AddStep("one"))
    assert raised.value.kind is Kind.INVALID
    assert "register(AddStep" in str(raised.value)
    for change in (session.mutate(Note).seed, session.mutate(Note).append):
        with pytest.raises(SessionError, match="cannot hold a Plan"):
            change(wrong)
    with pytest.raises(SessionError, match="cannot hold a Plan"):
        session.mutate(Note).seed([wrong])
    with pytest.raises(SessionError, match="is not a dataclass"):
        session.mutate().dispatch("text")
    with pytest.raises(SessionError, match="is not a dataclass"):
        session.mutate(Note).register(str, append)  # type: ignore[arg-type]


# Reducers that fail, and that talk back


def test_a_failing_reducer_is_logged_and_leaves_its_slice_as_it_was(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    session.mutate(Plan).seed(Plan("p"))
    session.mutate(Plan).register(AddStep, broken)
    session.mutate(AddStep).register(AddStep, append)
    with caplog.at_level(logging.ERROR):
        session.mutate().dispatch(AddStep("one"))

    assert session.query(Plan).all() == (Plan("p"),)
    assert session.query(AddStep).all() == (AddStep("one"),)  # the other one ran
    [record] = caplog.records
    assert record.event == "reducer_failed"  # type: ignore[attr-defined]
    assert record.context == {  # type: ignore[attr-defined]
        "component": "runtime.session",
        "error": "ValueError: no good",
        "session_id": "s1",
        "slice": "Plan",
        "event_type": "AddStep",
        "reducer": "broken",
    }


@pytest.mark.parametrize("answer", [None, 3, [Note("wrong type")], Slice(Note, [Note("wrong")])])
def test_a_reducer_that_returns_nonsense_fails(session: Session, answer: object) -> None:
    class Nonsense:
        def __call__(self, values: object, event: object, *, context: object) -> object:
            return answer

    session.mutate(Plan).seed(Plan("p"))
    session.mutate(Plan).register(AddStep, Nonsense())  # type: ignore[arg-type]
    session.mutate(Plan).dispatch(AddStep("one"))

    assert session.query(Plan).all() == (Plan("p"),)


def test_what_a_reducer_dispatches_or_publishes_is_handled_after_it(
    session: Session, bus: InProcessEventBus
) -> None:
    seen: list[tuple[Note, ...]] = []

    def talkative(values: Slice[Note], event: Note, *, context: ReducerContext) -> Slice[Note]:
        if event.number == 0:
            context.session.mutate(Note).dispatch(Note("dispatched", 1))
            context.bus.publish(called(context.session, Note("published", 2)))
            seen.append(context.session.query(Note).all())
        return append(values, event, context=context)

    session.mutate(Note).register(Note, talkative)
    session.mutate(Note).dispatch(Note("first"))

    assert seen == [()]  # no reducer sees a half-made state
    assert [note.text for note in session.query(Note).all()] == ["first", "dispatched", "published"]
    assert len(session.query(ToolInvoked).all()) == 1


def test_a_guard_does_or_refuses_what_a_program_dispatches(session: Session) -> None:
    done: list[str] = []

    def check(event: AddStep) -> None:
        if not event.text:
            raise ValueError("an empty step")
        done.append(event.text)

    session.mutate(Plan).register(AddStep, add_step)
    session.mutate(Plan).guard(AddStep, check)
    session.mutate(Plan).dispatch(AddStep("one"))
    session.mutate().dispatch(AddStep("two"))
    for dispatch in (session.mutate(Plan).dispatch, session.mutate().dispatch):
        with pytest.raises(ValueError, match="an empty step"):
            dispatch(AddStep(""))
    assert done == ["one", "two"]
    plan = session.query(Plan).latest()
    assert plan is not None and [step.text for step in plan.steps] == ["one", "two"]


def test_values_of_tools_and_clones_pass_no_guard(session: Session) -> None:
    done: list[AddStep] = []
    session.mutate(Plan).register(AddStep, add_step)
    session.mutate(Plan).guard(AddStep, done.append)
    session.bus.publish(called(session, AddStep("by a tool")))
    session.clone(bus=InProcessEventBus()).mutate().dispatch(AddStep("in a clone"))
    assert done == [] and session.query(Plan).latest() is not None


def test_a_reducer_dispatches_nothing_that_has_a_guard(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[AddStep] = []

    def passes_on(values: Slice[Note], event: Note, *, context: ReducerContext) -> Slice[Note]:
        context.session.mutate().dispatch(AddStep(event.text))
        return values.appended(event)

    session.mutate(Plan).guard(AddStep, done.append)
    session.mutate(Note).register(Note, passes_on)
    session.mutate(Note).dispatch(Note("x"))
    assert done == [] and session.query(Note).all() == ()
    assert "from outside of reducers" in caplog.text


def test_two_sessions_whose_reducers_dispatch_to_each_other_finish(bus: InProcessEventBus) -> None:
    one, other = Session(bus=bus), Session(bus=bus)

    def to_the(target: Session, limit: int) -> object:
        def pass_on(values: Slice[Note], event: Note, *, context: ReducerContext) -> Slice[Note]:
            if event.number < limit:
                target.mutate(Note).dispatch(Note(event.text, event.number + 1))
            return values.appended(event)

        return pass_on

    one.mutate(Note).register(Note, to_the(other, 5))  # type: ignore[arg-type]
    other.mutate(Note).register(Note, to_the(one, 5))  # type: ignore[arg-type]
    one.mutate(Note).dispatch(Note("ball"))

    assert [note.number for note in one.query(Note).all()] == [0, 2, 4]
    assert [note.number for note in other.query(Note).all()] == [1, 3, 5]


# Listening


def test_a_tool_call_is_kept_and_its_value_dispatched(
    session: Session, bus: InProcessEventBus
) -> None:
    session.mutate(Plan).register(AddStep, add_step)
    first, second = called(session, AddStep("one")), called(session, Note("no reducer"))
    bus.publish(first)
    bus.publish(second)

    assert session.query(ToolInvoked).all() == (first, second)
    assert session.query(Plan).latest() == Plan("untitled", (Note("one"),))
    assert session.query(Note).all() == (Note("no reducer"),)


def test_a_failing_call_is_kept_and_its_value_changes_nothing(
    session: Session, bus: InProcessEventBus
) -> None:
    session.mutate(Plan).register(AddStep, add_step)
    failed = called(session, AddStep("one"), success=False)
    bus.publish(failed)

    assert session.query(ToolInvoked).all() == (failed,)
    assert session.query(Plan).all() == ()


def test_items_of_a_value_reach_the_reducers_there_are(
    session: Session, bus: InProcessEventBus
) -> None:
    session.mutate(Plan).register(AddStep, add_step)
    bus.publish(called(session, (AddStep("one"), Note("none for this"), "text", AddStep("two"))))
    bus.publish(called(session, [AddStep("three")]))

    assert session.query(Plan).latest() == Plan(
        "untitled", tuple(map(Note, ("one", "two", "three")))
    )
    assert session.query(Note).all() == ()


@pytest.mark.parametrize("value", [None, "text", 3, {"a": 1}, Note, b"raw"])
def test_a_value_that_is_no_dataclass_goes_nowhere(
    session: Session, bus: InProcessEventBus, value: object
) -> None:
    assert bus.publish(called(session, value)).ok
    assert session.snapshot().slices.keys() == {ToolInvoked}


def test_a_call_that_returns_a_call_is_kept_once(session: Session, bus: InProcessEventBus) -> None:
    inner = called(session)
    outer = called(session, inner)
    bus.publish(outer)

    assert session.query(ToolInvoked).all() == (outer,)


def test_prompts_are_kept_and_a_typed_answer_dispatched(
    session: Session, bus: InProcessEventBus
) -> None:
    rendered = PromptRendered("ns", "key", "# Text", session_id="s1")
    executed = PromptExecuted("ns", "key", "scripted", value=Note("answer"), session_id="s1")
    bus.publish(rendered)
    bus.publish(executed)

    assert session.query(PromptRendered).all() == (rendered,)
    assert session.query(PromptExecuted).all() == (executed,)
    assert session.query(Note).all() == (Note("answer"),)


def test_a_session_hears_what_is_its_own_or_everybodys(bus: InProcessEventBus) -> None:
    one, other = Session(bus=bus), Session(bus=bus)
    bus.publish(called(one))
    bus.publish(ToolInvoked("ns", "key", "tool", None, Result("")))

    assert len(one.query(ToolInvoked).all()) == 2
    assert len(other.query(ToolInvoked).all()) == 1


def test_how_calls_are_kept_can_be_changed(session: Session, bus: InProcessEventBus) -> None:
    session.mutate(ToolInvoked).register(ToolInvoked, replace_latest)
    for _ in range(3):
        bus.publish(called(session))

    assert len(session.query(ToolInvoked).all()) == 1


def test_who_subscribed_after_the_session_finds_it_up_to_date(
    session: Session, bus: InProcessEventBus
) -> None:
    seen: list[int] = []
    bus.subscribe(ToolInvoked, lambda event: seen.append(len(session.query(ToolInvoked).all())))
    bus.publish(called(session))

    assert seen == [1]


def test_a_closed_session_hears_nothing_and_can_be_read(bus: InProcessEventBus) -> None:
    session = Session(bus=bus)
    bus.publish(called(session))
    session.close()
    session.close()

    assert bus.publish(called(session)).handled == 0
    assert len(session.query(ToolInvoked).all()) == 1


def test_a_bus_does_not_keep_a_session_alive(bus: InProcessEventBus) -> None:
    session = Session(bus=bus)
    session.mutate(Note).dispatch(Note("a"))
    gone = weakref.ref(session)
    assert bus.publish(called(session)).handled == 1
    event = called(session)

    del session
    gc.collect()

    assert gone() is None
    assert bus.publish(event).handled == 0


def test_an_ear_whose_session_is_gone_does_nothing(bus: InProcessEventBus) -> None:
    """As when a session is collected while an event is on its way."""
    session = Session(bus=bus)
    event = called(session)
    [ear] = bus._handlers[ToolInvoked]

    del session
    gc.collect()

    ear(event)


# Identity


def test_ids_are_made_up_and_differ(bus: InProcessEventBus) -> None:
    ids = {Session(bus=bus).session_id for _ in range(100)}

    assert len(ids) == 100
    assert all(len(each) == 32 for each in ids)


@pytest.mark.parametrize("bad", ["", "../up", "a/b", "-x", ".x", "a b", "ä", "x" * 65, "a\n", 3])
def test_an_id_that_could_mean_something_else_in_a_path_is_refused(
    bus: InProcessEventBus, bad: str
) -> None:
    with pytest.raises(SessionError, match="cannot be the id of a session"):
        Session(bus=bus, session_id=bad)


def test_tags_are_texts_and_read_only(bus: InProcessEventBus) -> None:
    given = {"scope": "test"}
    session = Session(bus=bus, tags=given)
    given["scope"] = "changed"

    assert session.tags == {"scope": "test"}
    with pytest.raises(TypeError):
        session.tags["scope"] = "x"  # type: ignore[index]
    with pytest.raises(SessionError, match="the tag 'n' is not text"):
        Session(bus=bus, tags={"n": 3})  # type: ignore[dict-item]


def test_the_clock_is_the_callers(bus: InProcessEventBus) -> None:
    now = datetime(2025, 1, 2, tzinfo=UTC)
    session = Session(bus=bus, clock=lambda: now)

    assert session.created_at == session.snapshot().created_at == now
    assert Session(bus=bus).created_at.tzinfo is UTC


def test_parents_know_their_children(bus: InProcessEventBus) -> None:
    parent = Session(bus=bus)
    children = [Session(bus=bus, parent=parent) for _ in range(3)]

    assert parent.parent is None
    assert parent.children == tuple(children)
    assert [child.parent for child in children] == [parent] * 3


def test_it_shows_who_it_is(session: Session) -> None:
    session.mutate(Note).seed(Note("a"))

    assert repr(session) == "<Session s1 with 1 slices>"


def test_it_knows_its_types(session: Session) -> None:
    session.mutate(Plan).register(AddStep, add_step)
    session.mutate(Note).seed(Note("a"))

    telemetry = {ToolInvoked, PromptRendered, PromptExecuted}
    assert session.types == {Plan, AddStep, Note} | telemetry


# Cloning


def test_a_clone_has_the_values_and_reducers_and_another_id(
    session: Session, bus: InProcessEventBus
) -> None:
    session.mutate(Plan).register(AddStep, add_step)
    session.mutate(Plan).dispatch(AddStep("one"))
    clone = session.clone(bus=bus)
    clone.mutate(Plan).dispatch(AddStep("two"))

    assert clone.session_id != session.session_id
    assert clone.query(Plan).latest() == Plan("untitled", (Note("one"), Note("two")))
    assert session.query(Plan).latest() == Plan("untitled", (Note("one"),))
    clone.mutate(Plan).register(AddStep, broken)
    session.mutate(Plan).dispatch(AddStep("three"))
    assert session.query(Plan).latest() == Plan("untitled", (Note("one"), Note("three")))


def test_a_clone_listens_on_its_own_bus(session: Session, bus: InProcessEventBus) -> None:
    other = InProcessEventBus()
    clone = session.clone(bus=other)
    bus.publish(called(session))
    other.publish(called(clone))
    other.publish(called(clone))

    assert clone.bus is other
    assert len(session.query(ToolInvoked).all()) == 1
    assert len(clone.query(ToolInvoked).all()) == 2


def test_a_clone_is_a_child_only_if_asked(session: Session, bus: InProcessEventBus) -> None:
    alone = session.clone(bus=bus)
    child = session.clone(bus=bus, parent=session)

    assert alone.parent is None
    assert child.parent is session
    assert session.children == (child,)


def test_a_clone_keeps_tags_and_clock_unless_others_are_given(bus: InProcessEventBus) -> None:
    then, now = datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 2, tzinfo=UTC)
    session = Session(bus=bus, tags={"a": "1"}, clock=lambda: then)
    same = session.clone(bus=bus)
    other = session.clone(bus=bus, session_id="mine", tags={"b": "2"}, clock=lambda: now)

    assert (same.tags, same.created_at) == ({"a": "1"}, then)
    assert (other.tags, other.created_at, other.session_id) == ({"b": "2"}, now, "mine")


def test_a_clone_never_has_the_id_of_its_original(session: Session, bus: InProcessEventBus) -> None:
    with pytest.raises(SessionError, match="cannot have the id of its original, s1"):
        session.clone(bus=bus, session_id="s1")
