"""The `podbot` command: arguments in, library calls, exit codes out; nothing else.

Starting must stay cheap: the modules of commands that were not asked for are never
imported, and `--version` does not even load argparse.
"""

import sys

from podbot import __version__

TYPE_CHECKING = False  # not from typing, which costs milliseconds
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Protocol

    class Command(Protocol):
        """What the module of a command offers."""

        def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

        def run(self, arguments: argparse.Namespace) -> int: ...


# Each command: the module it lives in, and its line in `podbot --help`.
COMMANDS = {
    "run": ("podbot.cli.run", "run a command in a sandbox, then decide about its changes"),
    "shell": ("podbot.cli.shell", "open a shell in a sandbox of the current folder"),
    "changes": ("podbot.cli.changes", "look at what sandboxes changed; apply, undo or discard it"),
    "doctor": ("podbot.cli.doctor", "try out what this host can enforce"),
    "gc": ("podbot.cli.gc", "remove what dead sandboxes left, keep what holds changes"),
}

ABOUT = "Run AI agents and their tools in sandboxes you can see into, review and undo."
EXAMPLES = """\
examples:
  podbot run -- make test  run it in a sandbox; see what it changed, and decide
  podbot shell             the same with a shell, to try things
  podbot changes           what waits for a decision; show, diff, apply, pick, undo, …
  podbot doctor            what can this host enforce, and how to get what is missing?
  podbot doctor --json     the same for scripts; exit code 0 if the overlay backend runs
  podbot gc --dry-run      what did crashed sandboxes leave behind?
  podbot gc                remove it; layers that hold changes are kept

Programs use the library:

  import podbot.sandbox
  with podbot.sandbox.open("overlay", target="~/project") as sandbox:
      print(sandbox.exec(["make", "test"]).stdout)

exit codes: 0 done, 1 the answer is no, 2 it could not be done or asked (the reason and
a remedy are on stderr), 130 interrupted. `run` and `shell` end as their command does."""

FAILED = 2

INTERRUPTED = 130  # what a shell reports for a program ended by SIGINT


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command and return its exit code; wrong usage exits with 2."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words in (["--version"], ["-V"]):
        print(f"podbot {__version__}")
        return 0
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone; keep the interpreter from flushing into
        # the closed pipe once more on its way out.
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _dispatch(words: list[str]) -> int:
    import argparse
    from importlib import import_module
    from typing import cast

    parser = argparse.ArgumentParser(
        prog="podbot",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"podbot {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", metavar="command", required=True, prog="podbot"
    )
    wanted = next((word for word in words if not word.startswith("-")), None)
    command: Command | None = None
    for name, (module, help_line) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=help_line, description=help_line)
        if name == wanted:
            command = cast("Command", import_module(module))
            command.add_arguments(subparser)
    arguments = parser.parse_args(words)
    assert command is not None  # noqa: S101 - argparse has refused any other word
    from podbot.errors import PodbotError

    try:
        return command.run(arguments)
    except PodbotError as error:
        print(f"podbot {arguments.command}: {error}", file=sys.stderr)
        return FAILED
