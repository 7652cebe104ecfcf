"""Undoing an application: the host gets back, bit for bit, what it had.

Refused as a whole, before anything is touched, where the host moved on since. What was replaced is
taken from the journal's store; an undo that is interrupted is completed by whoever comes next.
Writes only what an application wrote.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from podbot.changes import journal, recovery
from podbot.changes.forward import Result
from podbot.changes.journal import Journal
from podbot.changes.model import FOLDER, Identity, State
from podbot.changes.moves import Folder, Move
from podbot.changes.site import Site
from podbot.changes.text import listed, shown_name
from podbot.errors import ChangesError, Kind
from podbot.sandbox.overlay.layers import Layer


@dataclass(frozen=True, slots=True)
class Undone:
    """What was undone: the application, and the absolute paths that are as they were before.

    ``recovered`` says what an earlier interruption left to be healed first.
    """

    id: str
    restored: tuple[str, ...]
    recovered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Application:
    """One application of changes to the host, as a list shows it.

    ``left`` are things that could not be taken back when it was undone, each with the reason.
    """

    id: str
    layer_id: str
    when: float
    paths: int
    undone: bool
    left: tuple[str, ...] = ()


def undo(journal_or_layer_id: str) -> Undone:
    """Undo an application, or the latest of a layer that is not undone yet.

    Raises `ChangesError`: ``nothing_to_undo``; ``undo_refused`` where the host moved on since,
    naming the files; ``permission`` where a folder is not ours to write; ``disk_full`` and
    ``apply_failed`` if it cannot be done; ``in_use``.
    """
    with journal.locked():
        recovered = tuple(recovery.heal())
        own = _latest(journal_or_layer_id)
        plan = own.read()
        with recovery.opened(plan) as site:
            result = recovery.result_of(own)
            with recovery.opened_up(own, site, result) as opened:
                check = _Check(site, result, opened)
                check.refuse_if_moved_on()
                check.refuse_if_no_room()
                site.refuse_if_not_ours("run as its owner, or make it writable for you")
                own.mark(journal.UNDOING, {"natural": check.natural(), "modes": check.modes()})
            outcome = recovery.undo_on(own, site, result)
    if outcome.left or outcome.failed:
        raise ChangesError(
            f"not all could be undone:\n{listed([*outcome.left, *outcome.failed])}",
            kind=Kind.APPLY_FAILED,
            remedy="put it right; what failed is tried again by the next apply or undo",
        )
    return Undone(own.id, plan.paths, recovered)


def applications(layer_id: str) -> list[Application]:
    """What was applied from a layer, oldest first."""
    found = []
    for own in journal.of_layer(layer_id):
        if not own.marked(journal.DONE):
            continue
        made = own.summary()
        facts = own.facts(journal.UNDONE)
        left = facts.get("left", ()) if isinstance(facts, dict) else ()
        found.append(
            Application(own.id, layer_id, made.created, made.paths, facts is not None, tuple(left))
        )
    return found


def forget(layer_id: str, layer: Layer | None = None) -> None:
    """Remove the journals of a layer and all they kept: what was applied is applied for good.

    ``layer`` goes too, and not under the hands of an apply that reads from it.
    """
    with journal.locked():
        recovery.heal()
        if layer is not None:
            layer.discard()
        for own in journal.of_layer(layer_id):
            if own.marked(journal.UNDONE) or (
                own.marked(journal.DONE) and not own.marked(journal.UNDOING)
            ):
                own.remove()
        journal.forget_touched()


def _latest(name: str) -> Journal:
    candidates = [own for own in journal.found() if name in (own.id, own.layer_id)]
    for own in reversed(candidates):
        if own.marked(journal.DONE) and not own.marked(journal.UNDONE):
            return own
    raise ChangesError(
        f"nothing that was applied from {name!r} is left to undo",
        kind=Kind.NOTHING_TO_UNDO,
        remedy="`podbot changes show` says what was applied from a run",
    )


class _Check:
    """An application against the host as it is now."""

    def __init__(self, site: Site, result: Result, opened: Mapping[tuple[int, str], int]):
        self._site, self._plan, self._result = site, site.plan, result
        self._opened = opened
        self._kept = site.kept()
        self._touched: dict[Identity, Identity] | None = None
        self._folder_is_there: dict[tuple[int, str], bool] = {}
        self._brought = {(m.target, m.path) for m in self._plan.moves if m.new is not None}
        self._returning = {
            (m.target, m.path)
            for m in self._plan.moves
            if m.was is not None and m.was.type is FOLDER
        }

    def refuse_if_moved_on(self) -> None:
        """Raise if anything is not as the application left it."""
        entries: list[tuple[Move | Folder, str]] = [*self._moves(), *self._folders()]
        found = [f"{shown_name(self._plan.where(entry))}: {reason}" for entry, reason in entries]
        if found:
            raise ChangesError(
                f"the host moved on since these changes were applied:\n{listed(found)}",
                kind=Kind.UNDO_REFUSED,
                remedy="undo what was done to them since, or go on by hand",
            )

    def _moves(self) -> Iterator[tuple[Move, str]]:
        for move in self._plan.moves:
            reason = self._reason(move)
            if reason is not None:
                yield move, reason

    def _reason(self, move: Move) -> str | None:
        try:
            facts = self._site.tree(move).facts(move.path)
            has_folder = self._has_folder(move)
        except OSError as error:
            return f"it cannot be reached: {error.strerror}"
        after = self._result.after.get(move.number)
        if after is None and facts is not None:
            return "something was put there since"
        if after is not None and facts is None:
            return "it was removed since"
        if not has_folder:
            return "its folder was removed since"
        if after is not None and facts is not None:
            now = (facts.st_dev, facts.st_ino, facts.st_ctime_ns)
            if after.type is FOLDER:  # its ctime moves with every entry
                now = (facts.st_dev, facts.st_ino, after.ctime_ns)
            if now != after.identity and now != self._latest(after.identity):
                return "it was changed since"
        was = move.was
        needs = was is not None and was.type is not FOLDER and not move.in_place
        if needs and (move.target, self._plan.kept_as(move)) not in self._kept:
            return "what was there before is not in the store any more"
        return None

    def _latest(self, identity: Identity) -> Identity:
        """What became of a thing that podbot moved away and back since."""
        if self._touched is None:
            self._touched = journal.touched()
        while identity in self._touched:
            identity = self._touched[identity]
        return identity

    def _has_folder(self, move: Move) -> bool:
        """Whether the folder it lies in is there, or comes back."""
        key = (move.target, move.path.rpartition("/")[0])
        known = self._folder_is_there.get(key)
        if known is None:
            known = key in self._returning or self._site.tree(move).facts(key[1]) is not None
            self._folder_is_there[key] = known
        return known

    def _folders(self) -> Iterator[tuple[Folder, str]]:
        for note, after in self._notes():
            tree = self._site.tree(note)
            if note.was is None:
                prefix = f"{note.path}/" if note.path else ""
                for name in sorted(tree.names(note.path)):
                    if (note.target, prefix + name) not in self._brought:
                        yield note, f"{shown_name(name)} was put into it since"
            if note.new is not None:
                now = tree.state(note.path)
                if now is None or not replace(now, mode=self._mode(note)).looks_like(after):
                    yield note, "its mode or attributes were changed since"

    def _notes(self) -> Iterator[tuple[Folder, State]]:
        """Folders that were there after the application and still are."""
        for note, after in zip(self._plan.folders, self._result.folders, strict=True):
            if after is None or after.type is not FOLDER:
                continue
            try:
                facts = self._site.tree(note).facts(note.path)
            except OSError:
                continue  # told for what is in it
            if facts is not None and (facts.st_dev, facts.st_ino) == (after.device, after.inode):
                yield note, after

    def refuse_if_no_room(self) -> None:
        """Raise if what must be copied back does not fit."""
        for index, place in enumerate(self._plan.places):
            needed = self._site.kept_elsewhere(index)
            if needed:
                room = os.statvfs(place.path)
                if room.f_bavail * room.f_frsize < needed:
                    raise ChangesError(
                        f"there is no room to undo: {place.path} needs {needed} bytes",
                        kind=Kind.DISK_FULL,
                        remedy="make room and try again",
                    )

    def natural(self) -> list[tuple[int, str]]:
        """Folders that others put something into since: their time stays what it is."""
        return [
            (note.target, note.path)
            for note, after in self._notes()
            if note.was is not None and self._now(note).st_mtime_ns != after.mtime_ns
        ]

    def modes(self) -> list[tuple[int, str, int]]:
        """Folders whose mode was not the plan's business, and was changed since."""
        return [
            (note.target, note.path, self._mode(note))
            for note, after in self._notes()
            if note.was is not None and note.new is None and self._mode(note) != after.mode
        ]

    def _mode(self, note: Folder) -> int:
        """The mode of a folder, unless it was opened just to look into it."""
        opened = self._opened.get((note.target, note.path))
        return self._now(note).st_mode & 0o7777 if opened is None else opened

    def _now(self, note: Folder) -> os.stat_result:
        return os.fstat(self._site.tree(note).folder(note.path))
