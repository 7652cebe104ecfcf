"""Snapshots restore exactly, as JSON too, and what is read back is not trusted."""

from __future__ import annotations

import json
import math
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_values import (
    AddStep,
    Bits,
    Box,
    Colour,
    Everything,
    Initial,
    Name,
    Note,
    Odd,
    Picky,
    Plan,
    Result,
    Settings,
    Unresolved,
    Word,
)

from podbot.errors import Kind, SnapshotRestoreError, SnapshotSerializationError
from podbot.runtime.events import InProcessEventBus, PromptExecuted, PromptRendered, ToolInvoked
from podbot.runtime.session import Session, Snapshot, append, upsert_by

# A machine under load is slow; that says nothing about what is tested.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

TYPES = (Everything, Note, Plan, Settings, Odd, Unresolved, Picky, Initial, Result, Box, Colour)


def restored(session: Session, *more: type) -> Session:
    """Another session that holds what went through JSON."""
    text = session.snapshot().to_json()
    other = Session(bus=InProcessEventBus())
    other.mutate().rollback(Snapshot.from_json(text, types={*session.types, *more}))
    return other


def holding(*values: Any) -> Session:
    session = Session(bus=InProcessEventBus(), session_id="s1")
    for value in values:
        session.mutate(type(value)).append(value)
    return session


# In memory

EVENTS = st.lists(
    st.one_of(
        st.builds(Note, st.sampled_from("abc"), st.integers(0, 3)),
        st.builds(AddStep, st.sampled_from("abc")),
        st.builds(Plan, st.sampled_from("abc")),
        st.sampled_from(["clear", "seed", "reset"]),
    ),
    max_size=40,
)


def run(session: Session, events: list[Any]) -> None:
    for event in events:
        if event == "clear":
            session.mutate(Note).clear()
        elif event == "seed":
            session.mutate(Plan).seed([Plan("seeded"), Plan("again")])
        elif event == "reset":
            session.mutate().reset()
        else:
            session.mutate().dispatch(event)


def everything_in(session: Session) -> dict[type, tuple[object, ...]]:
    return {kind: values.all() for kind, values in session.snapshot().slices.items() if values}


@PATIENT
@given(before=EVENTS, after=EVENTS)
def test_rolling_back_restores_exactly(before: list[Any], after: list[Any]) -> None:
    session = Session(bus=InProcessEventBus())
    session.mutate(Plan).register(Plan, upsert_by(lambda plan: plan.title))
    run(session, before)
    snapshot, held = session.snapshot(), everything_in(session)

    run(session, after)
    session.mutate().rollback(snapshot)

    assert everything_in(session) == held
    run(session, after)  # and it goes on from there as it would have
    fresh = Session(bus=InProcessEventBus())
    fresh.mutate(Plan).register(Plan, upsert_by(lambda plan: plan.title))
    run(fresh, before + after)
    assert everything_in(session) == everything_in(fresh)


def test_a_snapshot_is_not_changed_by_what_comes_later(session: Session) -> None:
    session.mutate(Note).seed(Note("a"))
    snapshot = session.snapshot()
    session.mutate(Note).append(Note("b"))

    assert snapshot.session_id == "s1"
    assert snapshot.slices[Note].all() == (Note("a"),)
    with pytest.raises(TypeError):
        snapshot.slices[Note] = ()  # type: ignore[index]


def test_slices_a_snapshot_does_not_know_become_empty(session: Session) -> None:
    snapshot = session.snapshot()
    session.mutate(Note).seed(Note("a"))
    session.mutate().rollback(snapshot)

    assert session.query(Note).all() == ()


# Through JSON


def test_a_whole_session_comes_back(bus: InProcessEventBus) -> None:
    session = Session(bus=bus, session_id="s1", tags={"scope": "test"})
    session.mutate(Plan).seed([Plan("p", (Note("a", 1), Note("b")))])
    session.mutate(Note).clear()
    call = ToolInvoked("ns", "key", "t", Settings({"A": "1"}), Result("done", Note("x")), "s1")
    failed = ToolInvoked("ns", "key", "t", "{bad", Result("no", success=False), "s1", "call-1")
    for event in (
        PromptRendered("ns", "key", "# Text", ("ls",), session_id="s1"),
        call,
        failed,
        PromptExecuted("ns", "key", "scripted", "done", Plan("answer"), session_id="s1"),
    ):
        assert bus.publish(event).ok

    snapshot = session.snapshot()
    again = Snapshot.from_json(snapshot.to_json(), types={*session.types, Settings, Result})

    assert again == snapshot
    assert again.tags == {"scope": "test"}
    other = Session(bus=bus)
    other.mutate().rollback(again)
    assert other.query(ToolInvoked).all() == (call, failed)
    assert other.query(Plan).all() == session.query(Plan).all()
    other.mutate(ToolInvoked).append(call)  # known, so not taken twice
    assert len(other.query(ToolInvoked).all()) == 2


