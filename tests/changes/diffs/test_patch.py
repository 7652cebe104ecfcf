"""Patches: a real git takes them on a clean copy and makes the same tree of it."""

from __future__ import annotations

import io
import os
import random
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_capture import changes_of
from two_folders import Node, Nodes, compare, harvest, plant

from podbot.changes._renames import detect
from podbot.changes.diffs import _headers, sides
from podbot.changes.diffs.diff import diff
from podbot.changes.diffs.patch import not_in_patch, patch
from podbot.changes.model import Change, ChangeKind, ChangeSet
from podbot.errors import ChangesError, Kind

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@contextmanager
def two_trees(old: Nodes, new: Nodes) -> Iterator[tuple[Path, Path, Path]]:
    """The old tree, the new one, and a clean copy of the old."""
    with tempfile.TemporaryDirectory(prefix="podbot-patch-", dir="/var/tmp") as name:
        top = Path(name)
        yield plant(top / "old", old), plant(top / "new", new), plant(top / "copy", old)


def apply(folder: Path, text: bytes, *options: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "GIT_CONFIG_NOSYSTEM": "1"}
    environment["GIT_CEILING_DIRECTORIES"] = str(folder.parent)
    command = ["git", "-c", "core.hooksPath=/dev/null", "apply", "--whitespace=nowarn", *options]
    done = subprocess.run(
        command, input=text, cwd=folder, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, (done.stderr, text)


def check(old: Nodes, new: Nodes, look: Callable[[ChangeSet], ChangeSet] = detect) -> bytes:
    """The patch from one tree to the other, after git has taken it there and back."""
    with two_trees(old, new) as (before, after, copy):
        text = b"".join(patch(look(compare(before, after))))
        if text:
            apply(copy, text)
        assert harvest(copy) == new
        if text:
            apply(copy, text, "--reverse")
        assert harvest(copy) == old
        return text


NOISE = random.Random(5).randbytes(200_000)
TEXT = b"".join(b"line %d\n" % number for number in range(40))

PLAIN: Node = ("file", b"a\n")

CASES: dict[str, tuple[Nodes, Nodes]] = {
    "modified": ({b"f": ("file", TEXT)}, {b"f": ("file", TEXT.replace(b"line 7\n", b"x\n"))}),
    "empty added": ({}, {b"e": ("file", b"")}),
    "empty deleted": ({b"e": ("program", b"")}, {}),
    "emptied": ({b"e": ("file", b"x\ny")}, {b"e": ("file", b"")}),
    "a first line": ({b"e": ("file", b"")}, {b"e": ("file", b"x")}),
    "mode": ({b"f": ("file", b"x")}, {b"f": ("program", b"x")}),
    "mode and contents": ({b"f": ("program", b"x")}, {b"f": ("file", b"y")}),
    "last line end": ({b"f": ("file", b"x\ny")}, {b"f": ("file", b"x\ny\n")}),
    "dos": ({b"f": ("file", b"a\r\nb\r\n")}, {b"f": ("file", b"a\nb\r\n\r")}),
    "latin": ({b"f": ("file", b"\xe4\n")}, {b"f": ("file", b"\xe4\n\xff\xfe")}),
    "looks like a patch": (
        {b"f": ("file", b"-- a\n++ b\n@@ -1 +1 @@\n")},
        {b"f": ("file", b"++ b\n-- \ndiff --git a/x b/x\n\\ No newline at end of file\n")},
    ),
    "late nul": ({b"f": ("file", TEXT * 40)}, {b"f": ("file", TEXT * 40 + b"\0\n\0")}),
    "binary": ({b"b": ("file", b"\0old")}, {b"b": ("file", b"\0new" + NOISE)}),
    "binary added": ({}, {b"b": ("program", NOISE)}),
    "binary deleted": ({b"b": ("file", NOISE[:52])}, {}),
    "binary to text": ({b"b": ("file", NOISE)}, {b"b": ("file", b"text\n")}),
    "binary and mode": ({b"b": ("file", b"\0")}, {b"b": ("program", b"\0\0")}),
    "binary moved": ({b"b": ("file", NOISE)}, {b"d/c": ("program", NOISE)}),
    "moved": ({b"a": ("file", TEXT)}, {b"b": ("file", TEXT)}),
    "moved and changed": ({b"a": ("file", TEXT)}, {b"d/b": ("program", TEXT[7:] + b"end")}),
    "moved into its own place's folder": (
        {b"x": ("file", TEXT), b"a": ("file", b"")},
        {b"y/x": ("file", TEXT), b"a": ("file", b"")},
    ),
    "several moved": (
        {b"d/%d" % n: ("file", b"%d\n" % n + TEXT) for n in range(5)},
        {b"e/%d" % n: ("file", b"%d\n" % n + TEXT) for n in range(5)},
    ),
    "link made": ({}, {b"l": ("link", b"/etc/passwd")}),
    "link turned": ({b"l": ("link", b"a\nb")}, {b"l": ("link", b"\xff")}),
    "link gone": ({b"l": ("link", b"x")}, {}),
    "file to link": ({b"x": ("file", TEXT)}, {b"x": ("link", b"y")}),
    "link to program": ({b"x": ("link", b"y")}, {b"x": ("program", NOISE)}),
    "folder to file": (
        {b"d/a": ("file", b"a"), b"d/e/b": ("file", b"b")},
        {b"d": ("file", b"now a file\n")},
    ),
    "folder to link": ({b"d/a": ("file", b"a")}, {b"d": ("link", b"/")}),
    "file to folder": ({b"d": ("file", b"a")}, {b"d/a/b": ("file", b"a")}),
    "link to folder": ({b"d": ("link", b".")}, {b"d/a": ("file", b"a")}),
    "folder traded with a file": (
        {b"d/a": ("file", TEXT), b"e": ("file", b"e")},
        {b"d": ("file", b"e"), b"e/a": ("file", TEXT)},
    ),
    "odd names": (
        {
            b'q"uote': ("file", b"a"), b"new\nline": ("file", b"a"), b"tab\t": ("file", b"a"),
            b"\xff\xfe": ("file", b"a"), b"-rf": ("file", b"a"), b" sp ace ": ("file", b"a"),
            b"back\\slash": ("file", b"a"), b"x b/x": ("file", b"a"), b"\x1b[31m": ("file", b"a"),
            "ä".encode(): ("file", b"a"), b"a" * 255: ("file", b"a"),
        },
        {
            b'q"uote': ("program", b"a"), b"new\nline": ("file", b"b"), b"tab\t2": ("file", b"a"),
            b"\xff\xfe": ("link", b"a"), b"-rf": ("file", b""), b" sp ace ": ("program", b"b"),
            b"x b/x": ("program", b"a"), "ö\n".encode(): ("file", b"a"), b"b" * 255: ("file", b"a"),
            b"/dev/null"[1:]: ("file", b"x"),
        },
    ),
    "a space where git loses its way": ({}, {b" /a": ("file", b""), b"a /b c": ("file", b"")}),
    "a name with a space, mode only": ({b"a b": ("file", b"")}, {b"a b": ("program", b"")}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_git_takes_the_patch_and_makes_the_same_tree(case: str) -> None:
    check(*CASES[case])
    check(*CASES[case], look=lambda changes: changes)


NAMES = st.sampled_from(
    [b"a", b"b", b"c", b'"', b"\n", b"\t ", b"\xff", b"-x", b" ", b"a b", b"\\", b"\xc3\xa4", b"~"]
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
CONTENTS = st.one_of(
    st.lists(st.sampled_from([b"a", b"b\r", b"", b"\xff", b"+ x"]), max_size=12).map(b"\n".join),
    st.binary(max_size=80),
    st.sampled_from([TEXT, TEXT[7:], TEXT + b"end", NOISE[:300]]),
)
NODES = st.one_of(
    st.tuples(st.sampled_from(["file", "program"]), CONTENTS),
    # None that leads into the tree: where it gives way to a folder, git looks through it.
    st.tuples(st.just("link"), st.sampled_from([b"/", b"\xff\n", b"../x", b"nowhere"])),
)


def _without_clashes(nodes: Nodes) -> Nodes:
    """A path may not lie below another one that is a file."""
    return {
        path: node
        for path, node in nodes.items()
        if not any(path != other and path.startswith(other + b"/") for other in nodes)
    }


TREES = st.dictionaries(PATHS, NODES, max_size=8).map(_without_clashes)


@given(TREES, TREES, st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_git_takes_the_patch_of_any_two_trees(old: Nodes, new: Nodes, related: bool) -> None:
    if related:  # most of the old is still there
        new = _without_clashes({**dict(list(old.items())[1:]), **dict(list(new.items())[:3])})
    check(old, new)


def test_a_large_text_travels_as_a_binary_literal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "MAX_BYTES", 100)
    text = check({b"f": ("file", TEXT)}, {b"f": ("file", TEXT + TEXT)})
    assert b"GIT binary patch\nliteral" in text


def test_only_what_was_chosen_is_in_the_patch() -> None:
    old: Nodes = {b"a": ("file", b"1\n"), b"b": ("file", b"1\n")}
    with two_trees(old, {b"a": ("file", b"2\n")}) as (before, after, copy):
        changes = compare(before, after)
        apply(copy, b"".join(patch(changes, [changes.changes[0]])))
        assert harvest(copy) == {b"a": ("file", b"2\n"), b"b": ("file", b"1\n")}


def test_what_git_does_not_see_makes_no_patch() -> None:
    with two_trees({b"f": ("file", b"a")}, {b"f": ("file", b"a")}) as (before, after, _):
        (after / "f").chmod(0o600)
        (after / "empty").mkdir()
        os.mkfifo(after / "pipe")
        changes = compare(before, after)
        assert len(changes) == 3
        assert list(patch(changes)) == []


def test_the_patch_of_a_huge_file_comes_in_pieces(tmp_path: Path) -> None:
    old, new = plant(tmp_path / "old", {}), plant(tmp_path / "new", {})
    with open(new / "noise", "wb") as file:
        for _ in range(12):
            file.write(os.urandom(1024 * 1024))
    pieces = [len(piece) for piece in patch(compare(old, new))]
    assert sum(pieces) > 12 * 1024 * 1024
    assert max(pieces) < 3 * 1024 * 1024


def test_a_file_that_cannot_be_read_stops_the_patch() -> None:
    with two_trees({}, {b"f": ("file", b"a")}) as (before, after, _):
        changes = compare(before, after)
        (after / "f").unlink()
        with pytest.raises(ChangesError) as error:
            list(patch(changes))
        assert error.value.kind is Kind.IO
        assert "/f cannot be read" in error.value.message

    class Vanishing:
        opened = 0

        def open_old(self, change: Change) -> BinaryIO:
            raise FileNotFoundError

        def open_new(self, change: Change) -> BinaryIO:
            self.opened += 1
            if self.opened > 1:
                raise FileNotFoundError(2, "gone")
            return io.BytesIO(b"\0")

    with pytest.raises(ChangesError, match="/f cannot be read: gone"):
        list(patch(replace(changes, contents=Vanishing())))


def test_a_file_that_changes_while_it_is_read_stops_the_patch() -> None:
    class Moving:
        count = 0

        def open_old(self, change: Change) -> BinaryIO:
            raise FileNotFoundError

        def open_new(self, change: Change) -> BinaryIO:
            return Restless(b"\0" * 20)

    class Restless(io.BytesIO):
        def seek(self, offset: int, whence: int = 0) -> int:
            if offset == 0 and whence == 0:
                self.getbuffer()[Moving.count] = 1
                Moving.count += 1
            return super().seek(offset, whence)

    with two_trees({}, {b"f": ("file", b"\0" * 20)}) as (before, after, _):
        changes = replace(compare(before, after), contents=Moving())
        with pytest.raises(ChangesError, match="changed while it was read"):
            list(patch(changes))


def test_targets_are_told_apart_by_their_position() -> None:
    with (
        two_trees({b"f": ("file", b"1")}, {b"f": ("file", b"2")}) as (one, other, copy),
        two_trees({}, {b"f": ("file", NOISE)}) as (empty, full, _),
    ):
        first, second = compare(one, other), compare(empty, full)

        class Both:
            def open_old(self, change: Change) -> BinaryIO:
                return (first if change in first.changes else second).contents.open_old(change)

            def open_new(self, change: Change) -> BinaryIO:
                return (first if change in first.changes else second).contents.open_new(change)

        both = replace(
            first,
            targets=first.targets + second.targets,
            changes=first.changes + second.changes,
            contents=Both(),
        )
        (copy / "0").mkdir()
        (copy / "f").rename(copy / "0" / "f")
        apply(copy, b"".join(patch(both)))
        assert harvest(copy) == {b"0/f": ("file", b"2"), b"1/f": ("file", NOISE)}


def test_git_makes_of_a_copy_what_a_sandbox_made_of_the_target(target: Path) -> None:
    old: Nodes = {b"a": ("file", TEXT), b"d/b": ("file", TEXT), b"d/c": ("link", b"b"), b"e": PLAIN}
    with two_trees(old, {}) as (_, _, copy):
        target.rmdir()
        plant(target, old)
        script = """
            mv a moved; echo more >> moved; chmod +x moved; ln moved again
            rm d/c; ln -s /etc d/c; rm e; mkdir e; head -c 100000 /dev/urandom > e/noise
            cp d/b 'new\nname "quoted"'; rm d/b
        """
        changes = detect(changes_of(target, script))
        assert {c.kind for c in changes} >= {ChangeKind.RENAMED, ChangeKind.HARD_LINK}
        assert any("is another name" in line for line in not_in_patch(changes))
        apply(copy, b"".join(patch(changes)))
        assert target_with(changes, target) == harvest(copy)


def target_with(changes: ChangeSet, target: Path) -> Nodes:
    """The target as it would be with the changes applied, as git sees it."""
    result = harvest(target)
    for change in changes:
        for path in change.paths:
            result.pop(os.fsencode(path), None)
    for change in changes:
        if change.new is None or _headers.git_mode(change.new) is None:
            continue
        name = os.fsencode(change.path)
        if change.new.link is not None:
            result[name] = ("link", os.fsencode(change.new.link))
        else:
            with changes.contents.open_new(change) as file:
                result[name] = ("program" if change.new.executable else "file", file.read())
    return result


# What git does not see


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.mknod(path, stat.S_IFSOCK | 0o600)])
@pytest.mark.parametrize("inner", ["", "/f", "/deep/er"])
def test_what_comes_where_git_sees_nothing_is_left_out_and_told(
    make: Callable[[Path], None], inner: str
) -> None:
    new: Nodes = {b"ok": ("file", b"1\n"), f"special{inner}".encode(): ("file", b"x\n")}
    with two_trees({b"ok": ("file", b"0\n")}, new) as (before, after, copy):
        make(before / "special")
        make(copy / "special")
        changes = compare(before, after)
        apply(copy, b"".join(patch(changes)))
        assert harvest(copy) == {b"ok": ("file", b"1\n")}
        (told,) = (line for line in not_in_patch(changes) if line.startswith(f"special{inner}: "))
        assert told.endswith(", which git does not see")


def test_what_git_has_no_name_for_on_the_way_is_left_out_and_told() -> None:
    name = "l" * 255
    new: Nodes = {b"ok": ("file", b"1\n"), name.encode(): ("file", b"x\n")}
    with two_trees({b"ok": ("file", b"0\n")}, new) as (before, after, copy):
        (before / name).mkdir()
        (copy / name).mkdir()
        changes = compare(before, after)
        apply(copy, b"".join(patch(changes)))
        assert harvest(copy) == {b"ok": ("file", b"1\n")}
        assert any("too long a name" in line for line in not_in_patch(changes))


# Names git refuses


@pytest.mark.parametrize(
    "name",
    [
        b".git/config", b"sub/.git/hooks/pre-commit", b".GIT", b".git /x", b".git...", b"git~1/x",
        b"Git~1", b".git:stream", b".git\\x",
    ],
)  # fmt: skip
def test_names_git_refuses_are_left_out_and_told(name: bytes) -> None:
    new: Nodes = {b"ok": ("file", b"1\n")}
    with two_trees({}, {**new, name: ("file", b"x\n")}) as (before, after, copy):
        changes = compare(before, after)
        apply(copy, b"".join(patch(changes)))
        assert harvest(copy) == new
        assert any("not a name that git writes" in line for line in not_in_patch(changes))


def test_only_names_git_refuses_are_left_out() -> None:
    check(
        {},
        {
            name: ("file", b"x\n")
            for name in (
                b".gitignore",
                b".github/x",
                b"git~2",
                b".gitmodules",
                b"x.git",
                b"a.git/b",
            )
        },
    )


@pytest.mark.parametrize("name", [b".gitmodules", b".GitModules .", b"gitmod~1", b"gi7eba~1"])
def test_a_link_in_place_of_the_modules_file_is_left_out(name: bytes) -> None:
    with two_trees({}, {b"a": ("file", b"1"), name: ("link", b"x")}) as (before, after, copy):
        changes = compare(before, after)
        apply(copy, b"".join(patch(changes)))
        assert harvest(copy) == {b"a": ("file", b"1")}
        assert len(not_in_patch(changes)) == 1


def test_a_file_moved_out_of_a_refused_place_is_simply_new() -> None:
    old: Nodes = {b".git/a": ("file", TEXT)}
    with two_trees(old, {b"a": ("file", TEXT)}) as (before, after, copy):
        changes = detect(compare(before, after))
        assert [change.kind for change in changes if change.path == "a"] == [ChangeKind.RENAMED]
        apply(copy, b"".join(patch(changes)))
        assert harvest(copy) == {**old, b"a": ("file", TEXT)}


def test_what_is_too_large_for_git_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_headers, "MAX_SIZE", 1000)
    large = ("file", NOISE[:1001])
    old: Nodes = {b"a": PLAIN, b"b": large, b"c": large, b"d": PLAIN, b"m": large}
    new: Nodes = {b"a": large, b"b": PLAIN, b"d": ("file", b"d"), b"m": ("program", large[1])}
    with two_trees(old, new) as (before, after, copy):
        changes = compare(before, after)
        apply(copy, b"".join(patch(changes)))
        assert harvest(copy) == {**old, b"d": new[b"d"], b"m": new[b"m"]}
        assert not_in_patch(changes) == [
            f"{name}: too large for git: left out" for name in ("a", "b", "c")
        ]


# What a patch cannot carry


def lost(make: Callable[[Path, Path], object], old: Nodes, new: Nodes) -> list[str]:
    with two_trees(old, new) as (before, after, _):
        make(before, after)
        return not_in_patch(compare(before, after))


def test_a_plain_change_loses_nothing() -> None:
    for case in CASES.values():
        assert lost(lambda old, new: None, *case) == []


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda old, new: (new / "e" / "f").mkdir(parents=True), "an empty folder is made"),
        (lambda old, new: (old / "e" / "f").mkdir(parents=True), "an empty folder is removed"),
    ],
)
def test_empty_folders_are_told(make: Callable[[Path, Path], object], told: str) -> None:
    assert lost(make, {}, {}) == [f"e: {told}", f"e/f: {told}"]


