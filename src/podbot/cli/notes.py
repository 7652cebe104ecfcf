"""What a person should know of a run besides its changes, in the words of the command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from podbot.cli import wording
from podbot.sandbox.layers import mounts

MOST_NAMED = 3


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
