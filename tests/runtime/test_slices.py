"""A slice is an immutable sequence that shares what it can with the versions before it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_values import Note, Plan, Settings

from podbot.errors import SessionError
from podbot.runtime.session.slices import CHUNK, Slice

# A machine under load is slow; that says nothing about what is tested.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Around the length of a chunk is where mistakes would be.
LENGTHS = st.one_of(st.integers(0, 3), st.integers(CHUNK - 2, CHUNK + 2), st.just(2 * CHUNK + 1))


def notes(count: int) -> list[Note]:
    return [Note("note", number) for number in range(count)]


@settings(PATIENT, max_examples=40)
@given(start=LENGTHS, more=LENGTHS)
def test_appending_gives_what_a_tuple_would(start: int, more: int) -> None:
    values = Slice(Note, notes(start))
    for note in notes(start + more)[start:]:
        values = values.appended(note)

    expected = tuple(notes(start + more))
    assert len(values) == len(expected)
    assert tuple(values) == values.all() == expected
    assert [values[at] for at in range(len(values))] == list(expected)
    assert values[1:-1] == expected[1:-1]
    assert values == expected
    assert values == Slice(Note, expected)


@settings(PATIENT, max_examples=40)
@given(data=st.data(), length=LENGTHS.filter(bool))
def test_replacing_gives_what_a_list_would(data: st.DataObject, length: int) -> None:
    position = data.draw(st.integers(0, length - 1))
    values = Slice(Note, notes(length))
    values.position_of(Note("note", 0))  # now it has an index

    replaced = values.replaced(position, Note("other"))

    expected = notes(length)
    expected[position] = Note("other")
    assert replaced == tuple(expected)
    assert values == tuple(notes(length))
    assert replaced.position_of(Note("other")) == position
    assert replaced.position_of(Note("note", position)) is None


@settings(PATIENT, max_examples=30)
@given(length=LENGTHS)
def test_every_value_is_found_where_it_is(length: int) -> None:
    values = Slice(Note, notes(length))
    for position, note in enumerate(notes(length)):
        assert values.position_of(note) == position
    assert values.position_of(Note("note", length)) is None


def test_every_value_is_found_in_a_slice_that_grew_long() -> None:
    length = 11 * CHUNK + 3
    values = Slice(Note, ())
    assert values.position_of(Note("note", 0)) is None  # now it has an index, which grows along
    for note in notes(length):
        values = values.appended(note)
    everything = notes(length)
    for position in (*range(0, length, CHUNK - 1), length - 1):
        assert values.position_of(everything[position]) == position
        assert values.appended(everything[position]).position_of(everything[position]) == position
    assert values.position_of(Note("note", length)) is None


def test_older_versions_stay_as_they_were() -> None:
    old = Slice(Note, notes(CHUNK - 1))
    old.position_of(Note("x"))
    one, other = old.appended(Note("one")), old.appended(Note("other"))

    assert len(old) == CHUNK - 1
    assert one[-1] == Note("one")
    assert other[-1] == Note("other")
    assert one.position_of(Note("other")) is None
    assert other.position_of(Note("other")) == CHUNK - 1
    assert old.position_of(Note("one")) is None


def test_values_are_found_by_a_key() -> None:
    values = Slice(Note, [Note("a", 1), Note("b", 2)])

    def text(note: Note) -> object:
        return note.text

    assert values.position_of(Note("b", 9), text) == 1
    assert values.position_of(Note("c", 1), text) is None
    assert values.position_of(Note("b", 9)) is None  # the index is made for another key


def test_values_without_a_hash_are_found_too() -> None:
    values = Slice(Settings, [Settings({"a": "1"}, str(number)) for number in range(CHUNK + 5)])

    assert values.position_of(Settings({"a": "1"}, "3")) == 3
    assert values.position_of(Settings({"a": "2"}, "3")) is None
    assert values.position_of(Settings({"a": "1"}, "3", comment="not compared")) == 3
    assert values.position_of(Settings({"a": "1"}, str(CHUNK + 2))) == CHUNK + 2


def test_keys_without_a_hash_serve_too() -> None:
    values = Slice(Note, [Note("a", 1), Note("b", 2)])

    assert values.position_of(Note("b", 2), lambda note: [note.text]) == 1
    assert values.position_of(Note("b", 2), lambda note: ([note.text], note.number)) == 1


def test_a_few_comparisons_are_enough_however_long_it_is() -> None:
    compared = 0

    class Counted:
        def __init__(self, number: int):
            self.number = number

        def __hash__(self) -> int:
            return hash(self.number)

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return isinstance(other, Counted) and other.number == self.number

    values = Slice(Counted, map(Counted, range(10_000)))
    assert values.position_of(Counted(10_000)) is None
    assert values.position_of(Counted(5_000)) == 5_000
    assert compared == 1


def test_a_slice_is_read_only_and_knows_its_type() -> None:
    values = Slice(Note, [Note("a")])

    assert values.item_type is Note
    assert repr(values) == "Slice(Note, (Note(text='a', number=0),))"
    assert values != [Note("a")]
    assert values == Slice(Note, [Note("a")])
    with pytest.raises(TypeError):
        hash(values)
    with pytest.raises(TypeError):
        values[0] = Note("b")  # type: ignore[index]
    for position in (1, -2):
        with pytest.raises(IndexError, match="a slice of 1 values has none at"):
            values[position]


def test_a_value_of_another_type_is_refused() -> None:
    wrong: Note = Plan("x")  # type: ignore[assignment]
    values = Slice(Note, [Note("a")])

    for attempt in (
        lambda: Slice(Note, [wrong]),
        lambda: values.appended(wrong),
        lambda: values.replaced(0, wrong),
    ):
        with pytest.raises(SessionError, match="a slice of Note cannot hold a Plan"):
            attempt()
