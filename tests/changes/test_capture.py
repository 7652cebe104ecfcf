"""From a layer to a change set: every kind of change, made by real processes in real overlays."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from podbot.changes import capture as capturing
from podbot.changes.capture import capture
from podbot.changes.drift import conflicts
from podbot.changes.model import ChangeKind, ChangeSet, FileType
from podbot.errors import ChangesError, Kind, LaunchError
from podbot.sandbox import DEFAULT_HIDDEN, Policy, layers
from podbot.sandbox.layers import closed, copying
from podbot.sandbox.overlay.launcher import OverlaySandbox

PYTHON = os.path.realpath(sys.executable)


def work(target: Path, script: str, **options: object) -> OverlaySandbox:
    """A closed sandbox in which a script has run."""
    with OverlaySandbox(target, **options) as sandbox:  # type: ignore[arg-type]
        result = sandbox.exec(["bash", "-ec", script])
        assert result.ok, result
    return sandbox


def changes_of(target: Path, script: str, **options: object) -> ChangeSet:
    layer = work(target, script, **options).layer
    assert layer is not None
    return capture(layer)


def told(changes: ChangeSet) -> dict[str, str]:
    return {change.path: change.kind.value for change in changes}


def write(path: Path, text: str = "text\n", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture(params=["overlay", "copy"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways a layer can be: they must tell the same."""
    if request.param == "copy":
        monkeypatch.setattr(copying, "needed", lambda targets: "the test wants it")
    return str(request.param)


