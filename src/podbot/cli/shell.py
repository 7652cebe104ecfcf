"""`podbot shell`: an interactive shell in a sandbox of the current folder.

The same as `podbot run` with the user's shell as the command, and a hint in its prompt.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from podbot.cli.run import perform
from podbot.cli.run_options import Options, add_options, plain, told
from podbot.frozen import replace

if TYPE_CHECKING:
    import argparse

ABOUT = """\
Open a shell in a sandbox of the current folder. Whatever you change there is kept apart
until you leave; then you see it and decide."""

EXAMPLES = """\
examples:
  podbot shell                 look around, try things; exit, or Ctrl-D, to decide
  podbot shell --in last       go on in the changes of the latest run
  podbot shell --discard       nothing you do there will stay

The shell is $SHELL if that is installed, else bash, else sh. Inside, $PODBOT_RUN is
the id of the run. exit codes: as podbot run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `podbot shell`."""
    parser.description, parser.epilog = ABOUT, EXAMPLES
    add_options(parser)


def quick(words: list[str]) -> int | None:
    """Open the shell of a plain command line without argparse; None if it is not plain."""
    options = plain(words)
    return None if options is None or options.words or "--" in words else _open(options)


def run(arguments: argparse.Namespace) -> int:
    """Open the shell and see to its changes; gives its exit code."""
    return _open(told(arguments))


def _open(options: Options) -> int:
    return perform("shell", replace(options, words=(shell(),)), hints())


def shell() -> str:
    """The user's shell, or the next best."""
    own = os.environ.get("SHELL", "")
    if os.path.isabs(own) and os.access(own, os.X_OK):
        return own
    from shutil import which

    return which("bash") or "sh"


def hints() -> dict[str, str]:
    """What makes a prompt say where one is: shells without a start-up file take PS1 as it is,
    and the one Debian gives to bash shows the other."""
    return {"PS1": "(podbot) \\w \\$ ", "debian_chroot": "podbot"}
