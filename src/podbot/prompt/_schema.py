"""Shapes as JSON Schema, the way models are told which arguments a tool takes.

Only keywords that the function formats of model providers understand are used; nested types are
written in place. Texts may be replaced (overrides), shapes may not. Nothing here parses arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

from podbot.prompt._shapes import (
    NO_DEFAULT,
    Array,
    Bounds,
    Choice,
    FieldShape,
    OneOf,
    Record,
    Row,
    Scalar,
    Shape,
    Table,
    json_kind,
)
from podbot.prompt.result import Json, as_json


def schema_of(record: Record, texts: Mapping[str, str] | None = None) -> dict[str, Json]:
    """The schema of a tool's parameters; ``texts`` replaces descriptions of its parameters."""
    properties: dict[str, Json] = {}
    for field in record.fields:
        properties[field.name] = _field(field, (texts or {}).get(field.name, field.description))
    schema: dict[str, Json] = {"type": "object", "properties": properties}
    if required := [field.name for field in record.fields if field.required]:
        schema["required"] = list(required)
    schema["additionalProperties"] = False
    return schema


def _field(field: FieldShape, description: str) -> dict[str, Json]:
    schema = _schema(field.shape)
    if description:
        schema["description"] = description
    if field.bounds is not None:
        members = schema.get("anyOf")
        # Of a union, whichever member the bounds are about.
        for place in members if isinstance(members, list) else [schema]:
            if isinstance(place, dict):  # pragma: no branch - for type checkers: it always is
                place.update(_bounds(place.get("type"), field.bounds))
    if field.default is not NO_DEFAULT and field.default is not None:
        schema["default"] = as_json(field.default)
    return schema


_LENGTHS = {"string": "Length", "array": "Items", "object": "Properties"}


def _bounds(kind: Json, bounds: Bounds) -> dict[str, Json]:
    """The keywords that bound a value of this type."""
    said: dict[str, Json] = {}
    if kind in ("integer", "number"):
        said = {"minimum": bounds.minimum, "maximum": bounds.maximum}
    elif kind in _LENGTHS:
        noun = _LENGTHS[str(kind)]
        said = {f"min{noun}": bounds.min_length, f"max{noun}": bounds.max_length}
    return {name: value for name, value in said.items() if value is not None}


def _schema(shape: Shape) -> dict[str, Json]:
    match shape:
        case Scalar(kind):
            return {"type": kind}
        case Choice(values):
            return _choice([said for said, _ in values])
        case Array(item):
            return {"type": "array", "items": _schema(item)}
        case Row(items):
            return {
                "type": "array",
                "prefixItems": [_schema(item) for item in items],
                "minItems": len(items),
                "maxItems": len(items),
            }
        case Table(value):
            return {"type": "object", "additionalProperties": _schema(value)}
        case OneOf(members):
            return {"anyOf": [_schema(member) for member in members]}
        case Record():
            return schema_of(shape)


def _choice(said: list[Json]) -> dict[str, Json]:
    kinds = {json_kind(value) for value in said}
    if len(kinds) > 1:
        return {"enum": said}
    kind = kinds.pop()
    return {"type": "integer" if kind == "number" else kind, "enum": said}
