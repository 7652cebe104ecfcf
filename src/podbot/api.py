"""What podbot does, as calls with typed arguments and results: the CLI is built on these.

    from podbot.api import RunRequest, run

    outcome = run(RunRequest(("make", "test"), targets=("~/project",)))
    print(outcome.exit_status, outcome.layer)

What a run changed is the business of `podbot.changes`; `discard_changes` throws it away.
Containers (`ps`, `stop`, `exec`, `sweep`) and images (`build_image`, `images`) have their calls
here too; what they need is loaded when they are first used.

Nothing here prints, and nothing ends the process. What a command did wrong is data in the
outcome; what podbot could not do raises `PodbotError`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from podbot.errors import ChangesError, ContainerError, Kind, LaunchError, PodbotError
from podbot.frozen import dataclass, field, replace
from podbot.launch import offline
from podbot.launch.attach import Ending, Streams, attach
from podbot.on_use import on_use
from podbot.runs import records
from podbot.runs.records import Entry, Record
from podbot.sandbox import ops
from podbot.sandbox.layers import Layer
from podbot.sandbox.limits import Limits
from podbot.sandbox.network import Network
from podbot.sandbox.overlay.launcher import OverlaySandbox
from podbot.sandbox.policy import DEFAULT_ENVIRONMENT, DEFAULT_HIDDEN, Policy

if TYPE_CHECKING:
    from podbot.engine.engine import Engine
    from podbot.engine.image.building import BuiltImage, ImageRequest
    from podbot.launch.containers import (
        ContainerInfo,
        ExecRequest,
        Failure,
        Stopped,
        Swept,
        exec,
        ps,
        stop,
        stop_all,
        stop_each,
        sweep,
    )
    from podbot.runs.by_name import discard_changes

__all__ = [
    "BuiltImage",
    "ContainerInfo",
    "Ending",
    "ExecRequest",
    "Failure",
    "ImageRequest",
    "RunOutcome",
    "RunRequest",
    "Stopped",
    "Streams",
    "Swept",
    "build_image",
    "discard_changes",
    "exec",
    "images",
    "ps",
    "run",
    "stop",
    "stop_all",
    "stop_each",
    "sweep",
]

# A run needs no engine: these are loaded when someone asks for them.
_HOMES = {
    "podbot.engine.image.building": "BuiltImage ImageRequest",
    "podbot.launch.containers": "ContainerInfo ExecRequest Failure Stopped Swept exec ps stop "
    "stop_all stop_each sweep",
    "podbot.runs.by_name": "discard_changes",
}

RUN_VARIABLE = "PODBOT_RUN"
"""Set inside to the id of the run, so that a prompt or a script can tell where it is."""

MAX_EARLIER = 100
"""How many earlier runs in the same layer are remembered."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run, where, and what it may see.

    - ``targets``: folders whose changes are kept for review; default the current one. The command
      starts in the current folder if that lies in a target, else in the first target.
    - ``hide``, ``show``: absolute paths to hide besides the usual ones, and exceptions.
    - ``environment``: variables to set inside; ``pass_environment``: host variables to pass on
      besides the usual ones.
    - ``name``: what people may call the run instead of its id.
    - ``timeout``: seconds; then the command is told to end, and killed if it does not.
    - ``continue_in``: an earlier run (id, start of one, name, ``last``) in whose layer to go on.
    - ``discard``: throw away what it changes. An earlier run it continues in stays as it was.
    """

    command: tuple[str, ...]
    targets: tuple[str | os.PathLike[str], ...] = ()
    network: Network = Network.none
    hide: tuple[str, ...] = ()
    show: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    pass_environment: tuple[str, ...] = ()
    name: str | None = None
    timeout: float | None = None
    continue_in: str | None = None
    limits: Limits | None = None
    discard: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", Network(self.network))

    def policy(self) -> Policy:
        """What the sandbox may see and reach."""
        return Policy(
            network=self.network,
            hidden=(*DEFAULT_HIDDEN, *self.hide),
            readable=self.show,
            environment=self.environment,
            pass_environment=(*DEFAULT_ENVIRONMENT, *self.pass_environment),
        )


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended.

    ``exit_status`` is what a shell would show: 128 + n for a death by signal n (then ``signal`` is
    n), 124 when the time ran out, 127 or 126 when there was no such command or it could not be
    executed. ``problem`` says why, or what became of the output. ``layer`` holds the changes; it is
    None, and the run forgotten, if there are none. ``told_to_end`` is a signal podbot itself got.
    ``plain``: it wrote nothing that a terminal might obey. ``missed_network``: it failed, and
    something in it had tried to reach a network that was off.
    """

    id: str
    record: Record
    layer: Layer | None
    exit_status: int
    signal: int | None = None
    timed_out: bool = False
    problem: str | None = None
    told_to_end: int | None = None
    plain: bool = False
    missed_network: bool = False

    @property
    def changed(self) -> bool:
        """Whether there is anything to review."""
        return self.layer is not None


