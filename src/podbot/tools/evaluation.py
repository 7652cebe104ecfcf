"""``evaluate_python``: a piece of Python, run by a fresh interpreter inside the sandbox.

The code goes in on stdin, so it may have any size; nothing of one call is left for the next but
files. The workspace can be imported from, but only behind the standard library, so that a file
called ``shutil.py`` cannot take its place. Model code never runs in this process.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from podbot.errors import ToolValidationError
from podbot.sandbox.sandbox import Sandbox
from podbot.tools.shell import TRUNCATED

SECONDS = 5.0
STREAM_CHARACTERS = 4096

# Runs isolated (-I): neither the workspace nor a variable decides what is imported here. What the
# last expression gave comes after a mark at the end of stdout; forging it deceives nobody but the
# forger.
_PROGRAM = r"""
import sys
code = sys.stdin.buffer.read().decode("utf-8")
mark, workspace = sys.argv[1:3]
sys.argv = [""]
sys.path.append(workspace)
def run():
    import _ast  # the plain one imports half the library
    main = type(sys)("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    tree = compile(code, "<code>", "exec", _ast.PyCF_ONLY_AST, True)
    last = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = _ast.Expression(tree.body.pop().value)
    exec(compile(tree, "<code>", "exec", 0, True), main.__dict__)
    if last is not None:
        value = eval(compile(last, "<code>", "eval", 0, True), main.__dict__)
        return None if value is None else repr(value)
def hook(kind, error, trace):
    import linecache, traceback
    linecache.cache["<code>"] = (len(code), None, code.splitlines(True), "<code>")
    while trace is not None and trace.tb_frame.f_code.co_filename != "<code>":
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(encoding="utf-8", errors="backslashreplace")
sys.excepthook = hook
value = run()
if value is not None:
    data = value[:LIMIT].encode("utf-8", "backslashreplace")
    if sys.stdout:
        sys.stdout.flush()
    sys.__stdout__.buffer.write(b"\0%s:%d:" % (mark.encode(), len(data)) + data)
    sys.__stdout__.flush()
""".replace("LIMIT", str(STREAM_CHARACTERS + 1))


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
    mark = secrets.token_hex(8)
    try:
        text = code.encode("utf-8")
    except UnicodeEncodeError:
        raise ToolValidationError(
            "code holds half a character (a lone surrogate)", remedy="send whole characters"
        ) from None
    argv = ["python3", "-I", "-c", _PROGRAM, mark, sandbox.workdir]
    done = sandbox.exec(argv, stdin=text, timeout=seconds)
    stdout, value = _parted(done.stdout_bytes, mark)
    stderr = done.stderr
    if done.timed_out:
        stderr += f"the code ran longer than {seconds:g} seconds and was ended\n"
    result = EvalResult(
        value_repr=None if value is None else cut(value),
        stdout=cut(stdout),
        stderr=cut(stderr),
    )
    return Evaluation(result, done.exit_code, done.timed_out)


def cut(text: str, limit: int = STREAM_CHARACTERS) -> str:
    """A text of ``limit`` characters at most, the mark of what was cut included."""
    return text if len(text) <= limit else text[: limit - len(TRUNCATED)] + TRUNCATED


def _parted(data: bytes, mark: str) -> tuple[str, str | None]:
    """What was printed, and the value that comes behind the mark."""
    before, found, after = data.rpartition(b"\0" + mark.encode() + b":")
    size, colon, rest = after.partition(b":")
    if not found or not colon or not size.isdigit() or len(size) > 8 or len(rest) < int(size):
        return data.decode("utf-8", "replace"), None
    value = rest[: int(size)].decode("utf-8", "replace")
    # What something in the background printed after it belongs to the output.
    return (before + rest[int(size) :]).decode("utf-8", "replace"), value
