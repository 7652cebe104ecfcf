"""`podbot run`: a command in a sandbox as if run bare, and then what becomes of its changes.

stdout belongs to the command; whatever podbot itself has to say goes to stderr. Nothing here
decides what a sandbox may do: it turns words into a `RunRequest` and an outcome into an exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Literal, NoReturn

from podbot.errors import PodbotError

if TYPE_CHECKING:
    from podbot.api import RunOutcome, RunRequest
    from podbot.changes.records import Record

PODBOT_FAILED = 125
"""Podbot itself could not do it, as with env(1), timeout(1) and container engines."""

ABOUT = """\
Run a command in a sandbox of the current folder, as if it ran bare: same terminal or
pipes, same signals, same exit status. What it changes is kept apart; at the end you see
it and decide. Without a terminal, or with --keep, the changes are kept for later."""

EXAMPLES = """\
examples:
  podbot run -- make test                   what it writes stays apart until you say so
  podbot run --yes -- ./format-all.sh       apply at the end, unless something is suspicious
  podbot run --net host -- npm install      with the network of the host
  podbot run --env API_KEY -- agent "fix the tests"
  podbot run --target ~/a --target ~/b -- ./sync
  podbot run --in last -- git diff          go on in the changes of the latest run
  podbot run --timeout 5m --keep --name nightly -- ./build.sh
  git ls-files | podbot run -- xargs wc -l  pipes work as ever

exit codes: the command's own; 128 + N (and the same death) if signal N killed it; 124 it
ran out of time; 125 podbot itself failed, or --yes was stopped by what needs a look; 126
the command cannot be executed; 127 there is no such command.

What the command leaves running in the background ends with it. --json prints one line on
stderr, the last one, in place of everything else podbot would say."""

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
HOME_NOTE = "other writes below "
"""How the note begins that holds for nearly every sandbox, and so is not worth a line each time."""

Decision = Literal["ask", "apply", "discard", "keep"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `podbot run`."""
    parser.description = ABOUT
    parser.epilog = EXAMPLES
    parser.usage = "podbot run [options] -- COMMAND..."
    add_options(parser)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options `podbot run` and `podbot shell` share."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "--target",
        action="append",
        metavar="DIR",
        help="a folder whose changes are kept apart; may be repeated; default: this folder",
    )
    add(
        "--in",
        dest="continue_in",
        metavar="ID",
        help="go on in the changes of an earlier run: its id, the start of it, its name, or last",
    )
    add(
        "--net",
        choices=("none", "host"),
        default="none",
        help="the network inside: none (the default), or the host's",
    )
    add(
        "--hide",
        action="append",
        default=[],
        metavar="PATH",
        help="a path that shall not exist inside, besides keys, logins and the like",
    )
    add(
        "--show",
        action="append",
        default=[],
        metavar="PATH",
        help="an exception to what is hidden, such as ~/.netrc",
    )
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="pass a variable of yours on, or set one; others are not seen inside",
    )
    add("--name", metavar="NAME", help="call the run so, instead of by its id")
    add("--timeout", type=seconds, metavar="TIME",
        help="end it after this long: 90, 90s, 5m, 2h, 1d")  # fmt: skip
    fate = parser.add_mutually_exclusive_group()
    add = fate.add_argument
    add(
        "--yes",
        dest="decision",
        action="store_const",
        const="apply",
        help="apply the changes at the end, unless one would run by itself or conflicts",
    )
    add(
        "--keep",
        dest="decision",
        action="store_const",
        const="keep",
        help="keep them for later without asking",
    )
    add("--discard", dest="decision", action="store_const", const="discard",
        help="throw them away")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="tell the outcome as JSON on stderr")

    def error(message: str) -> NoReturn:
        parser.print_usage(sys.stderr)
        parser.exit(PODBOT_FAILED, f"{parser.prog}: {message}\n")

    known = parser.parse_known_args

    def parse_known_args(  # type: ignore[no-untyped-def] # its own has six shapes
        args=None, namespace=None
    ):
        found, unknown = known(args, namespace)
        if unknown:
            error(f"there is no option {unknown[0]}")
        return found, unknown

    # 2, argparse's own, would look like an exit code of the command.
    parser.error = error  # type: ignore[method-assign]
    parser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def seconds(text: str) -> float:
    """A length of time: a number, and perhaps a unit."""
    unit = UNITS.get(text[-1:])
    try:
        found = float(text if unit is None else text[:-1]) * (unit or 1.0)
    except ValueError:
        found = -1.0
    if not 0 < found < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; try 90, 90s, 5m, 2h or 1d")
    return found


def run(arguments: argparse.Namespace) -> int:
    """Run the command and see to its changes; gives its exit code."""
    words: list[str] = arguments.words
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        say("run", "no command was given\n  remedy: podbot run -- COMMAND, or podbot shell")
        return PODBOT_FAILED
    return perform("run", tuple(words), {}, arguments)


