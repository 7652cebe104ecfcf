"""What is done by extents gives what reading everything would give, wherever the holes are."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podbot.changes.applying import _placing
from podbot.sandbox import extents

BLOCK = 4096
SIZES = st.integers(0, 3 * extents.CHUNK)

# Data at odd places, some of it zeros: bytes that are equal to a hole without being one.
LAYOUTS = st.lists(
    st.tuples(
        st.integers(0, 3 * extents.CHUNK),
        st.integers(1, 2 * BLOCK),
        st.sampled_from([b"\0", b"x", b"yz"]),
    ),
    max_size=5,
)
Layout = list[tuple[int, int, bytes]]


@contextmanager
def laid_out(layout: Layout, size: int) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile(dir="/var/tmp", buffering=0) as file:
        for start, length, byte in layout:
            os.pwrite(file.fileno(), (byte * length)[:length], start)
        file.truncate(size)
        yield file


def bytes_of(file: BinaryIO) -> bytes:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0)


@given(LAYOUTS, SIZES)
def test_pieces_are_all_the_bytes(layout: Layout, size: int) -> None:
    with laid_out(layout, size) as file:
        assert b"".join(extents.pieces(file)) == bytes_of(file)


@given(LAYOUTS, LAYOUTS, SIZES, SIZES, st.booleans())
def test_two_files_are_the_same_if_their_bytes_are(
    one: Layout, other: Layout, size: int, other_size: int, alike: bool
) -> None:
    if alike:  # the same bytes, with other holes: zeros were written into some
        other, other_size = [(0, 2 * extents.CHUNK, b"\0"), *one], size
    with laid_out(one, size) as ours, laid_out(other, other_size) as theirs:
        assert extents.same(ours, theirs) is (bytes_of(ours) == bytes_of(theirs))


@given(LAYOUTS, SIZES)
def test_a_copy_has_the_same_bytes_and_no_more_data(layout: Layout, size: int) -> None:
    with laid_out(layout, size) as source, laid_out([], 0) as copy, laid_out([], 0) as placed:
        extents.copy(source.fileno(), copy.fileno())
        _placing._copy_large(source.fileno(), placed.fileno(), size)
        assert bytes_of(copy) == bytes_of(placed) == bytes_of(source)
        data = extents.amount(source.fileno())
        assert extents.amount(copy.fileno()) <= data
        assert extents.amount(placed.fileno()) <= data


@given(LAYOUTS, SIZES)
def test_data_is_told_in_order_within_the_size_and_outside_of_it_are_zeros(
    layout: Layout, size: int
) -> None:
    with laid_out(layout, size) as file:
        contents, at = bytes_of(file), 0
        for start, end in extents.data(file.fileno(), size):
            assert at <= start < end <= size
            assert not contents[at:start].strip(b"\0")
            at = end
        assert not contents[at:].strip(b"\0")


def test_a_file_that_grew_is_told_only_as_far_as_was_asked() -> None:
    with laid_out([(0, 10, b"x"), (extents.CHUNK, 10, b"x")], 2 * extents.CHUNK) as file:
        assert [*extents.data(file.fileno(), 5)] == [(0, 5)]
        assert [*extents.data(file.fileno(), 100_000)] == [(0, BLOCK)]


def test_where_holes_are_not_known_everything_is_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, at: int, how: int) -> int:
        raise OSError(errno.EINVAL, "no holes here")

    with laid_out([(BLOCK, 10, b"x")], 3 * BLOCK) as file:
        monkeypatch.setattr("podbot.sandbox.extents.os.lseek", refuse)
        assert [*extents.data(file.fileno(), 3 * BLOCK)] == [(0, 3 * BLOCK)]


def test_what_is_not_on_a_disk_is_read() -> None:
    contents = bytes(extents.CHUNK) + b"end"
    assert b"".join(extents.pieces(io.BytesIO(contents))) == contents
    assert extents.same(io.BytesIO(contents), io.BytesIO(contents))
    assert not extents.same(io.BytesIO(contents), io.BytesIO(contents[:-1]))


def test_holes_are_hashed_without_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 64 << 20
    with laid_out([(size // 2, 3, b"x")], size) as file:
        read = 0
        pread = os.pread

        def counting(fd: int, count: int, at: int) -> bytes:
            nonlocal read
            found = pread(fd, count, at)
            read += len(found)
            return found

        monkeypatch.setattr("podbot.sandbox.extents.os.pread", counting)
        digest = hashlib.sha256()
        for piece in extents.pieces(file):
            digest.update(piece)
        assert read == BLOCK
        expected = bytes(size // 2) + b"xxx" + bytes(size // 2 - 3)
        assert digest.hexdigest() == hashlib.sha256(expected).hexdigest()


def test_a_target_that_is_copied_keeps_its_holes(tmp_path: Path) -> None:
    from podbot.sandbox.layers import copying
    from podbot.sandbox.limits import Limits

    (tmp_path / "source").mkdir()
    image = tmp_path / "source" / "image"
    with open(image, "wb") as file:
        file.truncate(1 << 40)  # more than may be copied, if its holes counted
        file.seek(1 << 30)
        file.write(b"data")
    copying.copy(str(tmp_path / "source"), tmp_path / "copy", Limits(disk=1 << 20), ())
    copied = os.stat(tmp_path / "copy" / "image")
    assert copied.st_size == 1 << 40
    assert copied.st_blocks * 512 < 1 << 20
    with open(tmp_path / "copy" / "image", "rb") as file:
        file.seek(1 << 30)
        assert file.read(4) == b"data"