def test_the_json_is_versioned_and_names_types_in_full(session: Session) -> None:
    session.mutate(Note).seed(Note("ä", 1))
    whole = json.loads(session.snapshot().to_json())

    assert whole == {
        "format": "podbot.session",
        "version": 1,
        "session_id": "s1",
        "created_at": {"$": "datetime", "value": whole["created_at"]["value"]},
        "tags": {},
        "slices": [
            {
                "type": "session_values:Note",
                "values": [
                    {
                        "$": "data",
                        "type": "session_values:Note",
                        "fields": {"text": "ä", "number": 1},
                    }
                ],
            }
        ],
    }


FULL = Everything(
    truth=False,
    whole=-(10**40),
    real=1e-300,
    text="line\n\x00\ud800 ☃ 𝄞",
    raw=bytes(range(256)),
    at=datetime(2025, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=-3, seconds=7))),
    day=date(1, 1, 1),
    span=timedelta(-3, 5, 7),
    uuid=UUID(int=5),
    exact=Decimal("1.50"),
    path=Path("/a/ä b"),
    pure=PurePosixPath("x/y"),
    colour=Colour.GREEN,
    word=Word.YES,
    name=Name("n"),
    items=[1, 2],
    pair=(1, "x"),
    many=(1.5, 2),
    blanks=(None, None),
    group=frozenset({"b", "a"}),
    loose={3, 1},
    table={"$": 1, "": 2},
    numbered=types.MappingProxyType({1: "a", 2: "b"}),
    row=["a", "b"],
    some=(1, 2),
    anything={"a": [1, {"b": (None,)}]},
    thing=Settings({"A": "1"}),
    note=Note("n"),
    box=Box(Note("inside")),
    fixed=3,
)


@pytest.mark.parametrize("name", [field.name for field in fields(Everything)])
def test_each_kind_of_value_comes_back_as_itself(name: str) -> None:
    value = replace(Everything(), **{name: getattr(FULL, name)})
    [again] = restored(holding(value), Settings).query(Everything).all()

    assert again == value
    assert type(getattr(again, name)) is type(getattr(value, name))


def test_all_of_it_together_comes_back() -> None:
    assert restored(holding(FULL), Settings).query(Everything).all() == (FULL,)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_does_not_have_come_back(number: float) -> None:
    session = holding(Everything(real=number))
    [again] = restored(session).query(Everything).all()

    assert repr(again.real) == repr(number)
    assert "NaN" not in session.snapshot().to_json()


def test_equal_sets_are_written_alike() -> None:
    texts = {
        json.dumps(json.loads(holding(Everything(thing=group)).snapshot().to_json())["slices"])
        for group in ({8, 0, 16}, {16, 8, 0}, {0, 16, 8})
    }

    assert len(texts) == 1


PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(),
        st.binary(max_size=20),
        st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=5))])).filter(
            lambda at: not at.fold
        ),
        st.dates(),
        st.timedeltas(),
        st.uuids(),
        st.decimals(allow_nan=False),
        st.sampled_from(Colour),
        st.text(alphabet="ab/.$", min_size=1).map(PurePosixPath),
        st.builds(Note, st.text(), st.integers()),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(alphabet="$ab"), inner, max_size=4),
        st.dictionaries(st.integers(), inner, max_size=4),
        st.builds(Box, inner),
    ),
    max_leaves=12,
)


@PATIENT
@given(value=PLAIN)
def test_any_nesting_of_values_comes_back(value: object) -> None:
    [again] = restored(holding(Box(value)), Colour, Note).query(Box).all()

    assert again == Box(value)
    assert repr(again) == repr(Box(value))  # 1, 1.0 and True are equal, and not the same


@PATIENT
@given(events=EVENTS)
def test_any_session_comes_back_from_json(events: list[Any]) -> None:
    session = Session(bus=InProcessEventBus())
    run(session, events)

    assert restored(session).snapshot().slices == session.snapshot().slices


# What cannot be written


