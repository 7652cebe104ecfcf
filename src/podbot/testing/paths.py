"""Paths: strange names that must work, names that cannot be, and ways out that must not be."""

# ruff: noqa: S101 - a suite asserts

from __future__ import annotations

import os

import pytest

from podbot.errors import Kind
from podbot.sandbox import Sandbox
from podbot.testing.base import Base, file_refused, needs_confinement, refused

NAMES = {
    "spaces": "a b  c",
    "leading dash": "-rf",
    "quotes": 'it\'s "quoted" $HOME `id`',
    "newline": "two\nlines",
    "control characters": "\x01\x1b[31m\x7f",
    "backslash": "back\\slash",
    "glob characters": "[a]*?{b}",
    "255 bytes": "n" * 255,
    "255 bytes of é": "é" * 127 + "x",
    "astral": "🎉.txt",
    "not UTF-8": os.fsdecode(b"caf\xe9\xff"),
    "dots": "...",
    "trailing space": "x ",
    "direction override": "\u202etxt.exe",
}


class PathTests(Base):
    """What a path may be."""

    @pytest.mark.parametrize("what", NAMES)
    def test_a_strange_name_works_in_every_verb(self, sandbox: Sandbox, what: str) -> None:
        name = NAMES[what]
        sandbox.write(f"folder/{name}", b"needle")
        assert sandbox.read(f"folder/{name}") == b"needle"
        assert sandbox.stat(f"folder/{name}").path == f"folder/{name}"
        assert [entry.path for entry in sandbox.list("folder")] == [f"folder/{name}"]
        assert sandbox.glob("*", "folder") == [f"folder/{name}"]
        assert [match.path for match in sandbox.grep("needle").matches] == [f"folder/{name}"]
        sandbox.symlink("link", f"folder/{name}")
        assert sandbox.read("link") == b"needle"
        assert sandbox.stat("link", follow=False).link_target == f"folder/{name}"
        sandbox.move(f"folder/{name}", name)
        sandbox.edit(name, "needle", "found")
        sandbox.append(name, b"!")
        assert sandbox.read(name) == b"found!"
        sandbox.remove(name)
        sandbox.mkdir(f"{name}/{name}")
        sandbox.remove(name, recursive=True)
        assert {entry.path for entry in sandbox.list()} == {"folder", "link"}

    def test_names_that_look_alike_are_different(self, sandbox: Sandbox) -> None:
        for name in ("é", "e\u0301", "É", "file", "FILE"):
            sandbox.write(name, name)
        assert len(sandbox.list()) == 5
        assert sandbox.read("é") == "é".encode()

    @pytest.mark.parametrize(
        "path",
        ["", "a\0b", "n" * 256, "é" * 128, "x/" * 3000 + "x", "\ud800"],
        ids=["empty", "NUL", "256 bytes", "256 bytes of é", "6001 bytes", "half a character"],
    )
    def test_what_is_no_path_is_refused(self, sandbox: Sandbox, path: str) -> None:
        for act in (
            lambda: sandbox.read(path),
            lambda: sandbox.write(path, b""),
            lambda: sandbox.mkdir(path),
            lambda: sandbox.stat(path),
            lambda: sandbox.remove(path, missing_ok=True),
            lambda: sandbox.move(path, "x"),
        ):
            with file_refused(Kind.BAD_PATH):
                act()

    def test_an_absolute_path_below_the_working_folder_is_the_same_file(
        self, sandbox: Sandbox
    ) -> None:
        sandbox.write(f"{sandbox.workdir}/folder/file", b"x")
        assert sandbox.read("folder/file") == b"x"
        assert sandbox.read("./folder//file") == b"x"
        assert sandbox.read("folder/../folder/./file") == b"x"

    def test_a_path_may_be_an_object(self, sandbox: Sandbox) -> None:
        from pathlib import PurePosixPath

        sandbox.write(PurePosixPath("folder/file"), b"x")
        assert sandbox.read(PurePosixPath("folder") / "file") == b"x"

    def test_links_that_lead_in_a_circle_end(self, sandbox: Sandbox) -> None:
        sandbox.symlink("one", "two")
        sandbox.symlink("two", "one")
        sandbox.symlink("self", "self/x")
        for path in ("one", "one/x", "self"):
            with file_refused(Kind.PATH_ESCAPE, Kind.IO):
                sandbox.read(path)
        assert {entry.path for entry in sandbox.list(recursive=True)} == {"one", "two", "self"}

    def test_a_link_to_the_folder_above_is_not_walked(self, sandbox: Sandbox) -> None:
        sandbox.write("folder/file", b"needle")
        sandbox.symlink("folder/loop", "..")
        assert len(sandbox.list(recursive=True)) == 3
        assert sandbox.glob("**/file") == ["folder/file"]
        assert len(sandbox.grep("needle").matches) == 1

    def test_a_very_deep_tree_is_walked_whole_and_removed(self, sandbox: Sandbox) -> None:
        depth = 1100  # deeper than an interpreter's stack and a process's descriptors
        sandbox.mkdir("d/" * depth)
        sandbox.write("d/" * depth + "file", b"needle")
        assert len(sandbox.list(recursive=True)) == depth + 1
        assert sandbox.glob("**/file") == ["d/" * depth + "file"]
        assert len(sandbox.grep("needle").matches) == 1
        sandbox.remove("d", recursive=True)
        assert sandbox.list() == []

    @needs_confinement
    @pytest.mark.parametrize(
        "path",
        ["../x", "..", "a/../../x", "/etc/passwd", "/", "out/passwd", "up/x", "far/passwd"],
    )
    def test_no_verb_leaves_the_working_folder(self, sandbox: Sandbox, path: str) -> None:
        sandbox.mkdir("a")
        sandbox.write("mine", b"x")
        sandbox.symlink("out", "/etc")
        sandbox.symlink("up", "..")
        sandbox.symlink("far", "a/../../../../../../../../../../etc")
        for act in (
            lambda: sandbox.read(path),
            lambda: sandbox.stat(path),
            lambda: sandbox.list(path),
            lambda: sandbox.glob("*", path),
            lambda: sandbox.grep("x", path),
            lambda: sandbox.write(path + "/new", b"x"),
            lambda: sandbox.append(path + "/new", b"x"),
            lambda: sandbox.edit(path, "x", "y"),
            lambda: sandbox.mkdir(path + "/new"),
            lambda: sandbox.symlink(path + "/new", "x"),
            lambda: sandbox.move("mine", path + "/new"),
            lambda: sandbox.move(path + "/new", "mine"),
            lambda: sandbox.remove(path + "/new"),
        ):
            with file_refused(Kind.PATH_ESCAPE):
                act()
        assert sandbox.read("mine") == b"x"

    @needs_confinement
    def test_a_link_that_leads_out_can_be_seen_and_removed(self, sandbox: Sandbox) -> None:
        sandbox.symlink("out", "/etc/passwd")
        assert sandbox.stat("out", follow=False).link_target == "/etc/passwd"
        assert sandbox.exists("out")
        with refused(Kind.PATH_ESCAPE):
            sandbox.write("out", b"x")
        sandbox.remove("out")
        assert not sandbox.exists("out")
