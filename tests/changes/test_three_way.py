"""Two edits of one text become one as git makes it, or are left to a person; no line gets lost."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podbot.changes.diffs import three_way
from podbot.changes.diffs.three_way import Choice, Merged, Overlap, merge

BASE = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\n"


def edited(text: bytes, *edits: tuple[bytes, bytes]) -> bytes:
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def only_overlap(merged: Merged) -> Overlap:
    assert len(merged.overlaps) == 1, merged
    return merged.overlaps[0]


def test_edits_apart_from_each_other_are_both_made() -> None:
    host = edited(BASE, (b"two\n", b"TWO\nand a half\n"))
    run = edited(BASE, (b"six\n", b""))
    assert merge(BASE, host, run).contents == b"one\nTWO\nand a half\nthree\nfour\nfive\nseven\n"


def test_one_untouched_line_between_them_is_enough() -> None:
    host, run = edited(BASE, (b"two", b"TWO")), edited(BASE, (b"four", b"FOUR"))
    assert merge(BASE, host, run).contents == edited(BASE, (b"two", b"TWO"), (b"four", b"FOUR"))


def test_edits_right_beside_each_other_overlap_as_git_has_it() -> None:
    overlap = only_overlap(
        merge(BASE, edited(BASE, (b"two", b"TWO")), edited(BASE, (b"three", b"THREE")))
    )
    assert overlap.base == b"two\nthree\n"
    assert overlap.host == b"TWO\nthree\n"
    assert overlap.run == b"two\nTHREE\n"


def test_an_overlap_tells_where_it_is_on_each_side() -> None:
    host = edited(BASE, (b"one\n", b"zero\none\n"), (b"five", b"host"))
    run = edited(BASE, (b"three\n", b""), (b"five", b"run"))
    merged = merge(BASE, host, run)
    assert merged.parts == (
        b"zero\none\ntwo\nfour\n",
        Overlap(5, 6, 4, b"five\n", b"host\n", b"run\n"),
        b"six\nseven\n",
    )
    assert merged.contents is None


def test_the_same_edit_on_both_sides_is_made_once() -> None:
    host = edited(BASE, (b"two", b"TWO"), (b"seven", b"SEVEN"))
    run = edited(BASE, (b"two", b"TWO"), (b"five", b"FIVE"))
    wanted = edited(BASE, (b"two", b"TWO"), (b"seven", b"SEVEN"), (b"five", b"FIVE"))
    assert merge(BASE, host, run).contents == wanted


def test_lines_put_in_at_the_same_place_overlap() -> None:
    overlap = only_overlap(merge(b"a\nb\n", b"a\nhost\nb\n", b"a\nrun\nb\n"))
    assert (overlap.base, overlap.host, overlap.run) == (b"", b"host\n", b"run\n")
    assert (overlap.base_at, overlap.host_at, overlap.run_at) == (2, 2, 2)


def test_a_line_one_side_removed_and_the_other_edited_is_an_overlap() -> None:
    overlap = only_overlap(merge(BASE, edited(BASE, (b"four\n", b"")), BASE.replace(b"four", b"4")))
    assert (overlap.base, overlap.host, overlap.run) == (b"four\n", b"", b"4\n")


def test_a_file_both_made_is_an_overlap_as_a_whole_unless_it_is_the_same() -> None:
    assert merge(b"", b"same\n", b"same\n").contents == b"same\n"
    overlap = only_overlap(merge(b"", b"host\n", b"run\n"))
    assert (overlap.base, overlap.host, overlap.run) == (b"", b"host\n", b"run\n")


@pytest.mark.parametrize(("host", "run"), [(b"", b"run\n"), (b"host\n", b""), (b"a\nb\n", b"a\n")])
def test_what_both_added_differs_as_a_whole_even_from_nothing(host: bytes, run: bytes) -> None:
    overlap = only_overlap(merge(None, host, run))
    assert (overlap.base, overlap.host, overlap.run) == (b"", host, run)
    assert merge(None, host, host).contents == host
    assert merge(None, host, b"\0").problem == "it is binary"


def test_carriage_returns_and_a_missing_last_line_end_stay_as_they_are() -> None:
    base = b"one\r\ntwo\r\nthree\r\nfour"
    merged = merge(base, base.replace(b"one", b"ONE"), base.replace(b"three", b"3"))
    assert merged.contents == b"ONE\r\ntwo\r\n3\r\nfour"


def test_a_last_line_end_is_an_edit_of_the_last_line() -> None:
    assert merge(b"a\nb\nc", b"a\nb\nc\n", b"A\nb\nc").contents == b"A\nb\nc\n"
    assert only_overlap(merge(b"a\nb\nc", b"a\nb\nc\n", b"a\nb\nC")).run == b"C"


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (Choice.HOST, b"one\nhost"),
        (Choice.RUN, b"one\nrun\n"),
        (Choice.HOST_FIRST, b"one\nhost\nrun\n"),
        (Choice.RUN_FIRST, b"one\nrun\nhost"),
        (Choice.BASE, b"one\ntwo\n"),
    ],
)
def test_an_overlap_is_decided_for_a_side_both_or_none(choice: Choice, wanted: bytes) -> None:
    merged = merge(b"one\ntwo\n", b"one\nhost", b"one\nrun\n")
    assert merged.decided([choice]) == wanted


def test_each_overlap_has_a_choice_of_its_own() -> None:
    host = edited(BASE, (b"two", b"h2"), (b"six", b"h6"))
    run = edited(BASE, (b"two", b"r2"), (b"four", b"FOUR"), (b"six", b"r6"))
    merged = merge(BASE, host, run)
    assert merged.decided([Choice.RUN, Choice.HOST]) == edited(
        BASE, (b"two", b"r2"), (b"four", b"FOUR"), (b"six", b"h6")
    )


@pytest.mark.parametrize(
    ("sides", "reason"),
    [
        ((b"a\0", b"b\0", b"c\0"), "it is binary"),
        ((b"a\n", b"b\n", b"\0\n"), "it is binary"),
        (
            (b"a\n", b"b\n", b"x" * (three_way.MAX_BYTES + 1)),
            "it is too large to be compared line by line",
        ),
        (
            (b"a\n", b"b\n", b"\n" * (three_way.MAX_LINES + 1)),
            "it is too large to be compared line by line",
        ),
    ],
    ids=["all binary", "one became binary", "many bytes", "many lines"],
)
def test_what_has_no_lines_to_compare_is_not_merged(
    sides: tuple[bytes, bytes, bytes], reason: str
) -> None:
    merged = merge(*sides)
    assert (merged.problem, merged.parts, merged.contents) == (reason, (), None)


def test_what_only_one_side_changed_needs_no_lines() -> None:
    assert merge(b"\0", b"\0", b"\0new").contents == b"\0new"
    assert merge(b"\0", b"\0new", b"\0").contents == b"\0new"
    assert merge(b"\0", b"\0new", b"\0new").contents == b"\0new"


# Against git

LINES = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=12)
texts = st.builds(
    lambda lines, ends: "".join(f"{line}\n" for line in lines).encode()[: None if ends else -1],
    LINES,
    st.booleans(),
)


@st.composite
def edits_of_distinct_lines(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """A text whose lines are all different, and two edits of it."""
    return sides(random.Random(draw(st.integers(0, 2**32))))


def sides(dice: random.Random) -> tuple[bytes, bytes, bytes]:
    """A text and two edits of it: short or long, with either line end, both, or none at last."""
    ends = dice.choice([["\n"], ["\n"], ["\r\n"], ["\n", "\r\n"]])
    count = dice.choice([0, 1, dice.randint(0, 14), dice.randint(0, 14), dice.randint(0, 200)])
    base = [f"line {number}{dice.choice(ends)}" for number in range(count)]
    if dice.random() < 0.1:
        base[-1:] = [line.rstrip() for line in base[-1:]]
    host, run = edited_lines(dice, base, "host"), edited_lines(dice, base, "run")
    if dice.random() < 0.15:  # both put something in at one place, alike at first or not at all
        at = dice.randint(0, len(base))
        come = ["shared\n"] if dice.random() < 0.5 else []
        host, run = (
            "".join([*base[:at], *come, f"{who} put in\n", *base[at:]]).encode()
            for who in ("host", dice.choice(["host", "run"]))
        )
    return "".join(base).encode(), host, dice.choice([run, run, run, run, host, b""])


def edited_lines(dice: random.Random, base: list[str], who: str, most: int = 4) -> bytes:
    """Some lines replaced, put in or taken out, by what both may write or nobody else would."""
    lines = list(base)
    for _ in range(dice.randint(0, most)):
        at, gone = dice.randint(0, len(lines)), dice.randint(0, 3)
        come = [dice.choice(["shared\n", f"{who} {dice.random()}\n"]) for _ in range(2)]
        lines[at : at + gone] = come[: dice.randint(0, 2)]
    text = "".join(lines).encode()
    return text[:-1] if dice.random() < 0.1 else text


class Git:
    """What `git merge-file` makes of three texts."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CEILING_DIRECTORIES": str(folder.parent),
        }

    def merged(self, base: bytes, host: bytes, run: bytes, *options: str) -> bytes | None:
        """The text, None if git finds a conflict."""
        for name, data in (("base", base), ("host", host), ("run", run)):
            (self._folder / name).write_bytes(data)
        done = subprocess.run(
            ["git", "merge-file", "-p", *options, "host", "base", "run"],
            cwd=self._folder, env=self._env, capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        assert 0 <= done.returncode < 128, done.stderr
        return done.stdout if done.returncode == 0 else None


@pytest.fixture(scope="module")
def git() -> Iterator[Git]:
    with tempfile.TemporaryDirectory() as folder:
        yield Git(Path(folder))


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@needs_git
@settings(max_examples=200)
@given(three=edits_of_distinct_lines())
def test_where_lines_are_distinct_it_is_what_git_makes_of_it(
    git: Git, three: tuple[bytes, bytes, bytes]
) -> None:
    assert merge(*three).contents == git.merged(*three)


@needs_git
@settings(max_examples=200)
@given(base=texts, host=texts, run=texts)
def test_where_lines_repeat_it_differs_from_git_only_in_which_of_them_moved(
    git: Git, base: bytes, host: bytes, run: bytes
) -> None:
    """The same lines in another order of edits: a comparison may pair repeated lines otherwise."""
    mine, theirs = merge(base, host, run).contents, git.merged(base, host, run)
    if mine is not None:
        assert_holds_both(base, host, run, mine)
    if mine is not None and theirs is not None:
        assert Counter(mine.split(b"\n")) == Counter(theirs.split(b"\n"))


def assert_holds_both(base: bytes, host: bytes, run: bytes, merged: bytes) -> None:
    """Every line that a side put in is there, every line that a side took out is gone."""
    lines = {name: Counter(text.split(b"\n")) for name, text in
             (("base", base), ("host", host), ("run", run), ("merged", merged))}  # fmt: skip
    for line in set().union(*lines.values()):
        was, ours, theirs = (lines[name][line] for name in ("base", "host", "run"))
        changed = sorted((ours - was, theirs - was))
        # Both may have made the same edit, which counts once.
        least, most = min(sum(changed), changed[0]), max(sum(changed), changed[1])
        assert was + least <= lines["merged"][line] <= was + most, line


@settings(max_examples=300)
@given(base=texts, host=texts, run=texts)
def test_it_does_not_matter_who_comes_first(base: bytes, host: bytes, run: bytes) -> None:
    one, other = merge(base, host, run), merge(base, run, host)
    assert one.contents == other.contents
    assert [(each.base, each.host, each.run) for each in one.overlaps] == [
        (each.base, each.run, each.host) for each in other.overlaps
    ]


@given(base=texts, text=texts)
def test_a_side_that_changed_nothing_gives_way(base: bytes, text: bytes) -> None:
    assert merge(base, base, text).contents == text
    assert merge(base, text, base).contents == text
    assert merge(base, text, text).contents == text


@given(base=texts, host=texts, run=texts)
def test_what_is_to_be_decided_differs_on_all_sides(base: bytes, host: bytes, run: bytes) -> None:
    for overlap in merge(base, host, run).overlaps:
        assert len({overlap.base, overlap.host, overlap.run}) == 3


@needs_git
@given(three=edits_of_distinct_lines(), at=st.integers(0, 2), where=st.integers(0, 40))
def test_what_is_binary_for_git_is_no_text_here(
    git: Git, three: tuple[bytes, bytes, bytes], at: int, where: int
) -> None:
    sides = list(three)
    sides[at] = sides[at][:where] + b"\0" + sides[at][where:]
    base, host, run = sides
    merged = merge(base, host, run)
    if host in (base, run) or run == base:
        assert merged.contents is not None, "it needs no lines"
    else:
        assert merged.problem == "it is binary"
        with pytest.raises(AssertionError, match="Cannot merge binary files"):
            git.merged(base, host, run)


@needs_git
@pytest.mark.slow
@settings(max_examples=2000)
@given(three=edits_of_distinct_lines())
def test_thousands_of_edits_are_merged_as_git_merges_them(
    git: Git, three: tuple[bytes, bytes, bytes]
) -> None:
    assert merge(*three).contents == git.merged(*three)
