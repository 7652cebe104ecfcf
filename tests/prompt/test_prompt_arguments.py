"""Arguments: parsed strictly, and a model is told how to correct what does not fit."""

from __future__ import annotations

import enum
import json
import math
import typing
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, NewType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podbot.errors import Kind, PodbotError, PromptError, ToolValidationError
from podbot.prompt import Tool, ToolContext, ToolResult
from podbot.prompt._arguments import MAX_CHARACTERS, parsed
from podbot.prompt.result import as_json

Name = NewType("Name", str)

# A machine under load is slow; that says nothing about what is tested.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Everything:
    text: str
    whole: int = 0
    number: float = 0.5
    yes: bool = False
    maybe: str | None = None
    word: Literal["a", "b", 3, None] = "a"
    colour: Colour = Colour.RED
    level: Level = Level.LOW
    several: tuple[str, ...] = ()
    pair: tuple[str, int] = ("", 0)
    items: list[int] = field(default_factory=list)
    sequence: Sequence[bool] = ()
    growing: MutableSequence[int] = field(default_factory=list)
    env: Mapping[str, str] = field(default_factory=dict)
    table: MutableMapping[str, Point] = field(default_factory=dict)
    point: Point | None = None
    points: tuple[Point, ...] = ()
    either: str | int | list[str] = ""
    named: Name = Name("")
    annotated: Annotated[int, ["unhashable"]] = 0
    none: None = None
    mixed: Literal["all"] | int = 1
    made: int = field(default=7, init=False)


@dataclass(frozen=True, slots=True)
class Bounded:
    count: int = field(default=1, metadata={"minimum": 1, "maximum": 10})
    ratio: float | None = field(default=None, metadata={"maximum": 1})
    text: str = field(default="ab", metadata={"min_length": 2, "max_length": 4})
    items: tuple[str, ...] = field(default=(), metadata={"max_length": 2})
    table: Mapping[str, str] = field(default_factory=dict, metadata={"max_length": 1})


@dataclass(frozen=True, slots=True)
class Picky:
    low: int
    high: int
    how: Literal["raise", "podbot", "bug"] = "raise"

    def __post_init__(self) -> None:
        if self.low > self.high:
            if self.how == "podbot":
                raise ToolValidationError("low is above high", remedy="swap them")
            if self.how == "bug":
                raise RuntimeError("a fault of the type itself")
            raise ValueError("low must not be above high")


def parse(cls: type | None, arguments: object) -> Any:
    return parsed(cls, "t", arguments)


def problems(cls: type | None, arguments: object) -> str:
    with pytest.raises(ToolValidationError) as caught:
        parse(cls, arguments)
    assert caught.value.kind is Kind.BAD_ARGUMENTS
    assert caught.value.remedy
    assert len(str(caught.value)) < 5000
    return caught.value.message


# What fits


def test_every_kind_of_field_takes_its_json() -> None:
    sent = {
        "text": "ä",
        "whole": -5,
        "number": 2,
        "yes": True,
        "maybe": None,
        "word": 3,
        "colour": "blue",
        "level": 2,
        "several": ["x", "y"],
        "pair": ["z", 1],
        "items": [1, 2],
        "sequence": [True],
        "growing": [3],
        "env": {"A": "b"},
        "table": {"p": {"x": 1}},
        "point": {"x": 1, "y": 2.5},
        "points": [{"x": 0}, {"x": 1}],
        "either": ["q"],
        "named": "n",
        "annotated": 4,
        "none": None,
        "mixed": "all",
    }

    for arguments in (sent, json.dumps(sent)):
        found = parse(Everything, arguments)

        assert found == Everything(
            text="ä",
            whole=-5,
            number=2.0,
            yes=True,
            word=3,
            colour=Colour.BLUE,
            level=Level.HIGH,
            several=("x", "y"),
            pair=("z", 1),
            items=[1, 2],
            sequence=(True,),
            growing=[3],
            env={"A": "b"},
            table={"p": Point(1)},
            point=Point(1, 2.5),
            points=(Point(0), Point(1)),
            either=["q"],
            named=Name("n"),
            annotated=4,
            mixed="all",
        )
        assert type(found.number) is float  # the one thing that is made into another


