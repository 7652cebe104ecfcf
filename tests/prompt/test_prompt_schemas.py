"""JSON Schema out, in the formats of model providers; what a schema allows, the parser takes."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podbot.errors import PromptError, ToolValidationError
from podbot.prompt import AnyTool, MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from podbot.prompt.builtins.podman import PodmanShellSection
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.tools import UnsafeLocalSandboxSection

# A machine under load is slow; that says nothing about what is tested.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Range:
    """Nested parameters."""

    first: int = field(metadata={"description": "Counted from one."})
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """Parameters with all there is."""

    pattern: str = field(
        metadata={"description": "What to look for.", "min_length": 1, "max_length": 100}
    )
    limit: int = field(default=10, metadata={"minimum": 1, "maximum": 50})
    ratio: float = 0.5
    deep: bool = False
    path: str | None = field(default=None, metadata={"max_length": 80})
    mode: Mode = Mode.FAST
    order: Literal["up", "down"] = "up"
    level: Literal[1, 2] = 1
    odd: Literal["x", 1] = "x"
    names: tuple[str, ...] = field(default=(), metadata={"max_length": 3})
    pair: tuple[str, int] = ("a", 1)
    env: Mapping[str, str] = field(default_factory=dict, metadata={"max_length": 2})
    range: Range | None = None
    wait: float | None = field(default=None, metadata={"maximum": 5})


def search(params: Search, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("found nothing", None)


def idle(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("nothing", None)


SEARCH: AnyTool = Tool[Search, None](name="search", description="Search.", handler=search)
IDLE: AnyTool = Tool[None, None](name="idle", description="Wait.", handler=idle)


def test_the_schema_says_all_there_is_to_say() -> None:
    assert SEARCH.json_schema() == {
        "type": "object",
        "properties": {
            "pattern": {
                "type": "string",
                "description": "What to look for.",
                "minLength": 1,
                "maxLength": 100,
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10},
            "ratio": {"type": "number", "default": 0.5},
            "deep": {"type": "boolean", "default": False},
            "path": {"anyOf": [{"type": "string", "maxLength": 80}, {"type": "null"}]},
            "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast"},
            "order": {"type": "string", "enum": ["up", "down"], "default": "up"},
            "level": {"type": "integer", "enum": [1, 2], "default": 1},
            "odd": {"enum": ["x", 1], "default": "x"},
            "names": {
                "type": "array",
                "items": {"type": "string"},
                "maxItems": 3,
                "default": [],
            },
            "pair": {
                "type": "array",
                "prefixItems": [{"type": "string"}, {"type": "integer"}],
                "minItems": 2,
                "maxItems": 2,
                "default": ["a", 1],
            },
            "env": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "maxProperties": 2,
            },
            "range": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {
                            "first": {"type": "integer", "description": "Counted from one."},
                            "last": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                        },
                        "required": ["first"],
                        "additionalProperties": False,
                    },
                    {"type": "null"},
                ]
            },
            "wait": {"anyOf": [{"type": "number", "maximum": 5}, {"type": "null"}]},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    }
    assert IDLE.json_schema() == {"type": "object", "properties": {}, "additionalProperties": False}


def test_each_provider_gets_its_format() -> None:
    prompt = Prompt(
        ns="tests",
        key="formats",
        sections=[MarkdownSection(key="a", title="A", template="", tools=[IDLE])],
    )
    schema = IDLE.json_schema()
    strict = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}

    assert prompt.tools_for("openai") == [
        {
            "type": "function",
            "function": {
                "name": "idle",
                "description": "Wait.",
                "parameters": strict,
                "strict": True,
            },
        }
    ]
    assert prompt.tools_for("openai-responses") == [
        {
            "type": "function",
            "name": "idle",
            "description": "Wait.",
            "parameters": strict,
            "strict": True,
        }
    ]
    assert prompt.tools_for("anthropic") == [
        {"name": "idle", "description": "Wait.", "input_schema": schema}
    ]
    assert prompt.tools_for("mcp") == prompt.render().tools_for("mcp")
    assert prompt.tools_for("mcp") == [
        {"name": "idle", "description": "Wait.", "inputSchema": schema}
    ]
    with pytest.raises(PromptError, match="is not a format") as caught:
        prompt.tools_for("other")  # type: ignore[arg-type]
    assert "anthropic" in str(caught.value.remedy)


def allowed(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Whatever a schema of ours allows."""
    if "anyOf" in schema:
        return st.one_of([allowed(each) for each in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema["type"]
    if kind == "object":
        if "properties" not in schema:
            values = allowed(schema["additionalProperties"])
            return st.dictionaries(st.text(), values, max_size=schema.get("maxProperties"))
        known = {name: allowed(each) for name, each in schema["properties"].items()}
        required = {name: known.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=known)
    if kind == "array":
        if "prefixItems" in schema:
            return st.tuples(*map(allowed, schema["prefixItems"])).map(list)
        return st.lists(allowed(schema["items"]), max_size=schema.get("maxItems"))
    lowest, highest = schema.get("minimum"), schema.get("maximum")
    if kind == "string":
        return st.text(min_size=schema.get("minLength", 0), max_size=schema.get("maxLength"))
    if kind == "integer":
        return st.integers(-(2**62) if lowest is None else lowest, highest or 2**62)
    if kind == "number":
        return st.floats(lowest, highest, allow_nan=False, allow_infinity=False)
    return {"boolean": st.booleans(), "null": st.none()}[kind]


@PATIENT
@given(allowed(SEARCH.json_schema()))
def test_what_the_schema_allows_is_accepted(arguments: dict[str, object]) -> None:
    for sent in (arguments, json.dumps(arguments)):
        found = SEARCH.parse(sent)

        assert isinstance(found, Search)
        assert found.pattern == arguments["pattern"]


# What OpenAI's strict mode takes: https://platform.openai.com/docs/guides/structured-outputs
STRICT_KEYWORDS = {
    "type", "description", "properties", "required", "additionalProperties", "items", "anyOf",
    "enum", "minimum", "maximum", "minItems", "maxItems",
}  # fmt: skip


def strictly(schema: Any) -> None:
    """See that a schema is one that strict mode accepts."""
    assert set(schema) <= STRICT_KEYWORDS, schema
    if schema.get("type") == "object":
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])
        for each in schema["properties"].values():
            strictly(each)
    if "items" in schema:
        strictly(schema["items"])
    for each in schema.get("anyOf", ()):
        assert "anyOf" not in each
        strictly(each)