class Text(str):
    """Would come back as a plain str."""


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Box(object()), r"Box.inside: a builtins:object has no form in JSON"),
        (Box(Text("x")), r"test_snapshots:Text has no form in JSON"),
        (Box(lambda: None), "builtins:function has no form"),
        (Box(Note), "builtins:type has no form"),
        (Box([1, {2: object()}]), "builtins:object has no form"),
        (Box(10**5000), "digits"),
        (Box(datetime(2025, 1, 1, tzinfo=ZoneInfo("UTC"))), "the zone or fold of 2025-01-01"),
        (Box(datetime(2025, 1, 1, fold=1)), "the zone or fold of 2025-01-01"),
        (Box(Bits.ONE | Bits.TWO), "Bits has no form in JSON"),
        (Note(3), "Note.text: 3 is not <class 'str'>"),  # type: ignore[arg-type]
        (Note("x", True), "Note.number: True is not <class 'int'>"),
        (Odd(call=print), r"Odd.call: a .* has no form in JSON"),
        (Odd(cls=int), "Odd.cls: "),
        (Odd(sized=Settings({})), "Odd.sized: "),  # type: ignore[arg-type]
        (Odd(limited=1.5), "Odd.limited: "),
        (Unresolved(), "the annotations of Unresolved mean nothing at run time"),
    ],
)
def test_what_json_cannot_carry_is_named(value: object, why: str) -> None:
    with pytest.raises(SnapshotSerializationError, match=why) as raised:
        holding(value).snapshot().to_json()

    assert raised.value.kind is Kind.SNAPSHOT_FAILED
    assert raised.value.remedy


def test_values_nested_too_deep_are_not_written() -> None:
    value: object = 1
    for _ in range(100):
        value = [value]
    with pytest.raises(SnapshotSerializationError, match="nested deeper than 64"):
        holding(Box(value)).snapshot().to_json()


def test_two_types_of_one_name_cannot_be_told_apart() -> None:
    def made() -> type:
        @dataclass(frozen=True)
        class Twin:
            number: int

        return Twin

    one, other = made(), made()
    session = holding(one(1), other(2))

    with pytest.raises(SnapshotSerializationError, match="two types of slices are called"):
        session.snapshot().to_json()
    with pytest.raises(SnapshotRestoreError, match="two of the allowed types are called"):
        Snapshot.from_json(holding(one(1)).snapshot().to_json(), types=[one, other])
    assert Snapshot.from_json(holding(one(1)).snapshot().to_json(), types=[one, one])


def test_derived_fields_are_derived_again() -> None:
    session = holding(Odd())
    assert "length" not in session.snapshot().to_json()

    assert restored(session).query(Odd).all() == (Odd(),)


# What must not be read


def tampered(change: Callable[[Any], object], *values: object) -> str:
    whole = json.loads(holding(*(values or (Note("a"),))).snapshot().to_json())
    change(whole)
    return json.dumps(whole)


def first(whole: Any) -> Any:
    return whole["slices"][0]["values"][0]


def put(whole: Any, value: object) -> None:
    """Something else as the content of a `Box`."""
    first(whole)["fields"]["inside"] = value


