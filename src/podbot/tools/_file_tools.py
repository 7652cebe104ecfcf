"""The seven file tools, written once against `Sandbox`.

Each handler checks what the model asked for, has the sandbox do it, and tells in words a model can
act on what came of it. Files are opened inside the sandbox, by descriptor and below the workspace,
so a path can mean nothing else. No file of the host is touched here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podbot.errors import Kind, SandboxError, ToolValidationError
from podbot.prompt.result import ToolResult
from podbot.sandbox.ops import READ_LIMIT
from podbot.sandbox.sandbox import Sandbox
from podbot.sandbox.values import FileInfo as Entry
from podbot.tools._mirror import moment, path_of, text_of
from podbot.tools.evaluation import cut
from podbot.tools.files import (
    READ_LINES,
    EditFileParams,
    GlobParams,
    GlobResult,
    GrepMatch,
    GrepParams,
    GrepResult,
    Listing,
    ListParams,
    ReadFileParams,
    ReadFileResult,
    RemoveParams,
    WriteFileParams,
)
from podbot.tools.filesystem import (
    KEPT_CHARACTERS,
    DeleteEntry,
    EntryKind,
    FileInfo,
    VirtualFileSystem,
    WriteFile,
)
from podbot.tools.live import Live
from podbot.tools.paths import WORKSPACE, VfsPath, normalize_string_path
from podbot.visible import visible

if TYPE_CHECKING:
    from podbot.prompt.context import ToolContext

READ_BYTES = 16 * 1024 * 1024
"""The largest file ``read_file`` looks into."""
READ_CHARACTERS = 100_000
"""The most text ``read_file`` gives at once."""
LINE_CHARACTERS = 2000
"""The most of one line that ``grep`` shows."""
MATCHES = 2000
"""The most ``glob`` and ``grep`` give at once."""
LIST_ENTRIES = 10_000
SEARCH_SECONDS = 20.0
PATTERN_CHARACTERS = 4096
"""The longest pattern of ``glob`` and ``grep``: compiling one costs, and not in a sandbox."""

_KINDS: dict[str, EntryKind] = {"file": "file", "dir": "directory", "link": "link"}


class FileTools:
    """``ls read_file write_file edit_file glob grep rm`` on one workspace."""

    def __init__(self, live: Live):
        self._live = live

    def ls(self, params: ListParams, *, context: ToolContext) -> ToolResult[Listing]:
        """List a folder."""
        path = self._path(params.path, "path")
        with self._live.call(context) as sandbox:
            try:
                found = sandbox.list(str(path), max_entries=LIST_ENTRIES)
            except SandboxError as error:
                if error.kind is not Kind.NOT_FOUND:
                    raise
                found = []
        known = self._live.files()
        entries = tuple(_info(entry, known) for entry in found)
        message = f"{_counted(len(entries), 'entry', 'entries')} in {_name(path)}."
        return ToolResult(message, Listing(path, entries))

    def read_file(
        self, params: ReadFileParams, *, context: ToolContext
    ) -> ToolResult[ReadFileResult]:
        """Read lines of a text file."""
        path = self._path(params.file_path, "file_path", allow_root=False)
        if params.offset < 0:
            raise ToolValidationError(
                f"offset is {params.offset}", remedy="give the number of lines to skip, 0 or more"
            )
        if not 1 <= params.limit <= READ_LINES:
            raise ToolValidationError(
                f"limit is {params.limit}", remedy=f"give a number of lines, 1 to {READ_LINES}"
            )
        with self._live.call(context) as sandbox:
            text = self._text(sandbox, path)
        result = _lines(text, path, params.offset, params.limit)
        last = result.offset + result.limit
        if result.limit == 0:
            message = f"{path} has {result.total_lines} lines, none after line {result.offset}."
        else:
            message = f"Lines {result.offset + 1} to {last} of {result.total_lines} of {path}."
        if last < result.total_lines and result.limit:
            message += f" Read on with offset={last}."
        return ToolResult(message, result)

    def write_file(self, params: WriteFileParams, *, context: ToolContext) -> ToolResult[WriteFile]:
        """Create a file."""
        path = self._path(params.file_path, "file_path", allow_root=False)
        _check_length("content", params.content)
        with self._live.call(context) as sandbox:
            sandbox.write(str(path), params.content, exclusive=True)
        message = f"Created {path} ({len(params.content)} characters)."
        return ToolResult(message, WriteFile(path, params.content), exclude_value_from_context=True)

    def edit_file(self, params: EditFileParams, *, context: ToolContext) -> ToolResult[WriteFile]:
        """Replace a piece of a file by another; every other byte stays."""
        path = self._path(params.file_path, "file_path", allow_root=False)
        if not params.old_string:
            raise ToolValidationError(
                "old_string is empty",
                remedy="give the text to replace; use write_file to create a file",
            )
        _check_length("old_string", params.old_string)
        _check_length("new_string", params.new_string)
        with self._live.call(context) as sandbox:
            count = _edited(sandbox, path, params)
            content = _kept(sandbox, path)
        places = _counted(count, "place", "places")
        value = WriteFile(path, content, mode="overwrite")
        return ToolResult(
            f"Replaced the text in {places} of {path}.", value, exclude_value_from_context=True
        )

    def glob(self, params: GlobParams, *, context: ToolContext) -> ToolResult[GlobResult]:
        """Find paths by a pattern."""
        path = self._path(params.path, "path")
        pattern = self._pattern(params.pattern, "pattern", path)
        with self._live.call(context) as sandbox:
            found = sandbox.glob(pattern, str(path))
        result = GlobResult(
            tuple(_shown_path(name) for name in found[:MATCHES]), truncated=len(found) > MATCHES
        )
        message = f"{_counted(len(found), 'path', 'paths')} for {_quoted(params.pattern)}."
        if result.truncated:
            message += f" The first {MATCHES} are shown; use a narrower pattern for the others."
        return ToolResult(message, result)

    def grep(self, params: GrepParams, *, context: ToolContext) -> ToolResult[GrepResult]:
        """Find lines by a regular expression."""
        path = self._path(params.path, "path")
        _check_length("pattern", params.pattern, PATTERN_CHARACTERS)
        glob = None if params.glob is None else self._pattern(params.glob, "glob", path)
        with self._live.call(context) as sandbox:
            found = sandbox.grep(
                params.pattern,
                str(path),
                glob=glob,
                max_matches=MATCHES,
                timeout=self._live.seconds(context, SEARCH_SECONDS),
            )
        paths = {name: _shown_path(name) for name in {match.path for match in found.matches}}
        matches = tuple(
            GrepMatch(paths[match.path], match.line_number, _shown_line(match.line))
            for match in found.matches
        )
        message = f"{_counted(len(matches), 'line', 'lines')} for {_quoted(params.pattern)}."
        if found.timed_out:
            message += (
                " The time was up before all was searched: narrow the search by path or glob."
            )
        elif found.truncated:
            message += " There are more: narrow the search by path, glob or pattern."
        if found.skipped:
            skipped = _counted(found.skipped, "file was", "files were")
            message += f" {skipped} not searched, being larger than {READ_LIMIT >> 20} MiB."
        result = GrepResult(matches, found.truncated, found.timed_out, found.skipped)
        return ToolResult(message, result)

    def rm(self, params: RemoveParams, *, context: ToolContext) -> ToolResult[DeleteEntry]:
        """Remove a file, a link or a folder."""
        path = self._path(params.path, "path", allow_root=False)
        with self._live.call(context) as sandbox:
            sandbox.remove(str(path), recursive=True)
        return ToolResult(f"Removed {path}.", DeleteEntry(path), exclude_value_from_context=True)

    def _text(self, sandbox: Sandbox, path: VfsPath) -> str:
        """The text of a file, or the error that says why it has none."""
        text = text_of(sandbox.read(str(path), max_bytes=READ_BYTES))
        if text is not None:
            return text
        remedy = "only text can be read here: use another file"
        if self._live.commands:
            remedy = "look at it with shell_execute, with a program that knows its format"
        raise ToolValidationError(
            f"{path} is binary, or text that is not UTF-8", kind=Kind.NOT_A_FILE, remedy=remedy
        )

    def _pattern(self, raw: str, field: str, path: VfsPath) -> str:
        """A glob below ``path``. It may be written from the workspace down, as paths may."""
        _check_length(field, raw, PATTERN_CHARACTERS)
        for top in (WORKSPACE, self._live.workdir):
            if top is None or not raw.startswith(f"{top}/"):
                continue
            start = f"{top}/" if path.is_root else f"{top}/{path}/"
            if raw.startswith(start):
                return raw[len(start) :]
            raise ToolValidationError(
                f"{field} {_quoted(raw)} does not begin with path, {_quoted(str(path))}",
                kind=Kind.BAD_PATTERN,
                remedy=f"write {field} relative to path, such as *.py",
            )
        return raw

    def _path(self, raw: str | None, field: str, *, allow_root: bool = True) -> VfsPath:
        return normalize_string_path(
            raw, field=field, allow_root=allow_root, workdir=self._live.workdir
        )


def _lines(text: str, path: VfsPath, offset: int, limit: int) -> ReadFileResult:
    """Numbered lines; fewer than asked for when they are long."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()  # what ends in a newline has no line behind it
    shown: list[str] = []
    room = READ_CHARACTERS
    for number, line in enumerate(lines[offset : offset + limit], offset + 1):
        row = f"{number:>4} | {line[:-1] if line.endswith(chr(13)) else line}"
        room -= len(row) + 1
        if room < 0:
            if not shown:
                shown.append(cut(row, READ_CHARACTERS))
            break
        shown.append(row)
    return ReadFileResult(path, "\n".join(shown), offset, len(shown), len(lines))


