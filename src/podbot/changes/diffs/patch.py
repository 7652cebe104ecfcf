"""A change set as one patch that `git apply` takes, and the list of what no patch can carry.

The patch is made as it is read, file by file, and needs no memory for large ones. It is applied in
a clean copy of the target with ``git apply``. Deletions come first, so that a folder can give way
to a file. Text is in unified hunks, all else in binary literals, which need no more than the whole
blob ids that are always given.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import BinaryIO

from podbot.changes import undecided
from podbot.changes.diffs import _binary, _headers, sides
from podbot.changes.diffs._headers import quoted_for_git
from podbot.changes.diffs.diff import FileDiff, compared
from podbot.changes.diffs.omissions import blocked, not_in_patch
from podbot.changes.diffs.sides import Side
from podbot.changes.diffs.text import shown_name
from podbot.changes.model import Change, ChangeKind, ChangeSet
from podbot.errors import ChangesError, Kind
from podbot.frozen import replace

__all__ = ["not_in_patch", "patch"]


def patch(changes: ChangeSet, only: Sequence[Change] | None = None) -> Iterator[bytes]:
    """The patch of all changes, or of some, piece by piece; nothing at all if git sees no change.

    With several targets, names begin with the position of the target (``0/``, ``1/``, …). Raises
    `ChangesError` (kind ``io``) for a file that cannot be read. What this and another run did and
    nobody decided on is not in it: see `undecided`.
    """
    wanted = None if only is None else {(change.target, change.path) for change in only}
    changes = undecided.without_undecided(changes)
    chosen = tuple(
        change for change in changes if wanted is None or (change.target, change.path) in wanted
    )
    in_the_way = blocked(chosen)
    parts = [part for change in chosen for part in _parts(change, change in in_the_way)]
    for part in parts:
        if part.new is None:
            yield from _entry(changes, part)
    for part in parts:
        if part.new is not None:
            yield from _entry(changes, part)


def _parts(change: Change, is_blocked: bool) -> list[Change]:
    """A change as git has it: what becomes of another type is deleted and made anew."""
    source = change.path
    if change.kind is ChangeKind.RENAMED and change.source is not None:
        source = change.source
    keep_old = _headers.is_carried(change, old=True)
    keep_new = _headers.is_carried(change, old=False) and not is_blocked
    if keep_old and keep_new and change.old and change.new and change.old.type is change.new.type:
        return [change]
    gone = replace(change, kind=ChangeKind.DELETED, path=source, new=None, source=None)
    come = replace(change, kind=ChangeKind.ADDED, old=None, source=None)
    return [part for part, kept in ((gone, keep_old), (come, keep_new)) if kept]


def _entry(changes: ChangeSet, change: Change) -> Iterator[bytes]:
    """One file of the patch."""
    same_mode = _headers.git_mode(change.old) == _headers.git_mode(change.new)
    if change.kind is ChangeKind.MODE:
        if not same_mode:
            called = _headers.names(changes, change)
            yield _lines(_headers.extended(change, called, None, quoted_for_git))
        return
    old, new = sides.old_side(changes, change), sides.new_side(changes, change)
    for side in (old, new):
        if side.problem is not None:
            raise ChangesError(
                f"{shown_name(change.where)} cannot be read: {side.problem}",
                kind=Kind.IO,
                remedy="leave it out, or see to it that it can be read",
            )
    found = compared(changes, change, old, new)
    if old.data is None or new.data is None:
        yield from _in_binary(changes, found, (old, new))
    elif found.hunks or not same_mode or found.similarity is not None:
        yield _text(found, old.data, new.data)


def _text(found: FileDiff, old: bytes, new: bytes) -> bytes:
    lines = _headers.extended(found.change, found.names, found.similarity, quoted_for_git)
    if found.hunks or found.similarity is None:
        lines.append(_index(found.change, _binary.blob_id(old), _binary.blob_id(new)))
    if not found.hunks:
        return _lines(lines)
    parts = [_lines(lines + _headers.sides(found.change, found.names, quoted_for_git))]
    for hunk in found.hunks:
        parts += [hunk.header.encode("ascii"), b"\n", b"\n".join(hunk.lines), b"\n"]
    return b"".join(parts)


def _in_binary(changes: ChangeSet, found: FileDiff, pair: tuple[Side, Side]) -> Iterator[bytes]:
    """A file in two literals: the new contents, and the old ones for the way back."""
    change = found.change
    lines = _headers.extended(change, found.names, found.similarity, quoted_for_git)
    with ExitStack() as held:
        old = held.enter_context(_contents(changes, change, pair[0], old=True))
        new = held.enter_context(_contents(changes, change, pair[1], old=False))
        old_id, old_size = _binary.file_id(old)
        new_id, new_size = _binary.file_id(new)
        if old_id == new_id:
            if len(lines) > 1:  # only its name or mode is another
                yield _lines(lines)
            return
        yield _lines([*lines, _index(change, old_id, new_id), "GIT binary patch"])
        yield from _binary.literal(new, new_id, new_size)
        yield from _binary.literal(old, old_id, old_size)


def _contents(changes: ChangeSet, change: Change, side: Side, old: bool) -> BinaryIO:
    """A side to read from the start, however it came."""
    if side.data is not None:
        return io.BytesIO(side.data)
    try:
        return sides.open_side(changes, change, old)
    except OSError as error:
        raise ChangesError(
            f"{shown_name(change.where)} cannot be read: {error.strerror}", kind=Kind.IO
        ) from None


def _index(change: Change, old: str, new: str) -> str:
    before, after = _headers.git_mode(change.old), _headers.git_mode(change.new)
    old = old if before else _binary.NO_BLOB
    new = new if after else _binary.NO_BLOB
    return f"index {old}..{new}" + (f" {after}" if before == after else "")


def _lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("ascii")
