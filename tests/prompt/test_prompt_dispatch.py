"""`Prompt.call`: one tool call from JSON to result, and what it leaves in the session."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from podbot.errors import Kind, PromptError, SandboxError, ToolValidationError
from podbot.prompt import (
    Cancellation,
    Deadline,
    MarkdownSection,
    Progress,
    Prompt,
    Section,
    Tool,
    ToolContext,
    ToolResult,
)
from podbot.prompt._arguments import MAX_CHARACTERS
from podbot.runtime.events import InProcessEventBus, ToolInvoked
from podbot.runtime.session import Session, replace_latest


@dataclass(frozen=True, slots=True)
class Note:
    """What the tools of these tests leave in the session."""

    text: str


@dataclass(frozen=True, slots=True)
class Files:
    """Stands for the slice that a section keeps up to date."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Params:
    text: str = field(metadata={"description": "What to note."})
    how: str = "well"


Act = Callable[[Params, ToolContext], ToolResult[Note]]


class Notes(Section):
    """A section whose one tool does what the test says."""

    def __init__(self, act: Act, session: Session | None = None):
        self.act = act
        self.refreshed: list[str] = []
        self.seen_at_refresh: list[tuple[tuple[Note, ...], bool]] = []
        super().__init__(
            key="notes",
            title="Notes",
            tools=[Tool[Params, Note](name="note", description="Note it.", handler=self.run)],
            session=session,
        )

    def run(self, params: Params, *, context: ToolContext) -> ToolResult[Note]:
        return self.act(params, context)

    def refresh(self, context: ToolContext) -> None:
        self.refreshed.append(context.call_id)
        last = context.session.query(ToolInvoked).latest()
        assert last is not None
        self.seen_at_refresh.append((context.session.query(Note).all(), last.success))
        context.session.mutate(Files).seed(Files(("found",)))


def prompt_of(*sections: Section) -> Prompt:
    return Prompt(ns="tests/dispatch", key="main", sections=sections)


def noting(params: Params, context: ToolContext) -> ToolResult[Note]:
    """Changes the session by itself, then succeeds or fails as it is told."""
    context.session.mutate(Note).append(Note(f"by hand: {params.text}"))
    match params.how:
        case "well":
            return ToolResult("noted", Note(params.text))
        case "failing":
            return ToolResult("could not", Note(params.text), success=False)
        case "refused":
            raise ToolValidationError("the text is odd", remedy="send another")
        case "sandbox":
            raise SandboxError("the sandbox is gone", kind=Kind.CLOSED, remedy="open another")
        case "fault":
            raise KeyError("x" * 5000)
        case "interrupted":
            raise KeyboardInterrupt
        case _:
            return "no result"  # type: ignore[return-value]


def invoked(session: Session) -> tuple[ToolInvoked, ...]:
    return session.query(ToolInvoked).all()


# Success


def test_a_call_that_succeeds_is_recorded_and_its_value_reaches_the_slices(
    session: Session,
) -> None:
    published: list[ToolInvoked] = []
    session.bus.subscribe(ToolInvoked, published.append)
    prompt = prompt_of(Notes(noting))

    result = prompt.call("note", '{"text": "a"}', session=session, call_id="c1")

    assert result == ToolResult("noted", Note("a"))
    assert session.query(Note).all() == (Note("by hand: a"), Note("a"))
    assert published == list(invoked(session))
    (event,) = published
    assert (event.prompt_ns, event.prompt_key, event.name) == ("tests/dispatch", "main", "note")
    assert (event.params, event.result, event.call_id) == (Params("a"), result, "c1")
    assert event.session_id == session.session_id


def test_a_handler_is_told_whose_call_it_serves(session: Session) -> None:
    seen: list[ToolContext] = []
    progress: list[Progress] = []

    def act(params: Params, context: ToolContext) -> ToolResult[Note]:
        seen.append(context)
        context.report(1, 2, "half")
        return ToolResult("", None)

    prompt = prompt_of(Notes(act))
    deadline, cancellation = Deadline.after(60), Cancellation()
    prompt.call(
        "note",
        {"text": "a"},
        session=session,
        deadline=deadline,
        cancellation=cancellation,
        on_progress=progress.append,
    )
    prompt.call("note", {"text": "a"}, session=session)

    first, second = seen
    assert (first.prompt, first.session, first.bus) == (prompt, session, session.bus)
    assert (first.deadline, first.cancellation) == (deadline, cancellation)
    assert progress == [Progress(1, 2, "half")]
    assert first.call_id != second.call_id
    assert second.deadline is None and not second.cancellation.cancelled