def _edited(sandbox: Sandbox, path: VfsPath, params: EditFileParams) -> int:
    old, new = params.old_string, params.new_string
    ways = [(old, new)]
    if "\n" in old and "\r" not in old:
        # read_file shows lines without their ends. In a file with CRLF the same lines are meant,
        # and the new ones end as the old ones do. A first newline must not be torn off its CR.
        ways.append((old.replace("\n", "\r\n"), new.replace("\n", "\r\n")))
        if old.startswith("\n"):
            ways.reverse()
    for before, after in ways[:-1]:
        try:
            return sandbox.edit(str(path), before, after, replace_all=params.replace_all)
        except SandboxError as error:
            if error.kind is not Kind.NO_MATCH:
                raise
    before, after = ways[-1]
    return sandbox.edit(str(path), before, after, replace_all=params.replace_all)


def _kept(sandbox: Sandbox, path: VfsPath) -> str | None:
    """The text of a file for the session, None if it is too long or no text."""
    try:
        return text_of(sandbox.read(str(path), max_bytes=KEPT_CHARACTERS))
    except SandboxError as error:
        if error.kind in (Kind.TOO_LARGE, Kind.NOT_FOUND):
            return None
        raise


def _info(entry: Entry, known: VirtualFileSystem) -> FileInfo:
    path = path_of(entry.path)
    kind = _KINDS.get(entry.kind, "other")
    version = None
    if kind == "file":
        file = known.find(path)
        version = 1 if file is None else file.version
    return FileInfo(_shown_path(entry.path), kind, entry.size, version, moment(entry.mtime_ns))


def _shown_path(name: str) -> VfsPath:
    """A path from inside as text that can be shown: names need not be text at all."""
    return path_of(visible(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")))


def _shown_line(line: str) -> str:
    if not line.isascii():
        line = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return cut(line, LINE_CHARACTERS)


def _check_length(field: str, text: str, most: int = KEPT_CHARACTERS) -> None:
    if len(text) > most:
        raise ToolValidationError(
            f"{field} has {len(text)} characters",
            remedy=f"send {most} at most, in several calls if need be",
        )


def _counted(number: int, one: str, many: str) -> str:
    return f"1 {one}" if number == 1 else f"{number} {many}"


def _quoted(pattern: str) -> str:
    return cut(repr(pattern), 200)


def _name(path: VfsPath) -> str:
    return "the workspace" if path.is_root else str(path)