def test_what_is_left_out_has_its_default() -> None:
    assert parse(Everything, {"text": ""}) == Everything("")
    for nothing in (None, "", "null", " {} ", {}):  # providers differ in how they say it
        assert parse(Bounded, nothing) == Bounded()


@pytest.mark.parametrize(
    "sent",
    [
        {"count": 1},
        {"count": 10, "ratio": 1.0},
        {"ratio": None},
        {"text": "abcd"},
        {"items": ["a", "b"]},
        {"table": {"a": "b"}},
    ],
)
def test_what_lies_within_its_bounds_fits(sent: dict[str, object]) -> None:
    assert parse(Bounded, sent)


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    assert parse(None, None) is parse(None, {}) is parse(None, "{}") is None
    assert "takes no parameters" in problems(None, {"a": 1})
    assert "expected an object" in problems(None, [])


# What does not


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({}, "- text: is required: a string"),
        ({"text": 1}, "- text: expected a string, got the number 1"),
        ({"text": None}, "- text: expected a string, got null"),
        ({"text": ["a"]}, "- text: expected a string, got an array of 1 items"),
        ({"text": b"a"}, "- text: expected a string, got a value of type bytes"),
        ({"text": {}}, "- text: expected a string, got an object"),
        ({"text": "\ud800"}, "- text: holds half of a character (a lone surrogate) at position 0"),
        ({"whole": "1"}, '- whole: expected a whole number, got the string "1"'),
        ({"whole": True}, "- whole: expected a whole number, got true"),
        ({"whole": 1.0}, "- whole: expected a whole number, got the number 1.0"),
        ({"whole": 2**63}, "- whole: is too large: whole numbers must fit into 64 bits"),
        ({"number": True}, "- number: expected a number, got true"),
        ({"number": "1"}, '- number: expected a number, got the string "1"'),
        ({"number": math.nan}, "- number: expected a finite number, got the number nan"),
        ({"number": math.inf}, "- number: expected a finite number, got the number inf"),
        ({"number": 10**400}, "- number: is too large"),
        ({"yes": 1}, "- yes: expected true or false, got the number 1"),
        ({"yes": "true"}, '- yes: expected true or false, got the string "true"'),
        ({"yes": 10**5000}, "got the number (more than 64 bits)"),
        ({"maybe": 1}, "- maybe: expected a string or null, got the number 1"),
        ({"word": "c"}, '- word: expected one of "a", "b", 3, null, got the string "c"'),
        ({"word": True}, '- word: expected one of "a", "b", 3, null, got true'),
        ({"word": 3.0}, "got the number 3.0"),
        ({"colour": "RED"}, '- colour: expected one of "red", "blue", got the string "RED"'),
        ({"level": True}, "- level: expected one of 1, 2, got true"),
        ({"several": "abc"}, "- several: expected an array, each item a string, got the string"),
        ({"several": ["a", 1]}, "- several[1]: expected a string, got the number 1"),
        ({"pair": ["a"]}, "- pair: expected an array of 2: a string, a whole number, got an array"),
        ({"pair": ["a", "b"]}, "- pair[1]: expected a whole number"),
        ({"env": {"A": 1}}, '- env["A"]: expected a string, got the number 1'),
        ({"env": {1: "a"}}, '- env["1"]: expected a string, got the number 1'),
        ({"env": [1]}, "- env: expected an object, each value a string, got an array of 1 item"),
        ({"table": {"p": {"x": "1"}}}, '- table["p"].x: expected a whole number'),
        ({"point": {"y": 1}}, "- point.x: is required"),
        ({"point": {"x": 1, "z": 1}}, '- point."z": is no parameter; there are: x, y'),
        ({"points": [{"x": 1}, {"x": 1, "y": "2"}]}, "- points[1].y: expected a number"),
        ({"points": [1]}, "- points[0]: expected an object, got the number 1"),
        ({"either": 1.5}, "- either: expected a whole number, got the number 1.5"),
        ({"either": {}}, "expected a string or a whole number or an array, each item a string"),
        ({"none": 0}, "- none: expected null, got the number 0"),
        ({"mixed": "none"}, '- mixed: expected one of "all", got the string "none"'),
        ({"made": 1}, '- "made": is no parameter'),
        ({"Text": "a"}, '- "Text": is no parameter (did you mean text?)'),
        ({"wholes": 1}, "(did you mean whole?); there are: text, whole, number"),
    ],
)
def test_a_model_is_told_what_was_expected_and_what_came(
    sent: dict[str, object], told: str
) -> None:
    if "text" not in sent and told != "- text: is required: a string":
        sent = {"text": "", **sent}

    assert told in problems(Everything, sent)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"count": 0}, "- count: is 0, at least 1 is allowed"),
        ({"count": 11}, "- count: is 11, at most 10 is allowed"),
        ({"ratio": 1.5}, "- ratio: is 1.5, at most 1 is allowed"),
        ({"text": "a"}, "- text: has 1 characters, at least 2 are needed"),
        ({"text": "abcde"}, "- text: has 5 characters, at most 4 are allowed"),
        ({"items": ["a", "b", "c"]}, "- items: has 3 items, at most 2 are allowed"),
        ({"table": {"a": "", "b": ""}}, "- table: has 2 items, at most 1 are allowed"),
    ],
)
def test_what_lies_outside_its_bounds_is_refused(sent: dict[str, object], told: str) -> None:
    assert told in problems(Bounded, sent)


