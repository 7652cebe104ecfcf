"""Applying in folders of someone else: writable ones work, closed ones are told before a write."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from trees import nothing_left_in, worked_on

from podbot.changes.applying import journal
from podbot.changes.applying.apply import apply
from podbot.changes.applying.recovery import put_right, recover
from podbot.changes.applying.undo import forget, undo
from podbot.changes.capture import capture
from podbot.changes.model import ChangeSet
from podbot.cli import main
from podbot.errors import ChangesError, Kind
from podbot.sandbox import layers


class Crash(BaseException):
    """Stands for the end of the process."""


class Foreign:
    """Makes a folder behave as someone else's: its attributes cannot be set by us."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self._folder, self._patch = folder, monkeypatch
        facts = os.stat(folder)
        self._key = (facts.st_dev, facts.st_ino)
        for name in ("utime", "chmod"):
            self._refuse(name)

    def _is_it(self, place: Any) -> bool:
        facts = os.stat(place)
        return (facts.st_dev, facts.st_ino) == self._key

    def _refuse(self, name: str) -> None:
        real = getattr(os, name)

        def refusing(place: Any, *arguments: Any, **more: Any) -> None:
            if not more.get("dir_fd") and self._is_it(place):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), place)
            real(place, *arguments, **more)

        self._patch.setattr(os, name, refusing)

    def close(self) -> None:
        """Let nobody but its owner write into it."""
        real, me = os.access, os.geteuid()

        def access(place: Any, mode: int, **more: Any) -> bool:
            return not (mode & os.W_OK and self._is_it(place)) and real(place, mode, **more)

        self._patch.setattr(os, "access", access)
        self._patch.setattr(os, "geteuid", lambda: me + 1)


pytestmark = pytest.mark.usefixtures("own_state")


@pytest.fixture
def changes(target: Path) -> ChangeSet:
    (target / "mine").write_text("one\n")
    (target / "gone").write_text("gone\n")
    os.utime(target, (2000, 2000))
    return worked_on(target, "echo more >> mine; rm gone; mkdir new; echo x > new/x")[0]


def again(changes: ChangeSet) -> ChangeSet:
    layer = layers.get(changes.layer_id or "")
    assert layer is not None
    return capture(layer)


def is_as_before(target: Path) -> bool:
    names = sorted(os.listdir(target))
    return names == ["gone", "mine"] and (target / "mine").read_text() == "one\n"


def crash_at(monkeypatch: pytest.MonkeyPatch, changes: ChangeSet, label: str) -> None:
    """Apply until a step, where the process ends without tidying up."""

    def step(now: str) -> None:
        if now == label:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(journal, "step", step)
        patch.setattr("podbot.changes.applying.recovery.roll_back", lambda *_: None)
        patch.setattr("podbot.changes.applying.apply._failure", lambda *_: None)
        with pytest.raises(Crash):
            apply(changes)