def tagged(kind: object, value: object) -> dict[str, object]:
    return {"$": kind, "value": value}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda w: w.update(format="other"), "does not say that it is one"),
        (lambda w: w.update(version=2), "its version is 2, and 1 is known"),
        (lambda w: w.update(version=True), "its version is True"),
        (lambda w: w.update(version=1.0), "its version is 1.0"),
        (lambda w: w.pop("version"), "its version is None"),
        (lambda w: w.pop("tags"), "members are not those"),
        (lambda w: w.update(more=1), "members are not those"),
        (lambda w: w.update(session_id=3), "which session it is of"),
        (lambda w: w.update(created_at="2025-01-01"), "which session it is of, or when"),
        (lambda w: w.update(created_at=tagged("datetime", 3)), "3 is no datetime"),
        (lambda w: w.update(tags=[]), "tags are not text"),
        (lambda w: w.update(tags={"a": 1}), "tags are not text"),
        (lambda w: w.update(slices={}), "not a list of slices"),
        (lambda w: w["slices"].append(3), "not a list of slices"),
        (lambda w: w["slices"].append(w["slices"][0]), "there twice, or is not a list"),
        (lambda w: w["slices"][0].update(values={}), "there twice, or is not a list"),
        (lambda w: w["slices"][0].update(more=1), "not a list of slices"),
        (lambda w: w["slices"][0].update(type="os:system"), "'os:system' is not among those"),
        (lambda w: w["slices"][0].update(type=["x"]), "is not among those"),
        (lambda w: w["slices"][0].update(type="session_values:Plan"), "holds something else"),
        (lambda w: w["slices"][0].update(values=[1]), "holds something else"),
        (lambda w: first(w).update(type="subprocess:Popen"), "'subprocess:Popen' is not among"),
        (lambda w: first(w).update(more=1), "must have type and fields, and no more"),
        (lambda w: first(w).update(fields=[]), "not its fields"),
        (lambda w: first(w).update(type="session_values:Colour"), "not its fields"),
        (lambda w: first(w)["fields"].update(more=1), "Note has no field 'more'"),
        (lambda w: first(w)["fields"].update(text=3), "Note.text: 3 is not"),
        (lambda w: first(w)["fields"].update(number=True), "Note.number: True is not"),
        (lambda w: first(w)["fields"].update(number=None), "Note.number: None is not"),
        (lambda w: first(w)["fields"].update(number=1.0), "Note.number: 1.0 is not"),
        (lambda w: first(w)["fields"].pop("text"), "missing 1 required positional argument"),
        (lambda w: first(w)["fields"].update(text={"$": "x"}), "Note.text: 'x' must have value"),
    ],
)
def test_a_snapshot_that_was_tampered_with_is_refused(
    change: Callable[[Any], object], why: str
) -> None:
    with pytest.raises(SnapshotRestoreError, match=why) as raised:
        Snapshot.from_json(tampered(change), types=TYPES)

    assert raised.value.kind is Kind.BAD_SNAPSHOT
    assert raised.value.remedy


DEEP: object = 1
for _ in range(200):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (tagged("nonsense", []), "'nonsense' is not known"),
        (tagged(3, []), "3 is not known"),
        (tagged(["x"], []), "is not known"),
        (tagged("tuple", {}), "'tuple' does not hold a list"),
        (tagged("set", [[]]), "a set cannot hold this"),
        (tagged("frozenset", [1, 1]), "a frozenset holds something twice"),
        (tagged("dict", [1]), "not a pair"),
        (tagged("dict", [[1, 2, 3]]), "not a pair"),
        (tagged("dict", [[1, 2], [1, 3]]), "has a key twice"),
        (tagged("mapping", [[[], 2]]), "cannot have this key"),
        (tagged("float", "1.5"), "is a number in JSON"),
        (tagged("float", "nonsense"), "'nonsense' is no float"),
        (tagged("bytes", "a"), "'a' is no bytes"),
        (tagged("bytes", "AA!A=="), "is no bytes"),
        (tagged("date", "20250101"), "'20250101' is no date"),
        (tagged("timedelta", "1"), "'1' is no timedelta"),
        (tagged("timedelta", "1 2 99999999"), "is no timedelta"),
        (tagged("timedelta", "99999999999 0 0"), "is no timedelta"),
        (tagged("uuid", "x"), "'x' is no uuid"),
        (tagged("decimal", "x"), "'x' is no decimal"),
        (tagged("decimal", "1_0"), "is no decimal"),
        (tagged("path", "a//b"), "'a//b' is no path"),
        ({"$": "enum", "type": "session_values:Colour", "name": "BLUE"}, "has no member 'BLUE'"),
        ({"$": "enum", "type": "session_values:Colour", "name": 1}, "has no member 1"),
        ({"$": "enum", "type": "session_values:Note", "name": "x"}, "has no member 'x'"),
        ({"$": "enum", "type": "enum:Enum", "name": "x"}, "is not among those"),
        ({"$": "data", "type": "session_values:AddStep", "fields": {"text": "x"}}, "not among"),
        ({"$": "data", "type": "session_values:Picky", "fields": {"even": 3}}, "made: odd"),
        ({"$": "data", "type": "session_values:Initial", "fields": {"text": "x"}}, "seed"),
        ({"$": "data", "type": "session_values:Unresolved", "fields": {}}, "mean nothing"),
        ({"$": "data", "type": "session_values:Odd", "fields": {"length": 1}}, "no field 'length'"),
        (DEEP, "nested deeper than 64"),
    ],
)
def test_a_value_that_stands_for_nothing_is_refused(value: object, why: str) -> None:
    text = tampered(lambda whole: put(whole, value), Box(1))
    with pytest.raises(SnapshotRestoreError, match=why):
        Snapshot.from_json(text, types=TYPES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nothing", 0),
        ("truth", 1),
        ("whole", 1.5),
        ("real", True),
        ("real", "1"),
        ("at", tagged("date", "2025-01-01")),
        ("colour", 1),
        ("word", "yes"),
        ("word", True),
        ("name", 1),
        ("items", ["1"]),
        ("items", tagged("tuple", [1])),
        ("pair", tagged("tuple", [1])),
        ("pair", tagged("tuple", ["x", 1])),
        ("many", tagged("tuple", ["x"])),
        ("none", tagged("tuple", [1])),
        ("blanks", tagged("tuple", [0])),
        ("group", tagged("set", ["a"])),
        ("loose", tagged("set", ["a"])),
        ("table", {"a": "1"}),
        ("table", tagged("dict", [[1, 1]])),
        ("numbered", {"a": "b"}),
        ("row", "one word"),
        ("some", ["a"]),
        ("note", {"text": "x"}),
        ("fixed", "x"),
    ],
)
def test_a_field_must_fit_its_annotation(name: str, value: object) -> None:
    text = tampered(lambda whole: first(whole)["fields"].update({name: value}), Everything())
    with pytest.raises(SnapshotRestoreError, match=f"Everything.{name}"):
        Snapshot.from_json(text, types=TYPES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "3",
        "{",
        b"\xff\xfe\x00",
        '{"format": NaN}',
        '{"format": 1, "format": "podbot.session"}',
        "[" * 100_000 + "]" * 100_000,
        '{"version": ' + "9" * 10_000 + "}",
    ],
    ids=repr,
)
def test_what_is_no_snapshot_at_all_is_refused(text: str | bytes) -> None:
    with pytest.raises(SnapshotRestoreError, match="this snapshot cannot be restored"):
        Snapshot.from_json(text, types=TYPES)


