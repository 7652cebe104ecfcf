"""`podbot changes`: look at what sandboxes did, take over what you want, throw the rest away.

This module only knows the words of the command line; the verbs live in `showing`, `deciding`
and `discarding`, and are imported when they are asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from podbot.errors import ChangesError, Kind, PodbotError
from podbot.frozen import dataclass

if TYPE_CHECKING:
    import argparse

    Given = argparse.Namespace | SimpleNamespace

FAILED = 2

ABOUT = """\
Look at what sandboxes changed, take over what you want, and undo it.

What a sandbox wrote is kept apart from your files until you apply it. ID names a
run: its id, the start of it, its name, or `last`, as if left out: the latest one whose
target is this folder or one around it. PATH is relative to the target of the run, or
absolute, or a glob such as 'src/**/*.py'; a folder means all in it."""

EXAMPLES = """\
examples:
  podbot changes                         what is there to look at?
  podbot changes show last               what did the latest run do, what needs care?
  podbot changes diff last src           the changed lines below src
  podbot changes apply last              take over everything
  podbot changes apply last src '*.md'   ... or some of it
  podbot changes pick last               ... or decide on each change and each hunk
  podbot changes undo last               take back what was applied last
  podbot changes save last work.patch    for `git apply`; FILE.tar keeps everything
  podbot changes discard last            throw it away

exit codes: 0 done, 1 nothing was taken or you said no, 2 it could not be done: a
conflict, something that would run by itself, ... The reason and a remedy are on
stderr; with --json also on stdout, as {"error": {"kind", "message", "remedy"}}."""

LIST = """\
What is there to look at: the runs whose changes are still there and whose target is
this folder or one around it, the newest first. As data: all of them. A run that left
no changes is not kept. `podbot changes`, also with --all, means the same."""

SHOW = """\
All about a run: its command and end, what it changed, what would run once it is
applied, where the host has changed meanwhile, and what was applied before.

Each change has a letter: A added, M modified, D deleted, R renamed, T of another
type than before, m other mode, owner, time or attributes, L symbolic link, H hard
link, S special file; then lines added and removed, size and name.

A folder of installed packages, a cache, a build or what git ignores or stores is one
line, with how much is in it and why; what runs by itself is named all the same, at
the end. --all lists everything."""

DIFF = """\
The changed lines. Control characters and the like are spelled out, so the text is
safe to look at; for a patch with the exact bytes use --patch or `save`. Folders of
packages, builds and the like are one line, unless named or with --all.

examples:
  podbot changes diff last
  podbot changes diff last src '**/*.md'
  podbot changes diff last --patch | git apply --check"""

APPLY = """\
Write the changes to the target: all or nothing, and `undo` takes them back.

It stops before the first write if something would run by itself once applied (a git
hook, an editor task, ...), or if the host has changed what the sandbox changed.

examples:
  podbot changes apply last
  podbot changes apply last src README.md
  podbot changes apply last --allow-flagged .envrc      you have read it
  podbot changes apply last --on-conflict skip          leave what the host changed"""

PICK = """\
Go through the changes one by one, and through the hunks of each file, and apply
what you take. What would run by itself needs a full `yes`. Answers are read line by
line, from a terminal or a pipe; Ctrl-C and Ctrl-D stop and apply nothing."""

UNDO = """\
Take back what was last applied of a run, or some of it, bit for bit; the rest can be
taken back later, and all of it can be applied again. What was applied in several steps
is taken back in as many: it says what is still applied.

Where the host has changed since, it names the files and stops before anything is
touched. --on-conflict skip leaves them as they are; overwrite puts what you have there
now aside, and says where it is until the run is discarded.

examples:
  podbot changes undo last
  podbot changes undo last src README.md
  podbot changes undo last --on-conflict skip"""

SAVE = """\
Write the changes to a new file. FILE.tar keeps everything and can be loaded again,
here or elsewhere; FILE.patch is for `git apply`, and what it cannot carry is listed.

