"""The ledger: what podbot itself left at the paths of a target, and took from there.

One file for each target, below the state folder, that outlives runs and journals. A row says of a
path what podbot found there, what it left, and which earlier thing that is the same as: an undo
leaves what was there before the application, a second apply the same file of the same layer. So
that a host path with a new ctime can be told from one that someone worked on: it is *explained* if
podbot left it, untouched since, with what the run started from.

A row proves something only where device, inode and ctime are exactly those that podbot left; a
file it could not write, or a line cut short, proves nothing, and there is a conflict more. Whoever
writes holds the lock of the target. Nothing here touches a target.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from json.encoder import encode_basestring_ascii as _quoted
from pathlib import Path
from typing import NamedTuple

from podbot import kernel
from podbot.changes.applying import journal
from podbot.changes.model import Identity
from podbot.config import places
from podbot.errors import ChangesError
from podbot.frozen import dataclass
from podbot.json_fields import Fields, parsed
from podbot.sandbox import layers

FOLDER = "ledger"
PRUNED_FROM = 32 * 1024 * 1024
"""A file that has become larger than this loses what nobody needs when it is written next."""

_LONGEST_ROW = 9 * 21 + 128
"""Characters of a row without its path."""
_HEADS = 3 * 4096
"""Characters of the lines that are no rows."""
_FLAGS = {False: "0", True: "1"}


@dataclass(frozen=True, slots=True)
class Deed:
    """One application, or one taking back, to which rows belong.

    ``began`` and ``ended`` are when it touched the host, in ns of the clock that stamps files. Of
    a sandbox that started in between, nothing is known.
    """

    journal: str
    layer_id: str | None
    began: int
    ended: int


class Row(NamedTuple):
    """What podbot did at ``path``: ``before`` was there, and ``left`` is; None is nothing.

    Without a path it tells only what became of a thing, whatever its names. ``left`` holds what
    ``origin`` held, wherever and whenever that was: on the host, or in a layer if it is a ``copy``
    of a file there. ``move`` is its number in the plan, -1 for what was only touched.
    ``host_unchanged`` says that nobody else had changed the path since the sandbox started whose
    changes were applied. ``listing`` is the digest of what an index of git's
    lists that was left: git writes it anew whenever it looks, and then it is another file.
    """

    path: str | None
    before: Identity | None
    left: Identity | None
    origin: Identity | None = None
    move: int = -1
    host_unchanged: bool = True
    copy: bool = False
    listing: str | None = None


class Fact(NamedTuple):
    """A row with the deed it belongs to."""

    row: Row
    deed: Deed


def note(target: str, deed: Deed, rows: Iterable[Row]) -> None:
    """Add rows of one deed. Raises `OSError` if they cannot be written."""
    lines = (_line(row) for row in rows)
    first = next(lines, None)
    if first is None:
        return
    path = _ready(target)
    head = json.dumps([deed.journal, deed.layer_id, deed.began, deed.ended])
    with open(path, "a", encoding="ascii", opener=_private) as file:
        if not file.tell():
            file.write(json.dumps({"version": 1, "target": target}))
        # The line before may have been cut short by a crash: it ends here.
        file.write(f"\n{head}\n{first}\n")
        while batch := "\n".join(islice(lines, 1000)):
            file.write(f"{batch}\n")


def reserve(target: str, paths: Iterable[str]) -> None:
    """Keep room on the disk for rows on these paths, each as often as it is given.

    What is applied cannot be told from what someone did if there is none when it has failed.
    Raises `OSError` where the disk is full; a file system that keeps no room has its luck.
    """
    size = _HEADS + sum(_LONGEST_ROW + len(_quoted(path)) for path in paths)
    fd = _private(os.fspath(_ready(target)), os.O_WRONLY | os.O_CREAT)
    try:
        kernel.reserve(fd, os.fstat(fd).st_size, size)
    finally:
        os.close(fd)


def release(target: str) -> None:
    """Give back what of the room was not needed. Raises `OSError` if that cannot be done."""
    fd = _private(os.fspath(_file(places.state_folder(FOLDER), target)), os.O_WRONLY)
    try:
        os.ftruncate(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def _ready(target: str) -> Path:
    """The file of a target, smaller if it has become large."""
    path = _file(places.state_folder(FOLDER), target)
    with suppress(FileNotFoundError):
        if os.stat(path).st_size > PRUNED_FROM:
            prune([target])
    return path


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _line(row: Row) -> str:
    before, left, origin = (_identity(one) for one in row[1:4])
    path = "null" if row.path is None else _quoted(row.path)
    flags = f"{_FLAGS[row.host_unchanged]},{_FLAGS[row.copy]}"
    listing = "" if row.listing is None else f",{_quoted(row.listing)}"
    return f"[{path},{before},{left},{origin},{row.move},{flags}{listing}]"


def _identity(one: Identity | None) -> str:
    return "0" if one is None else f"[{one[0]},{one[1]},{one[2]}]"


def _file(folder: Path, target: str) -> Path:
    import hashlib  # much to load, and seldom needed

    return folder / f"{hashlib.sha256(os.fsencode(target)).hexdigest()[:32]}.jsonl"


class Ledger:
    """All rows for paths of some targets, their own and those of targets above and below them.

    Read when it is first asked, which is only where the host is not as it was.
    """

    def __init__(self, *targets: str):
        self._targets = targets
        self._known = False
        self._facts: dict[str, list[Fact]] = {}
        self._origins: dict[Identity, Identity] = {}
        self._given_back: dict[Identity, Identity] = {}  # those of them that are the host's
        self._later: dict[Identity, Identity] = {}  # the same the other way round
        self._touched: dict[Identity, Identity] = {}  # those by which only a name came or went
        self._left: dict[tuple[int, int], list[tuple[str, Fact]]] | None = None

    def explains(
        self, where: str, now: Identity, since_ns: int, layer_id: str | None = None
    ) -> bool:
        """Whether what is at an absolute path is what a sandbox saw there, or what its layer gave.

        The sandbox started at ``since_ns`` and left its changes in ``layer_id``.
        """
        facts = self.at(where)
        same = self._same_as(now)
        if layer_id is not None and any(
            deed.layer_id == layer_id and row.host_unchanged and row.left in same
            for row, deed in facts
        ):
            return True
        first = self._first_after(facts, since_ns)
        if first is None:
            return self._is_unmoved(now, since_ns)
        base = self._base(first, since_ns)
        return base is not None and not same.isdisjoint(self._same_as(base))

    def explains_listing(
        self, where: str, listing: str, since_ns: int, layer_id: str | None = None
    ) -> bool:
        """Whether podbot left an index there that lists this, and `explains` says that of it."""
        return any(
            row.listing == listing
            and row.left is not None
            and self.explains(where, row.left, since_ns, layer_id)
            for row, _ in self.at(where)
        )

    def lists(self, where: str) -> bool:
        """Whether it is known of any index that podbot left there what it lists."""
        return any(row.listing is not None for row, _ in self.at(where))

    def base(self, where: str, since_ns: int) -> Fact | None:
        """Who was the first to touch a path since then, if what was there before is certain.

        Its ``before`` is what a sandbox saw that was started then, and its journal keeps it.
        """
        first = self._first_after(self.at(where), since_ns)
        return first if first is not None and self._base(first, since_ns) else None

    def only_podbot_touched(self, where: str, now: Identity, since_ns: int) -> bool:
        """Whether nobody else made or removed an entry of a folder since then."""
        lefts = {row.left: row.before for row, _ in self.at(where) if row.left is not None}
        here: Identity | None = now
        while here is not None and here[2] > since_ns:
            here = lefts.pop(here, None)
        return here is not None

    def removed(self, where: str, since_ns: int) -> bool:
        """Whether podbot itself took away what was at a path then, and did not put it back."""
        facts = self.at(where)
        return self.base(where, since_ns) is not None and facts[-1].row.left is None

    def left_by(self, where: str, now: Identity) -> str | None:
        """The run that left what is at an absolute path, if nobody touched it since."""
        facts = self.at(where)
        if not facts or facts[-1].row.left is None:
            return None
        return facts[-1].deed.layer_id if now in (facts[-1].row.left, self.latest(now)) else None

    def named_since(
        self, where: str, now: Identity, since_ns: int, but: str | None
    ) -> tuple[str, str] | None:
        """The path by which a run made a file of the host one with another, and that run.

        Only where that was applied after ``since_ns`` and is not taken back. ``but`` is the run, or
        the application, that does not count.
        """
        for other, fact in self._copies().get(now[:2], ()):
            run = fact.deed.layer_id
            if (
                other != where
                and fact.deed.ended > since_ns
                and run is not None
                and but not in (run, fact.deed.journal)
            ):
                return other, run
        return None

    def _copies(self) -> Mapping[tuple[int, int], Sequence[tuple[str, Fact]]]:
        """The paths at which an application left something, by device and inode.

        What an undo gave back is not among them: that had its names before.
        """
        if self._left is None:
            self._read()
            self._left = {}
            for where, facts in self._facts.items():
                row = facts[-1].row
                if row.copy and row.left is not None:
                    self._left.setdefault(row.left[:2], []).append((where, facts[-1]))
        return self._left

    def latest(self, identity: Identity) -> Identity:
        """What became of a thing that podbot moved away and back, or gave another name."""
        self._read()
        seen: set[Identity] = set()
        while (after := self._later.get(identity)) is not None and after not in seen:
            seen.add(identity)
            identity = after
        return identity

    def earlier(self, identity: Identity) -> set[Identity]:
        """What a thing of the host was known by: now, and before podbot moved it away and back."""
        self._read()
        return _back_from(identity, self._given_back)

    def at(self, where: str) -> Sequence[Fact]:
        """What was done at an absolute path, oldest first."""
        self._read()
        return self._facts.get(where, ())

    def _first_after(self, facts: Sequence[Fact], since_ns: int) -> Fact | None:
        return next((fact for fact in facts if fact.deed.ended > since_ns), None)

    def _base(self, first: Fact, since_ns: int) -> Identity | None:
        """What was there at that time, if this deed was the first to touch it since."""
        before = first.row.before
        if before is None or first.deed.began <= since_ns:
            return None
        return before if self._is_unmoved(before, since_ns) else None

    def _is_unmoved(self, identity: Identity, since_ns: int) -> bool:
        """Whether it was there before, and at most other names of it came and went since."""
        self._read()
        return any(one[2] <= since_ns for one in _back_from(identity, self._touched))

    def _same_as(self, identity: Identity) -> set[Identity]:
        """All that a thing is known to be the same as, itself too."""
        self._read()
        return _back_from(identity, self._origins)

    def _read(self) -> None:
        if self._known:
            return
        self._known = True
        for target, path in _related(self._targets):
            for fact in _facts(path):
                row = fact.row
                if row.path is not None:
                    where = f"{target}/{row.path}" if row.path else target
                    self._facts.setdefault(where, []).append(fact)
                if row.left is not None and row.origin is not None and row.left != row.origin:
                    self._origins[row.left] = row.origin
                    if not row.copy:
                        self._given_back[row.left] = row.origin
                        self._later[row.origin] = row.left
                    if row.path is None and row.left[:2] == row.origin[:2]:
                        self._touched[row.left] = row.origin
        for facts in self._facts.values():
            facts.sort(key=lambda fact: fact.deed.began)


def _back_from(identity: Identity, links: Mapping[Identity, Identity]) -> set[Identity]:
    found: set[Identity] = set()
    here: Identity | None = identity
    while here is not None and here not in found:
        found.add(here)
        here = links.get(here)
    return found


def _related(targets: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """The ledgers of targets, of those that hold them, and of those in them."""
    ours = [f"{target}/" for target in targets]
    folder = places.state_place() / FOLDER
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))
    except OSError:
        return
    for name in names:
        try:
            with open(folder / name, encoding="ascii") as file:
                target = Fields(parsed(file.readline())).text("target")
        except (OSError, ValueError):
            continue
        if any(f"{target}/".startswith(one) or one.startswith(f"{target}/") for one in ours):
            yield target, folder / name


def _facts(path: Path) -> Iterator[Fact]:
    """What a ledger says; of a line that was cut short, nothing."""
    deed: Deed | None = None
    try:
        with open(path, encoding="ascii", errors="replace") as lines:
            next(lines, None)
            for line in lines:
                with suppress(ValueError):
                    found = _line_says(parsed(line, whole=True))
                    if isinstance(found, Deed):
                        deed = found
                    elif deed is not None:
                        yield Fact(found, deed)
    except OSError:
        return


def _line_says(data: object) -> Deed | Row:
    match data:
        case [str(journal_id), str() | None as layer_id, int(began), int(ended)]:
            return Deed(journal_id, layer_id, began, ended)
        case [str() | None as where, before, left, origin, int(move), unchanged, copy, *rest]:
            listing = rest[0] if rest else None
            if len(rest) <= 1 and (listing is None or isinstance(listing, str)):
                return Row(
                    where, _of_data(before), _of_data(left), _of_data(origin),
                    move, bool(unchanged), bool(copy), listing,
                )  # fmt: skip
    raise ValueError("neither a deed nor a row")


def _of_data(data: object) -> Identity | None:
    match data:
        case int():
            return None
        case [int(device), int(inode), int(ctime_ns)]:
            return device, inode, ctime_ns
    raise ValueError("not what tells a file from others")


# Forgetting


def prune(targets: Iterable[str]) -> None:
    """Forget what no layer and no application that can be undone needs to know of these targets.

    Needs their locks. What ended before the oldest of them began explains nothing to anyone.
    """
    folder = places.state_place() / FOLDER
    wanted = {target: _file(folder, target) for target in targets}
    wanted = {target: path for target, path in wanted.items() if path.exists()}
    needed = _needed() if wanted else []
    for target, path in wanted.items():
        times = [since for other, since in needed if _touch_each_other(target, other)]
        with suppress(OSError):  # it is large then, and no harm
            _drop_before(path, min(times)) if times else os.unlink(path)


def _needed() -> list[tuple[str, int]]:
    """From when on something must be known of a target, for each layer and application."""
    needed = [(target, layer.since_ns) for layer in layers.found() for target in layer.targets]
    for own in journal.found():
        if own.planned and not own.marked(journal.UNDONE):
            with suppress(ChangesError):  # nobody can undo it
                made = own.summary()
                needed += [(target, int(made.created * 1e9)) for target in made.targets]
    return needed


def _touch_each_other(one: str, other: str) -> bool:
    """Whether a path can lie in both."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _drop_before(path: Path, since_ns: int) -> None:
    draft = path.with_suffix(".new")
    wanted = True
    # Bytes, as a line that is broken need be nobody's text.
    with open(path, "rb") as lines, open(draft, "wb") as file:
        file.write(next(lines, b"\n"))
        for line in lines:
            with suppress(ValueError):
                found = _line_says(parsed(line, whole=True))
                if isinstance(found, Deed):
                    wanted = found.ended >= since_ns
            if wanted and line != b"\n":
                file.write(line)
    os.rename(draft, path)
