"""Subagents: tasks handed to further runs of a prompt, side by side.

Without isolation a subagent works in its parent's session, with its parent's sections. With full
isolation it gets a clone of the session (a new id), a bus and sections of its own; only its answer
comes back. One that fails cancels nobody, and results come in the order of the tasks.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from podbot.errors import Kind, PodbotError, PromptError, ToolValidationError
from podbot.frozen import dataclass, field
from podbot.prompt.adapter import Adapter, execute
from podbot.prompt.context import Cancellation, Deadline
from podbot.prompt.json_text import short
from podbot.prompt.prompt import Prompt
from podbot.prompt.result import ToolResult
from podbot.prompt.section import MarkdownSection, Section
from podbot.prompt.tool import Tool
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.given import expect, expect_each, expect_methods
from podbot.runtime.logging import get_logger

if TYPE_CHECKING:
    from podbot.prompt.context import ToolContext
    from podbot.runtime.events import EventBus
    from podbot.runtime.session import Session

MAX_DELEGATIONS = 32
TASK_LENGTH = 20_000
WORKERS = 8
_ERROR = 1_000
DELEGATION = "delegation"
"""The key of the section that tells a subagent its task, and tells that it is one."""

_logger = get_logger(__name__, component="prompt.subagents")


class SubagentIsolationLevel(enum.Enum):
    """What a subagent shares with its parent."""

    NO_ISOLATION = "no_isolation"
    FULL_ISOLATION = "full_isolation"


@dataclass(frozen=True, slots=True)
class Delegation:
    """A task for one subagent."""

    task: str = field(
        metadata={
            "description": "What to do, with all that is needed to do it, and what to report.",
            "min_length": 1,
            "max_length": TASK_LENGTH,
        }
    )


@dataclass(frozen=True, slots=True)
class SubagentResult:
    """What came of one task: the subagent's answer, or why there is none."""

    task: str
    success: bool
    text: str
    session_id: str

    def render(self) -> str:
        """For the model that delegated."""
        return f"{'done' if self.success else 'FAILED'}: {self.text}"


@dataclass(frozen=True, slots=True)
class _Parent:
    """What every subagent of one dispatch is made from."""

    adapter: Adapter
    prompt: Prompt
    session: Session
    isolation: SubagentIsolationLevel
    deadline: Deadline | None
    cancellation: Cancellation
    working: _Working


def dispatch_subagents(
    delegations: Sequence[Delegation],
    isolation: SubagentIsolationLevel = SubagentIsolationLevel.NO_ISOLATION,
    *,
    adapter: Adapter,
    prompt: Prompt,
    session: Session | None = None,
    deadline: Deadline | None = None,
    cancellation: Cancellation | None = None,
) -> tuple[SubagentResult, ...]:
    """Run a subagent for each task, side by side; the results in the order of the tasks.

    Each runs the prompt with its task put before it. The session is that of the prompt's sections
    unless one is given. What a subagent raises is its failing result. Ctrl-C cancels all of them
    and waits until they have stopped.
    """
    _check(delegations)
    _check_runner(adapter, isolation)
    expect(prompt, Prompt, "the prompt of the subagents", PromptError)
    own = prompt.session if session is None else session
    if own is None:
        raise PromptError(
            "nothing says to which session the subagents belong", remedy="pass session="
        )
    stop = cancellation or Cancellation()
    parent = _Parent(adapter, prompt, own, isolation, deadline, stop, _Working())
    # Threads without the caller's context: a call that a subagent makes is not part of the call
    # that delegated, so the failure of one does not take back what others did.
    with ThreadPoolExecutor(min(WORKERS, len(delegations)), "podbot-subagent") as pool:
        try:
            runs = [pool.submit(_run, parent, delegation) for delegation in delegations]
            return tuple(run.result() for run in runs)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop.cancel()
            # The pool does not know of a thread whose start was interrupted.
            parent.working.wait_for_none()
            raise


