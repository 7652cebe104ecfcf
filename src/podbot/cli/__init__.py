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

    from podbot.errors import PodbotError

    class Command(Protocol):
        """What the module of a command offers."""

        def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

        def run(self, arguments: argparse.Namespace) -> int: ...

    class QuickCommand(Command, Protocol):
        """One whose start counts: it reads plain command lines by itself."""

        def quick(self, words: list[str]) -> int | None: ...


# Each command: the module it lives in, and its line in `podbot --help`.
COMMANDS = {
    "run": ("podbot.cli.run", "run a command in a sandbox, then decide about its changes"),
    "shell": ("podbot.cli.shell", "open a shell in a sandbox of the current folder"),
    "changes": ("podbot.cli.changes", "look at what sandboxes changed; apply, undo or discard it"),
    "net": ("podbot.cli.net", "see what runs reached of the network, and what not"),
    "mcp": ("podbot.cli.mcp", "serve the tools to an MCP client: Claude Code, Codex, …"),
    "ps": ("podbot.cli.ps", "list the containers podbot made"),
    "exec": ("podbot.cli.exec", "run a command in one of them"),
    "stop": ("podbot.cli.stop", "end containers and remove them"),
    "image": ("podbot.cli.image", "build images for containers, without a registry"),
    "doctor": ("podbot.cli.doctor", "try out what this host can enforce"),
    "gc": ("podbot.cli.gc", "remove what dead sandboxes left, keep what holds changes"),
    "completion": ("podbot.cli.completion", "make Tab complete podbot in bash, zsh or fish"),
}

QUICK = ("run", "shell")
"""Commands that people put before others: these start without argparse if they can."""

READING = (*QUICK, "changes", "completion")
"""Commands that may read their words by themselves: argparse takes time, and a ``--`` away."""

LEAVING = (*QUICK, "changes")
"""Commands whose end counts, too."""

PLAIN_SPOKEN = ("mcp", "completion")
"""Commands without ``--json``: it is a mistake there."""

LENDING = (*QUICK, "exec")
"""Commands whose stdout is another command's: what they tell programs is a line on stderr."""

LISTENING = (*QUICK, "mcp")
"""Commands that deal with the signals that tell us to end by themselves."""

ABOUT = "Run AI agents and their tools in sandboxes you can see into, review and undo."
EXAMPLES = """\
examples:
  podbot run -- make test  run it in a sandbox; see what it changed, and decide
  podbot shell             the same with a shell, to try things
  podbot changes           what waits for a decision; show, diff, apply, pick, undo, …
  podbot net log           what did the latest run connect to? (podbot run --allow HOST)
  podbot mcp               the same sandbox for the tools of Claude Code, Codex, …
  podbot image build       an image for containers, without any registry
  podbot ps                which containers are there? exec and stop act on them
  podbot doctor            what can this host enforce, and how to get what is missing?
  podbot doctor --json     the same for scripts; exit code 0 if the overlay backend runs
  podbot gc --dry-run      what did crashed sandboxes leave behind?
  podbot gc                remove it; layers that hold changes are kept

Programs use the library:

  import podbot.sandbox
  with podbot.sandbox.open("overlay", target="~/project") as sandbox:
      print(sandbox.exec(["make", "test"]).stdout)

exit codes: 0 done, 1 the answer is no, 2 it could not be done or asked (the reason and
a remedy are on stderr), 130 interrupted, 143 told to end. `run`, `shell` and `exec` end
as their command does."""

FAILED = 2
PODBOT_FAILED = 125

