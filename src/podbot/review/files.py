"""Changes in files: saved as a tarball or a patch, and made a run of again."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Literal

from podbot.changes.diffs.text import listed, shown_name
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass
from podbot.review._named_files import new_file, opened_to_read
from podbot.review.for_patch import for_patch

if TYPE_CHECKING:
    from podbot.changes.model import ChangeSet
    from podbot.runs.records import Entry

PATCHES = (".patch", ".diff")
TARBALL = ".tar"

UNDECIDED = "decide which lines to take, or save a FILE.tar, which is merged where it is loaded"
IN_CONFLICT = "look at both sides and take what is wanted, or save a FILE.tar, which keeps all"
NO_FORMAT = "name a FILE.tar (everything, to be loaded again) or a FILE.patch (for git)"
NOT_SAVED = "name a file that was saved"


@dataclass(frozen=True, slots=True)
class Saved:
    """A file that now holds ``changes_count`` changes.

    ``not_carried`` is what a patch has no room for. ``undecided`` is what another run did, too, and
    nobody has decided on: a line for each path. ``in_conflict`` is what a patch leaves out, as it
    would take back what the host has done since.
    """

    file: str
    format: Literal["tar", "patch"]
    size: int
    changes_count: int
    not_carried: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    in_conflict: tuple[str, ...] = ()


def save(changes: ChangeSet, file: str) -> Saved:
    """Write changes to a new file; its ending says whether as a tarball or as a patch.

    The file is there once it is whole, and else never. Raises `ChangesError`: ``exists``,
    ``invalid`` for another ending, ``conflict`` if all of a patch is to be decided on first, or in
    conflict with the host, ``disk_full``, ``io``.
    """
    from podbot.changes import undecided

    format_ = _format(file)
    held, open_ = changes, tuple(undecided.lines(changes))
    in_conflict: tuple[str, ...] = ()
    if format_ == "patch":
        held = _without_undecided(changes)
        changes, in_conflict = _without_conflicts(changes)
        if in_conflict:
            held = undecided.without_undecided(changes)
    try:
        with new_file(file) as out:
            lost = _written(changes, format_, out)
            size = out.tell()
    except FileExistsError:
        raise ChangesError(
            f"{shown_name(file)} exists", kind=Kind.EXISTS, remedy="name another file"
        ) from None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise ChangesError(
            f"{shown_name(file)} cannot be written: {error.strerror}",
            kind=Kind.DISK_FULL if full else Kind.IO,
            remedy="free some space, or name a file elsewhere" if full else "name a file elsewhere",
        ) from None
    return Saved(file, format_, size, len(held), lost, open_, in_conflict)


def _without_undecided(changes: ChangeSet) -> ChangeSet:
    """What a patch can hold; raises if nothing is left but what is to be decided on."""
    from podbot.changes import undecided

    found = undecided.without_undecided(changes)
    if changes and not found:
        raise ChangesError(
            "another run changed all of this, too, and nobody has decided which to take:\n"
            + listed(undecided.lines(changes)),
            kind=Kind.CONFLICT,
            remedy=UNDECIDED,
        )
    return found


def _without_conflicts(changes: ChangeSet) -> tuple[ChangeSet, tuple[str, ...]]:
    """The same without what the host has changed since; raises if nothing else is there."""
    found = for_patch(changes)
    if changes and not found.changes:
        raise ChangesError(
            "the host has changed all of this since, and a patch would take that back:\n"
            + listed(found.in_conflict),
            kind=Kind.CONFLICT,
            remedy=IN_CONFLICT,
        )
    return found.changes, found.in_conflict


def _format(file: str) -> Literal["tar", "patch"]:
    if file.endswith(TARBALL):
        return "tar"
    if file.endswith(PATCHES):
        return "patch"
    raise ChangesError(
        f"{shown_name(file)} does not say in which format to save",
        kind=Kind.INVALID,
        remedy=NO_FORMAT,
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


@contextmanager
def loaded(
    file: str, targets: Collection[str], within: str | None, command: Sequence[str]
) -> Iterator[Entry]:
    """A run made of a tarball that `save` wrote, over its own targets or others.

    ``within`` is a folder that the archive's own targets must be or lie in. If the block fails, or
    anything before it, nothing of the run is left.
    """
    from podbot.runs import loading, records

    folders = [os.path.realpath(os.path.expanduser(target)) for target in targets]
    with opened_to_read(file, NOT_SAVED) as source:
        layer = loading.load(source, folders or None, within=within, command=command)
    try:
        yield records.find(layer.id)
    except BaseException:
        loading.unload(layer)
        raise
