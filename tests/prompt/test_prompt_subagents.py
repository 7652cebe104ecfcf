"""Subagents side by side under both levels of isolation, adapters, and the scripted model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from podbot.errors import Kind, PromptError
from podbot.prompt import (
    Answer,
    Cancellation,
    Deadline,
    Delegation,
    DispatchSubagentsResult,
    MarkdownSection,
    Prompt,
    ScriptedCall,
    ScriptedModel,
    Section,
    SubagentIsolationLevel,
    SubagentResult,
    SubagentsSection,
    Tool,
    ToolContext,
    ToolResult,
    Transcript,
    dispatch_subagents,
    execute,
)
from podbot.runtime.events import EventBus, PromptExecuted, PromptRendered, ToolInvoked
from podbot.runtime.session import Session
from podbot.tools import (
    HostMount,
    UnsafeLocalSandboxConfig,
    UnsafeLocalSandboxSection,
    VirtualFileSystem,
)

NO, FULL = SubagentIsolationLevel.NO_ISOLATION, SubagentIsolationLevel.FULL_ISOLATION
BOTH = pytest.mark.parametrize("isolation", [NO, FULL], ids=lambda level: level.name)


@dataclass(frozen=True, slots=True)
class Note:
    text: str


class Desk(Section):
    """Holds papers outside of the session, in the way sections hold sandboxes."""

    def __init__(self, session: Session, made: list[Desk] | None = None):
        self.papers: list[str] = []
        self.closed = False
        self.made = [] if made is None else made
        self.made.append(self)
        super().__init__(
            key="desk",
            title="Desk",
            template="Take notes with `note`.",
            tools=[Tool[Note, Note](name="note", description="Note it.", handler=self.note)],
            session=session,
        )

    def note(self, params: Note, *, context: ToolContext) -> ToolResult[Note]:
        assert context.session is self.session
        if params.text == "fail":
            context.session.mutate(Note).append(Note("half"))
            return ToolResult("failed", None, success=False)
        self.papers.append(params.text)
        return ToolResult("noted", params)

    def clone(self, *, session: Session, bus: EventBus) -> Desk:
        return Desk(session, self.made)

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Runs:
    """An adapter that is a function of the prompt's text."""

    act: Callable[[Prompt, Session, str, Cancellation | None], str]
    name: str = "runs"

    def run(
        self,
        prompt: Prompt,
        session: Session,
        *,
        deadline: Deadline | None = None,
        cancellation: Cancellation | None = None,
    ) -> Answer:
        text = prompt.render(session=session).text
        return Answer(self.act(prompt, session, text, cancellation))


def task_in(text: str) -> str:
    """The first word of the task that a subagent was given."""
    assert text.startswith("## Your task\n\n")
    return text.split("\n\n")[1]


def prompt_of(*sections: Section) -> Prompt:
    return Prompt(ns="tests", key="delegating", sections=sections)


def tasks(*texts: str) -> list[Delegation]:
    return [Delegation(text) for text in texts]


@BOTH
def test_subagents_run_side_by_side_and_results_come_in_order(
    session: Session, isolation: SubagentIsolationLevel
) -> None:
    everyone = threading.Barrier(4, timeout=60)  # breaks unless all four are there at once

    def act(prompt: Prompt, own: Session, text: str, cancellation: object) -> str:
        task = task_in(text)
        everyone.wait()
        prompt.call("note", {"text": task}, session=own)
        return f"answer to {task}"

    desk = Desk(session)
    results = dispatch_subagents(
        tasks("a", "b", "c", "d"), isolation, adapter=Runs(act), prompt=prompt_of(desk)
    )

    assert [result.text for result in results] == [f"answer to {task}" for task in "abcd"]
    assert [result.task for result in results] == list("abcd")
    assert all(result.success for result in results)


def note_own_task(prompt: Prompt, own: Session, text: str, cancellation: object) -> str:
    prompt.call("note", {"text": task_in(text)}, session=own)
    prompt.call("note", {"text": "fail"}, session=own)
    return "done"


def test_without_isolation_all_work_in_the_parents_session(session: Session) -> None:
    desk = Desk(session)
    session.mutate(Note).append(Note("before"))

    results = dispatch_subagents(
        tasks("a", "b", "c"), NO, adapter=Runs(note_own_task), prompt=prompt_of(desk)
    )

    assert {result.session_id for result in results} == {session.session_id}
    assert sorted(desk.papers) == ["a", "b", "c"]
    assert desk.made == [desk] and not desk.closed
    assert {note.text for note in session.query(Note).all()} == {"before", "a", "b", "c"}
    assert len(session.query(ToolInvoked).all()) == 6
    assert len(session.query(PromptRendered).all()) == 3
    assert {each.adapter for each in session.query(PromptExecuted).all()} == {"runs"}
    assert session.children == ()


