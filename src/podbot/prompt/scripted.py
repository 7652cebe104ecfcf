"""A model that plays a script: for tests and examples, where no real model can be reached.

It does what an adapter of a real model does: renders the prompt, sends its arguments as JSON text,
is shown rendered results, stops when told to. Only what it says is fixed, or decided by a function
of what it has seen so far. It holds no state, so one script may be played many times at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from podbot.errors import Kind, PromptError
from podbot.frozen import dataclass, field
from podbot.prompt.adapter import Answer
from podbot.runtime.given import expect, expect_each

if TYPE_CHECKING:
    from podbot.prompt.context import Cancellation, Deadline
    from podbot.prompt.prompt import Prompt, RenderedPrompt
    from podbot.prompt.result import ToolResult
    from podbot.runtime.session import Session


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call of the script. ``arguments`` that are text are sent as they are."""

    name: str
    arguments: Mapping[str, object] | str = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """A call that was made, what it gave, and how the model was shown that."""

    call: ScriptedCall
    result: ToolResult[object]
    shown: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """What the model has seen so far."""

    prompt: RenderedPrompt
    turns: tuple[Turn, ...] = ()


Step = ScriptedCall | Callable[[Transcript], ScriptedCall | None]
"""A call, or what decides about one (None: there is nothing to do here)."""


@dataclass(frozen=True, slots=True)
class ScriptedModel:
    """An `Adapter` that makes the calls of ``steps`` and then says ``answer``."""

    steps: Sequence[Step]
    answer: str | Callable[[Transcript], str] = "Done."
    name: str = "scripted"

    def __post_init__(self) -> None:
        steps = expect_each(self.steps, object, "the steps of a script", PromptError)
        object.__setattr__(self, "steps", steps)  # an iterator could be played once only
        for number, step in enumerate(steps):
            if not callable(step):
                expect(step, ScriptedCall, f"step {number} of the script", PromptError)

    def run(
        self,
        prompt: Prompt,
        session: Session,
        *,
        deadline: Deadline | None = None,
        cancellation: Cancellation | None = None,
    ) -> Answer:
        """Play the script."""
        seen = Transcript(prompt.render(session=session))
        for number, step in enumerate(self.steps, 1):
            _check(deadline, cancellation)
            call = step(seen) if callable(step) else step
            if call is None:
                continue
            sent = call.arguments
            result = prompt.call(
                call.name,
                sent if isinstance(sent, str) else json.dumps(sent),
                session=session,
                call_id=f"call-{number}",
                deadline=deadline,
                cancellation=cancellation,
            )
            seen = Transcript(seen.prompt, (*seen.turns, Turn(call, result, result.render())))
        _check(deadline, cancellation)
        return Answer(self.answer(seen) if callable(self.answer) else self.answer)


def _check(deadline: Deadline | None, cancellation: Cancellation | None) -> None:
    if cancellation is not None and cancellation.cancelled:
        raise PromptError("the run was cancelled", kind=Kind.CANCELLED)
    if deadline is not None and deadline.remaining() == 0.0:
        raise PromptError(
            "the deadline of the run has passed", kind=Kind.TIMEOUT, remedy="allow it more time"
        )