def test_a_folder_that_is_left_empty_is_told() -> None:
    assert lost(lambda old, new: (new / "d").mkdir(), {b"d/f": PLAIN}, {}) == [
        "d: is left empty, and git removes it"
    ]
    assert lost(lambda old, new: None, {b"d/f": PLAIN, b"d/g": PLAIN}, {b"d/g": PLAIN}) == []


def test_special_files_modes_and_attributes_are_told() -> None:
    def make(old: Path, new: Path) -> None:
        os.mkfifo(new / "pipe\n")
        (new / "f").chmod(0o600)
        (new / "d").chmod(0o700)
        (old / "gone").mkdir()
        os.mkfifo(old / "gone" / "pipe")
        os.setxattr(new / "d" / "g", "user.podbot.test", b"1")

    nodes: Nodes = {b"f": PLAIN, b"d/g": PLAIN}
    assert lost(make, {}, nodes) == [
        "d: mode 0700",
        "d/g: attribute user.podbot.test added",
        "f: mode 0600",
        "gone: an empty folder is removed",
        "gone/pipe: a FIFO is removed",
        "pipe\\n: a FIFO is made or changed",
    ]


def test_times_owners_and_hard_links_are_told() -> None:
    with two_trees({b"f": PLAIN}, {b"f": PLAIN}) as (before, after, _):
        (after / "f").chmod(0o755)
        changes = compare(before, after)
        (change,) = changes
        assert change.new is not None and change.old is not None
        new = replace(change.new, mode=change.old.mode, mtime_ns=1)
        for other, told in (
            (replace(change, new=new), ["f: time"]),
            (
                replace(change, new=replace(new, uid=new.uid + 1)),
                [f"f: owner {new.uid}:{new.gid} → {new.uid + 1}:{new.gid}", "f: time"],
            ),
            (
                replace(change, kind=ChangeKind.ADDED, old=None, new=replace(new, uid=54321)),
                [f"f: owner 54321:{new.gid}"],
            ),
            (
                replace(change, kind=ChangeKind.HARD_LINK, old=None, new=new, source="g"),
                ["f: is another name for g and becomes a copy of it"],
            ),
            (
                replace(
                    change,
                    kind=ChangeKind.MODIFIED,
                    old=replace(change.old, xattrs=(("user.a", b""),)),
                    new=replace(new, xattrs=(("user.a", b""),), mode=0o600),
                ),
                ["f: mode 0644 → 0600", "f: attribute user.a"],
            ),
        ):
            assert not_in_patch(replace(changes, changes=(other,))) == told