@pytest.mark.parametrize("sent", [1, [], [{"text": "a"}], True, 1.5])
def test_arguments_that_are_no_object_are_refused(sent: object) -> None:
    assert "- expected an object, got" in problems(Everything, sent)
    assert "- expected an object, got" in problems(Everything, json.dumps(sent))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not valid JSON: Expecting property name"),
        ("{'a': 1}", "not valid JSON"),
        ('{"text": "a"} x', "Extra data at line 1 column 15"),
        ('{"text": "a", "text": "b"}', 'the name "text" comes twice in one object'),
        ('{"text": "", "point": {"x": 1, "x": 1}}', 'the name "x" comes twice'),
        ('{"text": "", "number": NaN}', "NaN is not a JSON number"),
        ('{"text": "", "number": -Infinity}', "-Infinity is not a JSON number"),
        ('{"text": "", "number": 1e999}', "expected a finite number, got the number inf"),
        ('{"whole": ' + "1" * 5000 + "}", "4300"),
        ("[" * 100_000, "nested too deep"),
        ('{"a":' * 100_000, "nested too deep"),
    ],
)
def test_text_that_is_not_strict_json_is_refused(text: str, told: str) -> None:
    assert told in problems(Everything, text)


def test_everything_that_is_wrong_is_told_at_once_but_not_without_end() -> None:
    told = problems(Everything, {"whole": "a", "yes": 1, "extra": 1})
    assert told.count("\n- ") == 4  # text is missing, too

    told = problems(Everything, {f"extra{number}": 1 for number in range(1000)})
    assert told.count("\n- ") == 9 and "more" in told

    told = problems(Everything, {"text": "", "several": list(range(100_000))})
    assert told.count("\n- ") == 9 and "- several[7]" in told

    told = problems(Everything, {"text": "", "env": dict.fromkeys(map(str, range(1000)), 1)})
    assert told.count("\n- ") == 9


def test_rules_of_the_type_itself_are_told_to_the_model() -> None:
    assert parse(Picky, {"low": 1, "high": 2}) == Picky(1, 2)
    assert "- low must not be above high" in problems(Picky, {"low": 2, "high": 1})
    assert "- low is above high" in problems(Picky, {"low": 2, "high": 1, "how": "podbot"})
    with pytest.raises(RuntimeError, match="fault of the type"):
        parse(Picky, {"low": 2, "high": 1, "how": "bug"})


