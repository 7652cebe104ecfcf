"""A tree reads what lies beneath, quietly where it may, and lets go of what it held."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trees import open_in

from podbot.changes import tree as trees
from podbot.changes.tree import Tree


def read(tree: Tree, path: str) -> bytes:
    fd = tree.descriptor(path)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def test_reading_leaves_the_time_of_the_last_read_alone(target: Path) -> None:
    (target / "file").write_bytes(b"text")
    os.utime(target / "file", ns=(1, 10**18))

    with Tree(target) as tree:
        assert read(tree, "file") == b"text"
        with tree.open("file") as file:
            assert file.read() == b"text"

    assert os.stat(target / "file").st_atime_ns == 1


def test_what_may_not_be_read_quietly_is_read_all_the_same(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target / "file").write_bytes(b"text")
    real = os.open

    def strict(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_NOATIME:
            raise PermissionError(1, "not the owner")
        return real(path, flags, mode, dir_fd=dir_fd)

    with Tree(target) as tree:
        monkeypatch.setattr(trees.os, "open", strict)
        assert read(tree, "file") == b"text"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("file", path)])
def test_only_regular_files_are_opened(target: Path, make: object) -> None:
    assert callable(make)
    (target / "file").write_bytes(b"text")
    make(target / "other")

    with Tree(target) as tree:
        for opener in (tree.open, tree.descriptor):
            with pytest.raises(OSError):
                opener("other")

    assert open_in(target) == []


def test_a_folder_is_found_anew_once_it_was_forgotten(target: Path) -> None:
    (target / "folder").mkdir()
    with Tree(target) as tree:
        first = os.fstat(tree.folder("folder")).st_ino
        (target / "folder").rename(target / "away")
        (target / "folder").mkdir()
        assert os.fstat(tree.folder("folder")).st_ino == first

        tree.forget()

        assert os.fstat(tree.folder("folder")).st_ino == (target / "folder").stat().st_ino


def test_more_folders_than_are_held_are_reached(target: Path) -> None:
    names = [f"folder{number}" for number in range(trees.MAX_FOLDERS + 10)]
    for name in names:
        (target / name).mkdir()
    with Tree(target) as tree:
        for name in (*names, *reversed(names), names[0], names[0]):
            assert os.fstat(tree.folder(name)).st_ino == (target / name).stat().st_ino
