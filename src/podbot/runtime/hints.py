"""What a type hint says, however it is spelled, and the hints of a dataclass.

For all who walk them: `session._fitting` asks whether values fit, the prompt's `_shapes` which JSON
may stand for them. Nothing here sees a value.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields

Hint = object
"""Whatever may stand after the colon of a field."""


def opened(hint: Hint) -> tuple[Hint, tuple[Hint, ...] | None]:
    """What a hint is, and what stands in its brackets; None if it has none.

    It is a class, or `Union`, `Literal`, `Any`, … of the typing module. One of those made by
    `NewType` is what that was made of.
    """
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        return types.NoneType if hint is None else hint, None
    if origin is types.UnionType:
        return typing.Union, inside
    return origin, inside if inside or origin is tuple else None  # List, and not List[int]


def hints_of(cls: type, bad: Callable[[Exception], Exception]) -> Mapping[str, Hint]:
    """What the constructor of a dataclass takes; ``bad`` makes the error if that means nothing."""
    try:
        hints = typing.get_type_hints(cls)
    except Exception as error:  # whatever evaluating an annotation raises
        raise bad(error) from error
    return {field.name: hints[field.name] for field in fields(cls) if field.init}
