"""Long output for a person at a terminal: through the pager of their choice, a page at a time.

The pager comes from the user's environment alone, and is never taken from the current folder or a
relative entry of ``PATH``: both may belong to the tree under review. In a pipe or file the lines
go straight through. What is written here was made safe before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, TextIO

from podbot.cli import wording

if TYPE_CHECKING:
    import subprocess

DEFAULT = "less -FRX"


def show(lines: Iterable[str], out: TextIO) -> None:
    """Print lines, through a pager if they do not fit on the screen of a terminal.

    Lines are asked for as they are read, so leaving the pager early leaves the rest undone.
    """
    waiting = iter(lines)
    command = _command() if wording.is_terminal(out) else None
    if command is None:
        _print(waiting, out)
        return
    import shutil

    screen = shutil.get_terminal_size()
    first = list(_one_screen(waiting, screen.lines - 1, screen.columns))
    after = list(islice(waiting, 1))
    if not after:
        _print(first, out)
    else:
        _through(command, chain(first, after, waiting), out)


def _print(lines: Iterable[str], out: TextIO) -> None:
    for line in lines:
        out.write(line + "\n")
    out.flush()


def _one_screen(lines: Iterator[str], height: int, width: int) -> Iterator[str]:
    taken = 0
    while taken < height and (line := next(lines, None)) is not None:
        yield line
        taken += 1 + max(0, wording.cells(line) - 1) // max(1, width)


def _command() -> list[str] | None:
    """The pager to run, None for none."""
    import shlex

    chosen = os.environ.get("PODBOT_PAGER", os.environ.get("PAGER", DEFAULT))
    try:
        parts = shlex.split(chosen)
    except ValueError:
        return None
    if not parts or parts == ["cat"] or os.environ.get("TERM", "dumb") == "dumb":
        return None
    program = _program(parts[0])
    if program is None:
        return None
    # Colours are ours and everything else was spelled out, so less may show them as they are.
    raw = ["-R"] if os.path.basename(program) == "less" else []
    return [program, *parts[1:], *raw]


def _program(word: str) -> str | None:
    if "/" in word:
        return word if os.path.isabs(word) else None
    import shutil

    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which(word, path=os.pathsep.join(filter(os.path.isabs, folders)))


def _through(command: list[str], lines: Iterable[str], out: TextIO) -> None:
    import subprocess

    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LESSOPEN", "LESSCLOSE")  # programs that less would run on its input
    }
    environment["LESSSECURE"] = "1"  # no shell, no editor, no log file from within less
    environment.setdefault("LESS", "FRX")
    try:
        # From the root folder: nothing that lies in the tree under review is near.
        pager = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out.fileno(), env=environment, cwd="/"
        )
    except OSError:
        _print(lines, out)
        return
    assert pager.stdin is not None  # noqa: S101 - asked for above
    encoding = out.encoding or "utf-8"
    try:
        for line in lines:
            pager.stdin.write((line + "\n").encode(encoding, "backslashreplace"))
    except BrokenPipeError:
        pass  # the reader has seen enough
    except KeyboardInterrupt:
        pass  # Ctrl-C was for the pager, which got it too
    finally:
        _wait(pager)


def _wait(pager: subprocess.Popen[bytes]) -> None:
    """Until the pager has given the terminal back; it decides what Ctrl-C means meanwhile."""
    while True:
        try:
            if pager.stdin is not None and not pager.stdin.closed:
                with contextlib.suppress(BrokenPipeError):
                    pager.stdin.close()
            pager.wait()
            return
        except KeyboardInterrupt:
            continue
