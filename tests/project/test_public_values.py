"""Public values and errors travel: each pickles and copies, and is the same afterwards.

They are found by the names that public modules list, so a new one is tried too. Most are made here
from the types of their fields; for one that checks what it is given there is an example below.
"""

from __future__ import annotations

import collections.abc
import copy
import dataclasses
import enum
import importlib
import inspect
import os
import pickle
import pkgutil
import sys
import types
import typing
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import podbot
from podbot import Network, Policy, errors
from podbot.egress import FromVariable
from podbot.errors import ConfigError, ContainerError, Kind, PodbotError
from podbot.frozen import frozen_dict
from podbot.runs import LaunchRequest
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.sandbox import Guarantee

NOT_FOR_OTHERS = {"cli", "testing", "guest"}
"""What only the command, tests and guests import."""

LIVE = {
    "ChangeSet": "holds the folders by descriptor",
    "Consent": "holds a ChangeSet",
    "Launched": "holds the connection to a guest",
    "Merge": "holds the contents of a merge, read from folders held by descriptor",
    "Picked": "holds a ChangeSet",
    "PromptRendered": "holds a prompt's tools, which are functions",
    "ReducerContext": "holds a session",
    "RenderedPrompt": "holds tools, which are functions",
    "ScriptedModel": "holds functions",
    "Summary": "holds a ChangeSet",
    "ToolContext": "holds a prompt and a session",
    "Tool": "holds a function",
    "Transcript": "holds a prompt",
    "Turn": "holds a prompt's tools",
}
"""What is no plain value, and why."""

GIVEN: dict[str, dict[str, object]] = {
    "BindMount": {"source": "/a", "target": "/b"},
    "OverlayMount": {"source": "/a", "target": "/b", "upper": "/c", "work": "/d"},
    "VolumeMount": {"target": "/b"},
    "ContainerState": {"details": {"Id": "x"}},
    "ImageInfo": {"details": {"Id": "x"}},
    "Route": {
        "name": "a",
        "base": "https://a.example",
        "source": FromVariable("A"),
        "allows": ("GET /",),
        "form": "{}",
        "header": "A",
    },
    "PodmanSandboxConfig": {"engine": "unix:///a"},
    "LaunchRequest": {
        "backend": "podman",
        "network": "host",
        "environment": frozen_dict({"A": "1"}),
    },
    "ServeRequest": {"launch": LaunchRequest(("a",), backend="podman", network="host")},
    "Snapshot": {"slices": frozen_dict(), "tags": frozen_dict({"a": "b"})},
}
"""Fields that cannot be anything of their type."""


def public_modules() -> Iterator[types.ModuleType]:
    for found in pkgutil.walk_packages(podbot.__path__, "podbot."):
        parts = found.name.split(".")
        if not NOT_FOR_OTHERS & set(parts) and not any(part.startswith("_") for part in parts):
            yield importlib.import_module(found.name)


def public_classes() -> list[type]:
    found = {
        thing
        for module in public_modules()
        for name in getattr(module, "__all__", ())
        if inspect.isclass(thing := getattr(module, name))
    }
    return sorted(found, key=lambda cls: (cls.__module__, cls.__qualname__))


CLASSES = public_classes()
VALUES = [cls for cls in CLASSES if dataclasses.is_dataclass(cls) and cls.__name__ not in LIVE]
ERRORS = [
    thing
    for thing in vars(errors).values()
    if inspect.isclass(thing) and issubclass(thing, PodbotError)
]
NAMES = {cls.__name__: cls for cls in CLASSES} | {
    name: thing
    for module in public_modules()
    for name, thing in vars(module).items()
    if name[0].isupper()
}


def hints(cls: type) -> dict[str, Any]:
    """The types of the fields, also of those that only type checkers import."""
    own = vars(sys.modules[cls.__module__])
    return typing.get_type_hints(cls, localns=NAMES | {"Word": str} | own)