def perform(
    program: str, command: tuple[str, ...], hints: dict[str, str], arguments: argparse.Namespace
) -> int:
    """Run a command as the options say, then see to its changes. ``hints`` are variables to set."""
    open_standard_streams()
    start_ahead()
    said = Saying(program, quiet=arguments.json)
    try:
        request = request_of(program, command, hints, arguments)
        from podbot import api

        outcome = api.run(request, on_start=said.started)
    except PodbotError as error:
        said.failed(error)
        return PODBOT_FAILED
    if outcome.problem is not None:
        said.problem(outcome.problem)
    code = finish(outcome, arguments.decision, arguments.json)
    if outcome.problem is not None and code == 0:
        return PODBOT_FAILED  # the command thinks that its output was written
    if outcome.signal is not None and code == outcome.exit_status:
        die_by(outcome.signal)
    return code


def start_ahead() -> None:
    """Have the process that will make the sandbox start while we load what else we need."""
    from podbot.sandbox.overlay import owner

    with contextlib.suppress(OSError):  # told where it is needed
        owner.zygote()


def open_standard_streams() -> None:
    """See to it that 0, 1 and 2 are open: else a socket of ours could become one of them."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    # The interpreter has nothing in the place of those that were closed when it started.
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def request_of(
    program: str, command: tuple[str, ...], hints: dict[str, str], arguments: argparse.Namespace
) -> RunRequest:
    """What the options ask for."""
    from podbot.api import RunRequest

    values, names = dict(hints), []
    for word in arguments.env:
        name, equals, value = word.partition("=")
        if equals:
            values[name] = value
        else:
            names.append(name)
            if name not in os.environ and not arguments.json:
                say(program, f"note: --env {name}: there is no such variable here")
    return RunRequest(
        command,
        targets=tuple(arguments.target or ()),
        network=arguments.net,
        hide=tuple(map(_absolute, arguments.hide)),
        show=tuple(map(_absolute, arguments.show)),
        environment=values,
        pass_environment=tuple(names),
        name=arguments.name,
        timeout=arguments.timeout,
        continue_in=arguments.continue_in,
    )


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


class Saying:
    """What podbot says about a run besides its changes; nothing if it is to be ``quiet``."""

    def __init__(self, program: str, *, quiet: bool):
        self._program, self._quiet = program, quiet
        self._record: Record | None = None

    def started(self, record: Record) -> None:
        """The sandbox stands: say what the person would not expect of it."""
        self._record = record
        for note in () if self._quiet else record.notes:
            if not note.startswith(HOME_NOTE):
                say(self._program, f"note: {note}")
        if self._program == "shell" and not self._quiet and sys.stderr.isatty():
            say("shell", f"changes in {', '.join(record.targets)} are kept apart; exit to see them")

    def problem(self, text: str) -> None:
        """The command could not be started, or its output not be written."""
        if not self._quiet:
            say(self._program, text)

    def failed(self, error: PodbotError) -> None:
        """Podbot could not do it."""
        from podbot.sandbox.overlay import layers

        record = self._record
        kept = None if record is None else layers.get(record.id)
        if self._quiet:
            import json

            from podbot.cli import as_data

            id = None if kept is None else kept.id
            told = {"id": id, "outcome": "failed", **as_data.failure(error)}
            print(json.dumps(told), file=sys.stderr)
            return
        say(self._program, str(error))
        if kept is not None:
            say(self._program, f"what it wrote is kept: podbot changes show {kept.id}")


def finish(outcome: RunOutcome, decision: Decision | None, json: bool) -> int:
    """See to the changes; gives the exit code of it all."""
    if not outcome.changed:
        if json:
            _tell(outcome, {"outcome": "nothing"})
        return outcome.exit_status
    if decision is None:
        asked = sys.stdin.isatty() and sys.stderr.isatty()
        decision = "ask" if asked and not json and outcome.told_to_end is None else "keep"
    if json:
        return _finish_as_data(outcome, decision)
    # Heavy, and not needed when nothing was changed.
    from podbot.cli import review

    done = review.finish(outcome.id, decision) == 0
    return outcome.exit_status if done else PODBOT_FAILED


def _finish_as_data(outcome: RunOutcome, decision: Decision) -> int:
    """See to the changes, and tell of them and of the run in one object."""
    import io
    import json

    from podbot.cli import review

    with contextlib.redirect_stderr(io.StringIO()) as said:
        done = review.finish(outcome.id, decision, json=True) == 0
    _tell(outcome, json.loads(said.getvalue()))
    return outcome.exit_status if done else PODBOT_FAILED


def _tell(outcome: RunOutcome, more: dict[str, object]) -> None:
    import json

    from podbot.cli import as_data

    told = {"id": outcome.id, "name": outcome.record.name, **as_data.past(outcome.record.past)}
    print(json.dumps({**told, **more}), file=sys.stderr)


def say(program: str, text: str) -> None:
    """One thing podbot has to say, with nothing in it that could command a terminal."""
    from podbot.sandbox.channel import visible

    print(f"podbot {program}: {visible(text)}", file=sys.stderr, flush=True)


def die_by(number: int) -> None:
    """End as the command did, so that whoever waits for us sees the same: a shell that runs a
    loop of commands, say, ends the loop only if one of them died of the Ctrl-C."""
    import resource

    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the crash was not ours
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
