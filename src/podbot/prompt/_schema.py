"""Shapes as JSON Schema, the way models are told which arguments a tool takes.

Only keywords that the function formats of model providers understand are used; nested types are
written in place. Texts may be replaced (overrides), shapes may not. Nothing here parses arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from podbot.prompt._shapes import (
    NAME,
    NO_DEFAULT,
    VALUE,
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


def strict_schema_of(record: Record, texts: Mapping[str, str] | None = None) -> dict[str, Json]:
    """The same for providers that hold a model to a schema, and take fewer keywords for that.

    All parameters are required, and one with a default may be null, which means the default. A
    table is a list of names with their values, as no object may have names that nobody knows.
    """
    properties: dict[str, Json] = {}
    for field in record.fields:
        description = (texts or {}).get(field.name, field.description)
        schema = _strict(field.shape)
        if field.bounds is not None:
            _bound(schema, field.bounds, _STRICT_BOUNDS)
        if not field.required:
            schema = _nullable(schema)
            if field.default is not NO_DEFAULT and field.default is not None:
                description = f"{description} Null means {json.dumps(as_json(field.default))}."
        if description:
            schema["description"] = description.strip()
        properties[field.name] = schema
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_STRICT_BOUNDS = frozenset({"minimum", "maximum", "minItems", "maxItems"})


def _nullable(schema: dict[str, Json]) -> dict[str, Json]:
    members = schema.get("anyOf")
    found: list[Json] = list(members) if isinstance(members, list) else [schema]
    null: Json = {"type": "null"}
    return {"anyOf": found if null in found else [*found, null]}


def _strict(shape: Shape) -> dict[str, Json]:
    match shape:
        case Array(item):
            return {"type": "array", "items": _strict(item)}
        case Row(items):
            kinds: list[Json] = []
            for each in map(_strict, items):
                if each not in kinds:
                    kinds.append(each)
            whole: Json = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
            return {
                "type": "array", "items": whole, "minItems": len(items), "maxItems": len(items),
            }  # fmt: skip
        case Table(value):
            pair: dict[str, Json] = {NAME: {"type": "string"}, VALUE: _strict(value)}
            return {"type": "array", "items": {
                "type": "object", "properties": pair, "required": [NAME, VALUE],
                "additionalProperties": False,
            }}  # fmt: skip
        case OneOf(members):
            return {"anyOf": [_strict(member) for member in members]}
        case Record():
            return strict_schema_of(shape)
        case _:
            return _schema(shape)


def _field(field: FieldShape, description: str) -> dict[str, Json]:
    schema = _schema(field.shape)
    if description:
        schema["description"] = description
    if field.bounds is not None:
        _bound(schema, field.bounds)
    if field.default is not NO_DEFAULT and field.default is not None:
        schema["default"] = as_json(field.default)
    return schema


def _bound(schema: dict[str, Json], bounds: Bounds, known: frozenset[str] | None = None) -> None:
    members = schema.get("anyOf")
    # Of a union, whichever member the bounds are about.
    for place in members if isinstance(members, list) else [schema]:
        if isinstance(place, dict):  # pragma: no branch - for type checkers: it always is
            said = _bounds(place.get("type"), bounds)
            place.update({key: said[key] for key in said if known is None or key in known})


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