def test_a_section_bound_to_a_session_says_which_one_is_meant(session: Session) -> None:
    other = Session(bus=InProcessEventBus())
    prompt = prompt_of(Notes(noting, session))

    assert prompt.call("note", {"text": "a"}).success
    assert len(invoked(session)) == 1
    with pytest.raises(PromptError, match="belong to session") as caught:
        prompt.call("note", {"text": "a"}, session=other)
    assert "clone" in str(caught.value.remedy)
    with pytest.raises(PromptError, match="to which session"):
        prompt_of(Notes(noting)).call("note", {"text": "a"})


# Failure


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("failing", "could not"),
        ("refused", "the text is odd\n  remedy: send another"),
        ("sandbox", "the sandbox is gone\n  remedy: open another"),
        ("fault", "the tool note failed by a fault of its own: KeyError: 'xxx"),
        ("nothing", "the tool note failed by a fault of its own: it gave no result"),
    ],
)
def test_a_call_that_fails_leaves_only_its_record(
    session: Session, how: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    section = Notes(noting)
    prompt = prompt_of(section)
    session.mutate(Note).append(Note("before"))

    result = prompt.call("note", {"text": "a", "how": how}, session=session, call_id="c1")

    assert not result.success
    assert result.message.startswith(told)
    assert len(result.message) < 1200
    assert session.query(Note).all() == (Note("before"),)
    (event,) = invoked(session)
    assert event.result is result and event.params == Params("a", how)
    # Only then the section looks, and what it finds stays.
    assert section.seen_at_refresh == [((Note("before"),), False)]
    assert session.query(Files).latest() == Files(("found",))


def test_a_fault_of_a_handler_is_logged_with_its_traceback(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    prompt_of(Notes(noting)).call("note", {"text": "a", "how": "fault"}, session=session)

    (record,) = caplog.records
    assert "tool_failed" in record.message and "tool=note" in record.message
    assert "in noting" in str(record.exc_text)


def test_a_refresh_that_fails_does_not_replace_the_answer(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Notes):
        def refresh(self, context: ToolContext) -> None:
            raise OSError("gone")

    result = prompt_of(Broken(noting)).call(
        "note", {"text": "a", "how": "failing"}, session=session
    )

    assert result.message == "could not"
    assert "refresh_failed" in caplog.text


def test_ctrl_c_takes_back_what_was_done_and_is_recorded(session: Session) -> None:
    section = Notes(noting)
    with pytest.raises(KeyboardInterrupt):
        prompt_of(section).call("note", {"text": "a", "how": "interrupted"}, session=session)

    assert session.query(Note).all() == ()
    (event,) = invoked(session)
    assert "was interrupted" in event.result.message
    assert section.refreshed == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"text": "a", "extra": 1}, '"extra": is no parameter'),
        ({"text": 1}, "text: expected a string, got the number 1"),
        ({}, "text: is required: a string (What to note.)"),
        ({"text": float("nan")}, "got the number nan"),
        ('{"text": NaN}', "NaN is not a JSON number"),
        ("not json", "are not valid JSON"),
        ('{"text": "a", "text": "b"}', "comes twice"),
        ({"text": "x" * 10_000_000}, "is too long"),
        ('{"text": "' + "x" * 10_000_000 + '"}', f"{MAX_CHARACTERS} are allowed"),
        ({"text": "\udfff"}, "half of a character"),
        ([1], "expected an object"),
        (None, "text: is required"),
        ({"text": "a", "how": ["x"]}, "how: expected a string"),
        ({"text": "a", "how": {"x" * 10_000_000: None}}, "how: expected a string"),
        ({"text": "a", **{f"n{number}": number for number in range(100)}}, "no parameter"),
    ],
    ids=range(15),
)
def test_bad_arguments_tell_the_model_how_to_correct_itself_and_change_nothing(
    session: Session, arguments: Any, told: str
) -> None:
    def never(params: Params, context: ToolContext) -> ToolResult[Note]:
        raise AssertionError("called all the same")

    section = Notes(never)
    session.mutate(Note).append(Note("before"))

    result = prompt_of(section).call("note", arguments, session=session)

    assert not result.success and result.value is None
    assert told in result.message
    assert "remedy: " in result.message
    assert len(result.message) < 5000
    assert session.query(Note).all() == (Note("before"),)
    (event,) = invoked(session)
    assert len(json.dumps(event.params)) < 5000  # the record is bounded, too
    assert section.refreshed == []  # nothing ran, so there is nothing to look for


