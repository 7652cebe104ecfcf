"""Tar streams in and out, and where paths really lead."""

# ruff: noqa: S101 - a suite asserts

from __future__ import annotations

import io
import os
import tarfile

import pytest

from podbot.errors import Kind
from podbot.sandbox import Sandbox
from podbot.testing.base import Base, file_refused


def packed(*members: tuple[str, bytes | str | None]) -> io.BytesIO:
    """A tar of files (bytes), links (text) and folders (None)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    stream.seek(0)
    return stream


class TarTests(Base):
    """`download_tar`, `upload_tar` and `realpath`."""

    def test_a_tree_comes_out_and_goes_in_again_as_a_tar(self, sandbox: Sandbox) -> None:
        large = os.urandom(1_200_000)
        sandbox.write("tree/deep/large", large)
        sandbox.write("tree/run.sh", "#!/bin/sh\n", mode=0o755)
        sandbox.write("tree/" + "long" * 40 + "/é", "x")
        sandbox.symlink("tree/link", "deep/large")
        stream = io.BytesIO()
        done = sandbox.download_tar("tree", stream)
        assert (done.files, done.skipped) == (3, ())
        stream.seek(0)
        with tarfile.open(fileobj=stream) as tar:
            assert tar.getmember("deep").isdir()
            assert tar.getmember("link").linkname == "deep/large"
            assert tar.getmember("run.sh").mode == 0o755
        stream.seek(0)
        again = sandbox.upload_tar(stream, "copy")
        assert (again.files, again.bytes) == (done.files, done.bytes)
        assert sandbox.read("copy/link") == large
        assert sandbox.read("copy/" + "long" * 40 + "/é") == b"x"
        assert sandbox.stat("copy/run.sh").mode & 0o111

    def test_one_file_comes_out_under_its_own_name(self, sandbox: Sandbox) -> None:
        sandbox.write("folder/a.txt", "one")
        stream = io.BytesIO()
        sandbox.download_tar("folder/a.txt", stream)
        stream.seek(0)
        with tarfile.open(fileobj=stream) as tar:
            assert tar.getnames() == ["a.txt"]

    def test_more_than_was_allowed_is_not_copied(self, sandbox: Sandbox) -> None:
        sandbox.write("big/a", b"x" * 2000)
        with file_refused(Kind.TOO_LARGE):
            sandbox.download_tar("big", io.BytesIO(), max_bytes=1999)
        with file_refused(Kind.TOO_LARGE):
            sandbox.upload_tar(packed(("a", b"x" * 2000)), "in", max_bytes=1999)
        with file_refused(Kind.NOT_FOUND):
            sandbox.download_tar("missing", io.BytesIO())

    @pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out"])
    def test_no_member_of_a_tar_leads_out(self, sandbox: Sandbox, name: str) -> None:
        with file_refused(Kind.INVALID):
            sandbox.upload_tar(packed((name, b"x")), "in")
        assert sandbox.list("in") == []

    def test_no_link_of_a_tar_is_a_way_out(self, sandbox: Sandbox) -> None:
        done = sandbox.upload_tar(packed(("out", "../.."), ("up", "/etc")), "in")
        assert [name for name, _ in done.skipped] == ["out", "up"]
        with file_refused(Kind.INVALID):
            sandbox.upload_tar(packed(("d", None), ("l", "d"), ("l/a", b"x")), "in")
        assert sandbox.list("in/d") == []

    @pytest.mark.parametrize("data", [b"no tar at all", b"x" * 5000, b"\x1f\x8b" + b"z" * 2000])
    def test_what_is_no_tar_is_refused(self, sandbox: Sandbox, data: bytes) -> None:
        with file_refused(Kind.INVALID):
            sandbox.upload_tar(io.BytesIO(data), "in")

    def test_a_real_path_has_no_links_on_the_way(self, sandbox: Sandbox) -> None:
        sandbox.write("d/a", "x")
        sandbox.symlink("l", "d")
        sandbox.symlink("d/m", "a")
        here = sandbox.realpath(".")
        assert here.startswith("/")
        assert sandbox.realpath("l/m") == f"{here}/d/a"
        assert sandbox.realpath("./d/../l") == f"{here}/d"
        for missing in ("nothing", "d/nothing"):
            with file_refused(Kind.NOT_FOUND):
                sandbox.realpath(missing)
