"""The options of `open`, as a caller wrote them, to the launcher of a backend.

Backends differ in their options, so a name may be misspelt, or be another backend's. It is said at
once, with the names there are. What an option means is the backend's business.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from podbot.errors import Kind, SandboxError
from podbot.nearest import nearest
from podbot.sandbox import backends
from podbot.sandbox.launcher import Launcher
from podbot.sandbox.limits import Limits
from podbot.sandbox.policy import Policy


def launcher_of(backend: str, options: Mapping[str, object]) -> Launcher:
    """The launcher of a backend with these options; raises `SandboxError` if they do not fit."""
    factory, backend = backends.find(backend), backends.real_name(backend)
    for name, wanted in (("policy", Policy), ("limits", Limits)):
        value = options.get(name)
        if value is not None and not isinstance(value, wanted):
            raise _wrong(backend, name, value, f"a {wanted.__name__}")
    if backend in backends.NAMES:
        _check_values(backend, options)
    if factory.options is not None:
        _refuse_unknown(backend, factory.options, options)
    try:
        return factory(**options)
    except TypeError:
        # Looked at only now: reading signatures costs more than opening a sandbox.
        _refuse_unknown(backend, _names(factory, options), options)
        raise


def _refuse_unknown(backend: str, known: Iterable[str], options: Mapping[str, object]) -> None:
    names = tuple(known)
    for name in options:
        if name not in names:
            raise SandboxError(
                f"the backend {backend} has no option {name!r}{_guess(name, names)}",
                kind=Kind.INVALID,
                remedy=f"its options are: {', '.join(names)}",
            ) from None


def _check_values(backend: str, options: Mapping[str, object]) -> None:
    target, layer, files = (options.get(name) for name in ("target", "layer", "files"))
    paths = _each(target) if backend == backends.OVERLAY else (target,)
    if target is not None and not all(isinstance(path, str | os.PathLike) for path in paths):
        raise _wrong(backend, "target", target, "the path of a folder")
    if layer is not None and not hasattr(layer, "targets"):
        raise _wrong(backend, "layer", layer, "a Layer")
    if files is not None and not _is_files(files):
        raise _wrong(backend, "files", files, "a mapping of paths to text or bytes")


def _each(target: object) -> tuple[object, ...]:
    """The paths of a target that may be several, told apart as the launcher does."""
    if isinstance(target, Sequence) and not isinstance(target, str | bytes | os.PathLike):
        return tuple(target)
    return (target,)


def _is_files(files: object) -> bool:
    return isinstance(files, Mapping) and all(
        isinstance(path, str | os.PathLike) and isinstance(data, str | bytes)
        for path, data in files.items()
    )


def _names(factory: type[Launcher], options: Iterable[str]) -> Iterable[str]:
    """The names of a launcher's options; all that were given, if it takes any."""
    import inspect

    parameters = inspect.signature(factory).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return options
    return [each.name for each in parameters]


def _guess(name: str, names: Iterable[str]) -> str:
    close = nearest(name, names)
    return f" (did you mean {close}?)" if close else ""


def _wrong(backend: str, name: str, value: object, wanted: str) -> SandboxError:
    return SandboxError(
        f"the option {name} of the backend {backend} is {value!r:.80}, not {wanted}",
        kind=Kind.INVALID,
        remedy=f"pass {wanted}",
    )
