"""The right to write into a target: one podbot at a time for each, and for what lies in it.

A lock is a file below the state folder, named by device and inode of a folder, so that two paths to
one folder mean one lock. Who writes into a target holds it alone (exclusive), and every folder
above it together with others (shared): so a target and one inside it exclude each other, and two
beside each other do not. All locks are taken in one order whoever takes them, so that nobody waits
in a circle. The kernel lets go of them when a process dies. Nothing here touches a target.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from podbot.changes import progress
from podbot.changes.diffs.text import shown_name
from podbot.config import places
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass
from podbot.json_fields import parsed

FOLDER = "locks"
WAIT = 60.0
"""Seconds to wait for another podbot that applies or undoes something in the same place."""
PATIENCE = 0.5
"""Seconds before whoever waits is told for whom."""

_SHORTEST, _LONGEST = 0.005, 0.1
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

_Key = tuple[int, int, str]
"""A folder: its device and inode; one that is not there by a digest of its path."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a target: the process, what it is doing, with which run, and to what."""

    pid: int
    doing: str
    run: str | None
    targets: tuple[str, ...]

    def __str__(self) -> str:
        what = f"{self.doing} {self.run}" if self.run else self.doing
        where = ", ".join(map(shown_name, self.targets))
        return f"process {self.pid}, which is {shown_name(what)} ({where})"


@contextmanager
def held(
    targets: Collection[str], doing: str, run: str | None = None, wait: float | None = None
) -> Iterator[bool]:
    """Hold the right to write into these folders.

    With a ``wait`` of 0 this gives whether all of them were free. Else raises `ChangesError` (kind
    ``in_use``), which says who has them, when they do not become free in time (`WAIT` by default).
    """
    limit = WAIT if wait is None else wait
    locks = _Locks(Owner(os.getpid(), doing, run, tuple(targets)))
    try:
        all_held = locks.take(time.monotonic(), limit)
        if not all_held:
            locks.let_go()
            if limit > 0:
                raise _in_use(locks.in_the_way())
        yield all_held
    finally:
        locks.let_go()


def is_anyone_at_work() -> bool:
    """Whether any podbot holds a target now."""
    return any(_is_held(path) for path, _ in _owners())


class _Locks:
    """All that one owner takes."""

    def __init__(self, owner: Owner):
        self._owner = owner
        self._folder = places.state_folder(FOLDER)
        self._held: list[tuple[Path, int]] = []
        self._blocked: tuple[Path, str] | None = None

    def take(self, began: float, limit: float) -> bool:
        """Whether all of it could be had in time."""
        pause, announced = _SHORTEST, False
        while True:
            wanted = self._wanted()
            if self._try(wanted) and self._wanted() == wanted:
                return True
            waited = time.monotonic() - began
            if waited >= limit:
                return False
            if not announced and waited >= PATIENCE:
                progress.tell(progress.Step(_waiting(self.in_the_way()), waiting=True))
                announced = True
            time.sleep(min(pause, limit - waited))
            pause = min(pause * 2, _LONGEST)

    def _wanted(self) -> dict[_Key, tuple[int, str]]:
        """Which folders, how, and the target it is for; in the order they are taken in."""
        found: dict[_Key, tuple[int, str]] = {}
        for target in self._owner.targets:
            path = os.path.realpath(target)
            found[_key(path)] = fcntl.LOCK_EX, target
            while path != "/":
                path = os.path.dirname(path)
                found.setdefault(_key(path), (fcntl.LOCK_SH, target))
        return dict(sorted(found.items()))

    def _try(self, wanted: dict[_Key, tuple[int, str]]) -> bool:
        """Take what is not held yet, up to the first that someone else has."""
        paths = [self._folder / _name(key) for key in wanted]
        if [path for path, _ in self._held] != paths[: len(self._held)]:
            self.let_go()  # a folder was replaced meanwhile: from the beginning
        for path, (mode, target) in [*zip(paths, wanted.values(), strict=True)][len(self._held) :]:
            fd = _lock(path, mode)
            if fd is None:
                self._blocked = path, target
                return False
            self._held.append((path, fd))
            _write(fd, self._owner if mode == fcntl.LOCK_EX else None)
        return True

    def in_the_way(self) -> tuple[str, Owner | None]:
        """The target that could not be had, and who has it, as far as that can be told."""
        assert self._blocked is not None  # noqa: S101 - asked only then
        path, target = self._blocked
        with suppress(OSError):
            owner = _read(path.read_bytes())
            if owner is not None:
                return target, owner
        return target, next(  # shared by those who are at work below it
            (
                owner
                for other, owner in _owners()
                if any(is_within(theirs, target) for theirs in owner.targets) and _is_held(other)
            ),
            None,
        )

    def let_go(self) -> None:
        """Give everything back; files that nobody else uses go."""
        while self._held:
            path, fd = self._held.pop()
            try:
                # Shared ones only if nobody shares them. Who has opened it meanwhile looks again.
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            except OSError:
                pass  # in use, or not ours to remove any more
            finally:
                with suppress(OSError):  # by hand: a fork may hold a copy of the descriptor
                    fcntl.flock(fd, fcntl.LOCK_UN)
                os.close(fd)


def _key(path: str) -> _Key:
    try:
        facts = os.stat(path)
    except OSError:
        import hashlib  # much to load, and seldom needed

        return 0, 0, hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    return facts.st_dev, facts.st_ino, ""


def _name(key: _Key) -> str:
    device, inode, digest = key
    return digest or f"{device:x}.{inode:x}"


def _lock(path: Path, mode: int) -> int | None:
    """A lock, None if someone else has it."""
    while True:
        fd = os.open(path, _FLAGS, 0o600)
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
            if _is_at(path, fd):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # whoever had it has removed it: make it anew


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _write(fd: int, owner: Owner | None) -> None:
    """Say whose it is; of one that is shared nobody's, whatever a crash left in it."""
    with suppress(OSError):  # on a full disk nobody is told for whom they wait
        os.ftruncate(fd, 0)
        if owner is None:
            return
        text = json.dumps([owner.pid, owner.doing, owner.run, owner.targets])
        os.pwrite(fd, text.encode("ascii"), 0)


def _read(text: bytes) -> Owner | None:
    try:
        found = parsed(text, whole=True)
    except ValueError:
        return None
    match found:
        case [int(pid), str(doing), str() | None as run, [*targets]]:
            return Owner(pid, doing, run, tuple(map(str, targets)))
    return None


def _owners() -> Iterator[tuple[Path, Owner]]:
    """What is written in the locks there are; a crash may have left some."""
    folder = places.state_place() / FOLDER
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            with suppress(OSError):
                owner = _read((folder / name).read_bytes())
                if owner is not None:
                    yield folder / name, owner


def _is_held(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder, or lies in it, by their words."""
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def _waiting(found: tuple[str, Owner | None]) -> str:
    return f"waiting for {found[1] or 'another podbot'}"


def _in_use(found: tuple[str, Owner | None]) -> ChangesError:
    target, owner = found
    return ChangesError(
        f"{shown_name(target)} is in use by {owner or 'another podbot'}",
        kind=Kind.IN_USE,
        remedy="wait until it is done, and try again",
    )
