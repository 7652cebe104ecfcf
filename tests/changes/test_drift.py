"""What the host did meanwhile is a conflict; what podbot itself did is none."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_capture import changes_of, write
from trees import a_moment_after

from podbot.changes.archive.saving import load, save
from podbot.changes.capture import capture
from podbot.changes.drift import ConflictKind, conflicts
from podbot.changes.model import ChangeSet
from podbot.sandbox import DEFAULT_HIDDEN, Policy, layers
from podbot.sandbox.layers import Layer
from podbot.sandbox.overlay.launcher import OverlaySandbox

SCRIPT = """
echo inside >> file; rm -r folder; echo new > new; mkdir made; echo x > made/x
chmod 700 moded; mv moving moved; ln -sfn elsewhere link
"""


@pytest.fixture
def changes(target: Path) -> ChangeSet:
    write(target / "file")
    write(target / "folder/one")
    write(target / "moded/inside")
    write(target / "moving", "some text that moves\n")
    (target / "link").symlink_to("file")
    return changes_of(target, SCRIPT)


def again(changes: ChangeSet) -> ChangeSet:
    return capture(layer_of(changes))


def layer_of(changes: ChangeSet) -> Layer:
    assert changes.layer_id is not None
    layer = layers.get(changes.layer_id)
    assert layer is not None
    return layer


def found(changes: ChangeSet) -> dict[str, str]:
    return {conflict.path: conflict.kind.value for conflict in conflicts(changes)}


def test_a_host_left_alone_has_no_conflict(changes: ChangeSet) -> None:
    assert found(changes) == {}


MEANWHILE: dict[str, tuple[Callable[[Path], object], dict[str, str]]] = {
    "a file edited": (lambda t: write(t / "file", "outside\n"), {"file": "changed"}),
    "a file edited and its time put back": (
        lambda t: (write(t / "file", "TEXT\n"), os.utime(t / "file", (1, 1))),
        {"file": "changed"},
    ),
    "a mode changed": (lambda t: (t / "file").chmod(0o600), {"file": "changed"}),
    "a file removed": (lambda t: (t / "file").unlink(), {"file": "deleted"}),
    "a file put in a folder that is to go": (
        lambda t: write(t / "folder/two"),
        {"folder": "changed"},
    ),
    "a file that is to go edited": (
        lambda t: write(t / "folder/one", "other\n"),
        {"folder/one": "changed", "folder": "changed"},
    ),
    "the same file removed on both sides": (lambda t: shutil.rmtree(t / "folder"), {}),
    "a name taken": (lambda t: write(t / "new"), {"new": "changed"}),
    "a folder's name taken by a file": (lambda t: write(t / "made"), {"made": "changed"}),
    "a folder's mode changed": (lambda t: (t / "moded").chmod(0o711), {"moded": "changed"}),
    "an entry added to a folder whose mode is to change": (
        lambda t: write(t / "moded/more"),
        {},
    ),
    "a link turned": (
        lambda t: ((t / "link").unlink(), (t / "link").symlink_to("new")),
        {"link": "changed"},
    ),
    "a sibling added": (lambda t: write(t / "sibling"), {}),
}


@pytest.mark.parametrize("case", MEANWHILE)
@pytest.mark.parametrize("when", ["before the review", "after it"])
def test_what_the_host_did_is_a_conflict(
    target: Path, changes: ChangeSet, case: str, when: str
) -> None:
    a_moment_after(time.time_ns())  # past the clock tick of the start, as any person is
    action, expected = MEANWHILE[case]
    action(target)
    if when == "before the review":
        changes = again(changes)

    assert expected.items() <= found(changes).items()
    assert bool(found(changes)) == bool(expected)


def test_a_target_that_is_gone_blocks_everything(target: Path, changes: ChangeSet) -> None:
    shutil.rmtree(target)
    try:
        assert set(found(changes).values()) == {"blocked"}
    finally:
        target.mkdir()


def test_a_folder_that_became_a_link_blocks_what_is_in_it(target: Path) -> None:
    write(target / "deep/er/file")
    changes = changes_of(target, "echo x > deep/er/file; echo y > deep/er/new")
    (target / "deep").rename(target / "away")
    (target / "deep").symlink_to(target / "away")

    assert found(changes) == {"deep/er/file": "blocked", "deep/er/new": "blocked"}


def test_a_folder_that_is_gone_blocks_what_would_be_new_in_it(target: Path) -> None:
    write(target / "deep/file")
    changes = changes_of(target, "echo y > deep/new")
    shutil.rmtree(target / "deep")

    assert found(changes) == {"deep/new": "blocked"}
    assert found(again(changes)) == {"deep": "deleted"}


def test_what_the_policy_hid_is_always_a_conflict(target: Path) -> None:
    policy = Policy(hidden=(*DEFAULT_HIDDEN, f"{target}/secret"))
    changes = changes_of(target, "mkdir secret; echo x > secret/x; echo y > y", policy=policy)

    assert found(changes) == {"secret": "hidden", "secret/x": "hidden"}
    assert {c.kind for c in conflicts(changes)} == {ConflictKind.HIDDEN}


def test_a_folder_that_holds_something_hidden_is_not_replaced(target: Path) -> None:
    write(target / "conf/secret/key")
    policy = Policy(hidden=(*DEFAULT_HIDDEN, f"{target}/conf/secret"))
    changes = changes_of(target, "rm -r conf; echo x > conf; echo y > y", policy=policy)

    assert found(changes) == {"conf": "hidden"}


def test_files_written_right_before_the_start_are_no_conflict(target: Path) -> None:
    for number in range(20):
        write(target / f"{number}")
        with OverlaySandbox(target, discard=True) as sandbox:
            sandbox.write(f"{number}", "changed")
            assert sandbox.layer is not None
            assert conflicts(capture(sandbox.layer)) == ()


def messages(changes: ChangeSet) -> dict[str, str]:
    return {conflict.path: conflict.message for conflict in conflicts(changes)}


def test_of_a_file_that_may_only_have_been_touched_no_more_is_said(
    target: Path, changes: ChangeSet
) -> None:
    a_moment_after((target / "file").stat().st_ctime_ns)
    os.utime(target / "file")

    assert messages(again(changes)) == {
        "file": "the host has changed it since, or only touched it: what it held then is not known"
    }


def test_of_a_file_whose_old_bytes_are_known_it_is_said_that_the_host_changed_it(
    target: Path, changes: ChangeSet, tmp_path: Path
) -> None:
    with open(tmp_path / "saved", "wb") as file:
        save(changes, file)
    other = tmp_path / "other"
    shutil.copytree(target, other, symlinks=True)
    (other / "file").chmod(0o640)  # whose mode is another's umask
    with open(tmp_path / "saved", "rb") as file:
        loaded = capture(load(file, targets=[str(other)]))
    assert messages(loaded) == {}
    write(other / "file", "outside\n")

    assert messages(again(loaded)) == {"file": "the host has changed it since"}


def test_an_archive_of_what_the_host_had_touched_does_not_say_that_a_copy_was_changed(
    target: Path, changes: ChangeSet, tmp_path: Path
) -> None:
    a_moment_after((target / "file").stat().st_ctime_ns)
    os.utime(target / "file")
    with open(tmp_path / "saved", "wb") as file:
        save(again(changes), file)
    other = tmp_path / "other"
    shutil.copytree(target, other, symlinks=True)
    with open(tmp_path / "saved", "rb") as file:
        loaded = capture(load(file, targets=[str(other)]))

    assert messages(loaded) == {
        "file": "the host has changed it since, or only touched it: what it held then is not known"
    }
