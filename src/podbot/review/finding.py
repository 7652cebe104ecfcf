"""The runs there are: which one a word means, which are here, what each left.

What a word means is a rule of its own where paths may follow it: the run comes first, and may be
left out only together with the paths. So a path in its place is a mistake, and must not mean a run
whose id happens to begin so: whether it does is chance.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

from podbot.changes.diffs.text import shown_name
from podbot.changes.late import expression
from podbot.errors import ChangesError, Kind, PodbotError
from podbot.frozen import dataclass
from podbot.review import reading
from podbot.runs import records
from podbot.runs.records import Entry

_NO_RUN = expression(r"[/*?\[]|\.(tar|patch|diff)$")
"""What no run is called, and paths, globs and files to save in are."""
FIRST = "name the run first, or `last`"


@dataclass(frozen=True, slots=True)
class Listed:
    """A run as a list shows it: how many changes and bytes are left, or why that cannot be told.

    ``applied``: nothing is left, because the host has all of it.
    """

    entry: Entry
    changes_count: int | None = 0
    size: int | None = 0
    applied: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Discarded:
    """A run that was to be thrown away, and why it was not, if so."""

    entry: Entry
    problem: PodbotError | None = None


def find(word: str, here: str | None = None, *, before_paths: bool = False) -> Entry:
    """The run that is meant: an id, the start of one, a name, or ``last``: see `records.find`.

    Where the word stands ``before_paths`` it raises ``unknown_id``, too, for the beginning of an
    id, shorter than podbot itself tells it, that is a path in the folder or in the latest run here.
    """
    may_be_path = before_paths and word != records.LAST
    try:
        found = records.find(word, here)
        is_certain = word in (found.id, found.name, found.called)
        if is_certain or not (may_be_path and is_path(word, here)):
            return found
    except ChangesError:
        if not (may_be_path and is_path(word, here)):
            raise
    raise ChangesError(
        f"{shown_name(word)} is a path, and the run whose changes are meant comes before it",
        kind=Kind.UNKNOWN_ID,
        remedy=FIRST,
    )


def is_path(word: str, here: str | None) -> bool:
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


def entries(
    here: str | os.PathLike[str] | None = None, *, older_than: float | None = None
) -> list[Entry]:
    """Every run, the newest first; of a folder (``here``), or of so many seconds ago, alone.

    Runs whose changes are gone are among them. Heals first what was interrupted.
    """
    reading.heal()
    found = records.entries()
    if here is not None:
        folder = os.path.realpath(here)
        found = [entry for entry in found if entry.is_about(folder)]
    if older_than is None:
        return found
    since = time.time() - older_than
    return [entry for entry in found if entry.started < since]


def listed(found: Iterable[Entry]) -> Iterator[Listed]:
    """What each of these runs left, looked at as it is asked for; damage hides no other run."""
    from podbot.changes.applying.applied import applications
    from podbot.changes.capture import read

    for entry in found:
        count, size = 0, 0
        if entry.layer is not None:
            try:
                changes = read(entry.layer)
            except Exception as error:  # whatever is in it, the others must be listed
                yield Listed(entry, None, None, problem=reading.reason(error))
                continue
            count, size = len(changes), sum(change.size for change in changes)
        applied = not (count or size or entry.live)
        try:
            applied = applied and any(not each.undone for each in applications(entry.id))
        except ChangesError as error:  # its journal, and nobody else's
            yield Listed(entry, None, None, problem=error.message)
            continue
        yield Listed(entry, count, size, applied)


def discard(found: Iterable[Entry]) -> tuple[Discarded, ...]:
    """Throw runs away for good, with all that is known of them.

    One that works is left alone, and one that cannot be removed keeps none from it.
    """
    from podbot.runs import discarding

    reading.heal()
    outcomes = []
    for entry in found:
        problem = None
        try:
            reading.refuse_live(entry, "discarded")
            discarding.discard(entry.id, entry.layer)
        except PodbotError as error:
            problem = error
        outcomes.append(Discarded(entry, problem))
    return tuple(outcomes)
