"""What an application or its undoing leaves, told to the ledger of each target.

Looks at the host once more, so that only what is still as podbot left it is noted. A ledger that
cannot be written makes conflicts that are none, and does no harm: no note fails. So that a full
disk does not come to that, room for the notes is kept before anything is touched.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from podbot.changes import _git_index
from podbot.changes.applying import _placing, journal, ledger
from podbot.changes.applying._forward import Result
from podbot.changes.applying._site import Site
from podbot.changes.applying.journal import Journal
from podbot.changes.applying.ledger import Deed, Row
from podbot.changes.applying.moves import Folder, Move, Plan
from podbot.changes.model import FILE, FOLDER, Identity, State
from podbot.config import places
from podbot.errors import ChangesError, Kind

Entry = Move | Folder
Touched = tuple[int, State, State]
"""A file of which only another name was moved: the index of its target, then and now."""


_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_ROWS = 4
"""How many rows a path gets: when it is applied and when that fails, for it and for its file."""


@contextmanager
def room_for_notes(plan: Plan, linked: Iterable[tuple[int, str, State]]) -> Iterator[None]:
    """Keep room for what is noted of an application and of taking it back at once.

    Raises `ChangesError` (``disk_full``) if there is none.
    """
    paths: dict[int, list[str]] = {}
    entries: list[Entry] = [*plan.moves, *plan.folders]
    for entry in entries:
        paths.setdefault(entry.target, []).append(entry.path)
    for target, path, _ in linked:
        paths.setdefault(target, []).append(path)
    try:
        for target, here in paths.items():
            try:
                ledger.reserve(plan.places[target].path, here * _MOST_ROWS)
            except OSError as error:
                if error.errno in _FULL:
                    raise _no_room() from None
            except ChangesError:
                continue  # nothing can be noted, and that is no harm
        yield
    finally:
        for target in paths:
            with suppress(OSError, ChangesError):
                ledger.release(plan.places[target].path)


def _no_room() -> ChangesError:
    folder = places.state_place()
    return ChangesError(
        f"the changes cannot be applied: the disk of podbot's state folder {folder} is full;"
        " nothing is changed",
        kind=Kind.DISK_FULL,
        remedy="make room there, or set PODBOT_STATE to another folder",
    )


def applied(
    own: Journal, site: Site, result: Result, linked: Iterable[tuple[int, str, State]] = ()
) -> None:
    """What an application has left. ``linked`` are files of the host that got another name."""
    rows = _Rows(site)
    was_there: dict[tuple[int, str], State | None] = {}
    noted = own.facts(journal.MERGES)
    merged = noted.keys() if isinstance(noted, dict) else ()  # with what another run had left
    for move in site.plan.moves:
        key = (move.target, move.path)
        was_there[key] = move.was
        after = result.after.get(move.number)
        if after is not None and after.type is FOLDER:
            continue  # told as a folder: it has its time by now
        before = _of(move.was)
        left = _of(after)
        source = None if site.plan.where(move) in merged else _source(move)
        host_unchanged = move.host_unchanged and site.plan.where(move) not in merged
        listing = _listing(site, move, left)
        rows.add(
            move.target,
            Row(
                move.path,
                before,
                left,
                source,
                move.number,
                host_unchanged,
                copy=True,
                listing=listing,
            ),
        )
        if move.was is not None and move.was.links > 1 and move.was.type is FILE:
            kept = site.kept_facts(move)
            if kept is not None and _placing.is_same(kept, move.was):
                rows.add(move.target, Row(None, before, identity_of(kept), before))
    for note, then in zip(site.plan.folders, result.folders, strict=True):
        left = None if then is None else _left(site, note, then)
        if left is None or then is None:
            continue
        was = note.was or was_there.get((note.target, note.path))
        # An entry that came or went changed nothing of the folder itself.
        origin = _of(note.was) if note.was and note.was.looks_like(then) else None
        row = Row(note.path, _of(was), left, origin, -1, note.host_unchanged)
        rows.add(note.target, row)
    for target, path, was in linked:
        now = now_at(site, Move(-1, target, path, None, None))
        if now is not None and same_looks(now, was):
            rows.add(target, Row(None, was.identity, identity_of(now), was.identity))
    rows.note(own, int(site.plan.created * 1e9))


def touched(own: Journal, site: Site, result: Result, others: Iterable[Touched] = ()) -> None:
    """What was only touched after an application: its folders, and files that lost a name."""
    rows = _Rows(site)
    for note, then in zip(site.plan.folders, result.folders, strict=True):
        now = now_at(site, note)
        if now is not None and then is not None and same_looks(now, then):
            left = identity_of(now)
            if left != then.identity:
                row = Row(note.path, then.identity, left, then.identity, -1, note.host_unchanged)
                rows.add(note.target, row)
    for target, was, is_now in others:
        rows.add(target, Row(None, was.identity, is_now.identity, was.identity))
    rows.note(own, time.time_ns())


def taken_back(
    own: Journal, site: Site, others: list[tuple[Entry, State]], after: Mapping[int, State | None]
) -> None:
    """What is back in its place, unless someone changed it since.

    ``after`` is what the application had left, for one that came to its end.
    """
    rows = _Rows(site)
    for move in site.plan.moves:
        facts = now_at(site, move)
        before = _of(after.get(move.number, move.was))
        if move.was is None:
            if facts is None:
                rows.add(
                    move.target,
                    Row(move.path, before, None, None, move.number, move.host_unchanged),
                )
        elif facts is None and _is_closed(site, move):
            was = move.was.identity  # whatever is there, it is not what was applied
            rows.add(
                move.target, Row(move.path, before, was, was, move.number, move.host_unchanged)
            )
        elif facts is not None and same_looks(facts, move.was):
            was, left = move.was.identity, identity_of(facts)
            listing = _listing(site, move, left)
            row = Row(
                move.path, before, left, was, move.number, move.host_unchanged, listing=listing
            )
            rows.add(move.target, row)
            if move.was.links > 1 and move.was.type is FILE:
                rows.add(move.target, Row(None, was, left, was))
    made_again = {(move.target, move.path) for move in site.plan.moves}
    for note in site.plan.folders:
        facts = now_at(site, note)
        if (note.target, note.path) in made_again:
            continue
        if note.was is not None and facts is not None and same_looks(facts, note.was):
            was = note.was.identity
            rows.add(
                note.target, Row(note.path, was, identity_of(facts), was, -1, note.host_unchanged)
            )
        elif note.was is not None and facts is None and _is_closed(site, note):
            was = note.was.identity
            rows.add(note.target, Row(note.path, was, was, was, -1, note.host_unchanged))
    for entry, state in others:
        facts = now_at(site, entry)
        if facts is not None and same_looks(facts, state):
            rows.add(entry.target, Row(None, state.identity, identity_of(facts), state.identity))
    began = int(site.plan.created * 1e9)
    with suppress(OSError):
        began = os.stat(own.folder / journal.UNDOING).st_mtime_ns
    rows.note(own, began)


class _Rows:
    """The rows of one deed, by target."""

    def __init__(self, site: Site):
        self._plan = site.plan
        self._rows: dict[int, list[Row]] = {}

    def add(self, target: int, row: Row) -> None:
        self._rows.setdefault(target, []).append(row)

    def note(self, own: Journal, began: int) -> None:
        deed = Deed(own.id, self._plan.layer_id, began, time.time_ns())
        journal.step("note in the ledger")
        for target, rows in self._rows.items():
            with suppress(OSError, ChangesError):
                ledger.note(self._plan.places[target].path, deed, rows)


def _left(site: Site, note: Folder, then: State) -> Identity | None:
    """A folder as it was left, if it still is; None else.

    One in a folder that was closed behind us cannot be looked at, and nobody else can get in.
    """
    try:
        now = site.tree(note).facts(note.path)
    except PermissionError:
        return then.identity
    except OSError:
        return None
    return identity_of(now) if now is not None and same_looks(now, then) else None


def _source(move: Move) -> Identity | None:
    """The file of the layer that a file was copied from: whoever copies it again gets the same."""
    new = move.new
    is_whole = new is not None and new.type is FILE and new.inode and not move.in_place
    return new.identity if new is not None and is_whole else None


def _listing(site: Site, move: Move, left: Identity | None) -> str | None:
    """What an index of git's lists that podbot left, if it still is the one that it left."""
    if left is None or not _git_index.is_index(site.plan.where(move)):
        return None
    try:
        with site.tree(move).open(move.path) as file:
            found = _git_index.digest_of_listing(file)
            return found if identity_of(os.fstat(file.fileno())) == left else None
    except OSError:
        return None


def _of(state: State | None) -> Identity | None:
    return None if state is None else state.identity


def now_at(site: Site, entry: Entry) -> os.stat_result | None:
    """What `lstat` says of a path of the plan, None if nothing can be seen there."""
    try:
        return site.tree(entry).facts(entry.path)
    except OSError:
        return None


def _is_closed(site: Site, entry: Entry) -> bool:
    """Whether a path of the plan cannot be seen as a folder above it is closed to us again."""
    try:
        site.tree(entry).facts(entry.path)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def identity_of(facts: os.stat_result) -> Identity:
    """Which object it is, and when it was last touched."""
    return facts.st_dev, facts.st_ino, facts.st_ctime_ns


def same_looks(now: os.stat_result, then: State) -> bool:
    """Whether it has the same mode and owner, and if it is no folder the same size and time."""
    if (
        now.st_mode & 0o7777 != then.mode
        or now.st_uid != then.uid
        or now.st_gid != then.gid
        or _placing.type_of(now) is not then.type
    ):
        return False
    if then.type is FOLDER:
        return True
    return now.st_size == then.size and now.st_mtime_ns == then.mtime_ns
