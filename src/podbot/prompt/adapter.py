"""The seam to models: an adapter runs a prompt, turn by turn, until there is an answer.

An adapter renders the prompt, shows it to its model, hands each tool call to `Prompt.call` and
shows what came back. `execute` runs one and records that it ran. No model is known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from podbot.errors import PromptError
from podbot.frozen import dataclass
from podbot.runtime.events import PromptExecuted
from podbot.runtime.given import expect_methods

if TYPE_CHECKING:
    from podbot.prompt.context import Cancellation, Deadline
    from podbot.prompt.prompt import Prompt
    from podbot.runtime.session import Session


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said in the end, and the typed answer if one was asked for."""

    text: str
    value: object = None


class Adapter(Protocol):
    """Anything that can run a prompt.

    One adapter may run several prompts at once, each in its own thread. It stops, by raising, when
    the call is cancelled or the deadline has passed; what it raises reaches the caller.
    """

    @property
    def name(self) -> str:
        """What runs the prompt, for the record: a provider, a model."""
        ...

    def run(
        self,
        prompt: Prompt,
        session: Session,
        *,
        deadline: Deadline | None = None,
        cancellation: Cancellation | None = None,
    ) -> Answer:
        """Show the prompt to the model and serve its tool calls until it answers."""
        ...


def execute(
    adapter: Adapter,
    prompt: Prompt,
    session: Session,
    *,
    deadline: Deadline | None = None,
    cancellation: Cancellation | None = None,
) -> Answer:
    """Run a prompt to its answer, and publish `PromptExecuted` on the session's bus."""
    expect_methods(adapter, ("run",), "the adapter", PromptError)
    answer = adapter.run(prompt, session, deadline=deadline, cancellation=cancellation)
    session.bus.publish(
        PromptExecuted(
            prompt_ns=prompt.ns,
            prompt_key=prompt.key,
            adapter=adapter.name,
            text=answer.text,
            value=answer.value,
            session_id=session.session_id,
        )
    )
    return answer
