"""Which run a command line is about, where paths may follow it.

The run comes first, and may be left out only together with the paths. So a path in its place is a
mistake, and must not mean a run whose id happens to begin so: whether it does is chance.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from podbot.cli import remedies, wording
from podbot.errors import ChangesError, Kind
from podbot.runs import records

if TYPE_CHECKING:
    import argparse

    from podbot.runs.records import Entry

_NO_RUN = re.compile(r"[/*?\[]|\.(tar|patch|diff)$")
"""What no run is called, and paths, globs and files to save in are."""


def run_of(arguments: argparse.Namespace) -> Entry:
    """The run that is meant.

    Raises what `records.find` raises, and ``unknown_id`` for the beginning of an id, shorter than
    podbot itself tells it, that is a path in the folder or in the latest run here.
    """
    word: str = arguments.id
    here = records.here()
    found: Entry | None = None
    problem: ChangesError | None = None
    try:
        found = records.find(word, here)
    except ChangesError as error:
        problem = error
    if found is not None and word in (records.LAST, found.id, found.name, found.called):
        return found
    if word != records.LAST and _is_path(word, here):
        raise ChangesError(
            f"{wording.name(word)} is a path, and the run whose changes are meant comes before it",
            kind=Kind.UNKNOWN_ID,
            remedy=f"{_with_last(arguments)}; or name another run: podbot changes list",
        )
    if found is None:
        assert problem is not None  # noqa: S101 - one of the two
        raise problem
    return found


def _with_last(arguments: argparse.Namespace) -> str:
    """The same command about the latest run."""
    file = getattr(arguments, "file", None)
    words = [arguments.id, *([] if file is None else [file]), *arguments.paths]
    return remedies.command(
        arguments.verb, records.LAST, words, remedies.Given.of(arguments).options
    )


def _is_path(word: str, here: str | None) -> bool:
    """Whether something of that name is in the folder, or in the latest run here."""
    if _NO_RUN.search(word):
        return True
    places = [] if here is None else [here]
    try:
        last = records.find(records.LAST, here)
    except ChangesError:
        pass
    else:
        within = [
            os.path.relpath(here, target)
            for target in last.targets
            if here is not None and f"{here}/".startswith(f"{target}/")
        ]
        places += last.targets
        if last.layer is not None:  # what is new or removed is there and not on the host
            uppers = [str(last.layer.upper(number)) for number in range(len(last.targets))]
            places += [os.path.join(upper, way) for upper in uppers for way in (".", *within)]
    return any(os.path.lexists(os.path.join(place, word)) for place in places)
