"""Undoing where a folder is no longer the one that was left: found before anything is touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from trees import look, nothing_left_in, worked_on

from podbot.changes.applying import journal
from podbot.changes.applying.apply import apply
from podbot.changes.applying.recovery import recover
from podbot.changes.applying.undo import undo
from podbot.changes.capture import capture
from podbot.errors import ChangesError, Kind
from podbot.sandbox.overlay.launcher import OverlaySandbox

pytestmark = pytest.mark.usefixtures("own_state")

INSTEAD: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_text("mine\n"),
    "a link within": lambda path: path.symlink_to("beside"),
    "a link to outside": lambda path: path.symlink_to("/usr"),
    "a link to itself, renamed": lambda path: path.symlink_to("away"),
    "a pipe": os.mkfifo,
    "nothing": lambda path: None,
    "another folder": lambda path: path.mkdir(mode=0o755),
}


@pytest.mark.parametrize("what", INSTEAD)
@pytest.mark.parametrize("work", ["chmod 700 folder", "echo more >> folder/in/file"])
def test_another_thing_in_the_place_of_a_folder_is_told_before_anything_is_touched(
    target: Path, what: str, work: str
) -> None:
    (target / "folder/in").mkdir(parents=True)
    (target / "folder/in/file").write_text("one\n")
    (target / "beside").mkdir()
    (target / "edited").write_text("edited\n")
    changes, _ = worked_on(target, f"echo more >> edited; {work}")
    applied = apply(changes)
    (target / "folder").rename(target / "away")
    INSTEAD[what](target / "folder")
    now = look(target)

    with pytest.raises(ChangesError) as caught:
        undo(applied.id)

    assert caught.value.kind is Kind.UNDO_REFUSED
    assert f"  {target}/folder" in caught.value.message
    assert look(target) == now
    assert recover() == []
    undone = undo(applied.id, on_conflict="skip")
    assert undone.restored == (f"{target}/edited",)
    assert {**look(target)["paths"], "'edited'": 0, "'.'": 0} == {
        **now["paths"],
        "'edited'": 0,
        "'.'": 0,
    }


def test_what_lay_in_a_folder_that_the_host_made_anew_comes_back_into_that(target: Path) -> None:
    (target / "folder").mkdir()
    (target / "folder/gone").write_text("gone\n")
    changes, _ = worked_on(target, "rm folder/gone")
    applied = apply(changes)
    (target / "folder").rename(target / "away")
    (target / "folder").mkdir()
    (target / "folder").chmod(0o2711)
    os.utime(target / "folder", (1000, 1000))

    undo(applied.id)

    assert (target / "folder/gone").read_text() == "gone\n"
    assert os.stat(target / "folder").st_mode & 0o7777 == 0o2711
    assert recover() == []


def test_a_new_folder_with_the_number_of_the_one_that_went_is_not_that(target: Path) -> None:
    changes, _ = worked_on(target, "mkdir made; echo x > x")
    applied = apply(changes)
    (target / "made").rmdir()
    (target / "made").mkdir()
    _number_as_its_own(applied.id, target / "made")
    now = look(target)

    with pytest.raises(ChangesError, match="made: it was changed since"):
        undo(applied.id)

    assert look(target) == now
    undo(applied.id, on_conflict="skip")
    assert os.listdir(target) == ["made"]


def _number_as_its_own(id: str, folder: Path) -> None:
    """Have a file system do at once what it does in its own time: give a number out again."""
    own = journal.named(id)
    assert own is not None
    facts = json.loads((own.folder / journal.DONE).read_text())
    for state in [*(state for _, state in facts["after"]), *facts["folders"]]:
        if (
            state is not None
            and state[0] == "folder"
            and state[2:4] == [os.geteuid(), os.getegid()]
        ):
            state[8] = folder.stat().st_ino
    (own.folder / journal.DONE).write_text(json.dumps(facts))


@pytest.mark.parametrize("work", ["chmod 700 a/b", "touch -d 2001-01-01 a/b"])
def test_a_folder_below_one_that_was_closed_gets_its_attributes_back(
    target: Path, work: str
) -> None:
    (target / "a/b").mkdir(parents=True)
    before = look(target)
    with OverlaySandbox(target) as sandbox:
        assert sandbox.exec(["bash", "-ec", f"{work}; chmod 0 a"]).ok
    assert sandbox.layer is not None
    applied = apply(capture(sandbox.layer))

    undo(applied.id)

    assert look(target) == before


def test_a_mount_is_told_before_anything_is_touched(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "undo_mounted.py"
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, str(program)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *["told, and undone when it was gone"] * 7,
        "undone where it was mounted before",
        "told, and undone when it could be written",
    ]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("plain", "all is as it was"),
        ("killed", "all is as it was"),
        ("small", "told, and nothing is changed"),
    ],
)
def test_what_was_added_makes_room_for_what_comes_back_to_a_full_disk(
    tmp_path: Path, how: str, told: str
) -> None:
    program = Path(__file__).parents[1] / "undo_full.py"
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, str(program), how]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{told}\n"


def test_two_folders_that_trade_places_are_told(target: Path) -> None:
    for name in ("one", "two"):
        (target / name).mkdir()
        (target / name / "file").write_text(f"{name}\n")
    before = look(target)
    changes, _ = worked_on(target, "echo more >> one/file; echo more >> two/file")
    applied = apply(changes)
    _swap(target)

    with pytest.raises(ChangesError) as caught:
        undo(applied.id)

    assert caught.value.message.count("it was changed since") == 2
    _swap(target)
    undo(applied.id)
    assert look(target)["paths"].keys() == before["paths"].keys()
    assert (target / "one/file").read_text() == "one\n"
    assert nothing_left_in(target)


def _swap(target: Path) -> None:
    shutil.move(target / "one", target / "three")
    shutil.move(target / "two", target / "one")
    shutil.move(target / "three", target / "two")
