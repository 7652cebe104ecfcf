"""Whoever swaps things while they are applied or undone loses: nothing outside is ever touched."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from test_apply import layer_of
from trees import a_moment_after, look, nothing_left_in, worked_on

from podbot.changes.applying import journal
from podbot.changes.applying.apply import OnConflict, apply
from podbot.changes.applying.recovery import recover
from podbot.changes.applying.undo import undo
from podbot.changes.capture import capture
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, State
from podbot.changes.tree import Tree
from podbot.errors import ChangesError, Kind
from podbot.sandbox import DEFAULT_HIDDEN, Policy, layers

WORK = """
echo more >> dir/edited; rm dir/gone; echo new > dir/new; chmod 600 dir/moded; mkdir dir/made
echo x > dir/made/x; rm -r dir/folder; rm dir/turned; mkdir dir/turned; echo y > dir/turned/y
ln -s edited dir/link; ln dir/new dir/hard
"""


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What a lost race leaves behind stays with its test."""
    with tempfile.TemporaryDirectory(prefix="podbot-state-", dir="/var/tmp") as folder:
        monkeypatch.setenv("PODBOT_STATE", folder)
        monkeypatch.setattr(os, "fsync", lambda _: None)
        yield Path(folder)


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that looks like the one in the target, and must never be touched."""
    path = Path(tempfile.mkdtemp(prefix="podbot-outside-", dir="/var/tmp")).resolve()
    fill(path)
    yield path
    layers.remove(path)


def fill(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in ("edited", "gone", "moded", "turned"):
        (folder / name).write_text(f"{name}\n")
    (folder / "folder").mkdir()
    (folder / "folder/in").write_text("in\n")


@contextmanager
def at_step(number: int, action: Callable[[], object]) -> Iterator[list[str]]:
    """Do something just before a step; gives the steps that were made."""
    steps: list[str] = []

    def step(label: str) -> None:
        steps.append(label)
        if len(steps) == number:
            action()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "step", step)
        yield steps


@contextmanager
def before_first(label: str, action: Callable[[], object]) -> Iterator[None]:
    """Do something just before the first step of this kind."""
    done: list[str] = []

    def step(name: str) -> None:
        if name == label and not done:
            done.append(name)
            action()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "step", step)
        yield
    assert done


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def swap_for_link(path: Path, to: Path) -> None:
    path.rename(path.with_name("moved-away"))
    path.symlink_to(to)


def test_a_folder_swapped_for_a_link_at_any_step_of_apply(target: Path, outside: Path) -> None:
    fill(target / "dir")
    layer = layer_of(worked_on(target, WORK)[0])
    untouched, before = look(outside), contents(target / "dir")

    for number in range(4, 1000):
        changes = capture(layer)
        with at_step(number, lambda: swap_for_link(target / "dir", outside)) as steps:
            try:
                done = apply(changes, on_conflict="overwrite")
            except ChangesError as error:
                assert error.kind in (Kind.APPLY_FAILED, Kind.CONFLICT)
                done = None
        assert look(outside) == untouched
        if len(steps) < number:
            break
        (target / "dir").unlink()
        (target / "moved-away").rename(target / "dir")
        recover()
        if done is not None and done.id:  # too late to matter: everything was in its place
            undo(done.id)
        assert contents(target / "dir") == before, number
        assert nothing_left_in(target)
    assert number > 30


def test_a_folder_swapped_for_a_link_at_any_step_of_undo(target: Path, outside: Path) -> None:
    fill(target / "dir")
    layer = layer_of(worked_on(target, WORK)[0])
    untouched, before = look(outside), contents(target / "dir")

    for number in range(4, 1000):
        applied = apply(capture(layer), on_conflict="overwrite")
        with at_step(number, lambda: swap_for_link(target / "dir", outside)) as steps:
            try:
                undo(applied.id)
            except ChangesError as error:
                assert error.kind in (Kind.APPLY_FAILED, Kind.UNDO_REFUSED)
        assert look(outside) == untouched
        if len(steps) < number:
            break
        (target / "dir").unlink()
        (target / "moved-away").rename(target / "dir")
        recover()
        assert contents(target / "dir") == before, number
        assert nothing_left_in(target)
    assert number > 25


def test_the_target_swapped_for_a_link_before_apply(target: Path, outside: Path) -> None:
    inner = target / "inner"
    inner.mkdir()
    fill(inner / "dir")
    changes, _ = worked_on(inner, WORK)
    untouched = look(outside)
    swap_for_link(inner, outside)

    choices: tuple[OnConflict, ...] = ("stop", "skip", "overwrite")
    for on_conflict in choices:
        try:
            applied = apply(changes, allow_flagged=True, on_conflict=on_conflict)
        except ChangesError as error:
            assert error.kind is Kind.TARGET_MISSING
        else:
            assert applied.changed == ()
            assert len(applied.skipped) == len(changes)
    assert look(outside) == untouched


def test_the_target_swapped_for_a_link_during_apply(target: Path, outside: Path) -> None:
    inner = target / "inner"
    inner.mkdir()
    fill(inner / "dir")
    before = contents(inner)
    changes, _ = worked_on(inner, WORK)
    untouched = look(outside)

    with (
        before_first("swap", lambda: swap_for_link(inner, outside)),
        pytest.raises(ChangesError) as caught,
    ):
        apply(changes)

    assert caught.value.kind in (Kind.APPLY_FAILED, Kind.CONFLICT)
    assert look(outside) == untouched
    assert contents(target / "moved-away") == before
    assert nothing_left_in(target)


def become_file(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.write_text("theirs\n")


def become_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/etc/passwd")


def become_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def become_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "theirs").write_text("theirs\n")


def be_rewritten(path: Path) -> None:
    facts = os.stat(path)
    a_moment_after(facts.st_ctime_ns)
    path.write_text("THEIRS\n"[-facts.st_size :])
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize("become", [become_file, become_link, become_pipe, become_folder])
@pytest.mark.parametrize(
    ("step", "name"),
    [
        ("stage", "dir/edited"),
        ("swap", "dir/edited"),
        ("stage", "dir/gone"),
        ("take out", "dir/gone"),
        ("stage", "dir/new"),
        ("put in place", "dir/made"),
        ("stage", "dir/moded"),
    ],
)
def test_what_is_swapped_at_the_last_moment_stays_and_nothing_is_applied(
    target: Path, become: Callable[[Path], None], step: str, name: str
) -> None:
    fill(target / "dir")
    before = contents(target)
    changes, _ = worked_on(target, WORK)

    with before_first(step, lambda: become(target / name)), pytest.raises(ChangesError) as caught:
        apply(changes)

    assert caught.value.kind is Kind.CONFLICT
    assert "nothing is changed" in caught.value.message
    path = target / name
    mode = os.lstat(path).st_mode
    if become is become_file:
        assert path.read_text() == "theirs\n"
    elif become is become_link:
        assert os.readlink(path) == "/etc/passwd"
    elif become is become_pipe:
        assert stat.S_ISFIFO(mode)
    else:
        assert contents(path) == {"theirs": "theirs\n"}
    shutil.rmtree(path) if stat.S_ISDIR(mode) else path.unlink()
    before.pop(name, None)
    assert contents(target) == before
    assert nothing_left_in(target)


def test_a_file_rewritten_with_its_time_put_back_is_noticed(target: Path) -> None:
    (target / "file").write_text("edited\n")
    changes, _ = worked_on(target, "echo more >> file")

    with (
        before_first("stage", lambda: be_rewritten(target / "file")),
        pytest.raises(ChangesError) as caught,
    ):
        apply(changes)

    assert caught.value.kind is Kind.CONFLICT
    assert (target / "file").read_text() == "THEIRS\n"


def test_a_file_rewritten_in_the_last_microsecond_is_at_least_kept(target: Path) -> None:
    (target / "file").write_text("edited\n")
    changes, _ = worked_on(target, "echo more >> file")

    with before_first("swap", lambda: be_rewritten(target / "file")):
        applied = apply(changes)

    undo(applied.id)
    assert (target / "file").read_text() == "THEIRS\n"


@pytest.mark.parametrize("become", [become_file, become_link, become_pipe, become_folder])
def test_a_temporary_name_someone_took_is_left_to_him(
    target: Path, become: Callable[[Path], None]
) -> None:
    fill(target / "dir")
    before = contents(target)
    changes, _ = worked_on(target, WORK)
    taken: list[Path] = []

    def take() -> None:
        (own,) = journal.of_layer(changes.layer_id or "")
        plan = own.read()
        move = next(move for move in plan.moves if move.path == "dir/new")
        taken.append(target / "dir" / journal.temporary(plan, move))
        become(taken[0])

    with before_first("stage", take), pytest.raises(ChangesError) as caught:
        apply(changes)

    assert caught.value.kind is Kind.APPLY_FAILED
    assert os.path.lexists(taken[0])
    shutil.rmtree(taken[0]) if become is become_folder else taken[0].unlink()
    assert contents(target) == before
    assert nothing_left_in(target)


@pytest.mark.parametrize("step", ["swap back", "take away", "change attributes back"])
def test_what_is_changed_in_the_middle_of_an_undo_stays(target: Path, step: str) -> None:
    fill(target / "dir")
    changes, _ = worked_on(target, WORK)
    applied = apply(changes)
    path = target / {"swap back": "dir/edited", "take away": "dir/hard"}.get(step, "dir/moded")

    with before_first(step, lambda: become_file(path)):
        if step == "change attributes back":
            undo(applied.id)  # it was looked at, and a handle on the old one kept
        else:
            with pytest.raises(ChangesError) as caught:
                undo(applied.id)
            assert f"{path}: " in caught.value.message

    assert path.read_text() == "theirs\n"
    assert (target / "dir/folder/in").read_text() == "in\n"
    assert nothing_left_in(target)


def test_a_target_that_is_gone_is_told_and_what_was_kept_stays(target: Path) -> None:
    inner = target / "inner"
    inner.mkdir()
    fill(inner / "dir")
    changes, _ = worked_on(inner, WORK)
    applied = apply(changes)
    shutil.rmtree(inner)

    with pytest.raises(ChangesError) as caught:
        undo(applied.id)

    assert caught.value.kind is Kind.UNDO_REFUSED
    kept = [path for path in (Path(applied.journal) / "kept").iterdir() if path.is_file()]
    assert "edited\n" in {path.read_text() for path in kept}


def test_names_like_ours_made_inside_are_ordinary_names(target: Path) -> None:
    changes, seen = worked_on(target, "echo x > .podbot-x; mkdir .podbot-y; echo z > .podbot-y/z")

    applied = apply(changes)

    assert look(target)["paths"] == seen["paths"]
    undo(applied.id)
    assert os.listdir(target) == []


# What the policy hid


@pytest.fixture
def hiding(target: Path) -> ChangeSet:
    (target / "conf").mkdir()
    (target / "conf/secret").write_text("secret\n")
    (target / "conf/plain").write_text("plain\n")
    policy = Policy(hidden=(*DEFAULT_HIDDEN, f"{target}/conf/secret"))
    script = "echo mine > conf/secret; echo x > conf/plain; echo y > y"
    return worked_on(target, script, policy=policy)[0]


@pytest.mark.parametrize("on_conflict", ["skip", "overwrite"])
def test_a_hidden_path_is_never_written(
    target: Path, hiding: ChangeSet, on_conflict: OnConflict
) -> None:
    with pytest.raises(ChangesError):
        apply(hiding)

    applied = apply(hiding, on_conflict=on_conflict)

    assert [change.path for change, _ in applied.skipped] == ["conf/secret"]
    assert (target / "conf/secret").read_text() == "secret\n"
    assert (target / "conf/plain").read_text() == "x\n"


def test_a_hidden_file_is_never_linked_to_nor_moved_away(target: Path, hiding: ChangeSet) -> None:
    by_path = {change.path: change for change in hiding}
    y = by_path["y"]
    linked = replace(y, kind=ChangeKind.HARD_LINK, source="conf/secret")
    moved = replace(y, kind=ChangeKind.RENAMED, source="conf/secret", path="z")

    applied = apply(replace(hiding, changes=(linked, moved)), on_conflict="overwrite")

    assert [change.path for change in applied.changed] == ["y"]
    assert not os.path.samefile(target / "y", target / "conf/secret")
    assert (target / "conf/secret").read_text() == "secret\n"
    assert not (target / "z").exists()


@pytest.mark.parametrize(
    "path", ["conf/../conf/secret", "../outside", "/etc/x", "conf//secret", "./conf/secret"]
)
def test_a_path_that_is_not_plain_is_refused(hiding: ChangeSet, path: str) -> None:
    y = next(change for change in hiding if change.path == "y")

    for changes in (
        (replace(y, path=path),),
        (replace(y, kind=ChangeKind.HARD_LINK, source=path),),
    ):
        with pytest.raises(ChangesError) as caught:
            apply(replace(hiding, changes=changes), on_conflict="overwrite", allow_flagged=True)
        assert caught.value.kind is Kind.INVALID


# Layers that lie


def test_a_set_that_tells_a_path_twice_is_refused(target: Path) -> None:
    changes, _ = worked_on(target, "echo x > x")

    with pytest.raises(ChangesError) as caught:
        apply(replace(changes, changes=(*changes, *changes)))

    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize("become", [become_link, become_pipe, become_folder])
def test_a_layer_whose_file_became_something_else_does_no_harm(
    target: Path, become: Callable[[Path], None]
) -> None:
    changes, _ = worked_on(target, "echo x > x; echo y > y")
    become(layer_of(changes).upper(0) / "x")

    with pytest.raises(ChangesError):
        apply(changes)

    assert os.listdir(target) == []


def test_a_set_that_contradicts_itself_is_taken_back(target: Path) -> None:
    (target / "folder").mkdir()
    changes, _ = worked_on(target, "echo x > folder/x; echo y > y")
    before = look(target)
    state = capture_state(target, "folder")
    gone = Change(ChangeKind.DELETED, str(target), "folder", state, None)

    with pytest.raises(ChangesError):
        apply(replace(changes, changes=(*changes, gone)))

    assert look(target) == before


def capture_state(target: Path, path: str) -> State:
    with Tree(target) as tree:
        state = tree.state(path)
        assert state is not None and state.type is FileType.FOLDER
        return state
