"""`upload` and `download` between a sandbox and the host."""

# ruff: noqa: S101 - a suite asserts

from __future__ import annotations

import os
from pathlib import Path

from podbot.errors import Kind
from podbot.sandbox import Sandbox
from podbot.testing.base import Base, file_refused, needs_processes


class TransferTests(Base):
    """Files and trees in and out."""

    def test_a_file_goes_in_and_out_unchanged(self, sandbox: Sandbox, tmp_path: Path) -> None:
        source, back = tmp_path / "in", tmp_path / "out"
        data = os.urandom(2_500_000)
        source.write_bytes(data)
        source.chmod(0o755)
        sent = sandbox.upload(source, "folder/file")
        assert (sent.files, sent.bytes, sent.skipped) == (1, len(data), ())
        assert sandbox.read("folder/file") == data
        assert sandbox.stat("folder/file").mode & 0o100
        taken = sandbox.download("folder/file", back)
        assert (taken.files, taken.bytes, taken.skipped) == (1, len(data), ())
        assert back.read_bytes() == data
        assert back.stat().st_mode & 0o100

    def test_a_tree_goes_in_and_out_unchanged(self, sandbox: Sandbox, tmp_path: Path) -> None:
        source, back = tmp_path / "in", tmp_path / "out"
        (source / "sub" / "deep").mkdir(parents=True)
        (source / "empty").mkdir()
        (source / "sub" / "file").write_bytes(b"x")
        (source / "sub" / "run").write_bytes(b"#!/bin/sh\n")
        (source / "sub" / "run").chmod(0o755)
        (source / "sub" / "deep" / "link").symlink_to("../file")
        (source / "dangling").symlink_to("nowhere")
        Path(os.fsdecode(os.fsencode(source) + b"/caf\xe9")).write_bytes(b"")
        sent = sandbox.upload(source, "tree")
        taken = sandbox.download("tree", back)
        assert sent.files == taken.files == 3
        assert sent.skipped == taken.skipped == ()
        assert snapshot(back) == snapshot(source)

    def test_the_whole_working_folder_can_be_taken(self, sandbox: Sandbox, tmp_path: Path) -> None:
        sandbox.write("folder/file", b"x")
        for number, path in enumerate((".", "./", sandbox.workdir, sandbox.workdir + "/")):
            sandbox.download(path, tmp_path / str(number))
            assert (tmp_path / str(number) / "folder" / "file").read_bytes() == b"x"

    def test_what_a_host_link_points_to_is_not_sent(self, sandbox: Sandbox, tmp_path: Path) -> None:
        source = tmp_path / "in"
        source.mkdir()
        (tmp_path / "secret").mkdir()
        (tmp_path / "secret" / "key").write_bytes(b"secret")
        (source / "folder").symlink_to(tmp_path / "secret")
        (source / "file").symlink_to(tmp_path / "secret" / "key")
        sandbox.upload(source, "tree")
        assert {entry.kind for entry in sandbox.list("tree", recursive=True)} == {"link"}

    def test_the_named_source_may_itself_be_a_link(self, sandbox: Sandbox, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "file").write_bytes(b"x")
        (tmp_path / "link").symlink_to("real")
        sandbox.upload(tmp_path / "link", "tree")
        assert sandbox.read("tree/file") == b"x"

    def test_special_files_are_left_out_and_named(self, sandbox: Sandbox, tmp_path: Path) -> None:
        source = tmp_path / "in"
        source.mkdir()
        (source / "file").write_bytes(b"x")
        os.mkfifo(source / "fifo")
        sent = sandbox.upload(source, "tree")
        assert sent.files == 1
        assert [path for path, _ in sent.skipped] == ["fifo"]
        assert not sandbox.exists("tree/fifo")
        with file_refused(Kind.NOT_A_FILE):
            sandbox.upload(source / "fifo", "x")

    def test_sending_again_replaces(self, sandbox: Sandbox, tmp_path: Path) -> None:
        source = tmp_path / "in"
        source.mkdir()
        (source / "file").write_bytes(b"new")
        (source / "link").symlink_to("file")
        sandbox.write("tree/file", b"old")
        sandbox.write("tree/kept", b"kept")
        for _ in range(2):
            sandbox.upload(source, "tree/")
        assert sandbox.read("tree/link") == b"new"
        assert sandbox.read("tree/kept") == b"kept"

    def test_nothing_to_send_is_refused(self, sandbox: Sandbox, tmp_path: Path) -> None:
        with file_refused(Kind.NOT_FOUND):
            sandbox.upload(tmp_path / "missing", "x")
        assert not sandbox.exists("x")

    def test_a_destination_that_exists_is_not_touched(
        self, sandbox: Sandbox, tmp_path: Path
    ) -> None:
        sandbox.write("folder/file", b"x")
        (tmp_path / "file").write_bytes(b"kept")
        (tmp_path / "folder").mkdir()
        (tmp_path / "dangling").symlink_to("nowhere")
        for name in ("file", "folder", "dangling"):
            for path in ("folder", "folder/file"):
                with file_refused(Kind.EXISTS):
                    sandbox.download(path, tmp_path / name)
        assert (tmp_path / "file").read_bytes() == b"kept"
        assert list((tmp_path / "folder").iterdir()) == []
        assert not (tmp_path / "nowhere").exists()

    def test_what_cannot_be_taken_leaves_nothing(self, sandbox: Sandbox, tmp_path: Path) -> None:
        sandbox.write("folder/a", b"x" * 1000)
        sandbox.write("folder/b", b"x" * 1000)
        with file_refused(Kind.NOT_FOUND):
            sandbox.download("missing", tmp_path / "out")
        with file_refused(Kind.NOT_FOUND):
            sandbox.download("folder", tmp_path / "no" / "such" / "place")
        with file_refused(Kind.TOO_LARGE):
            sandbox.download("folder/a", tmp_path / "out", max_bytes=999)
        with file_refused(Kind.TOO_LARGE):
            sandbox.download("folder", tmp_path / "out", max_bytes=1999)
        assert list(tmp_path.iterdir()) == []
        assert sandbox.download("folder", tmp_path / "out", max_bytes=2000).bytes == 2000

    def test_links_that_lead_out_are_left_out_and_named(
        self, sandbox: Sandbox, tmp_path: Path
    ) -> None:
        sandbox.write("tree/sub/file", b"x")
        inside = {"tree/a": "sub/file", "tree/sub/b": "../a", "tree/sub/c": ".", "tree/d": "gone"}
        outside = {
            "tree/e": "/etc/passwd", "tree/f": "../x", "tree/sub/g": "../../x",
            "tree/h": "sub/../../x", "tree/sub/i": "..//../x", "tree/j": "sub/c/../../x",
        }  # fmt: skip
        for path, target in (inside | outside).items():
            sandbox.symlink(path, target)
        taken = sandbox.download("tree", tmp_path / "out")
        assert {f"tree/{path}" for path, _ in taken.skipped} == set(outside)
        for path, target in inside.items():
            assert os.readlink(tmp_path / "out" / path.removeprefix("tree/")) == target
        for path in outside:
            assert not os.path.lexists(tmp_path / "out" / path.removeprefix("tree/"))

    def test_bits_that_give_rights_away_are_dropped(self, sandbox: Sandbox, tmp_path: Path) -> None:
        sandbox.write("tree/setuid", b"x", mode=0o6755)
        sandbox.write("single", b"x", mode=0o4755)
        sandbox.download("tree", tmp_path / "out")
        sandbox.download("single", tmp_path / "single")
        assert (tmp_path / "out" / "setuid").stat().st_mode & 0o7000 == 0
        assert (tmp_path / "single").stat().st_mode & 0o7000 == 0

    @needs_processes
    def test_special_files_inside_stay_inside(self, sandbox: Sandbox, tmp_path: Path) -> None:
        sandbox.mkdir("tree")
        sandbox.exec(["mkfifo", "tree/fifo"]).check()
        sandbox.exec(["mkdir", "-m", "0", "tree/closed"]).check()
        taken = sandbox.download("tree", tmp_path / "out")
        assert [path for path, _ in taken.skipped] == ["fifo"]
        with file_refused(Kind.NOT_A_FILE):
            sandbox.download("tree/fifo", tmp_path / "single")
        assert not (tmp_path / "single").exists()


def snapshot(root: Path) -> dict[str, object]:
    """Everything below a folder that a copy must keep."""
    found: dict[str, object] = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(folder) / name
            shown = str(path.relative_to(root))
            if path.is_symlink():
                found[shown] = os.readlink(path)
            elif path.is_dir():
                found[shown] = None
            else:
                found[shown] = (path.read_bytes(), path.stat().st_mode & 0o100)
    return found
