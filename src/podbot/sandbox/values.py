"""The values a sandbox takes and gives: results, file facts, guarantees.

Frozen data only. Nothing here talks to a guest.
"""

from __future__ import annotations

from typing import Literal

from podbot.errors import CommandFailedError, Kind
from podbot.frozen import dataclass

TIMEOUT_EXIT_CODE = 124
"""What ``exit_code`` says of a command that ran out of time, as ``timeout(1)`` does."""

EntryKind = Literal["file", "dir", "link", "fifo", "socket", "char", "block"]


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended. A failing command is described here, never raised.

    ``exit_code`` is what a shell would show: 0 to 255, 128 + n for a death by signal n (then
    ``signal`` is n), 124 when the time ran out (then ``timed_out``). Each stream holds at most
    the output limit; the flags say whether something was cut off its end.
    """

    argv: tuple[str, ...]
    exit_code: int
    stdout_bytes: bytes
    stderr_bytes: bytes
    duration: float
    timed_out: bool = False
    signal: int | None = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False

    @property
    def ok(self) -> bool:
        """Whether the command said that it succeeded."""
        return self.exit_code == 0

    @property
    def stdout(self) -> str:
        """Standard output as text; bytes that are not UTF-8 show as U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text; bytes that are not UTF-8 show as U+FFFD."""
        return self.stderr_bytes.decode("utf-8", "replace")

    def check(self) -> ExecResult:
        """Return self, or raise `CommandFailedError` if the command failed."""
        if self.ok:
            return self
        import shlex  # only for what failed

        how = "timed out" if self.timed_out else f"exited with {self.exit_code}"
        tail = self.stderr.strip()[-500:]
        raise CommandFailedError(
            f"{shlex.join(self.argv)} {how}" + (f": {tail}" if tail else ""),
            kind=Kind.TIMEOUT if self.timed_out else Kind.INVALID,
        )


@dataclass(frozen=True, slots=True)
class PythonResult:
    """What one piece of code gave in the Python kernel.

    ``value`` is the ``repr`` of a last line that is an expression other than ``None``; ``error``
    is the traceback of an exception, as text. After ``timed_out`` the kernel was interrupted; if
    it would not stop it was restarted and its variables are gone (then ``restarted``). ``json`` is
    the value as JSON text, if it was asked for and says the same: not for tuples, sets, NaN, or
    objects.
    """

    value: str | None
    stdout: str
    stderr: str
    error: str | None
    duration: float
    timed_out: bool = False
    restarted: bool = False
    truncated: bool = False
    json: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end without an exception."""
        return self.error is None and not self.timed_out


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What one piece of code gave in an interpreter of its own.

    ``value`` is the ``repr`` of a last line that is an expression other than ``None``; it is None
    too when the code printed so much that its end was cut off. An exception's traceback is in
    ``stderr``. ``exit_code`` is that of the interpreter, as in `ExecResult`.
    """

    value: str | None
    stdout: str
    stderr: str
    exit_code: int
    duration: float
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of the sandbox's file system. ``path`` begins as the caller spelled its root."""

    path: str
    kind: EntryKind
    size: int
    mode: int
    mtime_ns: int
    link_target: str | None = None

    @property
    def is_file(self) -> bool:
        """Whether this is a regular file."""
        return self.kind == "file"

    @property
    def is_dir(self) -> bool:
        """Whether this is a folder."""
        return self.kind == "dir"


@dataclass(frozen=True, slots=True)
class NewestFiles:
    """The files that were changed last, the latest first, of ``total`` files.

    ``complete`` is False when there were more entries than were to be looked at: then ``total``
    counts those that were, and there may be newer ones.
    """

    files: tuple[FileInfo, ...]
    total: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class GrepMatch:
    """One matching line, without its line end."""

    path: str
    line_number: int
    line: str


@dataclass(frozen=True, slots=True)
class GrepResult:
    """Matches in order of path and line.

    ``truncated`` says that there were more, or may be: with ``timed_out`` the time was up before
    all was searched. ``skipped`` counts files that are left out, being larger than 64 MiB (those
    in which nothing would have been found may not be counted).
    """

    matches: tuple[GrepMatch, ...]
    truncated: bool = False
    timed_out: bool = False
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class TransferResult:
    """What ``upload`` or ``download`` copied, and what it left out and why (path, reason)."""

    files: int
    bytes: int
    skipped: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One thing a sandbox does or does not enforce.

    ``enforced`` is True only when the kernel or podbot really stops a violation; ``by`` names
    what does ("mount namespace", "seccomp", "rlimit, per process", …) or, when it is not
    enforced, why not.
    """

    name: str
    enforced: bool
    by: str
