"""`dataclasses.dataclass` for modules that every start loads: the same classes, made quicker.

The real one compiles six functions for each class and imports `inspect`; for the values a run
needs that is a third of its start. Here one function is compiled, the constructor, when it is
first needed, and the rest is shared. Whatever this does not know (inheritance, `kw_only`,
`order`, …) is left to the real one. `dataclasses.fields`, `replace`, `asdict` and pickling work as
ever; type checkers see the real one. Nothing here may import `dataclasses` before someone needs it.
"""

from __future__ import annotations

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import dataclass, field, replace
    from types import FunctionType
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

__all__ = ["dataclass", "field", "frozen_dict", "replace"]


class _Missing:
    """No default."""


class _Default:
    """What `field` says of one field."""

    __slots__ = ("factory", "value")

    def __init__(self, value: object, factory: Callable[[], object] | None):
        self.value, self.factory = value, factory


class _FrozenDict(dict[object, object]):
    """A dict that cannot be changed. Unlike a `MappingProxyType` it pickles and copies."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> None:
        raise TypeError("this mapping belongs to a frozen value and cannot be changed")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]  # as none of them may be used
    __ior__ = _refuse  # type: ignore[assignment]  # likewise

    def __reduce__(self) -> tuple[object, ...]:
        return (_FrozenDict, (dict(self),))


def frozen_dict(given: Mapping[K, V] | None = None) -> Mapping[K, V]:
    """A copy of a mapping, or an empty one, for a field of a frozen value."""
    return _FrozenDict(given or {})  # type: ignore[arg-type,return-value]  # generic for callers


def _field(
    *,
    default: object = _Missing,
    default_factory: Callable[[], object] | None = None,
    **more: object,
) -> object:
    if not more:
        return _Default(default, default_factory)
    import dataclasses

    given: dict[str, object] = dict(more)
    if default is not _Missing:
        given["default"] = default
    if default_factory is not None:
        given["default_factory"] = default_factory
    return dataclasses.field(**given)  # type: ignore[call-overload]  # whatever was given


def _dataclass(
    cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, **more: object
) -> object:
    if cls is None:
        return lambda cls: _made(cls, frozen, slots, more)
    return _made(cls, frozen, slots, more)


def _made(cls: type, frozen: bool, slots: bool, more: dict[str, object]) -> type:
    annotations: dict[str, object] = getattr(cls, "__annotations__", {})
    if more or not slots or not _is_plain(cls, annotations):
        return _real(cls, frozen, slots, more)
    names = tuple(annotations)
    body = dict(cls.__dict__)
    defaults = {name: body.pop(name) for name in names if name in body}
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    body["__slots__"] = body["__match_args__"] = names
    if body.get("__doc__") is None:
        body["__doc__"] = f"{cls.__name__}({', '.join(names)})"
    given: dict[str, object] = {
        "__repr__": _repr,
        "__eq__": _eq,
        "__replace__": _replace,
    }
    for name in ("__dataclass_fields__", "__dataclass_params__"):
        given[name] = _Facts(name, defaults, frozen)
    if frozen:
        given |= {
            "__setattr__": _refuse_setting,
            "__delattr__": _refuse_deleting,
            "__getstate__": _get_state,
            "__setstate__": _set_state,
        }
    for name, function in given.items():
        body.setdefault(name, function)
    body["__init__"] = _Constructor(names, defaults, frozen)
    if cls.__dict__.get("__hash__") is None:
        body["__hash__"] = _hash if frozen else None
    made = type(cls)(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    return made


def _is_plain(cls: type, annotations: dict[str, object]) -> bool:
    if cls.__bases__ != (object,) or "__init__" in cls.__dict__:
        return False
    for name, annotation in annotations.items():
        default = cls.__dict__.get(name)
        # Strings, as these modules postpone annotations; what is special is spelled so.
        if not isinstance(annotation, str) or "ClassVar" in annotation or "InitVar" in annotation:
            return False
        if type(default).__module__ == "dataclasses" or getattr(default, "__hash__", 1) is None:
            return False
    return True


def _real(cls: type, frozen: bool, slots: bool, more: dict[str, object]) -> type:
    import dataclasses

    for name in getattr(cls, "__annotations__", {}):
        default = cls.__dict__.get(name)
        if isinstance(default, _Default):
            setattr(cls, name, _as_real(default))
    given: dict[str, object] = {"frozen": frozen, "slots": slots, **more}
    made: type = dataclasses.dataclass(**given)(cls)  # type: ignore[call-overload]  # likewise
    return made


def _as_real(default: object) -> object:
    """A default as the real `dataclasses` wants it."""
    import dataclasses

    if not isinstance(default, _Default):
        return default
    if default.factory is not None:
        return dataclasses.field(default_factory=default.factory)
    if default.value is not _Missing:
        return dataclasses.field(default=default.value)
    return dataclasses.field()


MANY = 6
"""Fields from which on it pays to fill a frozen instance by way of its open twin."""


class _Constructor:
    """The one thing that is compiled, as instances are made often: when the first one is."""

    def __init__(self, names: tuple[str, ...], defaults: dict[str, object], frozen: bool):
        self._names, self._defaults, self._frozen = names, defaults, frozen

    def __get__(self, instance: object, owner: type) -> object:
        # The class itself, not one made of it. Another thread may be doing the same just now.
        made = next(c for c in owner.__mro__ if c.__dict__.get("__match_args__") is self._names)
        function = self._compiled(made)
        type.__setattr__(made, "__init__", function)
        return function if instance is None else function.__get__(instance, owner)

    def _compiled(self, owner: type) -> FunctionType:
        scope: dict[str, object] = {"_set": object.__setattr__, "_missing": _Missing}
        parameters: list[str] = []
        values: dict[str, str] = {}
        for number, name in enumerate(self._names):
            parameter = value = name
            default = self._defaults.get(name, _Missing)
            factory = default.factory if isinstance(default, _Default) else None
            if isinstance(default, _Default):
                default = default.value
            if factory is not None:
                scope[f"_factory{number}"] = factory
                parameter = f"{name}=_missing"
                value = f"_factory{number}() if {name} is _missing else {name}"
            elif default is not _Missing:
                scope[f"_default{number}"] = default
                parameter = f"{name}=_default{number}"
            parameters.append(parameter)
            values[name] = value
        lines = self._lines(owner, scope, values)
        if hasattr(owner, "__post_init__"):
            lines.append(" self.__post_init__()")
        text = f"def __init__(self,{','.join(parameters)}):\n" + ("\n".join(lines) or " pass")
        exec(text, scope)  # noqa: S102 - made of names of fields alone
        function: FunctionType = scope["__init__"]  # type: ignore[assignment]  # just made
        function.__qualname__ = f"{owner.__qualname__}.__init__"
        return function

    def _lines(self, owner: type, scope: dict[str, object], values: dict[str, str]) -> list[str]:
        """Setting every field."""
        if not self._frozen:
            return [f" self.{name}={value}" for name, value in values.items()]
        if len(values) < MANY:
            return [f" _set(self,{name!r},{value})" for name, value in values.items()]
        # An instance may change to a class with the same slots, one that refuses nothing, and back:
        # together that takes as long as going around the refusal for three fields.
        scope |= {"_owner": owner, "_fill": _set_state}
        scope["_open"] = type("_Open", (), {"__slots__": self._names})
        return [
            " if self.__class__ is _owner:",
            "  _set(self,'__class__',_open)",
            *(f"  self.{name}={value}" for name, value in values.items()),
            "  self.__class__=_owner",
            " else:",  # a class made of this one, which may have slots of its own
            f"  _fill(self,[{','.join(values.values())}])",
        ]


class _Facts:
    """`dataclasses`' own description of a class, made when someone asks for it."""

    def __init__(self, name: str, defaults: dict[str, object], frozen: bool):
        self._name, self._defaults, self._frozen = name, defaults, frozen

    def __get__(self, instance: object, owner: type) -> object:
        import dataclasses

        body = {name: _as_real(default) for name, default in self._defaults.items()}
        body |= {"__annotations__": owner.__annotations__, "__doc__": "", "__module__": __name__}
        plain = type(owner.__name__, (), body)
        twin: type = dataclasses.dataclass(frozen=self._frozen)(plain)
        for name in ("__dataclass_fields__", "__dataclass_params__"):
            setattr(owner, name, getattr(twin, name))
        return getattr(twin, self._name)