def test_a_folder_git_cannot_empty_is_not_replaced() -> None:
    old: Nodes = {b"d/f": PLAIN, b"g": PLAIN}
    with two_trees(old, {b"d": PLAIN, b"g": ("file", b"g")}) as (before, after, copy):
        for folder in (before, copy):
            (folder / "d" / "empty").mkdir()
        changes = compare(before, after)
        apply(copy, b"".join(patch(changes)))
        assert harvest(copy) == {b"g": ("file", b"g")}
        assert not_in_patch(changes) == [
            "d: cannot take the place of a folder that holds what git does not see",
            "d/empty: an empty folder is removed",
        ]


def test_a_target_that_is_gone_still_has_a_patch(tmp_path: Path) -> None:
    old, new = plant(tmp_path / "old", {b"d/f": PLAIN}), plant(tmp_path / "new", {})
    changes = compare(old, new)
    shutil.rmtree(old)
    assert not_in_patch(changes) == []


def test_a_patch_has_whole_blob_ids() -> None:
    text = check({b"f": ("file", b"a\n")}, {b"f": ("file", b"b\n")})
    blob = subprocess.run(
        ["git", "hash-object", "--stdin"], input=b"b\n", capture_output=True, check=True
    ).stdout.strip()
    assert b"index " in text
    assert b".." + blob + b" 100644\n" in text


def test_a_patch_begins_with_the_headers_of_its_diff() -> None:
    with two_trees({}, {b"f": PLAIN}) as (before, after, _):
        changes = compare(before, after)
        (change,) = changes
        assert _headers.git_mode(change.new) == "100644"
        text = b"".join(patch(changes)).decode().splitlines()
        assert [line for line in text[:5] if not line.startswith("index")] == list(
            diff(changes, change).headers
        )
