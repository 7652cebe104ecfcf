"""Everyday refactorings apply: no conflict with a host nobody touched, and undo gives all back.

Each is done by a real shell in a real overlay. What the sandbox saw is what the host gets, undo
gives back what was there bit for bit, and it can be applied again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from trees import look, nothing_left_in, worked_on

from podbot.changes._renames import detect
from podbot.changes.applying.apply import apply
from podbot.changes.applying.undo import undo
from podbot.changes.capture import capture
from podbot.changes.drift import ConflictKind, conflicts
from podbot.changes.model import ChangeKind, ChangeSet
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer, copying

pytestmark = pytest.mark.usefixtures("own_state")

PROJECT = """
mkdir -p pkg/inner docs empty
for name in a b c; do echo "the $name of the package" > pkg/$name.py; done
echo inner > pkg/inner/deep.py; seq 300 > pkg/data; echo readme > README; echo other > other
mkdir -p far/away; echo far > far/away/file; echo near > far/near
ln -s pkg/a.py shortcut; ln -s pkg folderlink; ln -s nowhere dangling; ln pkg/c.py second-name
chmod 755 pkg/b.py; chmod 700 docs; echo doc > docs/doc
"""

REFACTORINGS = {
    "move into a new folder": "mkdir src; mv pkg/a.py src/a.py",
    "edit and move into a new folder": "mkdir src; echo more >> pkg/a.py; mv pkg/a.py src/a.py",
    "move into a new folder and edit": "mkdir src; mv pkg/a.py src/a.py; echo more >> src/a.py",
    "edit and move into a nested new folder": (
        "mkdir -p src/one/two; echo more >> pkg/a.py; mv pkg/a.py src/one/two/a.py"
    ),
    "edit and move into a folder that is there": "echo more >> pkg/a.py; mv pkg/a.py docs/a.py",
    "rewrite and move to the top": "echo other > pkg/a.py; mv pkg/a.py a.py",
    "rename a folder": "mv pkg package",
    "rename a folder and edit in it": "mv pkg package; echo more >> package/a.py",
    "edit in a folder and rename it": "echo more >> pkg/a.py; echo x >> pkg/data; mv pkg package",
    "rename a folder into another": "mv pkg docs/pkg; echo more >> docs/pkg/inner/deep.py",
    "rename a folder to and fro": "echo more >> pkg/a.py; mv pkg x; mv x pkg",
    "swap two files": "mv README t; mv other README; mv t other",
    "swap two edited files": "echo 1 >> README; echo 22 >> other; mv README t; mv other README;"
    " mv t other",
    "swap two folders": "mv pkg t; mv far pkg; mv t far; echo more >> far/a.py",
    "a ring of three files": "mv README t; mv other README; mv pkg/a.py other; mv t pkg/a.py",
    "a file becomes a folder of its name": "rm README; mkdir README; echo x > README/x",
    "a file becomes a folder with itself in it": (
        "mv README t; mkdir README; mv t README/README; echo more >> README/README"
    ),
    "a module becomes a package": (
        "mkdir -p t/sub; echo more >> README; mv README t/init; echo y > t/sub/y; mv t README"
    ),
    "a folder becomes a file": "rm -r pkg; echo flat > pkg",
    "a folder becomes a file that was in it": (
        "echo more >> pkg/data; mv pkg/data t; rm -r pkg; mv t pkg"
    ),
    "a link becomes a folder": "rm folderlink; mkdir folderlink; echo x > folderlink/x",
    "a link becomes a folder with a subfolder": (
        "rm folderlink; mkdir -p folderlink/sub/deeper; echo x > folderlink/sub/deeper/x"
    ),
    "a link becomes the folder it led to": "rm folderlink; mv pkg folderlink; ln -s folderlink pkg",
    "a dangling link becomes a folder with a subfolder": (
        "rm dangling; mkdir -p dangling/sub; echo x > dangling/sub/x; mkdir dangling/empty"
    ),
    "a link becomes the file it led to": "rm shortcut; cp -p pkg/a.py shortcut",
    "a link becomes a file that moved": "echo more >> other; mv other shortcut",
    "a folder becomes a link": "mv pkg package; ln -s package pkg; echo more >> package/a.py",
    "a folder with folders becomes a dangling link": "rm -r far; ln -s nowhere far",
    "a file becomes a link": "rm README; ln -s other README",
    "change the case of a file's name": "mv README readme; echo more >> readme",
    "change the case of a folder's name": "mv pkg PKG; echo more >> PKG/a.py",
    "move everything out and delete the folder": (
        "echo more >> pkg/a.py; mv pkg/*.py pkg/data pkg/inner .; rmdir pkg"
    ),
    "split a package": (
        "mkdir core api; sed -i 1d pkg/data; echo more >> pkg/a.py; mv pkg/a.py pkg/data core/;"
        " mv pkg/b.py api/b.py; mv pkg/inner core/inner; echo x >> core/inner/deep.py;"
        " mv pkg/c.py api/; rmdir pkg"
    ),
    "merge two folders": "mv far/away/file docs/; mv far/near docs/near; echo x >> docs/near;"
    " rm -r far",
    "another name in a new folder": "mkdir src; ln pkg/a.py src/a.py",
    "an edited file's other name in a new folder": (
        "mkdir src; echo more >> pkg/a.py; ln pkg/a.py src/a.py"
    ),
    "move a file of two names into a new folder": "mkdir src; mv second-name src/c.py",
    "edit a file of two names and move one": (
        "mkdir src; echo more >> second-name; mv second-name src/c.py"
    ),
    "replace a folder by a fresh one": "rm -r pkg; mkdir pkg; echo fresh > pkg/a.py",
    "replace a folder by a fresh one with a file that moved": (
        "rm -r pkg; mkdir pkg; echo more >> README; mv README pkg/README"
    ),
    "replace a folder by a fresh one with folders": (
        "rm -r far; mkdir -p far/away far/new; echo fresh > far/away/file; echo x > far/new/x"
    ),
    "change the mode and move": "mkdir bin; chmod 755 pkg/a.py; mv pkg/a.py bin/a",
    "change the mode of a folder and rename it": "chmod 750 pkg; mv pkg package",
    "touch and move": "mkdir src; touch -d @1000 pkg/a.py; mv pkg/a.py src/",
    "delete one and move a copy of another over it": (
        "cp -p pkg/a.py t; echo x >> t; mv t pkg/b.py; rm pkg/a.py"
    ),
    "delete one and move one of its size and time": "mkdir src; mv far/near src/; rm README",
    "move a link into a new folder": "mkdir src; mv shortcut src/; mv dangling src/",
    "move an empty folder": "mkdir src; mv empty src/empty",
    "move and leave a link behind": (
        "mkdir src; echo more >> pkg/a.py; mv pkg/a.py src/a.py; ln -s ../src/a.py pkg/a.py"
    ),
    "move and put something new in the old place": (
        "mkdir src; echo more >> README; mv README src/README; echo new > README"
    ),
    "move it out and back in": "echo more >> pkg/a.py; mv pkg/a.py t; mv t pkg/a.py",
    "move twice": (
        "mkdir -p one two; echo x >> README; mv README one/; mv one/README two/; rmdir one"
    ),
    "save as editors do": "sed -i s/package/PACKAGE/ pkg/a.py pkg/b.py",
    "save with a backup as editors do": "mv README README~; echo new > README",
}


@pytest.fixture
def project(target: Path) -> Path:
    subprocess.run(["bash", "-ec", f"umask 022\n{PROJECT}"], cwd=target, check=True)
    os.utime(target / "README", (1000, 1000))
    os.utime(target / "pkg", (2000, 2000))
    return target


def assert_as_seen(host: dict[str, Any], inside: dict[str, Any]) -> None:
    """An overlay may show two names of one file as two files: the host may know of more of them."""
    assert host["paths"] == inside["paths"]
    pairs = [set(names) for names in host["links"]]
    assert all(any(set(names) <= pair for pair in pairs) for names in inside["links"])


def _as_it_is(changes: ChangeSet) -> ChangeSet:
    return changes


@pytest.mark.parametrize("what", REFACTORINGS)
def test_an_everyday_refactoring_applies_and_is_undone(project: Path, what: str) -> None:
    before = look(project)
    changes, inside = worked_on(project, REFACTORINGS[what])

    for as_seen in (detect, _as_it_is):  # by people, and path by path
        found = as_seen(capture(layer_of(changes)))
        assert conflicts(found) == ()
        applied = apply(found)
        assert applied.skipped == ()
        assert_as_seen(look(project), inside)
        undo(applied.id)
        assert look(project) == before
        assert nothing_left_in(project)


@pytest.mark.parametrize("edit", ["", "echo more >> pkg/a.py; "])
def test_another_name_in_a_new_folder_is_the_same_file(project: Path, edit: str) -> None:
    changes, _ = worked_on(project, f"{edit}mkdir -p src/deep; ln pkg/a.py src/deep/a.py")

    apply(changes)

    assert os.path.samefile(project / "pkg/a.py", project / "src/deep/a.py")


def test_what_was_moved_into_a_folder_that_the_host_works_in_is_still_moved(project: Path) -> None:
    changes, _ = worked_on(project, "mv README docs/README; mv shortcut docs/shortcut")
    (project / "docs/mine").write_text("mine")

    assert conflicts(again(changes)) == ()


def test_a_file_the_host_removed_is_no_rename_of_one_deleted_inside(project: Path) -> None:
    for name in ("one", "two"):
        (project / "docs" / name).write_text(name)
        os.utime(project / "docs" / name, (1000, 1000))
    changes, _ = worked_on(project, "chmod 600 docs/one; rm docs/two")
    (project / "docs/one").unlink()

    assert [each.path for each in conflicts(again(changes))] == ["docs/one"]


TWINS = "for n in one two; do seq 40 > docs/$n; touch -d @1000 docs/$n; done"


def test_a_file_the_host_removed_is_told_as_such_and_not_as_moved(project: Path) -> None:
    subprocess.run(["sh", "-ec", TWINS], cwd=project, check=True)
    changes, _ = worked_on(project, "echo more >> docs/one; rm docs/two")
    (project / "docs/one").unlink()

    found = again(changes)

    assert {(c.path, c.kind) for c in found} == {
        ("docs/one", ChangeKind.ADDED),
        ("docs/two", ChangeKind.DELETED),
    }
    assert [each.path for each in conflicts(found)] == ["docs/one"]


def test_a_file_the_host_removed_from_a_copy_is_not_told_as_moved(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "needed", lambda targets: "the test wants it")
    subprocess.run(["sh", "-ec", TWINS], cwd=project, check=True)
    changes, _ = worked_on(project, "chmod 600 docs/one; rm docs/two")
    (project / "docs/one").unlink()

    found = again(changes)

    assert ChangeKind.RENAMED not in {change.kind for change in found}
    assert [each.path for each in conflicts(found)] == ["docs/one"]


def test_a_file_in_gits_index_that_the_host_removed_is_no_rename(project: Path) -> None:
    subprocess.run(["sh", "-ec", f"{TWINS}; git init -q; git add docs"], cwd=project, check=True)
    # The same bytes, size and time as the one that goes: but for the index it might have moved.
    changes, _ = worked_on(project, "chmod 600 docs/one; rm docs/two")
    (project / "docs/one").unlink()

    found = again(changes)

    assert ChangeKind.RENAMED not in {change.kind for change in found}
    assert [each.path for each in conflicts(found)] == ["docs/one"]


def test_a_file_that_applying_another_run_removed_is_no_rename(project: Path) -> None:
    subprocess.run(["sh", "-ec", TWINS], cwd=project, check=True)
    first, _ = worked_on(project, "chmod 600 docs/one; rm docs/two")
    second, _ = worked_on(project, "rm docs/one")
    apply(again(second))

    found = again(first)

    assert ChangeKind.RENAMED not in {change.kind for change in found}
    assert [each.path for each in conflicts(found)] == ["docs/one"]


def test_a_file_of_git_that_was_moved_inside_is_still_a_rename(project: Path) -> None:
    subprocess.run(["sh", "-ec", f"{TWINS}; git init -q; git add docs"], cwd=project, check=True)
    changes, _ = worked_on(project, "mv docs/one docs/three")
    (project / "docs/other").write_text("the host works here")

    (moved,) = again(changes)

    assert (moved.kind, moved.source, moved.path) == (ChangeKind.RENAMED, "docs/one", "docs/three")
    assert conflicts(again(changes)) == ()


def test_a_file_the_host_removed_with_its_folder_is_a_conflict(project: Path) -> None:
    changes, _ = worked_on(project, "echo more >> far/away/file; mkdir -p new; mv far/near new/")
    shutil.rmtree(project / "far/away")

    assert {each.path for each in conflicts(again(changes))} == {"far/away", "far/away/file"}


def test_a_link_that_the_host_put_in_the_way_still_blocks(project: Path) -> None:
    changes, _ = worked_on(project, "mkdir -p docs/new/deep; echo x > docs/new/deep/x")
    (project / "docs").rename(project / "papers")
    (project / "docs").symlink_to("papers")

    assert {each.kind for each in conflicts(changes)} == {ConflictKind.BLOCKED}


def again(changes: ChangeSet) -> ChangeSet:
    return detect(capture(layer_of(changes)))


def layer_of(changes: ChangeSet) -> Layer:
    layer = layers.get(changes.layer_id or "")
    assert layer is not None
    return layer