def test_a_folder_of_someone_else_takes_changes_and_gives_them_back(
    target: Path, changes: ChangeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    Foreign(target, monkeypatch)

    apply(changes)
    assert (target / "mine").read_text() == "one\nmore\n"
    assert sorted(os.listdir(target)) == ["mine", "new"]
    assert recover() == []

    undo(changes.layer_id or "")
    assert is_as_before(target) and recover() == []

    apply(again(changes))
    assert (target / "new/x").read_text() == "x\n" and nothing_left_in(target)


def test_copies_beside_their_places_are_swept_from_a_folder_of_someone_else(
    target: Path, changes: ChangeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    Foreign(target, monkeypatch)
    real = os.rename

    def rename(source: Any, to: Any, **more: Any) -> None:
        if more:  # between a target and its store, as across two file systems
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(source, to)

    monkeypatch.setattr(os, "rename", rename)

    apply(changes)

    assert nothing_left_in(target) and recover() == []
    undo(changes.layer_id or "")
    assert is_as_before(target)


@pytest.mark.parametrize("label", ["stage", "swap", "keep", "take out", "finish a folder"])
def test_an_apply_cut_short_in_a_folder_of_someone_else_is_taken_back(
    target: Path, changes: ChangeSet, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    crash_at(monkeypatch, changes, label)
    Foreign(target, monkeypatch)

    healed = put_right()

    assert healed.failed == () and "had before" in healed.messages[0]
    assert is_as_before(target) and nothing_left_in(target) and journal.found() == []


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_journaled(
    target: Path, changes: ChangeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        Foreign(target, patch).close()
        with pytest.raises(ChangesError) as caught:
            apply(changes)

    assert caught.value.kind is Kind.PERMISSION
    assert caught.value.message == f"{target} is not yours to write"
    assert f"review.open('{changes.layer_id}').save('FILE.tar')" in (caught.value.remedy or "")
    assert journal.found() == [] and is_as_before(target)


def test_an_undo_in_a_folder_that_was_closed_since_is_refused_and_works_later(
    target: Path, changes: ChangeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(changes)
    with monkeypatch.context() as patch:
        Foreign(target, patch).close()
        with pytest.raises(ChangesError) as caught:
            undo(changes.layer_id or "")
        assert caught.value.kind is Kind.PERMISSION
        assert recover() == []

    undo(changes.layer_id or "")
    assert is_as_before(target)


def test_a_folder_of_ours_that_nobody_may_write_into_is_told_before_anything_is_journaled(
    target: Path, changes: ChangeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.geteuid()
    with monkeypatch.context() as patch:
        Foreign(target, patch).close()  # as one that is immutable: its mode says that we may
        patch.setattr(os, "geteuid", lambda: me)
        with pytest.raises(ChangesError) as caught:
            apply(changes)

    assert caught.value.message == f"{target} is not yours to write"
    assert journal.found() == [] and is_as_before(target)


def test_a_folder_that_only_seemed_to_be_openable_is_named_by_its_path(
    target: Path, changes: ChangeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.geteuid()
    target.chmod(0o500)  # its owner could open it, who by its mode alone is us
    with monkeypatch.context() as patch:
        Foreign(target, patch).close()
        patch.setattr(os, "geteuid", lambda: me)
        with pytest.raises(ChangesError) as caught:
            apply(changes)
    target.chmod(0o755)

    assert f"({target})" in caught.value.message and "/proc/" not in caught.value.message
    assert "nothing is changed" in caught.value.message
    assert journal.found() == [] and is_as_before(target)


def test_an_error_about_a_descriptor_or_temporary_name_tells_the_path(
    target: Path, changes: ChangeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(path).startswith(journal.PREFIX) and flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        with pytest.raises(ChangesError) as caught:
            apply(changes)

    assert f"({target}/" in caught.value.message and journal.PREFIX not in caught.value.message


def test_a_journal_of_which_nothing_was_done_is_over_though_its_folder_is_closed(
    target: Path, changes: ChangeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at(monkeypatch, changes, "stage")
    with monkeypatch.context() as patch:
        Foreign(target, patch).close()
        forget(changes.layer_id or "", layers.get(changes.layer_id or ""))

    assert journal.found() == [] and is_as_before(target)


def test_gc_tells_journals_that_cannot_be_healed_among_its_failures(
    target: Path, changes: ChangeSet, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    crash_at(monkeypatch, changes, "stage")
    (own,) = journal.found()
    plan = own.folder / journal.PLAN
    whole = plan.read_text()
    plan.write_text(whole.rpartition('["end"')[0])

    assert main(["gc", "--json"]) == 2

    told = json.loads(capsys.readouterr().out)
    assert [line for line in told["found"] if line["fate"] == "mended"] == []
    (failure,) = [each for each in told["failed"] if each["name"] == own.id]
    assert failure["kind"] == Kind.STATE_FAILED and "cannot be healed" in failure["message"]

    plan.write_text(whole)
    main(["gc", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [line["kind"] for line in told["found"] if line["fate"] == "mended"] == ["journal"]
    assert stat.S_ISDIR(os.stat(target).st_mode) and is_as_before(target)


def test_what_cannot_be_taken_back_for_now_is_a_failure_and_is_tried_again(
    target: Path, changes: ChangeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at(monkeypatch, changes, "finish a folder")
    elsewhere = target.with_name(f"{target.name}-away")
    target.rename(elsewhere)

    ((id, error),) = put_right().failed
    assert error.message.startswith(f"{id} cannot be healed: not all could be taken back")

    elsewhere.rename(target)
    assert put_right().failed == () and is_as_before(target)