examples:
  podbot changes save last work.tar
  podbot changes save last fix.patch src"""

LOAD = """\
Make a run of a FILE.tar that `save` wrote, to be looked at and applied like any
other. The file may come from anyone: it is checked, and nothing is applied by it.
Without --target, the folder that the file names must be the current one or lie in
it; --as-saved takes it wherever it is.

example:
  podbot changes load work.tar --target ~/project"""

DISCARD = """\
Throw the changes of runs away for good, with all that is known of them. What was
applied stays in the target, and can then no longer be undone. At a terminal it asks;
elsewhere --all and --older-than want --yes. `podbot gc` says what is worth discarding.

examples:
  podbot changes discard last
  podbot changes discard 3f09aa nightly
  podbot changes discard --older-than 7d          of this folder
  podbot changes discard --all --older-than 30d   everywhere"""

Adding = Callable[["argparse.ArgumentParser"], None]


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: where it lives, what its help says, and which words it takes."""

    module: str
    function: str
    line: str
    about: str
    add: tuple[Adding, ...]


def _id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id",
        metavar="ID",
        nargs="?",
        default="last",
        help="an id, the start of one, a name, or `last` (the default): the latest run whose"
        " target is this folder or one around it",
    )


def _ids(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="*", help="runs: ids, starts of ids, or names")
    parser.add_argument("--all", action="store_true", help="all runs, of this folder and elsewhere")
    parser.add_argument(
        "--older-than",
        type=_seconds,
        metavar="TIME",
        help="those of this folder that began longer ago: 7d, 12h; with --all those elsewhere too",
    )


def _seconds(text: str) -> float:
    from podbot.cli.run_options import seconds

    try:
        return seconds(text)
    except ValueError as error:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(str(error)) from None


def _paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="*", help="only these (default: all)")


def _all(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help="also those elsewhere, and those whose changes are gone"
    )


def _every(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all",
        action="store_true",
        help="also what is in folders of packages, builds and the like",
    )


def _patch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--patch", action="store_true", help="exact bytes, as `git apply` takes it")


def _consent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-flagged",
        "--yes-flagged",
        action="append",
        default=[],
        metavar="PATH|all",
        help="apply this, or what is in this folder, although it would run by itself; a path, a"
        " folder or a glob like PATH (may be repeated)",
    )
    _clash(parser)


def _clash(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-conflict",
        choices=("stop", "skip", "overwrite"),
        default="stop",
        help="what to do where the host has changed too (default: stop)",
    )


def _file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="FILE.tar or FILE.patch")


def _tarball(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.tar", help="what `podbot changes save` wrote")
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="DIR",
        help="the folder the changes are for (may be repeated, in the order of the archive)",
    )
    parser.add_argument(
        "--as-saved", action="store_true", help="they are for the folders that the file names"
    )


def _yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


_LOOKING, _DECIDING = "podbot.cli.showing", "podbot.cli.deciding"
_DISCARDING = "podbot.cli.discarding"

VERBS = {
    "list": Verb(_LOOKING, "list_runs", "what is there to look at", LIST, (_all,)),
    "show": Verb(_LOOKING, "show", "all about one run and its changes", SHOW, (_id, _every)),
    "diff": Verb(_LOOKING, "diff", "the changed lines", DIFF, (_id, _paths, _every, _patch)),
    "apply": Verb(_DECIDING, "apply", "write them to the target", APPLY, (_id, _paths, _consent)),
    "pick": Verb(_DECIDING, "pick", "decide on each change and hunk", PICK, (_id, _paths)),
    "undo": Verb(_DECIDING, "undo", "take back what was applied", UNDO, (_id, _paths, _clash)),
    "save": Verb(_DECIDING, "save", "as a tarball or a patch", SAVE, (_id, _file, _paths)),
    "load": Verb(_DECIDING, "load", "a tarball that was saved", LOAD, (_tarball,)),
    "discard": Verb(_DISCARDING, "discard", "throw changes away", DISCARD, (_ids, _yes)),
}  # fmt: skip