def _names(self: object) -> tuple[str, ...]:
    names: tuple[str, ...] = type(self).__match_args__  # type: ignore[attr-defined]  # `_made` sets it
    return names


def _values(self: object) -> tuple[object, ...]:
    return tuple([getattr(self, name) for name in _names(self)])


def _repr(self: object) -> str:
    parts = [f"{name}={getattr(self, name)!r}" for name in _names(self)]
    return f"{type(self).__qualname__}({', '.join(parts)})"


def _eq(self: object, other: object) -> bool:
    if other.__class__ is self.__class__:
        return _values(self) == _values(other)
    return NotImplemented  # type: ignore[no-any-return] # as Python wants it


def _hash(self: object) -> int:
    return hash(_values(self))


def _refuse_setting(self: object, name: str, value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deleting(self: object, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: object) -> list[object]:
    return list(_values(self))


def _set_state(self: object, state: list[object]) -> None:
    for name, value in zip(_names(self), state, strict=True):
        object.__setattr__(self, name, value)


def _replace(self: object, /, **changes: object) -> object:
    return type(self)(**{name: getattr(self, name) for name in _names(self)} | changes)


# Hidden from type checkers, who know the real ones.
if not TYPE_CHECKING:
    dataclass, field, replace = _dataclass, _field, _replace
