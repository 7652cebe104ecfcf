"""`podbot changes`: look at what sandboxes did, take over what you want, throw the rest away.

This module only knows the words of the command line; the verbs live in `looking` and `deciding`,
and are imported when they are asked for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import cast

from podbot.cli.usage import Parser
from podbot.errors import ChangesError, Kind, PodbotError

FAILED = 2

ABOUT = """\
Look at what sandboxes changed, take over what you want, and undo it.

What a sandbox wrote is kept apart from your files until you apply it. ID names a
run: its id, the start of it, its name, or `last`. PATH is relative to the target
of the run, or absolute, or a glob such as 'src/**/*.py'; a folder means all in it."""

EXAMPLES = """\
examples:
  podbot changes                         what is there to look at?
  podbot changes show last               what did the latest run do, what needs care?
  podbot changes diff last src           the changed lines below src
  podbot changes apply last              take over everything
  podbot changes apply last src '*.md'   ... or some of it
  podbot changes pick last               ... or decide on each change and each hunk
  podbot changes undo last               put everything back as it was
  podbot changes save last work.patch    for `git apply`; FILE.tar keeps everything
  podbot changes discard last            throw it away

exit codes: 0 done, 1 nothing was taken or you said no, 2 it could not be done: a
conflict, something that would run by itself, ... The reason and a remedy are on
stderr; with --json also on stdout, as {"error": {"kind", "message", "remedy"}}."""

LIST = """\
What is there to look at: every run whose changes are still there, the newest first."""

SHOW = """\
All about a run: its command and end, what it changed, what would run once it is
applied, where the host has changed meanwhile, and what was applied before.

Each change has a letter: A added, M modified, D deleted, R renamed, T of another
type than before, m other mode, owner, time or attributes, L symbolic link, H hard
link, S special file; then lines added and removed, size and name."""

DIFF = """\
The changed lines. Control characters and the like are spelled out, so the text is
safe to look at; for a patch with the exact bytes use --patch or `save`.

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
Take back what was last applied of a run, bit for bit. It refuses, and names the
file, where the host has changed since. The changes can be applied again."""

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
Throw the changes of a run away for good, with all that is known of it. What was
applied stays in the target, and can then no longer be undone. At a terminal it asks."""

Adding = Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: where it lives, what its help says, and which words it takes."""

    module: str
    function: str
    line: str
    about: str
    add: tuple[Adding, ...]


def _id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="an id, the start of one, a name, or `last`")


def _paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="*", help="only these (default: all)")


def _all(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="also runs that left no changes")


def _patch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--patch", action="store_true", help="exact bytes, as `git apply` takes it")


def _consent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-flagged",
        "--yes-flagged",
        action="append",
        default=[],
        metavar="PATH|all",
        help="apply this although it would run by itself (may be repeated)",
    )
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


_LOOKING, _DECIDING = "podbot.cli.looking", "podbot.cli.deciding"

VERBS = {
    "list": Verb(_LOOKING, "list_runs", "what is there to look at", LIST, (_all,)),
    "show": Verb(_LOOKING, "show", "all about one run and its changes", SHOW, (_id,)),
    "diff": Verb(_LOOKING, "diff", "the changed lines", DIFF, (_id, _paths, _patch)),
    "apply": Verb(_DECIDING, "apply", "write them to the target", APPLY, (_id, _paths, _consent)),
    "pick": Verb(_DECIDING, "pick", "decide on each change and hunk", PICK, (_id, _paths)),
    "undo": Verb(_DECIDING, "undo", "take back what was applied", UNDO, (_id,)),
    "save": Verb(_DECIDING, "save", "as a tarball or a patch", SAVE, (_id, _file, _paths)),
    "load": Verb(_DECIDING, "load", "a tarball that was saved", LOAD, (_tarball,)),
    "discard": Verb(_DECIDING, "discard", "throw changes away", DISCARD, (_id, _yes)),
}  # fmt: skip


VALUED = ("--allow-flagged", "--yes-flagged", "--on-conflict", "--target")
"""Options whose value is the next word."""


class VerbParser(Parser):
    """Takes options anywhere among the paths; argparse alone takes them only before or after."""

    def parse_known_args(  # type: ignore[override]  # the one form that subparsers are called in
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse with the options moved to the front."""
        return super().parse_known_args(options_first(args), namespace)


def options_first(words: Sequence[str]) -> list[str]:
    """The same words in an order that argparse understands; after ``--`` nothing is an option."""
    options: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            others += [word, *rest]
        elif word.startswith("-") and word != "-":
            options.append(word)
            if word in VALUED:
                options += islice(rest, 1)
        else:
            others.append(word)
    return options + others


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs and their options."""
    parser.description = ABOUT
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
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
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for add in verb.add:
            add(subparser)
        # It may stand on either side of the verb: without it here, that there counts.
        subparser.add_argument(
            "--json",
            action="store_true",
            default=argparse.SUPPRESS,
            help="print the outcome as JSON",
        )


def run(arguments: argparse.Namespace) -> int:
    """Do what the verb says; errors are told here, as they may quote names from inside."""
    from podbot.cli import look

    look.never_fail(sys.stdout)
    look.never_fail(sys.stderr)
    name = arguments.verb or "list"
    verb = VERBS[name]
    do = cast(
        "Callable[[argparse.Namespace], int]", getattr(import_module(verb.module), verb.function)
    )
    failed: PodbotError
    try:
        return do(arguments)
    except PodbotError as error:
        failed = error
    except OSError as error:
        if error.filename is None:  # of a stream, most often ours: `main` tells
            raise
        failed = _of_the_system(error)
    if arguments.json:
        from podbot.cli import as_data

        as_data.show(as_data.failure(failed))
        sys.stdout.flush()
    print(f"podbot changes {name}: {look.message(str(failed))}", file=sys.stderr)
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
