"""Tools as the function formats of model providers, ready to be sent.

One function for each format, chosen by name. What is described here is exactly what
`Prompt.call` accepts. Nothing here talks to a provider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from podbot.errors import PromptError
from podbot.prompt.json_text import quoted
from podbot.prompt.result import Json
from podbot.prompt.tool import AnyTool

ToolFormat = Literal["openai", "openai-responses", "anthropic", "mcp"]


def tools_for(tools: Iterable[AnyTool], form: ToolFormat) -> list[dict[str, Json]]:
    """The tools in one format: OpenAI's chat or responses, Anthropic's messages, or MCP's."""
    if form not in _FORMATS:
        raise PromptError(
            f"{quoted(str(form))} is not a format for tools",
            remedy=f"ask for one of: {', '.join(_FORMATS)}",
        )
    return [_FORMATS[form](tool) for tool in tools]


def _openai(tool: AnyTool) -> dict[str, Json]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.strict_json_schema(),
            "strict": True,
        },
    }


def _openai_responses(tool: AnyTool) -> dict[str, Json]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.strict_json_schema(),
        "strict": True,
    }


def _anthropic(tool: AnyTool) -> dict[str, Json]:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.json_schema(),
    }


def _mcp(tool: AnyTool) -> dict[str, Json]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.json_schema(),
    }


_FORMATS: Mapping[str, Callable[[AnyTool], dict[str, Json]]] = {
    "openai": _openai,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "mcp": _mcp,
}
