"""Prompts: what a model is told, and the tools it may call.

    from podbot.prompt import MarkdownSection, Prompt

    prompt = Prompt(ns="agents/review", key="main", sections=[...])
    prompt.render().text
    prompt.call("read_file", '{"file_path": "README.md"}', session=session)

Names here are the public API; modules below are not.
"""

from __future__ import annotations

from podbot.on_use import on_use

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.prompt.adapter import Adapter, Answer, execute
    from podbot.prompt.context import Cancellation, Deadline, Progress, ToolContext
    from podbot.prompt.formats import ToolFormat
    from podbot.prompt.overrides import (
        IgnoredOverride,
        PromptOverrides,
        TextOverride,
        ToolOverride,
        content_hash,
        current_texts,
        overrides_for,
    )
    from podbot.prompt.overrides_store import OverridesStore
    from podbot.prompt.prompt import Prompt, RenderedPrompt
    from podbot.prompt.result import Renders, ToolResult, failure
    from podbot.prompt.scripted import ScriptedCall, ScriptedModel, Transcript, Turn
    from podbot.prompt.section import CONTAINER_SHELL, MarkdownSection, Section
    from podbot.prompt.subagents import (
        Delegation,
        DispatchSubagentsParams,
        DispatchSubagentsResult,
        SubagentIsolationLevel,
        SubagentResult,
        SubagentsSection,
        dispatch_subagents,
    )
    from podbot.prompt.tool import AnyTool, Handler, Tool

__all__ = [
    "CONTAINER_SHELL",
    "Adapter",
    "Answer",
    "AnyTool",
    "Cancellation",
    "Deadline",
    "Delegation",
    "DispatchSubagentsParams",
    "DispatchSubagentsResult",
    "Handler",
    "IgnoredOverride",
    "MarkdownSection",
    "OverridesStore",
    "Progress",
    "Prompt",
    "PromptOverrides",
    "RenderedPrompt",
    "Renders",
    "ScriptedCall",
    "ScriptedModel",
    "Section",
    "SubagentIsolationLevel",
    "SubagentResult",
    "SubagentsSection",
    "TextOverride",
    "Tool",
    "ToolContext",
    "ToolFormat",
    "ToolOverride",
    "ToolResult",
    "Transcript",
    "Turn",
    "content_hash",
    "current_texts",
    "dispatch_subagents",
    "execute",
    "failure",
    "overrides_for",
]

# Found when first used: whoever needs one part does not pay for the others.
_HOMES = {
    "podbot.prompt.adapter": "Adapter Answer execute",
    "podbot.prompt.context": "Cancellation Deadline Progress ToolContext",
    "podbot.prompt.formats": "ToolFormat",
    "podbot.prompt.overrides": (
        "IgnoredOverride PromptOverrides TextOverride ToolOverride "
        "content_hash current_texts overrides_for"
    ),
    "podbot.prompt.overrides_store": "OverridesStore",
    "podbot.prompt.prompt": "Prompt RenderedPrompt",
    "podbot.prompt.result": "Renders ToolResult failure",
    "podbot.prompt.scripted": "ScriptedCall ScriptedModel Transcript Turn",
    "podbot.prompt.section": "CONTAINER_SHELL MarkdownSection Section",
    "podbot.prompt.subagents": (
        "Delegation DispatchSubagentsParams DispatchSubagentsResult "
        "SubagentIsolationLevel SubagentResult SubagentsSection dispatch_subagents"
    ),
    "podbot.prompt.tool": "AnyTool Handler Tool",
}

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:
    __getattr__ = on_use(globals(), _HOMES)
