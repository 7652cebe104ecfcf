"""What a person should know of a run besides its changes, in the words of the command line."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from podbot.cli import wording
from podbot.errors import Kind, PodbotError
from podbot.sandbox.layers import mounts

if TYPE_CHECKING:
    from podbot.api import LaunchRequest, RunOutcome
    from podbot.cli.run_options import Options

MOST_NAMED = 3

_ON_THE_COMMAND_LINE = {
    "Policy.readable shows one, hide_by_rule=False all": "--show PATH shows one",
}
"""What notes of sandboxes say to programs, and the same for who types."""
_AROUND = ", unless it is the target: "
"""What comes before a repository that the target is only a part of."""


def without_an_engine(error: PodbotError) -> str:
    """An error as it is told; where no engine was found, with the way that needs none."""
    if error.kind is not Kind.NO_ENGINE:
        return str(error)
    return f"{error}\n          or leave out --backend: the overlay needs no engine and no image"


def not_started(program: str, command: Sequence[str], outcome: RunOutcome) -> str | None:
    """What to do about a command that could not be started; None if it was."""
    name = command[0]
    if outcome.problem is None or not outcome.problem.startswith(f"{name}: "):
        return None
    from podbot.launch.attach import NOT_EXECUTABLE, NOT_FOUND  # there since the run
    from podbot.sandbox.backends import LOCAL, OVERLAY

    if outcome.exit_status == NOT_EXECUTABLE:
        file = shlex.quote(name)
        return f"make it executable (chmod +x {file}), or name what runs it: sh {file}"
    if outcome.exit_status != NOT_FOUND or program != "run":
        return None
    if re.search(r"[\s|&;<>$`]", name):
        return f"what a shell is to read: podbot run -- sh -c {shlex.quote(name)}"
    if "/" not in name and os.path.isfile(name):
        return f"the one of this folder: podbot run -- ./{shlex.quote(name)}"
    if "/" in name:
        return "look at how it is spelled; of a script, at what its first line names"
    if outcome.record.backend not in (OVERLAY, LOCAL):
        return "look at how it is spelled, or use an image that has it (--image)"
    return "look at how it is spelled, install it, or name it by its path"


def missing_keys(request: LaunchRequest) -> Iterator[str]:
    """Of each route whose key is not where it was said to be: it may still come to be there."""
    from podbot.egress import FromFile, FromVariable, Route

    for route in request.routes:
        if not isinstance(route, Route):
            continue  # a word: the request has made routes of these
        source = route.source
        if isinstance(source, FromVariable) and not os.environ.get(source.name):
            yield f"--route {route.name}: there is no variable {source.name} here"
        elif isinstance(source, FromFile) and not os.path.exists(source.path):
            yield f"--route {route.name}: there is no file {source.path} here"


def typed(note: str) -> str:
    """A note of a sandbox in the words of the command line."""
    for said, word in _ON_THE_COMMAND_LINE.items():
        note = note.replace(said, word)
    about, is_around, repository = note.partition(_AROUND)
    return f"{about}; to take all of it: --target {shlex.quote(repository)}" if is_around else note


def missing_paths(options: Options) -> Iterator[str]:
    """The paths that are to be shown or hidden and are not there: they may be mistyped."""
    from podbot.cli.run_options import absolute  # looking at a run needs none of this
    from podbot.sandbox.backends import OVERLAY

    for path in options.show:
        if not os.path.lexists(absolute(path)):
            yield f"--show {path}: there is nothing of that name here"
    if options.backend not in (None, OVERLAY) or options.continue_in is not None:
        return
    # Elsewhere it may be readable should it come to be: a note of the sandbox's says that then.
    folders = [os.path.realpath(absolute(folder)) for folder in options.target or (".",)]
    for path in options.hide:
        place = os.path.realpath(absolute(path))
        is_inside = any(mounts.is_below(place, folder) for folder in folders)
        if is_inside and not os.path.lexists(absolute(path)):
            yield f"--hide {path}: nothing is there yet; should it come, it is hidden"


def not_kept(program: str, targets: Sequence[str], paths: Sequence[str]) -> str:
    """That files of the home are gone with the sandbox, and how such files would be kept."""
    home = mounts.home() or "/"
    apart = [shlex.quote(target) for target in targets if not mounts.is_below(target, home)]
    options = " ".join(f"--target {target}" for target in (*apart, "~"))
    command = f"podbot {program} {options}" + (" -- …" if program == "run" else "")
    which = "target" if len(targets) == 1 else "targets"
    return f"not kept, being outside of the {which}: {named(paths)}; to keep such work: {command}"


def named(paths: Sequence[str]) -> str:
    """A few of some paths, as people write them, and how many more there are."""
    shown = ", ".join(wording.name(_short(path)) for path in paths[:MOST_NAMED])
    more = len(paths) - MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _short(path: str) -> str:
    home = mounts.home()
    return f"~{path[len(home) :]}" if home and mounts.is_below(path, home) else path
