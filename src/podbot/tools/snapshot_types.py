"""The types that calls of these tools leave in a session, for whoever restores a snapshot of one.

    Snapshot.from_json(text, types={*session.types, *SNAPSHOT_TYPES})

A snapshot makes only what its reader allows; parameters and results of calls are among what it
holds. Data only: nothing here reads a snapshot.
"""

from __future__ import annotations

from podbot.prompt.result import ToolResult
from podbot.tools.evaluation import EvalParams, EvalResult
from podbot.tools.files import (
    EditFileParams,
    GlobParams,
    GlobResult,
    GrepParams,
    GrepResult,
    Listing,
    ListParams,
    ReadFileParams,
    ReadFileResult,
    RemoveParams,
    WriteFileParams,
)
from podbot.tools.filesystem import DeleteEntry, VirtualFileSystem, WriteFile
from podbot.tools.reducers import FilesSeen
from podbot.tools.shell import ShellParams, ShellResult

SNAPSHOT_TYPES: tuple[type, ...] = (
    DeleteEntry,
    EditFileParams,
    EvalParams,
    EvalResult,
    FilesSeen,
    GlobParams,
    GlobResult,
    GrepParams,
    GrepResult,
    ListParams,
    Listing,
    ReadFileParams,
    ReadFileResult,
    RemoveParams,
    ShellParams,
    ShellResult,
    ToolResult,
    VirtualFileSystem,
    WriteFile,
    WriteFileParams,
)
"""Every parameter and result type of the nine tools, and what they are wrapped in."""
