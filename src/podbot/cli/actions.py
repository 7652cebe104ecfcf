"""What the commands and the menu after a run both do with changes: apply, save, discard, undo.

Each does the work through the library and gives back what is to be told; none prints or asks.
Errors that a person can get past say how on the command line.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from podbot.cli import look
from podbot.cli.progress import Progress
from podbot.errors import ChangesError, Kind

if TYPE_CHECKING:
    from typing import BinaryIO

    from podbot.changes.apply import Applied
    from podbot.changes.model import ChangeSet
    from podbot.changes.records import Entry
    from podbot.changes.undo import Undone
    from podbot.cli.picking import Picked
    from podbot.sandbox.overlay.layers import Layer

OnConflict = Literal["stop", "skip", "overwrite"]

PATCHES = (".patch", ".diff")
TARBALL = ".tar"


@dataclass(frozen=True, slots=True)
class Saved:
    """A file that now holds the changes; ``not_carried`` is what a patch has no room for."""

    file: str
    format: Literal["tar", "patch"]
    size: int
    not_carried: tuple[str, ...] = ()


def heal() -> list[str]:
    """Put right what a crash left half done, before anything is read or written."""
    from podbot.changes.recovery import recover

    return recover()


def refuse_live(entry: Entry, doing: str) -> None:
    """Raise kind ``in_use`` if the sandbox of a run still works."""
    if entry.live:
        raise ChangesError(
            f"{entry.id} still runs: its changes cannot be {doing} yet",
            kind=Kind.IN_USE,
            remedy=f"wait until it ends; `podbot changes diff {entry.id}` shows them meanwhile",
        )


def apply(
    entry: Entry,
    changes: ChangeSet,
    *,
    hunks: Mapping[str, Collection[int]] | None = None,
    allow_flagged: bool | Collection[str] = False,
    on_conflict: OnConflict = "stop",
) -> Applied:
    """Bring changes to the host; flags and conflicts stop it unless they were allowed."""
    from podbot.changes.apply import apply

    refuse_live(entry, "applied")
    try:
        with Progress("applying"):
            return apply(changes, hunks=hunks, allow_flagged=allow_flagged, on_conflict=on_conflict)
    except ChangesError as error:
        remedy = _REMEDIES.get(error.kind)
        if remedy is None:
            raise
        raise ChangesError(
            error.message, kind=error.kind, remedy=remedy.format(id=entry.id)
        ) from None


_REMEDIES = {
    Kind.FLAGGED: "decide on each: podbot changes pick {id}\n"
    "          or allow by path: podbot changes apply {id} --allow-flagged PATH",
    Kind.CONFLICT: "see both sides: podbot changes show {id}, podbot changes diff {id}\n"
    "          then: podbot changes apply {id} --on-conflict skip (or overwrite), or pick {id}",
}


def apply_picked(entry: Entry, picked: Picked) -> Applied:
    """Bring what a person took to the host, and not more than they said yes to."""
    from podbot.changes.drift import conflicts

    new = {each.change.where for each in conflicts(picked.changes)} - picked.overwriting
    return apply(
        entry,
        picked.changes,
        hunks=picked.hunks,
        allow_flagged=picked.consented,
        # What has come into conflict since the questions were asked stops it.
        on_conflict="overwrite" if picked.overwriting and not new else "stop",
    )


def told_applied(entry: Entry, applied: Applied) -> list[str]:
    """What was applied, for a person."""
    if not (applied.changed or applied.skipped):
        return ["nothing is left to apply"]
    lines = [f"applied {look.count(len(applied.changed), 'change')}"]
    for change, reason in applied.skipped:
        lines.append(f"  not {look.name(change.where)}: {look.text(reason)}")
    if applied.changed:
        left = _left(entry)
        if left:
            lines.append(f"{look.count(left, 'change')} left: podbot changes show {entry.id}")
        lines.append(f"to take it back: podbot changes undo {entry.id}")
    return lines


def _left(entry: Entry) -> int:
    """How many changes of a run the host does not have yet; none if that cannot be told."""
    from podbot.changes.capture import read

    try:
        return 0 if entry.layer is None else len(read(entry.layer))
    except Exception:  # whatever is in the layer, what was applied must be told
        return 0


def discard_question(entry: Entry, changes: ChangeSet | None) -> str:
    """What a person should know before they throw something away."""
    from podbot.changes import undo

    what = "what may be left" if changes is None else look.count(len(changes), "change")
    question = f"throw {what} of {entry.id} away for good"
    if any(not each.undone for each in undo.applications(entry.id)):
        question += ", with the means to undo what was applied"
    return f"{question}?"


def discard(entry: Entry) -> None:
    """Throw the changes of a run away for good, and all that is known of it."""
    from podbot.changes import records, undo

    refuse_live(entry, "discarded")
    with Progress("removing"):
        undo.forget(entry.id, entry.layer)
    records.remove(entry.id)


def undo(entry: Entry) -> Undone:
    """Take back what was last applied of a run."""
    from podbot.changes import undo

    refuse_live(entry, "undone")
    with Progress("undoing"):
        return undo.undo(entry.id)


def told_undone(entry: Entry, undone: Undone) -> list[str]:
    """What was undone, for a person."""
    return [
        f"undone: {look.count(len(undone.restored), 'path')} as before",
        f"to apply it again: podbot changes apply {entry.id}",
    ]


def told_saved(changes: ChangeSet, saved: Saved) -> str:
    """What was saved, for a person."""
    number, size = look.count(len(changes), "change"), look.size(saved.size)
    return f"saved {number} in {look.name(saved.file)} ({size})"


def save(changes: ChangeSet, file: str) -> Saved:
    """Write changes to a new file; its ending says whether as a tarball or as a patch."""
    format_ = _format(file)
    with contextlib.ExitStack() as stack:
        try:
            out = stack.enter_context(open(file, "xb"))
        except FileExistsError:
            raise ChangesError(
                f"{look.name(file)} exists", kind=Kind.EXISTS, remedy="name another file"
            ) from None
        except OSError as error:
            raise _not_written(file, error) from None
        stack.push(partial(_unmake, file))
        try:
            with Progress("saving"):
                lost = _written(changes, format_, out)
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        except OSError as error:
            raise _not_written(file, error) from None
    return Saved(file, format_, size, lost)


def _format(file: str) -> Literal["tar", "patch"]:
    if file.endswith(TARBALL):
        return "tar"
    if file.endswith(PATCHES):
        return "patch"
    raise ChangesError(
        f"{look.name(file)} does not say in which format to save",
        kind=Kind.INVALID,
        remedy="name a FILE.tar (everything, for `podbot changes load`) or a FILE.patch (for git)",
    )


def _written(changes: ChangeSet, format_: str, out: BinaryIO) -> tuple[str, ...]:
    if format_ == "tar":
        from podbot.changes import archive

        archive.save(changes, out)
        return ()
    from podbot.changes.patch import not_in_patch, patch

    for piece in patch(changes):
        out.write(piece)
    return tuple(not_in_patch(changes))


def _unmake(file: str, kind: type[BaseException] | None, *_: object) -> None:
    """Remove a file that did not get whole."""
    if kind is not None:
        with contextlib.suppress(OSError):
            os.unlink(file)


def _not_written(file: str, error: OSError) -> ChangesError:
    import errno

    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ChangesError(
        f"{look.name(file)} cannot be written: {error.strerror}",
        kind=Kind.DISK_FULL if full else Kind.IO,
        remedy="free some space, or name a file elsewhere",
    )


def load(file: str, targets: Collection[str], *, as_saved: bool = False) -> Entry:
    """Make a run of a tarball that `save` wrote, over its own targets or others.

    Which folder it is for is not for a stranger's file to say: without ``targets`` it must be the
    current one or lie in it, unless ``as_saved``.
    """
    from podbot.changes import archive

    folders = [os.path.realpath(os.path.expanduser(target)) for target in targets]
    try:
        source = open(file, "rb")  # noqa: SIM115 - closed below, after its errors are told apart
    except OSError as error:
        raise ChangesError(
            f"{look.name(file)} cannot be read: {error.strerror}",
            kind=Kind.NOT_FOUND if isinstance(error, FileNotFoundError) else Kind.IO,
            remedy="name a file that `podbot changes save` wrote",
        ) from None
    within = None if as_saved else os.path.realpath(os.curdir)
    with source, Progress("loading"):
        layer = archive.load(source, folders or None, within=within)
    try:
        return _recorded(layer, file)
    except BaseException:
        unload(layer)
        raise


def unload(layer: Layer) -> None:
    """Leave nothing of what was loaded, as something failed that had to follow."""
    from podbot.changes import records

    with contextlib.suppress(ChangesError):
        records.remove(layer.id)
    layer.discard()


def _recorded(layer: Layer, file: str) -> Entry:
    from podbot.changes import records

    command = ("podbot", "changes", "load", os.path.abspath(file))
    record = records.Record(
        layer.id,
        None,
        command,
        layer.targets,
        backend="archive",
        network="none",
        started=layer.created,
        owner=os.getpid(),
        ended=layer.created,
    )
    records.write(record)
    return records.find(layer.id)
