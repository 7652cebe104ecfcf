"""Where a credential lies on the host: a variable, a file, or what a command prints.

These values name the place and never hold the secret; it is read when a request needs it, so that
one that is renewed meanwhile is used at once.
"""

from __future__ import annotations

import os
from typing import Protocol

from podbot.errors import EgressError, Kind
from podbot.frozen import dataclass

_LARGEST = 64 * 1024
_COMMAND_SECONDS = 30.0


class Source(Protocol):
    """Gives a credential."""

    def read(self) -> str:
        """The credential as it is now; `EgressError` if there is none. Called in a thread."""


@dataclass(frozen=True, slots=True)
class FromVariable:
    """A credential in a variable of the host's environment."""

    name: str

    def read(self) -> str:
        """It as it is now; `EgressError` if it is not set."""
        return _one_line(os.environ.get(self.name, ""), f"the variable {self.name}")


@dataclass(frozen=True, slots=True)
class FromFile:
    """A credential that is all there is in a file of the host."""

    path: str

    def read(self) -> str:
        """It as it is now; `EgressError` if the file cannot be read."""
        try:
            with open(self.path, encoding="ascii") as file:
                text = file.read(_LARGEST)
        except OSError as error:
            raise _none(f"the file {self.path}", error.strerror or "it cannot be read") from None
        except UnicodeError:
            raise _none(f"the file {self.path}", "it holds what no credential does") from None
        return _one_line(text, f"the file {self.path}")


@dataclass(frozen=True, slots=True)
class FromCommand:
    """A credential that a command of the host prints, such as a password manager's."""

    argv: tuple[str, ...]

    def read(self) -> str:
        """What it prints now; `EgressError` if it fails or takes too long."""
        import subprocess

        what = f"the command {self.argv[0]}" if self.argv else "an empty command"
        try:
            done = subprocess.run(
                self.argv,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_COMMAND_SECONDS,
            )
        except (OSError, ValueError, IndexError):
            raise _none(what, "it does not start") from None
        except subprocess.TimeoutExpired:
            raise _none(what, f"it took longer than {_COMMAND_SECONDS:g} s") from None
        if done.returncode:  # what it says about that may hold secrets
            raise _none(what, f"it ended with {done.returncode}")
        return _one_line(done.stdout[:_LARGEST].decode("ascii", "replace"), what)


def _one_line(text: str, what: str) -> str:
    """The credential in a text: one line that can stand in a header."""
    text = text.strip()
    if not text:
        raise _none(what, "it is empty or not set")
    if not text.isascii() or not text.isprintable():
        raise _none(what, "it holds what no credential does")
    return text


def _none(what: str, why: str) -> EgressError:
    return EgressError(
        f"there is no credential in {what}: {why}",
        kind=Kind.NO_CREDENTIAL,
        remedy="set it on the host, or name another source",
    )
