"""A tool's result as MCP carries it: text for a model, and the same as data for programs.

The data is sent only if the server was told to: clients that get it show their model nothing else,
as one line of JSON in which a file's own lines and quotes are hard to read. Whatever a result holds
may come from inside a sandbox, so both are bounded, and half characters that JSON cannot carry are
replaced. A result that failed is an answer like any other, marked as an error: the message tells
the model what to do.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mcp_types import CallToolResult, TextContent

if TYPE_CHECKING:
    from podbot.prompt.result import Json, ToolResult

TEXT_CHARACTERS = 200_000
"""The most text of one result."""
DATA_CHARACTERS = 400_000
"""The most JSON of one result; one that has more is told as text alone."""


def answer(result: ToolResult[object], *, data: bool) -> CallToolResult:
    """What the client is sent."""
    text = whole_characters(result.render(TEXT_CHARACTERS))
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=_data(result) if data else None,
        is_error=not result.success,
    )


def refused(message: str) -> CallToolResult:
    """A call that was not even tried."""
    return CallToolResult(
        content=[TextContent(type="text", text=whole_characters(message))], is_error=True
    )


def whole_characters(text: str) -> str:
    """The text with each half character (a lone surrogate) replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _data(result: ToolResult[object]) -> Json:
    text = json.dumps(result.as_data(), ensure_ascii=False)
    if len(text) > DATA_CHARACTERS:
        return None
    data: Json = json.loads(whole_characters(text))
    return data
