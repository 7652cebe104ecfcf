"""`podbot run`: a command in a sandbox as if run bare, and then what becomes of its changes.

stdout belongs to the command; whatever podbot itself has to say goes to stderr. Nothing here
decides what a sandbox may do: words become a `LaunchRequest`, an outcome becomes an exit code.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from podbot.cli.run_options import (
    PODBOT_FAILED,
    Decision,
    Options,
    absolute,
    add_options,
    network_of,
    options_of,
    plain,
)
from podbot.errors import ConfigError, Kind, PodbotError
from podbot.sandbox.backends import LOCAL, OVERLAY

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from podbot.api import LaunchRequest, RunOutcome
    from podbot.egress import Record as Connection
    from podbot.launch.interludes import Interludes
    from podbot.runs.records import Record
    from podbot.sandbox.publishing import Publication

ABOUT = """\
Run a command in a sandbox of the current folder, as if it ran bare: same terminal or
pipes, same signals, same exit status. What it changes is kept apart; at the end you see
it and decide. Without a terminal, or with --keep, the changes are kept for later.
The sandbox is one of the overlay backend, with no container, image or daemon, unless
--backend says otherwise."""

EXAMPLES = """\
examples:
  podbot run -- make test                   what it writes stays apart until you say so
  podbot run --yes -- ./format-all.sh       apply at the end, unless something is suspicious
  podbot run --allow npm -- npm install     with these hosts, or presets of them, and no others
  podbot run --net host -- ./deploy         with the network of the host
  podbot run --route anthropic -- agent     with your key, which is not inside
  podbot run --route openai=file:~/key --allow npm -- agent
  podbot run --publish 3000 -- npm start    what listens at 3000 inside is at localhost:3000
  podbot run --env API_KEY -- agent "fix the tests"
  podbot run --target ~/a --target ~/b -- ./sync
  podbot run --in last -- git diff          go on in the changes of the latest run
  podbot run --backend container --image python:3.12 -- pytest
  podbot run --timeout 5m --keep --name nightly -- ./build.sh
  git ls-files | podbot run -- xargs wc -l  pipes work as ever

backends:
  overlay    the folder, copy-on-write, closed in; no engine, no image, no privileges
  container  the same at /workspace in a container of Podman or Docker (or say podman);
             one --target, reviewed at the end like any run; --image names the image
  local      ISOLATES NOTHING: the command works on the folder itself, as you; there is
             nothing to review or undo. For machines that are a sandbox themselves
  another    of a package that is installed, by its name; it is given --target if there is one

exit codes: the command's own; 128 + N (and the same death) if signal N killed it; 124 it
ran out of time; 125 podbot itself failed, or --yes was stopped by what needs a look; 126
the command cannot be executed; 127 there is no such command.

At a terminal every key goes to the command, Ctrl-C too; Ctrl-Z stops it together with
podbot, and fg goes on. Elsewhere the signals podbot gets go to the command and its
group; a second Ctrl-C kills it. What it does not read of stdin is left to the next.