CASES = {
    "added": ("echo n > new", {"new": "added"}),
    "added below new folders": (
        "mkdir -p a/b; echo n > a/b/c",
        {"a": "added", "a/b": "added", "a/b/c": "added"},
    ),
    "an empty folder": ("mkdir empty", {"empty": "added"}),
    "modified": ("echo more >> file", {"file": "modified"}),
    "modified to the same size": ("echo TEXT > file", {"file": "modified"}),
    "deleted": ("rm file", {"file": "deleted"}),
    "a folder deleted": (
        "rm -r folder",
        {"folder": "deleted", "folder/one": "deleted", "folder/two": "deleted"},
    ),
    "a mode": ("chmod 755 file", {"file": "mode"}),
    "the mode of a folder": ("chmod 700 folder", {"folder": "mode"}),
    "a time": ("touch -d 2001-02-03 file", {"file": "mode"}),
    "a link": ("ln -s file link2", {"link2": "link"}),
    "a link turned": ("ln -sfn folder link", {"link": "link"}),
    "a hard link": ("ln file again", {"again": "hard_link"}),
    "two names of one new file": ("echo x > b; ln b a", {"a": "added", "b": "hard_link"}),
    "a name of a file given to another": ("ln -f file other", {"other": "hard_link"}),
    "a pipe": ("mkfifo pipe", {"pipe": "special"}),
    "a file became a folder": (
        "rm file; mkdir file; echo x > file/x",
        {"file": "replaced", "file/x": "added"},
    ),
    "a folder became a file": (
        "rm -r folder; echo x > folder",
        {"folder": "replaced", "folder/one": "deleted", "folder/two": "deleted"},
    ),
    "a file became a link": ("ln -sf other file", {"file": "replaced"}),
    "nothing in the end": ("cp -p file x; cp -p x file; rm x; chmod 755 file; chmod 644 file", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_layer_tells_what_happened(target: Path, method: str, case: str) -> None:
    script, expected = CASES[case]
    write(target / "file")
    write(target / "other", "other\n")
    write(target / "folder/one")
    write(target / "folder/two")
    (target / "link").symlink_to("file")

    assert told(changes_of(target, script)) == expected


def test_a_folder_made_anew_is_told_apart_from_a_changed_one(target: Path) -> None:
    write(target / "folder/kept", "same\n")
    write(target / "folder/lost")
    script = "cp -p folder/kept /tmp/k; rm -r folder; mkdir folder; cp -p /tmp/k folder/kept"

    changes = changes_of(target, script)

    assert told(changes) == {"folder": "replaced", "folder/lost": "deleted"}
    assert next(iter(changes)).type is FileType.FOLDER


def test_a_folder_below_one_made_anew_shows_nothing_of_the_old_either(target: Path) -> None:
    write(target / "folder/deep/three")

    changes = changes_of(target, "rm -r folder; mkdir -p folder/deep; echo x > folder/deep/x")

    assert told(changes) == {
        "folder": "replaced",
        "folder/deep/three": "deleted",
        "folder/deep/x": "added",
    }


def test_the_target_itself_looks_as_it_did(target: Path) -> None:
    os.setxattr(target, "user.kept", b"yes")
    target.chmod(0o751)
    os.utime(target, ns=(10**18, 10**18))

    with OverlaySandbox(target, discard=True) as sandbox:
        seen = sandbox.stat(".")
        assert (seen.mode & 0o777, seen.mtime_ns) == (0o751, 10**18)
        sandbox.write("/tmp/x", "x")
        assert sandbox.layer is not None
        changes = capture(sandbox.layer)

    assert told(changes) == {}
    assert changes.folder_times == {}


def test_both_states_are_told_whole(target: Path) -> None:
    os.setxattr(write(target / "file", mode=0o640), "user.kept", b"yes")

    (change,) = changes_of(target, "chmod 755 file; echo x > file; touch -d @86400.5 file")

    assert change.old is not None and change.new is not None
    assert (change.old.mode, change.new.mode) == (0o640, 0o755)
    assert change.new.mtime_ns == 86_400_500_000_000
    assert change.new.xattrs == change.old.xattrs == (("user.kept", b"yes"),)
    assert change.new.executable and not change.old.executable
    assert change.where == f"{target}/file"
    assert change.size == 2


def test_contents_of_both_sides_can_be_read(target: Path) -> None:
    write(target / "file", "before\n")
    changes = changes_of(target, "echo after > file")
    (change,) = changes

    with changes.contents.open_old(change) as old, changes.contents.open_new(change) as new:
        assert (old.read(), new.read()) == (b"before\n", b"after\n")


def test_times_of_folders_are_kept_apart_from_changes(target: Path) -> None:
    write(target / "folder/one")

    changes = changes_of(target, "echo x > folder/x; touch -d @1000 folder")

    assert told(changes) == {"folder/x": "added"}
    assert changes.folder_times[f"{target}/folder"] == 1000 * 10**9


@pytest.mark.parametrize(
    "name",
    [b"new\nline", b"'quote\"", b"\xff\xfe not utf-8", b"-dash", b"n" * 255, b" ", "ünï".encode()],
)
def test_any_name_is_told(target: Path, method: str, name: bytes) -> None:
    path = os.path.join(os.fsencode(target), name)
    with open(path, "wb") as file:
        file.write(b"x")

    changes = changes_of(target, "rm ./*")

    assert [os.fsencode(change.path) for change in changes] == [name]
    assert json.loads(json.dumps(next(iter(changes)).path)) == os.fsdecode(name)


def test_several_targets_are_told_apart(target: Path) -> None:
    one, two = target / "one", target / "two"
    one.mkdir()
    two.mkdir()
    with OverlaySandbox([one, two]) as sandbox:
        sandbox.write(f"{one}/a", "a")
        sandbox.write(f"{two}/b", "b")
    assert sandbox.layer is not None

    changes = capture(sandbox.layer)

    assert [change.where for change in changes] == [f"{one}/a", f"{two}/b"]


def test_a_live_sandbox_can_be_looked_into(target: Path) -> None:
    with OverlaySandbox(target, discard=True) as sandbox:
        sandbox.write("a", "a")
        assert sandbox.layer is not None
        assert told(capture(sandbox.layer)) == {"a": "added"}
        sandbox.remove("a")
        assert told(capture(sandbox.layer)) == {}


def test_a_hidden_path_is_never_an_old_side_and_its_folder_never_goes(target: Path) -> None:
    write(target / "conf/secret/key")
    write(target / "conf/plain")
    policy = Policy(hidden=(*DEFAULT_HIDDEN, f"{target}/conf/secret"))
    script = "test ! -e conf/secret; rm -r conf; mkdir -p conf/secret; echo x > conf/secret/key"

    changes = changes_of(target, script, policy=policy)

    assert changes.hidden == (f"{target}/conf/secret",)
    assert {change.path: change.old is None for change in changes} == {
        "conf": False,
        "conf/plain": False,
        "conf/secret": True,
        "conf/secret/key": True,
    }


def test_a_folder_that_holds_something_hidden_is_not_deleted(target: Path) -> None:
    write(target / "conf/secret/key")
    write(target / "conf/plain")
    policy = Policy(hidden=(*DEFAULT_HIDDEN, f"{target}/conf/secret"))

    changes = changes_of(target, "rm -r conf", policy=policy)

    assert told(changes) == {"conf/plain": "deleted"}
    assert any("conf" in note for note in changes.notes)


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o200, 0o400, 0o600])
def test_what_a_guest_closed_is_read_all_the_same_and_stays_closed(target: Path, mode: int) -> None:
    layer = work(target, f"mkdir -p c/d; echo x > c/d/x; chmod 0 c/d/x; chmod {mode:o} c/d c").layer
    assert layer is not None

    changes = capture(layer)

    modes = {change.path: change.new.mode for change in changes if change.new is not None}
    assert modes == {"c": mode, "c/d": mode, "c/d/x": 0}
    with changes.contents.open_new(list(changes)[-1]) as file:
        assert file.read() == b"x\n"
    closed.shut(layer.path)
    assert stat.S_IMODE(os.lstat(layer.upper(0) / "c").st_mode) == mode


