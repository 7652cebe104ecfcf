"""`podbot exec`: a command in a container of podbot's, on the caller's streams.

stdout and stderr belong to the command; the exit code is the command's.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from podbot.cli.ps import ENGINE, NAME
from podbot.cli.run_options import PODBOT_FAILED
from podbot.cli.usage import Parser
from podbot.errors import ConfigError, Kind, PodbotError

ABOUT = """\
Run a command in a container that podbot made and that runs. It is joined to your
streams, and has a terminal if your stdin and stdout both are one. With --detach it has
no streams; its end is still waited for. In a sandbox it starts in /workspace."""

EXAMPLES = """\
examples:
  podbot exec NAME -- sh                       look around, at a terminal
  podbot exec NAME -- cat /etc/os-release      or take its output
  tar -c . | podbot exec NAME -- tar -x -C /workspace
  podbot exec NAME --detach -- git fsck        only its exit code counts
  podbot exec NAME --env TERM --user 0 -- id
  podbot exec NAME --json -- make test         how it went as data, behind its stderr

exit codes: the command's own; 125 podbot or the engine failed, or there is no such folder
to start in; 126 the command cannot be executed; 127 there is no such command.

The command runs beside what the container is for, with the container's rights and
limits. What ends podbot ends it: Ctrl-C (twice kills it), SIGTERM, a closed window, a
reader that is gone. With --detach it goes on, and so it does after a kill -9 of podbot.
--json prints one line on stderr, the last one, in place of all else podbot would say."""

WORKDIR = "where it starts (default: /workspace in a sandbox, else what the image says)"

STATUSES = {Kind.COMMAND_NOT_FOUND: 127, Kind.COMMAND_NOT_EXECUTABLE: 126}
"""As a shell has it, for a command that was not started."""

VALUED = ("--env", "--workdir", "--user", "--engine")
"""Options whose value is the next word."""

USAGE = "podbot exec NAME [options] -- COMMAND..."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `podbot exec`."""
    parser.description, parser.epilog = ABOUT, EXAMPLES
    parser.usage = USAGE
    if isinstance(parser, Parser):
        parser.wrong = PODBOT_FAILED  # 2 would look like an exit code of the command
    _add_options(parser)
    parser.add_argument("container", metavar="NAME", help=NAME)
    parser.add_argument("words", nargs="...", metavar="COMMAND", help="what to run")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-d", "--detach", action="store_true", help="without streams")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="pass a variable of yours on, or set one (may be repeated)",
    )
    parser.add_argument("--workdir", metavar="DIR", help=WORKDIR)
    parser.add_argument("--user", metavar="UID[:GID]", help="as whom it runs")
    parser.add_argument("--engine", metavar="URL", help=ENGINE)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stderr at its end")


def run(arguments: argparse.Namespace) -> int:
    """Run it; gives its exit code."""
    command = _take_late_options(arguments)
    try:
        if not command:
            raise ConfigError("no command was given", remedy="podbot exec NAME -- COMMAND")
        return _run(arguments, tuple(command))
    except PodbotError as error:
        status = STATUSES.get(error.kind, PODBOT_FAILED)
        if not arguments.json:
            return _failed(str(error), status)
        from podbot.review import data

        tell({**_asked(arguments, command), "outcome": "failed", **data.failure(error)})
        return status
    except KeyboardInterrupt:
        if arguments.json:
            tell({**_asked(arguments, command), "outcome": "left"})
        raise


def _run(arguments: argparse.Namespace, command: tuple[str, ...]) -> int:
    from podbot import api

    request = api.ExecRequest(
        arguments.container,
        command,
        detach=arguments.detach,
        environment=_environment(arguments.env, quiet=arguments.json),
        workdir=arguments.workdir,
        user=arguments.user,
    )
    started = time.time()
    status = api.exec(request, engine=arguments.engine)
    if arguments.json:
        end = {"started": started, "ended": time.time(), "exit_status": status}
        tell({**_asked(arguments, command), "outcome": "ended", **end})
    return status


KEYS = (
    "outcome", "error", "container", "command", "detach", "workdir", "user", "started", "ended",
    "exit_status",
)  # fmt: skip
"""What --json tells, whatever came of it: null where there is nothing to tell."""


def tell(fields: Mapping[str, object]) -> None:
    """Tell programs how it went, behind all that the command wrote to stderr."""
    import json

    print(json.dumps({**dict.fromkeys(KEYS), **fields}), file=sys.stderr, flush=True)


def _asked(arguments: argparse.Namespace, command: Sequence[str]) -> dict[str, object]:
    from podbot.review import data

    return {
        **data.text("container", arguments.container),
        **data.texts("command", command),
        "detach": arguments.detach,
        **data.text("workdir", arguments.workdir),
        **data.text("user", arguments.user),
    }


def own_words(words: list[str]) -> list[str]:
    """Those of the words that are podbot's, if they can be told apart from the command's."""
    if "--" in words:
        return words[: words.index("--")]
    rest = iter(words)
    found = []
    for word in rest:
        if not word.startswith("-"):
            break  # the name; the command comes next
        found.append(word)
        if word in VALUED:
            next(rest, None)
    return found


def _take_late_options(arguments: argparse.Namespace) -> list[str]:
    """The command; options between the container's name and ``--`` are read too."""
    words: list[str] = arguments.words
    if words and words[0].startswith("-") and "--" in words:
        at = words.index("--")
        late, words = words[:at], words[at:]
        options = _Late(prog="podbot exec", usage=USAGE, add_help=False, allow_abbrev=False)
        options.read(late, arguments)
    return words[1:] if words[:1] == ["--"] else words


class _Late(Parser):
    """Reads options where the words of the command could be: whatever is not one is a mistake."""

    wrong = PODBOT_FAILED

    def read(self, words: list[str], into: argparse.Namespace) -> None:
        _add_options(self)
        found = vars(self.parse_args(words))
        for name, value in found.items():
            before = getattr(into, name)
            setattr(into, name, before + value if isinstance(value, list) else value or before)

    def error(self, message: str) -> NoReturn:
        super().error(f"{message}; the command comes after --")


def _environment(words: list[str], *, quiet: bool) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals or name in os.environ:
            found[name] = value if equals else os.environ[name]
        elif not quiet:
            print(f"podbot exec: note: --env {name}: there is no such variable", file=sys.stderr)
    return found


def _failed(text: str, status: int = PODBOT_FAILED) -> int:
    from podbot.cli import wording
    from podbot.cli.talk import warn

    warn(f"podbot exec: {wording.message(text)}")
    return status