SIGNALLED = 128  # a shell adds the number of the signal that ended a program
SIGINT = 2  # not from signal, which costs time


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came: what Ctrl-C tidies up is tidied up then too."""

    number = SIGINT


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command and return its exit code; wrong usage exits with 2."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words in (["--version"], ["-V"]):
        print(f"podbot {__version__}")
        return 0
    if sys.stdout is None and not (words and words[0] in QUICK):
        return _cannot_tell(words, "standard output is closed")
    if sys.stderr is None:  # closed: what would be said there is said to nobody
        import os

        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it lasts as long as we do
    try:
        if argv is None:
            _see_children_end()
        if argv is None and not (words and words[0] in LISTENING):
            _end_as_by_ctrl_c()
        try:
            code = _dispatch(words)
        except SystemExit:  # of `--help`: what it printed must be out, too
            if sys.stdout is not None:
                sys.stdout.flush()
            raise
        if sys.stdout is not None:
            sys.stdout.flush()
        if argv is None and words and words[0] in LEAVING:
            _leave(code)
    except Terminated as ended:
        return SIGNALLED + ended.number
    except KeyboardInterrupt:
        return SIGNALLED + SIGINT
    except BrokenPipeError:
        # The reader (`| head`) has gone; keep the interpreter from flushing into
        # the closed pipe once more on its way out.
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _cannot_tell(words, f"{error.strerror or error}", error.filename)
    return code


def _see_children_end() -> None:
    """Undo what some parents leave behind: blocked signals, and ends of children unheard of.

    Signals to us that are ignored stay so: that is what `nohup` and a script's `&` are for.
    """
    import _signal  # type: ignore[import-not-found]  # built in; the plain one costs time

    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    if _signal.getsignal(_signal.SIGCHLD) == _signal.SIG_IGN:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)


def _end_as_by_ctrl_c() -> None:
    """Have SIGTERM and SIGHUP end us as Ctrl-C does, unless somebody had them ignored."""
    import _signal  # the plain one costs time

    def terminate(number: int, _frame: object) -> None:
        error = Terminated()
        error.number = number
        raise error

    for number in (_signal.SIGTERM, _signal.SIGHUP):
        if _signal.getsignal(number) == _signal.SIG_DFL:
            _signal.signal(number, terminate)


def _cannot_tell(words: list[str], why: str, file: object = None) -> int:
    """Say in a line what the system refused: most often the output, on a full disk."""
    import os
    from contextlib import suppress

    name = f"podbot {words[0]}" if words and words[0] in COMMANDS else "podbot"
    with suppress(OSError):
        print(f"{name}: {why}" + ("" if file is None else f": {file!a}"), file=sys.stderr)
    # What is still held back cannot be written either: let the interpreter's last try go nowhere,
    # which would end us with a code of its own.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            with suppress(OSError, ValueError, AttributeError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    # Those that end as their command does have a code of their own for what podbot cannot do.
    return PODBOT_FAILED if words and words[0] in ("run", "shell", "exec") else FAILED


def _leave(code: int) -> None:
    """End at once: all is done, and taking the interpreter down would take longer than the rest."""
    import os

    sys.stderr.flush()
    os._exit(code)


def _open_standard_streams() -> None:
    """See to it that 0, 1 and 2 are open: else a socket of ours could become one of them."""
    import os

    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    # The interpreter has nothing in the place of those that were closed when it started.
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _begin_sandbox(words: list[str]) -> None:
    """Start what will make the sandbox before we load what will need it."""
    if "--help" not in words and "-h" not in words:
        from podbot.sandbox.overlay import ahead

        ahead.begin()


def _dispatch(words: list[str]) -> int:
    if words and words[0] in QUICK:
        _open_standard_streams()
        _begin_sandbox(words)
    from importlib import import_module
    from typing import cast

    if words and words[0] in READING:
        code = cast("QuickCommand", import_module(COMMANDS[words[0]][0])).quick(words[1:])
        if code is not None:
            return code
    from podbot.cli.usage import Misread, Parser

    parser = Parser(
        prog="podbot",
        description=ABOUT,
        epilog=EXAMPLES,
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
    if not words:
        parser.print_help(sys.stderr)
        parser.exit(FAILED)
    from podbot.errors import ConfigError, PodbotError

    try:
        arguments = parser.parse_args(words)
        assert command is not None  # noqa: S101 - argparse has refused any other word
        return command.run(arguments)
    except Misread as wrong:
        if not _tell_programs(words, ConfigError(wrong.message, remedy=wrong.remedy)):
            from podbot.cli.talk import warn

            warn(wrong.as_text)
        raise
    except PodbotError as error:
        from podbot.cli.remedies import to_type

        _tell_programs(words, to_type(error))
        from podbot.cli import wording
        from podbot.cli.talk import warn

        warn(f"podbot {wanted}: {wording.message(str(error))}")
        return FAILED


def _tell_programs(words: list[str], error: "PodbotError") -> bool:
    """Tell programs of an error, if that is who asked; whether people need not be told too."""
    own = words[: words.index("--")] if "--" in words else words
    if words[0] == "exec":
        from podbot.cli.exec import own_words

        own = own_words(words[1:])
    if "--json" not in own or words[0] in PLAIN_SPOKEN:
        return False
    from podbot.review import data

    failure = data.failure(error)
    if words[0] in LENDING:
        from importlib import import_module

        teller = import_module("podbot.cli.exec" if words[0] == "exec" else "podbot.cli.run")
        teller.tell({"outcome": "failed", **failure})
        return True
    import json

    print(json.dumps(failure, indent=2), flush=True)
    return False