What the command leaves running in the background ends with it. --json prints one line on
stderr, the last one, in place of everything else podbot would say."""

_ORDINARY = ("other writes below ", "the limit on ")
"""How notes begin that are not worth a line each time: what holds for nearly every sandbox, and of
limits those that nobody asked for. (`changes show` and the guarantees have them.)"""

NOT_ISOLATED = """NOTHING IS ISOLATED (--backend local)
  the command works on {folder} itself, as you, with all you may do
  nothing is kept apart: there will be nothing to review or undo"""
NOT_REVIEWED = "the backend {backend} keeps no changes apart: there is nothing to review or undo"
MOST_REFUSED = 20
"""How many hosts are named that were refused."""
_WORDS = {"apply": "yes"}
"""What `--yes` decides is called otherwise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `podbot run`."""
    parser.description, parser.epilog = ABOUT, EXAMPLES
    parser.usage = "podbot run [options] -- COMMAND..."
    add_options(parser)
    parser.add_argument("words", nargs="...", metavar="COMMAND", help="what to run")


def quick(words: list[str]) -> int | None:
    """Run a plain command line without argparse; None if it is not plain."""
    options = plain(words)
    return None if options is None or not options.words else perform("run", options, {})


def run(arguments: argparse.Namespace) -> int:
    """Run the command and see to its changes; gives its exit code."""
    options = options_of(arguments)
    if not options.words:
        say("run", "no command was given\n  remedy: podbot run -- COMMAND, or podbot shell")
        return PODBOT_FAILED
    return perform("run", options, {})


def perform(program: str, options: Options, hints: dict[str, str]) -> int:
    """Run a command as the options say, then see to its changes. ``hints`` are variables to set."""
    gc.disable()  # for the start: all that is made now stays
    start_ahead(options)
    said = Saying(program, options.decision, quiet=options.json)
    try:
        request = request_of(program, options, hints)
        from podbot import api

        if request.policy().network.proxied:
            outcome = api.run(
                request, on_start=said.started, on_publish=said.published,
                on_connection=said.connected, interludes=said.interludes(),
            )  # fmt: skip
        else:
            outcome = api.run(request, on_start=said.started, on_publish=said.published)
    except PodbotError as error:
        from podbot.cli.remedies import to_type

        said.failed(to_type(error))
        return PODBOT_FAILED
    finally:
        gc.enable()
    failed_offline = _failed_offline(program, outcome)
    has_news = outcome.changed or request.discard or outcome.problem is not None or said.waits
    if has_news or outcome.timed_out or failed_offline or outcome.not_kept:
        said.calm(outcome)
    said.rest()
    if outcome.problem is not None:
        from podbot.cli import notes

        way = notes.not_started(program, options.words, outcome)
        said.problem(outcome.problem if way is None else f"{outcome.problem}\n  remedy: {way}")
    elif outcome.timed_out:
        said.problem(f"ended after {options.timeout:g} s: it ran out of time")
    elif failed_offline:
        said.problem("it found the network off\n  to allow it: podbot run --allow HOST")
    if request.discard:
        said.discarded(outcome, options.json)
        code = outcome.exit_status
    else:
        code = finish(program, outcome, options.decision, options.json)
    if outcome.not_kept and options.decision != "discard":
        said.not_kept(outcome)
    if outcome.problem is not None and code == 0:
        return PODBOT_FAILED  # the command thinks that its output was written
    if outcome.signal is not None and code == outcome.exit_status:
        die_by(outcome.signal)
    return code


def _failed_offline(program: str, outcome: RunOutcome) -> bool:
    """Whether the command itself failed, and looked for a network that was not there."""
    ended_otherwise = outcome.signal is not None or outcome.stop_signal is not None
    return (
        program == "run"
        and outcome.missed_network
        and not (ended_otherwise or outcome.timed_out or outcome.problem is not None)
    )


def start_ahead(options: Options) -> None:
    """Have the process that makes sandboxes begin with one while we load what else we need."""
    if options.backend not in (None, OVERLAY):
        return
    from podbot.sandbox.overlay import owner

    with contextlib.suppress(OSError, PodbotError):  # told where it is needed
        zygote = owner.zygote()
        from podbot.sandbox import layers

        if options.net is None or options.net.separate:
            zygote.prepare(str(layers.root()))


def request_of(program: str, options: Options, hints: dict[str, str]) -> LaunchRequest:
    """What the options ask for."""
    from podbot.api import LaunchRequest

    if options.backend == LOCAL:
        _refuse_for_local(options)
    values, names = variables(options.env, None if options.json else program)
    if options.net is not None and options.net.proxied and not (options.allow or options.json):
        say(program, "note: --net allow reaches nothing unless hosts are named: --allow HOST")
    hide, show = tuple(map(absolute, options.hide)), tuple(map(absolute, options.show))
    if (hide or show) and not options.json:
        from podbot.cli import notes

        for note in notes.missing_paths(options):
            say(program, f"note: {note}")
    request = LaunchRequest(
        options.words,
        targets=options.target,
        network=network_of(options.net, options.allow),
        publish=options.publish,
        routes=options.route,
        hide=hide,
        show=show,
        environment=hints | values,
        pass_environment=names,
        name=options.name,
        timeout=options.timeout,
        continue_in=options.continue_in,
        # Else the changes are told before they go.
        discard=options.continue_in is not None and options.decision == "discard",
        backend=options.backend,
        image=options.image,
    )
    if request.routes and not options.json:
        from podbot.cli import notes

        for note in notes.missing_keys(request):
            say(program, f"note: {note}")
    return request


def _refuse_for_local(options: Options) -> None:
    """Refuse what nothing would keep to, as nothing is isolated and nothing kept apart."""
    given = {
        "--in": options.continue_in,
        "--name": options.name,
        "--net": options.net,
        "--allow": options.allow,
        "--route": options.route,
        "--publish": options.publish,
        "--hide": options.hide,
        "--show": options.show,
        "--image": options.image,
        f"--{_WORDS.get(options.decision or '', options.decision)}": options.decision,
    }
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"{name} cannot be used with --backend local, which keeps nothing apart",
                kind=Kind.UNSUPPORTED,
                remedy=f"leave out {name}, or use --backend overlay or container",
                field=name.removeprefix("--"),
            )


def worth_saying(notes: Iterable[str]) -> Iterator[str]:
    """The notes of a sandbox that its person should read at once, in words of the command line."""
    for note in notes:
        if not note.startswith(_ORDINARY):
            from podbot.cli.notes import typed  # most sandboxes have nothing to say

            yield typed(note)


def variables(words: Iterable[str], program: str | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables that are given a value, and those that keep the one they have here.

    ``program`` says of which there is none; if it is None, nobody does.
    """
    values, names = {}, []
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            values[name] = value
        else:
            names.append(name)
            if name not in os.environ and program is not None:
                say(program, f"note: --env {name}: there is no such variable here")
    return values, tuple(names)


