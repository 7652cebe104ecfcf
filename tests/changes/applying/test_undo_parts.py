"""Undoing some of what was applied, and undoing where the host moved on: nothing is ever lost."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trees import a_moment_after, look, nothing_left_in, worked_on

from podbot.changes._renames import detect
from podbot.changes.applying import journal
from podbot.changes.applying.apply import Applied, apply
from podbot.changes.applying.recovery import recover
from podbot.changes.applying.undo import applications, undo
from podbot.changes.capture import capture
from podbot.changes.drift import conflicts
from podbot.cli import main
from podbot.errors import ChangesError, Kind
from podbot.sandbox import layers

pytestmark = pytest.mark.usefixtures("own_state")

WORK = """
echo more >> edited; rm gone; mkdir lib; mv moved lib/moved; chmod 600 moded; rm -r folder
chmod 700 kept; rm turned; mkdir -p turned/sub; echo in > turned/sub/in; mkdir -p new/deep
echo x > new/x; echo y > new/deep/y; echo y > kept/y; rm -r flat; echo flat > flat
ln -sfn edited link
"""


@pytest.fixture
def before(target: Path) -> dict[str, Any]:
    for name in ("edited", "gone", "moved", "moded", "turned", "beside"):
        (target / name).write_text(f"{name}\n" * 20)
    for name in ("folder", "kept", "flat"):
        (target / name / "in").mkdir(parents=True)
        (target / name / "in/one").write_text("one\n")
        (target / name / "two").write_text("two\n")
        os.utime(target / name, (1000, 1000))
    (target / "link").symlink_to("beside")
    os.utime(target, (2000, 2000))
    return look(target)


@pytest.fixture
def applied(target: Path, before: dict[str, Any]) -> Applied:
    changes, _ = worked_on(target, WORK)
    return apply(detect(changes))


def paths(tree: dict[str, Any], *below: str) -> dict[str, Any]:
    """What a tree has at some paths and below them; the times of folders are not compared."""
    found = {}
    for key, row in tree["paths"].items():
        path = key[1:-1]
        if any(path == one or path.startswith(f"{one}/") for one in below):
            found[path] = row
    return found


@pytest.mark.parametrize(
    "names",
    [
        ["edited"], ["gone", "link"], ["lib/moved"], ["moved"], ["moded"], ["folder"],
        ["folder/in/one"], ["turned"], ["new"], ["new/deep"], ["kept"], ["flat"], ["*e*"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_some_is_undone_and_the_rest_later(
    target: Path, applied: Applied, before: dict[str, Any], names: list[str]
) -> None:
    after = look(target)

    undone = undo(applied.id, only=names)

    now = look(target)
    assert undone.restored
    assert undone.left
    for where in undone.restored:
        path = os.path.relpath(where, target)
        assert (path in paths(now, path)) == (path in paths(before, path))
    for path in {"edited", "gone", "moved", "moded", "link"} - set(names):
        if not any(where == f"{target}/{path}" for where in undone.restored):
            assert paths(now, path) == paths(after, path)
    assert nothing_left_in(target)
    assert [each.undone for each in applications(applied.id.rpartition(".")[0])] == [False]

    undo(applied.id)

    assert look(target) == before
    assert recover() == []


def test_a_rename_is_undone_as_one(target: Path, applied: Applied) -> None:
    undone = undo(applied.id, only=["lib/moved"])

    assert set(undone.restored) == {f"{target}/moved", f"{target}/lib/moved"}


def test_what_was_undone_in_part_can_be_applied_again(target: Path, applied: Applied) -> None:
    after = look(target)
    undo(applied.id, only=["edited", "folder"])
    layer = layers.get(applied.id.rpartition(".")[0])
    assert layer is not None
    changes = detect(capture(layer))
    assert conflicts(changes) == ()

    again = apply(changes)

    assert look(target)["paths"].keys() == after["paths"].keys()
    undo(again.id)
    undo(applied.id)


def test_paths_that_were_not_applied_are_refused(target: Path, applied: Applied) -> None:
    now = look(target)
    with pytest.raises(ChangesError) as caught:
        undo(applied.id, only=["edited", "nothing-like-it"])

    assert caught.value.kind is Kind.NOTHING_SELECTED
    assert "'nothing-like-it'" in caught.value.message
    assert look(target) == now


def write(path: Path, text: str = "mine\n") -> None:
    a_moment_after(os.lstat(path).st_ctime_ns if os.path.lexists(path) else 0)
    path.write_text(text)


def swap_for_link(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.symlink_to("away")


MOVED_ON: dict[str, tuple[Callable[[Path], object], str]] = {
    "an edit": (lambda t: write(t / "edited"), "edited"),
    "an edit of a renamed file": (lambda t: write(t / "lib/moved"), "lib/moved"),
    "a removal": (lambda t: (t / "edited").unlink(), "edited"),
    "something where something was removed": (lambda t: write(t / "gone"), "gone"),
    "a folder where something was removed": (
        lambda t: ((t / "gone").mkdir(), write(t / "gone/mine")),
        "gone",
    ),
    "a file where a folder was removed": (lambda t: write(t / "folder"), "folder"),
    "a file in a new folder": (lambda t: write(t / "new/mine"), "new"),
    "a folder in a new folder": (
        lambda t: ((t / "new/deep/own").mkdir(), write(t / "new/deep/own/mine")),
        "new/deep",
    ),
    "a file in a folder where a file was": (lambda t: write(t / "turned/mine"), "turned"),
    "an edit where a folder was": (lambda t: write(t / "flat"), "flat"),
    "another link": (lambda t: ((t / "link").unlink(), (t / "link").symlink_to("x")), "link"),
}


@pytest.mark.parametrize("what", MOVED_ON)
def test_where_the_host_moved_on_the_rest_is_undone(
    target: Path, applied: Applied, before: dict[str, Any], what: str
) -> None:
    action, path = MOVED_ON[what]
    action(target)
    mine = look(target)

    undone = undo(applied.id, on_conflict="skip")

    now = look(target)
    assert f"{target}/{path}" in dict(undone.skipped)
    assert paths(now, path).keys() >= paths(mine, path).keys() - {
        os.path.relpath(where, target) for where in undone.restored
    }
    others = {"edited", "gone", "moded", "link", "kept"} - {path}
    assert paths(now, *others) == paths(before, *others)
    assert nothing_left_in(target)
    assert recover() == []


@pytest.mark.parametrize("what", MOVED_ON)
def test_where_the_host_moved_on_its_version_is_kept(
    target: Path, applied: Applied, before: dict[str, Any], what: str
) -> None:
    action, _ = MOVED_ON[what]
    action(target)

    undone = undo(applied.id, on_conflict="overwrite")

    assert undone.skipped == ()
    assert look(target)["paths"].keys() == before["paths"].keys()
    assert {k: v[:2] + v[5:] for k, v in look(target)["paths"].items()} == {
        k: v[:2] + v[5:] for k, v in before["paths"].items()
    }
    if what != "a removal":
        ((_, file),) = undone.kept
        found = [Path(file)] if not os.path.isdir(file) else list(Path(file).rglob("mine"))
        assert os.readlink(found[0]) == "x" if what == "another link" else found[0].read_text()
    assert nothing_left_in(target)
    assert recover() == []


def test_what_was_skipped_can_be_overwritten_later(
    target: Path, applied: Applied, before: dict[str, Any]
) -> None:
    write(target / "edited")
    undo(applied.id, on_conflict="skip")
    with pytest.raises(ChangesError) as caught:
        undo(applied.id)
    assert caught.value.kind is Kind.UNDO_REFUSED

    undone = undo(applied.id, on_conflict="overwrite")

    assert look(target) == before
    ((where, file),) = undone.kept
    assert where == f"{target}/edited"
    assert Path(file).read_text() == "mine\n"


def test_a_file_that_was_only_touched_blocks_nothing(
    target: Path, applied: Applied, before: dict[str, Any]
) -> None:
    for name in ("edited", "lib/moved", "moded", "new/x"):
        a_moment_after(os.stat(target / name).st_ctime_ns)
        mode = os.stat(target / name).st_mode
        (target / name).chmod(0o640)
        (target / name).chmod(mode & 0o7777)

    undo(applied.id)

    assert look(target) == before


@pytest.mark.parametrize("how", ["touched", "saved again", "checked out again"])
def test_what_has_the_bytes_that_were_applied_blocks_nothing(
    target: Path, applied: Applied, before: dict[str, Any], how: str
) -> None:
    for name in ("edited", "lib/moved", "new/x", "link"):
        path = target / name
        a_moment_after(os.lstat(path).st_ctime_ns)
        if how == "touched":
            os.utime(path, follow_symlinks=False)
        elif path.is_symlink():
            path.unlink()
            path.symlink_to("edited")
        elif how == "saved again":
            path.write_text(path.read_text())
        else:
            text = path.read_text()
            path.unlink()
            path.write_text(text)

    undo(applied.id)

    names = ("edited", "gone", "moved", "moded", "lib", "new", "link", "turned", "folder/two")
    assert paths(look(target), *names) == paths(before, *names)
    assert len(paths(before, *names)) == 7


def test_what_a_later_run_has_put_there_is_its_own_with_the_same_bytes_too(
    target: Path, before: dict[str, Any]
) -> None:
    one = apply(worked_on(target, "echo 1 > new")[0])
    two = apply(worked_on(target, "echo 2 > new")[0])
    apply(worked_on(target, "echo 1 > new")[0])

    with pytest.raises(ChangesError) as caught:
        undo(one.id)

    assert caught.value.kind is Kind.UNDO_REFUSED
    assert f"run {two.id.rpartition('.')[0]} lies on top" in str(caught.value)


def test_another_name_of_what_was_applied_is_not_what_was_left(
    target: Path, applied: Applied
) -> None:
    (target / "edited").rename(target / "mine")
    shutil.copy2(target / "mine", target / "edited")
    (target / "edited2").hardlink_to(target / "edited")

    with pytest.raises(ChangesError) as caught:
        undo(applied.id)

    assert caught.value.kind is Kind.UNDO_REFUSED


def test_the_same_size_and_time_are_no_proof(target: Path, applied: Applied) -> None:
    facts = os.stat(target / "edited")
    text = (target / "edited").read_text()
    write(target / "edited", text.upper())
    os.utime(target / "edited", ns=(facts.st_atime_ns, facts.st_mtime_ns))

    with pytest.raises(ChangesError) as caught:
        undo(applied.id)

    assert caught.value.kind is Kind.UNDO_REFUSED
    assert "hand" not in str(caught.value)


@pytest.mark.parametrize("by", ["a file", "a link"])
def test_what_lay_in_a_folder_that_is_none_any_more_is_told_before_anything_is_touched(
    target: Path, applied: Applied, by: str
) -> None:
    shutil.rmtree(target / "kept")
    if by == "a file":
        (target / "kept").write_text("mine\n")
    else:
        (target / "kept").symlink_to("lib")
    now = look(target)

    with pytest.raises(ChangesError) as caught:
        undo(applied.id)
    assert f"{target}/kept/y" in caught.value.message
    assert look(target) == now

    undo(applied.id, on_conflict="skip")
    assert (target / "edited").read_text() == "edited\n" * 20


def test_on_the_command_line(
    target: Path,
    applied: Applied,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    id = applied.id.rpartition(".")[0]
    write(target / "edited")
    assert main(["changes", "undo", id]) == 2
    told = capsys.readouterr().err
    assert re.search("podbot changes undo [^ ]+ --on-conflict skip", told)
    assert "by hand" not in told

    monkeypatch.chdir(target / "new")
    assert main(["changes", "undo", id, "x", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["restored"] == [f"{target}/new/x"]
    assert (told["skipped"], told["kept"], told["left"] > 5) == ([], [], True)
    monkeypatch.chdir(target)
    assert main(["changes", "undo", id, "nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().err

    assert main(["changes", "undo", id, "--on-conflict", "skip"]) == 0
    told = capsys.readouterr().out
    assert f"not {target}/edited: it was changed since" in told
    assert "1 path still applied" in told
    assert main(["changes", "undo", id, "edited", "--on-conflict", "overwrite", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["left"] == 0
    assert Path(told["kept"][0]["file"]).read_text() == "mine\n"


class Killed(BaseException):
    """What a test kills with."""


@pytest.mark.parametrize("how", ["some", "saved again", "skip", "overwrite"])
def test_an_undo_killed_at_any_step_is_finished_by_the_next_command(
    target: Path, before: dict[str, Any], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    changes, _ = worked_on(target, WORK)
    layer = layers.get(changes.layer_id or "")
    assert layer is not None
    at, ended = 0, False
    while not ended:
        applied = apply(detect(capture(layer)))
        if how == "saved again":
            for name in ("edited", "lib/moved", "new/x"):
                text = (target / name).read_text()
                (target / name).unlink()
                (target / name).write_text(text)
        elif how != "some":
            write(target / "edited")
            write(target / "new/mine")
        steps: list[str] = []

        def step(label: str, steps: list[str] = steps, at: int = at) -> None:
            steps.append(label)
            if len(steps) > at:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(journal, "step", step)
            try:
                _undo(applied.id, how)
                ended = True
            except Killed:
                at += 1 + len(steps) // 6  # the later, the coarser
        recover()
        assert nothing_left_in(target)
        rest = undo(applied.id, on_conflict="overwrite") if _is_active(applied.id) else None
        assert look(target)["paths"].keys() == before["paths"].keys()
        assert (target / "edited").read_text() == "edited\n" * 20
        assert rest is None or rest.left == 0


def _undo(id: str, how: str) -> None:
    if how == "some":
        undo(id, only=["edited", "new", "lib/moved", "folder"])
    elif how == "saved again":
        undo(id)
    else:
        undo(id, on_conflict="skip" if how == "skip" else "overwrite")


def _is_active(id: str) -> bool:
    own = journal.named(id)
    return own is not None and own.is_active
