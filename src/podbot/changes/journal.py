"""The journal of each application: its plan, what it replaced, and how far it came.

A journal is a folder below the state folder: ``journal.jsonl`` (the plan, whole and on disk before
anything is touched), ``kept/`` (what was replaced or removed, by the number of its move; many of
them in folders of `SHELF`, as a disk is slower the more names a folder has) and marks.
``done`` ends an application, ``leftover`` stands while something of it still waits to be removed
from the target's folders, ``opened`` while closed folders are open to be looked into; ``undoing``
begins its undoing and ``undone`` ends it. A journal without its end mark whose owner does not hold
the lock was interrupted. Nothing here touches a target.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from podbot.changes.model import Identity
from podbot.changes.moves import Move, Place, Plan
from podbot.config import places
from podbot.errors import ChangesError, Kind, PodbotError
from podbot.sandbox.overlay import layers

PLAN = "journal.jsonl"
KEPT = "kept"
TOUCHED = "touched.jsonl"
PREFIX = ".podbot-"
"""How every temporary name in a target begins."""
MERGED = "merged"
DONE, LEFTOVER, OPENED, UNDOING, UNDONE = "done", "leftover", "opened", "undoing", "undone"

SHELF = 200
"""How many things one folder of a store keeps."""

LOCK_WAIT = 60.0
"""Seconds to wait for another podbot that applies or undoes something."""

_NO_LAYER = "none"
_LAYER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ID = re.compile(rf"({_LAYER_ID.pattern})\.([0-9]+)")


def _pass(label: str) -> None:
    """Go on."""


step: Callable[[str], None] = _pass
"""Called before each thing that is done to a disk. Tests put here what should happen just then."""


@dataclass(frozen=True, slots=True)
class Summary:
    """When an application was made, how many paths it touched, and where it keeps their old."""

    created: float
    paths: int
    stores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Journal:
    """One journal; it may be half-made. ``id`` is the layer's with a number."""

    id: str
    folder: Path

    @property
    def layer_id(self) -> str:
        """The layer whose changes it applied; "none" if they were of no layer."""
        return self.id.rpartition(".")[0]

    @property
    def number(self) -> int:
        """Which application of the layer this is, from 1 on."""
        return int(self.id.rpartition(".")[2])

    @property
    def planned(self) -> bool:
        """Whether it got as far as to have a plan; nothing was touched if not."""
        return (self.folder / PLAN).exists()

    @property
    def is_active(self) -> bool:
        """Whether it can still be undone."""
        return self.marked(DONE) and not self.marked(UNDONE)

    def marked(self, mark: str) -> bool:
        """Whether it came so far."""
        return (self.folder / mark).exists()

    def write(self, plan: Plan) -> None:
        """Put the plan on the disk: from here on the journal counts."""
        self._write(PLAN, plan.lines())

    def read(self) -> Plan:
        """The plan; raises `ChangesError` (kind ``state_failed``) if it cannot be read."""
        try:
            with open(self.folder / PLAN, encoding="ascii") as lines:
                return Plan.of_lines(iter(lines))
        except (OSError, ValueError, TypeError, KeyError, AssertionError) as error:
            raise self.broken(error) from None

    def summary(self) -> Summary:
        """What the first line of the plan tells; `ChangesError` as for `read`."""
        try:
            with open(self.folder / PLAN, encoding="ascii") as lines:
                head = json.loads(next(lines))
            stores = tuple(str(kept) for _, kept in head["places"])
            return Summary(float(head["created"]), int(head["paths"]), stores)
        except (OSError, ValueError, TypeError, KeyError, StopIteration) as error:
            raise self.broken(error) from None

    def broken(self, error: Exception) -> ChangesError:
        """What to raise if it does not say what it should."""
        return ChangesError(
            f"the journal {self.folder} cannot be read: {error}",
            kind=Kind.STATE_FAILED,
            remedy=f"what it kept is in {self.folder / KEPT}; remove it when nothing in there is"
            " missed",
        )

    def mark(self, mark: str, facts: object = None) -> None:
        """Note that it came so far, for good."""
        self.mark_as(mark, json.dumps(facts))

    def mark_as(self, mark: str, text: str) -> None:
        """The same with facts that are JSON already."""
        self._write(mark, iter([text]))

    def unmark(self, mark: str) -> None:
        """Take a mark back."""
        with suppress(FileNotFoundError):
            os.unlink(self.folder / mark)

    def facts(self, mark: str) -> object:
        """What was noted with a mark, None if it has none."""
        try:
            return json.loads((self.folder / mark).read_bytes())
        except (OSError, ValueError):
            return None

    def _write(self, name: str, lines: Iterator[str]) -> None:
        """By rename, so that it is there whole or not at all, even if the power fails."""
        draft = self.folder / f"{name}.new"
        step(f"write {name}")
        with open(draft, "w", encoding="ascii") as file:
            while batch := "\n".join(islice(lines, 1000)):
                file.write(f"{batch}\n")
            file.flush()
            os.fsync(file.fileno())
        step(f"rename {name}")
        os.rename(draft, self.folder / name)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        step(f"wrote {name}")

    def remove(self) -> None:
        """Remove it with all it kept. The plan goes first: without it there is nothing to undo."""
        stores = self._stores()
        step(f"remove {PLAN}")
        with suppress(FileNotFoundError):
            os.unlink(self.folder / PLAN)
        for folder in (*stores, self.folder):
            step("remove a folder of the journal")
            layers.remove(folder)

    def drop_kept(self) -> None:
        """Remove what it kept, but not the record of it."""
        for folder in (*self._stores(), self.folder / MERGED):
            step("remove what was kept")
            layers.remove(folder)

    def _stores(self) -> set[Path]:
        """Every folder that may keep things of this journal."""
        found = {self.folder / KEPT, layers.place() / "undo" / self.id}
        with suppress(ChangesError):
            found |= {Path(kept) for kept in self.summary().stores}
        return {folder for folder in found if os.path.lexists(folder)}

    def store_for(self, device: int) -> Path:
        """The folder to keep a target's things in, on its own file system if there is one."""
        own = self.folder / KEPT
        if os.lstat(self.folder).st_dev != device:
            with suppress(OSError, PodbotError):
                other = layers.root() / "undo"
                if os.lstat(layers.root()).st_dev == device:
                    other.mkdir(mode=0o700, exist_ok=True)
                    (other / self.id).mkdir(mode=0o700, exist_ok=True)
                    return other / self.id
        own.mkdir(mode=0o700, exist_ok=True)
        return own