class Saying:
    """What podbot says about a run besides its changes; nothing if it is to be ``quiet``."""

    def __init__(self, program: str, decision: Decision | None, *, quiet: bool):
        self._program, self._decision, self._quiet = program, decision, quiet
        self._record: Record | None = None
        self._interludes: Interludes | None = None
        self._refused: set[tuple[str, int, str]] = set()

    def interludes(self) -> Interludes:
        """What is said while the command runs."""
        from podbot.launch.interludes import Interludes

        self._interludes = Interludes(self._aside)
        return self._interludes

    def published(self, publication: Publication) -> None:
        """A port of the sandbox can be reached out here."""
        if not self._quiet:
            host, port = publication.address
            say(self._program, f"port {publication.port.inside} inside is at {host}:{port}")

    def _aside(self, text: str, line_end: str) -> None:
        if line_end == "\n":
            say(self._program, text)
        else:
            from podbot.visible import visible

            lines = f"podbot {self._program}: {visible(text)}\n".replace("\n", line_end)
            sys.stderr.write(lines)
            sys.stderr.flush()

    def connected(self, connection: Connection) -> None:
        """Something went through the proxy, or did not: what was refused is named, each once."""
        if self._quiet or self._interludes is None or connection.verdict != "refused":
            return
        key = (connection.host, connection.port, connection.reason)
        from podbot.sandbox import telemetry  # there already: the rules know it

        if telemetry.is_telemetry(connection.host):
            return  # the review counts them
        if key in self._refused or len(self._refused) > MOST_REFUSED:
            return
        self._refused.add(key)
        text = f"refused: {connection.reason}"
        if len(self._refused) > MOST_REFUSED:
            text = "refused: more than can be named here; podbot net log last has them"
        elif connection.would_allow is not None:
            import shlex

            text += f"\n  to allow it: podbot {self._program} --allow "
            text += shlex.quote(connection.would_allow)
        self._interludes.say(text)

    @property
    def waits(self) -> bool:
        """Whether something is left to say of what went on while the command ran."""
        return self._interludes is not None and self._interludes.waiting > 0

    def rest(self) -> None:
        """Say what could not be said before."""
        if self._interludes is not None:
            self._interludes.close()
            self._interludes.tell()

    def started(self, record: Record) -> None:
        """The sandbox stands: say what the person would not expect of it."""
        from podbot.runs.request import REVIEWED
        from podbot.sandbox import layers

        self._record = record
        reviewed = record.backend in REVIEWED or layers.get(record.id) is not None
        if not reviewed and self._decision is not None:
            raise ConfigError(
                f"the backend {record.backend} keeps no changes apart: there is nothing to "
                f"{_WORDS.get(self._decision, self._decision)}",
                kind=Kind.UNSUPPORTED,
                remedy="leave that out, or use --backend overlay or container",
            )
        if record.backend == LOCAL and not self._quiet:
            say(self._program, f"{NOT_ISOLATED.format(folder=record.targets[0])}")
        elif not reviewed and not self._quiet:
            say(self._program, f"note: {NOT_REVIEWED.format(backend=record.backend)}")
        for note in () if self._quiet else worth_saying(record.notes):
            say(self._program, f"note: {note}")
        if self._program == "shell" and reviewed and not self._quiet and sys.stderr.isatty():
            say("shell", f"changes in {', '.join(record.targets)} are kept apart; exit to see them")

    def calm(self, outcome: RunOutcome | None = None) -> None:
        """See to it that what is said is seen as it is meant, whatever the command wrote last."""
        if not self._quiet and (outcome is None or not outcome.plain):
            from podbot.launch.terminal import calm

            sys.stderr.flush()
            with contextlib.suppress(ValueError, OSError):  # it is closed, or no stream of ours
                calm(sys.stderr.fileno())

    def problem(self, text: str) -> None:
        """The command could not be started, or its output not be written."""
        if not self._quiet:
            say(self._program, text)

    def not_kept(self, outcome: RunOutcome) -> None:
        """Some of what was written lay where nothing stays."""
        if not self._quiet:
            from podbot.cli import notes

            targets = outcome.record.targets
            say(self._program, notes.not_kept(self._program, targets, outcome.not_kept))

    def discarded(self, outcome: RunOutcome, json: bool) -> None:
        """What was done over an earlier run is gone, and that run as it was."""
        if json:
            _tell(outcome, {"outcome": "discarded"})
        else:
            say(self._program, "discarded what was changed just now; the run before is as it was")

    def failed(self, error: PodbotError) -> None:
        """Podbot could not do it."""
        import shlex

        from podbot.runs import records
        from podbot.sandbox import layers

        record = self._record
        kept = None if record is None else layers.get(record.id)
        if self._quiet:
            from podbot.review import data

            id = None if kept is None else kept.id
            tell({"id": id, "outcome": "failed", **data.failure(error)})
            return
        if record is not None:
            self.calm()
        from podbot.cli.notes import without_an_engine
        from podbot.cli.remedies import with_names

        say(self._program, with_names(without_an_engine(error)))
        if kept is not None:
            word = records.find(kept.id).called
            say(self._program, f"what it wrote is kept: podbot changes show {shlex.quote(word)}")


