"""Files that their owner has closed to himself are kept and given back like all others.

Across file systems that takes reading them, which their owner may do once he has let himself in.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from trees import keep_in_the_state_folder

from podbot.changes import ConflictKind, conflicts, find
from podbot.changes.applying import _placing, recovery
from podbot.changes.applying.apply import apply
from podbot.changes.applying.journal import Journal
from podbot.changes.applying.undo import undo
from podbot.changes.capture import capture
from podbot.changes.model import ChangeSet
from podbot.config import places
from podbot.sandbox.overlay.launcher import OverlaySandbox


class Killed(BaseException):
    """Stands for a kill: nothing is tidied up."""


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="podbot-state-", dir="/dev/shm") as state:
        monkeypatch.setenv(places.STATE_VARIABLE, state)
        monkeypatch.setattr(Journal, "store_for", keep_in_the_state_folder)
        yield


def closed(target: Path) -> dict[str, tuple[int, str]]:
    """What is there, looked at by opening it for a moment."""
    found = {}
    for path in sorted(target.iterdir()):
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(0o600)
        found[path.name] = (mode, path.read_text())
        path.chmod(mode)
    return found


def plant(target: Path) -> dict[str, tuple[int, str]]:
    for name, mode in (("gone", 0o000), ("changed", 0o200), ("becomes", 0o000)):
        (target / name).write_text(f"{name}\n")
        (target / name).chmod(mode)
    return closed(target)


def worked_on(target: Path) -> str:
    with OverlaySandbox(target) as sandbox:
        script = "rm -f gone becomes; ln -s x becomes; chmod 600 changed; echo 2 > changed; "
        assert sandbox.exec(["sh", "-c", script + "chmod 0 changed"]).ok
        assert sandbox.layer is not None
        return sandbox.layer.id


def test_closed_files_are_kept_and_given_back_across_file_systems(target: Path, far: None) -> None:
    before = plant(target)
    id = worked_on(target)

    apply(changes_of(id), allow_flagged=True)
    assert not (target / "gone").exists()
    assert os.readlink(target / "becomes") == "x"

    undo(id)
    assert closed(target) == before


def changes_of(id: str) -> ChangeSet:
    layer = find(id).layer
    assert layer is not None
    return capture(layer)


def test_one_that_was_open_for_a_copy_when_its_apply_was_killed_is_closed_again(
    target: Path, far: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plant(target)
    id = worked_on(target)

    def opened_and_killed(folder: int, name: str, facts: os.stat_result) -> int:
        os.chmod(name, stat.S_IMODE(facts.st_mode) | 0o400, dir_fd=folder)
        raise Killed

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(_placing, "_readable", opened_and_killed)
        patch.setattr(recovery, "roll_back", killed)
        apply(changes_of(id), allow_flagged=True)
    recovery.recover()

    assert closed(target) == before


def test_what_lies_in_a_folder_that_was_closed_inside_can_be_looked_at_once_it_is_applied(
    target: Path,
) -> None:
    (target / "outer/inner").mkdir(parents=True)
    (target / "outer/inner/one").write_text("1\n")
    with OverlaySandbox(target) as sandbox:
        script = "echo 2 > outer/inner/one; chmod 600 outer/inner outer"
        assert sandbox.exec(["sh", "-c", script]).ok
        assert sandbox.layer is not None
        id = sandbox.layer.id

    apply(changes_of(id))
    changes_of(id)  # whether or not we may see into it
    undo(id)

    assert (target / "outer/inner/one").read_text() == "1\n"


@pytest.mark.parametrize("mode", ["333", "000", "600"])
def test_a_folder_that_was_made_anew_and_closed_can_be_looked_at_and_undone(
    target: Path, far: None, mode: str
) -> None:
    (target / "anew").mkdir()
    (target / "anew/one").write_text("1\n")
    with OverlaySandbox(target) as sandbox:
        program = "import os; os.setxattr('anew', 'user.note', b'x')"
        script = f"rm -r anew; mkdir anew; echo 2 > anew/two; python3 -c {program!r}"
        assert sandbox.exec(["sh", "-c", f"{script}; chmod {mode} anew"]).ok
        assert sandbox.layer is not None
        id = sandbox.layer.id

    apply(changes_of(id))
    changes_of(id)
    undo(id)

    assert (target / "anew/one").read_text() == "1\n"
    assert os.listdir(target / "anew") == ["one"]


def test_a_folder_that_is_closed_on_the_host_and_went_inside_is_a_conflict_with_a_reason(
    target: Path,
) -> None:
    (target / "shut").mkdir()
    (target / "shut/one").write_text("1\n")
    (target / "shut").chmod(0o333)
    with OverlaySandbox(target) as sandbox:
        assert sandbox.exec(["sh", "-c", "chmod 700 shut; rm -r shut; echo x > shut"]).ok
        assert sandbox.layer is not None
        id = sandbox.layer.id

    found = [(each.path, each.kind) for each in conflicts(changes_of(id))]

    # Root sees into it; its owner does not, and is told so.
    seen = os.access(target / "shut", os.R_OK)
    assert found == ([] if seen else [("shut", ConflictKind.BLOCKED)])
    (target / "shut").chmod(0o755)


def test_an_empty_file_that_is_closed_to_us_gets_another_name_and_stays_one(target: Path) -> None:
    (target / "one").touch(0o000)
    with OverlaySandbox(target) as sandbox:
        assert sandbox.exec(["ln", "one", "other"]).ok
        assert sandbox.layer is not None
    apply(changes_of(sandbox.layer.id))

    assert (target / "one").samefile(target / "other")
    assert not changes_of(sandbox.layer.id)


@pytest.mark.parametrize("outside", ["", "ln d/x a", "ln d/x z; ln d/x y"])
@pytest.mark.parametrize("mode", ["000", "600", "644"])
def test_nothing_is_left_to_apply_of_what_lies_in_a_folder_closed_to_us(
    target: Path, mode: str, outside: str
) -> None:
    with OverlaySandbox(target) as sandbox:
        script = "mkdir -p d/e; echo 1 > d/x; echo 2 > d/e/z; ln d/x d/e/other; "
        script += f"{outside or ':'}; chmod $1 d/e d"
        assert sandbox.exec(["sh", "-c", script, "sh", mode]).ok
        assert sandbox.layer is not None
    changes = changes_of(sandbox.layer.id)

    apply(changes, allow_flagged=True)
    assert not changes_of(sandbox.layer.id)

    (target / "d").chmod(0o700)  # somebody lets himself in, and may have changed what he likes
    (target / "d").chmod(int(mode, 8))
    if os.geteuid() != 0:
        assert {change.path for change in changes_of(sandbox.layer.id)} >= {"d/x"}


def test_what_was_taken_back_of_a_folder_closed_to_us_is_left_to_apply(target: Path) -> None:
    (target / "d").mkdir()
    with OverlaySandbox(target) as sandbox:
        assert sandbox.exec(["sh", "-c", "echo 1 > d/x; echo 2 > d/y; chmod 0 d"]).ok
        assert sandbox.layer is not None
    apply(changes_of(sandbox.layer.id), allow_flagged=True)

    undo(sandbox.layer.id, only=["d/x"])

    assert "d/x" in {change.path for change in changes_of(sandbox.layer.id)}
