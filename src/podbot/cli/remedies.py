"""The way on from where a verb ended, as commands to type: with all that was given, and by name.

What was asked for some paths is never answered with a command for all of them. Errors of the
library name runs by id; here they get the name that a list shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from podbot.cli import wording
from podbot.errors import ChangesError, Kind, PodbotError
from podbot.frozen import dataclass, replace
from podbot.runs import records

if TYPE_CHECKING:
    import argparse

    from podbot.changes.given import OnConflict

_ID = r"\d{8}-\d{6}-[0-9a-f]{8}"
_RUN = re.compile(
    rf"(?P<typed>podbot (?:changes \w+|run --in) )?(?<![\w/.-])(?P<run>{_ID})(?:\.\d+)?"
    r"(?![\w/-]|\.\w)"
)
"""A run, or an application of one, in a sentence or in a command; not a part of a path."""
_SAVING = re.compile(rf"`review\.open\('({_ID})'\)\.save\('FILE\.tar'\)`")
_ON_TOP = re.compile(rf"\brun ({_ID}) lies on top")


@dataclass(frozen=True, slots=True)
class Given:
    """What a person gave to a verb besides the run, as they typed it."""

    verb: str = ""
    paths: tuple[str, ...] = ()
    allow_flagged: tuple[str, ...] = ()
    on_conflict: OnConflict = "stop"
    more: tuple[str, ...] = ()
    file: str = ""

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Given:
        """What a command line holds."""
        given = vars(arguments)
        return cls(
            given.get("verb") or "",
            tuple(given.get("paths", ())),
            tuple(given.get("allow_flagged", ())),
            given.get("on_conflict", "stop"),
            tuple(f"--{name}" for name in ("all", "patch", "json") if given.get(name)),
            given.get("file") or "",
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The words after the run again."""
        return (self.file, *self.paths) if self.file else self.paths

    @property
    def options(self) -> tuple[str, ...]:
        """The options again."""
        allowed = [word for path in self.allow_flagged for word in ("--allow-flagged", path)]
        clash = () if self.on_conflict == "stop" else ("--on-conflict", self.on_conflict)
        return (*allowed, *clash, *self.more)


