"""`podbot stop`: end containers that podbot made, whoever owns them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, cast

from podbot.cli import wording
from podbot.cli.ps import ENGINE, NAME, data
from podbot.cli.talk import warn
from podbot.errors import ConfigError, PodbotError

if TYPE_CHECKING:
    from podbot.launch.containers import ContainerInfo, Failure

ABOUT = """\
End containers that podbot made, and remove them. An agent is asked to end first and
killed after ten seconds; a sandbox of tools is killed at once. What was written to a
workspace on this machine stays and can be reviewed; what else was written in the
container goes with it, unless --keep is given. A sandbox's container cannot be kept:
it goes when it ends."""

EXAMPLES = """\
examples:
  podbot stop wink-4f2a          end one, by its name, its id or the start of either
  podbot stop --all              end every container that `podbot ps` lists
  podbot stop --keep NAME        end an agent's, but keep it for the engine's own commands
  podbot gc                      end only those whose owner is gone

exit codes: 0 done, 2 at least one could not be stopped; the others are."""

FAILED = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `podbot stop`."""
    parser.description, parser.epilog = ABOUT, EXAMPLES
    parser.usage = "podbot stop [--keep] [--json] [--engine URL] (NAME... | --all)"
    parser.add_argument("names", metavar="NAME", nargs="*", help=NAME)
    parser.add_argument("--all", action="store_true", help="every container of podbot's")
    parser.add_argument(
        "--keep", action="store_true", help="end it, but do not remove it; not for sandboxes"
    )
    parser.add_argument("--json", action="store_true", help="print what was stopped as JSON")
    parser.add_argument("--engine", metavar="URL", help=ENGINE)


def run(arguments: argparse.Namespace) -> int:
    """Stop them and say which; one that cannot be stopped keeps no other running."""
    from podbot import api

    if bool(arguments.names) == bool(arguments.all):
        wrong = "name containers, or give --all" if not arguments.all else "--all takes no names"
        raise ConfigError(wrong, remedy="`podbot ps` lists them")
    stopped: list[ContainerInfo] = []
    failed: list[Failure] = []
    if arguments.all:
        done = api.stop_each(arguments.engine, keep=arguments.keep)
        stopped, failed = list(done.stopped), list(done.failed)
    for name in arguments.names:
        try:
            stopped.append(api.stop(name, arguments.engine, keep=arguments.keep))
        except PodbotError as error:
            failed.append(api.Failure(name, error))
    if arguments.json:
        from podbot.cli import as_data

        problems = [failure_data(each) for each in failed]
        as_data.show({"stopped": [data(each) for each in stopped], "failed": problems})
    else:
        for each in stopped:
            print(f"{'stopped' if arguments.keep else 'removed'}  {wording.name(each.name)}")
        if arguments.all and not stopped and not failed:
            print("podbot has no containers")
    for failure in failed:
        warn(f"podbot stop: {_failure_line(failure)}")
    return FAILED if failed else 0


def _failure_line(failure: Failure) -> str:
    """What was wrong, and with which: engines name some by their ids only."""
    name, text = wording.name(failure.name or ""), wording.message(str(failure.error))
    return text if name in text else f"{name}: {text}"


def failure_data(failure: Failure) -> dict[str, object]:
    """A failure under keys that stay."""
    from podbot.review import data

    error = data.failure(failure.error)["error"]
    return {"name": failure.name, **cast("dict[str, object]", error)}
