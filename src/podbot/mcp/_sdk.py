"""The official SDK is an extra, and heavy: it is loaded when needed, and named when missing."""

from __future__ import annotations

from podbot.errors import MissingDependencyError

BROUGHT = ("mcp", "mcp_types", "anyio", "pydantic")
"""What the extra brings, and what podbot imports of it."""


def explained(error: ImportError) -> Exception:
    """The error that names the extra, if that is what is missing; else the same one."""
    if (error.name or "").partition(".")[0] in BROUGHT:
        return MissingDependencyError.of("mcp", extra="mcp")
    return error