def example(hint: Any) -> Any:
    """Something of this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return example(next(each for each in arguments if each is not types.NoneType))
    if origin is typing.Literal:
        return arguments[-1]
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return (example(arguments[0]),)
        return tuple(example(each) for each in arguments)
    if origin in (collections.abc.Mapping, dict):
        return frozen_dict({example(arguments[0]): example(arguments[1])})
    if origin is frozenset:
        return frozenset({example(arguments[0])})
    if origin is collections.abc.Sequence:
        return (example(arguments[0]),)
    if origin is collections.abc.Callable or isinstance(hint, typing.TypeVar):
        return None
    if origin is not None:
        return example(origin)
    plain: dict[Any, Any] = {
        str: "a",
        int: 1,
        float: 1.5,
        bool: True,
        bytes: b"a",
        object: "a",
        Path: Path("/a"),
        os.PathLike: "/a",
        datetime: datetime(2026, 1, 2, tzinfo=UTC),
        Network: Network.host,
        PodbotError: ContainerError("no", subject="a"),
    }
    if hint in plain:
        return plain[hint]
    if issubclass(hint, enum.Enum):
        return next(iter(hint))
    if dataclasses.is_dataclass(hint):
        return made(hint)
    raise AssertionError(f"no example of {hint}: add one to this test")


def made(cls: type) -> Any:
    """A value with something in each field; where it is refused, with only what it must have."""
    given = GIVEN.get(cls.__name__, {})
    types_of = hints(cls)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    needed = [
        field for field in fields if field.default is field.default_factory is dataclasses.MISSING
    ]
    for some in (fields, needed):
        names = {field.name for field in some} - set(given)
        values = given | {name: example(types_of[name]) for name in names}
        try:
            return cls(**values)
        except PodbotError as error:
            refused = error
    raise AssertionError(f"{cls.__name__} refuses the example ({refused}): add one to GIVEN")


def copies(thing: Any) -> Iterator[Any]:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.loads(pickle.dumps(thing, protocol))  # noqa: S301 - just made
    yield copy.copy(thing)
    yield copy.deepcopy(thing)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, PodbotError):
        return type(one) is type(other) and vars(one) == vars(other) and str(one) == str(other)
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, field.name), getattr(other, field.name))
            for field in dataclasses.fields(one)
        )
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_there_are_values_to_try() -> None:
    names = {cls.__name__ for cls in VALUES}
    assert names >= {
        "Policy",
        "Limits",
        "LaunchRequest",
        "ExecResult",
        "Guarantee",
        "ContainerSpec",
    }
    assert names >= {"Profile", "Change", "ShellParams", "ShellResult", "Record", "Snapshot"}
    assert set(LIVE) <= set(NAMES), "a name here is that of no class"


@pytest.mark.parametrize("cls", VALUES, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_a_value_pickles_and_copies(cls: type) -> None:
    value = made(cls)
    for other in copies(value):
        assert type(other) is cls
        assert same(other, value) and repr(other) == repr(value)


@pytest.mark.parametrize("cls", VALUES, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_a_value_is_frozen(cls: type) -> None:
    value = made(cls)
    for field in dataclasses.fields(cls):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_an_error_pickles_and_copies(cls: type[PodbotError]) -> None:
    more: dict[str, str] = {}
    if issubclass(cls, ConfigError):
        more = {"field": "image"}
    elif issubclass(cls, ContainerError):
        more = {"subject": "a1b2"}
    error = cls("it broke", kind=Kind.NOT_FOUND, remedy="mend it", **more)
    error.add_note("while trying")
    for other in copies(error):
        assert same(other, error)
        assert (other.message, other.kind, other.remedy) == ("it broke", Kind.NOT_FOUND, "mend it")
        assert other.args == error.args and other.__notes__ == ["while trying"]
        assert {name: getattr(other, name) for name in more} == more


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_an_error_of_its_usual_kind_pickles_too(cls: type[PodbotError]) -> None:
    for other in copies(cls("it broke")):
        assert same(other, cls("it broke"))


def test_a_snapshot_of_a_session_pickles_and_is_restored() -> None:
    session = Session(bus=InProcessEventBus(), tags={"who": "me"})
    session.mutate(Guarantee).append(Guarantee("a", True, "b"))
    for other in copies(session.snapshot()):
        session.mutate(Guarantee).clear()
        session.mutate().rollback(other)
        assert session.query(Guarantee).all() == (Guarantee("a", True, "b"),)
        assert other.tags == {"who": "me"}


def test_a_mapping_of_a_value_cannot_be_changed() -> None:
    inside: Any = Policy().environment
    for change in (
        lambda: inside.__setitem__("A", "1"),
        lambda: inside.update(A="1"),
        lambda: inside.setdefault("A", "1"),
        inside.clear,
        lambda: inside.__ior__({"A": "1"}),
    ):
        with pytest.raises(TypeError, match="cannot be changed"):
            change()
    assert inside == {}
