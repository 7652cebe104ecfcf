"""On random files and trees: the tools agree with plain references."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from workplace import Place

from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.sandbox import interpreter
from podbot.tools import UnsafeLocalSandboxSection, VfsToolsSection, WorkspaceSection

BACKENDS: list[type[Any]] = [VfsToolsSection, UnsafeLocalSandboxSection]
EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(params=BACKENDS, ids=lambda kind: kind.__name__)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    session = Session(bus=InProcessEventBus())
    section: WorkspaceSection = request.param(session=session)
    yield Place(session, section)
    section.close()


def emptied(place: Place) -> Place:
    for entry in place.sandbox.list("."):
        place.sandbox.remove(entry.path, recursive=True)
    return place


# edit_file

PLAIN_PIECES = ["a", "b", "\n", "😀", "é", "\t", "ab", "needle", "\u2028"]
PIECES = st.sampled_from([*PLAIN_PIECES, "\r\n", "\r"])
TEXTS = st.lists(PIECES, max_size=12).map("".join)
PLAIN_TEXTS = st.lists(st.sampled_from(PLAIN_PIECES), max_size=12).map("".join)
NEEDLES = st.lists(PIECES, min_size=1, max_size=3).map("".join)


def meant(old: str, new: str, data: bytes) -> tuple[bytes, bytes]:
    """What a replacement means in these bytes: as it stands, or with line ends of two bytes."""
    ways = [(old, new)]
    if "\n" in old and "\r" not in old:
        ways.append((old.replace("\n", "\r\n"), new.replace("\n", "\r\n")))
        if old.startswith("\n"):
            ways.reverse()
    encoded = [(before.encode(), after.encode()) for before, after in ways]
    return next(way for way in encoded if way[0] in data)


def places_of(needle: bytes, data: bytes) -> int:
    """How often a piece is in the bytes, overlapping places counted too."""
    return sum(data.startswith(needle, at) for at in range(len(data)))


@EXAMPLES
@given(before=TEXTS, old=NEEDLES, new=TEXTS, after=TEXTS, every=st.booleans(), raw=st.binary())
def test_edit_file_changes_the_match_and_nothing_else(
    place: Place, before: str, old: str, new: str, after: str, every: bool, raw: bytes
) -> None:
    data = before.encode() + old.encode() + after.encode() + raw
    place.write("file", data)
    result = place.call(
        "edit_file", file_path="file", old_string=old, new_string=new, replace_all=every
    )
    found = place.read("file")
    before_bytes, after_bytes = meant(old, new, data)
    if places_of(before_bytes, data) > 1 and not every:
        assert not result.success
        assert found == data
    else:
        assert result.success, result.message
        assert found == data.replace(before_bytes, after_bytes)


@EXAMPLES
@given(
    lines=st.lists(st.sampled_from(["a", "b", "", "😀", "c d"]), min_size=2, max_size=5),
    new=PLAIN_TEXTS,
)
def test_edit_file_finds_shown_lines_in_a_file_with_crlf(
    place: Place, lines: list[str], new: str
) -> None:
    old = "\n".join(lines[:2])
    data = "\r\n".join(lines).encode()
    crlf = old.replace("\n", "\r\n").encode()
    assume(places_of(crlf, data) == 1)
    place.write("file", data)
    place.ok("edit_file", file_path="file", old_string=old, new_string=new)
    assert place.read("file") == data.replace(crlf, new.replace("\n", "\r\n").encode())


@EXAMPLES
@given(content=TEXTS)
def test_read_file_shows_every_line_once(place: Place, content: str) -> None:
    emptied(place).ok("write_file", file_path="file", content=content)
    found = place.ok("read_file", file_path="file")
    lines = content.removesuffix("\n").split("\n") if content else []
    assert found.total_lines == len(lines)
    shown = [line[7:] for line in found.content.split("\n")] if lines else []
    assert shown == [line.removesuffix("\r") for line in lines]


# glob and grep

NAMES = st.sampled_from(["a", "b.py", "c.txt", ".hid", "d-e", "[x]", "long name.py"])
LINES = st.sampled_from(["alpha", "beta 12", "", "gamma-7 alpha", "x" * 30, "ünï"])
TREES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=4).map("/".join),
    st.lists(LINES, max_size=5),
    max_size=8,
)
PATTERN_PARTS = st.sampled_from(["*", "**", "?", "*.py", "b.py", "a", "[a-b]*", ".*", "[!a]*"])
PATTERNS = st.lists(PATTERN_PARTS, min_size=1, max_size=3).map("/".join)


def grow(tree: dict[str, list[str]], place: Place, folder: Path) -> None:
    """The same tree in the workspace and in a folder; what clashes is left out of both."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    emptied(place)
    for path, lines in tree.items():
        twin = folder / path
        if any(parent.is_file() for parent in twin.parents) or twin.is_dir():
            continue
        text = "".join(f"{line}\n" for line in lines)
        twin.parent.mkdir(parents=True, exist_ok=True)
        twin.write_text(text)
        place.write(path, text)


@EXAMPLES
@given(tree=TREES, pattern=PATTERNS)
def test_glob_agrees_with_pathlib(
    place: Place, tmp_path: Path, tree: dict[str, list[str]], pattern: str
) -> None:
    folder = tmp_path / "twin"
    grow(tree, place, folder)
    found = [str(path) for path in place.ok("glob", pattern=pattern).matches]
    # Before 3.13 a last ** of pathlib's gives folders alone; here it gives everything.
    patterns = [pattern, f"{pattern}/*"] if pattern.endswith("**") else [pattern]
    expected = {
        str(path.relative_to(folder)) for each in patterns for path in folder.glob(each)
    } - {"."}
    if pattern.endswith("**") and pattern != "**":
        # pathlib counts the folder before a last ** as a match, shells do not.
        above = pattern.removesuffix("/**")
        expected -= {str(path.relative_to(folder)) for path in folder.glob(above)} - {
            path for path in found
        }
    assert found == sorted(expected, key=lambda path: path.split("/"))


REGEXES = st.sampled_from(
    ["alpha", "^a", "a$", r"\d+", "(alpha|beta)", "x{5,}", "[^a-z ]", "^$", r"\balpha\b", ".", "ü"]
)


def reference(folder: Path, regex: str) -> list[tuple[str, int, str]]:
    found = []
    for file in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts):
        if file.is_file():
            for number, line in enumerate(file.read_text().removesuffix("\n").split("\n"), 1):
                if file.stat().st_size and re.search(regex, line):
                    found.append((str(file.relative_to(folder)), number, line))
    return found


@EXAMPLES
@given(tree=TREES, regex=REGEXES)
def test_grep_agrees_with_python_and_with_rg(
    place: Place, tmp_path: Path, tree: dict[str, list[str]], regex: str
) -> None:
    folder = tmp_path / "twin"
    grow(tree, place, folder)
    matches = place.ok("grep", pattern=regex).matches
    found = [(str(match.path), match.line_number, match.line) for match in matches]
    assert found == reference(folder, regex)
    rg = interpreter.ripgrep()
    if rg is None:
        pytest.skip("rg is not installed")
    done = subprocess.run(
        [rg, "--hidden", "--no-ignore", "--no-heading", "-n", "--null", "-e", regex, "."],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    told = set()
    for row in done.stdout.splitlines():
        path, _, rest = row.partition("\0")
        number, _, line = rest.partition(":")
        told.add((path.removeprefix("./"), int(number), line))
    assert set(found) == told
