"""Shapes as JSON Schema, the way models are told which arguments a tool takes.

Only keywords that the function formats of model providers understand are used; nested types are
written in place. Texts may be replaced (overrides), shapes may not. Nothing here parses arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

from podbot.prompt.result import Json, as_json
from podbot.prompt.shapes import (
    NO_DEFAULT,
    Array,
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
        _bound(schema, field)
    if field.default is not NO_DEFAULT and field.default is not None:
        schema["default"] = as_json(field.default)
    return schema


def _bound(schema: dict[str, Json], field: FieldShape) -> None:
    """The bounds of a field, at whichever member of a union they are about."""
    bounds = field.bounds
    members = schema.get("anyOf")
    places = members if isinstance(members, list) else [schema]
    for place in places:
        if not isinstance(place, dict) or bounds is None:
            continue
        kind = place.get("type")
        if kind in ("integer", "number"):
            said = {"minimum": bounds.minimum, "maximum": bounds.maximum}
        else:
            noun = {"string": "Length", "array": "Items", "object": "Properties"}.get(str(kind), "")
            said = {f"min{noun}": bounds.min_length, f"max{noun}": bounds.max_length}
        if kind != "null":
            place.update({name: value for name, value in said.items() if value is not None})


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
