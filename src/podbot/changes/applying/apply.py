"""Applying changes to the host: all of them or none, and every one can be taken back.

Stops before the first write on what would run by itself (see `risk`) and on what the host changed
meanwhile (see `drift`), unless told otherwise. The plan is journaled before anything is touched;
whatever fails half-way is taken back at once, and what a crash interrupts by whoever comes next.
Writes only below the targets, through descriptors that no link can lead astray.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from podbot.changes import _lineage, drift, given, next_steps
from podbot.changes._lineage import Noted
from podbot.changes.applying import _placing, _remembering, journal, recovery
from podbot.changes.applying._backward import Outcome
from podbot.changes.applying._forward import MovedOnError, carry_out
from podbot.changes.applying._planning import Draft, Key, Partial, Request, draft
from podbot.changes.applying._site import Site
from podbot.changes.applying.journal import Journal
from podbot.changes.applying.moves import Move, Plan
from podbot.changes.diffs.hunks import Piece
from podbot.changes.diffs.text import listed, shown_name
from podbot.changes.drift import Conflict, ConflictKind
from podbot.changes.given import OnConflict, Paths
from podbot.changes.model import (
    Change,
    ChangeKind,
    ChangeSet,
    Descriptors,
    FileType,
    Merge,
    State,
    gone,
)
from podbot.changes.select import select
from podbot.changes.tree import Tree
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass, replace

_NEVER = (ConflictKind.HIDDEN, ConflictKind.BLOCKED)


@dataclass(frozen=True, slots=True)
class Applied:
    """What was done. ``id`` names it for undo, ``journal`` is the folder that holds its journal.

    Both are empty if nothing had to be done. ``skipped`` are changes that stayed behind, each with
    the reason. ``recovered`` says what an earlier interruption left to be healed first.
    """

    id: str
    journal: str
    changed: tuple[Change, ...]
    skipped: tuple[tuple[Change, str], ...]
    recovered: tuple[str, ...] = ()


def apply(
    changes: ChangeSet,
    *,
    only: Paths = (),
    hunks: Mapping[str, Collection[Piece]] | None = None,
    allow_flagged: bool | str | Collection[str] = False,
    on_conflict: OnConflict = "stop",
) -> Applied:
    """Apply changes to the host; on any error the host is as it was.

    ``only`` are patterns as for `select`, or one alone. ``hunks`` gives for a path the hunks of its
    diff that are wanted. ``allow_flagged`` allows what runs by itself: all of it, or these paths.
    Where the host changed something meanwhile, ``on_conflict`` stops, leaves such changes out, or
    overwrites.

    Raises `ChangesError`: ``invalid`` for what none of these is, ``nothing_selected``, ``flagged``,
    ``conflict``, ``disk_full``, ``permission`` (a folder is not ours to write), ``apply_failed``,
    ``in_use``, ``state_failed``, ``target_missing``.
    """
    on_conflict = given.one_of("on_conflict", on_conflict, given.ON_CONFLICT)
    chosen = select(changes, given.paths("only", only))
    picked = _picked(chosen, hunks or {})
    check_targets(chosen)
    _check_flags(chosen, allow_flagged)
    with recovery.at_work(changes.targets, "applying", changes.layer_id) as recovered:
        done = _Application(changes, chosen, on_conflict).run(picked)
        return replace(done, recovered=tuple(recovered.lines))


def check_targets(chosen: ChangeSet) -> None:
    """Refuse changes whose targets were moved or removed: no way of deciding leads any further.

    Raises `ChangesError` (``target_missing``) if none of the targets of these is there.
    """
    reasons = []
    for target in dict.fromkeys(change.target for change in chosen):
        try:
            Tree(target).close()
        except OSError as error:
            reasons.append(gone(target, error))
        else:
            return
    if reasons:
        run = chosen.layer_id
        raise ChangesError(
            "; ".join(reasons),
            kind=Kind.TARGET_MISSING,
            remedy="move it back to where it was" if run is None else next_steps.elsewhere(run),
        )


def _picked(
    chosen: ChangeSet, hunks: Mapping[str, Collection[Piece]]
) -> dict[Key, Collection[Piece]]:
    found: dict[Key, Collection[Piece]] = {}
    for name, indexes in hunks.items():
        given.numbers_or_pairs(f"the hunks of {shown_name(name)}", indexes)
        meant = [change for change in chosen if name in (change.path, change.where)]
        if not meant:
            raise ChangesError(
                f"no change of {name!r} is among those to apply",
                kind=Kind.NOTHING_SELECTED,
                remedy="give hunks by the path of a change",
            )
        found |= {(change.target, change.path): indexes for change in meant}
    return found


def _check_flags(chosen: ChangeSet, allowed: bool | str | Collection[str]) -> None:
    if allowed is True:
        return
    # One path must not be taken for every text that is a part of it.
    names = () if allowed is False else given.paths("allow_flagged", allowed)
    from podbot.changes.risk import judging
    from podbot.changes.risk.rules import Level

    stopping = [
        f"{shown_name(flag.change.path or '.')}: {flag.reason}"
        for flag in judging.flags(chosen)
        if flag.level is Level.BY_ITSELF
        and flag.change.path not in names
        and flag.change.where not in names
    ]
    if stopping:
        raise ChangesError(
            f"this would run by itself once applied:\n{listed(stopping)}",
            kind=Kind.FLAGGED,
            remedy=next_steps.ALLOW,
        )


class _Application:
    """One apply, with the lock held."""

    def __init__(self, changes: ChangeSet, chosen: ChangeSet, on_conflict: OnConflict):
        self._changes, self._chosen, self._on_conflict = changes, chosen, on_conflict

    def run(self, picked: Mapping[Key, Collection[Piece]]) -> Applied:
        look = drift.examine(self._chosen)
        found = look.conflicts
        if found and self._on_conflict == "stop":
            raise _conflict_error((each.change, each.message) for each in found)
        own = journal.create(self._changes.layer_id)
        try:
            with ExitStack() as stack:
                trees = self._open_targets(stack)
                partial = self._merge(own, picked)
                left_out = self._left_out(found)
                for key, indexes in picked.items():
                    if not indexes:
                        left_out.setdefault(key, "none of its hunks was taken")
                overwrite = self._on_conflict == "overwrite"
                # Nor is the host unchanged where something was merged: it is neither version alone.
                drifted = {(each.change.target, each.change.path) for each in found} | {
                    (change.target, change.path)
                    for change in self._chosen
                    if change.where in self._changes.merges
                }
                request = Request(
                    self._changes, self._chosen, left_out, partial, overwrite, drifted
                )
                if self._on_conflict == "stop":  # else what counts is what is there now
                    request = replace(request, unchanged=look.unchanged)
                planned = draft(request, trees)
                return self._carry_out(own, planned, partial, trees)
        except OSError as error:
            raise _os_failure(error, "nothing is changed") from error
        finally:
            if not own.planned:
                own.remove()

    def _open_targets(self, stack: ExitStack) -> dict[str, Tree]:
        touched = {change.target for change in self._chosen}
        trees = {}
        for target in self._chosen.targets:
            if target in touched or any(
                where == target or where.startswith(f"{target}/")
                for where in self._chosen.folder_times
            ):
                try:
                    trees[target] = stack.enter_context(Tree(target))
                except OSError:
                    continue  # drift has told so for each of its changes
        return trees

    def _left_out(self, found: Iterable[Conflict]) -> dict[Key, str]:
        return {
            (each.change.target, each.change.path): each.message
            for each in found
            if self._on_conflict == "skip" or each.kind in _NEVER
        }

    # Hunks

    def _merge(self, own: Journal, picked: Mapping[Key, Collection[Piece]]) -> dict[Key, Partial]:
        """Write the merged contents of partly taken changes beside the journal."""
        merged: dict[Key, Partial] = {}
        noted: dict[str, Noted] = {}
        for change in self._chosen:
            key = (change.target, change.path)
            indexes = picked.get(key)
            folder = own.folder / journal.MERGED
            part = None
            if indexes:
                part = self._merged(change, indexes, folder, len(merged))
            merge = self._merge_of(change)
            if merge is not None and merge.run is not None and (indexes is None or indexes):
                noted[change.where] = Noted.of(merge.run, whole=part is None)
                part = part or self._of_two_runs(change, folder, len(merged))
            if part is not None:
                merged[key] = part
        _lineage.note_merges(own, noted)
        return merged

    def _merge_of(self, change: Change) -> Merge | None:
        """How a change was merged with what another run did, None if it was not."""
        merge = self._changes.merges.get(change.where)
        return merge if merge is not None and merge.is_clean else None

    def _of_two_runs(self, change: Change, folder: Path, number: int) -> Partial | None:
        """What two runs made of a file, as it was looked at."""
        if change.new is None:
            return None
        with self._changes.contents.open_new(change) as file:
            contents = _read_all(file, change.new.size)
        now = time.time_ns() if change.kind is not ChangeKind.MODE else change.new.mtime_ns
        return _part(folder, number, contents, replace(change.new, mtime_ns=now))

    def _merged(
        self, change: Change, indexes: Collection[Piece], folder: Path, number: int
    ) -> Partial | None:
        from podbot.changes.diffs.diff import diff, merged

        self._check_source(change)
        looked_at = diff(self._changes, change)
        self._check_source(change)
        wanted = set(indexes)
        numbers = {piece if isinstance(piece, int) else piece[0] for piece in wanted}
        if not numbers <= set(range(len(looked_at.hunks))) or change.new is None:
            raise ChangesError(
                f"{shown_name(change.path)} has only {len(looked_at.hunks)} hunks, counted from 0",
                kind=Kind.NOTHING_SELECTED,
                remedy="look at its diff again",
            )
        if wanted >= set(range(len(looked_at.hunks))):
            return None  # all of it: an ordinary change
        old = b""
        if change.old is not None:
            with self._changes.contents.open_old(change) as file:
                old = _read_all(file, change.old.size)
        contents = merged(looked_at, wanted, old)
        # Who takes a part of the lines takes those lines: mode and owner stay.
        like = change.old if change.old is not None else change.new
        state = replace(
            change.new, mode=like.mode, uid=like.uid, gid=like.gid, xattrs=like.xattrs,
            mtime_ns=time.time_ns(),
        )  # fmt: skip
        return _part(folder, number, contents, state)

    def _check_source(self, change: Change) -> None:
        """The hunks were counted in what the reviewer saw: it must still be that."""
        if change.new is None or change.new.type is not FileType.FILE:
            return
        if self._merge_of(change) is not None:
            return  # what was looked at is held, whatever becomes of the layer
        with self._changes.contents.open_new(change) as file:
            try:
                _placing.check_source(file.fileno(), change.new)
            except _placing.SourceChangedError:
                reason = "it was changed in the layer since it was looked at"
                raise _conflict_error([(change, reason)]) from None

    # Doing it

    def _carry_out(
        self, own: Journal, planned: Draft, partial: Mapping[Key, Partial], trees: dict[str, Tree]
    ) -> Applied:
        if planned.conflicts and self._on_conflict == "stop":
            raise _conflict_error(planned.conflicts)
        unreachable = [
            (change, f"the target {change.target} is not there")
            for change in self._chosen
            if change.target not in trees
        ]
        skipped = (*planned.skipped, *planned.conflicts, *unreachable)
        if not planned.moves and not (planned.folders and planned.changed):
            # Times of folders alone are no change, and nothing that one would want to undo.
            return Applied("", "", planned.changed, skipped)
        plan = Plan(
            journal.new_token(own),
            self._changes.layer_id,
            time.time(),
            tuple(
                journal.place_for(own, target, os.stat(tree.place("")).st_dev)
                for target, tree in trees.items()
            ),
            planned.moves,
            planned.folders,
            journal.shelf_for(planned.moves),
            tuple(_root_of(tree) for tree in trees.values()),
        )

        contents, sources = self._changes.contents, planned.sources
        descriptor = contents.new_descriptor if isinstance(contents, Descriptors) else None

        def source(move: Move) -> tuple[BinaryIO | int, State | None]:
            change = sources[move.number]
            if partial and (part := partial.get((change.target, change.path))) is not None:
                return open(part.file, "rb", buffering=0), None
            return descriptor(change) if descriptor else contents.open_new(change), change.new

        with Site(plan, list(trees.values())) as site, ExitStack() as room:
            site.refuse_if_not_ours(self._remedy())
            room.enter_context(_remembering.room_for_notes(plan, planned.linked))
            _write_plan(own, plan)
            try:
                result = carry_out(site, source)
                if result.copied:
                    own.mark(journal.LEFTOVER, result.copied)
                _remembering.applied(own, site, result, planned.linked)
                recovery.note_done(own, result)
            except BaseException as error:
                own.unmark(journal.DONE)
                outcome = recovery.roll_back(own, site)
                failure = _failure(error, outcome)
                if failure is None:
                    raise
                raise failure from error
            if result.copied:
                with suppress(OSError):  # it is applied; the next command sweeps what is left
                    _remembering.touched(own, site, result, recovery.sweep(own, site, result))
        return Applied(own.id, str(own.folder), planned.changed, skipped)

    def _remedy(self) -> str:
        """What to do about a folder that cannot be written."""
        run = self._changes.layer_id
        save = "save the changes" if run is None else next_steps.save(run)
        return f"run as its owner, or {save}"


def _root_of(tree: Tree) -> tuple[int, int]:
    facts = os.fstat(tree.folder(""))
    return facts.st_dev, facts.st_ino


def _write_plan(own: Journal, plan: Plan) -> None:
    try:
        own.write(plan)
    except OSError as error:
        raise ChangesError(
            f"the journal {own.folder} cannot be written: {error.strerror}; nothing is changed",
            kind=Kind.DISK_FULL if _is_full(error) else Kind.STATE_FAILED,
            remedy="make room there, or set PODBOT_STATE to another folder",
        ) from None


def _part(folder: Path, number: int, contents: bytes, state: State) -> Partial:
    """Contents that no layer has, in a file of their own."""
    folder.mkdir(mode=0o700, exist_ok=True)
    file_name = folder / str(number)
    file_name.write_bytes(contents)
    nowhere = replace(state, device=0, inode=0, ctime_ns=0)
    return Partial(file_name, replace(nowhere, size=len(contents)))


def _read_all(file: BinaryIO, size: int) -> bytes:
    data = b""
    while chunk := file.read(size + 1 - len(data)):
        data += chunk
    return data


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _conflict_error(found: Iterable[tuple[Change, str]]) -> ChangesError:
    lines = [f"{shown_name(change.path or '.')}: {message}" for change, message in found]
    return ChangesError(
        f"the host and the sandbox do not agree:\n{listed(lines)}",
        kind=Kind.CONFLICT,
        remedy="look at both sides, then leave these out (on_conflict='skip') or let the sandbox"
        " win (on_conflict='overwrite')",
    )


def _failure(error: BaseException, outcome: Outcome) -> ChangesError | None:
    """What to raise for an error that was met half-way; None to raise that itself."""
    after = "nothing is changed"
    if outcome.left or outcome.failed:
        after = f"not all could be taken back:\n{listed([*outcome.left, *outcome.failed])}"
    if isinstance(error, MovedOnError):
        return ChangesError(
            f"{error}; {after}", kind=Kind.CONFLICT, remedy="look at the changes again"
        )
    return _os_failure(error, after) if isinstance(error, OSError) else None


def _os_failure(error: OSError, after: str) -> ChangesError:
    name = ""
    if error.filename and not os.fsdecode(error.filename).startswith("/proc/self/fd/"):
        name = f" ({shown_name(os.fsdecode(error.filename))})"
    full = _is_full(error)
    return ChangesError(
        f"the changes cannot be applied: {error.strerror or error}{name}; {after}",
        kind=Kind.DISK_FULL if full else Kind.APPLY_FAILED,
        remedy="make room there and try again" if full else "put it right and try again",
    )