def create(layer_id: str | None) -> Journal:
    """A new, empty journal for changes of this layer. Needs the lock."""
    name = layer_id or _NO_LAYER
    if not _LAYER_ID.fullmatch(name):
        raise ChangesError(f"{name!r} cannot be the id of a layer", kind=Kind.INVALID)
    number = max((journal.number for journal in of_layer(name)), default=0) + 1
    id = f"{name}.{number}"
    return Journal(id, places.state_folder("journals", id))


def new_token(journal: Journal) -> str:
    """The part of temporary names that nobody can foresee."""
    return f"{journal.id}-{secrets.token_hex(4)}"


def shelf_for(moves: Sequence[Move]) -> int:
    """What the shelf of a plan with these moves is: few things need none."""
    return SHELF if len(moves) > SHELF else 0


def temporary(plan: Plan, move: Move) -> str:
    """The name under which a thing is staged beside its place."""
    return f"{PREFIX}{plan.token}-{move.number}"


def found() -> list[Journal]:
    """Every journal there is, oldest first."""
    folder = _folder()
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    journals = [
        Journal(name, folder / name)
        for name in names
        if _ID.fullmatch(name) and not os.path.islink(folder / name)
    ]
    return sorted(journals, key=lambda journal: (journal.layer_id, journal.number))


def of_layer(layer_id: str) -> list[Journal]:
    """The journals of one layer, oldest first."""
    return [journal for journal in found() if journal.layer_id == layer_id]


@contextmanager
def locked(wait: float | None = None) -> Iterator[bool]:
    """Hold the right to write into targets: one at a time for each user.

    With a ``wait`` of 0 this gives whether it was free. Else raises `ChangesError` (kind
    ``in_use``) when it does not become free in time (`LOCK_WAIT` by default).
    """
    path = places.state_folder("journals") / "lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        limit = LOCK_WAIT if wait is None else wait
        held = _lock(fd, time.monotonic() + limit)
        if not held and limit > 0:
            raise ChangesError(
                "another podbot is applying or undoing changes",
                kind=Kind.IN_USE,
                remedy="wait until it is done, and try again",
            )
        yield held
    finally:
        os.close(fd)


def _lock(fd: int, deadline: float) -> bool:
    pause = 0.005
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 2, 0.1)
        else:
            return True


# What podbot itself touched


def note_touched(pairs: Iterable[tuple[Identity, Identity]], own: Journal) -> None:
    """Note that things were moved away and back: who remembers the first means the second.

    Undoing one application gives things of an earlier one another ctime, and that one must still
    be undoable.
    """
    if any(each.id != own.id and each.is_active for each in found()):
        # A list of numbers looks the same in JSON.
        lines = [f"{[*before, *after]}\n" for before, after in pairs if before != after]
        step("note what was touched")
        with open(own.folder.parent / TOUCHED, "a", encoding="ascii") as file:
            file.writelines(lines)


def touched() -> dict[Identity, Identity]:
    """What became of things that podbot moved away and back."""
    known: dict[Identity, Identity] = {}
    with suppress(FileNotFoundError), open(_folder() / TOUCHED, encoding="ascii") as lines:
        for line in lines:
            with suppress(ValueError):  # a line that a crash cut short
                one, two, three, *after = json.loads(line)
                known[(one, two, three)] = (after[0], after[1], after[2])
    return known


def forget_touched() -> None:
    """Nobody needs to know any more once nothing is left to undo."""
    if not any(each.is_active for each in found()):
        with suppress(FileNotFoundError):
            os.unlink(_folder() / TOUCHED)


def _folder() -> Path:
    return places.state_place() / "journals"


def place_for(journal: Journal, target: str, device: int) -> Place:
    """A target with the folder that keeps its old things."""
    return Place(target, str(journal.store_for(device)))