SELDOM = 100_000
"""How many more things there are before the collector looks, where all that is done is looking."""

PLAIN = {
    "list": ("--all",),
    "show": ("--all",),
    "diff": ("--all", "--patch"),
}
"""Verbs that only look, with their options: these start without argparse if they can."""


PLAIN_WORDS = {"list": 0, "show": 1, "diff": 1_000_000}
"""How many other words they take."""


def quick(words: list[str]) -> int | None:
    """Look, if that is all that plain words ask for; None if argparse has to read them."""
    if all(word in ("--all", "--json") for word in words):
        words = ["list", *words]  # with no verb it lists, as with none of these
    verb, *rest = words
    known = PLAIN.get(verb)
    if known is None or any(word[:1] == "-" and word not in (*known, "--json") for word in rest):
        return None
    given = [word for word in rest if word[:1] != "-"]
    if len(given) > PLAIN_WORDS[verb]:
        return None  # what is too much is for argparse to tell
    import gc

    # Nearly all that is made from here on stays until we end, and looking for what does not would
    # take as long as a small run takes to be shown.
    gc.set_threshold(SELDOM)
    return _done(
        verb,
        _function(verb),
        SimpleNamespace(
            verb=verb,
            id=given[0] if given else "last",
            paths=given[1:],
            all="--all" in rest,
            patch="--patch" in rest,
            json="--json" in rest,
        ),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs and their options."""
    from argparse import SUPPRESS

    from podbot.cli.usage import VerbParser

    parser.description = ABOUT
    parser.epilog = EXAMPLES
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.set_defaults(all=False)  # `podbot changes` alone lists
    subparsers = parser.add_subparsers(
        dest="verb", metavar="VERB", title="verbs", parser_class=VerbParser
    )
    for name, verb in VERBS.items():
        subparser = subparsers.add_parser(
            name,
            help=verb.line,
            description=verb.about,
            allow_abbrev=False,
        )
        for add in verb.add:
            add(subparser)
        # It may stand on either side of the verb: without it here, that there counts.
        subparser.add_argument(
            "--json",
            action="store_true",
            default=SUPPRESS,
            help="print the outcome as JSON",
        )


def run(arguments: argparse.Namespace) -> int:
    """Do what the verb says."""
    verb = arguments.verb or "list"
    return _done(verb, _function(verb), arguments)


def _function(name: str) -> Callable[[Given], int]:
    verb = VERBS[name]
    return cast("Callable[[Given], int]", getattr(import_module(verb.module), verb.function))


def _done(name: str, do: Callable[[Given], int], arguments: Given) -> int:
    """Errors are told here, as they may quote names from inside."""
    from podbot.cli import wording
    from podbot.cli.talk import warn

    wording.never_fail(sys.stdout)
    wording.never_fail(sys.stderr)
    failed: PodbotError
    try:
        return do(arguments)
    except PodbotError as error:
        failed = error
    except OSError as error:
        if error.filename is None:  # of a stream, most often ours: `main` tells
            raise
        failed = _of_the_system(error)
    from podbot.cli.remedies import with_names

    failed = ChangesError(
        with_names(failed.message),
        kind=failed.kind,
        remedy=None if failed.remedy is None else with_names(failed.remedy),
    )
    if arguments.json:
        from podbot.cli import as_data
        from podbot.review import data

        as_data.show(data.failure(failed))
        sys.stdout.flush()
    warn(f"podbot changes {name}: {wording.message(str(failed))}")
    return FAILED


def _of_the_system(error: OSError) -> PodbotError:
    import os

    return ChangesError(
        f"{os.fsdecode(error.filename)}: {error.strerror}"
        if isinstance(error.filename, str | bytes)
        else str(error.strerror),
        kind=Kind.IO,
        remedy="look at its owner and mode; PODBOT_STATE and PODBOT_LAYERS name other folders",
    )
