"""Setting aside what the host has in the way of an undo that should overwrite it.

Each thing goes, before anything is taken back, into a folder beside the store of its target, under
a name that the undo's mark in the journal knows: so whoever is killed on the way goes on, and what
was overwritten can be had back. It stays there until the run is discarded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from podbot.changes.applying import _placing, journal
from podbot.changes.applying._site import Site
from podbot.changes.applying.journal import Journal
from podbot.changes.applying.moves import Folder, Move
from podbot.changes.model import Identity

LONGEST = 200
"""How many bytes of a name are kept in the name it is set aside under."""


class Aside(NamedTuple):
    """A thing in the way: where it lies, what it is, and its name in the folder of such things."""

    target: int
    path: str
    identity: Identity
    name: str


def aside(target: int, path: str, facts: os.stat_result, number: int) -> Aside:
    """What is to be noted of a thing before it is set aside."""
    last = path.rpartition("/")[2]
    name = f"{number}-{last}" if len(os.fsencode(last)) <= LONGEST else str(number)
    return Aside(target, path, (facts.st_dev, facts.st_ino, facts.st_ctime_ns), name)


def noted(own: Journal) -> list[Aside]:
    """What an undo that was begun sets aside."""
    with own.reading():
        facts = own.facts(journal.UNDOING)
        rows = facts.get("aside", ()) if isinstance(facts, dict) else ()
        return [Aside(target, path, tuple(which), name) for target, path, which, name in rows]


def place_of(site: Site, one: Aside) -> Path:
    """Where a thing is, or will be, set aside."""
    return newer_folder(site.plan.places[one.target].kept) / one.name


def newer_folder(kept: str) -> Path:
    """The folder for what is set aside, beside a store."""
    return Path(f"{kept}{journal.NEWER}")


def free_number(kept: Iterable[str]) -> int:
    """A number that no earlier undo has used."""
    names: list[str] = []
    for store in kept:
        with suppress(FileNotFoundError):
            names += os.listdir(newer_folder(store))
    return max((int(name.partition("-")[0]) for name in names), default=0) + 1


def put_aside(own: Journal, site: Site) -> None:
    """Set aside all that the mark names and that is still what it names; `OSError` if it cannot."""
    for one in noted(own):
        folder = newer_folder(site.plan.places[one.target].kept)
        folder.mkdir(mode=0o700, exist_ok=True)
        store = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _put_aside(site, one, store)
            os.fsync(store)
        finally:
            os.close(store)


def _put_aside(site: Site, one: Aside, store: int) -> None:
    tree = site.tree(Folder(one.target, one.path, None, None))
    facts = tree.facts(one.path)
    if facts is None or (facts.st_dev, facts.st_ino, facts.st_ctime_ns) != one.identity:
        return  # it is set aside already, or something else by now: that stays, and is told
    folder, name = tree.parent(one.path)
    journal.step("set aside")
    if not site.is_far(Move(-1, one.target, one.path, None, None)):
        _placing.put((folder, name), (store, one.name))
        tree.forget()  # of a folder that is set aside nothing is to be held
        return
    draft = f"{one.name}.new"
    with suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=store)
    _placing.copy((folder, name), (store, draft))
    _sync(store, draft)
    os.rename(draft, one.name, src_dir_fd=store, dst_dir_fd=store)
    os.fsync(store)
    now = _placing.facts_of(folder, name)
    if now is not None and (now.st_dev, now.st_ino, now.st_ctime_ns) == one.identity:
        journal.step("remove what was set aside")
        os.unlink(name, dir_fd=folder)


def _sync(folder: int, name: str) -> None:
    with suppress(OSError):  # a link, or a file that is closed to its owner
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