def command(verb: str, word: str, paths: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """A command to paste: a verb for a run, only for these paths if there are any."""
    import shlex

    if any(path.startswith("-") for path in paths):
        words = [verb, *options, "--", word, *paths]
    else:
        words = [verb, word, *paths, *options]
    return wording.text(f"podbot changes {shlex.join(words)}")


@contextmanager
def typed(word: str, given: Given) -> Iterator[None]:
    """Have errors about a run say what to type, with all that was given, not what to call."""
    try:
        yield
    except ChangesError as error:
        raise _typed(error, word, given) from error.__cause__


def _typed(error: ChangesError, word: str, given: Given) -> ChangesError:
    message, paths = error.message, given.paths
    said = {} if error.remedy is None else _said_by_review(word, given)
    if error.remedy in said:
        remedy = said[error.remedy]
        if given.allow_flagged and error.kind is Kind.NOTHING_SELECTED:
            message = f"--allow-flagged {message}"
    elif given.verb == "apply" and error.kind is Kind.FLAGGED:
        message = with_names(message)
        remedy = (
            f"decide on each: {command('pick', word, paths)}\n"
            f"          or allow by path: {allowing(word, given)}"
        )
    elif given.verb == "apply" and error.kind is Kind.CONFLICT:
        message, options = with_names(message), replace(given, on_conflict="skip").options
        remedy = (
            f"see both sides: {command('show', word)}, {command('diff', word, paths)}\n"
            f"          then: {command('apply', word, paths, options)} (or overwrite),"
            f" or {command('pick', word, paths)}"
        )
    elif given.verb == "undo":
        return _of_undo(error, word, paths)
    else:
        return error
    return ChangesError(message, kind=error.kind, remedy=remedy)


def _said_by_review(word: str, given: Given) -> Mapping[str | None, str]:
    """What the library says to do, and the commands that do it."""
    from podbot.review import consent, files, finding, reading

    run = wording.called(word)
    with_last = command(given.verb, records.LAST, [word, *given.words], given.options)
    return {
        consent.NAME_IT: f"name what {command('show', word)} lists there, a folder of it, or a"
        " glob",
        finding.FIRST: f"{with_last}; or name another run: podbot changes list",
        reading.LIVE: "wait until it ends; meanwhile they can be seen: podbot changes diff " + run,
        reading.GONE: f"{reading.GONE}; see `podbot changes list`",
        reading.DAMAGED: "its layer is damaged or not readable; to throw it away: "
        f"podbot changes discard {run}",
        files.UNDECIDED: "`podbot changes pick` asks; or save a FILE.tar in place of "
        f"{wording.name(given.file)}, which is merged where it is loaded",
        files.IN_CONFLICT: f"see both sides: {command('diff', word, given.paths)}; decide on each:"
        f" {command('pick', word, given.paths)}; or save a FILE.tar, which keeps all",
        files.NO_FORMAT: "name a FILE.tar (everything, for `podbot changes load`) or a FILE.patch"
        " (for git)",
        files.NOT_SAVED: "name a file that `podbot changes save` wrote",
    }


def allowing(word: str, given: Given) -> str:
    """The command that lets one more thing, ``PATH``, run by itself, with all that was given."""
    options = (*given.options, "--allow-flagged")
    if any(path.startswith("-") for path in given.paths):
        return command("apply", word, given.paths, (*options, "PATH"))
    return f"{command('apply', word, given.paths, options)} PATH"


def _of_undo(error: ChangesError, word: str, paths: Sequence[str]) -> ChangesError:
    """The same error, with commands where a person can get past it."""
    if error.kind is Kind.NOTHING_TO_UNDO:
        healed = error.message.split("\n")[:-1]
        message = f"nothing that was applied from {wording.name(word)} is left to undo"
        remedy = f"see what was applied from it: {command('show', word)}"
        return ChangesError("\n".join([*healed, message]), kind=error.kind, remedy=remedy)
    if error.kind is not Kind.UNDO_REFUSED:
        return error
    on_top = dict.fromkeys(_ON_TOP.findall(error.message))
    ways = [f"undo that run first: {command('undo', called(run))}" for run in on_top]
    skip, over = (command("undo", word, paths, ("--on-conflict", how)) for how in _PAST)
    ways += [f"leave these as they are: {skip}", f"put them aside, and undo all: {over}"]
    remedy = "\n          or ".join(ways)
    return ChangesError(with_names(error.message), kind=error.kind, remedy=remedy)


_PAST = ("skip", "overwrite")


def in_commands(text: str) -> str:
    """A message or a remedy of the library, with commands in the place of its calls."""
    from podbot.changes import next_steps

    said = {
        next_steps.PATHS: f"{next_steps.PATHS} (quoted, so that the shell leaves it alone)",
        next_steps.LATEST: "`podbot changes list --all` names those there are;"
        " `last` is the latest here",
        next_steps.RUNS: "`podbot changes list --all` lists all",
        next_steps.START: "podbot run -- COMMAND",
        next_steps.APPLIED: "`podbot changes show` says what was applied from a run",
        next_steps.LOADED: "podbot changes load FILE.tar --target DIR",
        next_steps.SMALLER: "save some of them by PATH and leave out the largest;"
        " `podbot changes show` says which they are",
        next_steps.SAVED_ALONE: "load only what `podbot changes save` wrote, whole and unchanged",
        next_steps.WHICH_FOLDER: "say which folder is meant with --target DIR, or --as-saved for"
        " that one",
    }
    for call, typed in said.items():
        text = text.replace(call, typed)
    return _SAVING.sub(r"podbot changes save \1 FILE.tar", text)


def to_type(error: PodbotError) -> PodbotError:
    """The same error, with a remedy that is a command to type where one is meant."""
    if error.remedy is not None:
        error.remedy = in_commands(error.remedy)
    return error


def with_names(message: str) -> str:
    """A message of the library in commands, with runs as a list calls them."""

    def named(found: re.Match[str]) -> str:
        word, typed = called(found["run"]), found["typed"]
        return wording.name(word) if typed is None else f"{typed}{wording.called(word)}"

    return _RUN.sub(named, in_commands(message))


def called(run: str) -> str:
    """A run by its name, or by as much of its id as tells it from others."""
    try:
        return records.find(run).called
    except ChangesError:
        return run  # its record is gone: only its journal is left
