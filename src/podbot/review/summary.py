"""Everything worth knowing of what a run changed before deciding on it, gathered once.

Reads through `changes`; decides nothing and changes nothing. Which changes need a consent of their
own, and what the line for a folder may stand for, is said here for everyone who shows or asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from podbot.changes.diffs.text import shown_name
from podbot.changes.given import one_of
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, Merge
from podbot.changes.risk.rules import Level
from podbot.frozen import dataclass
from podbot.review import reading

if TYPE_CHECKING:
    from podbot.changes.drift import Conflict
    from podbot.changes.folding import Fold
    from podbot.changes.risk.judging import Flag
    from podbot.runs.records import Entry


@dataclass(frozen=True, slots=True)
class FolderFlags:
    """The flags of what lies right in one folder; ``path`` is relative to the target.

    ``expected`` are those that say no more than the line for this folder does: see `Fold.covers`.
    ``fold`` is the folder of packages, build or the like that it is, or is in.
    """

    target: str
    path: str
    flags: tuple[Flag, ...]
    expected: tuple[Flag, ...] = ()
    fold: Fold | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """A run with what it changed, and all that speaks against taking that over.

    ``flags`` and ``conflicts`` are by the absolute path of their change, and so is ``folded``:
    changes that a person may see as one line for the folder they are in. ``whole`` are all changes
    of the run, of which ``changes`` may be a part.
    """

    entry: Entry
    changes: ChangeSet
    flags: Mapping[str, tuple[Flag, ...]]
    conflicts: Mapping[str, Conflict]
    folded: Mapping[str, Fold]
    whole: ChangeSet

    @property
    def size(self) -> int:
        """Bytes of all new contents."""
        return sum(change.size for change in self.changes)

    @property
    def counts(self) -> dict[ChangeKind, int]:
        """How many changes there are of each kind."""
        numbers = Counter(change.kind for change in self.changes)
        return {kind: numbers[kind] for kind in ChangeKind}

    @property
    def folds(self) -> list[Fold]:
        """The folders that may be seen as one line."""
        return list({(fold.target, fold.path): fold for fold in self.folded.values()}.values())

    @property
    def merged(self) -> list[tuple[Change, Merge]]:
        """The changes that are already one with what other runs applied."""
        return [(change, merge) for change, merge in self._merges() if merge.is_clean]

    @property
    def overlaps(self) -> list[tuple[Change, Merge]]:
        """The changes of lines that another run changed too, which are to be decided on."""
        return [(change, merge) for change, merge in self._merges() if merge.overlaps]

    def _merges(self) -> list[tuple[Change, Merge]]:
        merges = self.changes.merges
        return [(each, merges[each.where]) for each in self.changes if each.where in merges]

    def is_folded(self, change: Change) -> bool:
        """Whether the line for its folder says all that is to be said of a change."""
        if change.where not in self.folded or change.where in self.conflicts:
            return False
        return all(self.is_expected(flag) for flag in self.flags.get(change.where, ()))

    def folded_in(self, fold: Fold) -> int:
        """How many changes the line for a folder stands for."""
        return sum(self.is_folded(change) for change in fold.changes)

    def is_expected(self, flag: Flag) -> bool:
        """Whether the line for its folder says what a flag says."""
        fold = self.folded.get(flag.change.where)
        return fold is not None and fold.covers(flag.level, flag.reason)

    def by_itself(self, change: Change) -> tuple[Flag, ...]:
        """The flags of a change that need a consent of their own."""
        flags = self.flags.get(change.where, ())
        return tuple(flag for flag in flags if flag.level is Level.BY_ITSELF)

    def needs_consent(self, change: Change) -> bool:
        """Whether a change is taken only by a word of its own."""
        return bool(self.by_itself(change)) or change.where in self.conflicts

    def is_possible(self, change: Change) -> bool:
        """Whether a change can be applied as a whole, if need be over what the host has."""
        from podbot.changes.drift import ConflictKind

        conflict = self.conflicts.get(change.where)
        return conflict is None or conflict.kind in (ConflictKind.CHANGED, ConflictKind.DELETED)

    def is_packaged(self, change: Change) -> bool:
        """Whether a change runs by itself as its folder of packages makes one expect, no more."""
        fold, flags = self.folded.get(change.where), self.by_itself(change)
        if fold is None or not flags or change.where in self.conflicts:
            return False
        return all(fold.belongs(change, flag.reason) for flag in flags)

    def flagged(self, level: Level) -> list[Flag]:
        """All flags of a level, in the order of the changes."""
        return [
            flag
            for change in self.changes
            for flag in self.flags.get(change.where, ())
            if flag.level is level
        ]

    def flags_by_folder(self, level: Level | None = None) -> list[FolderFlags]:
        """The flags, or those of a level, folder by folder, in the order of the changes."""
        if level is not None:
            level = one_of("level", level, Level)
        found: dict[tuple[str, str], list[Flag]] = {}
        for change in self.changes:
            for flag in self.flags.get(change.where, ()):
                if level in (None, flag.level):
                    place = change.target, change.path.rpartition("/")[0]
                    found.setdefault(place, []).append(flag)
        return [
            FolderFlags(
                *place,
                tuple(flags),
                tuple(flag for flag in flags if self.is_expected(flag)),
                self.folded.get(flags[0].change.where),
            )
            for place, flags in found.items()
        ]


def summary(entry: Entry, changes: ChangeSet, whole: ChangeSet) -> Summary:
    """All about some changes of a run, of its ``whole`` ones."""
    from podbot.changes import drift
    from podbot.changes.folding import folds
    from podbot.changes.risk import judging

    flags: dict[str, tuple[Flag, ...]] = {}
    with reading.naming_errors(entry):
        for flag in judging.flags(changes):
            flags[flag.change.where] = (*flags.get(flag.change.where, ()), flag)
        found = drift.conflicts(changes)
        folded = {change.where: fold for fold in folds(changes, whole) for change in fold.changes}
    conflicts = {each.change.where: each for each in found}
    return Summary(entry, changes, flags, conflicts, folded, whole)


# Names


def called(change: Change, changes: ChangeSet) -> str:
    """A change by its name, made safe to show: relative to the target if there is one only."""
    return called_path(change, changes, change.path, folder=change.type is FileType.FOLDER)


def called_path(change: Change, changes: ChangeSet, path: str, *, folder: bool = False) -> str:
    """The same for another path of a change."""
    full = f"{change.target}/{path}" if path else change.target
    shown = shown_name((path or ".") if len(changes.targets) == 1 else full)
    return f"{shown}/" if folder else shown
