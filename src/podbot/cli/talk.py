"""Questions to a person, a line each: at a terminal, and the same through a pipe.

An answer is never assumed: the end of input is None, and whoever asked takes the way that changes
nothing.
"""

from __future__ import annotations

import contextlib
import sys
import termios
from collections.abc import Iterable
from typing import TextIO

from podbot.cli import wording
from podbot.cli.wording import Display
from podbot.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Talk:
    """Who is spoken to (``out``), and how that looks."""

    out: TextIO
    display: Display

    def say(self, text: str = "") -> None:
        """One line or several, broken where they would not fit."""
        width = self.display.width
        rows = (row for line in text.split("\n") for row in wording.wrapped(line, width))
        self.show(rows)

    def show(self, lines: Iterable[str]) -> None:
        """Lines as they are: contents are not broken by us."""
        self.out.write("".join(f"{line}\n" for line in lines))
        self.out.flush()

    def ask(self, question: str) -> str | None:
        """The answer without blanks around it, None at the end of input (Ctrl-D)."""
        width = self.display.width
        room = None if width is None else max(20, width - 6)  # some for the answer
        rows = wording.wrapped(self.display.paint(question, "title"), room)
        self.out.write("\n".join(rows) + " ")
        self.out.flush()
        try:
            line = sys.stdin.readline() if sys.stdin is not None else ""
        except UnicodeDecodeError:
            line = "\n"  # not an answer to anything
        except ValueError:
            line = ""  # closed
        if not wording.is_terminal(sys.stdin) or not line:
            self.out.write("\n")  # a typed answer would have ended the line
        return line.strip() if line else None

    def is_sure(self, question: str) -> bool:
        """Whether the answer is a yes, and nothing else."""
        return (self.ask(f"{question} [y/N]") or "").lower() in ("y", "yes")

    def forget_typed(self) -> None:
        """Drop what was typed before the first question: it was meant for another program."""
        if wording.is_terminal(sys.stdin):
            with contextlib.suppress(termios.error, OSError, ValueError):
                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def tell(text: str) -> None:
    """Print what a person should read, broken where it would not fit on a terminal."""
    talk_on(sys.stdout).say(text)


def warn(text: str) -> None:
    """The same on stderr."""
    talk_on(sys.stderr).say(text)


def talk_on(stream: TextIO) -> Talk:
    """A talk that is printed on a stream."""
    wording.never_fail(stream)
    return Talk(stream, wording.display_of(stream))
