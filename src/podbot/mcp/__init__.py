"""Podbot's tools for any MCP client: Claude Code, Codex, an editor.

    from podbot.mcp import LaunchRequest, ServeRequest, claim, serve

    served = serve(ServeRequest(LaunchRequest(targets=("project",))), claim())

`podbot mcp` does this. `ToolServer` serves any other prompt. The SDK it is built on comes with
``podbot[mcp]`` and is loaded when one of these names is first used. Names here are the public API;
modules below are not.
"""

from __future__ import annotations

from podbot.on_use import on_use

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.mcp.annotations import Hints, hints_of_suite
    from podbot.mcp.line import Line, claim
    from podbot.mcp.request import ServeRequest
    from podbot.mcp.server import Serving, ToolServer
    from podbot.mcp.serving import Served, Started, serve
    from podbot.runs.request import LaunchRequest

__all__ = [
    "Hints",
    "LaunchRequest",
    "Line",
    "ServeRequest",
    "Served",
    "Serving",
    "Started",
    "ToolServer",
    "claim",
    "hints_of_suite",
    "serve",
]

_HOMES = {
    "podbot.mcp.annotations": "Hints hints_of_suite",
    "podbot.mcp.line": "Line claim",
    "podbot.mcp.request": "ServeRequest",
    "podbot.mcp.server": "Serving ToolServer",
    "podbot.mcp.serving": "Served Started serve",
    "podbot.runs.request": "LaunchRequest",
}

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:
    _find = on_use(globals(), _HOMES)

    def __getattr__(name: str) -> object:
        try:
            return _find(name)
        except ImportError as error:
            from podbot.mcp._sdk import explained

            raise explained(error) from error
