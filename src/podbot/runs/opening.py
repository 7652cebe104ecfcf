"""The sandbox of a `LaunchRequest`, whichever backend it is for.

Backends differ in what they take. This turns one request into each one's options, and refuses what
a backend has no word for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from podbot.errors import ChangesError, ConfigError, Kind, LaunchError
from podbot.runs import records
from podbot.runs.records import Entry
from podbot.runs.request import DEFAULT_BACKEND, LaunchRequest
from podbot.sandbox import backends

if TYPE_CHECKING:
    from podbot.sandbox.sandbox import Sandbox

_OF_THE_LAYER = ("continue_in", "discard", "name", "title")
"""What only a backend that keeps changes apart can do."""


def to_continue(request: LaunchRequest) -> Entry | None:
    """The run to go on in, if that was asked for.

    Raises what `find` raises, and kinds ``invalid``, ``unknown_id`` (its changes are gone) and
    ``in_use``.
    """
    if request.continue_in is None:
        return None
    if request.targets:
        raise ChangesError(
            "a run that goes on in an earlier one keeps the targets of that one",
            kind=Kind.INVALID,
            remedy="leave out the targets",
        )
    entry = records.find(request.continue_in, records.here())
    if entry.layer is None:
        raise ChangesError(
            f"the changes of run {entry.called} are gone: there is nothing to go on in",
            kind=Kind.UNKNOWN_ID,
            remedy="start a new run; `podbot changes list` says which are there",
        )
    if entry.live:
        raise LaunchError(
            f"run {entry.called} still works: its sandbox is in use",
            kind=Kind.IN_USE,
            remedy="go on in it once it has ended, or start a new run",
        )
    return entry


def backend_of(request: LaunchRequest, before: Entry | None) -> str:
    """The backend that was asked for, or the one that fits."""
    if request.backend is not None:
        return request.backend
    record = None if before is None else before.record
    made_it = None if record is None else record.backend
    return backends.CONTAINER if made_it == backends.CONTAINER else DEFAULT_BACKEND


def open_sandbox(request: LaunchRequest, before: Entry | None) -> Sandbox:
    """Open the sandbox; ``before`` is what `to_continue` found.

    Raises `LaunchError` and `SandboxError`, kind ``unsupported`` for what a backend cannot do.
    """
    backend = backend_of(request, before)
    layer = None if before is None else before.layer
    if backend == backends.OVERLAY:
        from podbot.sandbox.overlay.launcher import OverlaySandbox

        if request.image is not None:
            raise _no_option(backend, "image", "--backend container")
        return OverlaySandbox(
            None if layer is not None else request.targets or None,
            policy=request.policy(),
            limits=request.limits,
            discard=request.discard,
            layer=layer,
            title=request.title,
        )
    options = said_options(request)
    if backend in (backends.CONTAINER, backends.LOCAL) and layer is None:
        options.setdefault("target", os.curdir)
    if backend == backends.CONTAINER:
        if layer is not None and request.discard:
            raise ConfigError(
                "a container that goes on in an earlier run keeps what it changes",
                kind=Kind.UNSUPPORTED,
                remedy="leave out --discard, or go on in it with --backend overlay",
                field="discard",
            )
        options |= {"layer": layer, "discard": request.discard, "title": request.title}
    elif layer is not None:
        raise _no_option(backend, "continue_in", "the backend that made it")
    from podbot.sandbox.options import launcher_of

    sandbox = launcher_of(backend, options).sandbox()
    try:
        check_kept(request, sandbox)
    except ConfigError:
        sandbox.close()
        raise
    return sandbox


def said_options(request: LaunchRequest) -> dict[str, object]:
    """What was said, as options of a backend that works on one folder, and nothing besides.

    All that one of another package is given: it may know no more.
    """
    options: dict[str, object] = {"policy": request.policy()}
    if request.limits is not None:
        options["limits"] = request.limits
    if len(request.targets) > 1:
        raise ConfigError(
            f"the backend {request.backend} works on one folder, and {len(request.targets)} were "
            "named",
            kind=Kind.UNSUPPORTED,
            remedy="name the folder they all lie in, or use overlay",
            field="targets",
        )
    if request.targets:
        options["target"] = request.targets[0]
    if request.image is not None:
        options["image"] = request.image
    return options


def check_kept(request: LaunchRequest, sandbox: Sandbox) -> None:
    """Raises kind ``unsupported`` if changes were to be kept and the sandbox keeps none apart."""
    for option in _OF_THE_LAYER:
        if sandbox.layer is None and getattr(request, option):
            raise _no_option(sandbox.backend, option, "overlay or container")


def _no_option(backend: str, option: str, other: str) -> ConfigError:
    return ConfigError(
        f"the backend {backend} does not support {option}",
        kind=Kind.UNSUPPORTED,
        remedy=f"leave it out, or use {other}",
        field=option,
    )
