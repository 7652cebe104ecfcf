"""What the commands and the menu after a run both do with changes: apply, save, discard, undo.

Each does the work through the library and gives back what is to be told; none prints or asks.
Errors that a person can get past say how on the command line.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from podbot.cli import remedies, wording
from podbot.cli.files import new_file, opened_to_read
from podbot.cli.progress import Progress
from podbot.cli.remedies import Given
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass

if TYPE_CHECKING:
    from typing import BinaryIO

    from podbot.changes.applying.apply import Applied
    from podbot.changes.applying.undo import Undone
    from podbot.changes.diffs.hunks import Piece
    from podbot.changes.model import ChangeSet
    from podbot.cli.picking import Picked
    from podbot.runs.records import Entry
    from podbot.sandbox.layers import Layer

OnConflict = Literal["stop", "skip", "overwrite"]

NOTHING_GIVEN = Given()
MOST_PATHS = 3
"""More than these are too many to be named in a command to paste."""

PATCHES = (".patch", ".diff")
TARBALL = ".tar"


@dataclass(frozen=True, slots=True)
class Saved:
    """A file that now holds the changes; ``not_carried`` is what a patch has no room for.

    ``undecided`` is what another run did, too, and nobody has decided on: a line for each path.
    """

    file: str
    format: Literal["tar", "patch"]
    size: int
    not_carried: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()


def heal() -> list[str]:
    """Put right what a crash left half done, before anything is read or written.

    What cannot be put right is told, and refused only where it would be taken for whole.
    """
    from podbot.changes.applying import gate

    return gate.lines()


def refuse_live(entry: Entry, doing: str) -> None:
    """Raise kind ``in_use`` if the sandbox of a run still works."""
    if entry.live:
        raise ChangesError(
            f"{wording.name(entry.called)} still runs: its changes cannot be {doing} yet",
            kind=Kind.IN_USE,
            remedy="wait until it ends; meanwhile they can be seen: "
            f"podbot changes diff {wording.called(entry.called)}",
        )


def apply(
    entry: Entry,
    changes: ChangeSet,
    *,
    hunks: Mapping[str, Collection[Piece]] | None = None,
    allow_flagged: bool | Collection[str] = False,
    on_conflict: OnConflict = "stop",
    given: Given = NOTHING_GIVEN,
) -> Applied:
    """Bring changes to the host; flags and conflicts stop it unless they were allowed.

    ``given`` is what the person typed, for the commands that get past what stops it.
    """
    from podbot.changes.applying.apply import apply

    refuse_live(entry, "applied")
    try:
        with Progress("applying"):
            return apply(changes, hunks=hunks, allow_flagged=allow_flagged, on_conflict=on_conflict)
    except ChangesError as error:
        raise remedies.of_apply(error, entry.called, given) from None


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
    number = wording.count(len(applied.changed), "change")
    lines = [f"applied {number}" if applied.changed else "nothing was applied"]
    for change, reason in applied.skipped:
        lines.append(f"  not {wording.name(change.where)}: {wording.text(reason)}")
    if applied.skipped:
        paths = _to_paste(entry, [change.where for change, _ in applied.skipped])
        what = "that" if len(applied.skipped) == 1 else "those"
        lines.append(f"to decide on {what}: {remedies.command('pick', entry.called, paths)}")
    if applied.changed:
        word, left = wording.called(entry.called), _left(entry)
        if left:
            lines.append(f"{wording.count(left, 'change')} left: podbot changes show {word}")
        lines.append(f"to take it back: podbot changes undo {word}")
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
    from podbot.changes.applying.applied import applications

    what = "what may be left" if changes is None else wording.count(len(changes), "change")
    called = wording.name(entry.called)
    question = f"throw {what} of {called} away for good"
    earlier = 0 if entry.record is None else len(entry.record.earlier)
    if earlier:
        number = wording.count(earlier, "earlier command")
        question = f"throw all of {called}, {what}, away for good, those of {number} too"
    if any(not each.undone for each in applications(entry.id)):
        question += ", with the means to undo what was applied"
    return f"{question}?"


def discard(entry: Entry) -> None:
    """Throw the changes of a run away for good, and all that is known of it."""
    from podbot.runs import discarding

    refuse_live(entry, "discarded")
    with Progress("removing"):
        discarding.discard(entry.id, entry.layer)


def undo(
    entry: Entry,
    paths: Sequence[str] = (),
    on_conflict: OnConflict = "stop",
) -> Undone:
    """Take back what was last applied of a run, or some of it.

    Paths that mean nothing in the target are meant from here.
    """
    import glob

    from podbot.changes.applying import undo

    refuse_live(entry, "undone")
    here = glob.escape(os.path.realpath(os.curdir))
    try:
        with Progress("undoing"):
            try:
                return undo.undo(entry.id, only=paths, on_conflict=on_conflict)
            except ChangesError as error:
                from_here = [os.path.join(here, path) for path in paths if path]
                if error.kind is not Kind.NOTHING_SELECTED or len(from_here) < len(paths):
                    raise
                try:
                    return undo.undo(entry.id, only=from_here, on_conflict=on_conflict)
                except ChangesError as other:
                    if other.kind is Kind.NOTHING_SELECTED:
                        raise error from None  # which names the paths as they were given
                    raise
    except ChangesError as error:
        raise remedies.of_undo(error, entry.called, paths) from None


def told_undone(entry: Entry, undone: Undone, paths: Sequence[str] = ()) -> list[str]:
    """What was undone, for a person who may have asked for some paths only."""
    number = wording.count(len(undone.restored), "path")
    lines = [f"undone: {number} as before" if undone.restored else "nothing was undone"]
    lines += [
        f"  not {wording.name(where)}: {wording.text(reason)}" for where, reason in undone.skipped
    ]
    for where, file in undone.kept:
        lines.append(f"  {wording.name(where)}: what you had there is now {wording.name(file)}")
    rest = remedies.command("undo", entry.called)
    if undone.skipped:  # without more it would be refused
        over = ("--on-conflict", "overwrite")
        rest = remedies.command("undo", entry.called, options=over)
        rest += " (puts what you have there now aside)"
    if undone.left > undone.left_earlier:
        lines.append(f"{_still(undone.left - undone.left_earlier)}: {rest}")
    if undone.left_earlier:
        lines.append(f"{_still(undone.left_earlier)} by an earlier application: {rest}")
    if undone.restored:
        lines.append(_again(entry, undone, paths))
    return lines


def _again(entry: Entry, undone: Undone, paths: Sequence[str]) -> str:
    """How to apply what was undone again, and not what was never applied with it."""
    if not paths and _left(entry) > len(undone.restored):
        if len(undone.restored) > MOST_PATHS:
            return f"to apply some of it again: {remedies.command('pick', entry.called)}"
        paths = _to_paste(entry, sorted(undone.restored))
    return f"to apply it again: {remedies.command('apply', entry.called, paths)}"


def _to_paste(entry: Entry, paths: Sequence[str]) -> list[str]:
    """Absolute paths as one would type them, none if they are too many."""
    if len(paths) > MOST_PATHS:
        return []
    short = len(entry.targets) == 1
    return [os.path.relpath(path, entry.targets[0]) if short else path for path in paths]


def _still(count: int) -> str:
    return f"{wording.count(count, 'path')} still applied"


def told_saved(changes: ChangeSet, saved: Saved) -> str:
    """What was saved, for a person."""
    if saved.format == "patch":
        changes = _settled(changes, saved.file)
    number, size = wording.count(len(changes), "change"), wording.size(saved.size)
    return f"saved {number} in {wording.name(saved.file)} ({size})"


def save(changes: ChangeSet, file: str) -> Saved:
    """Write changes to a new file; its ending says whether as a tarball or as a patch.

    The file is there once it is whole, and else never.
    """
    from podbot.changes import undecided

    format_ = _format(file)
    if format_ == "patch":
        _settled(changes, file)
    try:
        with Progress("saving"), new_file(file) as out:
            lost = _written(changes, format_, out)
            size = out.tell()
    except FileExistsError:
        raise ChangesError(
            f"{wording.name(file)} exists", kind=Kind.EXISTS, remedy="name another file"
        ) from None
    except OSError as error:
        raise _not_written(file, error) from None
    return Saved(file, format_, size, lost, tuple(undecided.lines(changes)))


def _settled(changes: ChangeSet, name: str) -> ChangeSet:
    """What a patch can hold; raises if nothing is left but what is to be decided on."""
    from podbot.changes import undecided
    from podbot.changes.diffs.text import listed

    found = undecided.settled(changes)
    if changes and not found:
        raise ChangesError(
            "another run changed all of this, too, and nobody has decided which to take:\n"
            + listed(undecided.lines(changes)),
            kind=Kind.CONFLICT,
            remedy="`podbot changes pick` asks; or save a FILE.tar in place of "
            f"{wording.name(name)},"
            " which is merged where it is loaded",
        )
    return found


def _format(file: str) -> Literal["tar", "patch"]:
    if file.endswith(TARBALL):
        return "tar"
    if file.endswith(PATCHES):
        return "patch"
    raise ChangesError(
        f"{wording.name(file)} does not say in which format to save",
        kind=Kind.INVALID,
        remedy="name a FILE.tar (everything, for `podbot changes load`) or a FILE.patch (for git)",
    )


def _written(changes: ChangeSet, format_: str, out: BinaryIO) -> tuple[str, ...]:
    if format_ == "tar":
        from podbot.changes.archive import saving

        saving.save(changes, out)
        return ()
    from podbot.changes.diffs.patch import not_in_patch, patch

    for piece in patch(changes):
        out.write(piece)
    return tuple(not_in_patch(changes))


def _not_written(file: str, error: OSError) -> ChangesError:
    import errno

    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ChangesError(
        f"{wording.name(file)} cannot be written: {error.strerror}",
        kind=Kind.DISK_FULL if full else Kind.IO,
        remedy="free some space, or name a file elsewhere" if full else "name a file elsewhere",
    )


def load(file: str, targets: Collection[str], *, as_saved: bool = False) -> Entry:
    """Make a run of a tarball that `save` wrote, over its own targets or others.

    Which folder it is for is not for a stranger's file to say: without ``targets`` it must be the
    current one or lie in it, unless ``as_saved``.
    """
    from podbot.changes.archive import saving
    from podbot.runs import records

    folders = [os.path.realpath(os.path.expanduser(target)) for target in targets]
    source = opened_to_read(file, "name a file that `podbot changes save` wrote")
    within = None if as_saved else os.path.realpath(os.curdir)
    begun: list[Layer] = []

    def note(layer: Layer) -> None:
        begun.append(layer)
        _record(layer, file)

    try:
        with source, Progress("loading"):
            layer = saving.load(source, folders or None, within=within, note=note)
        return records.find(layer.id)
    except BaseException:
        for each in begun:
            unload(each)
        raise


def unload(layer: Layer) -> None:
    """Leave nothing of what was loaded, as something failed that had to follow."""
    from podbot.runs import discarding

    with contextlib.suppress(ChangesError):
        discarding.discard(layer.id, layer if layer.path.exists() else None)


def _record(layer: Layer, file: str) -> None:
    from podbot.runs import records
    from podbot.sandbox.network import Network

    command = ("podbot", "changes", "load", os.path.abspath(file))
    record = records.Record(
        layer.id,
        None,
        command,
        layer.targets,
        backend="archive",
        network=Network.none,
        started=layer.created,
        owner=os.getpid(),
        ended=layer.created,
    )
    records.write(record)
