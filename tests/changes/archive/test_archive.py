"""Archives: what a sandbox did, saved and loaded again; and archives that nobody should load."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import shutil
import socket
import stat
import subprocess
import tarfile
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trees import a_moment_after

from podbot.changes import _renames, drift
from podbot.changes.archive import saving
from podbot.changes.archive._manifest import parsed
from podbot.changes.archive._members import planned
from podbot.changes.archive._tar import Member, MemberType, end_of, header, padding
from podbot.changes.archive.saving import ArchiveLimits, load, not_in_archive, read_olds, save
from podbot.changes.capture import capture
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, OldFacts, State
from podbot.errors import ChangesError, Kind
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer
from podbot.sandbox.overlay.launcher import OverlaySandbox


def work(*targets: Path, script: str) -> ChangeSet:
    """What a script did in a sandbox over some targets, the first being where it ran."""
    with OverlaySandbox(targets) as sandbox:
        result = sandbox.exec(["bash", "-ec", script])
        assert result.ok, result
    assert sandbox.layer is not None
    return capture(sandbox.layer)


def saved(changes: ChangeSet) -> bytes:
    file = io.BytesIO()
    save(changes, file)
    return file.getvalue()


def loaded(data: bytes, *targets: Path) -> Layer:
    return load(io.BytesIO(data), [str(target) for target in targets] or None)


def told(changes: ChangeSet) -> list[tuple[str, str, str | None]]:
    return [(change.path, change.kind.value, change.source) for change in changes]


def contents(changes: ChangeSet, change: Change) -> bytes | None:
    if change.new is None or change.new.type is not FileType.FILE:
        return None
    with changes.contents.open_new(change) as file:
        return file.read()


def fill(target: Path) -> None:
    (target / "folder" / "deep").mkdir(parents=True)
    for path in ("file", "other", "folder/one", "folder/two", "folder/deep/three"):
        (target / path).write_text(f"{path}\n")
    (target / "link").symlink_to("file")


def assert_nothing_is_left(before: list[Layer]) -> None:
    assert [layer.id for layer in layers.found()] == [layer.id for layer in before]
    root = layers.root()
    assert {path.name for path in root.iterdir() if path.name[0].isdigit()} == {
        layer.id for layer in before
    }


# There and back

CASES = {
    "files": "echo n > new; echo more >> file; rm other",
    "the same size": "echo FILE > file",
    "new folders": "mkdir -p a/b/c; echo x > a/b/c/d; mkdir empty; chmod 700 a",
    "a folder deleted": "rm -r folder",
    "a folder emptied": "rm -r folder/*",
    "a folder made anew": "rm -r folder; mkdir folder; echo x > folder/one; echo y > folder/new",
    "a folder made anew as it was": "cp -a folder /tmp/f; rm -r folder; cp -a /tmp/f folder",
    "part of a folder made anew": "rm -r folder/deep; mkdir folder/deep; echo x > folder/deep/x",
    "modes": "chmod 755 file; chmod 700 folder; chmod 4711 other",
    "the target's own mode": "chmod 711 .",
    "links": "ln -s nowhere dangling; ln -sfn folder link; ln -s /etc/passwd out",
    "a long link": "ln -s $(printf 'x/%.0s' {1..99})ü long",
    "new names": "ln file again; echo x > b; ln b a; ln -f file other; ln folder/one two",
    "pipes": "mkfifo pipe; chmod 600 pipe",
    "a file became a folder": "rm file; mkdir file; echo x > file/x",
    "a folder became a file": "rm -r folder; echo x > folder",
    "a folder became a link": "rm -r folder; ln -s other folder",
    "a link became a file": "rm link; echo x > link",
    "times": "touch -d @1.5 file; touch -d @-86400.25 other; touch -d @99.000000001 folder",
    "odd names": r"""
        touch $'new\nline' $'\xff\xfe' "it's \"quoted\"" -- -dash 'a b' $'\e[31mred' ü $'\u202ex'
        mkdir $'\x80'; touch $'\x80'/x; touch "$(printf 'n%.0s' {1..255})"
        mkdir -p "$(printf 'd%.0s' {1..200})/$(printf 'e%.0s' {1..200})"
        echo x > "$(printf 'd%.0s' {1..200})/$(printf 'e%.0s' {1..200})/$(printf 'f%.0s' {1..200})"
    """,
    "closed to their owner": "echo x > shut; chmod 000 shut; mkdir d; echo x > d/x; chmod 000 d",
    "a manifest of its own": "mkdir .podbot; echo '{}' > .podbot/manifest.json",
    "everything gone": "rm -rf ./* .[a-z]*",
}


@pytest.mark.parametrize("case", CASES)
def test_what_comes_back_is_what_the_sandbox_did(target: Path, case: str) -> None:
    fill(target)
    changes = work(target, script=CASES[case])

    again = capture(loaded(saved(changes)))

    assert told(again) == told(changes)
    for change in again:
        (before,) = (one for one in changes if one.path == change.path)
        assert (before.new is None) == (change.new is None)
        if before.new is not None and change.new is not None:
            assert change.new.looks_like(before.new), change.path
            assert contents(again, change) == contents(changes, before)
    assert again.folder_times == changes.folder_times
    assert drift.conflicts(again) == ()


def test_attributes_come_back(target: Path) -> None:
    fill(target)
    os.setxattr(target / "file", "user.kept", b"\x00\xff=%")
    os.setxattr(target / "folder", "user.on_the_way", b"1")
    script = 'python3 -c \'import os; os.setxattr("file", "user.a=b%3D", bytes(range(256)))\''

    changes = work(target, script=f"{script}; echo x > folder/new")
    again = capture(loaded(saved(changes)))

    assert told(again) == told(changes) == [("file", "mode", None), ("folder/new", "added", None)]
    assert again.changes[0].new is not None
    assert dict(again.changes[0].new.xattrs) == {
        "user.kept": b"\x00\xff=%",
        "user.a=b%3D": bytes(range(256)),
    }


def test_renames_come_back(target: Path) -> None:
    fill(target)
    changes = _renames.detect(work(target, script="mkdir to; mv folder/one to/uno; mv file datei"))

    again = _renames.detect(capture(loaded(saved(changes))))

    assert told(again) == told(changes)
    assert ("to/uno", "renamed", "folder/one") in told(again)
    assert drift.conflicts(again) == ()


def test_a_socket_comes_back(target: Path) -> None:
    code = "import socket; socket.socket(socket.AF_UNIX).bind('s')"
    changes = work(target, script=f'python3 -c "{code}"')

    assert told(capture(loaded(saved(changes)))) == [("s", "special", None)]


def test_several_targets_come_back_each_below_its_number(target: Path) -> None:
    one, two = target / "one", target / "two"
    one.mkdir()
    two.mkdir()
    (two / "gone").touch()
    changes = work(
        one, two, script=f"echo 1 > new; rm {two}/gone; mkdir {two}/sub; touch {two}/sub/x"
    )
    data = saved(changes)

    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
    assert names == [".podbot/manifest.json", "0/new", "1/gone", "1/sub", "1/sub/x"]
    again = capture(loaded(data))
    assert again.targets == changes.targets
    assert [(c.target, c.path, c.kind) for c in again] == [
        (c.target, c.path, c.kind) for c in changes
    ]


def test_a_part_of_the_changes_can_be_saved(target: Path) -> None:
    fill(target)
    changes = work(target, script="ln file again; echo x > file; echo y > new; ln new newer")
    part = replace(changes, changes=tuple(c for c in changes if c.path in ("again", "newer")))

    again = capture(loaded(saved(part)))

    # Without what they are names of, they are files of their own.
    assert told(again) == [("again", "added", None), ("newer", "added", None)]


def test_a_sandbox_goes_on_in_what_was_loaded(target: Path) -> None:
    fill(target)
    script = "rm -r folder; mkdir folder; echo x > folder/new; rm file; mkdir -p a/b; touch a/b/c"
    layer = loaded(saved(work(target, script=script)))

    with OverlaySandbox(layer=layer) as sandbox:
        listed = sandbox.exec(["find", ".", "-mindepth", "1"]).stdout.split()
        assert sandbox.exec(["rm", "-r", "a"]).ok

    assert sorted(listed) == [
        "./a",
        "./a/b",
        "./a/b/c",
        "./folder",
        "./folder/new",
        "./link",
        "./other",
    ]
    assert ("a", "added", None) not in told(capture(layer))


# The format


def test_others_can_read_it(target: Path) -> None:
    fill(target)
    script = """
        echo new > new; rm other; rm -r folder; mkdir folder; echo x > folder/x; ln new name
        ln -s new soft; mkfifo pipe; truncate -s 8M holes; echo end >> holes; touch $'\\xff'
        mkdir "$(printf 'd%.0s' {1..120})"; touch -d @12.345678901 new
    """
    data = saved(work(target, script=script))

    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = {member.name: member for member in tar}
        assert next(iter(members)) == ".podbot/manifest.json"
        assert members["other"].ischr()
        assert (members["other"].devmajor, members["other"].devminor) == (0, 0)
        assert members["folder"].pax_headers["SCHILY.xattr.user.overlay.opaque"] == "y"
        assert members["name"].pax_headers["mtime"] == "12.345678901"
        assert members["new"].islnk() and members["new"].linkname == "name"
        assert members["soft"].issym() and members["pipe"].isfifo()
        assert "\udcff" in members and "d" * 120 in members
        holes = tar.extractfile("holes")
        assert holes is not None and holes.read() == bytes(8 << 20) + b"end\n"
    if shutil.which("tar"):
        listed = subprocess.run(["tar", "-tf", "-"], input=data, capture_output=True, check=True)
        assert len(listed.stdout.splitlines()) == len(members)


def test_the_manifest_says_what_was_there(target: Path) -> None:
    fill(target)
    data = saved(work(target, script="echo more >> file; rm link; touch new"))

    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        file = tar.extractfile(".podbot/manifest.json")
        assert file is not None
        manifest = json.load(file)

    assert manifest["podbot"] == 1 and manifest["targets"] == [str(target)]
    entries = {entry["path"]: entry for entry in manifest["entries"]}
    assert entries["file"]["old"]["size"] == 5
    assert len(entries["file"]["old"]["sha256"]) == 64
    assert entries["link"]["old"]["link"] == "file"
    assert entries["new"]["old"] is None
    layer = loaded(data)
    assert read_olds(layer)[0] == {
        "file": OldFacts(FileType.FILE, 0o644, 5, entries["file"]["old"]["sha256"]),
        "link": OldFacts(FileType.LINK, 0o777, 0, None, "file"),
        "new": None,
    }


def test_large_files_with_holes_stay_small(target: Path) -> None:
    changes = work(
        target, script="truncate -s 2G big; echo middle | dd of=big seek=9999 conv=notrunc"
    )

    data = saved(changes)
    assert len(data) < 1 << 20
    again = capture(loaded(data))

    (change,) = again
    assert change.size == 2 << 30
    layer = layers.get(again.layer_id or "")
    assert layer is not None
    assert (layer.upper(0) / "big").stat().st_blocks * 512 < 1 << 20
    with again.contents.open_new(change) as file:
        file.seek(9999 * 512)
        assert file.read(8) == b"middle\n\0"


def test_large_files_pass_through_in_pieces(target: Path) -> None:
    changes = work(target, script="head -c 48M /dev/urandom > big; cp big old")
    (target / "copy.tar").touch()

    tracemalloc.start()
    with open(target / "copy.tar", "r+b", buffering=0) as file:
        save(changes, file)
        file.seek(0)
        load(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8 << 20


def test_no_changes_at_all_come_back_as_none(target: Path) -> None:
    empty = replace(made(target), changes=())

    assert told(capture(loaded(saved(empty)))) == []


def test_the_time_of_a_folder_that_is_not_there_makes_none(target: Path) -> None:
    (target / "here").mkdir()
    changes = replace(made(target), folder_times={f"{target}/here": 5, f"{target}/gone": 6})

    again = capture(loaded(saved(changes)))

    assert told(again) == [("x", "added", None)]
    assert again.folder_times[f"{target}/here"] == 5


# Targets and what is there now


def test_it_can_be_loaded_over_another_folder(target: Path) -> None:
    here, there = target / "here", target / "there"
    for folder in (here, there):
        folder.mkdir()
        fill(folder)
    data = saved(work(here, script="echo x > file; rm -r folder"))

    again = capture(loaded(data, there))

    assert again.targets == (str(there),)
    assert told(again)[0] == ("file", "modified", None)
    assert drift.conflicts(again) == ()
    (there / "file").write_text("another\n")
    (there / "folder" / "more").touch()
    assert {conflict.path for conflict in drift.conflicts(capture(loaded(data, there)))} >= {
        "file",
        "folder/more",
    }


def test_what_was_a_conflict_stays_one(target: Path) -> None:
    fill(target)
    with OverlaySandbox(target) as sandbox:
        assert sandbox.exec(["sh", "-c", "echo inside > file; ln -sf inside link"]).ok
        assert sandbox.layer is not None
        a_moment_after(sandbox.layer.since_ns)
        (target / "file").write_text("outside\n")
        (target / "link").unlink()
        (target / "link").symlink_to("outside")
    assert sandbox.layer is not None
    changes = capture(sandbox.layer)
    assert len(drift.conflicts(changes)) == 2

    again = capture(loaded(saved(changes)))

    assert {conflict.path for conflict in drift.conflicts(again)} == {"file", "link"}


def test_a_missing_target_is_named(target: Path) -> None:
    (target / "gone").mkdir()
    data = saved(work(target / "gone", script="touch x"))
    (target / "gone").rmdir()
    before = layers.found()

    with pytest.raises(ChangesError, match="gone") as caught:
        loaded(data)
    assert caught.value.kind is Kind.TARGET_MISSING and caught.value.remedy
    (target / "gone").write_text("")
    with pytest.raises(ChangesError) as caught:
        loaded(data)
    assert caught.value.kind is Kind.TARGET_NOT_DIRECTORY
    assert_nothing_is_left(before)


def test_the_number_of_targets_must_fit(target: Path) -> None:
    data = saved(work(target, script="touch x"))

    with pytest.raises(ChangesError) as caught:
        loaded(data, target, target)
    assert caught.value.kind is Kind.INVALID


# What cannot be saved


class Given:
    """Contents that are what the test says."""

    def __init__(self, data: bytes | OSError):
        self._data = data

    def open_old(self, change: Change) -> BinaryIO:
        raise FileNotFoundError(change.path)

    def open_new(self, change: Change) -> BinaryIO:
        if isinstance(self._data, OSError):
            raise self._data
        return io.BytesIO(self._data)


def made(target: Path, type: FileType = FileType.FILE, size: int = 4, **more: object) -> ChangeSet:
    new = State(type, 0o644, os.getuid(), os.getgid(), size, 0, 0, 1, 1)
    change = Change(ChangeKind.ADDED, str(target), "x", None, new)
    return replace(ChangeSet((str(target),), (change,), Given(b"text"), 0), **more)  # type: ignore[arg-type]


def test_what_cannot_be_carried_is_left_out_and_said(target: Path) -> None:
    device = made(target, FileType.DEVICE)
    hidden = made(target, hidden=(str(target / "x"),))

    assert not_in_archive(device) == ["x: a device"]
    assert not_in_archive(hidden) == ["x: the policy hid this path"]
    assert not_in_archive(made(target)) == []
    assert told(capture(loaded(saved(device)))) == []
    assert told(capture(loaded(saved(hidden)))) == []


def test_a_file_that_cannot_be_read_is_named(target: Path) -> None:
    gone = replace(made(target), contents=Given(PermissionError(errno.EACCES, "not yours")))
    with pytest.raises(ChangesError, match="x cannot be saved: not yours") as caught:
        saved(gone)
    assert caught.value.kind is Kind.IO


def test_a_file_that_changes_meanwhile_is_named(target: Path) -> None:
    with pytest.raises(ChangesError, match="x cannot be saved: it changed"):
        saved(made(target, size=5))
    (target / "grown").write_text("longer than that")

    class Growing(Given):
        def open_new(self, change: Change) -> BinaryIO:
            return open(target / "grown", "rb")

    with pytest.raises(ChangesError, match="x cannot be saved: it changed"):
        saved(replace(made(target), contents=Growing(b"")))


def test_a_full_disk_is_named(target: Path) -> None:
    class Full(io.RawIOBase):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ChangesError) as caught:
        save(made(target), Full())  # type: ignore[arg-type]
    assert caught.value.kind is Kind.DISK_FULL


def test_a_pipe_takes_it_in_pieces(target: Path) -> None:
    class Narrow(io.RawIOBase):
        def __init__(self) -> None:
            self.data = b""

        def write(self, data: memoryview) -> int:  # type: ignore[override]
            self.data += bytes(data[:700])
            return min(len(data), 700)

    narrow = Narrow()
    save(made(target), narrow)  # type: ignore[arg-type]
    assert told(capture(loaded(narrow.data))) == [("x", "added", None)]

    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("rb", buffering=0) as file:
        ours.sendall(narrow.data)
        ours.shutdown(socket.SHUT_WR)
        assert told(capture(load(file))) == [("x", "added", None)]  # type: ignore[arg-type]


def test_a_full_disk_while_loading_leaves_nothing(target: Path) -> None:
    data = saved(work(target, script="head -c 1M /dev/urandom > big"))
    before = layers.found()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, hard))
    try:
        with pytest.raises(ChangesError) as caught:
            loaded(data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.kind is Kind.DISK_FULL
    assert_nothing_is_left(before)


# Hostile archives

Lines = list[dict[str, object]]
NEW = {"type": "file", "mode": 0o644, "uid": 0, "gid": 0, "size": 0, "mtime_ns": 0}


def entry(path: str, kind: str = "added", **more: object) -> dict[str, object]:
    """An entry of a manifest: an empty new file, unless told otherwise."""
    new = {
        **NEW,
        **{name: more.pop(name) for name in list(more) if name in (*NEW, "link", "opaque")},
    }
    found: dict[str, object] = {"target": 0, "path": path, "kind": kind, "old": None, "new": new}
    return found | more


def gone(path: str) -> dict[str, object]:
    return entry(path, "deleted", new=None)


def member(
    name: str, type: MemberType = MemberType.FILE, mode: int = 0o644, **more: object
) -> bytes:
    return header(Member(name, type, mode, **more))  # type: ignore[arg-type]


class Forge:
    """Makes archives that lie."""

    def __init__(self, target: Path):
        self.target = target

    def manifest(self, entries: Lines, **more: object) -> bytes:
        head = {
            "podbot": 1,
            "created": 1.0,
            "targets": [str(self.target)],
            "numbered": False,
            **more,
        }
        lines = ",".join("\n" + json.dumps(one) for one in entries)
        return (json.dumps(head)[:-1] + ', "entries": [' + lines + "\n]}\n").encode()

    def archive(self, entries: Lines, *members: bytes, **more: object) -> bytes:
        return self.around(self.manifest(entries, **more), *members)

    def around(self, manifest: bytes, *members: bytes) -> bytes:
        first = member(".podbot/manifest.json", mode=0o600, size=len(manifest))
        data = first + manifest + padding(len(manifest)) + b"".join(members)
        return data + end_of(len(data))


@pytest.fixture
def forge(target: Path) -> Iterator[Forge]:
    before = layers.found()
    yield Forge(target)
    kept = {layer.id for layer in before}
    for layer in layers.found():
        if layer.id not in kept:
            layer.discard()


def refuse(data: bytes, saying: str, limits: ArchiveLimits | None = None) -> None:
    """The archive is refused with these words, and nothing of it is left."""
    before = layers.found()
    with pytest.raises(ChangesError, match=saying) as caught:
        load(io.BytesIO(data), limits=limits or ArchiveLimits())
    assert caught.value.kind is Kind.BAD_ARCHIVE and caught.value.remedy
    assert "\n" not in caught.value.message and "\x1b" not in caught.value.message
    assert_nothing_is_left(before)


def test_the_forge_makes_archives_that_load(forge: Forge) -> None:
    entries = [entry("a"), gone("b"), entry("c", type="folder", mode=0o755), entry("c/d", size=3)]
    data = forge.archive(
        entries, member("a"), member("b", MemberType.WHITEOUT, 0),
        member("c", MemberType.FOLDER, 0o755), member("c/d", size=3) + b"xyz" + bytes(509),
    )  # fmt: skip
    upper = loaded(data).upper(0)

    assert (upper / "c" / "d").read_bytes() == b"xyz"
    assert stat.S_ISCHR((upper / "b").lstat().st_mode)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd", "../x", "a/../x", "..", ".", "./x", "a//b", "a/", "/", "a/.", "x\0y",
        "n" * 256, "a/" * 2100 + "x", "\ud800", "\udcc3\udca9", "a/../../x",
    ],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_is_refused(forge: Forge, path: str) -> None:
    refuse(forge.archive([entry(path)]), "path")


@pytest.mark.parametrize(
    ("entries", "saying"),
    [
        ([entry("a"), entry("a")], "a: it is there twice"),
        ([entry("a"), gone("a")], "a: it is there twice"),
        ([gone("a"), gone("a")], "a: it is there twice"),
        ([entry("a"), entry("a/b")], "a/b: it lies below something that is not a folder"),
        ([entry("a/b/c"), entry("a")], "a/b/c: it lies below something that is not a folder"),
        ([entry("a", type="link", link="/etc"), entry("a/passwd")], "not a folder"),
        ([entry("a", type="link", link="b"), entry("a/x/y")], "not a folder"),
        ([entry("a", type="fifo"), entry("a/b")], "not a folder"),
        ([gone("a"), entry("a/b")], "a/b: it lies below"),
        ([gone("a"), entry("a/b/c", type="folder")], "it lies below"),
        ([entry("a", "hard_link", source="b")], "a: it is another name for a file that is not"),
        ([entry("a", "hard_link", source="../b")], "path leads elsewhere"),
        ([entry("a", "hard_link", source="/etc/passwd")], "path leads elsewhere"),
        ([entry("a", "hard_link", source="a")], "is not valid"),
        ([entry("a", "hard_link")], "is not valid"),
        ([entry("a", "hard_link", source="b"), entry("b", type="folder")], "another name"),
        ([entry("a", "hard_link", source="b"), entry("b", type="link", link="/x")], "another name"),
        ([entry("a", "hard_link", source="b"), entry("b", "hard_link", source="a")], "another"),
        ([entry("a", source="b")], "is not valid"),
        ([gone("a"), {"target": 0, "path": "a/b", "kind": "time", "mtime_ns": 1}], "time of one"),
        ([gone("a"), {"target": 0, "path": "a", "kind": "time", "mtime_ns": 1}], "time of one"),
        ([entry("a", "deleted")], "is not valid"),
        ([entry("a", new=None)], "is not valid"),
        ([entry("", "deleted", new=None)], "is not valid"),
        ([entry("")], "is not valid"),
        ([entry("a", type="folder", opaque=True)], "is not valid"),
        ([entry("a", "renamed", source="")], "is not valid"),
        ([entry("a", "along", type="folder")], "is not valid"),
        ([entry("a", "stolen")], "what happened to it is not known"),
        ([entry("a", type="device")], "it is a device"),
        ([entry("a", type="door")], "not one that files have"),
        ([entry("a", mode=0o10000)], "mode is not valid"),
        ([entry("a", mode=-1)], "mode is not valid"),
        ([entry("a", mode=True)], "mode is not valid"),
        ([entry("a", mode="644")], "mode is not valid"),
        ([entry("a", size=-1)], "size is not valid"),
        ([entry("a", size=1.5)], "size is not valid"),
        ([entry("a", size=1 << 63)], "size is not valid"),
        ([entry("a", uid=0xFFFFFFFF)], "uid is not valid"),
        ([entry("a", mtime_ns=10**30)], "mtime_ns is not valid"),
        ([entry("a", target=1)], "target is not valid"),
        ([entry("a", target=-1)], "target is not valid"),
        ([entry("a", type="link", link="")], "link that cannot be"),
        ([entry("a", type="link", link="x" * 5000)], "link that cannot be"),
        ([entry("a", type="link", link="x\0y")], "link that cannot be"),
        ([entry("a", type="link")], "link is not valid"),
        ([entry(".podbot/manifest.json")], "the manifest's own folder"),
        ([entry(".podbot")], "the manifest's own folder"),
        ([{"path": "a"}], "target is not valid"),
        ([entry("a", new=3)], "manifest is damaged"),
        ([entry("a", old=[])], "manifest is damaged"),
        ([entry("a", old={"type": "file", "mode": 0, "size": 0, "sha256": "../x"})], "digest"),
    ],
)  # fmt: skip
def test_entries_that_make_no_sense_are_refused(forge: Forge, entries: Lines, saying: str) -> None:
    refuse(forge.archive(entries), saying)


FILE = entry("a")


@pytest.mark.parametrize(
    ("entries", "members", "saying"),
    [
        ([FILE], [], "a: it is missing"),
        ([], [member("a")], "a: the manifest does not list it"),
        ([FILE], [member("a"), member("a")], "a: the manifest does not list it"),
        ([FILE], [member("b")], "b: it is not what the manifest says"),
        ([FILE], [member("/a")], "not what the manifest says"),
        ([FILE], [member("./a")], "not what the manifest says"),
        ([FILE], [member("a", MemberType.LINK, link="/etc/passwd")], "its type is not"),
        ([FILE], [member("a", MemberType.HARD_LINK, link="/etc/passwd")], "its type is not"),
        ([FILE], [member("a", MemberType.WHITEOUT)], "its type is not"),
        ([FILE], [member("a", mode=0o4755)], "its mode is not"),
        ([FILE], [member("a", uid=7)], "its uid is not"),
        ([FILE], [member("a", mtime_ns=1)], "its mtime is not"),
        ([FILE], [member("a", size=3) + b"xyz" + bytes(509)], "its size is not"),
        ([entry("a", size=3)], [member("a")], "its size is not"),
        ([entry("a", type="link", link="b")], [member("a", MemberType.LINK, link="/")], "its link"),
        (
            [entry("a", "hard_link", source="b"), entry("b")],
            [member("b"), member("a", MemberType.HARD_LINK, link="c")],
            "its link is not",
        ),
        ([entry("b"), entry("a")], [member("b"), member("a")], "not what the manifest says"),
        (
            [FILE],
            [member("a", xattrs=(("user.overlay.opaque", b"y"),))],
            "whether it was replaced",
        ),
        (
            [entry("a", "replaced", type="folder", opaque=True)],
            [member("a", MemberType.FOLDER)],
            "whether it was replaced",
        ),
        *(
            ([FILE], [member("a", xattrs=((name, b"y"),))], "attribute that no change has")
            for name in ("user.overlay.redirect", "user.overlay.metacopy", "trusted.overlay.opaque",
                         "security.selinux", "security.ima", "system.nfs4_acl", "other", "")
        ),
        (
            [entry("a", type="folder")],
            [member("a", MemberType.FOLDER, xattrs=(("user.overlay.redirect", b"/etc"),))],
            "attribute that no change has",
        ),
        ([FILE], [member("a", xattrs=(("system.posix_acl_access", b"junk"),))], "cannot be put"),
    ],
)  # fmt: skip
def test_members_that_are_not_announced_are_refused(
    forge: Forge, entries: Lines, members: list[bytes], saying: str
) -> None:
    refuse(forge.archive(entries, *members), saying)


def raw(name: bytes = b"a", letter: bytes = b"0", **fields: bytes) -> bytes:
    """A plain header with any bytes in its fields, and a right checksum."""
    places = {"mode": 100, "uid": 108, "size": 124, "mtime": 136, "link": 157, "magic": 257,
              "major": 329, "minor": 337, "prefix": 345}  # fmt: skip
    block = bytearray(member("a")[-512:])
    block[: len(name)] = name
    block[156:157] = letter
    for field, value in fields.items():
        block[places[field] : places[field] + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(records: bytes, size: int | None = None) -> bytes:
    """An extended header with any bytes as records, before the header of a file."""
    length = len(records) if size is None else size
    return (
        raw(b"PaxHeaders/a", b"x", size=b"%011o\0" % length)
        + records
        + padding(len(records))
        + raw()
    )


def record(key: str, value: bytes) -> bytes:
    body = b" %s=%s\n" % (key.encode(), value)
    length = len(body) + 2
    return b"%d%s" % (length if length < 100 else length + 1, body)


@pytest.mark.parametrize(
    ("data", "saying"),
    [
        (raw(letter=b"4"), "a kind that no change has"),  # a block device
        (raw(letter=b"7"), "a kind that no change has"),
        (raw(letter=b"S"), "a kind that no change has"),
        (raw(letter=b"L"), "a kind that no change has"),
        (raw(letter=b"g"), "a kind that no change has"),
        (raw(letter=b"\0"), "a kind that no change has"),
        (raw(letter=b"3", major=b"0000001\0", minor=b"0000003\0"), "it is a device"),
        (raw(letter=b"3", minor=b"0000001\0"), "it is a device"),
        (raw(magic=b"ustar  \0"), "not a tar archive of the right kind"),
        (raw(magic=b"\0" * 8), "not a tar archive of the right kind"),
        (raw(size=b"\x80" + bytes(10) + b"\1"), "a number in a header"),
        (raw(size=b"-0000000001\0"), "a number in a header"),
        (raw(mode=b"7777777\0"), "mode is not valid"),
        (raw(prefix=b"/etc"), "prefix"),
        (raw(name=b"a\0b"), "a header is damaged"),
        (raw()[:-1] + b"x", "a header is damaged"),
        (raw(letter=b"5", size=b"00000001000\0") + bytes(512), "it has data and should have none"),
        (raw(letter=b"2", size=b"00000001000\0") + bytes(512), "it has data and should have none"),
        (pax(record("path", b"/etc/passwd")), "not what the manifest says"),
        (pax(record("path", b"a") * 2), "unknown or double entry path"),
        (pax(record("comment", b"x")), "unknown or double entry comment"),
        (pax(record("GNU.sparse.map", b"0,1")), "unknown or double entry"),
        (pax(record("\x1b[31m", b"x")), r"entry \\x1b"),
        (pax(record("size", b"99999999999999999999")), "a number is not valid"),
        (pax(record("size", b"-1")), "a number is not valid"),
        (pax(record("uid", b"0x0")), "a number is not valid"),
        (pax(record("mtime", b"nan")), "its time is not valid"),
        (pax(record("mtime", b"1e9")), "its time is not valid"),
        (pax(b"99 path=x\n"), "an extended header is broken"),
        (pax(b"5 p=x\n"), "an extended header is broken"),
        (pax(b"0 p=x\n"), "an extended header is broken"),
        (pax(b"junk"), "an extended header is broken"),
        (pax(b"", size=1 << 30), "an extended header is too large"),
        (pax(record("path", b"a"))[:-512] + pax(record("path", b"a")), "two extended headers"),
        (pax(record("GNU.sparse.major", b"1")), "is missing|told in a way"),
        (
            pax(record("GNU.sparse.major", b"2") + record("GNU.sparse.minor", b"0")
                + record("GNU.sparse.realsize", b"9")),
            "described in an unknown way",
        ),
    ],
)  # fmt: skip
def test_headers_that_lie_are_refused(forge: Forge, data: bytes, saying: str) -> None:
    refuse(forge.archive([FILE], data), saying)


def sparse(text: bytes, data: bytes = b"", realsize: int = 100, stored: int | None = None) -> bytes:
    listed = text + padding(len(text))
    size = len(listed) + len(data) if stored is None else stored
    records = (
        record("GNU.sparse.major", b"1") + record("GNU.sparse.minor", b"0")
        + record("GNU.sparse.name", b"a") + record("GNU.sparse.realsize", b"%d" % realsize)
    )  # fmt: skip
    about = pax(records)[:-512]
    return about + raw(size=b"%011o\0" % size) + listed + data + padding(len(data))


@pytest.mark.parametrize(
    ("data", "saying"),
    [
        (sparse(b"1\n0\n200\n", b"x" * 200), "holes are not valid"),
        (sparse(b"2\n50\n10\n40\n10\n", b"x" * 20), "holes are not valid"),
        (sparse(b"1\n0\n9\n", b"x" * 20), "do not agree"),
        (sparse(b"1\n0\n20\n", b"x" * 9), "do not agree"),
        (sparse(b"9999999\n"), "too many holes"),
        (sparse(b"1\n0\n"), "a number is not valid|is broken"),
        (sparse(b"-1\n"), "a number is not valid"),
        (sparse(b"x" * 2000), "is broken|a number"),
        (sparse(b""), "a number is not valid|is broken"),
        (sparse(b"1\n0\n1\n", b"x", realsize=101), "its size is not"),
    ],
)
def test_holes_that_lie_are_refused(forge: Forge, data: bytes, saying: str) -> None:
    refuse(forge.archive([entry("a", size=100)], data), saying)


def test_a_file_with_holes_is_taken_as_it_is(forge: Forge) -> None:
    upper = loaded(forge.archive([entry("a", size=100)], sparse(b"1\n3\n2\n", b"xy"))).upper(0)
    assert (upper / "a").read_bytes() == bytes(3) + b"xy" + bytes(95)


@pytest.mark.parametrize(
    ("change", "saying"),
    [
        (lambda m: b"", "does not start as one|manifest"),
        (lambda m: m[:-3], "cut off"),
        (lambda m: m[:-1], "cut off"),
        (lambda m: m + b"{}\n", "something follows"),
        (lambda m: m.replace(b'"podbot": 1', b'"podbot": 2'), "another version"),
        (lambda m: m.replace(b'"podbot": 1', b'"podbot": null'), "is not valid"),
        (lambda m: m.replace(b'"numbered": false', b'"numbered": 3'), "numbered is not valid"),
        (lambda m: m.replace(b'"created": 1.0', b'"created": NaN'), "created is not valid"),
        (lambda m: m.replace(b'"targets": [', b'"targets": [], "x": ['), "target is not valid"),
        (lambda m: m.replace(b'"targets": [', b'"targets": [3, '), "targets is not valid"),
        (lambda m: m.replace(b'"targets": [', b'"targets": ["/", '), "its targets are"),
        (lambda m: m.replace(b'"path": "a"', b'"path": "\xff"'), "manifest is damaged"),
        (lambda m: m.replace(b'"path": "a"', b'"path": ' + b"[" * 100_000), "manifest is damaged"),
        (lambda m: m.replace(b'"path": "a"', b'"path": ' + b"1" * 9_000), "manifest is damaged"),
        (
            lambda m: m.replace(b'"path": "a"', b'"path": "' + b"a" * (1 << 20) + b'"'),
            "long a line",
        ),
        (lambda m: m.replace(b"\n", b" "), "cut off"),
        (lambda m: m.replace(b"\n", b" ", 1), "does not start as one"),
    ],
)
def test_a_manifest_that_is_none_is_refused(
    forge: Forge, change: Callable[[bytes], bytes], saying: str
) -> None:
    refuse(forge.around(change(forge.manifest([FILE])), member("a")), saying)


def test_what_is_no_archive_is_refused(forge: Forge) -> None:
    whole = forge.archive([FILE], member("a"))
    refuse(b"", "it is cut off")
    refuse(b"\x1f\x8b" + bytes(600), "not a tar archive")
    refuse(bytes(10240), "does not start with a manifest")
    refuse(member("a") + end_of(0), "does not start with a manifest")
    refuse(whole[:-10240] + bytes(0), "it is cut off")
    refuse(whole[:700], "it is cut off")
    refuse(whole + b"more", "something follows its end")
    refuse(forge.archive([FILE], member("a"), bytes(512) + b"x" * 512), "ends in the middle")
    hidden = member("a", size=1) + b"x" + b"hides" + bytes(506)
    refuse(forge.archive([entry("a", size=1)], hidden), "something hides")


def test_an_archive_that_is_too_much_is_refused(forge: Forge) -> None:
    many = [entry(f"f{number}") for number in range(11)]
    refuse(forge.archive(many), "more than 10 entries", ArchiveLimits(members=10))
    refuse(forge.archive([entry("a", size=1 << 50)]), "bytes, and")
    halves = [entry("a", size=6), entry("b", size=6)]
    refuse(forge.archive(halves), "it holds 12 bytes", ArchiveLimits(bytes=11))
    refuse(forge.archive(many), "manifest is too large", ArchiveLimits(manifest=100))
    deep = [entry("/".join([str(number), *"d" * 2000])) for number in range(3000)]
    refuse(forge.archive(deep), "too deep", ArchiveLimits(members=100_000))
    deleted = [gone("a"), *(gone("/".join(["a", str(n), *"d" * 2000])) for n in range(3000))]
    refuse(forge.archive(deleted), "too deep", ArchiveLimits(members=100_000))


def test_names_in_errors_are_made_visible(forge: Forge) -> None:
    refuse(forge.archive([entry("\x1b[2J\nx")]), r"\\x1b\[2J\\nx: it is missing")
    refuse(forge.archive([entry("a\u202eb")]), r"a\\u202eb: it is missing")


def test_a_target_of_a_strangers_choice_must_be_a_plain_folder(forge: Forge, target: Path) -> None:
    before = layers.found()
    (target / "folder").mkdir()
    (target / "link").symlink_to("folder")
    root = str(layers.root())
    for wrong in (
        ["/"],
        [f"{target}/link"],
        [f"{target}/folder/.."],
        [root],
        ["relative"],
        ["a\0b"],
    ):
        with pytest.raises(ChangesError) as caught:
            load(io.BytesIO(forge.archive([], targets=wrong)))
        assert caught.value.kind.value.startswith("target_")
    with pytest.raises(ChangesError, match="overlaps"):
        both = [str(target), f"{target}/folder"]
        load(io.BytesIO(forge.archive([], targets=both, numbered=True)))
    assert_nothing_is_left(before)
    # The user may name a folder by a link.
    assert load(io.BytesIO(forge.archive([])), [f"{target}/link"]).targets == (f"{target}/folder",)


def test_nothing_outside_of_the_layer_is_touched(forge: Forge, target: Path) -> None:
    fill(target)
    (target / "out").symlink_to("/etc")
    os.chmod(target / "folder", 0o750)
    before = {path: path.lstat() for path in [target, *target.rglob("*")]}
    entries = [
        entry("file", "modified", mode=0o6755),
        entry("folder/new"),
        entry("link", "link", type="link", link="/etc/passwd", mode=0o777),
        entry("out/x"),
        gone("other"),
    ]
    data = forge.archive(
        entries, member("file", mode=0o6755), member("folder/new"),
        member("link", MemberType.LINK, 0o777, link="/etc/passwd"),
        member("other", MemberType.WHITEOUT, 0), member("out/x"),
    )  # fmt: skip

    layer = loaded(data)

    after = {path: path.lstat() for path in [target, *target.rglob("*")]}
    assert {p: (s.st_ino, s.st_mode, s.st_ctime_ns) for p, s in before.items()} == {
        p: (s.st_ino, s.st_mode, s.st_ctime_ns) for p, s in after.items()
    }
    upper = layer.upper(0)
    assert (upper / "out").is_dir() and not (upper / "out").is_symlink()
    assert stat.S_IMODE((upper / "folder").stat().st_mode) == 0o750
    assert stat.S_IMODE((upper / "file").stat().st_mode) == 0o6755
    assert not layer.live


def test_a_home_is_not_given_new_keys(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(forge.target))
    data = forge.archive([entry(".ssh/authorized_keys")], member(".ssh/authorized_keys"))

    changes = capture(loaded(data))

    assert {str(forge.target / ".ssh")} <= set(changes.hidden)
    assert {conflict.kind.value for conflict in drift.conflicts(changes)} == {"hidden"}


def test_a_damaged_list_of_what_was_there_is_an_error(forge: Forge) -> None:
    layer = loaded(forge.archive([FILE], member("a")))
    olds = layer.path / "olds.json"
    for text in ("", "[]", '{"0": []}', '{"0": {"a": 3}}', '{"x": {}}', "[" * 100_000):
        olds.write_text(text)
        with pytest.raises(ChangesError) as caught:
            read_olds(layer)
        assert caught.value.kind is Kind.BAD_ARCHIVE
    olds.unlink()
    assert read_olds(layer) == {}
    os.mkfifo(olds)
    with pytest.raises(ChangesError, match="not a file of ours"):
        read_olds(layer)


# Any bytes at all


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bytes]:
    """A good archive, small enough to be damaged often."""
    target = Path(tempfile.mkdtemp(prefix="podbot-target-", dir="/var/tmp"))
    fill(target)
    script = """
        echo x > file; rm other; rm -r folder; mkdir folder; echo y > folder/one; ln file again
        ln -s x soft; mkfifo pipe; truncate -s 1M holes; echo z >> holes; touch $'\\xff'
    """
    yield saved(work(target, script=script))
    layers.remove(target)


Damage = list[tuple[int, bytes]]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    damage=st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(max_size=12)), max_size=4),
    cut=st.none() | st.integers(0, 1 << 16),
    checksums=st.booleans(),
)
def test_any_damage_is_an_error_and_leaves_nothing(
    whole: bytes, damage: Damage, cut: int | None, checksums: bool
) -> None:
    data = bytearray(whole)
    for place, value in damage:
        at = place % len(data)
        data[at : at + len(value)] = value
    if checksums:  # so that damage gets past the first check
        for at in range(0, len(data) - 511, 512):
            if data[at + 257 : at + 265] == b"ustar\x0000":
                data[at + 148 : at + 156] = b" " * 8
                data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    check(bytes(data[: cut % len(data)] if cut is not None else data))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=2048))
def test_any_bytes_are_an_error_and_leave_nothing(data: bytes) -> None:
    check(data)


Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KINDS = [*map(str, ChangeKind), "along", "time"]


@settings(max_examples=80, deadline=None)
@given(
    paths=st.lists(st.sampled_from(["a", "b", "a/b", "a/b/c", "b/c", "", "c"]), max_size=5),
    kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    types=st.lists(st.sampled_from([*map(str, FileType)]), min_size=5, max_size=5),
    odd=st.none() | st.tuples(st.sampled_from(["new", "old", "path", "mode", "source"]), Json),
)  # fmt: skip
def test_any_manifest_is_taken_or_refused(
    target_of_module: Path, paths: list[str], kinds: list[str], types: list[str],
    odd: tuple[str, object] | None,
) -> None:  # fmt: skip
    entries = []
    for path, kind, type in zip(paths, kinds, types, strict=False):
        one = entry(path, kind, type=type, **({"link": "x"} if type == "link" else {}))
        if kind == "deleted":
            one["new"] = None
        if kind in ("renamed", "hard_link"):
            one["source"] = "b"
        if kind == "time":
            one = {"target": 0, "path": path, "kind": kind, "mtime_ns": 5}
        entries.append(one | ({odd[0]: odd[1]} if odd is not None else {}))
    forge = Forge(target_of_module)
    try:
        manifest = parsed(forge.manifest(entries).splitlines(), ArchiveLimits())
        steps = planned(manifest, ArchiveLimits()).steps
    except ChangesError:
        steps = ()
    check(forge.archive(entries, *(header(step.member) for step in steps if step.member)))


@pytest.fixture(scope="module")
def target_of_module() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="podbot-target-", dir="/var/tmp"))
    yield path
    layers.remove(path)


def check(data: bytes) -> None:
    """It loads, or it is refused and nothing of it is left."""
    before = layers.found()
    try:
        layer = load(io.BytesIO(data), limits=ArchiveLimits(bytes=1 << 26))
    except ChangesError as error:
        assert error.kind is Kind.BAD_ARCHIVE or error.kind.value.startswith("target_")
    else:
        capture(layer)
        layer.discard()
    assert_nothing_is_left(before)


def test_what_is_public_is_what_is_promised() -> None:
    assert sorted(saving.__all__) == [
        "ArchiveLimits",
        "load",
        "not_in_archive",
        "read_olds",
        "save",
    ]


def test_a_target_that_no_path_can_be_is_refused(forge: Forge, target: Path) -> None:
    refuse(forge.archive([], targets=[f"{target}/\ud800"]), "cannot be a path")
    before = layers.found()
    with pytest.raises(ChangesError) as caught:
        load(io.BytesIO(forge.archive([])), [f"{target}/\ud800"])
    assert caught.value.kind is Kind.TARGET_REFUSED
    assert_nothing_is_left(before)


def test_a_time_that_is_there_twice_is_refused(forge: Forge) -> None:
    time = {"target": 0, "path": "folder", "kind": "time", "mtime_ns": 1}
    refuse(forge.archive([time, {**time, "mtime_ns": 2}]), "its time is there twice")


def test_the_targets_of_an_archive_can_be_held_to_a_folder(forge: Forge, target: Path) -> None:
    data = forge.archive([])
    for other in (f"{target}/folder", f"{target}x", "/var/empty"):
        before = layers.found()
        with pytest.raises(ChangesError, match="not in the current folder") as caught:
            load(io.BytesIO(data), within=other)
        assert caught.value.kind is Kind.TARGET_REFUSED
        assert_nothing_is_left(before)
    for other in (str(target), str(target.parent), "/"):
        assert load(io.BytesIO(data), within=other).targets == (str(target),)
    # Folders that the user gave may be anywhere.
    assert load(io.BytesIO(data), [str(target)], within="/var/empty").targets == (str(target),)


@pytest.mark.parametrize("limits", [ArchiveLimits(bytes=4_000_000_000), ArchiveLimits(members=1)])
def test_what_could_never_be_loaded_again_is_not_saved(target: Path, limits: ArchiveLimits) -> None:
    with OverlaySandbox(target) as sandbox:
        assert sandbox.exec(["sh", "-c", "truncate -s 4G image; echo precious > b"]).ok
        layer = sandbox.layer
        assert layer is not None
    out = io.BytesIO()

    with pytest.raises(ChangesError) as caught:
        save(capture(layer), out, limits)

    assert caught.value.kind is Kind.TOO_LARGE
    assert out.getvalue() == b""
    layer.discard()
