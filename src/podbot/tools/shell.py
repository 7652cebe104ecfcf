"""``shell_execute``: one command in the workspace, within the limits of the tool.

What the command did is data: its exit code, its output, that it ran out of time. Only what cannot
be asked of a sandbox is an error. Nothing here knows which backend runs it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from podbot.errors import Kind, SandboxError, ToolValidationError
from podbot.sandbox.sandbox import Sandbox
from podbot.sandbox.values import ExecResult
from podbot.tools.paths import WORKSPACE, check_segments, normalize_string_path

COMMAND_CHARACTERS = 4096
ENVIRONMENT_ENTRIES = 64
ENVIRONMENT_KEY = 80
ENVIRONMENT_VALUE = 512
STDIN_CHARACTERS = 48_000
STREAM_BYTES = 32 * 1024
DEFAULT_SECONDS = 30.0
LEAST_SECONDS = 1.0
MOST_SECONDS = 120.0

TRUNCATED = "[truncated]"
CAPTURE_DISABLED = "capture disabled"

SHELL = ("sh", "-c")
"""What reads a command that is one string."""
# What shells say of a command that is not there, and of one that cannot be run.
_NEVER_RAN = {Kind.COMMAND_NOT_FOUND: 127, Kind.COMMAND_NOT_EXECUTABLE: 126}


@dataclass(frozen=True, slots=True)
class ShellParams:
    """A command, and what it starts with."""

    command: tuple[str, ...] | str = field(
        metadata={
            "description": "The program and its arguments, one string each, which no shell reads; "
            "or, where the workspace allows it, one string for sh -c. ASCII, 4096 characters."
        }
    )
    cwd: str | None = field(
        default=None,
        metadata={"description": "Folder to run in, below the workspace; default its root."},
    )
    env: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"description": "Environment variables to add: 64 at most, ASCII."},
    )
    stdin: str | None = field(
        default=None, metadata={"description": "Text for its standard input, 48000 characters."}
    )
    timeout_seconds: float | None = field(
        default=None,
        metadata={"description": "Seconds until it is killed, 1 to 120; default 30."},
    )
    capture_output: bool = field(
        default=True, metadata={"description": "Whether its output is wanted."}
    )


@dataclass(frozen=True, slots=True)
class ShellResult:
    """How a command ended. ``exit_code`` is 124 when its time ran out (then ``timed_out``).

    ``command`` is what was run: ``("sh", "-c", text)`` for one string. ``cwd`` is the folder it ran
    in, as tools take it: ``/workspace`` or a folder below it.
    """

    command: tuple[str, ...]
    cwd: str
    exit_code: int
    stdout: str
    stderr: str
    duration_ms: int
    timed_out: bool

    def render(self) -> str:
        """For a model: the streams as they are, below their names."""
        parts = [f"exit code {self.exit_code}" + (" (timed out)" if self.timed_out else "")]
        for name in ("stdout", "stderr"):
            text: str = getattr(self, name)
            parts.append(f"{name}:\n{text}" if text else f"{name}: (empty)")
        return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Command:
    """A call that was checked and can be handed to a sandbox."""

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    stdin: str | None
    seconds: float
    capture: bool


def checked(
    params: ShellParams, workdir: str | None, default_seconds: float, strings: bool = True
) -> Command:
    """What was asked for, if it keeps the limits; raises `ToolValidationError`.

    ``strings``: one string is taken too, for a shell.
    """
    command = params.command
    if isinstance(command, str):
        if not strings:
            raise _refuse(
                "command is one string, and this workspace gives none to a shell",
                'give a list of words: ["ls", "-l"]',
            )
        if not command.strip():
            raise _refuse("command is empty", 'name a program: ["ls", "-l"]')
        command = (*SHELL, command)
    _check_command(command, len(SHELL) if isinstance(params.command, str) else 0)
    _check_environment(params.env)
    if params.stdin is not None and len(params.stdin) > STDIN_CHARACTERS:
        raise _refuse(
            f"stdin has {len(params.stdin)} characters",
            f"send {STDIN_CHARACTERS} at most, or write a file and read it in the command",
        )
    if params.cwd is not None and "." in params.cwd.split("/"):
        check_segments((".",), "cwd")  # other paths may be "."; this one may not
    cwd = normalize_string_path(params.cwd, field="cwd", workdir=workdir)
    seconds = clamped(default_seconds if params.timeout_seconds is None else params.timeout_seconds)
    return Command(
        tuple(command), str(cwd), dict(params.env), params.stdin, seconds,
        params.capture_output,
    )  # fmt: skip


def clamped(seconds: float) -> float:
    """A timeout within what the tool allows."""
    if math.isnan(seconds):
        raise _refuse(
            "timeout_seconds is not a number",
            f"give seconds from {LEAST_SECONDS:g} to {MOST_SECONDS:g}",
        )
    return min(max(float(seconds), LEAST_SECONDS), MOST_SECONDS)


def run(sandbox: Sandbox, command: Command, seconds: float) -> ShellResult:
    """Run it, for ``seconds`` at most."""
    try:
        done = sandbox.exec(
            command.argv,
            stdin=command.stdin,
            timeout=seconds,
            env=command.env,
            cwd=None if command.cwd == "." else command.cwd,
        )
    except SandboxError as error:
        code = _NEVER_RAN.get(error.kind)
        if code is None:
            raise
        # A shell would say so on stderr; to a model it is one more command that failed.
        done = ExecResult(command.argv, code, b"", error.message.encode(), 0.0)
    capture = command.capture
    return ShellResult(
        command=command.argv,
        cwd=WORKSPACE if command.cwd == "." else f"{WORKSPACE}/{command.cwd}",
        exit_code=done.exit_code,
        stdout=text_of(done.stdout_bytes, STREAM_BYTES) if capture else CAPTURE_DISABLED,
        stderr=text_of(done.stderr_bytes, STREAM_BYTES) if capture else CAPTURE_DISABLED,
        duration_ms=round(done.duration * 1000),
        timed_out=done.timed_out,
    )


def text_of(data: bytes, limit: int) -> str:
    """A stream as text of ``limit`` bytes at most, the mark of what was cut included."""
    if len(data) <= limit:
        text = data.decode("utf-8", "replace")
        if len(text.encode()) <= limit:  # each byte that is no text became three
            return text
    else:
        text = data[:limit].decode("utf-8", "replace")
    return text.encode()[: limit - len(TRUNCATED)].decode("utf-8", "ignore") + TRUNCATED


def _check_command(command: Sequence[str], own: int = 0) -> None:
    """``own``: so many words at the beginning are not the model's."""
    if not command or not command[0].strip():
        raise _refuse("command is empty", 'name a program: ["ls", "-l"]')
    length = sum(map(len, command[own:]))
    if length > COMMAND_CHARACTERS or len(command) > COMMAND_CHARACTERS:
        raise _refuse(
            f"command has {length} characters in {len(command)} words",
            f"use {COMMAND_CHARACTERS} at most; pass more on stdin, or write a script with "
            "write_file and run that",
        )
    for word in command:
        if not _is_plain(word):
            raise _refuse(
                f"command holds {word[:80]!a}, which is not ASCII without NUL",
                "write a script with write_file and run that",
            )


def _check_environment(env: Mapping[str, str]) -> None:
    if len(env) > ENVIRONMENT_ENTRIES:
        raise _refuse(f"env has {len(env)} entries", f"set {ENVIRONMENT_ENTRIES} at most")
    for key, value in env.items():
        if not key or len(key) > ENVIRONMENT_KEY or "=" in key or not _is_plain(key):
            raise _refuse(
                f"env holds the name {key[:80]!a}",
                f"names are ASCII, 1 to {ENVIRONMENT_KEY} characters, without '='",
            )
        if len(value) > ENVIRONMENT_VALUE or not _is_plain(value):
            raise _refuse(  # the value itself may be a secret
                f"the value of {key} in env has {len(value)} characters or is not ASCII",
                f"values are ASCII, {ENVIRONMENT_VALUE} characters at most",
            )


def _is_plain(word: str) -> bool:
    return word.isascii() and "\0" not in word


def _refuse(message: str, remedy: str) -> ToolValidationError:
    return ToolValidationError(message, remedy=remedy)