def test_a_layer_that_is_gone_is_a_named_error(target: Path) -> None:
    layer = work(target, "echo x > x").layer
    assert layer is not None
    layer.discard()

    with pytest.raises(ChangesError) as caught:
        capture(layer)

    assert caught.value.kind is Kind.UNKNOWN_ID


def test_changes_can_be_read_after_their_target_is_gone(target: Path) -> None:
    inner = target / "inner"
    inner.mkdir()
    layer = work(inner, "echo x > x").layer
    inner.rmdir()
    assert layer is not None

    changes = capture(layer)

    assert told(changes) == {"x": "added"}
    assert any("not there" in note for note in changes.notes)


def test_a_target_swapped_for_a_link_is_not_followed(target: Path) -> None:
    inner, elsewhere = target / "inner", target / "elsewhere"
    inner.mkdir()
    write(elsewhere / "x", "secret\n")
    layer = work(inner, "echo x > x").layer
    inner.rmdir()
    inner.symlink_to(elsewhere)
    assert layer is not None

    (change,) = changes = capture(layer)

    assert change.kind is ChangeKind.ADDED
    with pytest.raises(OSError):
        changes.contents.open_old(change)


def test_a_tree_of_any_depth_is_told(target: Path, method: str) -> None:
    script = """
import os
for n in range(1500):
    os.mkdir('d'); os.chdir('d')
open('end', 'w').close()
"""
    with OverlaySandbox(target) as sandbox:
        sandbox.exec([PYTHON, "-c", script]).check()
    assert sandbox.layer is not None

    changes = capture(sandbox.layer)

    assert len(changes) == 1501
    assert conflicts(changes) == ()
    with changes.contents.open_new(changes.changes[-1]) as file:
        assert file.read() == b""
    sandbox.layer.discard()