def run(
    request: RunRequest,
    streams: Streams | None = None,
    *,
    on_start: Callable[[Record], object] | None = None,
) -> RunOutcome:
    """Run a command in an overlay sandbox, joined to the caller's streams (see `attach`).

    ``on_start`` is told of the run right before the command starts. The record of the run is there
    by then, and stays with the layer whatever happens next; only a layer without changes is removed
    in the end, and its record with it.

    Raises `LaunchError`, `SandboxError` and, for the name, ``continue_in`` and the state folder,
    `ChangesError`.
    """
    command = ops.command(request.command, None, None)
    if request.timeout is not None:
        ops.seconds(request.timeout, Limits())
    before = _to_continue(request)
    if request.name is not None and (before is None or before.name != request.name):
        records.check_name(request.name)
    sandbox = _open(request, before)
    layer = sandbox.layer
    assert layer is not None  # noqa: S101 - an overlay sandbox has one
    record = _record_of(request, before, sandbox)
    noted = before is None or not request.discard  # else there is no layer that it would be of
    command = replace(command, cwd=_folder(layer), env={RUN_VARIABLE: layer.id})
    try:
        with sandbox:
            # Without waiting for the disk: it is there for whoever looks after a crash of ours.
            if noted:
                records.write(record, durable=False)
            if on_start is not None:
                on_start(record)
            try:
                ending = attach(sandbox, command, streams, request.timeout)
            except PodbotError as error:
                if noted:
                    _write_end(replace(record, ended=time.time(), error=error.message))
                raise
            # While its network namespace still is there to be asked.
            failed_offline = ending.exit_status != 0 and not request.network.reaches_out
            missed_network = failed_offline and offline.missed(sandbox)
            record = _ended(record, ending)
            # Before it closes, so that nobody sees a run that is over and does not say how.
            written = noted and not layer.empty
            problem = _write_end(record) if written else None
    finally:
        kept = layer.path.exists()
        if not kept and not (before is not None and _is_applied(before)):
            with suppress(ChangesError):
                records.remove(layer.id)
    if kept and noted and not written:  # by something in the background, at the last moment
        problem = _write_end(record)
    return RunOutcome(
        id=layer.id,
        record=record,
        layer=layer if kept and not request.discard else None,
        exit_status=ending.exit_status,
        signal=ending.signal,
        timed_out=ending.timed_out,
        problem=ending.problem or problem,
        told_to_end=ending.told_to_end,
        plain=ending.plain,
        missed_network=missed_network,
    )


def _is_applied(before: Entry) -> bool:
    """Whether something is left to undo of a run, which takes its record to be named."""
    from podbot.changes.applying.applied import applications

    return any(not each.undone for each in applications(before.id))


def _ended(record: Record, ending: Ending) -> Record:
    return replace(
        record,
        ended=time.time(),
        exit_status=ending.exit_status,
        signal=ending.signal,
        timed_out=ending.timed_out,
        error=ending.problem,
    )


def _write_end(record: Record) -> str | None:
    """Write the record of a run that is over; a full disk must not keep its outcome untold."""
    try:
        records.write(record)
    except ChangesError as error:
        return error.message
    return None


def _to_continue(request: RunRequest) -> Entry | None:
    if request.continue_in is None:
        return None
    if request.targets:
        raise ChangesError(
            "a run that goes on in a layer has its targets",
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


def _open(request: RunRequest, before: Entry | None) -> OverlaySandbox:
    policy = request.policy()
    if before is not None:
        return OverlaySandbox(
            policy=policy, limits=request.limits, layer=before.layer, discard=request.discard
        )
    return OverlaySandbox(
        request.targets or None, policy=policy, limits=request.limits, discard=request.discard
    )


def _record_of(request: RunRequest, before: Entry | None, sandbox: OverlaySandbox) -> Record:
    layer = sandbox.layer
    assert layer is not None  # noqa: S101 - see `run`
    old = None if before is None else before.record
    return Record(
        id=layer.id,
        name=request.name or (None if old is None else old.name),
        command=request.command,
        targets=layer.targets,
        backend=sandbox.backend,
        network=request.network,
        started=time.time(),
        owner=os.getpid(),
        guarantees=sandbox.guarantees,
        notes=sandbox.notes,
        earlier=() if old is None else (*old.earlier, old.past)[-MAX_EARLIER:],
    )


def _folder(layer: Layer) -> str | None:
    """Where the command starts: here if here is reviewed, else None for the first target."""
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:  # it was removed
        return None
    inside = any(here == target or here.startswith(f"{target}/") for target in layer.targets)
    return here if inside else None


def build_image(
    request: ImageRequest,
    on_progress: Callable[[str], object],
    engine: str | Engine | None = None,
) -> BuiltImage:
    """Build an image; ``on_progress`` is told what is being done, a line at a time.

    Kinds ``build_failed``, ``missing_dependency``, ``pull_failed``, and those of connecting.
    """
    from podbot.engine.image import building
    from podbot.engine.image.leftovers import Leftovers
    from podbot.launch.containers import connected

    leftovers = None
    try:
        with connected(engine) as found:
            leftovers = Leftovers(found)
            return building.build(found, request, leftovers.hearing(on_progress))
    except ContainerError:
        raise  # the engine itself gave up, and has tidied up
    except BaseException:
        if leftovers is not None and leftovers.expected:
            with connected(engine) as found:
                leftovers.remove(found)
        raise


def images(engine: str | Engine | None = None) -> tuple[BuiltImage, ...]:
    """Every image of podbot's that the engine has, the newest first."""
    from podbot.engine.image import building
    from podbot.launch.containers import connected

    with connected(engine) as found:
        return building.built(found)


# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:
    __getattr__ = on_use(globals(), _HOMES)
