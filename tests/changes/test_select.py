"""Choosing among changes: a path, a folder, a glob; and what they bring along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO

import pytest

from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, State
from podbot.changes.select import select
from podbot.errors import ChangesError, Kind

FILE = State(FileType.FILE, 0o644, 0, 0, 1, 1, 1, 1, 1)
FOLDER = replace(FILE, type=FileType.FOLDER, mode=0o755)


class NoContents:
    def open_old(self, change: Change) -> BinaryIO:
        raise FileNotFoundError(change.path)

    open_new = open_old


def added(path: str, target: str = "/t", state: State = FILE) -> Change:
    return Change(ChangeKind.ADDED, target, path, None, state)


def deleted(path: str, state: State = FILE) -> Change:
    return Change(ChangeKind.DELETED, "/t", path, state, None)


def a_set(*changes: Change, times: Sequence[str] = ()) -> ChangeSet:
    targets = tuple(dict.fromkeys(["/t", *(change.target for change in changes)]))
    return ChangeSet(targets, changes, NoContents(), 0, folder_times=dict.fromkeys(times, 7))


def chosen(changes: ChangeSet, *patterns: str) -> list[str]:
    return [change.path for change in select(changes, patterns)]


TREE = a_set(
    added("README.md"),
    added("setup.py"),
    added("src/app.py"),
    added("src/deep/er/x.py"),
    added("src/deep/er/x.txt"),
    added("tests/test_app.py"),
    added("odd[1]"),
    added(".hidden"),
)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("README.md", ["README.md"]),
        ("./README.md", ["README.md"]),
        ("src", ["src/app.py", "src/deep/er/x.py", "src/deep/er/x.txt"]),
        ("src/", ["src/app.py", "src/deep/er/x.py", "src/deep/er/x.txt"]),
        ("/t/src/deep", ["src/deep/er/x.py", "src/deep/er/x.txt"]),
        ("*.py", ["setup.py"]),
        ("**/*.py", ["setup.py", "src/app.py", "src/deep/er/x.py", "tests/test_app.py"]),
        ("src/**/x.*", ["src/deep/er/x.py", "src/deep/er/x.txt"]),
        ("src/*", ["src/app.py", "src/deep/er/x.py", "src/deep/er/x.txt"]),
        ("s*/d?ep/**/*.txt", ["src/deep/er/x.txt"]),
        ("[rs]*.py", ["setup.py"]),
        ("odd[1]", ["odd[1]"]),
        (".h*", [".hidden"]),
        ("/t/*.py", ["setup.py"]),
        ("/**/er", ["src/deep/er/x.py", "src/deep/er/x.txt"]),
        ("**", [change.path for change in TREE]),
        (".", [change.path for change in TREE]),
    ],
)
def test_a_pattern_means_paths(pattern: str, expected: list[str]) -> None:
    assert chosen(TREE, pattern) == expected


def test_no_pattern_means_everything() -> None:
    assert select(TREE, ()) is TREE


@pytest.mark.parametrize("pattern", ["readme.md", "*.PY", "src/app", "../t/setup.py", "er", "/s"])
def test_a_pattern_that_means_nothing_is_named(pattern: str) -> None:
    with pytest.raises(ChangesError) as caught:
        select(TREE, ["README.md", pattern])

    assert caught.value.kind is Kind.NOTHING_SELECTED
    assert repr(pattern) in caught.value.message
    assert "README.md" not in caught.value.message


def test_new_folders_come_along_and_others_do_not() -> None:
    changes = a_set(
        added("new", state=FOLDER),
        added("new/a"),
        added("new/er", state=FOLDER),
        added("new/er/b"),
        Change(ChangeKind.MODE, "/t", "old", FOLDER, replace(FOLDER, mode=0o700)),
        added("old/c"),
        Change(ChangeKind.REPLACED, "/t", "turned", FILE, FOLDER),
        added("turned/d"),
    )

    assert chosen(changes, "**/b", "old/c", "turned/d") == [
        "new", "new/er", "new/er/b", "old/c", "turned", "turned/d",
    ]  # fmt: skip


def test_a_folder_that_goes_takes_what_is_in_it() -> None:
    changes = a_set(deleted("gone", FOLDER), deleted("gone/a"), deleted("stays"))

    assert chosen(changes, "go*") == ["gone", "gone/a"]
    assert chosen(changes, "gone/a") == ["gone/a"]


def test_something_renamed_is_meant_by_either_name() -> None:
    renamed = Change(ChangeKind.RENAMED, "/t", "after", FILE, FILE, "before/it")
    changes = a_set(renamed, added("other"))

    assert chosen(changes, "after") == chosen(changes, "before") == ["after"]


def test_targets_are_told_apart_by_absolute_paths() -> None:
    changes = a_set(added("x", "/one"), added("x", "/two"))

    assert [change.where for change in select(changes, ["/two/x"])] == ["/two/x"]
    assert [change.where for change in select(changes, ["x"])] == ["/one/x", "/two/x"]


def test_times_of_folders_stay_only_where_all_was_chosen() -> None:
    changes = a_set(
        added("a/one"), added("b/one"), added("b/two"), added("c"),
        times=["/t", "/t/a", "/t/b", "/t/only-touched", "/t/a/only-touched"],
    )  # fmt: skip

    assert select(changes, ["a", "b/one"]).folder_times == {"/t/a": 7, "/t/a/only-touched": 7}


def test_a_name_made_to_be_slow_is_not() -> None:
    changes = a_set(*(added("a" * 250 + str(number)) for number in range(200)))

    with pytest.raises(ChangesError):
        select(changes, ["*a*a*a*a*a*a*a*a*a*a*b"])


def test_a_name_with_brackets_means_only_itself() -> None:
    changes = a_set(added("app/[id].ts"), added("app/i.ts"), added("app/[x]/y"), added("app/x/y"))

    assert chosen(changes, "app/[id].ts") == ["app/[id].ts"]
    assert chosen(changes, "/t/app/[x]/") == ["app/[x]/y"]
    assert chosen(changes, "app/[i].ts") == ["app/i.ts"]


def test_nothing_is_no_pattern() -> None:
    with pytest.raises(ChangesError) as caught:
        select(TREE, [""])

    assert caught.value.kind is Kind.NOTHING_SELECTED