@dataclass(frozen=True, slots=True)
class Faulty:
    text: str

    def __post_init__(self) -> None:
        raise ZeroDivisionError("a fault of the type itself")


def test_a_parameter_type_that_is_at_fault_itself_is_a_failing_result(session: Session) -> None:
    def act(params: Faulty, *, context: ToolContext) -> ToolResult[None]:
        raise AssertionError("called all the same")

    tool = Tool[Faulty, None](name="faulty", description="F.", handler=act)
    prompt = prompt_of(MarkdownSection(key="a", title="A", template="", tools=[tool]))

    result = prompt.call("faulty", {"text": "a"}, session=session)

    assert "by a fault of its own: ZeroDivisionError" in result.message
    assert not invoked(session)[0].success


@pytest.mark.parametrize("name", ["nope", "", "NOTE", "x" * 10_000_000, None, 3])
def test_an_unknown_tool_is_answered_with_the_names_there_are(session: Session, name: Any) -> None:
    result = prompt_of(Notes(noting)).call(name, {"text": "a"}, session=session)

    assert not result.success
    assert "there is no tool" in result.message and "the tools are: note." in result.message
    assert len(result.message) < 300
    (event,) = invoked(session)
    assert len(event.name) < 100


def test_odd_arguments_for_an_unknown_tool_are_kept_shortly(session: Session) -> None:
    prompt = prompt_of(Notes(noting))
    for arguments in (b"bytes", "x" * 5000, {"a": 1, "b": None, "c": 0.5, "d": "y" * 5000}):
        prompt.call("nope", arguments, session=session)  # type: ignore[arg-type]

    kept = [event.params for event in invoked(session)]
    assert kept[0] == "(bytes)"
    assert len(str(kept[1])) == 2003
    assert str(kept[2]).startswith('{"a": (int), "b": None, "c": 0.5, "d": "yyy')


@pytest.mark.parametrize("name", ["note", "nope"])
def test_names_of_arguments_that_cannot_be_written_are_a_failing_result(
    session: Session, name: str
) -> None:
    result = prompt_of(Notes(noting)).call(name, {10**5000: 1}, session=session)  # type: ignore[dict-item]

    assert not result.success
    assert invoked(session)[0].params == "(dict)"


def test_a_call_id_of_the_model_is_kept_shortly(session: Session) -> None:
    prompt_of(Notes(noting)).call("note", {"text": "a"}, session=session, call_id="x" * 10_000)

    assert len(str(invoked(session)[0].call_id)) < 200


# Deadlines and cancellation


def test_a_call_after_its_deadline_is_not_begun(session: Session) -> None:
    result = prompt_of(Notes(noting)).call(
        "note", {"text": "a"}, session=session, deadline=Deadline.after(-1)
    )

    assert not result.success and "deadline" in result.message
    assert session.query(Note).all() == ()


def test_a_cancelled_call_is_not_begun(session: Session) -> None:
    cancellation = Cancellation()
    cancellation.cancel()

    result = prompt_of(Notes(noting)).call(
        "note", {"text": "a"}, session=session, cancellation=cancellation
    )

    assert not result.success and "was cancelled" in result.message


def test_what_fails_because_it_was_cancelled_says_so(session: Session) -> None:
    def act(params: Params, context: ToolContext) -> ToolResult[Note]:
        cancellation.cancel()
        raise SandboxError("the command was killed", kind=Kind.GUEST_LOST)

    cancellation = Cancellation()
    result = prompt_of(Notes(act)).call(
        "note", {"text": "a"}, session=session, cancellation=cancellation
    )

    assert result.message == "the call of note was cancelled: the command was killed"


# Calls within calls, calls side by side


