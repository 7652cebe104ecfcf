"""Reading what a run changed: healed first, and what is wrong with its layer is said in words.

A layer may hold anything, and may be gone. Whoever shows changes gets a `ChangesError` for that,
and never an error of Python's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from podbot.changes import next_steps
from podbot.changes.diffs.text import shown_line, shown_name
from podbot.errors import ChangesError, Kind, PodbotError
from podbot.sandbox import layers

if TYPE_CHECKING:
    from podbot.changes.model import ChangeSet
    from podbot.runs.records import Entry

_Item = TypeVar("_Item")

HOW_LOST = (
    "something removed it, as cleaners of /var/tmp do, or PODBOT_LAYERS named another folder then;"
    " it can name one that nobody cleans"
)
"""What may have become of the layer of a run that is lost."""
GONE = "it changed nothing, or they were discarded"
DAMAGED = "its layer is damaged or not readable; discard the run to be rid of it"
LIVE = "wait until it ends, or close its sandbox"

MOST_LETTERS = 100
"""Letters of an error that nobody foresaw."""


def heal() -> tuple[str, ...]:
    """Put right what a crash left half done, on whatever target; says what became of it.

    What cannot be put right is said, and refused only where it would be taken for whole. Whoever
    listens to what is being done hears each line (see `podbot.changes.progress`).
    """
    from podbot.changes import progress
    from podbot.changes.applying import gate

    lines = tuple(gate.lines())
    for line in lines:
        progress.tell(progress.Step(line, healed=True))
    return lines


def refuse_live(entry: Entry, doing: str) -> None:
    """Raise kind ``in_use`` if the sandbox of a run still works."""
    if entry.live:
        called = shown_name(entry.called)
        raise ChangesError(
            f"{called} still runs: its changes cannot be {doing} yet", kind=Kind.IN_USE, remedy=LIVE
        )


def refuse_gone(entry: Entry, met: str = "") -> None:
    """Raise kind ``unknown_id`` if somebody discarded a run that was there when it was found.

    ``met`` is what was met because of that.
    """
    if entry.layer is not None and not entry.layer.path.is_dir():
        raise discarded(entry, f", or something removed its layer{met and f'; {met}'}")


def read(entry: Entry, only: Sequence[str] = ()) -> ChangeSet:
    """What a run changed, with renames; with ``only`` at least what these paths mean.

    Raises `ChangesError`: ``unknown_id`` if its layer is gone, ``io`` if it is damaged.
    """
    from podbot.changes import capture

    called = shown_name(entry.called)
    if entry.lost:
        raise ChangesError(
            f"the changes of {called} are gone, and nobody discarded them: "
            f"there is no layer of it in {layers.described()}",
            kind=Kind.UNKNOWN_ID,
            remedy=HOW_LOST,
        )
    if entry.layer is None:
        raise ChangesError(
            f"nothing is left of the changes of {called}", kind=Kind.UNKNOWN_ID, remedy=GONE
        )
    refuse_gone(entry)
    with naming_errors(entry):
        return capture.read(entry.layer, only)


def discarded(entry: Entry, or_else: str = "") -> ChangesError:
    """What to raise for a look at what was thrown away."""
    return ChangesError(
        f"nothing is left of the changes of {shown_name(entry.called)}: "
        f"the run was discarded{or_else}",
        kind=Kind.UNKNOWN_ID,
        remedy=f"open another run: {next_steps.RUNS}",
    )


@contextmanager
def naming_errors(entry: Entry) -> Iterator[None]:
    """Name whatever goes wrong with the layer of a run."""
    try:
        yield
    except (PodbotError, BrokenPipeError):
        raise
    except Exception as error:
        called = shown_name(entry.called)
        raise ChangesError(
            f"the changes of {called} cannot be read: {reason(error)}", kind=Kind.IO, remedy=DAMAGED
        ) from error


def read_from(entry: Entry, items: Iterable[_Item]) -> Iterator[_Item]:
    """Items that are made from a layer as they are asked for, with errors that are named."""
    with naming_errors(entry):
        yield from items


def reason(error: Exception) -> str:
    """Why something failed, in a few words."""
    if isinstance(error, PodbotError):
        return shown_line(error.message)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, RecursionError):
        return "its folders are nested too deeply"
    text = shown_line(str(error))
    text = text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