class _Working:
    """How many subagents are at work."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._number = 0

    def __enter__(self) -> None:
        with self._changed:
            self._number += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._number -= 1
            self._changed.notify_all()

    def wait_for_none(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._number == 0)


def _run(parent: _Parent, delegation: Delegation) -> SubagentResult:
    with parent.working:  # before it looks whether it was cancelled
        return _ran(parent, delegation)


def _ran(parent: _Parent, delegation: Delegation) -> SubagentResult:
    session_id = parent.session.session_id
    try:
        with _place(parent) as (prompt, session):
            session_id = session.session_id
            answer = execute(
                parent.adapter,
                _with_task(prompt, delegation.task),
                session,
                deadline=parent.deadline,
                cancellation=parent.cancellation,
            )
    except PodbotError as error:
        return SubagentResult(delegation.task, False, str(error), session_id)
    except BaseException as error:
        # Also one that exits, or whose event loop was cancelled: it runs in a thread of ours, where
        # neither Ctrl-C nor a signal arrives, and it is no reason to end the others.
        _logger.error("subagent_failed", error=error, session_id=session_id)
        text = short(f"{type(error).__name__}: {error}", _ERROR)
        return SubagentResult(delegation.task, False, text, session_id)
    return SubagentResult(delegation.task, True, answer.text, session_id)


@contextmanager
def _place(parent: _Parent) -> Iterator[tuple[Prompt, Session]]:
    """The prompt and the session that a subagent works in; ended afterwards if they are its own."""
    if parent.cancellation.cancelled:
        raise PromptError("the subagent was cancelled before it began", kind=Kind.CANCELLED)
    if parent.isolation is SubagentIsolationLevel.NO_ISOLATION:
        yield parent.prompt, parent.session
        return
    session = parent.session.clone(bus=InProcessEventBus(), parent=parent.session)
    try:
        prompt = parent.prompt.clone(session=session, bus=session.bus)
        try:
            yield prompt, session
        finally:
            _end(prompt, session)
    finally:
        session.close()


def _end(prompt: Prompt, session: Session) -> None:
    try:
        prompt.close()
    except Exception as error:
        # The answer is there and is not lost for this; the section itself says what it left.
        _logger.error("close_failed", error=error, session_id=session.session_id)


def _with_task(prompt: Prompt, task: str) -> Prompt:
    """The prompt with a task put before it, in the place of an earlier one. Never closed."""
    others = [section for section in prompt.sections if section.key != DELEGATION]
    section = MarkdownSection(
        key=DELEGATION,
        title="Your task",
        template=f"{task}\n\n{_RULES}",
        accepts_overrides=False,
    )
    return Prompt(ns=prompt.ns, key=prompt.key, sections=[section, *others])


_RULES = (
    "You were given this task by another agent, which sees nothing of your work but your final "
    "answer. Do it yourself, then report what it asked for."
)


def _check_runner(adapter: Adapter, isolation: SubagentIsolationLevel) -> None:
    expect_methods(adapter, ("run",), "the adapter of the subagents", PromptError)
    expect(isolation, SubagentIsolationLevel, "the isolation of subagents", PromptError)


def _check(delegations: Sequence[Delegation]) -> None:
    expect(delegations, Sequence, "what to delegate", PromptError)
    expect_each(delegations, Delegation, "what to delegate", PromptError)
    if not 1 <= len(delegations) <= MAX_DELEGATIONS:
        raise PromptError(
            f"{len(delegations)} subagents were asked for",
            remedy=f"delegate 1 to {MAX_DELEGATIONS} tasks at once",
        )


# For models


@dataclass(frozen=True, slots=True)
class DispatchSubagentsParams:
    """What a model says to delegate."""

    delegations: tuple[Delegation, ...] = field(
        metadata={
            "description": "The tasks; they are worked on side by side.",
            "min_length": 1,
            "max_length": MAX_DELEGATIONS,
        }
    )


@dataclass(frozen=True, slots=True)
class DispatchSubagentsResult:
    """What came of each task, in their order."""

    results: tuple[SubagentResult, ...]

    def render(self) -> str:
        """For the model that delegated."""
        return "\n\n".join(
            f"{number}. {result.render()}" for number, result in enumerate(self.results, 1)
        )


class SubagentsSection(Section):
    """Lets a model delegate with the tool ``dispatch_subagents``. Subagents cannot delegate on."""

    def __init__(
        self,
        *,
        adapter: Adapter,
        isolation: SubagentIsolationLevel = SubagentIsolationLevel.NO_ISOLATION,
        key: str = "subagents",
        accepts_overrides: bool = True,
    ):
        _check_runner(adapter, isolation)
        self._adapter, self._isolation = adapter, isolation
        shares = _SHARES[isolation]
        super().__init__(
            key=key,
            title="Subagents",
            template="Hand tasks that do not depend on each other to subagents with "
            f"`dispatch_subagents`. {shares} A subagent knows only what its task says.",
            tools=[
                Tool[DispatchSubagentsParams, DispatchSubagentsResult](
                    name="dispatch_subagents",
                    description="Have subagents work on tasks side by side; gives their answers.",
                    handler=self._dispatch,
                )
            ],
            accepts_overrides=accepts_overrides,
        )

    def clone(self, *, session: Session, bus: EventBus) -> SubagentsSection:
        """Another one with the same adapter: adapters hold nothing of a session."""
        made = SubagentsSection(
            adapter=self._adapter,
            isolation=self._isolation,
            key=self.key,
            accepts_overrides=self.accepts_overrides,
        )
        made.bus = bus
        return made

    def _dispatch(
        self, params: DispatchSubagentsParams, *, context: ToolContext
    ) -> ToolResult[DispatchSubagentsResult]:
        if DELEGATION in context.prompt.places:
            raise ToolValidationError(
                "a subagent cannot delegate", kind=Kind.UNSUPPORTED, remedy="do the task yourself"
            )
        results = dispatch_subagents(
            params.delegations,
            self._isolation,
            adapter=self._adapter,
            prompt=context.prompt,
            session=context.session,
            deadline=context.deadline,
            cancellation=context.cancellation,
        )
        done = sum(result.success for result in results)
        return ToolResult(
            message=f"{done} of {len(results)} tasks were done.",
            value=DispatchSubagentsResult(results),
        )


_SHARES = {
    SubagentIsolationLevel.NO_ISOLATION: "They work on the same files and state as you, at the "
    "same time.",
    SubagentIsolationLevel.FULL_ISOLATION: "Each works on files and state of its own; nothing but "
    "its answer comes back.",
}
