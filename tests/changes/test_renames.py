"""Renames: found by the same or similar contents, never by chance, and never without end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_capture import changes_of
from two_folders import Nodes, compare, harvest, plant

from podbot.changes import _renames
from podbot.changes._renames import detect
from podbot.changes.diffs.diff import diff
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType
from podbot.sandbox import extents

TEXT = b"".join(b"line number %d\n" % number for number in range(40))
OTHER = b"".join(b"something else %d\n" % (number * 7) for number in range(40))
NOISE = bytes(range(256)) * 400


def found(tmp_path: Path, old: Nodes, new: Nodes) -> ChangeSet:
    return detect(compare(plant(tmp_path / "old", old), plant(tmp_path / "new", new)))


def moves(changes: ChangeSet) -> dict[str | None, str]:
    return {c.source: c.path for c in changes if c.kind is ChangeKind.RENAMED}


def test_a_moved_file_is_one_change_with_both_states(tmp_path: Path) -> None:
    changes = found(tmp_path, {b"a": ("file", TEXT)}, {b"b": ("program", TEXT)})
    (change,) = changes
    assert (change.kind, change.source, change.path) == (ChangeKind.RENAMED, "a", "b")
    assert change.old is not None and change.old.mode == 0o644
    assert change.new is not None and change.new.mode == 0o755
    assert change.paths == ("a", "b")
    assert diff(changes, change).similarity == 100


def test_a_moved_and_changed_text_is_found_with_its_diff(tmp_path: Path) -> None:
    new = TEXT.replace(b"number 5\n", b"number five\n")
    changes = found(tmp_path, {b"a": ("file", TEXT)}, {b"d/b": ("file", new)})
    assert moves(changes) == {"a": "d/b"}
    folder, change = changes
    assert (folder.kind, folder.path) == (ChangeKind.ADDED, "d")
    shown = diff(changes, change)
    assert (shown.added, shown.removed) == (1, 1)
    assert shown.similarity is not None and 90 < shown.similarity < 100


def test_a_moved_folder_is_a_move_of_each_file_and_its_own_coming_and_going(tmp_path: Path) -> None:
    old: Nodes = {b"d/%d" % n: ("file", b"%d\n" % n + TEXT) for n in range(4)}
    new: Nodes = {b"e/%d" % n: ("file", b"%d\n" % n + TEXT) for n in range(4)}
    changes = found(tmp_path, old, new)
    assert moves(changes) == {f"d/{n}": f"e/{n}" for n in range(4)}
    rest = [(c.kind, c.path) for c in changes if c.kind is not ChangeKind.RENAMED]
    assert rest == [(ChangeKind.DELETED, "d"), (ChangeKind.ADDED, "e")]


def test_of_several_alike_those_of_the_same_name_belong_together(tmp_path: Path) -> None:
    old: Nodes = {b"x/one": ("file", TEXT), b"x/two": ("file", TEXT), b"x/three": ("file", TEXT)}
    new: Nodes = {b"y/two": ("file", TEXT), b"y/one": ("file", TEXT), b"y/four": ("file", TEXT)}
    assert moves(found(tmp_path, old, new)) == {
        "x/one": "y/one",
        "x/two": "y/two",
        "x/three": "y/four",
    }


def test_the_most_similar_belong_together(tmp_path: Path) -> None:
    old: Nodes = {b"a": ("file", TEXT), b"b": ("file", TEXT + OTHER[:300])}
    new: Nodes = {b"c": ("file", TEXT + OTHER[:330]), b"d": ("file", TEXT[14:])}
    assert moves(found(tmp_path, old, new)) == {"a": "d", "b": "c"}


def test_files_of_lines_that_all_have_are_still_found_by_their_name(tmp_path: Path) -> None:
    old: Nodes = {b"old/%d" % n: ("file", TEXT + b"%d\n" % n) for n in range(12)}
    new: Nodes = {b"new/%d" % n: ("file", TEXT + b"now %d\n" % n) for n in range(12)}
    assert moves(found(tmp_path, old, new)) == {f"old/{n}": f"new/{n}" for n in range(12)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(("file", b""), ("file", b""), id="empty"),
        pytest.param(("file", TEXT), ("file", OTHER), id="different"),
        pytest.param(("file", TEXT), ("file", TEXT * 3), id="much larger"),
        pytest.param(("link", b"there"), ("link", b"there"), id="links"),
        pytest.param(("file", b"there"), ("link", b"there"), id="a file and a link"),
        pytest.param(("file", NOISE), ("file", NOISE[1:] + b"\1"), id="similar binaries"),
    ],
)
def test_what_does_not_belong_together_stays_apart(
    old: tuple[str, bytes], new: tuple[str, bytes], tmp_path: Path
) -> None:
    changes = found(tmp_path, {b"a": old}, {b"b": new})
    assert moves(changes) == {}
    assert len(changes) == 2


def test_hard_links_and_pipes_are_never_moves(tmp_path: Path) -> None:
    old, new = plant(tmp_path / "old", {b"a": ("file", TEXT)}), plant(tmp_path / "new", {})
    os.mkfifo(old / "pipe")
    os.mkfifo(new / "pipe2")
    os.link(old / "a", tmp_path / "elsewhere")
    (new / "b").write_bytes(TEXT)
    changes = compare(old, new)
    assert detect(changes) is changes


def test_a_large_file_that_was_moved_is_compared_to_its_end(tmp_path: Path) -> None:
    tail = NOISE[:-1] + b"\1"
    old: Nodes = {b"a": ("file", NOISE), b"b": ("file", NOISE)}
    assert moves(found(tmp_path / "1", old, {b"c": ("file", NOISE)})) == {"a": "c"}
    assert moves(found(tmp_path / "2", old, {b"c": ("file", tail)})) == {}


def test_there_is_an_end_to_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old: Nodes = {b"a": ("file", NOISE), b"t": ("file", TEXT)}
    new: Nodes = {b"b": ("file", NOISE), b"u": ("file", TEXT + b"more\n")}
    assert moves(found(tmp_path / "1", old, new)) == {"a": "b", "t": "u"}
    monkeypatch.setattr(_renames, "MAX_EXACT", 1000)
    assert moves(found(tmp_path / "2", old, new)) == {"t": "u"}
    monkeypatch.setattr(_renames, "MAX_READ", len(TEXT))
    assert moves(found(tmp_path / "3", old, new)) == {}
    monkeypatch.undo()
    monkeypatch.setattr(_renames, "MAX_SIZE", 100)
    assert moves(found(tmp_path / "4", old, new)) == {"a": "b"}
    monkeypatch.undo()
    monkeypatch.setattr(_renames, "MAX_FILES", 0)
    assert moves(found(tmp_path / "5", old, new)) == {"a": "b"}


def test_files_that_cannot_be_read_are_no_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = plant(tmp_path / "old", {b"a": ("file", TEXT), b"b": ("file", NOISE)})
    new = plant(tmp_path / "new", {b"c": ("file", TEXT), b"d": ("file", NOISE)})
    changes = compare(old, new)
    (new / "c").unlink()
    (new / "d").unlink()
    assert detect(changes) is changes


def test_a_large_file_that_goes_away_meanwhile_is_no_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanished(old: object, new: object) -> bool:
        raise FileNotFoundError

    monkeypatch.setattr(extents, "same", vanished)
    assert moves(found(tmp_path, {b"a": ("file", NOISE)}, {b"b": ("file", NOISE)})) == {}


def test_targets_are_looked_at_one_by_one(tmp_path: Path) -> None:
    one = compare(plant(tmp_path / "1", {b"a": ("file", TEXT)}), plant(tmp_path / "2", {}))
    other = compare(plant(tmp_path / "3", {}), plant(tmp_path / "4", {b"a": ("file", TEXT)}))
    both = ChangeSet(
        one.targets + other.targets, one.changes + other.changes, one.contents, since_ns=0
    )
    assert detect(both) is both


NAMES = st.sampled_from([b"a", b"b", b"c", b"d/a", b"d/e", b"f/a"])
CONTENTS = st.sampled_from([TEXT, TEXT[20:], OTHER, OTHER + TEXT[:60], NOISE, b"", b"x\n"])
TREES = st.dictionaries(NAMES, st.tuples(st.just("file"), CONTENTS), max_size=6)


@given(TREES, TREES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_rename_is_removing_its_source_and_adding_its_path(
    tmp_path_factory: pytest.TempPathFactory, old: Nodes, new: Nodes
) -> None:
    top = tmp_path_factory.mktemp("trees")
    before, after = plant(top / "old", old), plant(top / "new", new)
    plain = compare(before, after)
    changes = detect(plain)
    assert taken_apart(changes) == {(c.kind, c.path): c for c in plain}
    assert [c.path for c in changes] == [
        c.path for c in plain if c.path in {x.path for x in changes}
    ]
    result = harvest(before)
    for change in changes:
        if change.type is FileType.FOLDER:
            continue
        for path in change.paths:
            result.pop(os.fsencode(path), None)
    for change in changes:
        if change.new is not None and change.type is FileType.FILE:
            with changes.contents.open_new(change) as file:
                result[os.fsencode(change.path)] = ("file", file.read())
    assert result == harvest(after)


def taken_apart(changes: ChangeSet) -> dict[tuple[ChangeKind, str], Change]:
    """Each rename as the two changes it was made of."""
    parts = []
    for change in changes:
        if change.kind is ChangeKind.RENAMED:
            assert change.source is not None
            parts.append(Change(ChangeKind.DELETED, change.target, change.source, change.old, None))
            parts.append(Change(ChangeKind.ADDED, change.target, change.path, None, change.new))
        else:
            parts.append(change)
    return {(change.kind, change.path): change for change in parts}


def test_a_move_inside_a_sandbox_is_found_and_shown(target: Path) -> None:
    (target / "old.py").write_bytes(TEXT)
    changes = detect(changes_of(target, "mkdir new; mv old.py new/name.py; echo x >> new/name.py"))
    assert moves(changes) == {"old.py": "new/name.py"}
    (change,) = (c for c in changes if c.kind is ChangeKind.RENAMED)
    assert [line for hunk in diff(changes, change).hunks for line in hunk.lines][-1] == b"+x"


def test_the_end_of_a_file_is_no_line_that_two_files_share(tmp_path: Path) -> None:
    assert moves(found(tmp_path, {b"a": ("file", b"1\n")}, {b"b": ("file", b"x\n")})) == {}
    assert moves(
        found(tmp_path / "2", {b"a": ("file", b"\n\n1\n")}, {b"b": ("file", b"\n\nx\n")})
    ) == {"a": "b"}
