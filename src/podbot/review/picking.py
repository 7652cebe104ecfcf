"""What is taken of a run's changes, made whole: which changes need which, and what stays.

A file brings the new folders it needs, and a folder goes only if all that was in it goes. Paths
that mean nothing in a target are meant from where the caller stands. Asks nothing, applies nothing.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from podbot.changes.diffs.text import shown_name
from podbot.changes.given import Paths, numbers_or_pairs, paths
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType
from podbot.changes.select import folder_of, is_new_folder, named, select
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass, field

if TYPE_CHECKING:
    from podbot.changes.diffs.hunks import Piece


@dataclass(frozen=True, slots=True)
class Picked:
    """What is taken of some changes; ``changes`` is whole in itself.

    By absolute path: the ``hunks`` of what was taken in part, what was ``consented`` to although
    it runs by itself, and what is ``overwriting`` the host's. ``staying`` are folders whose removal
    was taken, and that stay all the same: not all in them was.
    """

    changes: ChangeSet
    hunks: Mapping[str, frozenset[Piece]] = field(default_factory=dict)
    consented: frozenset[str] = frozenset()
    overwriting: frozenset[str] = frozenset()
    staying: tuple[Change, ...] = ()


def picked(
    changes: ChangeSet,
    taken: Collection[str],
    hunks: Mapping[str, Collection[Piece]],
    consented: Collection[str] = (),
    overwriting: Collection[str] = (),
) -> Picked:
    """What was taken, by absolute path, with the new folders it needs.

    A folder whose removal cannot go, as something in it was not taken, is left out.
    """
    chosen = _with_new_folders(changes, taken)
    around: set[str] = set()
    for change in changes:
        if change.old is not None and change.where not in chosen:
            around |= _above(change, _old_path(change))
    staying = []
    # From the inside out: a folder that stays keeps the one around it.
    for change in reversed(changes.changes):
        if change.where in chosen and is_lost(change) and change.where in around:
            chosen.discard(change.where)
            around |= _above(change, change.path)
            staying.append(change)
    return Picked(
        _narrowed(changes, chosen),
        {where: frozenset(pieces) for where, pieces in hunks.items() if where in chosen},
        frozenset(consented) & chosen,
        frozenset(overwriting) & chosen,
        tuple(staying[::-1]),
    )


def pick(
    changes: ChangeSet,
    only: Paths,
    hunks: Mapping[str, Collection[Piece]],
    here: str | None,
) -> Picked:
    """What paths, folders and globs mean, and of some files only these hunks; all for neither.

    Raises `ChangesError` (``nothing_selected``) for a word, or a path of hunks, that means nothing.
    """
    by_path: dict[str, Collection[Piece]] = {}
    only = paths("only", only)
    for path, pieces in hunks.items():
        numbers_or_pairs(f"the hunks of {shown_name(path)}", pieces)
        meant = [change for change in changes if path in (change.path, change.where)]
        if not meant:
            raise ChangesError(
                f"no change of {path!r} is there to take hunks of",
                kind=Kind.NOTHING_SELECTED,
                remedy="give hunks by the path of a change",
            )
        by_path |= {change.where: pieces for change in meant}
    wanted = only_of(changes, only, here) if only or not hunks else ()
    return picked(changes, {*by_path, *(change.where for change in wanted)}, by_path)


def only_of(changes: ChangeSet, only: Paths, here: str | None = None) -> ChangeSet:
    """The changes that paths mean, with the new folders they need; all for no path.

    Raises `ChangesError` (``nothing_selected``) for a path that means none of them.
    """
    words = paths("only", only)
    try:
        return select(changes, meant_by(changes, words, here))
    except ChangesError:
        return select(changes, words)  # whose error names the paths as they were given


def meant_by(changes: ChangeSet, words: Sequence[str], here: str | None = None) -> list[str]:
    """Paths as `select` takes them: those that mean nothing in the target are meant from here."""
    return [path if named(changes, path) else from_here(path, here) for path in words]


def from_here(path: str, here: str | None) -> str:
    """A path as it is meant by who stands in a folder."""
    return os.path.join(glob.escape(here), path) if here is not None and path else path


def _with_new_folders(changes: ChangeSet, taken: Collection[str]) -> set[str]:
    new = {change.where for change in changes if is_new_folder(change)}
    chosen = set(taken)
    for change in changes:
        if change.where in taken and change.new is not None:
            chosen |= _above(change, change.path) & new
    return chosen


def _above(change: Change, path: str) -> set[str]:
    """The folders around a path of the change, up to the target."""
    found = set()
    while path:
        path = path.rpartition("/")[0]
        found.add(f"{change.target}/{path}" if path else change.target)
    return found


def _old_path(change: Change) -> str:
    return change.source or change.path if change.kind is ChangeKind.RENAMED else change.path


def _narrowed(changes: ChangeSet, chosen: Collection[str]) -> ChangeSet:
    """Only the chosen ones; a folder keeps its time only if nothing in it was left out."""
    touched: dict[bool, set[str]] = {True: set(), False: set()}
    for change in changes:
        for path in change.paths:
            touched[change.where in chosen].add(folder_of(f"{change.target}/{path}"))
    complete = touched[True] - touched[False]
    return changes.narrowed(
        lambda change: change.where in chosen,
        {w: time for w, time in changes.folder_times.items() if w in complete},
    )


def is_lost(change: Change) -> bool:
    """Whether a folder goes, for good or for something else."""
    was = change.old is not None and change.old.type is FileType.FOLDER
    return was and (change.new is None or change.new.type is not FileType.FOLDER)


def holds_others(change: Change) -> bool:
    """Whether other changes cannot be taken without this one, or this one without them."""
    return is_lost(change) or is_new_folder(change)


def is_edit(change: Change) -> bool:
    """Whether its hunks can be taken one by one."""
    sides = (change.old, change.new)
    return change.kind in (ChangeKind.MODIFIED, ChangeKind.RENAMED) and all(
        side is not None and side.type is FileType.FILE for side in sides
    )
