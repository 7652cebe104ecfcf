"""Applying: the host gets exactly what the sandbox saw, or nothing at all."""

from __future__ import annotations

import io
import os
import resource
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from test_capture import changes_of
from trees import Edit, a_moment_after, look, nothing_left_in, plant, worked_on

from podbot.changes import _renames, drift
from podbot.changes.applying import journal
from podbot.changes.applying.apply import OnConflict, apply
from podbot.changes.applying.undo import undo
from podbot.changes.capture import capture
from podbot.changes.diffs.diff import diff
from podbot.changes.drift import conflicts
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType
from podbot.errors import ChangesError, Kind
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer

NOBODY = 0xFFFFFFFF
"""In an access list: the entry names nobody in particular."""


def layer_of(changes: ChangeSet) -> Layer:
    layer = layers.get(changes.layer_id or "")
    assert layer is not None
    return layer


@contextmanager
def a_folder() -> Iterator[Path]:
    import tempfile

    path = Path(tempfile.mkdtemp(prefix="podbot-target-", dir="/var/tmp")).resolve()
    try:
        yield path
    finally:
        layers.remove(path)


# Everything, at random

NAMES = ["a", "b", "c", "-n", "new\nline", "ünï 'q\"", os.fsdecode(b"\xff\xfe"), "n" * 255]
PATHS = some.lists(some.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
NUMBERS = some.integers(0, 2**40)
EDITS: some.SearchStrategy[list[Edit]] = some.lists(
    some.one_of(
        some.tuples(some.just("write"), PATHS, some.text("xy\n", max_size=9)),
        some.tuples(some.just("append"), PATHS, some.just("more\n")),
        some.tuples(some.just("folder"), PATHS, some.just("")),
        some.tuples(some.just("remove"), PATHS, some.just("")),
        some.tuples(some.sampled_from(["hard", "move", "link"]), PATHS, PATHS),
        some.tuples(some.just("mode"), PATHS, some.sampled_from(["755", "600", "4711", "555"])),
        some.tuples(some.just("time"), PATHS, NUMBERS.map(str)),
        some.tuples(some.sampled_from(["pipe", "note"]), PATHS, some.just("x")),
    ),
    max_size=25,
)
SOMETHING: list[Edit] = [("write", "always", "x")]  # a layer that nothing was written to is gone
FOLDERS: list[Edit] = [("folder", name, "") for name in NAMES[:4]]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(before=EDITS, during=EDITS, detect=some.booleans())
def test_apply_gives_what_the_sandbox_saw_and_undo_what_was_there(
    before: list[Edit], during: list[Edit], detect: bool
) -> None:
    with a_folder() as target:
        plant(target, FOLDERS + before)
        was = look(target)
        changes, seen = worked_on(target, [*SOMETHING, *during])
        layer = layer_of(changes)
        if detect:
            changes = _renames.detect(changes)

        applied = apply(changes, allow_flagged=True)

        assert applied.skipped == ()
        assert look(target)["paths"] == seen["paths"]
        for change in changes:
            if change.kind is ChangeKind.HARD_LINK:
                assert os.path.samefile(change.where, target / (change.source or ""))
        assert nothing_left_in(target)
        assert capture(layer).changes == ()
        if applied.id:
            undo(applied.id)
        assert look(target) == was
        assert nothing_left_in(target)
        assert conflicts(capture(layer)) == ()
        layer.discard()


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(before=EDITS, during=EDITS, wanted=some.sets(some.sampled_from(NAMES), min_size=1))
def test_applying_in_parts_ends_where_applying_at_once_does(
    before: list[Edit], during: list[Edit], wanted: set[str]
) -> None:
    with a_folder() as target:
        plant(target, FOLDERS + before)
        was = look(target)
        changes, seen = worked_on(target, [*SOMETHING, *during])
        layer = layer_of(changes)
        there = {path.split("/")[0] for change in changes for path in change.paths}
        first = [f"./{name}" for name in sorted(wanted & there)]

        done = [apply(changes, only=first, allow_flagged=True, on_conflict="skip")] if first else []
        done.append(apply(capture(layer), allow_flagged=True))

        tell = {"paths": _without_folder_times(look(target)["paths"])}
        assert tell == {"paths": _without_folder_times(seen["paths"])}
        for each in reversed(done):
            if each.id:
                undo(each.id)
        assert look(target) == was
        layer.discard()


def _without_folder_times(paths: dict[str, list[object]]) -> dict[str, list[object]]:
    """Two applications are not one: the time of a folder in between is its own."""
    return {
        path: [*facts[:4], None, *facts[5:]] if stat.S_ISDIR(int(str(facts[0]))) else facts
        for path, facts in paths.items()
    }


# Contents and attributes


def test_a_sparse_file_of_two_gigabytes_stays_sparse(target: Path) -> None:
    changes = changes_of(
        target, "truncate -s 2G big; printf mid | dd of=big bs=1 seek=1G conv=notrunc status=none"
    )

    applied = apply(changes)

    facts = os.stat(target / "big")
    assert facts.st_size == 2 << 30
    assert facts.st_blocks * 512 < 1 << 20
    with open(target / "big", "rb") as file:
        file.seek(1 << 30)
        assert file.read(5) == b"mid\0\0"
    undo(applied.id)
    assert os.listdir(target) == []


def test_a_large_file_is_copied_whole(target: Path) -> None:
    (target / "big").write_bytes(b"old" * 1000)
    changes, seen = worked_on(target, "head -c 9000001 /dev/urandom > big; touch -d @5 big")

    apply(changes)

    assert look(target)["paths"] == seen["paths"]


def test_pipes_and_sockets_are_made(target: Path) -> None:
    code = "import socket; socket.socket(socket.AF_UNIX).bind('sock')"
    changes, seen = worked_on(
        target, f'mkfifo -m 600 pipe; {os.path.realpath(sys.executable)} -I -S -c "{code}"'
    )

    apply(changes, allow_flagged=True)

    assert look(target) == seen
    assert stat.S_ISSOCK(os.lstat(target / "sock").st_mode)


def test_a_socket_on_the_host_goes_and_comes_back(target: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(target / "sock"))
        before = look(target)
        changes, _ = worked_on(target, "rm sock")
        applied = apply(changes)
        assert not (target / "sock").exists()

        undo(applied.id)

        assert look(target) == before


def test_device_nodes_are_skipped_with_a_reason(target: Path) -> None:
    changes, _ = worked_on(target, "echo x > x; mkfifo dev")
    state = replace(changes.changes[0].new, type=FileType.DEVICE, rdev=259)  # type: ignore[type-var]
    made = replace(changes.changes[0], new=state)

    applied = apply(replace(changes, changes=(made, changes.changes[1])), allow_flagged=True)

    assert [(change.path, reason) for change, reason in applied.skipped] == [
        ("dev", "device nodes are not made")
    ]
    assert os.listdir(target) == ["x"]


def test_a_read_only_folder_is_opened_for_the_time_and_closed_again(target: Path) -> None:
    (target / "shut").mkdir()
    (target / "shut/old").write_text("old")
    os.utime(target / "shut", (7, 7))
    os.chmod(target / "shut", 0o555)
    before = look(target)
    changes, seen = worked_on(
        target, "chmod 755 shut; echo new > shut/new; rm shut/old; chmod 555 shut; touch -d @9 shut"
    )

    applied = apply(changes)

    assert look(target)["paths"] == seen["paths"]
    undo(applied.id)
    assert look(target) == before


def test_what_the_guest_closed_is_applied_and_closed(target: Path) -> None:
    before = look(target)
    layer = worked_shut(target)

    applied = apply(capture(layer))

    modes = {"c": stat.S_IMODE(os.lstat(target / "c").st_mode)}
    os.chmod(target / "c", 0o700)
    modes["d"] = stat.S_IMODE(os.lstat(target / "c/d").st_mode)
    os.chmod(target / "c/d", 0o700)
    modes["x"] = stat.S_IMODE(os.lstat(target / "c/d/x").st_mode)
    assert modes == {"c": 0, "d": 0, "x": 0}
    os.chmod(target / "c/d", 0)
    os.chmod(target / "c", 0)
    undo(applied.id)
    assert look(target) == before


def test_closed_folders_are_closed_again_when_undo_is_refused(target: Path) -> None:
    applied = apply(capture(worked_shut(target)))
    os.chmod(target / "c", 0o700)
    os.chmod(target / "c/d", 0o700)
    (target / "c/d/mine").write_text("mine\n")
    os.chmod(target / "c/d", 0)
    os.chmod(target / "c", 0)

    with pytest.raises(ChangesError) as caught:
        undo(applied.id)

    assert caught.value.kind is Kind.UNDO_REFUSED
    assert stat.S_IMODE(os.lstat(target / "c").st_mode) == 0
    os.chmod(target / "c", 0o700)
    assert stat.S_IMODE(os.lstat(target / "c/d").st_mode) == 0


def worked_shut(target: Path) -> Layer:
    from podbot.sandbox.overlay.launcher import OverlaySandbox

    with OverlaySandbox(target) as sandbox:
        script = "mkdir -p c/d; echo x > c/d/x; chmod 0 c/d/x c/d c"
        assert sandbox.exec(["sh", "-c", script]).ok
    assert sandbox.layer is not None
    return sandbox.layer


def test_times_of_folders_are_what_the_sandbox_saw_only_if_all_was_taken(target: Path) -> None:
    for name in ("all", "some"):
        (target / name).mkdir()
    changes, _ = worked_on(
        target, "echo x > all/x; echo x > some/x; echo y > some/y; touch -d @1000 all some ."
    )

    apply(changes, only=["all", "some/x"])

    assert os.stat(target / "all").st_mtime == 1000
    assert os.stat(target / "some").st_mtime > 2000
    apply(capture(layer_of(changes)))
    assert os.stat(target / "some").st_mtime == os.stat(target).st_mtime == 1000


def test_access_lists_are_kept(target: Path) -> None:
    # Version 2; the owner rwx, user 12345 rw-, the group r--, the mask rw-, others ---.
    entries = [(1, 7, NOBODY), (2, 6, 12345), (4, 4, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    (target / "old").write_text("old\n")
    (target / "folder").mkdir()
    os.setxattr(target / "old", "system.posix_acl_access", acl)
    os.setxattr(target / "folder", "system.posix_acl_default", acl)
    modes = [stat.S_IMODE(os.stat(target / "old").st_mode)]
    changes, _ = worked_on(target, "echo new >> old; echo new > folder/new; echo x > plain")

    applied = apply(changes)

    for name in ("old", "folder/new"):
        assert os.getxattr(target / name, "system.posix_acl_access")[:4] == acl[:4]
    assert os.getxattr(target / "old", "system.posix_acl_access") == acl
    assert stat.S_IMODE(os.stat(target / "old").st_mode) == modes[0]
    undo(applied.id)
    assert (target / "old").read_text() == "old\n"
    assert os.getxattr(target / "old", "system.posix_acl_access") == acl


# Links


def test_hard_links_go_to_what_is_applied_or_was_there(target: Path) -> None:
    (target / "kept").write_text("kept\n")
    (target / "other").write_text("other\n")
    os.utime(target / "kept", (5, 5))
    before = look(target)
    changes, _ = worked_on(
        target, "ln kept again; echo new > new; ln new too; echo more >> other; ln other third"
    )

    applied = apply(changes)

    for one, two in (("kept", "again"), ("new", "too"), ("other", "third")):
        assert os.path.samefile(target / one, target / two)
    undo(applied.id)
    assert look(target) == before


def test_a_hard_link_to_what_is_not_taken_becomes_a_file_of_its_own(target: Path) -> None:
    (target / "other").write_text("other\n")
    changes, _ = worked_on(target, "echo more >> other; ln other third; echo n > new; ln new too")

    apply(changes, only=["third", "too"])

    assert (target / "other").read_text() == "other\n"
    assert (target / "third").read_text() == "other\nmore\n"
    assert (target / "too").read_text() == "n\n"
    assert os.stat(target / "third").st_nlink == os.stat(target / "too").st_nlink == 1


def test_who_may_not_link_gets_a_copy(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (target / "kept").write_text("kept\n")
    before = look(target)
    changes, seen = worked_on(target, "ln kept again")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        applied = apply(changes)

    assert look(target)["paths"] == seen["paths"]
    assert os.stat(target / "kept").st_nlink == 1
    undo(applied.id)
    assert look(target) == before


def test_a_mode_changed_under_one_of_two_names_leaves_the_other_alone(target: Path) -> None:
    (target / "a").write_text("same\n")
    os.link(target / "a", target / "b")
    before = look(target)
    changes, seen = worked_on(target, "chmod 600 a")

    applied = apply(changes)

    assert look(target)["paths"] == seen["paths"]
    assert stat.S_IMODE(os.stat(target / "b").st_mode) == 0o644
    undo(applied.id)
    assert look(target) == before


def test_the_second_of_two_names_can_be_applied_later(target: Path) -> None:
    (target / "a").write_text("same\n")
    os.link(target / "a", target / "b")
    changes, _ = worked_on(target, "echo A > a; echo B > b")

    apply(changes, only=["a"])
    apply(capture(layer_of(changes)))

    assert (target / "a").read_text() == "A\n"
    assert (target / "b").read_text() == "B\n"


# What stops it


def test_what_runs_by_itself_needs_consent(target: Path) -> None:
    changes, _ = worked_on(target, "echo x > .envrc; echo y > plain")

    with pytest.raises(ChangesError) as caught:
        apply(changes)

    assert caught.value.kind is Kind.FLAGGED
    assert ".envrc: " in caught.value.message and "plain" not in caught.value.message
    assert os.listdir(target) == []
    with pytest.raises(ChangesError):
        apply(changes, allow_flagged=["plain"])
    apply(changes, only=["plain"])
    apply(changes, only=[".envrc"], allow_flagged=[".envrc"])
    assert sorted(os.listdir(target)) == [".envrc", "plain"]


def test_consent_may_name_the_whole_path_or_everything(target: Path) -> None:
    changes, _ = worked_on(target, "echo x > .envrc")

    undo(apply(changes, allow_flagged=[f"{target}/.envrc"]).id)
    undo(apply(changes, allow_flagged=True).id)


@pytest.fixture
def drifted(target: Path) -> ChangeSet:
    """A host that went on by itself: some of the changes meet something else."""
    for name in ("edited", "gone", "moded", "free"):
        (target / name).write_text(f"{name}\n")
    (target / "folder").mkdir()
    changes, _ = worked_on(
        target,
        "for n in edited free; do echo inside > $n; done; rm gone; chmod 600 moded; echo i > new;"
        "rmdir folder",
    )
    (target / "edited").write_text("outside\n")
    (target / "gone").write_text("outside\n")
    (target / "moded").unlink()
    (target / "new").write_text("outside\n")
    (target / "folder/mine").write_text("mine\n")
    return capture(layer_of(changes))


def contents(target: Path) -> dict[str, str]:
    return {
        str(path.relative_to(target)): path.read_text()
        for path in sorted(target.rglob("*"))
        if path.is_file()
    }


def test_conflicts_stop_everything_and_are_named(target: Path, drifted: ChangeSet) -> None:
    before = look(target)

    with pytest.raises(ChangesError) as caught:
        apply(drifted)

    assert caught.value.kind is Kind.CONFLICT
    for name in ("edited", "gone", "new", "folder"):
        assert f"  {name}: " in caught.value.message
    assert "free" not in caught.value.message
    assert look(target) == before


def test_conflicts_can_be_skipped(target: Path, drifted: ChangeSet) -> None:
    applied = apply(drifted, on_conflict="skip")

    assert [change.path for change in applied.changed] == ["free"]
    assert {change.path for change, _ in applied.skipped} >= {"edited", "gone", "new", "folder"}
    assert contents(target) == {
        "edited": "outside\n", "folder/mine": "mine\n", "free": "inside\n",
        "gone": "outside\n", "new": "outside\n",
    }  # fmt: skip


def test_conflicts_can_be_overwritten_and_even_that_is_undone(
    target: Path, drifted: ChangeSet
) -> None:
    before = look(target)

    applied = apply(drifted, on_conflict="overwrite")

    assert contents(target) == {
        "edited": "inside\n", "free": "inside\n", "moded": "moded\n", "new": "i\n",
    }  # fmt: skip
    assert applied.skipped == ()
    undo(applied.id)
    assert look(target) == before
    # What the user had is the user's still: overwriting it once does not make it ours.
    assert {one.path for one in conflicts(capture(layer_of(drifted)))} >= {"edited", "gone", "new"}


@pytest.mark.parametrize("on_conflict", ["stop", "skip", "overwrite"])
def test_what_appeared_in_a_folder_after_the_review_is_never_removed(
    target: Path, on_conflict: OnConflict
) -> None:
    for name in ("goes", "turns"):
        (target / name).mkdir()
    changes, _ = worked_on(target, "rmdir goes turns; echo x > turns; echo y > other")
    (target / "goes/mine").write_text("mine\n")
    (target / "turns/mine").write_text("mine\n")

    try:
        applied = apply(changes, on_conflict=on_conflict)
    except ChangesError as error:
        assert on_conflict == "stop" and error.kind is Kind.CONFLICT
    else:
        assert {change.path for change, _ in applied.skipped} == {"goes", "turns"}
        assert (target / "other").read_text() == "y\n"

    assert (target / "goes/mine").read_text() == (target / "turns/mine").read_text() == "mine\n"


@pytest.mark.parametrize("on_conflict", ["stop", "skip", "overwrite"])
def test_what_changes_after_the_look_at_conflicts_is_seen_when_planning(
    target: Path, drifted: ChangeSet, on_conflict: OnConflict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every change is compared with what the reviewer saw, whatever drift says of it."""
    (target / "free").write_text("outside\n")
    (target / "elsewhere").mkdir()
    changes, _ = worked_on(target, "mv elsewhere/../edited moved; echo x > elsewhere/x")
    changes = _renames.detect(changes)
    assert ChangeKind.RENAMED in {change.kind for change in changes}
    (target / "edited").write_text("later\n")
    (target / "elsewhere").rmdir()
    before = contents(target)
    monkeypatch.setattr(drift, "examine", lambda _: drift.Examined((), {}))

    try:
        applied = apply(changes, on_conflict=on_conflict)
    except ChangesError as error:
        assert on_conflict == "stop" and error.kind is Kind.CONFLICT
        assert "edited" in error.message and "elsewhere" in error.message
        assert contents(target) == before
        return
    assert "elsewhere/x" in {change.path for change, _ in applied.skipped}
    overwritten = on_conflict == "overwrite"
    assert ("moved" in {change.path for change in applied.changed}) == overwritten
    assert ("edited" in contents(target)) != overwritten
    if applied.id:
        undo(applied.id)
    assert contents(target) == before


@pytest.mark.parametrize("on_conflict", ["stop", "skip", "overwrite"])
@pytest.mark.parametrize("name", ["edited", "new", "gone"])
def test_what_changes_right_after_the_look_is_never_lost(
    target: Path, on_conflict: OnConflict, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target / "edited").write_text("one\n")
    (target / "gone").write_text("one\n")
    changes, _ = worked_on(target, "echo two > edited; echo two > new; rm gone")
    look_at = drift.examine

    def look_and_edit(of: ChangeSet) -> drift.Examined:
        found = look_at(of)
        (target / name).write_text("mine\n")
        return found

    monkeypatch.setattr(drift, "examine", look_and_edit)
    try:
        applied = apply(changes, on_conflict=on_conflict)
    except ChangesError as error:
        assert error.kind is Kind.CONFLICT and name in error.message
    else:
        assert on_conflict != "stop"
        undo(applied.id)
    assert (target / name).read_text() == "mine\n"
    assert nothing_left_in(target)


def test_contents_need_not_be_files(target: Path) -> None:
    changes, _ = worked_on(target, "echo x > x; echo yy > y")

    class InMemory:
        def open_old(self, change: Change) -> BinaryIO:
            raise FileNotFoundError(change.path)

        def open_new(self, change: Change) -> BinaryIO:
            return io.BytesIO({"x": b"x\n", "y": b"y"}[change.path])

    apply(replace(changes, contents=InMemory()), only=["x"])
    assert (target / "x").read_text() == "x\n"
    with pytest.raises(ChangesError) as caught:
        apply(replace(changes, contents=InMemory()), only=["y"])
    assert caught.value.kind is Kind.CONFLICT


def test_what_changed_between_review_and_apply_is_a_conflict(target: Path) -> None:
    (target / "file").write_text("old\n")
    changes, _ = worked_on(target, "echo new > file")
    facts = os.stat(target / "file")
    (target / "file").write_text("own\n")
    os.utime(target / "file", ns=(facts.st_atime_ns, facts.st_mtime_ns))

    with pytest.raises(ChangesError) as caught:
        apply(changes)

    assert caught.value.kind is Kind.CONFLICT
    assert (target / "file").read_text() == "own\n"


def test_a_layer_that_changed_after_the_review_is_a_conflict(target: Path) -> None:
    changes, _ = worked_on(target, "echo new > file; echo more > other")
    upper = layer_of(changes).upper(0) / "file"
    facts = os.stat(upper)
    upper.write_text("bad\n")
    os.utime(upper, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    with pytest.raises(ChangesError) as caught:
        apply(changes)

    assert caught.value.kind is Kind.CONFLICT
    assert "layer" in caught.value.message
    assert os.listdir(target) == []


def test_nothing_to_do_leaves_no_journal(target: Path) -> None:
    changes, _ = worked_on(target, "echo x > x")
    apply(changes)

    applied = apply(capture(layer_of(changes)))

    assert (applied.id, applied.journal, applied.changed) == ("", "", ())


def test_an_apply_that_takes_nothing_leaves_the_one_before_to_undo(target: Path) -> None:
    (target / "one").write_text("1")
    (target / "two").write_text("2")
    changes, _ = worked_on(target, "echo x > one; echo x > two")
    apply(changes, only=["one"])
    a_moment_after(time.time_ns())
    (target / "two").write_text("host")

    applied = apply(changes, only=["two"], on_conflict="skip")

    assert (applied.id, applied.changed) == ("", ())
    assert changes.layer_id is not None
    undo(changes.layer_id)
    assert (target / "one").read_text() == "1"


def test_an_empty_state_folder_is_all_it_needs(target: Path, tmp_path: Path) -> None:
    changes, _ = worked_on(target, "echo x > x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PODBOT_STATE", str(tmp_path / "state"))

        applied = apply(changes)

        assert Path(applied.journal).is_dir()
        assert stat.S_IMODE(os.stat(tmp_path / "state").st_mode) == 0o700
        undo(applied.id)


# Hunks

OLD = "".join(f"line {number}\n" for number in range(60))


@pytest.fixture
def hunks(target: Path) -> ChangeSet:
    (target / "file").write_text(OLD)
    os.chmod(target / "file", 0o640)
    return worked_on(
        target,
        "sed -i 's/line 3$/first/; s/line 30/second/; s/line 57/third/' file; chmod 755 file",
    )[0]


def test_hunks_can_be_taken_one_by_one(target: Path, hunks: ChangeSet) -> None:
    before = look(target)
    (change,) = hunks
    assert len(diff(hunks, change).hunks) == 3

    applied = apply(hunks, hunks={"file": [0, 2]}, allow_flagged=True)

    text = (target / "file").read_text()
    assert text == OLD.replace("line 3\n", "first\n").replace("line 57", "third")
    assert stat.S_IMODE(os.stat(target / "file").st_mode) == 0o640
    undo(applied.id)
    assert look(target) == before


def test_all_hunks_are_the_whole_change(target: Path, hunks: ChangeSet) -> None:
    apply(hunks, hunks={f"{target}/file": range(3)}, allow_flagged=True)

    assert stat.S_IMODE(os.stat(target / "file").st_mode) == 0o755
    assert capture(layer_of(hunks)).changes == ()


def test_no_hunk_is_no_change(target: Path, hunks: ChangeSet) -> None:
    applied = apply(hunks, hunks={"file": []}, allow_flagged=True)

    assert [reason for _, reason in applied.skipped] == ["none of its hunks was taken"]
    assert (target / "file").read_text() == OLD


@pytest.mark.parametrize("wanted", [{"file": [3]}, {"other": [0]}])
def test_hunks_that_are_not_there_are_refused(
    hunks: ChangeSet, wanted: dict[str, list[int]]
) -> None:
    with pytest.raises(ChangesError) as caught:
        apply(hunks, hunks=wanted, allow_flagged=True)

    assert caught.value.kind is Kind.NOTHING_SELECTED


# Failures


def test_a_file_that_does_not_fit_takes_everything_back(target: Path) -> None:
    (target / "old").write_text("old\n")
    before = look(target)
    changes, _ = worked_on(target, "rm old; echo a > a; head -c 600000 /dev/zero > big; echo z > z")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
    try:
        with pytest.raises(ChangesError) as caught:
            apply(changes)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert caught.value.kind is Kind.APPLY_FAILED
    assert "too large" in caught.value.message and "nothing is changed" in caught.value.message
    assert look(target) == before
    assert nothing_left_in(target)


def test_a_full_disk_takes_everything_back(tmp_path: Path) -> None:
    """In a mount namespace of its own, where the target is a file system of two megabytes."""
    program = Path(__file__).parents[1] / "full_disk.py"
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, str(program)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "disk_full, and all is as it was\n"


def test_a_full_disk_of_the_state_is_named_and_makes_no_conflicts(tmp_path: Path) -> None:
    """In a mount namespace of its own, with ever more room in the state folder."""
    program = Path(__file__).parents[1] / "full_state.py"
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, str(program)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "failed and worked\n"


def test_a_link_that_was_to_become_a_folder_stays_if_an_apply_fails_before(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target / "there").mkdir()
    (target / "link").symlink_to("there")
    before = look(target)
    changes, _ = worked_on(target, "rm link; mkdir -p link/deep; echo x > link/deep/x; echo y > y")

    def step(label: str) -> None:
        if label in ("swap", "put in place"):
            raise OSError(5, "disk on fire")

    monkeypatch.setattr(journal, "step", step)
    with pytest.raises(ChangesError, match=r"disk on fire.*; nothing is changed"):
        apply(changes)

    assert look(target) == before
    assert nothing_left_in(target)
