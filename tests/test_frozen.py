"""`podbot.frozen.dataclass` makes what `dataclasses.dataclass` makes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from typing import Any, ClassVar

import pytest

from podbot import frozen
from podbot.frozen import dataclass, field


@dataclass(frozen=True, slots=True)
class Point:
    """Where."""

    x: int
    y: int = 2
    tags: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    plain: str = field(default="p")

    @property
    def sum(self) -> int:
        """Both."""
        return self.x + self.y


@dataclass(slots=True)
class Loose:
    """May change."""

    a: int
    b: int = 1


@dataclass(frozen=True, slots=True)
class Checked:
    """Refuses."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("too small")


@dataclass(frozen=True, slots=True)
class Nothing:
    """No fields."""


@dataclass(frozen=True, slots=True)
class Wide:
    """Has so many fields that it is filled as something else."""

    a: int
    b: int
    c: int
    d: int = 4
    e: list[int] = field(default_factory=list)
    f: int = 6

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("too small")


def real(cls: type) -> Any:
    """The same class as `dataclasses` makes it."""
    body = {"__annotations__": cls.__annotations__, "__doc__": cls.__doc__, "__module__": __name__}
    for each in dataclasses.fields(cls):
        if each.default is not dataclasses.MISSING:
            body[each.name] = each.default
        elif each.default_factory is not dataclasses.MISSING:
            body[each.name] = dataclasses.field(default_factory=each.default_factory)
    made = dataclasses.dataclass(frozen=cls is not Loose, slots=True)
    return made(type(cls.__name__, (), body))


def test_it_is_quicker_because_it_loads_less() -> None:
    code = (
        "import sys; before = set(sys.modules); import podbot.api\n"
        "print({'dataclasses', 'inspect'} & set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("cls", "args"),
    [
        (Point, (1,)),
        (Point, (3, 4, ("a",), ["b"])),
        (Loose, (1,)),
        (Nothing, ()),
        (Wide, (1, 2, 3)),
        (Wide, (1, 2, 3, 4, [5], 7)),
    ],
)
def test_instances_look_and_compare_alike(cls: Any, args: tuple[Any, ...]) -> None:
    one, same, other = cls(*args), cls(*args), real(cls)(*args)
    assert repr(one) == repr(other)
    assert one == same and one != other and one.__eq__(3) is NotImplemented
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    assert dataclasses.astuple(one) == dataclasses.astuple(other)
    assert cls.__match_args__ == real(cls).__match_args__
    assert cls.__slots__ == real(cls).__slots__
    assert not hasattr(one, "__dict__")
    assert (cls.__module__, cls.__qualname__, bool(cls.__doc__)) == (__name__, cls.__name__, True)


def test_fields_are_told_as_ever() -> None:
    ours, theirs = dataclasses.fields(Point), dataclasses.fields(real(Point))
    assert [(each.name, each.type, each.default) for each in ours] == [
        (each.name, each.type, each.default) for each in theirs
    ]
    assert dataclasses.is_dataclass(Point) and dataclasses.is_dataclass(Point(1))
    assert Point.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert not Loose.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_defaults_are_made_anew() -> None:
    assert Point(1).notes == [] and Point(1).notes is not Point(1).notes
    assert (Point(1).y, Point(1).plain, Point(y=5, x=1).sum) == (2, "p", 6)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Point(1, z=2)  # type: ignore[call-arg]


def test_frozen_is_frozen_and_hashable_and_loose_is_neither() -> None:
    point = Point(1, notes=[])
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    assert hash(Checked(1)) == hash(Checked(1))
    loose = Loose(1)
    loose.b = 7
    assert loose == Loose(1, 7)
    with pytest.raises(TypeError):
        hash(loose)


def test_a_wide_one_is_frozen_and_itself_once_it_is_made() -> None:
    assert len(Wide.__slots__) >= frozen.MANY  # type: ignore[attr-defined]  # made at run time
    wide = Wide(1, 2, 3)
    assert type(wide) is Wide and wide.e == [] and wide.e is not Wide(1, 2, 3).e
    with pytest.raises(dataclasses.FrozenInstanceError):
        wide.a = 2  # type: ignore[misc]  # it must raise
    with pytest.raises(ValueError, match="too small"):
        frozen.replace(wide, a=-1)
    assert pickle.loads(pickle.dumps(wide)) == copy.copy(wide) == wide  # noqa: S301 - our own


def test_a_class_made_of_a_wide_one_stays_what_it_is() -> None:
    @dataclass(frozen=True, slots=True)
    class Base:
        """Not used before its child is."""

        a: int
        b: int = 2
        c: int = 3
        d: int = 4
        e: int = 5
        f: int = 6

    class Child(Base):
        """Has room for more."""

    child = Child(1)
    assert type(child) is Child and (child.a, child.f) == (1, 6)
    assert type(Base(1)) is Base and Base(7).a == 7
    assert type(Child(9)) is Child
    with pytest.raises(dataclasses.FrozenInstanceError):
        child.a = 2  # type: ignore[misc]  # likewise


def test_checks_run_and_replacing_checks_again() -> None:
    for replace in (frozen.replace, dataclasses.replace):
        assert replace(Point(1), y=9) == Point(1, 9)
        with pytest.raises(ValueError, match="too small"):
            replace(Checked(1), size=-1)
    with pytest.raises(TypeError):
        frozen.replace(Checked(1), other=1)


def test_copies_and_pickles() -> None:
    for one in (Point(1, 2, ("a",), ["b"]), Loose(1), Nothing(), Checked(3)):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(one, protocol)) == one  # noqa: S301 - our own
        assert copy.copy(one) == one and copy.deepcopy(one) == one


def test_matching_by_position() -> None:
    match Point(1, 5):
        case Point(1, y):
            assert y == 5


def test_what_it_does_not_know_is_left_to_the_real_one() -> None:
    @dataclass(frozen=True, slots=True)
    class Child(Checked):
        """Inherits."""

        more: int = 0

    @dataclass(order=True)
    class Ordered:
        """Compares."""

        size: int
        parts: list[int] = field(default_factory=list)
        hidden: int = field(default=0, compare=False)

    @dataclass(frozen=True, slots=True)
    class Shared:
        """Has something for all."""

        size: int
        count: ClassVar[int] = 3

    assert Child(1, 2) == Child(1, 2) and [each.name for each in dataclasses.fields(Child)] == [
        "size",
        "more",
    ]
    assert Ordered(1) < Ordered(2) and Ordered(1, hidden=1) == Ordered(1) and Ordered(1).parts == []
    assert Shared.count == 3 and [each.name for each in dataclasses.fields(Shared)] == ["size"]
    with pytest.raises(ValueError, match="mutable default"):

        @dataclass(frozen=True, slots=True)
        class Wrong:
            """Shares a list."""

            parts: list[int] = []  # noqa: RUF012 - on purpose
