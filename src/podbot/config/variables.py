"""Every environment variable podbot reads, with the older names that still work: one table.

A variable is looked up here and nowhere else, so that an alias can never be forgotten. Nothing
here says what a value means; whoever reads one checks it.
"""

from __future__ import annotations

import os

from podbot.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable: its name, what it sets, and the name it also goes by."""

    name: str
    meaning: str
    alias: str | None = None

    def read(self) -> str | None:
        """Its value, else its alias's; what is empty counts as not set."""
        for name in (self.name, self.alias):
            if name is not None and (value := os.environ.get(name)):
                return value
        return None


STATE = Variable("PODBOT_STATE", "the folder of records, journals and what undo needs")
LAYERS = Variable("PODBOT_LAYERS", "the folder of the layers that overlay sandboxes write to")
CACHE = Variable(
    "PODBOT_CACHE",
    "the folder that holds the workspaces of container sections",
    alias="WEAKINCENTIVES_CACHE",
)
WORKSPACE_ROOT = Variable(
    "PODBOT_WORKSPACE_ROOT",
    "the folder in which UnsafeLocalSandboxSection makes its workspaces",
    alias="WEAKINCENTIVES_WORKSPACE_ROOT",
)
SHELL_TIMEOUT = Variable(
    "PODBOT_SHELL_TIMEOUT",
    "seconds a shell_execute call may take when it names no timeout",
    alias="WEAKINCENTIVES_SHELL_TIMEOUT",
)
ENGINE_SOCKET = Variable("PODBOT_ENGINE_SOCKET", "the socket or address of the container engine")
ENGINE_PLAIN_TCP = Variable(
    "PODBOT_ENGINE_PLAIN_TCP", "yes to an engine that is reached over a network without encryption"
)
PAGER = Variable("PODBOT_PAGER", "the pager that shows diffs")

TABLE: tuple[Variable, ...] = (
    STATE,
    LAYERS,
    CACHE,
    WORKSPACE_ROOT,
    SHELL_TIMEOUT,
    ENGINE_SOCKET,
    ENGINE_PLAIN_TCP,
    PAGER,
)
