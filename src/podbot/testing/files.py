"""The file verbs: reading, writing, editing, listing, moving, removing, linking."""

# ruff: noqa: S101 - a suite asserts

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podbot.errors import Kind
from podbot.sandbox import Limits, Sandbox
from podbot.testing.base import LEISURELY, Base, file_refused, needs_processes, refused

CONTENTS = {
    "empty": b"",
    "text": "Grüße, 世界 🎉\n".encode(),
    "every byte": bytes(range(256)) * 3,
    "one part": b"p" * (512 * 1024),
    "several parts": os.urandom(3 * 1024 * 1024 + 17),
}


class FileTests(Base):
    """Files and folders."""

    # Reading and writing

    @pytest.mark.parametrize("what", CONTENTS)
    def test_what_is_written_is_read(self, sandbox: Sandbox, what: str) -> None:
        sandbox.write("file", CONTENTS[what])
        assert sandbox.read("file") == CONTENTS[what]
        assert sandbox.stat("file").size == len(CONTENTS[what])

    def test_text_is_written_as_utf8(self, sandbox: Sandbox) -> None:
        sandbox.write("file", "é🎉")
        assert sandbox.read("file") == "é🎉".encode()

    def test_half_a_character_is_refused(self, sandbox: Sandbox) -> None:
        with refused(Kind.INVALID):
            sandbox.write("file", "\ud800")
        assert not sandbox.exists("file")

    def test_writing_replaces_the_whole_file(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"long content")
        sandbox.write("file", b"short")
        assert sandbox.read("file") == b"short"

    def test_writing_makes_the_folders_on_the_way(self, sandbox: Sandbox) -> None:
        sandbox.write("a/b/c/file", b"x")
        assert sandbox.read("a/b/c/file") == b"x"

    def test_an_exclusive_write_does_not_touch_what_is_there(self, sandbox: Sandbox) -> None:
        sandbox.write("new", b"1", exclusive=True)
        with file_refused(Kind.EXISTS):
            sandbox.write("new", b"2", exclusive=True)
        with file_refused(Kind.EXISTS):
            sandbox.write("new", b"2" * 2_000_000, exclusive=True)
        assert sandbox.read("new") == b"1"

    def test_an_exclusive_write_does_not_go_through_a_dangling_link(self, sandbox: Sandbox) -> None:
        sandbox.symlink("link", "nowhere")
        with file_refused(Kind.EXISTS):
            sandbox.write("link", b"x", exclusive=True)
        assert not sandbox.exists("nowhere")

    def test_an_existing_file_keeps_its_mode(self, sandbox: Sandbox) -> None:
        sandbox.write("script", b"old", mode=0o750)
        sandbox.write("script", b"new")
        sandbox.append("script", b"er")
        sandbox.edit("script", "new", "old")
        assert sandbox.stat("script").mode == 0o750
        sandbox.write("script", b"x" * 2_000_000, mode=0o600)
        assert sandbox.stat("script").mode == 0o600

    def test_a_new_file_is_not_executable(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"x")
        assert sandbox.stat("file").mode & 0o111 == 0

    @pytest.mark.parametrize("mode", [-1, 0o10000])
    def test_a_mode_that_is_none_is_refused(self, sandbox: Sandbox, mode: int) -> None:
        with file_refused(Kind.INVALID):
            sandbox.write("file", b"x", mode=mode)

    def test_writing_to_a_link_writes_what_it_points_to(self, sandbox: Sandbox) -> None:
        sandbox.write("real", b"old")
        sandbox.symlink("link", "real")
        sandbox.write("link", b"new")
        sandbox.append("link", b"+")
        sandbox.edit("link", "+", "!")
        assert sandbox.read("real") == b"new!"
        assert sandbox.stat("link", follow=False).kind == "link"

    def test_a_folder_cannot_be_written(self, sandbox: Sandbox) -> None:
        sandbox.mkdir("folder")
        for path in ("folder", "folder/", "new/"):
            with file_refused(Kind.IS_DIRECTORY):
                sandbox.write(path, b"x")
        with file_refused(Kind.IS_DIRECTORY):
            sandbox.append("folder", b"x")

    def test_nothing_can_be_below_a_file(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"x")
        for act in (
            lambda: sandbox.write("file/below", b"x"),
            lambda: sandbox.read("file/below"),
            lambda: sandbox.mkdir("file/below/deep"),
            lambda: sandbox.list("file"),
            lambda: sandbox.stat("file/below"),
        ):
            with file_refused(Kind.NOT_DIRECTORY):
                act()
        assert not sandbox.exists("file/below")

    def test_a_write_leaves_nothing_else_behind(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"x")
        sandbox.write("file", b"y" * 2_000_000)
        assert [entry.path for entry in sandbox.list()] == ["file"]

    def test_append_adds_to_the_end(self, sandbox: Sandbox) -> None:
        sandbox.append("folder/log", b"one")
        sandbox.append("folder/log", "zwö")
        sandbox.append("folder/log", b"3" * 1_500_000)
        assert sandbox.read("folder/log") == b"one" + "zwö".encode() + b"3" * 1_500_000

    def test_reading_a_piece(self, sandbox: Sandbox) -> None:
        data = bytes(range(200)) * 10_000
        sandbox.write("file", data)
        assert sandbox.read("file", offset=5, size=10) == data[5:15]
        assert sandbox.read("file", offset=1_999_990) == data[-10:]
        assert sandbox.read("file", offset=1, size=1_500_000) == data[1:1_500_001]
        assert sandbox.read("file", size=0) == b""
        assert sandbox.read("file", offset=5_000_000) == b""
        assert sandbox.read("file", size=5_000_000) == data

    @pytest.mark.parametrize("options", [{"offset": -1}, {"size": -1}, {"max_bytes": -1}])
    def test_a_piece_that_cannot_be_is_refused(
        self, sandbox: Sandbox, options: dict[str, int]
    ) -> None:
        sandbox.write("file", b"x")
        with file_refused(Kind.INVALID):
            sandbox.read("file", **options)

    def test_reading_stops_at_the_limit(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"x" * 1000)
        assert len(sandbox.read("file", max_bytes=1000)) == 1000
        with file_refused(Kind.TOO_LARGE):
            sandbox.read("file", max_bytes=999)
        sandbox.write("large", b"x" * 2_000_000)
        with file_refused(Kind.TOO_LARGE):
            sandbox.read("large", max_bytes=1_000_000)

    def test_what_cannot_be_read_is_refused_by_kind(self, sandbox: Sandbox) -> None:
        sandbox.mkdir("folder")
        sandbox.symlink("dangling", "nowhere")
        with file_refused(Kind.NOT_FOUND):
            sandbox.read("missing")
        with file_refused(Kind.NOT_FOUND):
            sandbox.read("dangling")
        with file_refused(Kind.NOT_FOUND):
            sandbox.read("missing/below")
        with file_refused(Kind.IS_DIRECTORY):
            sandbox.read("folder")

    def test_a_file_over_the_size_limit_is_refused_and_the_old_one_stays(self) -> None:
        with self.open_sandbox(limits=Limits(file_size=1_000_000)) as sandbox:
            sandbox.write("file", b"x" * 1_000_000)
            for size in (1_000_001, 3_000_000):
                with refused(Kind.LIMIT):
                    sandbox.write("file", b"y" * size)
            assert sandbox.read("file") == b"x" * 1_000_000
            with refused(Kind.LIMIT):
                sandbox.append("file", b"z")
            assert [entry.path for entry in sandbox.list()] == ["file"]

    @needs_processes
    def test_what_is_not_a_regular_file_is_refused_without_waiting(self, sandbox: Sandbox) -> None:
        sandbox.exec(["mkfifo", "fifo"]).check()
        for act in (
            lambda: sandbox.read("fifo"),
            lambda: sandbox.write("fifo", b"x"),
            lambda: sandbox.append("fifo", b"x"),
            lambda: sandbox.edit("fifo", "a", "b"),
            lambda: sandbox.grep("a", "fifo"),
        ):
            with file_refused(Kind.NOT_A_FILE):
                act()
        assert sandbox.stat("fifo").kind == "fifo"
        sandbox.write("file", b"needle\n")
        assert [match.path for match in sandbox.grep("needle").matches] == ["file"]
        sandbox.remove("fifo")

    # Editing

    @pytest.mark.parametrize(
        ("before", "old", "new", "after"),
        [
            (b"a\r\nb\r\nc", "b", "B", b"a\r\nB\r\nc"),
            (b"no final newline", "final", "last", b"no last newline"),
            (b"x\r\n\r\ny\n", "\r\n\r\n", "\n", b"x\ny\n"),
            ("🎉 party 🎉 end".encode(), "party", "🦉", "🎉 🦉 🎉 end".encode()),
            (b"\x00\xff\xfe old \x80\x81", b" old ", b"\x00", b"\x00\xff\xfe\x00\x80\x81"),
            (b"keep remove keep", " remove", "", b"keep keep"),
            (b"all", "all", "", b""),
            (b"\xef\xbb\xbfbom", "bom", "mob", b"\xef\xbb\xbfmob"),
            (b"a\\n.*b", "\\n.*", r"\1", b"a\\1b"),
        ],
    )
    def test_an_edit_changes_what_it_says_and_no_other_byte(
        self, sandbox: Sandbox, before: bytes, old: str | bytes, new: str | bytes, after: bytes
    ) -> None:
        sandbox.write("file", before)
        assert sandbox.edit("file", old, new) == 1
        assert sandbox.read("file") == after

    def test_an_edit_that_is_not_clear_changes_nothing(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"one two one aaa")
        with file_refused(Kind.NO_MATCH):
            sandbox.edit("file", "three", "x")
        with file_refused(Kind.NOT_UNIQUE):
            sandbox.edit("file", "one", "x")
        with file_refused(Kind.NOT_UNIQUE):
            sandbox.edit("file", "aa", "x")  # the two places overlap
        with file_refused(Kind.INVALID):
            sandbox.edit("file", "", "x")
        with file_refused(Kind.NOT_FOUND):
            sandbox.edit("missing", "a", "b")
        assert sandbox.read("file") == b"one two one aaa"

    def test_an_edit_may_replace_all(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"one two one")
        assert sandbox.edit("file", "one", "1", replace_all=True) == 2
        assert sandbox.read("file") == b"1 two 1"

    def test_a_large_file_can_be_edited(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"x" * 3_000_000 + b"needle" + b"y" * 1_000_000)
        assert sandbox.edit("file", "needle", "n") == 1
        assert sandbox.read("file") == b"x" * 3_000_000 + b"n" + b"y" * 1_000_000

    def test_edits_agree_with_python(self, sandbox: Sandbox) -> None:
        pieces = st.lists(st.sampled_from([b"a", b"b", b"\r\n", b"\xff", "é".encode()]))
        text = pieces.map(b"".join)

        @settings(LEISURELY, max_examples=40)
        @given(text, text.filter(bool), text)
        def check(before: bytes, old: bytes, new: bytes) -> None:
            sandbox.write("file", before)
            if old in before:
                assert sandbox.edit("file", old, new, replace_all=True) == before.count(old)
            else:
                with file_refused(Kind.NO_MATCH):
                    sandbox.edit("file", old, new, replace_all=True)
            assert sandbox.read("file") == before.replace(old, new)

        check()

    # Looking

    def test_stat_tells_the_facts(self, sandbox: Sandbox) -> None:
        sandbox.write("folder/file", b"12345", mode=0o640)
        sandbox.symlink("link", "folder/file")
        found = sandbox.stat("folder/file")
        assert (found.path, found.kind, found.size, found.mode, found.link_target) == (
            "folder/file", "file", 5, 0o640, None,
        )  # fmt: skip
        assert found.is_file
        assert found.mtime_ns > 0
        assert sandbox.stat("folder").is_dir
        assert sandbox.stat(".").is_dir
        assert sandbox.stat("link").size == 5
        link = sandbox.stat("link", follow=False)
        assert (link.kind, link.link_target) == ("link", "folder/file")

    def test_stat_of_nothing_is_refused(self, sandbox: Sandbox) -> None:
        sandbox.symlink("dangling", "nowhere")
        with file_refused(Kind.NOT_FOUND):
            sandbox.stat("missing")
        with file_refused(Kind.NOT_FOUND):
            sandbox.stat("dangling")
        assert sandbox.stat("dangling", follow=False).link_target == "nowhere"

    def test_exists_sees_everything_that_is_there(self, sandbox: Sandbox) -> None:
        sandbox.write("folder/file", b"")
        sandbox.symlink("dangling", "nowhere")
        there = ["folder", "folder/file", "dangling", "."]
        assert [path for path in (*there, "nowhere", "folder/x") if sandbox.exists(path)] == there

    def test_a_listing_shows_each_entry_once_and_in_order(self, sandbox: Sandbox) -> None:
        sandbox.write("b/inner", b"1234")
        sandbox.write("b.txt", b"")
        sandbox.write(".hidden", b"")
        sandbox.write("a", b"12", mode=0o700)
        sandbox.symlink("link", "b")
        found = sandbox.list()
        assert [(entry.path, entry.kind) for entry in found] == [
            (".hidden", "file"), ("a", "file"), ("b", "dir"), ("b.txt", "file"), ("link", "link"),
        ]  # fmt: skip
        assert (found[1].size, found[1].mode) == (2, 0o700)
        assert found[4].link_target == "b"

    def test_a_recursive_listing_follows_each_folder_by_its_entries(self, sandbox: Sandbox) -> None:
        for path in ("b/z/deep", "b/a", "b.txt", "a"):
            sandbox.write(path, b"")
        sandbox.mkdir("empty")
        sandbox.symlink("link", "b")
        assert [entry.path for entry in sandbox.list(recursive=True)] == [
            "a", "b", "b/a", "b/z", "b/z/deep", "b.txt", "empty", "link",
        ]  # fmt: skip

    def test_a_listing_spells_paths_as_it_was_asked(self, sandbox: Sandbox) -> None:
        sandbox.write("folder/sub/file", b"")
        root = sandbox.workdir
        for asked, shown in (
            ("folder", "folder/sub"),
            ("folder/", "folder/sub"),
            ("folder/sub/..", "folder/sub/../sub"),
            (f"{root}/folder", f"{root}/folder/sub"),
        ):
            assert [entry.path for entry in sandbox.list(asked)] == [shown]
        assert [entry.path for entry in sandbox.list(root, recursive=True)] == [
            f"{root}/folder", f"{root}/folder/sub", f"{root}/folder/sub/file",
        ]  # fmt: skip

    def test_a_link_to_a_folder_can_be_listed_by_name(self, sandbox: Sandbox) -> None:
        sandbox.write("folder/file", b"")
        sandbox.symlink("link", "folder")
        assert [entry.path for entry in sandbox.list("link")] == ["link/file"]

    def test_what_cannot_be_listed_is_refused(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"")
        with file_refused(Kind.NOT_FOUND):
            sandbox.list("missing")
        with file_refused(Kind.NOT_DIRECTORY):
            sandbox.list("file")

    def test_a_listing_stops_at_its_limit(self, sandbox: Sandbox) -> None:
        for number in range(6):
            sandbox.write(f"folder/{number}", b"")
        assert len(sandbox.list("folder", max_entries=6)) == 6
        with file_refused(Kind.TOO_LARGE):
            sandbox.list("folder", max_entries=5)
        with file_refused(Kind.TOO_LARGE):
            sandbox.list(recursive=True, max_entries=6)

    # Moving and removing

    def test_files_folders_and_links_can_be_moved(self, sandbox: Sandbox) -> None:
        sandbox.write("folder/file", b"x")
        sandbox.symlink("link", "folder/file")
        sandbox.move("folder", "moved")
        sandbox.move("moved/file", "moved/renamed")
        sandbox.move("link", "new/place/link")
        assert sandbox.read("moved/renamed") == b"x"
        assert not sandbox.exists("folder")
        assert sandbox.stat("new/place/link", follow=False).link_target == "folder/file"

    def test_a_move_overwrites_only_when_told_to(self, sandbox: Sandbox) -> None:
        sandbox.write("one", b"1")
        sandbox.write("two", b"2")
        sandbox.symlink("dangling", "nowhere")
        for there in ("two", "dangling"):
            with file_refused(Kind.EXISTS):
                sandbox.move("one", there)
        assert sandbox.read("two") == b"2"
        sandbox.move("one", "two", overwrite=True)
        assert sandbox.read("two") == b"1"
        assert not sandbox.exists("one")

    def test_a_move_onto_itself_changes_nothing(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"x")
        sandbox.move("file", "file", overwrite=True)
        assert sandbox.read("file") == b"x"

    def test_a_move_that_cannot_be_changes_nothing(self, sandbox: Sandbox) -> None:
        sandbox.write("full/file", b"x")
        sandbox.write("other/file", b"y")
        sandbox.write("single", b"z")
        with file_refused(Kind.NOT_FOUND):
            sandbox.move("missing", "new")
        with refused(Kind.INVALID, Kind.BAD_PATH):
            sandbox.move("full", "full/inside")
        with refused(Kind.NOT_EMPTY, Kind.EXISTS):
            sandbox.move("full", "other", overwrite=True)
        with refused(Kind.IS_DIRECTORY):
            sandbox.move("single", "full", overwrite=True)
        with refused(Kind.NOT_DIRECTORY):
            sandbox.move("full", "single", overwrite=True)
        found = {entry.path for entry in sandbox.list(recursive=True) if entry.is_file}
        assert found == {"full/file", "other/file", "single"}

    def test_removing_a_file_a_link_and_an_empty_folder(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"x")
        sandbox.write("folder/kept", b"x")
        sandbox.mkdir("empty")
        sandbox.symlink("to_file", "folder/kept")
        sandbox.symlink("to_folder", "folder")
        sandbox.symlink("dangling", "nowhere")
        for path in ("file", "empty", "to_file", "dangling"):
            sandbox.remove(path)
        sandbox.remove("to_folder", recursive=True)
        assert [entry.path for entry in sandbox.list(recursive=True)] == ["folder", "folder/kept"]

    def test_a_full_folder_is_removed_only_when_told_to(self, sandbox: Sandbox) -> None:
        sandbox.write("kept", b"x")
        sandbox.write("folder/sub/file", b"x", mode=0o400)
        sandbox.symlink("folder/link", "../kept")
        with file_refused(Kind.NOT_EMPTY):
            sandbox.remove("folder")
        sandbox.remove("folder", recursive=True)
        assert [entry.path for entry in sandbox.list(recursive=True)] == ["kept"]

    def test_removing_nothing_is_refused_unless_allowed(self, sandbox: Sandbox) -> None:
        for path in ("missing", "missing/below"):
            with file_refused(Kind.NOT_FOUND):
                sandbox.remove(path)
            with file_refused(Kind.NOT_FOUND):
                sandbox.remove(path, recursive=True)
            sandbox.remove(path, missing_ok=True)

    def test_the_working_folder_cannot_be_removed(self, sandbox: Sandbox) -> None:
        sandbox.write("folder/file", b"x")
        for path in (".", "./", "folder/..", sandbox.workdir, sandbox.workdir + "/"):
            with refused(Kind.INVALID):
                sandbox.remove(path, recursive=True, missing_ok=True)
        assert sandbox.read("folder/file") == b"x"

    # Folders and links

    def test_folders_are_made_with_those_above(self, sandbox: Sandbox) -> None:
        sandbox.mkdir("a/b/c")
        sandbox.mkdir("a/b/c")
        sandbox.mkdir("d/", parents=False)
        assert sandbox.stat("a/b/c").is_dir
        assert sandbox.stat("d").is_dir

    def test_a_folder_that_cannot_be_made_is_refused(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"x")
        sandbox.mkdir("folder")
        sandbox.symlink("dangling", "nowhere")
        with file_refused(Kind.EXISTS):
            sandbox.mkdir("file")
        with file_refused(Kind.EXISTS):
            sandbox.mkdir("folder", exist_ok=False)
        with file_refused(Kind.EXISTS):
            sandbox.mkdir("dangling")
        with file_refused(Kind.NOT_FOUND):
            sandbox.mkdir("x/y", parents=False)
        assert not sandbox.exists("x")

    def test_a_link_to_a_folder_serves_as_one(self, sandbox: Sandbox) -> None:
        sandbox.mkdir("real")
        sandbox.symlink("link", "real")
        sandbox.mkdir("link")
        sandbox.write("link/file", b"x")
        assert sandbox.read("real/file") == b"x"

    def test_a_link_says_what_it_was_told(self, sandbox: Sandbox) -> None:
        for number, target in enumerate(("file", "../up", "a b\n", "no/where", "./x/../y")):
            sandbox.symlink(f"folder/{number}", target)
            assert sandbox.stat(f"folder/{number}", follow=False).link_target == target

    def test_a_link_does_not_replace_anything(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"x")
        sandbox.symlink("dangling", "nowhere")
        for path in ("file", "dangling"):
            with file_refused(Kind.EXISTS):
                sandbox.symlink(path, "elsewhere")
        assert sandbox.read("file") == b"x"
