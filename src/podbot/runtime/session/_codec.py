"""Values of a session as JSON and back, exactly.

What JSON has (text, numbers, lists, objects) stands for itself. All else is an object with the key
``$`` that says what it is: a tuple, a time, a dataclass with its qualified name, … Reading makes
only the types it is given, and what those name in their fields; a name in the JSON is looked up,
never imported. Subclasses of plain types are refused, as they would come back as something else.
"""

from __future__ import annotations

import base64
import json
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import PosixPath, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple, cast
from uuid import UUID

from podbot.runtime.session._fitting import UnfitError, annotations_of, check_fields, named_by

MAX_DEPTH = 64
TAG = "$"

Json = object
"""What `json.loads` gives."""


class CodecError(Exception):
    """A value that has no faithful JSON, or JSON that stands for no value."""


def qualified_name(cls: type) -> str:
    """How a type is named in JSON."""
    return f"{cls.__module__}:{cls.__qualname__}"


class _Text(NamedTuple):
    """A type that is written as one text."""

    name: str
    kind: type
    write: Callable[..., str]
    read: Callable[[str], object]


def _write_float(value: float) -> str:
    if math.isfinite(value):
        raise CodecError(f"{value!r} is a number in JSON")
    return repr(value)


def _write_datetime(value: datetime) -> str:
    if value.fold or type(value.tzinfo) not in (timezone, type(None)):
        raise CodecError(f"the zone or fold of {value.isoformat()} would be lost; use UTC")
    return value.isoformat()


def _write_timedelta(value: timedelta) -> str:
    return f"{value.days} {value.seconds} {value.microseconds}"


def _read_timedelta(text: str) -> timedelta:
    days, seconds, microseconds = map(int, text.split(" "))
    return timedelta(days, seconds, microseconds)


_TEXTS = (
    _Text("float", float, _write_float, float),
    _Text("bytes", bytes, lambda v: base64.b64encode(v).decode(), base64.b64decode),
    _Text("datetime", datetime, _write_datetime, datetime.fromisoformat),
    _Text("date", date, date.isoformat, date.fromisoformat),
    _Text("timedelta", timedelta, _write_timedelta, _read_timedelta),
    _Text("uuid", UUID, str, UUID),
    _Text("decimal", Decimal, str, Decimal),
    _Text("path", PosixPath, str, PosixPath),
    _Text("pure_path", PurePosixPath, str, PurePosixPath),
)
_TEXT_OF_KIND = {text.kind: text for text in _TEXTS}
_TEXT_OF_NAME = {text.name: text for text in _TEXTS}

_GROUPS: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_GROUP_OF_NAME = {name: kind for kind, name in _GROUPS.items()}

_MAPPINGS: dict[type, str] = {dict: "dict", MappingProxyType: "mapping"}
_MAPPING_OF_NAME: dict[str, Callable[[dict[object, object]], object]] = {
    "dict": dict,
    "mapping": MappingProxyType,
}


# Writing


def encode(value: object, depth: int = 0) -> Json:
    """A value as JSON. Raises `CodecError`."""
    kind = type(value)
    if value is None or kind in (bool, str, int):
        return value
    if depth > MAX_DEPTH:
        raise CodecError(f"values are nested deeper than {MAX_DEPTH}")
    if kind is float and math.isfinite(cast("float", value)):
        return value
    if kind is list:
        return [encode(item, depth + 1) for item in cast("list[object]", value)]
    if kind in _GROUPS:
        return _encode_group(cast("Iterable[object]", value), depth)
    if kind in _MAPPINGS:
        return _encode_mapping(cast("Mapping[object, object]", value), depth)
    text = _TEXT_OF_KIND.get(kind)
    if text is not None:
        return _tagged(text.name, text.write(value))
    if isinstance(value, Enum) and value.name in type(value).__members__:
        return {TAG: "enum", "type": qualified_name(kind), "name": value.name}
    if is_dataclass(kind):
        return _encode_dataclass(value, depth)
    raise CodecError(f"a {qualified_name(kind)} has no form in JSON")


def _tagged(name: str, value: Json) -> Json:
    return {TAG: name, "value": value}


def _encode_group(value: Iterable[object], depth: int) -> Json:
    items = [encode(item, depth + 1) for item in value]
    if type(value) is not tuple:
        items.sort(key=json.dumps)  # the same set is written the same way
    return _tagged(_GROUPS[type(value)], items)


def _encode_mapping(value: Mapping[object, object], depth: int) -> Json:
    if type(value) is dict and TAG not in value and all(type(key) is str for key in value):
        return {key: encode(item, depth + 1) for key, item in value.items()}
    pairs = [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in value.items()]
    return _tagged(_MAPPINGS[type(value)], pairs)


def _encode_dataclass(value: object, depth: int) -> Json:
    cls: type = type(value)
    fields: dict[str, Json] = {}
    try:
        held = {name: getattr(value, name) for name in annotations_of(cls)}
        check_fields(cls, held)
    except UnfitError as error:
        raise CodecError(str(error)) from error
    for name, item in held.items():
        try:
            fields[name] = encode(item, depth + 1)
        except CodecError as error:
            raise CodecError(f"{cls.__qualname__}.{name}: {error}") from error
    return {TAG: "data", "type": qualified_name(cls), "fields": fields}