def finish(program: str, outcome: RunOutcome, decision: Decision | None, json: bool) -> int:
    """See to the changes; gives the exit code of it all."""
    if not outcome.changed:
        if json:
            _tell(outcome, {"outcome": "nothing"})
        return outcome.exit_status
    if decision is None:
        asked = sys.stdin.isatty() and sys.stderr.isatty()
        decision = "ask" if asked and not json and outcome.stop_signal is None else "keep"
    if json:
        return _finish_as_data(outcome, decision)
    # Heavy, and not needed when nothing was changed.
    from podbot.cli import review

    done = review.finish(outcome.id, decision, program) == 0
    return outcome.exit_status if done else PODBOT_FAILED


def _finish_as_data(outcome: RunOutcome, decision: Decision) -> int:
    """See to the changes, and tell of them and of the run in one object."""
    from podbot.cli import review

    status, found = review.finish_as_data(outcome.id, decision)
    _tell(outcome, found)
    return PODBOT_FAILED if status else outcome.exit_status


def _tell(outcome: RunOutcome, more: dict[str, object]) -> None:
    from podbot.review import data
    from podbot.review.connections import gathered

    record = outcome.record
    fields = {
        "id": outcome.id,
        "name": record.name,
        "backend": record.backend,
        **data.past(record.past),
        **data.texts("not_kept", outcome.not_kept),
        "connections": [
            data.contact(each)
            for each in gathered(record.as_data() for record in outcome.connections)
        ],
    }
    tell({**fields, **more})


KEYS = (
    "id", "name", "title", "outcome", "applied", "error", "backend", "program", "command",
    "started", "ended", "exit_status", "signal", "timed_out", "status", "live", "network",
    "targets", "changes_count", "counts", "size", "runs_by_itself", "runs_when_used", "conflicts",
    "not_seen", "not_kept", "connections",
)  # fmt: skip
"""What --json tells, whatever came of the run: null where there is nothing to tell."""


def tell(fields: dict[str, object]) -> None:
    """Tell programs, on a line of its own."""
    import json

    print(json.dumps({**dict.fromkeys(KEYS), **fields}), file=sys.stderr)


def say(program: str, text: str) -> None:
    """One thing podbot has to say, with nothing in it that could command a terminal."""
    from podbot.visible import visible

    line = f"podbot {program}: {visible(text)}"
    if sys.stderr.isatty():
        from podbot.cli.talk import warn  # what breaks lines, and no pipe needs

        warn(line)
    else:
        print(line, file=sys.stderr, flush=True)


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
