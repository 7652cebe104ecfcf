"""The targets of a plan and the folders that keep their old things, all held by descriptor.

What apply and undo share: finding a move's place and its temporary name, and carrying things into
the store and back, by rename on one file system and by copy across two.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from podbot.changes import journal, placing
from podbot.changes.moves import Folder, Move, Plan
from podbot.changes.tree import Tree

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a move happens: its folder, its name there, and the name things are staged under."""

    folder: int
    name: str
    temp: str


class Site:
    """Where a plan is carried out. A tree is None if its target cannot be opened any more."""

    def __init__(self, plan: Plan, trees: Sequence[Tree | None]):
        self.plan, self._trees = plan, trees
        self._stores = [os.open(place.kept, _FOLDER) for place in plan.places]
        self._kept_copies: dict[tuple[int, int], str] = {}
        self._brought: dict[tuple[int, int], tuple[Move, int]] = {}
        self.foreign: set[int] = set()
        """Moves whose temporary name someone else has taken."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for fd in self._stores:
            os.close(fd)

    def tree(self, entry: Move | Folder) -> Tree:
        """The target something lies in; `OSError` if it cannot be opened."""
        tree = self._trees[entry.target]
        if tree is None:
            target = self.plan.places[entry.target].path
            raise FileNotFoundError(errno.ENOENT, "the target is not there", target)
        return tree

    def spot(self, move: Move) -> Spot:
        """Its place. Valid until many other folders were asked for."""
        folder, name = self.tree(move).parent(move.path)
        return Spot(folder, name, journal.temporary(self.plan, move))

    def has_kept(self, move: Move) -> bool:
        """Whether the store has what was at its path."""
        return placing.facts_of(self._stores[move.target], str(move.number)) is not None

    def kept_elsewhere(self, target: int) -> int:
        """Bytes the store has for a target if it lies on another file system, else 0."""
        tree = self._trees[target]
        store = os.fstat(self._stores[target])
        if tree is None or os.stat(tree.place("")).st_dev == store.st_dev:
            return 0
        kept = (
            placing.facts_of(self._stores[target], str(move.number))
            for move in self.plan.moves
            if move.target == target and move.was is not None
        )
        return sum(facts.st_blocks * 512 for facts in kept if facts is not None)

    def keep(self, move: Move, spot: Spot) -> bool:
        """Carry what was taken out into the store; False if it had to be copied, and is both."""
        store, number = self._stores[move.target], str(move.number)
        try:
            os.rename(spot.temp, number, src_dir_fd=spot.folder, dst_dir_fd=store)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            return True
        if self.has_kept(move):
            return False
        facts = os.stat(spot.temp, dir_fd=spot.folder, follow_symlinks=False)
        first = self._kept_copies.setdefault((facts.st_dev, facts.st_ino), number)
        if first == number:
            placing.copy(spot.folder, spot.temp, store, number)
        else:
            os.link(first, number, src_dir_fd=store, dst_dir_fd=store, follow_symlinks=False)
        return False

    def bring(self, move: Move, spot: Spot) -> None:
        """Carry it back from the store to its temporary name, which must be free."""
        store, number = self._stores[move.target], str(move.number)
        try:
            os.rename(number, spot.temp, src_dir_fd=store, dst_dir_fd=spot.folder)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            return
        if not self._linked_to_brought(move, spot):
            placing.copy(store, number, spot.folder, spot.temp)

    def note_brought(self, move: Move, spot: Spot) -> None:
        """Remember a copy that is in its place, so that other names of it become links to it."""
        kept = placing.facts_of(self._stores[move.target], str(move.number))
        there = placing.facts_of(spot.folder, spot.name)
        if kept is not None and there is not None and kept.st_nlink > 1:
            self._brought.setdefault((move.target, kept.st_ino), (move, there.st_ino))

    def _linked_to_brought(self, move: Move, spot: Spot) -> bool:
        kept = os.stat(str(move.number), dir_fd=self._stores[move.target], follow_symlinks=False)
        first, inode = self._brought.get((move.target, kept.st_ino), (None, 0))
        if first is None:
            return False
        other = self.spot(first)
        facts = placing.facts_of(other.folder, other.name)
        if facts is None or facts.st_ino != inode:
            return False
        os.link(
            other.name, spot.temp,
            src_dir_fd=other.folder, dst_dir_fd=spot.folder, follow_symlinks=False,
        )  # fmt: skip
        return True
