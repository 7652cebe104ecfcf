"""A plan that is written down is read back as it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podbot.changes.applying.moves import Folder, Move, Place, Plan, as_json, of_data
from podbot.changes.model import FileType, State

numbers = st.integers(min_value=0, max_value=2**63)
names = st.text(st.characters(codec=None, exclude_characters="\0"), max_size=20)
states = st.builds(
    State,
    st.sampled_from(FileType),
    st.integers(0, 0o7777), numbers, numbers, numbers,
    st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62), numbers, numbers, numbers,
    st.none() | names, numbers,
    st.lists(st.tuples(names, st.binary(max_size=9)), max_size=2).map(tuple),
)  # fmt: skip
moves = st.builds(
    Move, numbers, st.integers(0, 3), names, st.none() | states, st.none() | states,
    st.none() | names, st.booleans(), st.booleans(),
)  # fmt: skip
folders = st.builds(
    Folder, st.integers(0, 3), names, st.none() | states, st.none() | states,
    st.none() | st.integers(-(2**62), 2**62), st.booleans(),
)  # fmt: skip


@settings(deadline=None)
@given(st.none() | states)
def test_a_state_is_read_back_as_it_was(state: State | None) -> None:
    text = as_json(state)
    assert text.isascii() and "\n" not in text
    assert of_data(json.loads(text)) == state


@settings(deadline=None)
@given(st.lists(moves, max_size=4), st.lists(folders, max_size=3))
def test_a_plan_is_read_back_as_it_was(some: list[Move], notes: list[Folder]) -> None:
    places = tuple(Place(f"/t{number}", "/kept") for number in range(4))
    plan = Plan("t", "layer", 1.5, places, tuple(some), tuple(notes))
    lines = list(plan.lines())
    assert all(line.isascii() and "\n" not in line for line in lines)
    assert Plan.of_lines(iter(lines)) == plan
    assert json.loads(lines[0])["paths"] == len(plan.paths)


def test_a_plan_of_thousands_is_read_back_and_a_cut_one_is_not() -> None:
    state = State(FileType.FILE, 0o644, 0, 0, 1, 2, 3, 4, 5)
    many = tuple(Move(number, 0, f"f{number}", None, state) for number in range(2500))
    plan = Plan("t", None, 0.0, (Place("/a", "/b"),), many, ())
    lines = list(plan.lines())

    assert Plan.of_lines(iter(lines)) == plan
    with pytest.raises(ValueError, match="cut short"):
        Plan.of_lines(iter(lines[:-1]))
    with pytest.raises(ValueError, match="cut short"):
        Plan.of_lines(iter([*lines[:1000], *lines[1001:]]))
    with pytest.raises(ValueError):
        Plan.of_lines(iter([*lines[:-2], lines[-2][:-9]]))