def test_with_full_isolation_nothing_leaks(session: Session) -> None:
    desk = Desk(session)
    session.mutate(Note).append(Note("before"))
    heard: list[object] = []
    for kind in (ToolInvoked, PromptRendered, PromptExecuted):
        session.bus.subscribe(kind, heard.append)
    seen: dict[str, tuple[Note, ...]] = {}

    def act(prompt: Prompt, own: Session, text: str, cancellation: object) -> str:
        assert own.bus is not session.bus
        note_own_task(prompt, own, text, cancellation)
        seen[task_in(text)] = own.query(Note).all()
        return "done"

    results = dispatch_subagents(
        tasks("a", "b", "c"), FULL, adapter=Runs(act), prompt=prompt_of(desk)
    )

    ids = {result.session_id for result in results}
    assert len(ids) == 3 and session.session_id not in ids
    # Each began with what the parent knew, and saw only its own work.
    assert seen == {task: (Note("before"), Note(task)) for task in "abc"}
    assert desk.papers == [] and not desk.closed
    assert session.query(Note).all() == (Note("before"),)
    assert heard == []
    clones = desk.made[1:]
    assert sorted(clone.papers[0] for clone in clones) == ["a", "b", "c"]
    assert all(clone.closed for clone in clones)
    assert {child.session_id for child in session.children} == ids
    assert all(child.parent is session for child in session.children)


