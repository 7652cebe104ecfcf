"""Comparing lines: always right, the fewest edits where that is affordable, never without end."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podbot.changes.diffs import _lines
from podbot.changes.diffs._lines import Edit, edits, slid

WORDS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"", b"  x"]), max_size=14)


def applied(found: list[Edit], old: list[bytes], new: list[bytes]) -> list[bytes]:
    result: list[bytes] = []
    at = 0
    for edit in found:
        result += old[at : edit.old_from] + new[edit.new_from : edit.new_to]
        at = edit.old_to
    return result + old[at:]


def longest_common(old: list[bytes], new: list[bytes]) -> int:
    """The textbook's table."""
    row = [0] * (len(new) + 1)
    for line in old:
        before = row[:]
        for place, other in enumerate(new):
            row[place + 1] = before[place] + 1 if line == other else max(row[place], row[place + 1])
    return row[-1]


def size(found: list[Edit]) -> int:
    return sum(edit.old_to - edit.old_from + edit.new_to - edit.new_from for edit in found)


@given(WORDS, WORDS)
def test_edits_turn_the_old_text_into_the_new_with_as_few_lines_as_can_be(
    old: list[bytes], new: list[bytes]
) -> None:
    found = edits(old, new)
    assert applied(found, old, new) == new
    assert size(found) == len(old) + len(new) - 2 * longest_common(old, new)


@given(WORDS, WORDS, st.integers(0, 3))
def test_sliding_an_edit_keeps_it_true_and_away_from_the_others(
    old: list[bytes], new: list[bytes], margin: int
) -> None:
    found = edits(old, new)
    moved = slid(found, old, new, margin)
    assert applied(moved, old, new) == new
    assert size(moved) == size(found)
    ends = [0, *(edit.old_to for edit in moved)]
    for number, edit in enumerate(moved):
        assert edit.old_from > ends[number] or number == 0


@given(st.integers(0, 10_000), st.integers(1, 200), st.integers(1, 60))
def test_long_texts_with_many_repeated_lines_are_compared_truly(
    seed: int, count: int, kinds: int
) -> None:
    dice = random.Random(seed)
    old = [b"%d" % dice.randrange(kinds) for _ in range(count)]
    new = [line for line in old if dice.random() > 0.3]
    for _ in range(dice.randrange(count)):
        new.insert(dice.randrange(len(new) + 1), b"%d" % dice.randrange(kinds + 3))
    found = edits(old, new)
    assert applied(found, old, new) == new


def test_texts_that_are_equal_or_empty_need_no_or_one_edit() -> None:
    assert edits([], []) == []
    assert edits([b"a"], [b"a"]) == []
    assert edits([], [b"a", b"b"]) == [Edit(0, 0, 0, 2)]
    assert edits([b"a", b"b"], []) == [Edit(0, 2, 0, 0)]


def test_a_moved_block_is_found_between_lines_that_are_unique() -> None:
    old = [b"%d" % number for number in range(3000)]
    new = old[1000:] + old[:1000]
    assert size(edits(old, new)) == 2000


def test_an_added_function_begins_with_its_first_line() -> None:
    old = [b"def a():", b"    one", b"    end", b"", b"def c():", b"    end"]
    new = [*old[:4], b"def b():", b"    two", b"    end", b"", *old[4:]]
    (edit,) = slid(edits(old, new), old, new, 0)
    assert new[edit.new_from] == b"def b():"


NUMBER = 20_000
HARD: dict[str, Callable[[random.Random], tuple[list[bytes], list[bytes]]]] = {
    "nothing in common": lambda dice: (
        [b"a%d" % n for n in range(NUMBER)],
        [b"b%d" % n for n in range(NUMBER)],
    ),
    "two lines at random": lambda dice: (
        [b"%d" % dice.randrange(2) for _ in range(NUMBER)],
        [b"%d" % dice.randrange(2) for _ in range(NUMBER)],
    ),
    "a hundred lines at random": lambda dice: (
        [b"%d" % dice.randrange(100) for _ in range(NUMBER)],
        [b"%d" % dice.randrange(100) for _ in range(NUMBER)],
    ),
    "shuffled": lambda dice: (
        [b"%d" % n for n in range(NUMBER)],
        dice.sample([b"%d" % n for n in range(NUMBER)], NUMBER),
    ),
    "backwards, each line twice": lambda dice: (
        [b"%d" % (n // 2) for n in range(NUMBER)],
        [b"%d" % (n // 2) for n in range(NUMBER, 0, -1)],
    ),
    "one line over and over": lambda dice: ([b"x"] * NUMBER, [b"x", b"y"] * (NUMBER // 2)),
}


@pytest.mark.parametrize("kind", HARD)
def test_texts_made_to_be_hard_are_compared_truly_within_the_budget(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = HARD[kind](random.Random(1))
    monkeypatch.setattr(_lines, "BUDGET", 150_000)
    comparison = _lines._Comparison(old, new)
    comparison.runs()
    # One round of a walk, or one look at a stretch, is what may be spent beyond it.
    assert comparison._budget > -2 * NUMBER - 2 * _lines.MOST_EDITS
    assert applied(edits(old, new), old, new) == new


def test_without_a_budget_all_that_differs_is_one_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lines, "BUDGET", 0)
    old, new = [b"head", b"a", b"b", b"c", b"tail"], [b"head", b"c", b"x", b"a", b"tail"]
    assert edits(old, new) == [Edit(1, 4, 1, 4)]
