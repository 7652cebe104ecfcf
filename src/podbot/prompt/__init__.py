"""Prompts: what a model is told, and the tools it may call.

    from podbot.prompt import MarkdownSection, Prompt

    prompt = Prompt(ns="agents/review", key="main", sections=[...])
    prompt.render().text
    prompt.call("read_file", '{"file_path": "README.md"}', session=session)

Names here are the public API; modules below are not.
"""

from __future__ import annotations

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.prompt.context import Cancellation, Deadline, Progress, ToolContext
    from podbot.prompt.formats import ToolFormat
    from podbot.prompt.prompt import Prompt, RenderedPrompt
    from podbot.prompt.result import ToolResult, failure
    from podbot.prompt.section import MarkdownSection, Section
    from podbot.prompt.tool import AnyTool, Handler, Tool

__all__ = [
    "AnyTool",
    "Cancellation",
    "Deadline",
    "Handler",
    "MarkdownSection",
    "Progress",
    "Prompt",
    "RenderedPrompt",
    "Section",
    "Tool",
    "ToolContext",
    "ToolFormat",
    "ToolResult",
    "failure",
]

# Found when first used: whoever needs one part does not pay for the others.
_HOMES = {
    "podbot.prompt.context": "Cancellation Deadline Progress ToolContext",
    "podbot.prompt.formats": "ToolFormat",
    "podbot.prompt.prompt": "Prompt RenderedPrompt",
    "podbot.prompt.result": "ToolResult failure",
    "podbot.prompt.section": "MarkdownSection Section",
    "podbot.prompt.tool": "AnyTool Handler Tool",
}
_LAZY = {name: home for home, names in _HOMES.items() for name in names.split()}

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value: object = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value  # found at once the next time
        return value