def test_a_call_within_a_call_is_part_of_it(session: Session) -> None:
    def act(params: Params, context: ToolContext) -> ToolResult[Note]:
        if params.how == "inner":
            return noting(Params(params.text), context)
        inner = context.prompt.call("note", {"text": "in", "how": "inner"}, session=context.session)
        assert inner.success
        return ToolResult("outer", Note("out"), success=params.how == "well")

    prompt = prompt_of(Notes(act))

    prompt.call("note", {"text": "a", "how": "failing"}, session=session)
    assert session.query(Note).all() == ()
    assert [event.success for event in invoked(session)] == [False]

    prompt.call("note", {"text": "a"}, session=session)
    assert session.query(Note).all() == (Note("by hand: in"), Note("in"), Note("out"))
    assert [event.success for event in invoked(session)] == [False, True, True]


def test_a_failing_call_takes_back_nothing_of_others(session: Session) -> None:
    begun, may_fail = threading.Event(), threading.Event()

    def act(params: Params, context: ToolContext) -> ToolResult[Note]:
        if params.text != "slow":
            return noting(params, context)
        context.session.mutate(Note).append(Note("of the one that fails"))
        begun.set()
        assert may_fail.wait(60)
        return ToolResult("no", None, success=False)

    prompt = prompt_of(Notes(act))
    session.mutate(Note).append(Note("before"))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(prompt.call, "note", {"text": "slow"}, session=session)
        assert begun.wait(60)
        prompt.call("note", {"text": "other"}, session=session)
        may_fail.set()
        assert not slow.result(60).success

    assert session.query(Note).all() == (Note("before"), Note("by hand: other"), Note("other"))
    assert [event.success for event in invoked(session)] == [True, False]


@dataclass(frozen=True, slots=True)
class Count:
    """How many notes there were."""

    number: int


def test_32_threads_on_one_prompt_lose_no_event(session: Session) -> None:
    def count(values: Any, event: Note, *, context: Any) -> Iterator[Count]:
        yield Count(values[-1].number + 1 if values else 1)

    session.mutate(Count).register(Note, count)
    session.mutate(Note).register(Note, replace_latest)

    def dispatching(params: Params, context: ToolContext) -> ToolResult[Note]:
        context.session.mutate().dispatch(Note(params.text))
        return ToolResult("x", Note(params.text), success=params.how == "well")

    prompt = prompt_of(Notes(dispatching))

    def work(number: int) -> None:
        for each in range(25):
            how = "badly" if each % 5 == 0 else "well"
            text = f"{number}.{each}"
            result = prompt.call("note", {"text": text, "how": how}, session=session, call_id=text)
            assert result.value == Note(text)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(work, range(32)))

    events = invoked(session)
    assert len(events) == len({event.call_id for event in events}) == 32 * 25
    assert all(event.result.value == Note(str(event.call_id)) for event in events)
    succeeded = 32 * 20
    # Each that succeeded counted twice, by hand and by its result; the others not at all.
    assert session.query(Count).latest() == Count(2 * succeeded)


# Async


def test_the_async_twin_does_the_same(session: Session) -> None:
    prompt = prompt_of(Notes(noting, session))

    async def run() -> list[ToolResult[object]]:
        calls = [prompt.acall("note", {"text": str(number)}) for number in range(5)]
        return await asyncio.gather(*calls, prompt.acall("nope"))

    *results, unknown = asyncio.run(run())

    assert [result.value for result in results] == [Note(str(number)) for number in range(5)]
    assert not unknown.success
    assert len(invoked(session)) == 6


def test_cancelling_the_task_cancels_the_call(session: Session) -> None:
    begun, ended = threading.Event(), threading.Event()

    def act(params: Params, context: ToolContext) -> ToolResult[Note]:
        context.session.mutate(Note).append(Note("half"))
        begun.set()
        assert context.cancellation.wait(60)
        ended.set()
        context.check()
        return ToolResult("", None)

    prompt = prompt_of(Notes(act, session))

    async def run() -> None:
        task = asyncio.create_task(prompt.acall("note", {"text": "a"}))
        assert await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())  # waits for its threads

    assert ended.is_set()
    assert session.query(Note).all() == ()
    (event,) = invoked(session)
    assert "was cancelled" in event.result.message


def test_a_markdown_section_may_bring_tools(session: Session) -> None:
    def idle(params: None, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult("idle", None)

    tool = Tool[None, None](name="idle", description="Wait.", handler=idle)
    prompt = prompt_of(MarkdownSection(key="a", title="A", template="x", tools=[tool]))

    assert prompt.call("idle", session=session).render() == "idle"
    assert not prompt.call("idle", '{"x": 1}', session=session).success
