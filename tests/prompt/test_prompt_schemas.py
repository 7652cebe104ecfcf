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

from podbot.errors import PromptError
from podbot.prompt import AnyTool, MarkdownSection, Prompt, Tool, ToolContext, ToolResult

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

    assert prompt.tools_for("openai") == [
        {
            "type": "function",
            "function": {"name": "idle", "description": "Wait.", "parameters": schema},
        }
    ]
    assert prompt.tools_for("openai-responses") == [
        {
            "type": "function",
            "name": "idle",
            "description": "Wait.",
            "parameters": schema,
            "strict": False,
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
