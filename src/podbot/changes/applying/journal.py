"""The journal of each application: its plan, what it replaced, and how far it came.

A journal is a folder below the state folder: ``journal.jsonl`` (the plan, whole and on disk before
anything is touched), ``kept/`` (what was replaced or removed, by the number of its move; many of
them in folders of `SHELF`, as a disk is slower the more names a folder has) and marks.
``done`` ends an application, ``leftover`` stands while something of it still waits to be removed
from the target's folders, ``opened`` while closed folders are open to be looked into; ``undoing``
begins its undoing (of all, or of the moves it names: then ``taken`` ends it, adding up what was
taken back so far, and the rest is undone another time) and ``undone`` ends it, naming what someone
had changed and could not be taken back: that is tried again only when it is undone once more.
``merges`` tells where two runs were brought together (see `merging`). A journal without its end
mark whose targets nobody holds (see `locks`) was interrupted. Nothing here touches a target.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from podbot.changes.applying import _locks, _syncing
from podbot.changes.applying._parts import Part, without
from podbot.changes.applying.moves import Head, Move, Place, Plan
from podbot.changes.late import expression
from podbot.config import places
from podbot.errors import ChangesError, Kind, PodbotError
from podbot.frozen import dataclass
from podbot.json_fields import Fields, parsed
from podbot.sandbox import layers

PLAN = "journal.jsonl"
KEPT = "kept"
PREFIX = ".podbot-"
"""How every temporary name in a target begins."""
MERGED = "merged"
DONE, LEFTOVER, OPENED, UNDOING, UNDONE = "done", "leftover", "opened", "undoing", "undone"
TAKEN = "taken"
NEWER = ".newer"
"""What the folder of what an undo has overwritten ends in, beside the store."""
MERGES = "merges"

SHELF = 200
"""How many things one folder of a store keeps."""

_NO_LAYER = "none"
_MARK = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_LAYER_ID = expression(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ID = expression(rf"({_LAYER_ID.pattern})\.([0-9]+)")


def _pass(label: str) -> None:
    """Go on."""


step: Callable[[str], None] = _pass
"""Called before each thing that is done to a disk. Tests put here what should happen just then."""


@dataclass(frozen=True, slots=True)
class Summary:
    """When an application was made, how many paths it touched, of which targets, and where it keeps
    their old. ``roots`` are device and inode of each target at that time."""

    created: float
    paths: int
    stores: tuple[str, ...]
    targets: tuple[str, ...]
    roots: tuple[tuple[int, int], ...] = ()


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
        return self.marked(DONE) and not self.is_undone

    @property
    def is_undone(self) -> bool:
        """Whether it was taken back, and nothing of it is left."""
        return self.marked(UNDONE) and not self.left

    @property
    def left(self) -> tuple[str, ...]:
        """What could not be taken back, each with the reason."""
        with suppress(ChangesError), self.reading():
            facts = self.facts(UNDONE)
            return Fields(facts).texts("left", []) if isinstance(facts, dict) else ()
        return ()  # it says where it is undone that it cannot be read

    @property
    def is_unfinished(self) -> bool:
        """Whether something is half done: applied, undone, or only looked at."""
        if not self.planned or self.marked(UNDONE):
            return False
        return not self.marked(DONE) or any(map(self.marked, (UNDOING, LEFTOVER, OPENED)))

    def _begin(self, mark: str) -> None:
        """Note that it may be half done, after it was marked so: what is not marked is whole."""
        try:
            self._note_begun()
        except BaseException:
            self.unmark(mark)
            raise

    def _note_begun(self) -> None:
        """Have everyone who is about to look at a target know that this may be half done."""
        folder = places.state_folder("journals", places.UNFINISHED)
        step("begin")
        with books():  # nobody is about to take that back, having seen what was before
            os.close(os.open(folder / self.id, _MARK, 0o600))
            _syncing.folder(folder)

    def clear_if_whole(self) -> None:
        """Have nobody think that it may be half done, unless it is. Needs the `books`."""
        if not self.is_unfinished:
            step("clear")
            with suppress(FileNotFoundError):
                os.unlink(_folder() / places.UNFINISHED / self.id)

    def concerns(self, targets: Collection[str]) -> bool:
        """Whether it is about these folders, or about what lies above or below them.

        One that is not there is nobody's to look at; and without a plan nothing was touched yet, or
        nobody can tell any more what was.
        """
        try:
            theirs = self.summary().targets
        except ChangesError:
            return False
        return any(
            _locks.is_within(one, other) or _locks.is_within(other, one)
            for one in theirs
            if os.path.lexists(one)
            for other in targets
        )

    def marked(self, mark: str) -> bool:
        """Whether it came so far."""
        return (self.folder / mark).exists()

    def write(self, plan: Plan) -> None:
        """Put the plan on the disk, and every folder that leads to it: from here on it counts."""
        stores = {above for place in plan.places for above in Path(place.kept).parents[:2]}
        for folder in {*stores, *self.folder.parents[:3]}:
            with suppress(PermissionError):  # one that is not ours was not made by us either
                _syncing.folder(folder)
        self._write(PLAN, plan.lines())
        self._begin(PLAN)

    def read(self) -> Plan:
        """The plan, without what was taken back of it already.

        Raises `ChangesError` (kind ``state_failed``) if it cannot be read.
        """
        with self.reading():
            with open(self.folder / PLAN, encoding="ascii") as lines:
                plan = Plan.of_lines(iter(lines))
            taken = Part.of(self.facts(TAKEN))
            return plan if taken is None else without(plan, taken)

    def summary(self) -> Summary:
        """What the first line of the plan tells; `ChangesError` as for `read`."""
        with self.reading():
            with open(self.folder / PLAN, encoding="ascii") as lines:
                head = Head(parsed(next(lines, "")))
            places = head.places()
            return Summary(
                head.seconds("created"),
                head.number("paths"),
                tuple(place.kept for place in places),
                tuple(place.path for place in places),
                head.roots(),
            )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read what it says: whatever is wrong with it is a `ChangesError` that names it."""
        try:
            yield
        except (OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
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
        if mark in (UNDOING, OPENED):
            self._begin(mark)

    def unmark(self, mark: str) -> None:
        """Take a mark back."""
        if mark == UNDONE:
            self._note_begun()
        with suppress(FileNotFoundError):
            os.unlink(self.folder / mark)

    def facts(self, mark: str) -> object:
        """What was noted with a mark, None if it has none; `ChangesError` if it is broken."""
        with self.reading():
            try:
                text = (self.folder / mark).read_bytes()
            except FileNotFoundError:
                return None
            return parsed(text, whole=True)

    def _write(self, name: str, lines: Iterator[str]) -> None:
        """By rename, so that it is there whole or not at all, even if the power fails."""
        draft = self.folder / f"{name}.new"
        step(f"write {name}")
        try:
            with open(draft, "w", encoding="ascii") as file:
                while batch := "\n".join(islice(lines, 1000)):
                    file.write(f"{batch}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            error.filename = str(draft)  # a write that fails names nothing
            raise
        step(f"rename {name}")
        os.rename(draft, self.folder / name)
        _syncing.folder(self.folder)
        step(f"wrote {name}")

    def remove(self) -> None:
        """Remove it with all it kept. The plan goes first: without it there is nothing to undo."""
        stores = self._stores() | self.newer()
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

    def newer(self) -> set[Path]:
        """The folders with what an undo has overwritten of the host's."""
        places = {self.folder / KEPT, layers.place() / "undo" / self.id}
        with suppress(ChangesError):
            places |= {Path(kept) for kept in self.summary().stores}
        found = {place.with_name(place.name + NEWER) for place in places}
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
    """A new, empty journal for changes of this layer. Needs the locks of its targets."""
    name = layer_id or _NO_LAYER
    if not _LAYER_ID.fullmatch(name):
        raise ChangesError(f"{name!r} cannot be the id of a layer", kind=Kind.INVALID)
    while True:
        number = max((journal.number for journal in of_layer(name)), default=0) + 1
        id = f"{name}.{number}"
        with suppress(FileExistsError):  # another podbot took that number just now
            return Journal(id, places.new_folder("journals", id))


def new_token(journal: Journal) -> str:
    """The part of temporary names that nobody can foresee."""
    return f"{journal.id}-{os.urandom(4).hex()}"


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


def named(id: str) -> Journal | None:
    """The journal of this id, None if there is none."""
    folder = _folder() / id
    known = _ID.fullmatch(id) and folder.is_dir() and not folder.is_symlink()
    return Journal(id, folder) if known else None


def of_layer(layer_id: str) -> list[Journal]:
    """The journals of one layer, oldest first."""
    return [journal for journal in found() if journal.layer_id == layer_id]


def unfinished() -> list[Journal]:
    """Those that are half done, by a living podbot or a dead one."""
    return [Journal(name, _folder() / name) for name in places.unfinished() if _ID.fullmatch(name)]


@contextmanager
def books() -> Iterator[None]:
    """Hold for a moment what all applications share: nobody else writes into it meanwhile."""
    path = places.state_folder("journals") / "lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def clear_whole() -> None:
    """Have whoever looks at a target next find that nothing is half done, where that is so."""
    if places.unfinished():
        with suppress(OSError), books():
            for own in unfinished():
                own.clear_if_whole()


def _folder() -> Path:
    return places.state_place() / "journals"


def place_for(journal: Journal, target: str, device: int) -> Place:
    """A target with the folder that keeps its old things."""
    return Place(target, str(journal.store_for(device)))
