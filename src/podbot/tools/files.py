"""What the file tools take and give. Frozen data only; the handlers are in `_file_tools`.

Every result knows how a model reads it (`render`): as plain lines, with paths that can be used in
the next call as they stand.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from podbot.tools.filesystem import FileInfo
from podbot.tools.paths import VfsPath

READ_LINES = 2000
"""The most lines ``read_file`` gives at once."""


@dataclass(frozen=True, slots=True)
class ListParams:
    """For ``ls``."""

    path: str | None = field(
        default=None, metadata={"description": "Folder to list; default the workspace."}
    )


@dataclass(frozen=True, slots=True)
class Listing:
    """The entries of a folder, by name."""

    path: VfsPath
    entries: tuple[FileInfo, ...]

    def render(self) -> str:
        """For a model: one line for each, folders with a slash."""
        lines = []
        for entry in self.entries:
            mark = {"directory": "/", "link": "@", "other": "?"}.get(entry.kind, "")
            size = f"  {entry.size_bytes} bytes" if entry.kind == "file" else ""
            lines.append(f"{entry.path}{mark}{size}")
        return "\n".join(lines) or "(empty)"


@dataclass(frozen=True, slots=True)
class ReadFileParams:
    """For ``read_file``."""

    file_path: str = field(metadata={"description": "File to read, below the workspace."})
    offset: int = field(
        default=0, metadata={"description": "Lines to skip from the start, 0 or more."}
    )
    limit: int = field(
        default=READ_LINES, metadata={"description": "Lines to read, 1 to 2000; default 2000."}
    )


@dataclass(frozen=True, slots=True)
class ReadFileResult:
    """Lines of a file, numbered from 1. ``limit`` is how many lines ``content`` has."""

    path: VfsPath
    content: str
    offset: int
    limit: int
    total_lines: int

    def render(self) -> str:
        """For a model."""
        return self.content or "(no lines)"


@dataclass(frozen=True, slots=True)
class WriteFileParams:
    """For ``write_file``."""

    file_path: str = field(metadata={"description": "File to create; folders on the way are made."})
    content: str = field(metadata={"description": "Its text, 48000 characters at most."})


@dataclass(frozen=True, slots=True)
class EditFileParams:
    """For ``edit_file``."""

    file_path: str = field(metadata={"description": "File to change."})
    old_string: str = field(
        metadata={
            "description": "Text to replace, exactly as in the file, without line numbers. It must "
            "be in the file once, unless replace_all is set."
        }
    )
    new_string: str = field(metadata={"description": "Text to put in its place; may be empty."})
    replace_all: bool = field(
        default=False, metadata={"description": "Replace every place where old_string is."}
    )


@dataclass(frozen=True, slots=True)
class GlobParams:
    """For ``glob``."""

    pattern: str = field(
        metadata={
            "description": "Such as **/*.py: * and ? stay inside a folder, ** crosses any number "
            "of folders, [..] is a set."
        }
    )
    path: str = field(default="/", metadata={"description": "Folder to look in."})


@dataclass(frozen=True, slots=True)
class GlobResult:
    """Paths that match, sorted. ``truncated`` says that there were more."""

    matches: tuple[VfsPath, ...]
    truncated: bool = False

    def render(self) -> str:
        """For a model."""
        return "\n".join(map(str, self.matches)) or "(nothing matches)"


@dataclass(frozen=True, slots=True)
class GrepParams:
    """For ``grep``."""

    pattern: str = field(
        metadata={"description": "Python regular expression, searched for in each line."}
    )
    path: str = field(default="/", metadata={"description": "File or folder to search in."})
    glob: str | None = field(
        default=None,
        metadata={"description": "Only files whose path below `path` matches, such as **/*.py."},
    )


@dataclass(frozen=True, slots=True)
class GrepMatch:
    """One line that matches, without its line end."""

    path: VfsPath
    line_number: int
    line: str


@dataclass(frozen=True, slots=True)
class GrepResult:
    """Matches by path and line.

    ``truncated`` says that there were more, or may be: with ``timed_out`` the time was up before
    all was searched. ``skipped`` counts files that are too large to be searched.
    """

    matches: tuple[GrepMatch, ...]
    truncated: bool = False
    timed_out: bool = False
    skipped: int = 0

    def render(self) -> str:
        """For a model, as grep itself prints them."""
        lines = [f"{match.path}:{match.line_number}:{match.line}" for match in self.matches]
        return "\n".join(lines) or "(nothing matches)"


@dataclass(frozen=True, slots=True)
class RemoveParams:
    """For ``rm``."""

    path: str = field(
        metadata={"description": "File, link or folder to remove, a folder with all in it."}
    )
