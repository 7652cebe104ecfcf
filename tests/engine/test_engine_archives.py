"""Archives: made in parts, read as hostile, unpacked below one new folder and nowhere else."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podbot.engine import Entry, TarReader, UnpackLimits, _tar_reading, pack, pack_tree, unpack
from podbot.engine._tar_reading import safe_path
from podbot.errors import ContainerError, Kind
from podbot.tar_reading import looks_like_tar


def reading(data: bytes, most: int = 1 << 20) -> Callable[[int], bytes]:
    stream = io.BytesIO(data)
    return lambda limit: stream.read(min(limit, most))


def tar_of(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def info(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, mode
    return made


def read(data: bytes) -> list[tuple[str, str, bytes]]:
    reader = TarReader(reading(data))
    return [("/".join(m.path), m.kind, b"".join(reader.data())) for m in reader.members()]


def kind_of(act: Callable[[], object]) -> Kind:
    with pytest.raises(ContainerError) as caught:
        act()
    return caught.value.kind


# Reading


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_each_usual_format_is_read(form: int) -> None:
    deep = "/".join(["folder" * 5] * 4) + "/name"
    data = tar_of(
        (info("a", tarfile.DIRTYPE), b""),
        (info(deep), b"contents"),
        (info("./a/b"), b"x" * 1000),
        (info("l", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (info("h", tarfile.LNKTYPE, "a/b"), b""),
        (info("p", tarfile.FIFOTYPE), b""),
        form=form,
    )

    assert read(data) == [
        ("a", "folder", b""),
        (deep, "file", b"contents"),
        ("a/b", "file", b"x" * 1000),
        ("l", "symlink", b""),
        ("h", "hardlink", b""),
        ("p", "other", b""),
    ]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_links_are_read(form: int) -> None:
    name, link = "n" * 200 + "/" + "m" * 200, "l" * 300
    data = tar_of((info(name, tarfile.SYMTYPE, link), b""), (info("next"), b"x"), form=form)

    first, second = TarReader(reading(data)).members()

    assert ("/".join(first.path), first.link) == (name, link)
    assert (second.path, second.link) == (("next",), "")


def test_names_in_no_known_coding_survive() -> None:
    data = tar_of((info("b\udcffd"), b""), form=tarfile.GNU_FORMAT)

    assert read(data) == [("b\udcffd", "file", b"")]


def test_what_a_member_holds_may_be_left_unread() -> None:
    data = tar_of((info("a"), b"x" * 10_000), (info("b"), b"y"))

    assert [member.path for member in TarReader(reading(data, 100)).members()] == [("a",), ("b",)]


def test_large_sizes_and_small_times_are_read() -> None:
    made = info("big")
    made.mtime = 1.5
    (member,) = TarReader(reading(tar_of((made, b"")))).members()
    assert member.mtime == 1.5

    header = bytearray(info("big").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\x80" + (1 << 40).to_bytes(11, "big")
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 256 + sum(header[156:]))
    reader = TarReader(reading(bytes(header)))
    assert next(reader.members()).size == 1 << 40


def test_an_archive_may_end_without_its_empty_blocks() -> None:
    assert read(tar_of((info("a"), b""))[:512]) == [("a", "file", b"")]
    assert read(b"") == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a/b/..", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ContainerError):
        safe_path(name)


def test_an_archive_with_such_a_name_is_refused() -> None:
    for name in ("/etc/passwd", "../x", "a/../../x"):
        assert kind_of(lambda: read(tar_of((info(name), b"x")))) is Kind.BAD_ARCHIVE  # noqa: B023 - called at once


def test_names_that_are_too_long_or_too_deep_are_refused() -> None:
    for name in ("x" * 256, "/".join("x" * 201)):
        with pytest.raises(ContainerError, match="too long"):
            safe_path(name)


def changed(data: bytes, at: int, to: bytes) -> bytes:
    """A header with something changed and its sum put right."""
    header = bytearray(data[:512])
    header[at : at + len(to)] = to
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 256 + sum(header[156:]))
    return bytes(header) + data[512:]


PLAIN = tar_of((info("a"), b"hello"))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"x" * 512, "damaged|number"),
        (b"short", "cut off"),
        (PLAIN[:512], "cut off"),
        (PLAIN[:516], "cut off"),
        (PLAIN[:520], "cut off"),
        (changed(PLAIN, 124, b"9999999999z\0"), "number"),
        (changed(PLAIN, 156, b"Z"), "unknown kind"),
        (changed(PLAIN, 156, b"S"), "unknown kind"),
        (changed(PLAIN, 156, b"5"), "without contents"),
    ],
)
def test_an_archive_that_breaks_the_rules_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ContainerError, match=why) as caught:
        read(data)
    assert caught.value.kind is Kind.BAD_ARCHIVE


def pax(records: bytes) -> bytes:
    header = info("x", b"x")
    header.size = len(records)
    return header.tobuf(tarfile.USTAR_FORMAT) + records.ljust(-(-len(records) // 512) * 512, b"\0")


@pytest.mark.parametrize(
    "records",
    [
        b"nonsense",
        b"5 a=b",
        b"99 path=x\n",
        b"2 \n",
        b"6 path\n",
        b"999999999 path=x\n",
        b"10 size=x1\n",
        b"26 size=99999999999999999999\n",
        b"22 GNU.sparse.major=1\n",
    ],
)
def test_extended_headers_that_make_no_sense_are_refused(records: bytes) -> None:
    assert kind_of(lambda: read(pax(records) + PLAIN)) is Kind.BAD_ARCHIVE


def test_an_extended_header_may_set_size_and_an_odd_time() -> None:
    assert read(pax(b"9 size=5\n12 mtime=no\n") + PLAIN) == [("a", "file", b"hello")]


def test_an_extended_header_cannot_fill_the_memory() -> None:
    header = info("x", b"x")
    header.size = 1 << 40

    with pytest.raises(ContainerError, match="names that are too long"):
        read(header.tobuf(tarfile.GNU_FORMAT))


def test_the_number_of_members_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tar_reading, "MAX_MEMBERS", 3)

    with pytest.raises(ContainerError, match="more than 3 entries"):
        read(tar_of(*((info(str(n)), b"") for n in range(4))))


@settings(deadline=None)
@given(st.binary(max_size=3000))
def test_nothing_but_our_own_error_comes_of_garbage(data: bytes) -> None:
    try:
        read(data)
    except ContainerError as error:
        assert error.kind is Kind.BAD_ARCHIVE


@settings(deadline=None)
@given(st.data())
def test_nothing_but_our_own_error_comes_of_damage(data: st.DataObject) -> None:
    whole = bytearray(tar_of((info("a/b"), b"x" * 600), (info("l", tarfile.SYMTYPE, "t"), b"")))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, 1600))] = data.draw(st.integers(0, 255))
    for at in (0, 1536):  # with sums that are right, so that the rest is looked at
        whole[at + 148 : at + 156] = b"%06o\0 " % (
            sum(whole[at : at + 148]) + 256 + sum(whole[at + 156 : at + 512])
        )
    try:
        read(bytes(whole))
    except ContainerError as error:
        assert error.kind is Kind.BAD_ARCHIVE


def test_a_first_block_tells_a_tar() -> None:
    assert looks_like_tar(PLAIN[:512]) and looks_like_tar(bytes(1024))
    for odd in (b"", b"x" * 512, b"\x1f\x8b" + bytes(600), PLAIN[:511]):
        assert not looks_like_tar(odd)


# Packing


def test_what_is_packed_is_a_tar_that_anyone_reads() -> None:
    entries = [
        Entry(".claude", "folder", 0o700),
        Entry(".claude/.credentials.json", mode=0o600, data=b"secret", uid=5, gid=6, mtime=7),
        Entry("n" * 150, data=b"x" * 513),
        Entry("l", "symlink", link="target"),
    ]

    with tarfile.open(fileobj=io.BytesIO(b"".join(pack(entries)))) as archive:
        members = {member.name: member for member in archive}
        secret = members[".claude/.credentials.json"]
        assert archive.extractfile(secret).read() == b"secret"  # type: ignore[union-attr]

    assert (secret.mode, secret.uid, secret.gid, secret.mtime) == (0o600, 5, 6, 7)
    assert members[".claude"].isdir() and members[".claude"].mode == 0o700
    assert members["l"].linkname == "target" and members["n" * 150].size == 513


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1,
                          max_size=60), st.binary(max_size=1500)),
        max_size=6,
    )
)  # fmt: skip
def test_what_is_packed_is_read_as_it_was(files: list[tuple[str, bytes]]) -> None:
    files = [(f"d/x{name}", data) for name, data in files]

    packed = b"".join(pack(Entry(name, data=data) for name, data in files))

    assert read(packed) == [(name, "file", data) for name, data in files]


def test_a_tree_of_the_host_is_packed_without_following_links(folder: Path) -> None:
    source = folder / "source"
    (source / "below").mkdir(parents=True)
    (source / "below/file").write_bytes(b"x" * 600_000)
    (source / "below/file").chmod(0o640)
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "fifo")

    found = read(b"".join(pack_tree(str(source), "name")))

    assert found == [
        ("name", "folder", b""),
        ("name/below", "folder", b""),
        ("name/below/file", "file", b"x" * 600_000),
        ("name/link", "symlink", b""),
    ]
    assert read(b"".join(pack_tree(str(source / "below/file"))))[0][0] == "file"


def test_a_tree_that_cannot_be_read_is_named(folder: Path) -> None:
    assert kind_of(lambda: list(pack_tree(str(folder / "none")))) is Kind.IO


def test_a_tree_that_is_too_deep_is_refused(folder: Path) -> None:
    (folder / "/".join("x" * 103)).mkdir(parents=True)

    assert kind_of(lambda: list(pack_tree(str(folder)))) is Kind.TOO_LARGE


def test_a_file_that_shrinks_meanwhile_keeps_its_size(folder: Path) -> None:
    (folder / "file").write_bytes(b"x" * 1000)
    parts = pack_tree(str(folder / "file"))
    header = next(parts)
    (folder / "file").write_bytes(b"y")

    found = read(header + b"".join(parts))

    assert found == [("file", "file", b"y" + bytes(999))]


# Unpacking


def unpacked(folder: Path, *members: tuple[tarfile.TarInfo, bytes], **limits: int) -> Path:
    unpack(reading(tar_of(*members)), str(folder / "out"), UnpackLimits(**limits))
    return folder / "out"


def untouched(folder: Path) -> bool:
    """Whether nothing was left behind."""
    return os.listdir(folder) == []


def test_a_folder_is_written_with_modes_and_times(folder: Path) -> None:
    dated = info("top/run.sh", mode=0o4755)
    dated.mtime = 1_000_000
    out = unpacked(
        folder,
        (info("top", tarfile.DIRTYPE, mode=0o755), b""),
        (info("top/closed", tarfile.DIRTYPE, mode=0o000), b""),
        (info("top/closed/file"), b"inside"),
        (dated, b"#!/bin/sh\n"),
        (info("top/deep/er/file"), b"x"),
    )

    assert (out / "run.sh").read_bytes() == b"#!/bin/sh\n"
    found = (out / "run.sh").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime) == (0o755, 1_000_000)
    assert stat.S_IMODE((out / "closed").stat().st_mode) == 0
    assert (out / "deep/er/file").read_bytes() == b"x"
    (out / "closed").chmod(0o700)
    assert (out / "closed/file").read_bytes() == b"inside"


def test_links_and_devices_are_left_out_and_reported(folder: Path) -> None:
    data = tar_of(
        (info("top", tarfile.DIRTYPE, mode=0o755), b""),
        (info("top/link", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (info("top/hard", tarfile.LNKTYPE, "top/link"), b""),
        (info("top/dev", tarfile.CHRTYPE), b""),
    )

    done = unpack(reading(data), str(folder / "out"))

    assert os.listdir(folder / "out") == []
    assert dict(done.skipped) == {
        "top/link": "a link",
        "top/hard": "a link",
        "top/dev": "neither file nor folder",
    }


ATTACKS: list[list[tuple[tarfile.TarInfo, bytes]]] = [
    [(info("top", tarfile.SYMTYPE, ".."), b""), (info("top/planted"), b"x")],
    [(info("top/a", tarfile.SYMTYPE, "/"), b""), (info("top/a/etc/planted"), b"x")],
    [(info("top"), b"file"), (info("top/below"), b"x")],
    [(info("top/file"), b"1"), (info("top/file"), b"2")],
    [(info("a"), b""), (info("b"), b"")],
    [(info("../planted"), b"x")],
    [(info("/tmp/planted"), b"x")],
    [],
]


@pytest.mark.parametrize("members", ATTACKS)
def test_an_archive_that_attacks_writes_nothing_outside(
    folder: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    inner = folder / "inner"
    inner.mkdir()
    try:
        unpacked(inner, *members)
    except ContainerError as error:
        assert error.kind in (Kind.BAD_ARCHIVE, Kind.IO)
        assert untouched(inner)
    assert os.listdir(folder) == ["inner"]
    assert not os.path.exists("/etc/planted") and not os.path.exists("/tmp/planted")


def test_a_place_that_exists_is_not_overwritten(folder: Path) -> None:
    (folder / "out").symlink_to("/nowhere")

    assert kind_of(lambda: unpacked(folder, (info("a"), b"x"))) is Kind.EXISTS
    assert os.listdir(folder) == ["out"]


def test_too_much_is_refused_and_leaves_nothing(folder: Path) -> None:
    large = (info("top/large"), b"x" * 2000)
    many = [(info(f"top/{n}"), b"") for n in range(10)]

    assert kind_of(lambda: unpacked(folder, large, bytes=1000)) is Kind.TOO_LARGE
    assert kind_of(lambda: unpacked(folder, *many, entries=5)) is Kind.TOO_LARGE
    assert untouched(folder)


def test_a_folder_that_is_not_there_or_may_not_be_written_is_named(folder: Path) -> None:
    with pytest.raises(ContainerError) as caught:
        unpack(reading(PLAIN), str(folder / "none" / "out"))
    assert (caught.value.kind, caught.value.subject) == (Kind.IO, str(folder / "none"))


def test_an_error_on_the_way_leaves_nothing(folder: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield PLAIN[:512]
        raise OSError("the disk is full")

    parts = broken()

    assert kind_of(lambda: unpack(lambda _: next(parts), str(folder / "out"))) is Kind.IO
    assert untouched(folder)


def test_what_is_skipped_is_told_up_to_a_point(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podbot.engine._unpacking.MAX_SKIPPED", 2)
    links: Iterable[tuple[tarfile.TarInfo, bytes]] = (
        (info(f"top/{n}", tarfile.SYMTYPE, "x"), b"") for n in range(5)
    )
    data = tar_of((info("top", tarfile.DIRTYPE), b""), (info("."), b""), *links)

    assert len(unpack(reading(data), str(folder / "out")).skipped) == 2
