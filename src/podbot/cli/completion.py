"""`podbot completion`: what a shell offers when Tab is pressed.

The scripts for bash, zsh and fish ask podbot itself, so commands, options, ids and changed paths
are those of this version and of now. What is offered may be named by a sandbox: whatever a terminal
could take for more than a name is left out, and the shells quote the rest. Never waits for an
engine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module, resources

from podbot.errors import PodbotError
from podbot.frozen import dataclass

ABOUT = """\
Print what makes Tab complete podbot's commands, options, ids and changed paths.
`pip install` puts it where bash, zsh and fish look in an environment of the system;
elsewhere one line in the shell's start file does it."""

EXAMPLES = """\
examples:
  eval "$(podbot completion bash)"               in ~/.bashrc
  eval "$(podbot completion zsh)"                in ~/.zshrc, after compinit
  podbot completion fish | source                in ~/.config/fish/config.fish"""

SHELLS = ("bash", "zsh", "fish")
MOST_PATHS = 2_000
"""How many changed paths are looked at."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What can stand at the cursor.

    ``kind`` tells the shell what else to offer: ``words`` nothing, ``files``, ``folders``, or a
    ``command`` whose first word is number ``at`` of those after ``podbot``. ``words`` are pairs of
    a word and what is said of it.
    """

    kind: str = "words"
    words: tuple[tuple[str, str], ...] = ()
    at: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `podbot completion` takes."""
    parser.description, parser.epilog = ABOUT, EXAMPLES
    parser.add_argument("shell", choices=SHELLS, help="whose script")


def quick(words: list[str]) -> int | None:
    """What the scripts ask: what can stand in the place of the last word after ``SHELL --``."""
    if len(words) < 2 or words[0] not in SHELLS or words[1] != "--":
        return None
    tell(words[0], words[2:])
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    script = resources.files("podbot") / "data" / "completion" / f"podbot.{arguments.shell}"
    sys.stdout.write(script.read_text(encoding="utf-8"))
    return 0


def tell(shell: str, words: Sequence[str]) -> None:
    """Print the kind of offer, then a line for each word of it; a tab comes before what is said."""
    given, prefix = joined(words) if shell == "bash" else ([*words], "")
    offer = offered(given or [""])
    lines = [f"{offer.kind} {offer.at}" if offer.kind == "command" else offer.kind]
    current = given[-1] if given else ""
    for word, said in offer.words:
        if word.startswith(current) and word.isprintable() and said.isprintable():
            lines.append(f"{word.removeprefix(prefix)}\t{said}")
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # stdout is a text file
    print("\n".join(lines))


def joined(words: Sequence[str]) -> tuple[list[str], str]:
    """Words as typed, where bash took ``--option=value`` apart; and what it keeps of the last."""
    found: list[str] = []
    prefix = ""
    for at, word in enumerate(words):
        if word == "=" and found and found[-1].startswith("--"):
            found[-1] += "="
        elif at and words[at - 1] == "=" and found and found[-1].endswith("="):
            found[-1] += word
        else:
            found.append(word)
            continue
        prefix = found[-1].partition("=")[0] + "=" if at == len(words) - 1 else ""
    return found, prefix


# What can stand where


def offered(words: Sequence[str]) -> Offer:
    """What can stand in the place of the last of the words after ``podbot``."""
    from podbot.cli import COMMANDS

    if len(words) == 1:
        names = [(name, line) for name, (_, line) in COMMANDS.items()]
        return Offer(words=(*names, ("--help", ""), ("--version", "")))
    if words[0] not in COMMANDS:
        return Offer()
    parser = argparse.ArgumentParser(prog=f"podbot {words[0]}")
    command = import_module(COMMANDS[words[0]][0])
    command.add_arguments(parser)
    return _Line(parser, words).offer()


class _Line:
    """One command line, read up to the cursor."""

    def __init__(self, parser: argparse.ArgumentParser, words: Sequence[str]):
        self._parser, self._words, self._current = parser, words, words[-1]
        self._values: list[str] = []  # those of the verb that stand alone
        self._pending: argparse.Action | None = None
        self._only_values = False

    def offer(self) -> Offer:
        """Read what comes before the cursor, then say what can stand there."""
        for at, word in enumerate(self._words[1:-1], 1):
            if self._pending is not None:
                self._pending = None
            elif self._only_values or not word.startswith("-") or word == "-":
                if self._is_rest(self._positional()):
                    return Offer("command", at=at)
                self._take(word)
            elif word == "--":
                self._only_values = True
            else:
                action = self._option(word)
                takes_value = action is not None and action.nargs != 0 and "=" not in word
                self._pending = action if takes_value else None
        return self._here()

    def _here(self) -> Offer:
        if self._pending is not None:
            return self._value_of(self._pending, "")
        name, equals, _ = self._current.partition("=")
        if self._current.startswith("-") and not self._only_values:
            action = self._option(name)
            if equals:
                return Offer() if action is None else self._value_of(action, f"{name}=")
            return Offer(words=tuple(self._options()))
        positional = self._positional()
        if positional is None:
            return Offer(words=tuple(self._options()))
        if self._is_rest(positional):
            return Offer("command", at=len(self._words) - 1)
        return self._value_of(positional, "")

    def _take(self, word: str) -> None:
        verbs = self._verbs()
        if verbs is None:
            self._values.append(word)
        elif word in verbs.choices:
            self._parser = verbs.choices[word]

    def _verbs(self) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
        for action in self._parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                return action
        return None

    def _option(self, word: str) -> argparse.Action | None:
        name = word.partition("=")[0]
        return next((a for a in self._parser._actions if name in a.option_strings), None)

    def _options(self) -> Iterator[tuple[str, str]]:
        for action in self._parser._actions:
            for name in action.option_strings:
                if name.startswith("--") and action.help is not argparse.SUPPRESS:
                    yield name, _line(action.help)

    def _positional(self) -> argparse.Action | None:
        """What the next word that is no option stands for."""
        places = [action for action in self._parser._actions if not action.option_strings]
        if not places:
            return None
        at = len(self._values)
        last = places[-1]
        return places[at] if at < len(places) else last if last.nargs in ("*", "+", "...") else None

    def _is_rest(self, action: argparse.Action | None) -> bool:
        return action is not None and action.nargs == "..." and action.metavar == "COMMAND"

    def _value_of(self, action: argparse.Action, prefix: str) -> Offer:
        if isinstance(action, argparse._SubParsersAction):
            said = {choice.dest: choice.help for choice in action._choices_actions}
            return Offer(words=tuple((name, _line(said.get(name))) for name in action.choices))
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        if metavar.partition("...")[0] == "ID":
            return Offer(words=tuple(_runs(prefix)))
        if metavar == "BACKEND":
            files_too = not self._parser.prog.endswith(("run", "shell"))
            known = tuple(_backends(files_too=files_too))
            return Offer(words=tuple((f"{prefix}{name}", said) for name, said in known))
        if action.choices is not None:
            return Offer(words=tuple((f"{prefix}{choice}", "") for choice in action.choices))
        if metavar == "DIR":
            return Offer("folders")
        if metavar.startswith("FILE") or "changes" not in self._parser.prog:
            return Offer("files" if metavar.startswith(("FILE", "PATH")) else "words")
        if metavar.startswith("PATH"):
            last = self._current.removeprefix(prefix)
            word = self._values[0] if self._values else "last"
            return Offer(words=tuple((prefix + path, "") for path in _changed(word, last)))
        return Offer()


def _line(text: str | None) -> str:
    return " ".join((text or "").split()) if text != argparse.SUPPRESS else ""


def _backends(*, files_too: bool) -> Iterator[tuple[str, str]]:
    """The backends that can run a command, and those that only hold files."""
    from importlib.metadata import entry_points

    from podbot.sandbox.backends import CONTAINER, ENTRY_POINTS, LOCAL, MEMORY, OVERLAY

    yield OVERLAY, "copy-on-write, closed in, no engine needed"
    yield CONTAINER, "of Podman or Docker"
    if files_too:
        yield MEMORY, "files in memory, no commands"
    yield LOCAL, "ISOLATES NOTHING"
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        yield entry.name, entry.value.partition(":")[0]


def _runs(prefix: str) -> Iterator[tuple[str, str]]:
    """The runs there are, the newest first, by name where they have one."""
    from podbot.runs import records

    yield f"{prefix}last", "the latest run"
    with suppress(PodbotError, OSError):
        found = sorted(records.entries(), key=lambda entry: entry.started, reverse=True)
        for entry in found:
            command = () if entry.record is None else entry.record.command
            said = " ".join([*entry.targets[:1], *(("-", *command) if command else ())])[:60]
            for word in (entry.name, entry.id):
                if word is not None:
                    yield f"{prefix}{word}", "".join(c for c in said if c.isprintable())


def _changed(word: str, current: str) -> list[str]:
    """The changed paths of a run, as far as the next slash after what is typed."""
    from podbot.changes.capture import capture
    from podbot.config import places
    from podbot.runs import records

    found: dict[str, None] = {}
    with suppress(PodbotError, OSError):
        layer = records.find(word, records.here()).layer
        if layer is None or places.unfinished():  # whose healing is to be told, or waited for
            return []
        for change in list(capture(layer))[:MOST_PATHS]:
            if change.path.startswith(current):
                rest, slash, _ = change.path[len(current) :].partition("/")
                found[f"{current}{rest}{slash}"] = None
    return [path for path in found if f"{path}/" not in found]
