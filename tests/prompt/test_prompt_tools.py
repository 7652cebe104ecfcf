"""`Tool` and `ToolResult`: what may be a tool, and what a model is shown of a result."""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from podbot import frozen
from podbot.errors import Kind, PromptError
from podbot.prompt import Tool, ToolContext, ToolResult, failure
from podbot.prompt.result import as_json


@dataclass(frozen=True, slots=True)
class Greeting:
    """Parameters of `greet`."""

    name: str = field(metadata={"description": "Whom to greet."})
    times: int = 1


def greet(params: Greeting, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult("done", f"hello {params.name} " * params.times)


def idle(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("nothing done", None)


def untyped(params, *, context):  # type: ignore[no-untyped-def]
    return ToolResult("x", None)


def make(name: str = "greet", description: str = "Greet someone.") -> Tool[Greeting, str]:
    return Tool[Greeting, str](name=name, description=description, handler=greet)


# Names, descriptions, types


@pytest.mark.parametrize("name", ["a", "read_file", "x-1", "0", "a" * 64])
def test_a_tool_may_have_such_a_name(name: str) -> None:
    assert make(name=name).name == name


@pytest.mark.parametrize("name", ["", "A", "a b", "a.b", "é", "a" * 65, "a\n", None, 3])
def test_a_tool_may_not_have_such_a_name(name: Any) -> None:
    with pytest.raises(PromptError, match="cannot be the name of a tool") as caught:
        make(name=name)
    assert caught.value.kind is Kind.BAD_PROMPT
    assert "a-z" in str(caught.value.remedy)


@pytest.mark.parametrize("text", ["x", "x" * 200])
def test_a_description_may_be_so_long(text: str) -> None:
    assert make(description=text).description == text


@pytest.mark.parametrize("text", ["", "x" * 201, "naïve", "two\nlines", "  ", "\x1b[31m", None])
def test_a_description_may_not_be_like_this(text: Any) -> None:
    with pytest.raises(PromptError, match="description of the tool greet"):
        make(description=text)


def test_the_parameter_type_is_the_one_in_brackets_else_the_annotation() -> None:
    assert make().params_type is Greeting
    assert Tool(name="greet", description="Greet.", handler=greet).params_type is Greeting
    assert Tool(name="idle", description="Idle.", handler=idle).params_type is None
    assert Tool[None, None](name="idle", description="Idle.", handler=idle).params_type is None
    assert isinstance(make(), Tool)
    assert repr(make()) == "<Tool greet>"


def test_a_method_can_be_a_handler_and_its_annotation_may_be_dotted() -> None:
    class Section:
        def run(self, params: enums.Odd, *, context: ToolContext) -> ToolResult[None]:
            return ToolResult("", None)

    tool: Tool[Any, Any] = Tool(name="run", description="Run.", handler=Section().run)

    assert tool.params_type is enums.Odd


class enums:
    """Stands for a module that a name is looked up in."""

    @dataclass
    class Odd:
        """No parameter at all."""


@pytest.mark.parametrize("annotation", [None, "list[int]", "Nowhere", "enums.Nothing", "Mapping"])
def test_a_handler_that_does_not_say_what_it_takes_is_refused(annotation: str | None) -> None:
    def handler(params, *, context):  # type: ignore[no-untyped-def]
        return ToolResult("", None)

    if annotation is not None:
        handler.__annotations__["params"] = annotation
    with pytest.raises(PromptError, match=r"which parameters the tool t takes|not a dataclass"):
        Tool(name="t", description="T.", handler=handler)


def test_a_handler_that_no_module_knows_needs_brackets() -> None:
    def handler(params: Greeting, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult("", None)

    handler.__module__ = "nowhere"
    with pytest.raises(PromptError, match="nothing says"):
        Tool(name="t", description="T.", handler=handler)

    assert Tool[Greeting, str](name="t", description="T.", handler=handler).params_type is Greeting


def test_brackets_that_name_no_type_leave_it_to_the_annotation() -> None:
    assert Tool[Any, Any](name="g", description="G.", handler=greet).params_type is Greeting
    with pytest.raises(TypeError):
        Tool[int]  # type: ignore[misc]


def test_a_tool_with_other_texts_is_otherwise_the_same() -> None:
    tool = make()

    other = tool.described("Say hello.", {"name": "Who."})

    assert (tool.description, tool.parameters["name"]) == ("Greet someone.", "Whom to greet.")
    assert (other.description, other.parameters) == ("Say hello.", {"name": "Who.", "times": ""})
    assert other.json_schema()["properties"]["name"]["description"] == "Who."  # type: ignore[index,call-overload]
    assert other.handler is tool.handler
    assert other.parse('{"name": "x"}') == Greeting("x")
    assert other.described("Hi.", {"times": "How often."}).parameters["name"] == "Who."
    with pytest.raises(PromptError, match="description"):
        tool.described("", {})


def test_values_made_by_podbot_can_be_parameters() -> None:
    tool = Tool[Size, None](name="size", description="S.", handler=lambda params, *, context: None)  # type: ignore[arg-type,return-value]

    assert tool.parse({"width": 3}) == Size(3)
    assert tool.json_schema()["required"] == ["width"]


@frozen.dataclass(frozen=True, slots=True)
class Size:
    """Made without `dataclasses`."""

    width: int
    height: int = 1


# Results


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Plain:
    """Something a tool found."""

    path: Path
    colour: Colour
    at: datetime.datetime
    parts: tuple[bytes, ...]
    more: Mapping[str, float]


@dataclass(frozen=True)
class Told:
    """Something that knows how to be told."""

    def render(self) -> str:
        return "as it wants"


def test_a_method_of_a_value_that_happens_to_be_called_as_json_does_not_count() -> None:
    @dataclass(frozen=True)
    class Report:
        a: int

        def as_json(self, indent: int) -> str:
            raise AssertionError(indent)

    assert as_json(Report(1)) == {"a": 1}


def test_a_value_is_shown_as_json_below_the_message() -> None:
    value = Plain(
        Path("a/b"),
        Colour.RED,
        datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        (b"\xff",),
        {"nan": float("nan"), "half": 0.5},
    )

    message, empty, data = ToolResult("found", value).render().split("\n")

    assert (message, empty) == ("found", "")
    assert json.loads(data) == {
        "path": "a/b",
        "colour": "red",
        "at": "2026-01-02T00:00:00+00:00",
        "parts": ["\ufffd"],
        "more": {"nan": "nan", "half": 0.5},
    }


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (ToolResult("said", None), "said"),
        (ToolResult("said", "text"), "said\n\ntext"),
        (ToolResult("", "text"), "text"),
        (ToolResult("said", Told()), "said\n\nas it wants"),
        (ToolResult("said", [1, True, None]), "said\n\n[1, true, null]"),
        (ToolResult("said", {Told}), "said\n\n"),
        (ToolResult("said", "secret", exclude_value_from_context=True), "said"),
    ],
)
def test_a_result_is_shown_so(result: ToolResult[object], shown: str) -> None:
    assert result.render().startswith(shown)
    assert "secret" not in result.render()


def test_what_a_model_is_shown_is_bounded() -> None:
    shown = ToolResult("x", "y" * 1000).render(limit=100)

    assert len(shown) < 160
    assert shown.endswith("[truncated: 100 of 1003 characters shown]")


def test_a_result_is_data_too() -> None:
    assert ToolResult("m", Colour.RED).as_data() == {
        "success": True,
        "message": "m",
        "value": "red",
    }
    hidden = ToolResult("m", 1, exclude_value_from_context=True)
    assert hidden.as_data()["value"] is None
    assert failure("no").as_data() == {"success": False, "message": "no", "value": None}


def test_data_that_contains_itself_ends_somewhere() -> None:
    loop: list[object] = []
    loop.append(loop)

    assert "..." in json.dumps(as_json(loop))
