"""A type hint says the same however it is spelled."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Final, Literal, NewType, Optional, TypeVar, Union

import pytest

from podbot.runtime.hints import hints_of, opened
from podbot.runtime.session._fitting import fits

Name = NewType("Name", str)
Names = NewType("Names", list[Name])
T = TypeVar("T")


@pytest.mark.parametrize(
    ("hint", "what", "inside"),
    [
        (int, int, None),
        (None, NoneType, None),
        (Any, Any, None),
        (T, T, None),
        (NewType("Again", Name), str, None),
        (Names, list, (Name,)),
        (int | None, Union, (int, NoneType)),
        (Optional[int], Union, (int, NoneType)),  # noqa: UP045 - another spelling
        (Literal["a", 1], Literal, ("a", 1)),
        (Final[int], Final, (int,)),
        (list, list, None),
        (typing.List, list, None),  # noqa: UP006 - another spelling
        (typing.List[int], list, (int,)),  # noqa: UP006 - another spelling
        (tuple, tuple, None),
        (tuple[()], tuple, ()),
        (tuple[int, ...], tuple, (int, ...)),
        (dict[str, int], dict, (str, int)),
    ],
)
def test_a_hint_is_opened(hint: object, what: object, inside: object) -> None:
    assert opened(hint) == (what, inside)


def test_a_list_of_whatever_fits_whatever_it_holds() -> None:
    assert fits([1, "a"], typing.List)  # noqa: UP006 - another spelling
    assert not fits((1, "a"), typing.List)  # noqa: UP006 - another spelling


@dataclass
class Told:
    one: int
    other: Name | None = None
    made: str = field(init=False, default="")


@dataclass
class Unclear:
    one: Missing  # type: ignore[name-defined]  # noqa: F821 - which is the point


def test_the_hints_of_a_dataclass_are_those_of_its_constructor() -> None:
    assert hints_of(Told, ValueError) == {"one": int, "other": Name | None}


def test_hints_that_mean_nothing_are_the_error_of_the_reader() -> None:
    with pytest.raises(LookupError, match="Missing"):
        hints_of(Unclear, lambda error: LookupError(str(error)))
