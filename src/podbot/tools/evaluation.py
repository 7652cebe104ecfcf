"""``evaluate_python``: a piece of Python, run by a fresh interpreter inside the sandbox.

The code goes in on stdin, so it may have any size; nothing of one call is left for the next but
files. The workspace can be imported from, but only behind the standard library, so that a file
called ``shutil.py`` cannot take its place. Model code never runs in this process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from podbot.errors import ToolValidationError
from podbot.sandbox.sandbox import Sandbox
from podbot.tools.shell import TRUNCATED

SECONDS = 5.0
STREAM_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class EvalParams:
    """Code to run. The other fields exist for callers of older tools and must be empty."""

    code: str = field(
        metadata={
            "description": "Python to run. The value of a last line that is an expression is "
            "given back. Variables do not outlive the call; files in the workspace do."
        }
    )
    globals: Mapping[str, str] = field(
        default_factory=dict, metadata={"description": "Must be empty."}
    )
    reads: tuple[str, ...] = field(default=(), metadata={"description": "Must be empty."})
    writes: tuple[str, ...] = field(default=(), metadata={"description": "Must be empty."})


@dataclass(frozen=True, slots=True)
class EvalResult:
    """What the code gave. ``globals``, ``reads`` and ``writes`` are always empty here.

    ``value_repr`` is None when the last line is no expression, gave None, or when the code printed
    so much that its end was cut off.
    """

    value_repr: str | None
    stdout: str
    stderr: str
    globals: Mapping[str, str] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    def render(self) -> str:
        """For a model."""
        parts = [] if self.value_repr is None else [f"value: {self.value_repr}"]
        for name in ("stdout", "stderr"):
            text: str = getattr(self, name)
            if text:
                parts.append(f"{name}:\n{text}")
        return "\n".join(parts) or "(no output)"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A result, and how the interpreter ended."""

    result: EvalResult
    exit_code: int
    timed_out: bool


def check(params: EvalParams, most_characters: int | None) -> None:
    """Refuse what this tool does not do; ``most_characters`` of code are allowed, if not None."""
    for name in ("globals", "reads", "writes"):
        if getattr(params, name):
            raise ToolValidationError(
                f"{name} is not supported",
                remedy=f"leave {name} out; the code can open files of the workspace itself",
            )
    if not params.code.strip():
        raise ToolValidationError("code is empty", remedy="send the Python to run")
    if most_characters is not None and len(params.code) > most_characters:
        raise ToolValidationError(
            f"code has {len(params.code)} characters",
            remedy=f"send {most_characters} at most; write a longer script with write_file and "
            "run it with shell_execute",
        )


def evaluate(sandbox: Sandbox, code: str, seconds: float = SECONDS) -> Evaluation:
    """Run code in a new interpreter of the sandbox."""
    try:
        code.encode("utf-8")
    except UnicodeEncodeError:
        raise ToolValidationError(
            "code holds half a character (a lone surrogate)", remedy="send whole characters"
        ) from None
    done = sandbox.evaluate(code, timeout=seconds)
    stderr = done.stderr
    if done.timed_out:
        stderr += f"the code ran longer than {seconds:g} seconds and was ended\n"
    result = EvalResult(
        value_repr=None if done.value is None else cut(done.value),
        stdout=cut(done.stdout),
        stderr=cut(stderr),
    )
    return Evaluation(result, done.exit_code, done.timed_out)


def cut(text: str, limit: int = STREAM_CHARACTERS) -> str:
    """A text of ``limit`` characters at most, the mark of what was cut included."""
    return text if len(text) <= limit else text[: limit - len(TRUNCATED)] + TRUNCATED