# Reading


class Types:
    """The types that may be made, by name: those given, and those their fields name."""

    def __init__(self, types: Iterable[type]):
        self._by_name: dict[str, type] = {}
        waiting = deque(types)
        while waiting:
            cls = waiting.popleft()
            if not is_dataclass(cls) and not issubclass(cls, Enum):
                continue
            name = qualified_name(cls)
            known = self._by_name.get(name)
            if known is None:
                self._by_name[name] = cls
                waiting.extend(_named_in(cls))
            elif known is not cls:
                raise CodecError(f"two of the allowed types are called {name}")

    def find(self, name: Json) -> type:
        """The type of this name, if it is allowed."""
        cls = self._by_name.get(name) if isinstance(name, str) else None
        if cls is None:
            raise CodecError(f"the type {name!r:.200} is not among those that are allowed")
        return cls


def _named_in(cls: type) -> Iterator[type]:
    try:
        annotations = annotations_of(cls) if is_dataclass(cls) else {}
    except UnfitError:
        return  # said when one is read
    for annotation in annotations.values():
        yield from named_by(annotation)


def decode(value: Json, types: Types, depth: int = 0) -> object:
    """What `encode` was given. Raises `CodecError`."""
    if depth > MAX_DEPTH:
        raise CodecError(f"values are nested deeper than {MAX_DEPTH}")
    if isinstance(value, list):
        return [decode(item, types, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: decode(item, types, depth + 1) for key, item in value.items()}
    tag = value[TAG]
    if tag == "data":
        _, name, fields = _members(value, "type", "fields")
        return _decode_dataclass(types.find(name), fields, types, depth)
    if tag == "enum":
        _, name, member = _members(value, "type", "name")
        return _decode_enum(types.find(name), member)
    _, content = _members(value, "value")
    if isinstance(tag, str) and tag in _TEXT_OF_NAME:
        return _decode_text(_TEXT_OF_NAME[tag], content)
    if not isinstance(content, list):
        raise CodecError(f"{tag!r:.200} does not hold a list")
    if isinstance(tag, str) and tag in _GROUP_OF_NAME:
        items = [decode(item, types, depth + 1) for item in content]
        return _decode_group(_GROUP_OF_NAME[tag], items)
    if isinstance(tag, str) and tag in _MAPPING_OF_NAME:
        pairs = [decode(pair, types, depth + 1) for pair in content]
        return _MAPPING_OF_NAME[tag](_decode_mapping(pairs))
    raise CodecError(f"{tag!r:.200} is not known")


def _members(value: dict[str, Json], *names: str) -> list[Json]:
    """The members of an object that must have exactly these, and its tag."""
    if value.keys() != {TAG, *names}:
        raise CodecError(f"{value[TAG]!r:.200} must have {' and '.join(names)}, and no more")
    return [value[name] for name in (TAG, *names)]


def _decode_text(text: _Text, content: Json) -> object:
    try:
        made = text.read(content) if isinstance(content, str) else None
        # Read and written again, it must be what it was: there is one way to say a thing.
        if made is not None and text.write(made) == content:
            return made
    except (ValueError, ArithmeticError):
        pass
    raise CodecError(f"{content!r:.200} is no {text.name}")


def _decode_group(kind: type, items: list[object]) -> object:
    try:
        made: Collection[object] = kind(items)
    except TypeError as error:  # no hash
        raise CodecError(f"a {kind.__name__} cannot hold this ({error})") from error
    if len(made) != len(items):
        raise CodecError(f"a {kind.__name__} holds something twice")
    return made


def _decode_mapping(pairs: list[object]) -> dict[object, object]:
    made: dict[object, object] = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise CodecError("a mapping holds something that is not a pair")
        key, item = pair
        try:
            if key in made:
                raise CodecError("a mapping has a key twice")
            made[key] = item
        except TypeError as error:
            raise CodecError(f"a mapping cannot have this key ({error})") from error
    return made


def _decode_enum(cls: type, name: Json) -> object:
    members: Mapping[str, object] = cls.__members__ if issubclass(cls, Enum) else {}
    if not isinstance(name, str) or name not in members:
        raise CodecError(f"{cls.__qualname__} has no member {name!r:.200}")
    return members[name]


def _decode_dataclass(cls: type, fields: Json, types: Types, depth: int) -> object:
    if not is_dataclass(cls) or not isinstance(fields, dict):
        raise CodecError(f"{cls.__qualname__} was given what are not its fields")
    held: dict[str, object] = {}
    for name, item in fields.items():
        try:
            held[name] = decode(item, types, depth + 1)
        except CodecError as error:
            raise CodecError(f"{cls.__qualname__}.{name:.100}: {error}") from error
    try:
        unknown = held.keys() - annotations_of(cls).keys()
        if unknown:
            raise CodecError(f"{cls.__qualname__} has no field {min(unknown)!r:.100}")
        check_fields(cls, held)
        return cls(**held)
    except CodecError:
        raise
    except Exception as error:  # an unfit field, a missing one, or what the class itself refuses
        raise CodecError(f"{cls.__qualname__} cannot be made: {error}") from error
