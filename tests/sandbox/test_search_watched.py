"""Searching with rg watching for binary files: what it finds is what Python finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from test_search_bounds import altered_guest, fake_rg

import podbot.sandbox
from podbot.sandbox import Sandbox, interpreter

WATCHED, AS_TEXT, BY_PYTHON = "needle", "needle.{0}", "(?=needle)needle"
RG = interpreter.ripgrep()
NOTE = 'binary file matches (found "\\0" byte around offset 5)'

PLAIN = {
    "a.txt": b"needle\nno\nneedle two\n",
    "b/crlf": b"needle\r\n\r\nneedle\r\n",
    "b/invalid": b"\xff needle \xc3\n\xe2\x82needle",
    "b.txt": b"needle without end",
    os.fsdecode(b"b b/\xff"): b"./a\x01needle:3:\n",
    "empty": b"",
    "other": b"nothing\n",
    "long": b"x" * 200_000 + b"needle\n",
    f"c: {NOTE}": b"needle\n",
}
BINARY = {
    "bin/early": b"needle\n\0needle\n",
    "bin/before": b"\0needle\n",
    "bin/edge": b"needle\n" + b"x" * 8184 + b"\0\nneedle\n",
    "bin/without": b"\0nothing\n",
}
LATE = {
    "late/near": b"needle\n" + b"x" * 8185 + b"\0\nneedle\n",
    "late/far": b"needle\n" + b"\n" * 200_000 + b"needle\0\nneedle\n",
    "late/unseen": b"needle\n" + b"\n" * 200_000 + b"\0",
    "late/only": b"\n" * 200_000 + b"\0needle\0\n",
}
ODD = {
    "new\nline": b"needle\n",
    "new\n./a.txt": b"needle\n",
    f"a.txt: {NOTE}\n./b.txt": b"needle here\n",
    f"bin/early: {NOTE}\n./b.txt": b"needle there\n",
    f"bin/early: {NOTE}\n./bin/edge": b"needle everywhere\n",
    "bin/new\nline": b"needle\n\0",
    "\n5 matches\n": b"needle\n",
}


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each start of rg, which goes on as ever."""
    rg = interpreter.ripgrep()
    assert rg is not None, "ripgrep comes with podbot"
    log = tmp_path / "starts"
    fake_rg(tmp_path, monkeypatch, f"echo \"$@\" >> '{log}'; exec '{rg}' \"$@\"")
    return log


def plant(sandbox: Sandbox, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = Path(sandbox.workdir, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def rows(sandbox: Sandbox, pattern: str, **options: object) -> list[tuple[str, int, str]]:
    found = sandbox.grep(pattern, **options)  # type: ignore[arg-type]  # a glob, a number
    assert not found.timed_out
    return [(match.path, match.line_number, match.line) for match in found.matches]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (PLAIN, ["--binary"]),
        (PLAIN | BINARY, ["--binary"]),
        (PLAIN | BINARY | LATE, ["--binary", "--text"]),
        (PLAIN | BINARY | ODD, ["--binary", "--text"]),
        *((PLAIN | BINARY | {name: content}, None) for name, content in (LATE | ODD).items()),
    ],
)
def test_all_ways_find_the_same(
    starts: Path, files: dict[str, bytes], words: list[str] | None
) -> None:
    with podbot.sandbox.open("local") as sandbox:
        plant(sandbox, files)
        found = rows(sandbox, WATCHED)
        if words is not None:
            lines = starts.read_text().splitlines()
            assert len(lines) == len(words)
            assert all(word in line for word, line in zip(words, lines, strict=True))
        assert found == rows(sandbox, BY_PYTHON) == rows(sandbox, AS_TEXT)
        assert {name for name, _, _ in found} >= (files.keys() & (LATE.keys() | {"a.txt"}))
        assert not {name for name, _, _ in found} & BINARY.keys()
        for glob in ("**/*.txt", "bin/**", "late/*", "b*/[!x]*"):
            assert rows(sandbox, WATCHED, glob=glob) == rows(sandbox, BY_PYTHON, glob=glob)
        assert rows(sandbox, WATCHED, max_matches=3) == found[:3]


def test_files_that_rg_knows_to_be_text_are_not_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    altered_guest(monkeypatch, "ripgrep._looked = None")
    with podbot.sandbox.open("local") as sandbox:
        plant(sandbox, PLAIN)
        assert rows(sandbox, WATCHED) == rows(sandbox, BY_PYTHON)


@pytest.mark.parametrize("pattern", [WATCHED, AS_TEXT])
def test_a_search_that_takes_long_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    log = tmp_path / "starts"
    fake_rg(tmp_path, monkeypatch, f"echo >> '{log}'; sleep 0.5; exec '{RG}' \"$@\"")
    altered_guest(monkeypatch, "ripgrep.SEARCH_LEASH = 0.02")
    with podbot.sandbox.open("local") as sandbox:
        sandbox.write("a", "needle\n")
        found = sandbox.grep(pattern)

    assert [match.path for match in found.matches] == ["a"]
    assert not found.timed_out
    assert len(log.read_text().splitlines()) == 1


def test_a_search_that_is_in_a_file_without_end_is_begun_anew_without_it(starts: Path) -> None:
    with podbot.sandbox.open("local") as sandbox:
        sandbox.write("a", "needle\n")
        huge = Path(sandbox.workdir, "huge")
        huge.touch()
        os.truncate(huge, 1 << 42)
        found = sandbox.grep(WATCHED)

    assert ([match.path for match in found.matches], found.skipped) == (["a"], 1)
    assert ["--max-filesize" in line for line in starts.read_text().splitlines()] == [False, True]


def test_a_file_is_too_large_whatever_rg_read_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    altered_guest(monkeypatch, "ripgrep.SEARCH_FILE_LIMIT = search.SEARCH_FILE_LIMIT = 50")
    files = {"a": b"needle\n", "b": b"needle\n" * 8, "c": b"\0needle\n" * 8, "d": b"needle\n"}
    with podbot.sandbox.open("local") as sandbox:
        plant(sandbox, files)
        for pattern in (WATCHED, AS_TEXT, BY_PYTHON):
            found = sandbox.grep(pattern)
            assert [match.path for match in found.matches] == ["a", "d"]
            assert found.skipped == 2


def test_rows_of_names_that_cannot_be_told_apart_are_not_shown_when_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered_guest(monkeypatch, "ripgrep.SEARCH_AGAIN = 600")
    output = r"printf './a\0001:needle\nodd\n./b\0001:needle\n'"
    fake_rg(tmp_path, monkeypatch, output)
    with podbot.sandbox.open("local") as sandbox:
        found = sandbox.grep(WATCHED)
        assert [match.path for match in found.matches] == ["a"]
        assert found.timed_out


def test_much_output_comes_whole(starts: Path) -> None:
    line = b"needle " + b"y" * 1000 + b"\n"
    with podbot.sandbox.open("local") as sandbox:
        plant(sandbox, {f"{number:04}": line * 100 for number in range(40)})
        found = rows(sandbox, WATCHED, max_matches=4000)
        assert len(found) == 4000
        assert len(starts.read_text().splitlines()) == 1
        assert os.fsdecode(line[:-1]) == found[-1][2]
