"""Questions to a person, a line each: at a terminal, and the same through a pipe.

An answer is never assumed: the end of input is None, and whoever asked takes the way that changes
nothing.
"""

from __future__ import annotations

import contextlib
import sys
import termios
from dataclasses import dataclass
from typing import TextIO

from podbot.cli import look
from podbot.cli.look import Look


@dataclass(frozen=True, slots=True)
class Talk:
    """Who is spoken to (``out``), and how that looks."""

    out: TextIO
    look: Look

    def say(self, text: str = "") -> None:
        """One line or several."""
        self.out.write(text + "\n")
        self.out.flush()

    def ask(self, question: str) -> str | None:
        """The answer without blanks around it, None at the end of input (Ctrl-D)."""
        self.out.write(self.look.paint(question, "title") + " ")
        self.out.flush()
        try:
            line = sys.stdin.readline() if sys.stdin is not None else ""
        except UnicodeDecodeError:
            line = "\n"  # not an answer to anything
        except ValueError:
            line = ""  # closed
        if not look.is_terminal(sys.stdin) or not line:
            self.out.write("\n")  # a typed answer would have ended the line
        return line.strip() if line else None

    def is_sure(self, question: str) -> bool:
        """Whether the answer is a yes, and nothing else."""
        return (self.ask(f"{question} [y/N]") or "").lower() in ("y", "yes")

    def forget_typed(self) -> None:
        """Drop what was typed before the first question: it was meant for another program."""
        if look.is_terminal(sys.stdin):
            with contextlib.suppress(termios.error, OSError, ValueError):
                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def talk_on(stream: TextIO) -> Talk:
    """A talk that is printed on a stream."""
    look.never_fail(stream)
    return Talk(stream, look.look_of(stream))
