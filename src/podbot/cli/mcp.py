"""`podbot mcp`: podbot's tools as an MCP server on stdin and stdout.

stdout belongs to the protocol; whatever podbot itself has to say goes to stderr. Nothing here
decides what a sandbox may do: words become a `ServeRequest`, an outcome becomes an exit code.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from podbot.cli.notes import missing_keys
from podbot.cli.run import NOT_REVIEWED, say, variables, worth_saying
from podbot.cli.run_options import absolute, network_of, seconds
from podbot.cli.wording import is_terminal
from podbot.sandbox import backends
from podbot.sandbox.network import Network

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from podbot.mcp import ServeRequest, Started

ABOUT = """\
Serve podbot's tools (ls, read_file, write_file, edit_file, glob, grep, rm, shell_execute,
evaluate_python) to an MCP client over stdin and stdout. By default they work in a sandbox
of the current folder: what they change is kept apart until you have seen it."""

EXAMPLES = """\
examples:
  claude mcp add podbot -- podbot mcp               Claude Code, in the folder it runs in
  codex mcp add podbot -- podbot mcp --target ~/a   Codex, always in ~/a
  podbot mcp --allow pypi --allow npm               commands can install, and reach nothing else
  podbot mcp --net host --env API_KEY               with the network and a key of yours
  podbot mcp --backend memory                       files in memory; no commands

backends:
  overlay   the folder, copy-on-write, closed in; afterwards: podbot changes show last
  container the same in a container of Podman or Docker (podman means the same)
  memory    files in memory: a copy of --target, or none at all; nothing can be run
  local     ISOLATES NOTHING: works on --target itself; without one, in a temporary folder
  another   of a package that is installed, by its name; it says itself what it keeps to

The target and what is visible are fixed by these options; no client or model can change
them. The server ends when its client hangs up, and everything it started with it.

exit codes: 0 the client hung up; 2 it could not start; 128 + N signal N ended it."""


class _Known:
    """The names of backends; those of other packages are looked for only if that is asked."""

    def __contains__(self, name: object) -> bool:
        return name in backends.NAMES or name in backends.others()

    def __iter__(self) -> Iterator[str]:
        yield from backends.NAMES
        yield from backends.others()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `podbot mcp`."""

    parser.description, parser.epilog = ABOUT, EXAMPLES
    parser.add_argument(
        "--backend",
        choices=_Known(),
        type=backends.real_name,
        default=backends.OVERLAY,
        metavar="BACKEND",
        help="where the tools work: overlay (the default), container, memory, local (ISOLATES "
        "NOTHING), or one that a package brings",
    )
    parser.add_argument("--target", metavar="DIR", help="the folder they work on; see below")
    parser.add_argument(
        "--net",
        choices=Network.WORDS,
        help="the network of commands: none (the default), the host's, or what --allow names",
    )
    parser.add_argument(
        "--allow", action="append", default=[], metavar="HOST[:PORT]",
        help="let commands reach this host, and none that is not named; or a preset, such as pypi",
    )  # fmt: skip
    parser.add_argument(
        "--route", action="append", default=[], metavar="NAME[=SOURCE]",
        help="let commands use a model with a key that stays outside, as podbot run --route",
    )  # fmt: skip
    parser.add_argument(
        "--hide", action="append", default=[], metavar="PATH",
        help="a path to hide from the tools, besides keys and logins",
    )  # fmt: skip
    parser.add_argument(
        "--show", action="append", default=[], metavar="PATH", help="an exception to what is hidden"
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]",
        help="pass a variable of yours on to commands, or set one",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=_seconds, metavar="TIME", help="the most one call may take: 90, 90s, 2m"
    )
    parser.add_argument(
        "--data", action="store_true",
        help="send results as data too, for programs (an agent's model then sees only JSON)",
    )  # fmt: skip
    parser.add_argument("--image", metavar="IMAGE", help="the container's image")
    parser.add_argument("--name", metavar="NAME", help="call the changes so, instead of by an id")


def run(arguments: argparse.Namespace) -> int:
    """Serve until the client hangs up; gives the exit code."""
    from podbot.mcp import claim

    if is_terminal(sys.stdin):
        say("mcp", "waiting for an MCP client on standard input; Ctrl-D ends it")
    line = claim()  # before anything else: from here on stdout is the client's alone
    if arguments.backend == backends.OVERLAY:
        from podbot.sandbox.overlay import ahead

        ahead.begin()  # it starts while we load what else we need
    from podbot.mcp import serve

    served = serve(_request(arguments), line, on_start=_started)
    if served.problem is not None:
        say("mcp", served.problem)
    if served.changes is not None:
        name = arguments.name or served.changes
        say("mcp", f"what the tools changed is kept: podbot changes show {name}")
    return served.exit_status


def _request(arguments: argparse.Namespace) -> ServeRequest:
    from podbot.mcp import LaunchRequest, ServeRequest

    values, names = variables(arguments.env, "mcp")
    launch = LaunchRequest(
        _command(arguments),
        targets=() if arguments.target is None else (arguments.target,),
        network=network_of(
            None if arguments.net is None else Network(arguments.net), arguments.allow
        ),
        routes=tuple(arguments.route),
        hide=tuple(map(absolute, arguments.hide)),
        show=tuple(map(absolute, arguments.show)),
        environment=values,
        pass_environment=names,
        name=arguments.name,
        backend=arguments.backend,
        image=arguments.image,
    )
    for note in missing_keys(launch):
        say("mcp", f"note: {note}")
    return ServeRequest(launch, call_seconds=arguments.timeout, data=arguments.data)


def _command(arguments: argparse.Namespace) -> tuple[str, ...]:
    """What the record of the changes says was run: no values of variables, which may be secret,
    and of routes no more than their names."""
    words = ["podbot", "mcp"]
    for option in ("backend", "target", "net"):
        value = getattr(arguments, option)
        if value is not None:
            words += [f"--{option}", value]
    for host in arguments.allow:
        words += ["--allow", host]
    for route in arguments.route:
        words += ["--route", re.split("[@=]", route)[0]]
    return tuple(words)


def _started(started: Started) -> None:
    """The tools can be called: say what the person would not expect."""
    for note in worth_saying(started.notes):
        say("mcp", f"note: {note}")
    if started.backend == backends.LOCAL:
        say("mcp", f"note: nothing isolates the tools; they work on {started.workdir} itself")
    elif not started.reviewed and started.backend != backends.MEMORY:
        say("mcp", f"note: {NOT_REVIEWED.format(backend=started.backend)}")


def _seconds(text: str) -> float:
    import argparse

    try:
        return seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
