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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from podbot.errors import ContainerError, Kind, PodbotError, SandboxError
from podbot.frozen import dataclass, replace
from podbot.launch import elsewhere, offline
from podbot.launch.attach import Ending, Streams, attach
from podbot.on_use import on_use
from podbot.runs.records import Record
from podbot.runs.request import LaunchRequest
from podbot.runs.run import Run
from podbot.sandbox import backends, ops
from podbot.sandbox.layers import Layer
from podbot.sandbox.layers.mounts import is_below
from podbot.sandbox.limits import Limits
from podbot.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from podbot.egress import Record as Connection
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
    from podbot.launch.interludes import Interludes
    from podbot.runs.by_name import discard_changes
    from podbot.sandbox.publishing import Publication

__all__ = [
    "BuiltImage",
    "ContainerInfo",
    "Ending",
    "ExecRequest",
    "Failure",
    "ImageRequest",
    "LaunchRequest",
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

RunRequest = LaunchRequest
"""What `run` is asked for."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended.

    ``exit_status`` is what a shell would show: 128 + n for a death by signal n (then ``signal`` is
    n), 124 when the time ran out, 127 or 126 when there was no such command or it could not be
    executed. ``problem`` says why, or what became of the output. ``layer`` holds the changes; it is
    None, and the run forgotten, if there are none. ``stop_signal`` is a signal podbot itself got.
    ``plain``: it wrote nothing that a terminal might obey. ``missed_network``: it failed, and
    something in it had tried to reach a network that was off. ``not_kept`` are files that it wrote
    to the home outside of the targets, where nothing stays; some of them if they are very many.
    ``connections`` are those through the proxy, the oldest first, where the network names hosts.
    """

    id: str
    record: Record
    layer: Layer | None
    exit_status: int
    signal: int | None = None
    timed_out: bool = False
    problem: str | None = None
    stop_signal: int | None = None
    plain: bool = False
    missed_network: bool = False
    not_kept: tuple[str, ...] = ()
    connections: tuple[Connection, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether there is anything to review."""
        return self.layer is not None


def run(
    request: RunRequest,
    streams: Streams | None = None,
    *,
    on_start: Callable[[Record], object] | None = None,
    on_publish: Callable[[Publication], object] | None = None,
    on_connection: Callable[[Connection], object] | None = None,
    interludes: Interludes | None = None,
) -> RunOutcome:
    """Run a command in a sandbox, joined to the caller's streams (see `attach`).

    ``on_start`` is told of the run right before the command starts. The record of the run is there
    by then, and stays with the layer whatever happens next; only a layer without changes is removed
    in the end, and its record with it. On a backend that keeps no changes apart nothing is noted.
    ``on_connection`` is told of each connection through the proxy, when it has ended or was
    refused, in a thread of the proxy's; ``interludes`` are told while the command runs.
    ``on_publish`` is told of each port that is published, and where, before the command starts.

    Raises `LaunchError`, `SandboxError`, `ConfigError` for what the backend does not support, and,
    for the name, ``continue_in`` and the state folder, `ChangesError`.
    """
    command = ops.command(request.command, None, None)
    if request.timeout is not None:
        ops.seconds(request.timeout, Limits())
    if request.backend == backends.MEMORY:
        raise SandboxError(
            "the backend memory holds files, and runs no commands",
            kind=Kind.UNSUPPORTED,
            remedy="use overlay, container or local",
        )
    this = Run(request)
    sandbox = this.open()
    try:
        with sandbox, ExitStack() as published:
            record, layer = this.record, sandbox.layer
            command = replace(command, cwd=_folder(sandbox), env={RUN_VARIABLE: record.id})
            gateway = sandbox.gateway
            if gateway is not None and on_connection is not None:
                gateway.hear(on_connection)
            if on_start is not None:
                on_start(record)
            for each in _published(sandbox, request, published):
                if on_publish is not None:
                    on_publish(each)
            try:
                ending = attach(sandbox, command, streams, request.timeout, interludes)
            except PodbotError as error:
                this.end(error=error.message)
                raise
            # While its network namespace still is there to be asked.
            failed_offline = ending.exit_status != 0 and not sandbox.policy.network.reaches_out
            missed_network = failed_offline and layer is not None and offline.missed(sandbox)
            # Before the home goes with the sandbox.
            not_kept = () if layer is None else elsewhere.written(layer)
            problem = this.end(
                ending.exit_status,
                signal=ending.signal,
                timed_out=ending.timed_out,
                error=ending.problem,
            )
    finally:
        kept, late_problem = this.finish()
    return RunOutcome(
        id=record.id,
        record=this.record,
        layer=kept,
        exit_status=ending.exit_status,
        signal=ending.signal,
        timed_out=ending.timed_out,
        problem=ending.problem or problem or late_problem,
        stop_signal=ending.stop_signal,
        plain=ending.plain,
        missed_network=missed_network,
        not_kept=not_kept,
        connections=() if gateway is None else gateway.records,
    )


def _published(sandbox: Sandbox, request: RunRequest, until: ExitStack) -> Iterator[Publication]:
    """The ports that were asked for, each as it is published."""
    if request.publish:
        from podbot.sandbox.publishing import Port, Publication

        for port in request.publish:
            yield until.enter_context(Publication(sandbox, Port.of(port)))


def _folder(sandbox: Sandbox) -> str | None:
    """Where the command starts: here if here is worked on, else None for the first target."""
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:  # it was removed
        return None
    targets = (sandbox.workdir,) if sandbox.layer is None else sandbox.layer.targets
    target = next((t for t in targets if is_below(here, t) or here == t), None)
    if target is None:
        return None
    # A container has its target elsewhere.
    inside = os.path.relpath(here, target)
    return here if targets[0] == sandbox.workdir else os.path.join(sandbox.workdir, inside)


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
