"""Folders that decide for what is made in them: setgid, sticky, access lists, other groups."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trees import look, nothing_left_in, worked_on
from two_folders import compare

from podbot.changes.applying import _placing, journal
from podbot.changes.applying.apply import apply
from podbot.changes.applying.recovery import recover
from podbot.changes.applying.undo import undo
from podbot.changes.model import State
from podbot.errors import ChangesError

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
WORK = """
cd shared
rm -r goes; rm -r becomes-file; echo now > becomes-file
rm becomes-folder; mkdir becomes-folder; echo in > becomes-folder/in
echo more >> stays/file; rm stays/other; mkdir -p new/inner; echo new > new/inner/file
chmod 711 moded; touch moded/new
"""


def plant(target: Path, mode: int, group: int, lists: bool) -> None:
    """A folder of this mode, all below it made after it got that, and folders of other modes."""
    shared = target / "shared"
    shared.mkdir()
    os.chown(shared, -1, group)
    if lists:
        os.setxattr(shared, DEFAULT, access_list(5, 7))
    shared.chmod(mode)
    for name in ("goes/deep/er", "becomes-file/inner", "stays", "moded"):
        (shared / name).mkdir(parents=True)
    for name in ("goes/a", "goes/deep/b", "goes/deep/er/c", "becomes-file/inner/d"):
        (shared / name).write_text(name)
    for name in ("stays/file", "stays/other", "becomes-folder"):
        (shared / name).write_text(name)
    (shared / "goes/deep").chmod(0o2750)
    (shared / "goes/deep/er").chmod(0o1777)
    (shared / "becomes-file/inner").chmod(0o750)


def access_list(others: int, mask: int) -> bytes:
    """What files get by being made in a folder: a named group may read, others as given."""
    entries = [(1, 7, -1), (4, 5, -1), (8, 5, 4242), (16, mask, -1), (32, others, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


def lists_of(target: Path) -> dict[str, tuple[object, object]]:
    found = {}
    for where, folders, files in os.walk(target):
        for path in (where, *(os.path.join(where, name) for name in (*folders, *files))):
            names = os.listxattr(path)
            found[path] = tuple(
                os.getxattr(path, name) if name in names else None for name in (ACCESS, DEFAULT)
            )
    return found  # type: ignore[return-value] # two of them each


def some_other_group() -> int:
    """A group that podbot's user may give things to, but does not by default."""
    others = [4242] if os.geteuid() == 0 else [gid for gid in os.getgroups() if gid != os.getegid()]
    if not others:
        pytest.skip("only root can give things to a group that is not its own")
    return others[0]


def without_times(found: dict[str, Any]) -> dict[str, list[object]]:
    """Of a change set without times of folders."""
    return {path: [*facts[:4], *facts[5:]] for path, facts in found["paths"].items()}


def fail_at(label: str) -> Callable[[str], None]:
    """Fail the first time that comes."""
    failed: list[str] = []

    def step(now: str) -> None:
        if now == label and not failed:
            failed.append(now)
            raise OSError(5, "disk on fire")

    return step


@pytest.fixture(params=[0o022, 0o077, 0o000], ids=oct)
def new_files(request: pytest.FixtureRequest) -> Iterator[int]:
    """The umask under which podbot works."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("lists", [False, True], ids=["modes", "lists"])
@pytest.mark.parametrize("group", ["own", "other"])
@pytest.mark.parametrize("mode", [0o2755, 0o2700, 0o2775, 0o1777, 0o3777, 0o755], ids=oct)
def test_what_was_in_a_shared_folder_comes_back_as_it_was(
    target: Path, tmp_path: Path, mode: int, group: str, lists: bool
) -> None:
    plant(target, mode, some_other_group() if group == "other" else os.getegid(), lists)
    subprocess.run(["cp", "-a", target, tmp_path / "copy"], check=True)
    before = look(target), lists_of(target)
    subprocess.run(["bash", "-ec", WORK], cwd=tmp_path / "copy", check=True)
    changes = replace(compare(target, tmp_path / "copy"), since_ns=time.time_ns())

    done = apply(changes, allow_flagged=True)
    assert without_times(look(target)) == without_times(look(tmp_path / "copy"))
    undo(done.id)

    assert (look(target), lists_of(target)) == before
    assert nothing_left_in(target)


@pytest.mark.parametrize("mode", [0o2775, 0o3777], ids=oct)
def test_an_apply_that_fails_in_a_shared_folder_is_taken_back(
    target: Path, tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(target, mode, os.getegid(), True)
    subprocess.run(["cp", "-a", target, tmp_path / "copy"], check=True)
    before = look(target), lists_of(target)
    subprocess.run(["bash", "-ec", WORK], cwd=tmp_path / "copy", check=True)
    changes = replace(compare(target, tmp_path / "copy"), since_ns=time.time_ns())

    monkeypatch.setattr(journal, "step", fail_at("finish a folder"))
    with pytest.raises(ChangesError, match="disk on fire; nothing is changed"):
        apply(changes, allow_flagged=True)

    assert (look(target), lists_of(target)) == before
    assert nothing_left_in(target)


@pytest.mark.parametrize("lists", [False, True], ids=["modes", "lists"])
def test_the_umask_of_who_undoes_does_not_matter(target: Path, lists: bool, new_files: int) -> None:
    os.umask(0o022)
    plant(target, 0o2775, os.getegid(), lists)
    before = look(target), lists_of(target)
    changes, seen = worked_on(target, WORK)
    os.umask(new_files)

    assert changes.layer_id is not None
    apply(changes, allow_flagged=True)
    assert look(target)["paths"] == seen["paths"]
    undo(changes.layer_id)

    assert (look(target), lists_of(target)) == before


def test_a_folder_made_again_and_not_yet_finished_is_known_after_a_crash(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(target, 0o2775, os.getegid(), True)
    before = look(target), lists_of(target)
    changes, _ = worked_on(target, WORK)
    assert changes.layer_id is not None
    apply(changes, allow_flagged=True)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "step", fail_at("finish a folder"))
        with pytest.raises(ChangesError, match="disk on fire"):
            undo(changes.layer_id)

    assert any("it is done now" in line for line in recover())
    assert (look(target), lists_of(target)) == before


def test_who_is_not_in_the_group_that_is_handed_down_keeps_setgid_too(target: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become someone who is in no group")
    target.chmod(0o755)
    os.chown(target, -1, 4242)
    target.chmod(0o3777)
    facts = os.stat(target)
    want = replace(State.of(facts, None, ()), mode=0o2755, uid=4343)

    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(4343, 4343, 4343)
            os.setresuid(4343, 4343, 4343)
            above = os.open(target, os.O_PATH)
            _placing.make_folder((above, "folder"), want)
            with _placing.handle(above, "folder") as fd:
                _placing.dress(_placing.by_handle(fd), os.fstat(fd), want)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0

    made = os.stat(target / "folder")
    assert (made.st_uid, made.st_gid, made.st_mode & 0o7777) == (4343, 4242, 0o2755)
