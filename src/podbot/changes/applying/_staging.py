"""Where the new things of a plan wait until all of them are whole and on the disk.

Most wait beside their place, under a temporary name. What goes into a folder that is new itself
waits in there under its own name and comes with it, in one move. Nothing here touches a target.
"""

from __future__ import annotations

from podbot.changes.applying import journal
from podbot.changes.applying.moves import Move, Plan
from podbot.changes.model import FOLDER


class Layout:
    """Which moves come with which new folder, and where that waits."""

    def __init__(self, plan: Plan):
        self._folders: dict[tuple[int, str], tuple[int, str]] = {}
        self._coming: dict[int, list[Move]] = {}
        self._inner: set[int] = set()
        for move in plan.moves:
            if move.new is None or move.in_place or move.link_to is not None:
                continue
            above, _, name = move.path.rpartition("/")
            outer = self._folders.get((move.target, above)) if move.was is None else None
            if outer is not None:
                number, where = outer
                self._coming[number].append(move)
                self._inner.add(move.number)
                if move.new.type is FOLDER:
                    self._folders[move.target, move.path] = number, f"{where}/{name}"
            elif move.new.type is FOLDER:
                temp = journal.temporary(plan, move)
                where = f"{above}/{temp}" if above else temp
                self._folders[move.target, move.path] = move.number, where
                self._coming[move.number] = []

    def is_inner(self, move: Move) -> bool:
        """Whether it comes with a new folder above it."""
        return move.number in self._inner

    def coming_with(self, move: Move) -> list[Move]:
        """What comes with a new folder, outermost first."""
        return self._coming.get(move.number, [])

    def outermost(self, move: Move) -> int:
        """The number of the folder that it comes with."""
        return self._folders[move.target, move.path.rpartition("/")[0]][0]

    def folder_of(self, move: Move) -> str:
        """The folder in which something that comes with another waits."""
        return self._folders[move.target, move.path.rpartition("/")[0]][1]
