"""`Prompt`: sections put together, what a model is told and which tools it may call.

A prompt renders Markdown and the tool set, hands calls to the tool they name, and owns its
sections: closing it closes them. It knows no model and no sandbox; an adapter runs it, sections
bring what is live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from podbot.frozen import dataclass
from podbot.prompt.context import Cancellation, Deadline, Progress
from podbot.prompt.formats import ToolFormat, tools_for
from podbot.prompt.result import Json, ToolResult
from podbot.prompt.section import Section, clone_all, close_all
from podbot.prompt.tool import AnyTool

if TYPE_CHECKING:
    from podbot.prompt.overrides import IgnoredOverride, PromptOverrides
    from podbot.runtime.events import EventBus
    from podbot.runtime.session import Session

Arguments = str | Mapping[str, object] | None
"""What a model sent: JSON text, or the object in it; None for nothing."""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """What a model is told. ``ignored`` lists overrides that no longer fit."""

    ns: str
    key: str
    text: str
    tools: tuple[AnyTool, ...]
    ignored: tuple[IgnoredOverride, ...] = ()

    def tools_for(self, form: ToolFormat) -> list[dict[str, Json]]:
        """The tools as a model provider wants them."""
        return tools_for(self.tools, form)


class Prompt:
    """Sections under a namespace and a key. Use it as a context manager, or call `close`."""

    def __init__(self, *, ns: str, key: str, sections: Sequence[Section]):
        self.ns, self.key, self.sections = ns, key, tuple(sections)

    @property
    def tools(self) -> tuple[AnyTool, ...]:
        """Every tool, in the order of the sections."""
        raise NotImplementedError

    @property
    def session(self) -> Session | None:
        """The session its sections are bound to, if they are."""
        raise NotImplementedError

    def render(
        self, *, session: Session | None = None, overrides: PromptOverrides | None = None
    ) -> RenderedPrompt:
        """The Markdown and the tools; publishes `PromptRendered` on the session's bus."""
        raise NotImplementedError

    def tools_for(self, form: ToolFormat) -> list[dict[str, Json]]:
        """The tools as a model provider wants them: openai, openai-responses, anthropic, mcp."""
        return tools_for(self.tools, form)

    def call(
        self,
        name: str,
        arguments: Arguments = None,
        *,
        session: Session | None = None,
        call_id: str | None = None,
        deadline: Deadline | None = None,
        cancellation: Cancellation | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> ToolResult[object]:
        """Have a tool called; whatever a model did wrong or a tool raised is a failing result."""
        raise NotImplementedError

    async def acall(
        self,
        name: str,
        arguments: Arguments = None,
        *,
        session: Session | None = None,
        call_id: str | None = None,
        deadline: Deadline | None = None,
        cancellation: Cancellation | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> ToolResult[object]:
        """`call` in a worker thread; cancelling the task sets the cancellation."""
        raise NotImplementedError

    def clone(self, *, session: Session, bus: EventBus) -> Prompt:
        """The same prompt for another session, sharing nothing live with this one."""
        return Prompt(
            ns=self.ns, key=self.key, sections=clone_all(self.sections, session=session, bus=bus)
        )

    def close(self) -> None:
        """Close every section."""
        close_all(self.sections)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
