"""One tool call, from what a model sent to the result it is shown.

    find the tool → parse → handler, within an attempt on the session → record → result

Whatever the model did wrong and whatever a handler raises is a failing `ToolResult`. A call that
fails takes back what *it* did to the session's slices, and nothing that other threads did
meanwhile; a call made by a handler is part of the call around it. Then the failing `ToolInvoked` is
recorded, and the section brings its slices up to date. Nothing here knows what a tool does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from podbot.errors import Kind, PodbotError, PromptError
from podbot.frozen import dataclass
from podbot.prompt.context import Cancellation, Deadline, Progress, ToolContext, no_progress
from podbot.prompt.json_text import quoted, short
from podbot.prompt.result import ToolResult, failure
from podbot.runtime.events import ToolInvoked
from podbot.runtime.given import described, expect, expect_callable
from podbot.runtime.logging import get_logger

if TYPE_CHECKING:
    from podbot.prompt.prompt import Prompt
    from podbot.prompt.section import Section
    from podbot.prompt.tool import AnyTool
    from podbot.runtime.session import Session

Arguments = str | Mapping[str, object] | None
"""What a model sent: JSON text, or the object in it; None for nothing."""

KEPT_ARGUMENTS = 2_000
"""Characters kept of arguments that could not be parsed."""
_NAME, _CALL_ID, _ERROR, _PAIRS = 64, 128, 1_000, 20

_logger = get_logger(__name__, component="prompt.dispatch")


@dataclass(frozen=True, slots=True)
class Call:
    """What a model asked for, and what the caller says about it."""

    name: str
    arguments: Arguments
    call_id: str | None = None
    deadline: Deadline | None = None
    cancellation: Cancellation | None = None
    on_progress: Callable[[Progress], object] | None = None

    def __post_init__(self) -> None:
        # What the caller says. What the model says (name, arguments) is answered, not raised.
        if self.call_id is not None:
            expect(self.call_id, str, "call_id=", PromptError)
        if self.deadline is not None:
            expect(self.deadline, Deadline, "deadline=", PromptError)
        if self.cancellation is not None:
            expect(self.cancellation, Cancellation, "cancellation=", PromptError)
        if self.on_progress is not None:
            expect_callable(self.on_progress, "on_progress=", PromptError)


def dispatch(prompt: Prompt, session: Session, call: Call) -> ToolResult[object]:
    """Serve one call. Raises only what is not an `Exception`, such as Ctrl-C."""
    found = prompt.find(call.name)
    own = None if found is None else found[0].bus
    context = ToolContext(
        prompt=prompt,
        session=session,
        bus=session.bus if own is None else own,
        call_id=short(call.call_id or os.urandom(8).hex(), _CALL_ID),
        deadline=call.deadline,
        cancellation=call.cancellation or Cancellation(),
        on_progress=call.on_progress or no_progress,
    )
    if found is None:
        result = failure(_unknown(prompt, call.name))
        _record(context, call.name, _kept(call.arguments), result)
        return result
    section, tool = found
    try:
        params = tool.parse(call.arguments)
    except Exception as error:
        # Arguments that do not fit, or a fault of the parameter type itself.
        result = _failed(context, tool, error)
        _record(context, call.name, _kept(call.arguments), result)
        return result
    return _attempt(context, section, tool, params)


def _attempt(
    context: ToolContext, section: Section, tool: AnyTool, params: object
) -> ToolResult[object]:
    """Run the handler; what it did to the session lasts only if it succeeds."""
    try:
        with context.session.attempt() as attempt:
            result = _run(context, tool, params)
            if not result.success:
                attempt.undo()
    except BaseException:
        # Ctrl-C and the like. The slices are as they were; the log must not lack the call.
        _record(context, tool.name, params, failure(f"the call of {tool.name} was interrupted"))
        raise
    _record(context, tool.name, params, result)
    if not result.success:
        _refresh(context, section, tool)
    return result


def _run(context: ToolContext, tool: AnyTool, params: object) -> ToolResult[object]:
    try:
        context.check()
        result: object = tool.run(params, context)
    except Exception as error:
        return _failed(context, tool, error)
    if isinstance(result, ToolResult):
        return result
    _logger.error("tool_gave_no_result", tool=tool.name, given=type(result).__name__)
    return failure(
        f"the tool {tool.name} failed by a fault of its own: it gave no result; its handler "
        f"returns {described(result)} where a ToolResult belongs"
    )


def _failed(context: ToolContext, tool: AnyTool, error: Exception) -> ToolResult[object]:
    """An error as the model is told it: what podbot says as it stands, a fault as a fault."""
    if not isinstance(error, PodbotError):
        _logger.error("tool_failed", error=error, tool=tool.name, call_id=context.call_id)
        text = short(f"{type(error).__name__}: {error}", _ERROR)
        return failure(f"the tool {tool.name} failed by a fault of its own: {text}")
    if context.cancellation.cancelled and error.kind is not Kind.CANCELLED:
        return failure(f"the call of {tool.name} was cancelled: {short(str(error), _ERROR)}")
    return failure(str(error))


def _record(context: ToolContext, name: object, params: object, result: ToolResult[object]) -> None:
    """Tell the bus, and through it the session, what came of the call.

    A section may have been given another bus than its session has: then both are told.
    """
    event = ToolInvoked(
        prompt_ns=context.prompt.ns,
        prompt_key=context.prompt.key,
        name=short(str(name), _NAME),
        params=params,
        result=result,
        session_id=context.session.session_id,
        call_id=context.call_id,
    )
    context.session.bus.publish(event)
    if context.bus is not context.session.bus:
        context.bus.publish(event)


def _refresh(context: ToolContext, section: Section, tool: AnyTool) -> None:
    try:
        section.refresh(context)
    except Exception as error:
        # The model has its answer; that a slice is behind must not replace it.
        _logger.error("refresh_failed", error=error, section=section.key, tool=tool.name)


def _unknown(prompt: Prompt, name: object) -> str:
    names = ", ".join(tool.name for tool in prompt.tools) or "none"
    return f"there is no tool {quoted(str(name))}; the tools are: {names}. Call one of these."


def _kept(arguments: object) -> str:
    """Arguments that could not be parsed, as text for the log: bounded, whatever they were."""
    try:
        return _described(arguments)
    except Exception:  # a name that cannot be written, such as a number of very many digits
        return f"({type(arguments).__name__})"


def _described(arguments: object) -> str:
    if isinstance(arguments, str):
        return short(arguments, KEPT_ARGUMENTS)
    if isinstance(arguments, Mapping):
        first = islice(arguments.items(), _PAIRS)
        pairs = ", ".join(f"{quoted(str(key))}: {_sketch(value)}" for key, value in first)
        return short(f"{{{pairs}}}", KEPT_ARGUMENTS)
    return _sketch(arguments)


def _sketch(value: object) -> str:
    if value is None or isinstance(value, bool | float):
        return repr(value)
    return quoted(value) if isinstance(value, str) else f"({type(value).__name__})"
