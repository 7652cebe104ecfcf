"""One run under review: all that can be known of its changes, and all that can become of them.

    found = review.open("last")
    found.apply(found.pick(hunks={"README.md": [0]}), on_conflict="skip")

Nothing here prints or asks. What runs by itself and what is in conflict stop an apply unless that
was allowed, as they stop `podbot changes apply`; a run that still works is only looked at.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from podbot.changes import given, next_steps
from podbot.errors import ChangesError, Kind
from podbot.review import reading
from podbot.review.reading import heal, naming_errors, refuse_live

if TYPE_CHECKING:
    from podbot.changes.applying.applied import Application
    from podbot.changes.applying.apply import Applied
    from podbot.changes.applying.undo import Undone
    from podbot.changes.diffs.diff import FileDiff
    from podbot.changes.diffs.hunks import Piece
    from podbot.changes.diffs.three_way import Choice
    from podbot.changes.drift import Conflict
    from podbot.changes.given import OnConflict, Paths
    from podbot.changes.model import Change, ChangeSet, Merge
    from podbot.changes.risk.rules import Level
    from podbot.review.consent import Consent
    from podbot.review.data import Data
    from podbot.review.files import Saved
    from podbot.review.picking import Picked
    from podbot.review.summary import FolderFlags, Summary
    from podbot.runs.records import Entry


class Review:
    """A run and its changes, read when they are first asked for, and anew once it was decided on.

    ``entry`` is the run. ``here`` is the folder where whoever decides stands, if anywhere: paths
    that mean nothing in a target are meant from there. With ``paths``, to show them alone, some
    of the changes are read, at least what these paths mean. ``healed`` says what a crash had left
    half done that was put right before the first look.

    A look raises `ChangesError`: ``unknown_id`` if the changes are gone, ``io`` if they cannot be
    read, ``in_use`` while somebody writes into the targets.
    """

    def __init__(self, entry: Entry, here: str | None = None, paths: Paths = ()):
        self.entry, self.here, self.healed = entry, here, tuple[str, ...]()
        self._paths = given.paths("paths", paths)
        self._has_healed = self._is_discarded = False
        self._changes: ChangeSet | None = None
        self._summary: Summary | None = None

    # Looking

    @property
    def changes(self) -> ChangeSet:
        """What the run changed and the host does not have, with renames, and merged."""
        self._heal()
        if self._is_discarded:
            raise reading.discarded(self.entry)
        if self._changes is None:
            self._changes = reading.read(self.entry, self._paths)
        return self._changes

    @property
    def summary(self) -> Summary:
        """The changes, and all that speaks against taking them over."""
        if self._summary is None:
            self._summary = self.summary_of(self.changes)
        return self._summary

    def summary_of(self, changes: ChangeSet) -> Summary:
        """The same of some changes of this run."""
        from podbot.review.summary import summary

        return summary(self.entry, changes, self.changes)

    @property
    def applications(self) -> list[Application]:
        """What was applied of the run, oldest first."""
        from podbot.changes.applying.applied import applications

        self._heal()
        return applications(self.entry.id)

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """What the host has changed meanwhile, too."""
        return tuple(self.summary.conflicts.values())

    @property
    def overlaps(self) -> list[tuple[Change, Merge]]:
        """Where another run that was applied changed the same lines: see `pick`."""
        return self.summary.overlaps

    def flags_by_folder(self, level: Level | None = None) -> list[FolderFlags]:
        """What would run once applied, or what of a level, folder by folder."""
        return self.summary.flags_by_folder(level)

    def select(self, only: Paths = ()) -> ChangeSet:
        """The changes that paths, folders or globs mean, with the new folders they need; or all.

        Raises `ChangesError` (``nothing_selected``) for a path that means none of them.
        """
        from podbot.review.picking import only_of

        return only_of(self.changes, only, self.here)

    def diff(self, *only: Paths) -> Iterator[FileDiff]:
        """The changed lines of what paths mean, or of all, compared as they are asked for."""
        from podbot.changes.diffs.diff import diff

        changes = self.select([path for each in only for path in given.paths("only", each)])
        return reading.read_from(self.entry, (diff(changes, change) for change in changes))

    def data(self) -> Data:
        """All of it as `podbot changes show --json` prints it."""
        from podbot.review import data

        found = None if self.entry.layer is None else self.summary
        shown = data.shown(self.entry, self.applications, found)
        with naming_errors(self.entry):
            return {**shown, "changes": [] if found is None else [*data.changes(found)]}

    # Deciding

    def consent(self, allow: bool | Paths, only: Paths = ()) -> Consent:
        """What an allowance covers of these changes, for whoever wants to show it before."""
        from podbot.review.consent import consent

        return consent(self.select(only), self.changes, allow, self.here)

    def pick(
        self,
        only: Paths = (),
        *,
        hunks: Mapping[str, Collection[Piece]] | None = None,
        lines: Mapping[str, Sequence[Choice]] | None = None,
    ) -> Picked:
        """What to apply: what paths mean, and of some files only these hunks of their diff.

        A file brings the new folders it needs; a folder whose removal was picked stays if not all
        in it was. ``lines`` says, by absolute path, which lines to take where another run changed
        the same.
        """
        from podbot.changes import merging
        from podbot.review.picking import pick

        changes = merging.decided(self.changes, lines) if lines else self.changes
        return pick(changes, only, hunks or {}, self.here)

    def apply(
        self,
        only: Paths | Picked = (),
        *,
        allow: bool | Paths | Consent = False,
        on_conflict: OnConflict = "stop",
    ) -> Applied:
        """Write all changes, what paths mean, or what was picked, to the host: all or nothing.

        What would run by itself stops it unless ``allow`` names it (a path, a folder, a glob; True
        for all), and so does what the host has changed meanwhile, unless ``on_conflict`` leaves it
        out (``skip``) or lets the sandbox win (``overwrite``).

        Raises `ChangesError` as `apply_changes` does.
        """
        from podbot.changes import drift
        from podbot.changes.applying.apply import apply
        from podbot.review.consent import Consent, consent
        from podbot.review.picking import Picked

        # Before anything is looked at; what was picked may decide otherwise below.
        on_conflict = given.one_of("on_conflict", on_conflict, given.ON_CONFLICT)
        refuse_live(self.entry, "applied")
        reading.refuse_gone(self.entry)
        picked = only if isinstance(only, Picked) else Picked(self.select(only))
        if not isinstance(allow, Consent):
            allow = consent(picked.changes, self.changes, allow, self.here)
        allow.check()
        if picked.overwriting:
            found = {each.change.where for each in drift.conflicts(picked.changes)}
            # What has come into conflict since the questions were asked stops it.
            on_conflict = "stop" if found - picked.overwriting else "overwrite"
        try:
            return apply(
                picked.changes,
                hunks=picked.hunks,
                allow_flagged={*allow.paths, *picked.consented},
                on_conflict=on_conflict,
            )
        except ChangesError as error:
            if error.kind is Kind.APPLY_FAILED:
                reading.refuse_gone(self.entry, error.message)
            if error.remedy == next_steps.ALLOW:
                error.remedy = next_steps.ALLOW_IN_REVIEW
            raise
        finally:
            self._read_anew()

    def undo(self, only: Paths = (), *, on_conflict: OnConflict = "stop") -> Undone:
        """Take back what was last applied, or what of it these paths mean.

        Where the host moved on, it stops before anything is touched, leaves that out (``skip``), or
        puts what the host has now aside (``overwrite``). An undo that was cut short is gone on with
        if nothing was looked at before. Raises `ChangesError` as `undo_changes` does.
        """
        from podbot.changes.applying.undo import undo

        on_conflict = given.one_of("on_conflict", on_conflict, given.ON_CONFLICT)
        only = given.paths("only", only)
        refuse_live(self.entry, "undone")
        try:
            return undo(self.entry.id, only=only, on_conflict=on_conflict)
        except ChangesError as error:
            here = None if self.here is None else glob.escape(self.here)
            if error.kind is not Kind.NOTHING_SELECTED or here is None or not all(only):
                raise
            try:
                from_here = [os.path.join(here, path) for path in only]
                return undo(self.entry.id, only=from_here, on_conflict=on_conflict)
            except ChangesError as other:
                if other.kind is Kind.NOTHING_SELECTED:
                    raise error from None  # which names the paths as they were given
                raise
        finally:
            self._read_anew()

    def save(self, file: str | os.PathLike[str], only: Paths = ()) -> Saved:
        """Write the changes to a new FILE.tar, which keeps everything, or a FILE.patch for git.

        Raises `ChangesError`: ``exists``, ``invalid`` for another ending, ``conflict`` if a patch
        would hold nothing but what is to be decided on, ``disk_full``, ``io``.
        """
        from podbot.review.files import save

        return save(self.select(only), os.fspath(file))

    def discard(self) -> None:
        """Throw the run away for good: its changes, its record, and the means to undo.

        Raises `ChangesError`: ``in_use`` while it works or is applied or undone, ``state_failed``.
        """
        from podbot.runs import discarding

        self._heal()
        refuse_live(self.entry, "discarded")
        discarding.discard(self.entry.id, self.entry.layer)
        self._is_discarded = True
        self._read_anew()

    def _heal(self) -> None:
        """Nobody shall be shown, or go on from, what is half done."""
        if not self._has_healed:
            self._has_healed = True
            self.healed += heal()

    def _read_anew(self) -> None:
        self._changes = self._summary = None
        self._has_healed = False


def open(run: str = "last", *, here: str | os.PathLike[str] | None = None) -> Review:
    """The run that is meant: an id, the start of one, a name, or ``last``.

    ``last`` is the latest; with ``here`` only of those whose target is that folder or one around
    it. Raises `ChangesError`: ``unknown_id``, ``ambiguous_id``.
    """
    from podbot.review.finding import find

    folder = None if here is None else os.path.realpath(here)
    return Review(find(run, folder), folder)


def load(
    file: str | os.PathLike[str],
    targets: Paths = (),
    *,
    within: str | os.PathLike[str] | None = None,
    command: Sequence[str] = (),
) -> Review:
    """Make a run of a FILE.tar that was saved, over its own targets or others.

    The file may come from anyone: nothing is applied by it. ``within`` is a folder that the targets
    it names must be or lie in, where none are given. ``command`` is what is noted to have loaded
    it. Raises `ChangesError`: ``bad_archive``, ``not_found``, ``target_…``, ``disk_full``, ``io``.
    Nothing of it is left then.
    """
    from podbot.review.files import loaded

    healed = heal()
    folder = None if within is None else os.path.realpath(within)
    with loaded(os.fspath(file), given.paths("targets", targets), folder, command) as entry:
        found = Review(entry)
        found.healed = healed
        _ = found.summary  # what cannot be looked at is not kept
        return found
