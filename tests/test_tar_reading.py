"""One reader of tar, as strict as it is told to be.

What hostile archives do is tried where it is used: tests/engine/test_engine_archives.py and
tests/changes/archive/test_archive.py.
"""

from __future__ import annotations

import io
import tarfile

import pytest

from podbot.tar_reading import BLOCK, Header, Rules, TarStream


class Bad(Exception):
    """What these tests have for an error."""


def bad(message: str) -> Exception:
    return Bad(message)


STRICT = Rules(bad, 1000, known=lambda key: key in ("path", "size", "mtime"))  # type: ignore[arg-type]  # no error of podbot's
FOREIGN = Rules(bad, 1000, foreign=True)  # type: ignore[arg-type]  # likewise


def tar(name: str = "a", data: bytes = b"hello", format: int = tarfile.USTAR_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def read(data: bytes, rules: Rules, at_once: int = 1 << 20) -> list[tuple[Header, bytes]]:
    """The members, from a stream that gives no more than so much at once."""
    source = io.BytesIO(data)
    stream = TarStream(lambda size: source.read(min(size, at_once)), rules)
    found = []
    while (header := stream.header()) is not None:
        parts = []
        while part := stream.part(1 << 20):
            parts.append(part)
        found.append((header, b"".join(parts)))
    return found


@pytest.mark.parametrize("rules", [STRICT, FOREIGN], ids=["strict", "foreign"])
@pytest.mark.parametrize("at_once", [1, 7, BLOCK, 1 << 20])
def test_a_plain_archive_is_read_however_it_comes(rules: Rules, at_once: int) -> None:
    ((header, data),) = read(tar(), rules, at_once)
    assert (header.name, header.letter, header.size, data) == (b"a", b"0", 5, b"hello")


def long_name(format: int) -> bytes:
    return tar("n" * 150, format=format)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (long_name(tarfile.GNU_FORMAT), b"n" * 150),
        (tar("p" * 90 + "/" + "n" * 90), b"p" * 90 + b"/" + b"n" * 90),
        (tar(format=tarfile.GNU_FORMAT), b"a"),
        (tar()[: 2 * BLOCK], b"a"),
        (tar() + b"more", b"a"),
        (tar()[: BLOCK + 5] + b"x" + tar()[BLOCK + 6 :], b"a"),
    ],
    ids=["long names", "prefix", "another magic", "no end", "behind the end", "in the padding"],
)
def test_what_others_write_is_taken_or_refused_as_the_rules_say(data: bytes, name: bytes) -> None:
    ((header, content),) = read(data, FOREIGN)
    assert (header.records.get("path") or header.name) == name and content == b"hello"
    with pytest.raises(Bad):
        read(data, STRICT)


def test_an_extended_header_goes_before_the_plain_one_under_both_rules() -> None:
    for rules in (STRICT, FOREIGN):
        ((header, _),) = read(long_name(tarfile.PAX_FORMAT), rules)
        assert header.records["path"] == b"n" * 150


def test_one_that_is_too_large_is_not_held() -> None:
    for rules in (STRICT, FOREIGN):
        with pytest.raises(Bad, match="too large"):
            read(tar("n" * 1500, format=tarfile.PAX_FORMAT), rules)
