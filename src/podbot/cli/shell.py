"""`podbot shell`: an interactive shell in a sandbox of the current folder.

The same as `podbot run` with the user's shell as the command, and a hint in its prompt.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from podbot.cli.run import perform
from podbot.cli.run_options import Options, add_options, options_of, plain
from podbot.errors import PodbotError
from podbot.frozen import replace
from podbot.sandbox.backends import LOCAL, OVERLAY

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
  podbot shell --backend container --image debian:12

The shell is $SHELL if that is installed, else bash, else sh; in a container it is bash or
sh. Inside, $PODBOT_RUN is the id of the run.

backends, exit codes: as podbot run."""

PROMPTS = {"bash": "\\w \\$ ", "zsh": "%~ %# "}
"""How shells write the folder and what one is; all others are said to expand variables."""
OTHERS_PROMPT = "$PWD $ "

INSIDE = ("sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh")
"""A shell where nobody knows which there are."""


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
    return _open(options_of(arguments))


def _open(options: Options) -> int:
    words = (shell(),) if _is_here(options) else INSIDE
    return perform("shell", replace(options, words=words), hints(words[0], options.backend))


def _is_here(options: Options) -> bool:
    """Whether the programs inside are those of this machine."""
    backend = options.backend
    if backend is None and options.continue_in is not None:
        from podbot.runs import records

        with suppress(PodbotError):  # told when it is opened
            record = records.find(options.continue_in, records.here()).record
            backend = None if record is None else record.backend
    return backend in (None, OVERLAY, "archive", LOCAL)


def shell() -> str:
    """The user's shell, or the next best."""
    own = os.environ.get("SHELL", "")
    if os.path.isabs(own) and os.access(own, os.X_OK):
        return own
    from shutil import which

    return which("bash") or "sh"


def hints(shell: str, backend: str | None = None) -> dict[str, str]:
    """What makes a prompt say where one is: shells without a start-up file take PS1 as it is,
    and the one Debian gives to bash shows the other."""
    place = "not isolated" if backend == LOCAL else "podbot"
    prompt = PROMPTS.get(os.path.basename(shell), OTHERS_PROMPT)
    return {"PS1": f"({place}) {prompt}", "debian_chroot": place}