@dataclass(frozen=True, slots=True)
class Odd:
    pair: tuple[int, str]
    table: Mapping[str, int] = field(default_factory=dict)
    either: Mapping[str, str] | str | None = None
    text: str = field(default="usual", metadata={"description": "Some text.", "max_length": 9})
    number: int = field(default=3, metadata={"minimum": 1})
    word: Literal["a", "b"] = "a"


class Odds:
    def take(self, params: Odd, *, context: ToolContext) -> ToolResult[Odd]:
        return ToolResult("Taken.", params)


ODD = Tool[Odd, Odd](name="odd", description="Take odd things.", handler=Odds().take)


@pytest.mark.parametrize("form", ["openai", "openai-responses"])
def test_every_tool_has_a_schema_that_strict_mode_accepts(form: Any) -> None:
    session = Session(bus=InProcessEventBus())
    suite = UnsafeLocalSandboxSection(session=session)
    shell = PodmanShellSection(session=session)
    odd = MarkdownSection(key="odd", title="Odd", template="", tools=[ODD, IDLE])
    for section in (suite, shell, odd):
        prompt = Prompt(ns="tests", key="strict", sections=[section])
        for tool in prompt.tools_for(form):
            told: Any = tool.get("function", tool)
            assert told["strict"] is True
            strictly(told["parameters"])
        section.close()


def test_what_fits_a_strict_schema_is_accepted() -> None:
    pairs = [{"name": "a", "value": 1}, {"name": "b", "value": 2}]
    given = {"pair": [1, "x"], "table": pairs, "either": [], "text": None, "number": None}
    assert ODD.parse({**given, "word": None}) == Odd((1, "x"), {"a": 1, "b": 2}, {})
    assert ODD.parse({**given, "word": "b", "either": None}) == Odd(
        (1, "x"), {"a": 1, "b": 2}, None, word="b"
    )
    properties: Any = ODD.strict_json_schema()["properties"]
    assert properties["text"]["description"] == 'Some text. Null means "usual".'


@pytest.mark.parametrize(
    "table",
    [
        [{"name": "a"}],
        [{"name": "a", "value": 1, "more": 2}],
        [{"name": 1, "value": 1}],
        [{"name": "a", "value": 1}, {"name": "a", "value": 2}],
        [{"name": "a", "value": "x"}],
        ["a"],
    ],
)
def test_a_list_that_is_no_table_is_refused(table: object) -> None:
    with pytest.raises(ToolValidationError, match="table"):
        ODD.parse({"pair": [1, "x"], "table": table})


def test_null_is_no_value_where_there_is_no_default() -> None:
    with pytest.raises(ToolValidationError, match="pair"):
        ODD.parse({"pair": None})
