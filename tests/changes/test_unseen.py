"""What lies in folders of the host's that are closed to us: a review says what went there, too.

Whoever works inside can let himself into a folder of his own, and see what we do not. Root sees
into everything: where that makes a difference, the tests say what each of the two is told.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_closed_files import changes_of

from podbot.changes import ConflictKind, conflicts, not_in_patch
from podbot.changes.applying.apply import apply
from podbot.changes.applying.undo import undo
from podbot.changes.archive.saving import load, save
from podbot.changes.diffs.patch import patch
from podbot.changes.model import ChangeKind, FileType
from podbot.errors import ChangesError
from podbot.sandbox.overlay.launcher import OverlaySandbox

SEES_ALL = os.geteuid() == 0


@pytest.fixture(autouse=True)
def opened(target: Path) -> Iterator[None]:
    """Whatever is closed can be removed in the end."""
    yield
    for name in ("shut", "d"):
        if (target / name).is_dir():
            (target / name).chmod(0o755)


def shut(target: Path, mode: int, *names: str) -> None:
    for name in names:
        (target / "shut" / name).parent.mkdir(parents=True, exist_ok=True)
        (target / "shut" / name).write_text(f"{name}\n")
    (target / "shut").chmod(mode)


def worked_on(target: Path, script: str) -> str:
    with OverlaySandbox(target) as sandbox:
        assert sandbox.exec(["sh", "-ec", script]).ok
        assert sandbox.layer is not None
        return sandbox.layer.id


def told(id: str) -> set[tuple[str, ConflictKind]]:
    return {(each.path, each.kind) for each in conflicts(changes_of(id))}


def gone(id: str) -> set[str]:
    return {change.path for change in changes_of(id) if change.new is None}


@pytest.mark.parametrize("mode", [0o000, 0o200, 0o400, 0o644])
@pytest.mark.parametrize("name", ["one", "deep/er/one"])
def test_what_was_removed_from_a_folder_that_is_closed_on_the_host_is_told(
    target: Path, mode: int, name: str
) -> None:
    shut(target, mode, name, f"{name}.stays")
    id = worked_on(target, f"chmod 755 shut; mv shut/{name} moved")

    assert f"shut/{name}" in gone(id)
    assert SEES_ALL or (f"shut/{name}", ConflictKind.BLOCKED) in told(id)
    if not SEES_ALL:
        with pytest.raises(ChangesError):
            apply(changes_of(id))
    (target / "shut").chmod(0o755)
    assert (target / "shut" / name).exists()


def test_once_the_folder_is_open_the_rest_is_told_as_what_it_is_and_applied(target: Path) -> None:
    shut(target, 0o000, "one", "stays")
    id = worked_on(target, "chmod 755 shut; mv shut/one moved")

    first = apply(changes_of(id), on_conflict="skip")
    assert [change.path for change, _ in first.skipped] == ([] if SEES_ALL else ["shut/one"])
    if not SEES_ALL:
        assert [(it.path, it.type) for it in changes_of(id)] == [("shut/one", FileType.FILE)]
        apply(changes_of(id))

    assert not changes_of(id)
    assert os.listdir(target / "shut") == ["stays"]
    assert (target / "moved").read_text() == "one\n"


@pytest.mark.parametrize("flag", ["overwrite", "skip"])
def test_what_could_not_be_seen_when_it_was_reviewed_is_never_removed(
    target: Path, flag: str
) -> None:
    shut(target, 0o000, "one")
    id = worked_on(target, "chmod 755 shut; rm shut/one; chmod 0 shut")
    reviewed = changes_of(id)
    (target / "shut").chmod(0o755)

    if SEES_ALL:
        return
    assert [each.kind for each in conflicts(reviewed)] == [ConflictKind.BLOCKED]
    apply(reviewed, on_conflict=flag)  # type: ignore[arg-type]  # a parameter
    assert (target / "shut/one").exists()


@pytest.mark.parametrize("mode", [0o000, 0o333, 0o444])
@pytest.mark.parametrize("script", ["rm -r shut", "rm -r shut; mkdir shut; echo 2 > shut/two"])
def test_a_closed_folder_that_went_with_all_that_is_in_it_is_told(
    target: Path, mode: int, script: str
) -> None:
    shut(target, mode, "one", "in/er")
    id = worked_on(target, f"chmod -R u+rwx shut; {script}; [ ! -e shut ] || chmod {mode:o} shut")

    changes = {change.path: change for change in changes_of(id)}
    found = told(id)
    if SEES_ALL:
        assert not found
        assert {"shut/one", "shut/in", "shut/in/er"} <= gone(id)
        return
    assert ("shut", ConflictKind.BLOCKED) in found or ("shut/one", ConflictKind.BLOCKED) in found
    if mode != 0o444:
        assert changes["shut"].kind in (ChangeKind.DELETED, ChangeKind.REPLACED)
    assert all(kind is ConflictKind.BLOCKED for _, kind in found)


@pytest.mark.parametrize("mode", ["000", "333"])
def test_what_went_with_a_folder_that_was_made_anew_and_closed_is_told_at_once(
    target: Path, mode: str
) -> None:
    shut(target, 0o755, "one", "stays")
    script = "rm -r shut; mkdir shut; echo 2 > shut/stays; "
    script += 'python3 -c \'import os; os.setxattr("shut", "user.note", b"x")\'; '
    id = worked_on(target, f"{script} chmod {mode} shut")

    first, second = changes_of(id), changes_of(id)

    assert [(it.path, it.kind) for it in first] == [(it.path, it.kind) for it in second]
    assert gone(id) == {"shut/one"}
    folder = next(change.new for change in first if change.path == "shut")
    assert folder is not None and folder.xattrs == (("user.note", b"x"),)
    apply(first)
    assert not changes_of(id)
    (target / "shut").chmod(0o755)
    assert os.listdir(target / "shut") == ["stays"]


def test_attributes_of_a_file_that_was_closed_inside_are_kept(target: Path) -> None:
    script = 'echo 1 > one; python3 -c \'import os; os.setxattr("one", "user.note", b"x")\''
    id = worked_on(target, f"{script}; chmod 0 one")

    apply(changes_of(id))

    (target / "one").chmod(0o600)
    assert os.getxattr(target / "one", "user.note") == b"x"


def test_nothing_is_left_of_what_was_taken_out_of_a_folder_that_was_closed_then(
    target: Path,
) -> None:
    shut(target, 0o755, "one", "stays")
    id = worked_on(target, "rm shut/one; chmod 0 shut")

    apply(changes_of(id))
    assert not changes_of(id)

    undo(id, only=["shut/one"])
    assert "shut/one" in {change.path for change in changes_of(id)}


@pytest.mark.parametrize("inside", ["echo 2 > d/x", "chmod 600 d/x", "chmod 700 d/e"])
def test_what_was_given_back_in_a_folder_closed_to_us_is_left_to_apply(
    target: Path, inside: str
) -> None:
    (target / "d/e").mkdir(parents=True)
    (target / "d/x").write_text("1\n")
    id = worked_on(target, f"{inside}; chmod 0 d")
    path = inside.rsplit(maxsplit=1)[-1]
    apply(changes_of(id), allow_flagged=True)
    assert path not in {change.path for change in changes_of(id)}

    undo(id, only=[path])

    assert path in {change.path for change in changes_of(id)}


def test_a_file_closed_to_us_and_its_new_name_are_one_file_the_second_time_too(
    target: Path,
) -> None:
    (target / "one").write_text("1\n")
    (target / "one").chmod(0o000)
    id = worked_on(target, "ln one other")

    for _ in range(2):
        apply(changes_of(id), allow_flagged=True)
        assert (target / "one").samefile(target / "other")
        assert not changes_of(id)
        undo(id)


def test_another_name_of_what_cannot_be_seen_is_applied_as_a_file(target: Path) -> None:
    shut(target, 0o000, "one")
    id = worked_on(target, "chmod 755 shut; ln shut/one other")

    apply(changes_of(id), allow_flagged=True, on_conflict="skip")

    assert (target / "other").read_text() == "one\n"
    assert (target / "shut/one").read_text() == "one\n"
    undo(id)
    assert os.listdir(target) == ["shut"]


def test_a_patch_says_that_it_leaves_out_what_cannot_be_seen_and_an_archive_keeps_it(
    target: Path,
) -> None:
    shut(target, 0o000, "one")
    id = worked_on(target, "chmod 755 shut; rm shut/one; echo 2 > two")
    changes = changes_of(id)

    if not SEES_ALL:
        assert "shut/one: a thing that cannot be seen is removed" in not_in_patch(changes)
        assert b"shut" not in b"".join(patch(changes))
    archive = io.BytesIO()
    save(changes, archive)
    archive.seek(0)
    loaded = load(archive, [str(target)])
    assert "shut/one" in gone(loaded.id)
    (target / "shut").chmod(0o755)
    # Nobody knows whether that is what went.
    assert SEES_ALL or ("shut/one", ConflictKind.CHANGED) in told(loaded.id)