@PATIENT
@given(data=st.data())
def test_random_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    text = holding(FULL, Plan("p", (Note("a"),))).snapshot().to_json()
    at = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.integers(0, 20))
    damaged = text[:at] + data.draw(st.text(max_size=5)) + text[at + length :]
    try:
        snapshot = Snapshot.from_json(damaged, types=TYPES)
    except SnapshotRestoreError:
        return
    for kind, values in snapshot.slices.items():
        assert kind in TYPES
        assert all(isinstance(value, kind) for value in values)


def test_a_snapshot_that_is_too_long_is_not_even_parsed() -> None:
    text = holding(Note("a")).snapshot().to_json()

    with pytest.raises(SnapshotRestoreError, match="bytes, and 10 are allowed") as raised:
        Snapshot.from_json(text, types=TYPES, max_bytes=10)
    assert raised.value.kind is Kind.TOO_LARGE
    assert Snapshot.from_json(text.encode(), types=TYPES, max_bytes=len(text))


def test_a_name_in_a_snapshot_is_never_imported() -> None:
    text = tampered(lambda whole: first(whole).update(type="this:Zen"))
    sys.modules.pop("this", None)

    with pytest.raises(SnapshotRestoreError):
        Snapshot.from_json(text, types=TYPES)
    assert "this" not in sys.modules


def test_types_that_fields_name_need_not_be_allowed_by_hand() -> None:
    text = holding(Plan("p", (Note("a"),)), Everything(colour=Colour.RED)).snapshot().to_json()

    assert Snapshot.from_json(text, types=[Plan, Everything])
    with pytest.raises(SnapshotRestoreError, match="session_values:Plan' is not among"):
        Snapshot.from_json(text, types=[Everything])


def test_a_field_that_is_missing_takes_its_default() -> None:
    text = tampered(lambda whole: first(whole)["fields"].pop("number"), Note("a", 5))

    [note] = Snapshot.from_json(text, types=TYPES).slices[Note]
    assert note == Note("a", 0)


def test_a_result_in_a_log_must_be_one() -> None:
    event = ToolInvoked("ns", "key", "t", None, Result("done"))
    text = tampered(lambda whole: first(whole)["fields"].update(result=None), event)

    with pytest.raises(SnapshotRestoreError, match=r"ToolInvoked.result: None is not"):
        Snapshot.from_json(text, types=[ToolInvoked, Result])


def test_reducers_go_on_after_a_restore() -> None:
    session = holding(*(Note("n", number) for number in range(600)))
    again = restored(session)
    again.mutate(Note).register(Note, append)
    again.mutate(Note).dispatch(Note("n", 300))
    again.mutate(Note).dispatch(Note("new"))

    assert len(again.query(Note).all()) == 601
