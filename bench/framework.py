"""Tool calls: what parsing, dispatch, events and reducers add to what a tool does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from bench.commands import bare
from bench.measure import Side, Spread, race
from bench.rows import Row, Target
from bench.setting import Setting
from podbot.prompt import Prompt, Section, Tool, ToolContext, ToolResult
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.runtime.session.reducers import ReducerContext, append
from podbot.runtime.session.slices import Slice

CALLS = 10_000
PART = 1_000


@dataclass(frozen=True, slots=True)
class Note:
    """What a model sends, and what comes back: a few fields of the usual types."""

    path: str
    line: int = 1
    text: str | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Latest:
    """A slice that keeps one value."""

    note: Note


def tool_call(setting: Setting) -> list[Row]:
    """A tool call through a prompt and a session, less the tool, beside a bare true."""
    prompt, numbers = _prompt(), count()
    session = _session()

    def ours() -> None:
        result = prompt.call("note", _arguments(next(numbers)), session=session)
        assert result.success, result

    spread = race({"ours": Side(ours), "true": Side(bare)}, setting.pace(400))
    return [
        Row("tool-call", "a tool call, without the tool", spread["ours"], "ms", spread["true"],
            "subprocess.run", Target(0.3))
    ]  # fmt: skip


def tool_calls(setting: Setting) -> list[Row]:
    """The last thousand of 10,000 tool calls in one session, beside the first thousand."""
    total = CALLS // 5 if setting.quick else CALLS
    parts: list[list[float]] = []
    for _ in range(3):
        prompt, session = _prompt(), _session()
        parts.append([_part(prompt, session, start) for start in range(0, total, PART)])
        assert len(session.query(Note).all()) == total
    first, last = (Spread.of([each[at] for each in parts]) for at in (0, -1))
    what = f"the last {PART:,} of {total:,} tool calls"
    return [Row("tool-calls", what, last, "ms", first, f"the first {PART:,}", Target(1.5))]


def _part(prompt: Prompt, session: Session, start: int) -> float:
    begun = time.perf_counter()
    for number in range(start, start + PART):
        prompt.call("note", _arguments(number), session=session)
    return (time.perf_counter() - begun) * 1000


def _arguments(number: int) -> str:
    return json.dumps({"path": f"src/file{number}.py", "line": number, "words": ["a", "b"]})


def _prompt() -> Prompt:
    def note(params: Note, *, context: ToolContext) -> ToolResult[Note]:
        return ToolResult("noted", params)

    tool = Tool(name="note", description="Note something.", handler=note)
    section = Section(key="notes", title="Notes", template="Notes.", tools=(tool,))
    return Prompt(ns="bench", key="calls", sections=[section])


def _session() -> Session:
    session = Session(bus=InProcessEventBus())
    session.mutate(Note).register(Note, append)
    session.mutate(Latest).register(Note, _keep_latest)
    return session


def _keep_latest(
    values: Slice[Latest], event: Note, *, context: ReducerContext
) -> Iterable[Latest]:
    return (Latest(event),)
