"""Dataclasses that the tests of the runtime keep in sessions. At module level, as they are named
in snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, Flag, StrEnum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NewType, Protocol, TypeVar
from uuid import UUID

if TYPE_CHECKING:
    from somewhere import Missing

T = TypeVar("T")
N = TypeVar("N", int, str)
Name = NewType("Name", str)


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    title: str
    steps: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class AddStep:
    text: str


@dataclass(frozen=True, slots=True)
class Settings:
    """It has no hash: a dict is in it."""

    env: dict[str, str]
    name: str = ""
    comment: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Result:
    """A `ToolOutcome`."""

    message: str
    value: object = None
    success: bool = True


class Colour(Enum):
    RED = 1
    GREEN = 2


class Word(StrEnum):
    YES = "yes"


class Bits(Flag):
    ONE = 1
    TWO = 2


class Sized(Protocol):
    """Cannot be checked at run time."""

    size: int


@dataclass(frozen=True)
class Box(Generic[T]):
    inside: T


@dataclass(frozen=True)
class Everything:
    """One field for each kind of thing a snapshot can carry."""

    nothing: None = None
    truth: bool = True
    whole: int = 0
    real: float = 0.0
    text: str = ""
    raw: bytes = b""
    at: datetime | None = None
    day: date | None = None
    span: timedelta | None = None
    uuid: UUID | None = None
    exact: Decimal | None = None
    path: Path | None = None
    pure: PurePosixPath | None = None
    colour: Colour | None = None
    word: Word | Literal["no", 3] = "no"
    name: Name = Name("")
    items: list[int] = field(default_factory=list)
    pair: tuple[int, str] = (0, "")
    many: tuple[float, ...] = ()
    none: tuple[()] = ()
    blanks: tuple[None, ...] = ()
    group: frozenset[str] = frozenset()
    loose: set[int] = field(default_factory=set)
    table: dict[str, int] = field(default_factory=dict)
    numbered: Mapping[int, str] = field(default_factory=dict)
    row: Sequence[str] = ()
    some: Iterable[int] = ()
    anything: Any = None
    thing: object = None
    note: Note | None = None
    box: Box[Note] | None = None
    fixed: Final[int] = 0  # type: ignore[misc]  # legal in a dataclass, whatever mypy thinks


@dataclass(frozen=True)
class Odd:
    """Fields that nothing from a snapshot fits, or that are hard to say."""

    call: Callable[[], None] | None = None
    cls: type[int] | None = None
    sized: Sized | None = None
    limited: N | None = None  # type: ignore[valid-type]
    length: int = field(init=False, default=3)


@dataclass(frozen=True)
class Unresolved:
    """Its annotation means nothing at run time."""

    missing: Missing | None = None


@dataclass(frozen=True)
class Picky:
    """It refuses some values by itself."""

    even: int

    def __post_init__(self) -> None:
        if self.even % 2:
            raise ValueError("odd")


@dataclass(frozen=True)
class Initial:
    """It cannot be made from its fields alone."""

    text: str
    seed: InitVar[int]
