"""However many folders a change set touches, everything lands in its own.

A tree holds some folders open and lets go of the others. A number that the kernel gives out again
must never be taken for the folder it stood for before.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from trees import look, nothing_left_in, open_in, worked_on

from podbot.changes import tree
from podbot.changes.applying.apply import apply
from podbot.changes.applying.undo import undo
from podbot.changes.archive import saving
from podbot.changes.capture import capture
from podbot.changes.tree import Tree
from podbot.sandbox.overlay.launcher import OverlaySandbox


def plant(target: Path, count: int) -> None:
    """Folders in which the same names mean other files, some with a name in the next folder."""
    for number in range(count):
        folder = target / f"d{number}"
        (folder / "inner").mkdir(parents=True)
        (folder / "data").write_text(f"data {number}\n")
        (folder / "gone").write_text(f"gone {number}\n")
        (folder / "inner/data").write_text(f"inner {number}\n")
        (folder / "twin").write_text(f"twin {number}\n")
    for number in range(count):
        os.link(target / f"d{number}/twin", target / f"d{(number + 1) % count}/other")


WORK = """
for folder in d*; do
    rm "$folder/gone" "$folder/twin"; echo more >> "$folder/data"; echo new > "$folder/new"
    mv "$folder/inner/data" "$folder/moved"; rmdir "$folder/inner"; mkdir "$folder/made"
    ln "$folder/data" "$folder/made/data"
done
"""


def check_a_cycle(target: Path, work: str) -> None:
    before = look(target)
    changes, seen = worked_on(target, work)

    apply(changes, allow_flagged=True)
    assert look(target)["paths"] == seen["paths"]
    assert changes.layer_id is not None
    undo(changes.layer_id)

    assert look(target) == before
    assert nothing_left_in(target)


@pytest.mark.parametrize("folders", [63, 65, 200])
def test_a_file_of_two_names_comes_back_into_its_own_folder(
    target: Path, disks: str, folders: int
) -> None:
    (target / "pkg").mkdir()
    (target / "pkg/data").write_text("of two names\n")
    (target / "elsewhere").mkdir()
    os.link(target / "pkg/data", target / "elsewhere/data")
    for number in range(folders):
        (target / f"d{number}").mkdir()

    check_a_cycle(target, "rm pkg/data")


@pytest.mark.parametrize("held", [1, 2, 3, 64])
def test_everything_lands_in_its_own_folder_however_few_are_held(
    target: Path, disks: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(target, 5 if held < 64 else 70)
    monkeypatch.setattr(tree, "MAX_FOLDERS", held)

    check_a_cycle(target, WORK)


@pytest.mark.parametrize("held", [1, 2])
def test_an_archive_is_unpacked_into_its_own_folders_however_few_are_held(
    target: Path, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(target, 5)
    changes, seen = worked_on(target, WORK)
    monkeypatch.setattr(tree, "MAX_FOLDERS", held)

    saved = io.BytesIO()
    saving.save(changes, saved)
    saved.seek(0)
    layer = saving.load(saved)
    apply(capture(layer), allow_flagged=True)

    assert look(target)["paths"] == seen["paths"]


def test_a_folder_stays_open_for_as_long_as_someone_holds_it(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MAX_FOLDERS", 1)
    names = [f"folder{number}" for number in range(10)]
    for name in names:
        (target / name).mkdir()
        (target / name / "file").write_text(name)

    with Tree(target) as held:
        folders = [held.folder(name) for name in names]
        files = [held.place(f"{name}/file") for name in names]
        held.forget()
        for name, folder, file in zip(names, folders, files, strict=True):
            assert os.fstat(folder).st_ino == (target / name).stat().st_ino
            assert os.stat(file).st_ino == (target / name / "file").stat().st_ino
        del folder, file
        folders.clear()
        files.clear()
        assert open_in(target) == [str(target)]  # the tree's own

    assert open_in(target) == []


def test_a_closed_tree_gives_no_number_that_could_be_anothers(target: Path) -> None:
    (target / "folder").mkdir()
    closed = Tree(target)
    closed.close()
    with open(os.devnull):  # takes the number that was free
        for use in (closed.folder, closed.facts, closed.names, closed.place):
            with pytest.raises(ValueError, match="closed"):
                use("folder/file")
            with pytest.raises(ValueError, match="closed"):
                use("")


@pytest.mark.parametrize(
    ("closed", "work"),
    [
        ("near", "rm -r away"),  # one of the other names is beyond us, and another is not
        ("far", "rm -r away"),
        ("", "rm -r away; chmod 444 near far"),  # all are, until the folders have their modes again
        ("", "rm away/file near/file; mkdir near/file; chmod 444 near"),
    ],
)
def test_a_file_is_one_with_its_other_names_again_where_folders_are_closed(
    target: Path, disks: str, closed: str, work: str
) -> None:
    for folder in ("away", "far", "near"):
        (target / folder).mkdir()
    (target / "away/file").write_text("file\n")
    os.link(target / "away/file", target / "near/file")
    os.link(target / "away/file", target / "far/file")
    if closed:
        (target / closed).chmod(0o444)
    with OverlaySandbox(target) as sandbox:
        assert sandbox.exec(["bash", "-ec", work]).ok
    assert sandbox.layer is not None

    applied = apply(capture(sandbox.layer))

    assert nothing_left_in(target)
    undo(applied.id)
    for folder in ("far", "near"):
        (target / folder).chmod(0o755)
    assert (target / "away/file").stat().st_nlink == 3
    assert (target / "away/file").samefile(target / "near/file")
    assert (target / "away/file").samefile(target / "far/file")