@BOTH
def test_one_failure_cancels_nobody(
    session: Session, isolation: SubagentIsolationLevel, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()

    def act(prompt: Prompt, own: Session, text: str, cancellation: Any) -> str:
        match task_in(text):
            case "raise":
                failed.set()
                raise RuntimeError("x" * 5000)
            case "refuse":
                raise PromptError("no model", remedy="log in")
            case task:
                assert failed.wait(60)
                assert not cancellation.cancelled
                return task

    results = dispatch_subagents(
        tasks("raise", "a", "refuse", "b"),
        isolation,
        adapter=Runs(act),
        prompt=prompt_of(Desk(session)),
        session=session,
    )

    assert [result.success for result in results] == [False, True, False, True]
    assert results[0].text.startswith("RuntimeError: xxx") and len(results[0].text) < 1100
    assert results[2].text == "no model\n  remedy: log in"
    assert "subagent_failed" in caplog.text


@BOTH
@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
def test_one_that_exits_ends_nobody_else(
    session: Session, isolation: SubagentIsolationLevel, error: BaseException
) -> None:
    failed = threading.Event()

    def act(prompt: Prompt, own: Session, text: str, cancellation: Any) -> str:
        if task_in(text) == "exit":
            failed.set()
            raise error
        assert failed.wait(60)
        assert not cancellation.cancelled
        return "stayed"

    results = dispatch_subagents(
        tasks("exit", "a"),
        isolation,
        adapter=Runs(act),
        prompt=prompt_of(Desk(session)),
        session=session,
    )

    assert [result.success for result in results] == [False, True]
    assert results[0].text.startswith(type(error).__name__)


def test_a_section_that_cannot_be_closed_does_not_lose_the_answer(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(Desk):
        def clone(self, *, session: Session, bus: EventBus) -> Desk:
            return Stuck(session, self.made)

        def close(self) -> None:
            raise OSError("stuck")

    (result,) = dispatch_subagents(
        tasks("a"),
        FULL,
        adapter=ScriptedModel([], "the answer"),
        prompt=prompt_of(Stuck(session)),
    )

    assert (result.success, result.text) == (True, "the answer")
    assert "close_failed" in caplog.text


def test_a_section_that_cannot_be_cloned_is_a_failing_result(session: Session) -> None:
    prompt = prompt_of(Section(key="bound", title="Bound", session=session))

    (result,) = dispatch_subagents(tasks("a"), FULL, adapter=ScriptedModel([]), prompt=prompt)

    assert not result.success
    assert "does not say how to clone it" in result.text


@BOTH
def test_a_cancelled_dispatch_begins_nothing_more(
    session: Session, isolation: SubagentIsolationLevel
) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    desk = Desk(session)

    results = dispatch_subagents(
        tasks("a", "b"),
        isolation,
        adapter=ScriptedModel([]),
        prompt=prompt_of(desk),
        cancellation=cancellation,
    )

    assert [result.success for result in results] == [False, False]
    assert "cancelled before it began" in results[0].text
    assert desk.made == [desk]


@pytest.mark.parametrize("count", [0, 33])
def test_so_many_subagents_are_refused(session: Session, count: int) -> None:
    with pytest.raises(PromptError, match=f"{count} subagents") as caught:
        dispatch_subagents(
            tasks(*"x" * count), adapter=ScriptedModel([]), prompt=prompt_of(Desk(session))
        )
    assert "1 to 32" in str(caught.value.remedy)


def test_a_session_is_needed() -> None:
    text = MarkdownSection(key="a", title="A", template="")
    with pytest.raises(PromptError, match="to which session"):
        dispatch_subagents(tasks("a"), adapter=ScriptedModel([]), prompt=prompt_of(text))


def test_ctrl_c_stops_all_subagents_and_is_passed_on() -> None:
    program = """
import os
from podbot.prompt import *
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session

class Waiting:
    name = "waiting"
    def run(self, prompt, session, *, deadline=None, cancellation=None):
        os.write(1, b"begun\\n")
        assert cancellation.wait(60)
        os.write(1, b"stopped\\n")
        return Answer("late")

prompt = Prompt(ns="t", key="k", sections=[MarkdownSection(key="a", title="A", template="")])
try:
    dispatch_subagents([Delegation("a"), Delegation("b")], adapter=Waiting(), prompt=prompt,
                       session=Session(bus=InProcessEventBus()))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
        os.kill(process.pid, signal.SIGINT)
        rest = process.stdout.read()

    assert rest == "stopped\nstopped\ninterrupted\n"
    assert process.returncode == 0


# With real workspaces


def test_subagents_share_a_workspace_or_have_their_own(session: Session, tmp_path: Path) -> None:
    (tmp_path / "seed.txt").write_text("planted")
    config = UnsafeLocalSandboxConfig(
        mounts=[HostMount(tmp_path / "seed.txt")], allowed_host_roots=[tmp_path]
    )

    def act(prompt: Prompt, own: Session, text: str, cancellation: object) -> str:
        name = task_in(text)
        for arguments in (
            {"file_path": "same.txt", "content": name},
            {"file_path": f"{name}.txt", "content": name},
        ):
            prompt.call("write_file", arguments, session=own)
        prompt.call("shell_execute", {"command": ["touch", f"{name}.touched"]}, session=own)
        listed = prompt.call("glob", {"pattern": "*"}, session=own).value
        return " ".join(sorted(str(path) for path in listed.matches))  # type: ignore[attr-defined]

    with prompt_of(UnsafeLocalSandboxSection(session=session, config=config)) as prompt:
        apart = dispatch_subagents(tasks(*"abcd"), FULL, adapter=Runs(act), prompt=prompt)
        assert [result.text for result in apart] == [
            f"{name}.touched {name}.txt same.txt seed.txt" for name in "abcd"
        ]
        assert session.query(ToolInvoked).all() == ()
        before = prompt.call("glob", {"pattern": "*"}).render()
        assert before.endswith("\n\nseed.txt")

        dispatch_subagents(tasks(*"abcd"), NO, adapter=Runs(act), prompt=prompt)
        after = prompt.call("glob", {"pattern": "*.t*"}).value
        names = sorted(str(path) for path in after.matches)  # type: ignore[attr-defined]

    assert names == sorted(
        ["same.txt", "seed.txt", *(f"{n}.{end}" for n in "abcd" for end in ("txt", "touched"))]
    )
    failed = [event for event in session.query(ToolInvoked).all() if not event.success]
    assert len(failed) == 3  # one was first to make the file they all wanted
    files = session.query(VirtualFileSystem).latest()
    assert files is not None
    assert sorted(str(file.path) for file in files.files) == names


# As a tool


def test_a_model_can_delegate(session: Session) -> None:
    subagent = Runs(note_own_task)
    desk = Desk(session)
    prompt = prompt_of(desk, SubagentsSection(adapter=subagent))

    result = prompt.call(
        "dispatch_subagents",
        '{"delegations": [{"task": "first"}, {"task": "second"}]}',
        session=session,
    )

    assert result.success
    assert isinstance(result.value, DispatchSubagentsResult)
    assert result.render() == "2 of 2 tasks were done.\n\n1. done: done\n\n2. done: done"
    assert sorted(desk.papers) == ["first", "second"]
    assert "work on the same files" in prompt.render().text
    # What subagents did is theirs: calls of their own, not part of the one that delegated.
    names = [event.name for event in session.query(ToolInvoked).all()]
    assert names.count("note") == 4 and names[-1] == "dispatch_subagents"


def test_failing_tasks_are_told_to_the_model(session: Session) -> None:
    def act(prompt: Prompt, own: Session, text: str, cancellation: object) -> str:
        raise PromptError("no model")

    section = SubagentsSection(adapter=Runs(act), isolation=FULL)
    prompt = prompt_of(Desk(session), section)

    result = prompt.call("dispatch_subagents", {"delegations": [{"task": "a"}]})

    assert result.render() == "0 of 1 tasks were done.\n\n1. FAILED: no model"
    assert "nothing but its answer comes back" in prompt.render().text


@BOTH
def test_a_subagent_cannot_delegate(session: Session, isolation: SubagentIsolationLevel) -> None:
    said: list[str] = []

    def act(prompt: Prompt, own: Session, text: str, cancellation: object) -> str:
        call = prompt.call("dispatch_subagents", {"delegations": [{"task": "b"}]}, session=own)
        said.append(call.message)
        return "done"

    section = SubagentsSection(adapter=Runs(act), isolation=isolation)
    result = prompt_of(Desk(session), section).call(
        "dispatch_subagents", {"delegations": [{"task": "a"}]}
    )

    assert result.success
    assert said == ["a subagent cannot delegate\n  remedy: do the task yourself"]


def test_a_program_may_delegate_from_a_subagent(session: Session) -> None:
    def act(prompt: Prompt, own: Session, text: str, cancellation: object) -> str:
        task = task_in(text)
        if task == "inner":
            return "from within"
        (inner,) = dispatch_subagents(tasks("inner"), adapter=Runs(act), prompt=prompt, session=own)
        return inner.text

    (result,) = dispatch_subagents(
        tasks("outer"), adapter=Runs(act), prompt=prompt_of(Desk(session))
    )

    assert result == SubagentResult("outer", True, "from within", session.session_id)


@pytest.mark.parametrize(
    "arguments",
    [
        {"delegations": []},
        {"delegations": [{"task": ""}]},
        {"delegations": [{"task": "x" * 20_001}]},
        {"delegations": [{"task": "a"}] * 33},
        {"delegations": [{"task": "a", "isolation": "none"}]},
        {"delegations": "a"},
    ],
    ids=range(6),
)
def test_a_model_that_delegates_badly_is_told(session: Session, arguments: Any) -> None:
    prompt = prompt_of(Desk(session), SubagentsSection(adapter=ScriptedModel([])))

    result = prompt.call("dispatch_subagents", arguments)

    assert not result.success
    assert "- delegations" in result.message


# The scripted model


def test_a_script_is_played_as_a_model_would(session: Session) -> None:
    desk = Desk(session)
    prompt = prompt_of(desk)

    def react(seen: Transcript) -> ScriptedCall:
        assert "Take notes" in seen.prompt.text
        return ScriptedCall("note", {"text": f"after: {seen.turns[-1].shown}"})

    model = ScriptedModel(
        [
            ScriptedCall("note", {"text": "one"}),
            lambda seen: None,
            ScriptedCall("note", '{"text": 2}'),
            react,
        ],
        lambda seen: f"made {len(seen.turns)} calls",
    )
    answer = execute(model, prompt, session)

    assert answer == Answer("made 3 calls")
    assert desk.papers[0] == "one"
    assert desk.papers[1].startswith("after: the arguments of note do not fit")
    executed = session.query(PromptExecuted).latest()
    assert executed is not None
    assert (executed.adapter, executed.text) == ("scripted", "made 3 calls")
    calls = [event.call_id for event in session.query(ToolInvoked).all()]
    assert calls == ["call-1", "call-3", "call-4"]


def test_a_script_stops_when_it_is_told_to(session: Session) -> None:
    prompt = prompt_of(Desk(session))
    cancellation = Cancellation()

    def stop(seen: Transcript) -> ScriptedCall | None:
        cancellation.cancel()
        return None

    with pytest.raises(PromptError) as caught:
        execute(ScriptedModel([stop]), prompt, session, cancellation=cancellation)
    assert caught.value.kind is Kind.CANCELLED
    with pytest.raises(PromptError) as caught:
        execute(ScriptedModel([]), prompt, session, deadline=Deadline(time.monotonic() - 1))
    assert caught.value.kind is Kind.TIMEOUT
    assert session.query(PromptExecuted).all() == ()