def test_a_path_longer_than_the_kernel_takes_is_told(target: Path) -> None:
    name = "n" * 250
    changes = changes_of(
        target, f"for i in {{1..20}}; do mkdir {name}; cd {name}; done; echo x > x"
    )

    assert len(changes.changes[-1].path) > 4096
    with changes.contents.open_new(changes.changes[-1]) as file:
        assert file.read() == b"x\n"


def test_a_deep_tree_that_was_removed_is_told(target: Path) -> None:
    deep = target
    for _ in range(400):
        deep = deep / "d"
    deep.mkdir(parents=True)

    assert len(changes_of(target, "rm -r d")) == 400


def test_a_target_that_the_guest_closed_is_read_and_its_mode_told(target: Path) -> None:
    layer = work(target, "echo x > f; chmod 0 .").layer
    assert layer is not None

    changes = capture(layer)

    assert told(changes) == {"": "mode", "f": "added"}
    assert changes.changes[0].new is not None and changes.changes[0].new.mode == 0


# Going on in a layer


def test_a_sandbox_goes_on_where_another_left(target: Path, method: str) -> None:
    write(target / "file")
    layer = work(target, "echo one > one; rm file; mkdir -m 0 shut").layer
    assert layer is not None
    capture(layer)  # opens what was shut

    with OverlaySandbox(layer=layer) as sandbox:
        seen = sandbox.exec(["sh", "-c", "cat one; ls; stat -c %a shut; echo two > two"])
    assert seen.stdout == "one\none\nshut\n0\n"

    assert told(capture(layer)) == {
        "file": "deleted",
        "one": "added",
        "shut": "added",
        "two": "added",
    }
    layer.discard()


def test_nobody_goes_on_in_a_layer_in_use(target: Path) -> None:
    with OverlaySandbox(target, discard=True) as sandbox, pytest.raises(LaunchError) as caught:
        OverlaySandbox(layer=sandbox.layer)
    assert caught.value.kind is Kind.IN_USE


def test_what_a_later_policy_hides_counts_too(target: Path) -> None:
    write(target / "later")
    layer = work(target, "echo one > one").layer
    assert layer is not None
    with OverlaySandbox(layer=layer, policy=Policy(hidden=(f"{target}/later",))) as sandbox:
        assert not sandbox.exists("later")

    again = layers.get(layer.id)

    assert again is not None and again.hidden == (f"{target}/later",)


def test_a_layer_given_with_a_target_is_refused(target: Path) -> None:
    layer = work(target, "echo one > one").layer

    with pytest.raises(LaunchError) as caught:
        OverlaySandbox(target, layer=layer)

    assert caught.value.kind is Kind.INVALID


def test_a_layer_whose_target_moved_is_refused(target: Path) -> None:
    inner = target / "inner"
    inner.mkdir()
    layer = work(inner, "echo one > one").layer
    inner.rename(target / "moved")
    inner.symlink_to(target / "moved")

    with pytest.raises(LaunchError) as caught:
        OverlaySandbox(layer=layer)

    assert caught.value.kind is Kind.TARGET_REFUSED


def test_a_layer_that_vanished_is_a_named_error(target: Path) -> None:
    layer = work(target, "echo one > one").layer
    assert layer is not None
    layer.discard()

    with pytest.raises(LaunchError) as caught:
        OverlaySandbox(layer=layer)

    assert caught.value.kind is Kind.LAYER_FAILED


# The clock


def test_a_clock_set_back_moves_the_line_back(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = work(target, "echo one > one").layer
    assert layer is not None
    real: Callable[[], int] = capturing.time.time_ns
    hour = 3600 * 10**9
    assert capture(layer).since_ns == layer.since_ns

    monkeypatch.setattr(capturing.time, "time_ns", lambda: real() - hour)

    assert abs(capture(layer).since_ns - (layer.since_ns - hour)) < hour / 60
    assert capture(replace(layer, clock=("another boot", 0))).since_ns == layer.since_ns
