"""What `--allow-flagged` agrees to: paths, folders and globs, turned into the changes they mean.

Whoever names a file means it. Whoever names a folder of packages means what packages bring, such as
commands; what else runs by itself in there, such as a git hook, has to be named itself. What a
folder or a glob covers is told, so that nothing is agreed to unseen.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from podbot.changes.select import named
from podbot.cli import overview, remedies, wording
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass

if TYPE_CHECKING:
    from podbot.changes.folding import Fold
    from podbot.changes.model import Change, ChangeSet
    from podbot.changes.risk.judging import Flag
    from podbot.cli.remedies import Given

ALL = "all"
MOST_TOLD = 20
MOST_NAMED = 3
"""More than these are too many to be named in a command to paste."""


@dataclass(frozen=True, slots=True)
class Consent:
    """The changes that may run by themselves, and those of them that no word named itself."""

    changes: tuple[Change, ...] = ()
    unnamed: tuple[Change, ...] = ()

    @property
    def paths(self) -> list[str]:
        """Their absolute paths, as `apply_changes` takes them."""
        return [change.where for change in self.changes]

    def told(self, changes: ChangeSet) -> list[str]:
        """What was agreed to without being named, for a person."""
        if not self.unnamed:
            return []
        things = wording.count(len(self.unnamed), "thing")
        names = [f"  {overview.called(change, changes)}" for change in self.unnamed]
        return [
            f"allowed, although each runs by itself once applied: {things}",
            *wording.listed(names, MOST_TOLD),
        ]


def consent(changes: ChangeSet, whole: ChangeSet, run: str, given: Given) -> Consent:
    """What is agreed to by paths, folders, globs or ``all``, which are ``given`` for a run.

    ``changes`` are those that would be applied, of the ``whole``.

    Raises `ChangesError`: ``nothing_selected`` for a word that means nothing that runs by itself,
    ``flagged`` for what a folder of packages does not answer for.
    """
    words = given.allow_flagged
    if not words:
        return Consent()
    from podbot.changes.folding import folds
    from podbot.changes.risk import judging
    from podbot.changes.risk.rules import Level

    flags: dict[str, list[Flag]] = {}
    for flag in judging.flags(changes):
        if flag.level is Level.BY_ITSELF:
            flags.setdefault(flag.change.where, []).append(flag)
    flagged = tuple(change for change in changes if change.where in flags)
    if ALL in words:
        return Consent(flagged, flagged)
    itself, within = _meant(changes, flagged, run, given)
    unnamed = [change for change in within if change.where not in itself]
    strange = _strangers(folds(changes, whole), unnamed, flags)
    if strange:
        raise ChangesError(
            "a folder of packages does not answer for what else runs by itself in it:\n"
            + "\n".join(f"  {overview.called(f.change, changes)}: {f.reason}" for f in strange),
            kind=Kind.FLAGGED,
            remedy=f"look at it: {_looking(changes, run, strange)}\n"
            f"          then name it itself: {remedies.allowing(run, given)}",
        )
    agreed = itself | {change.where for change in unnamed}
    return Consent(tuple(each for each in flagged if each.where in agreed), tuple(unnamed))


def _looking(changes: ChangeSet, run: str, flags: Sequence[Flag]) -> str:
    """The command that shows what is flagged."""
    several = len(changes.targets) > 1
    paths = dict.fromkeys(each.change.where if several else each.change.path for each in flags)
    if len(paths) > MOST_NAMED or any(glob.escape(path) != path for path in paths):
        return remedies.command("show", run)
    return remedies.command("diff", run, [*paths])


def _meant(
    changes: ChangeSet, flagged: Sequence[Change], run: str, given: Given
) -> tuple[set[str], list[Change]]:
    """What is named itself, and what by a folder or a glob."""
    runs = {change.where for change in flagged}
    itself: set[str] = set()
    within: dict[str, Change] = {}
    for word in given.allow_flagged:
        path = _from_here(changes, word)
        plain = os.path.normpath(path)
        found = [change for change in named(changes, path) if change.where in runs]
        if not found:
            raise ChangesError(
                f"--allow-flagged {word}: nothing of that name is among what would be applied"
                " and runs by itself",
                kind=Kind.NOTHING_SELECTED,
                remedy=f"name what {remedies.command('show', run)} lists there, a folder of it,"
                " or a glob",
            )
        for change in found:
            if plain in (change.path, change.where):
                itself.add(change.where)
            else:
                within[change.where] = change
    return itself, list(within.values())


def _from_here(changes: ChangeSet, word: str) -> str:
    """A word that means nothing in the target is meant from where one stands."""
    if not word or named(changes, word):
        return word
    return os.path.join(glob.escape(os.path.realpath(os.curdir)), word)


def _strangers(
    found: Sequence[Fold], unnamed: Sequence[Change], flags: dict[str, list[Flag]]
) -> list[Flag]:
    """Flags in folders of packages that no package explains."""
    folded = {change.where: fold for fold in found for change in fold.changes}
    return [
        flag
        for change in unnamed
        if (fold := folded.get(change.where)) is not None and fold.source is None
        for flag in flags[change.where]
        if not fold.belongs(change, flag.reason)
    ]