def test_ten_megabytes_are_answered_shortly() -> None:
    long = "x" * 10_000_000

    assert "is too long: 10000000 characters" in problems(Everything, {"text": long})
    assert "allowed" in problems(Everything, json.dumps({"text": long}))
    assert "is no parameter" in problems(Everything, {"text": "", long: 1})
    assert len(problems(Everything, {"text": "", "whole": long})) < 500
    assert len(problems(Everything, {"text": "", "env": {long: 1}})) < 500
    assert parse(Everything, {"text": "x" * MAX_CHARACTERS}).text.startswith("x")


# Types that cannot be given to a model


@dataclass
class Itself:
    child: Itself | None = None


@dataclass
class Unreadable:
    what: Nowhere  # type: ignore[name-defined]  # noqa: F821 - on purpose


@dataclass
class BadDescription:
    what: str = field(metadata={"description": 3})


@dataclass
class BadBound:
    what: str = field(metadata={"max_length": True})


@dataclass
class WrongBound:
    what: str = field(metadata={"maximum": 3})


class Holder:
    """Makes a dataclass with one field of a type that is only known here."""

    @staticmethod
    def of(hint: object) -> type:
        made = type("Made", (), {"__annotations__": {"what": hint}, "__module__": __name__})
        return dataclass(made)


class Weird(enum.Enum):
    TUPLE = (1, 2)


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (int, "not a dataclass"),
        (Itself, "contains itself"),
        (Unreadable, "annotations cannot be read"),
        (BadDescription, "BadDescription.what cannot be given to a model: its description"),
        (BadBound, "is not a number"),
        (WrongBound, "maximum does not go with its type"),
        (Holder.of(object), "object has no strict JSON form"),
        (Holder.of(Any), "has no strict JSON form"),
        (Holder.of(bytes), "bytes has no strict JSON form"),
        (Holder.of(list), "list has no strict JSON form"),
        (Holder.of(typing.List), "list has no strict JSON form"),  # noqa: UP006 - another spelling
        (Holder.of(tuple), "has no strict JSON form"),
        (Holder.of(list), "has no strict JSON form"),
        (Holder.of(set[str]), r"set\[str\] has no strict JSON form"),
        (Holder.of(Mapping[int, str]), "has no strict JSON form"),
        (Holder.of(int | float), "cannot tell the members of its union apart"),
        (Holder.of(Point | dict[str, int]), "cannot tell"),
        (Holder.of(Literal[b"x"]), "cannot be chosen in JSON"),
        (Holder.of(Weird), "cannot be chosen in JSON"),
    ],
)
def test_a_type_without_a_clear_json_form_is_refused_when_the_tool_is_made(
    cls: Any, reason: str
) -> None:
    def handler(params: object, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult("", None)

    with pytest.raises(PromptError, match=reason) as caught:
        Tool[cls, None](name="t", description="T.", handler=handler)  # type: ignore[valid-type]
    assert caught.value.kind is Kind.BAD_PROMPT


# Properties

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
NAMES = st.sampled_from([each.name for each in fields(Everything)])


@PATIENT
@given(st.dictionaries(NAMES | st.text(max_size=5), JSON, max_size=8))
def test_arguments_fit_or_are_answered_whatever_they_are(sent: dict[str, object]) -> None:
    try:
        found = parse(Everything, sent)
    except PodbotError as error:
        assert isinstance(error, ToolValidationError)
        assert len(str(error)) < 5000
        return
    # What was accepted was meant: it says the same again as JSON.
    again = as_json(found)
    assert isinstance(again, dict)
    for name, value in sent.items():
        assert again[name] == value or is_dataclass(getattr(found, name)) or name == "table"


@PATIENT
@given(st.text(max_size=200))
def test_text_fits_or_is_answered_whatever_it_is(text: str) -> None:
    try:
        parse(Everything, text)
    except ToolValidationError as error:
        assert error.remedy
