"""What an allowance agrees to: paths, folders and globs, turned into the changes they mean.

Whoever names a file means it. Whoever names a folder of packages means what packages bring, such as
commands; what else runs by itself in there, such as a git hook, has to be named itself. What a
folder or a glob covers is told, so that nothing is agreed to unseen.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from podbot.changes.given import Paths, paths
from podbot.errors import ChangesError, Kind
from podbot.frozen import dataclass
from podbot.review.picking import from_here
from podbot.review.summary import called

if TYPE_CHECKING:
    from podbot.changes.folding import Fold
    from podbot.changes.model import Change, ChangeSet
    from podbot.changes.risk.judging import Flag

NAME_IT = "name what is flagged like that, a folder of it, or a glob"
_NO_ANSWER = "a folder of packages does not answer for what else runs by itself in it:"


@dataclass(frozen=True, slots=True)
class Consent:
    """The changes that may run by themselves, and those of them that no word named itself.

    ``strangers`` are flags that a folder of packages was to answer for, and does not: what they are
    of is not agreed to. ``of`` are all changes that would be applied.
    """

    of: ChangeSet
    changes: tuple[Change, ...] = ()
    unnamed: tuple[Change, ...] = ()
    strangers: tuple[Flag, ...] = ()

    @property
    def paths(self) -> list[str]:
        """Their absolute paths, as `apply_changes` takes them."""
        return [change.where for change in self.changes]

    def check(self) -> None:
        """Raise kind ``flagged`` for what a folder of packages does not answer for."""
        if self.strangers:
            lines = [f"  {called(f.change, self.of)}: {f.reason}" for f in self.strangers]
            raise ChangesError(
                "\n".join([_NO_ANSWER, *lines]),
                kind=Kind.FLAGGED,
                remedy="look at it, then allow it by its own path or leave it out",
            )


def consent(
    changes: ChangeSet, whole: ChangeSet, allow: bool | Paths, here: str | None = None
) -> Consent:
    """What is agreed to by paths, folders and globs, or all with True.

    ``changes`` are those that would be applied, of the ``whole``. A word that means nothing in the
    target is meant from ``here``.

    Raises `ChangesError` (``nothing_selected``) for a word that means nothing that runs by itself.
    """
    words = () if isinstance(allow, bool) else paths("allow", allow)
    if not (words or allow is True):
        return Consent(changes)
    from podbot.changes.folding import folds
    from podbot.changes.risk import judging
    from podbot.changes.risk.rules import Level

    flags: dict[str, list[Flag]] = {}
    for flag in judging.flags(changes):
        if flag.level is Level.BY_ITSELF:
            flags.setdefault(flag.change.where, []).append(flag)
    flagged = tuple(change for change in changes if change.where in flags)
    if allow is True:
        return Consent(changes, flagged, flagged)
    itself, within = _meant(changes, flagged, words, here)
    unnamed = [change for change in within if change.where not in itself]
    strangers = _strangers(folds(changes, whole), unnamed, flags)
    strange = {flag.change.where for flag in strangers}
    unnamed = [change for change in unnamed if change.where not in strange]
    covered = itself | {change.where for change in unnamed}
    return Consent(
        changes,
        tuple(each for each in flagged if each.where in covered),
        tuple(unnamed),
        tuple(strangers),
    )


def _meant(
    changes: ChangeSet, flagged: Sequence[Change], words: Sequence[str], here: str | None
) -> tuple[set[str], list[Change]]:
    """What is named itself, and what by a folder or a glob."""
    from podbot.changes.select import named

    runs = {change.where for change in flagged}
    itself: set[str] = set()
    within: dict[str, Change] = {}
    for word in words:
        path = from_here(word, here) if word and not named(changes, word) else word
        plain = posixpath.normpath(path)
        found = [change for change in named(changes, path) if change.where in runs]
        if not found:
            raise ChangesError(
                f"{word}: nothing of that name is among what would be applied and runs by itself",
                kind=Kind.NOTHING_SELECTED,
                remedy=NAME_IT,
            )
        for change in found:
            if plain in (change.path, change.where):
                itself.add(change.where)
            else:
                within[change.where] = change
    return itself, list(within.values())


def _strangers(
    found: Sequence[Fold], unnamed: Sequence[Change], flags: Mapping[str, Sequence[Flag]]
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
