"""The containers podbot made, as people see them: list, stop, run a command in one, sweep up.

Only containers that carry podbot's label count: others of the same engine are never listed,
stopped or entered. Nothing here prints or ends the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from podbot.engine import labels, refusals
from podbot.engine.containers import ContainerSummary
from podbot.engine.execs import ExecSpec
from podbot.engine.finding import candidates
from podbot.engine.finding.connecting import ConnectOptions, connect
from podbot.engine.labels import OwnerState
from podbot.engine.owned import owned, owner_state
from podbot.errors import ContainerError, Kind, PodbotError
from podbot.frozen import dataclass, field, frozen_dict, replace

if TYPE_CHECKING:
    from podbot.engine.engine import Engine
    from podbot.launch.attach import Streams

GRACE_SECONDS = 10
"""How long a container that is stopped may take to end by itself."""
SANDBOX = "sandbox"
"""The kind whose main process is a guest: it heeds no polite signal, and holds nothing back. The
engine removes such a container when it ends, whoever ended it."""

SHORTEST_START = 3
"""How much of an id or a name must be given; less would name many."""
MOST_NAMED = 8
"""How many containers an error names."""


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """A container of podbot's.

    ``kind`` says what it is for (``sandbox``, ``agent``, …), ``session`` whom it serves.
    ``owner`` is the process that made it, ``owner_state`` what is known of that: ``alive``,
    ``dead``, or ``unknown`` if it belongs to another machine or pid namespace.
    """

    id: str
    name: str
    image: str
    status: str
    created: int
    kind: str | None = None
    session: str | None = None
    owner: int | None = None
    owner_state: OwnerState = "unknown"

    @property
    def running(self) -> bool:
        """Whether something runs in it, paused or not."""
        return self.status in ("running", "paused")


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """A command for a container that runs.

    ``detach``: without streams; its end is still waited for. ``None`` means as the container has
    it; in a sandbox ``workdir`` is the workspace then, as for every command there. Without
    ``detach`` it has a terminal if the caller's stdin and stdout are both terminals.
    """

    container: str
    command: tuple[str, ...]
    detach: bool = False
    environment: Mapping[str, str] = field(default_factory=frozen_dict)
    workdir: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that could not be stopped or removed, by name, and why.

    Without a ``name`` it is the engine that could not be asked.
    """

    name: str | None
    error: PodbotError


@dataclass(frozen=True, slots=True)
class Stopped:
    """What became of containers that were to be stopped."""

    stopped: tuple[ContainerInfo, ...] = ()
    failed: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found: containers of dead owners, folders that these left, workspaces of dead
    sessions, what it left alone because it is in use or holds files, and what it could not do.

    ``not_asked`` says why a dry run did not look for containers, if it did not.
    """

    containers: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    failed: tuple[Failure, ...] = ()
    workspaces: tuple[str, ...] = ()
    kept_workspaces: tuple[str, ...] = ()
    live_workspaces: tuple[str, ...] = ()
    not_asked: str | None = None

    @property
    def problem(self) -> str | None:
        """Why something could not be looked at or removed, if so."""
        return self.failed[0].error.message if self.failed else None


def ps(engine: str | Engine | None = None) -> tuple[ContainerInfo, ...]:
    """Every container of podbot's, running or not, the newest first."""
    with connected(engine) as found:
        return _all(found)


def stop(name: str, engine: str | Engine | None = None, *, keep: bool = False) -> ContainerInfo:
    """End a container, politely first, and remove it unless it is to be kept.

    Kinds ``container_not_found`` and ``ambiguous_id``, ``unsupported`` if a sandbox is to be kept,
    and those of connecting.
    """
    with connected(engine) as found:
        container = find(found, name)
        _stop(found, container, keep)
        return container


def stop_all(
    engine: str | Engine | None = None, *, keep: bool = False
) -> tuple[ContainerInfo, ...]:
    """The same for every container of podbot's, whoever owns it.

    One that cannot be stopped keeps no other running; what was wrong with it is raised at the end.
    """
    done = stop_each(engine, keep=keep)
    if done.failed:
        raise done.failed[0].error
    return done.stopped


def stop_each(engine: str | Engine | None = None, *, keep: bool = False) -> Stopped:
    """The same as `stop_all`, and tells what was stopped and what was not."""
    stopped: list[ContainerInfo] = []
    failed: list[Failure] = []
    with connected(engine) as found:
        for container in _all(found):
            try:
                _stop(found, container, keep)
                stopped.append(container)
            except ContainerError as error:
                failed.append(Failure(container.name, error))
    return Stopped(tuple(stopped), tuple(failed))


def exec(
    request: ExecRequest, streams: Streams | None = None, engine: str | Engine | None = None
) -> int:
    """Run a command in a container of podbot's to its end; gives its exit status.

    Kinds ``container_not_found``, ``container_not_running``, ``ambiguous_id``, ``exec_failed``;
    ``command_not_found``, ``command_not_executable`` and ``bad_cwd`` if it was not started.
    """
    if request.workdir is not None and not request.workdir.startswith("/"):
        raise ContainerError(
            f"the folder to start in, {request.workdir!r}, is not an absolute path",
            kind=Kind.BAD_CWD,
            remedy="give its path in the container, from / on",
        )
    with connected(engine) as found:
        container = find(found, request.container)
        _check_running(found, container)
        workdir = request.workdir or _usual_workdir(container)
        spec = ExecSpec(request.command, request.environment, workdir, request.user)
        try:
            if request.detach:
                return found.execs.run_detached(container.id, spec)
            return _attached(found, container, spec, streams)
        except ContainerError as error:
            error.message = error.message.replace(container.id, container.name)  # as people say
            plain = refusals.retold(error, container.name, spec)
            raise plain from None if plain is error else error


def _usual_workdir(container: ContainerInfo) -> str | None:
    """Where commands in it start: the guest of a sandbox, which starts the others, is in ``/``."""
    if container.kind != SANDBOX:
        return None
    from podbot.sandbox.container.settings import WORKDIR

    return WORKDIR


def _attached(
    engine: Engine, container: ContainerInfo, spec: ExecSpec, streams: Streams | None
) -> int:
    from podbot.launch import _in_container
    from podbot.launch.attach import attach_started

    ending = attach_started(
        lambda ends: _in_container.start(engine, container.id, spec, ends), streams
    )
    if ending.problem is not None:
        raise ContainerError(
            ending.problem,
            kind=Kind.IO,
            remedy=f"the command ended with exit status {ending.exit_status}; look for room",
        )
    return ending.exit_status


def _check_running(engine: Engine, container: ContainerInfo) -> None:
    if container.status == "running" or not container.status:
        return
    if container.status == "paused":
        remedy = f"let it go on: {engine.facts.name} unpause {container.name}"
    else:
        remedy = "`podbot ps` lists those that run; a sandbox's next call starts another container"
    raise ContainerError(
        f"container {container.name} does not run: it is {container.status}",
        kind=Kind.CONTAINER_NOT_RUNNING,
        remedy=remedy,
        subject=container.id,
    )


def sweep(dry_run: bool = False, engine: str | Engine | None = None) -> Swept:
    """Remove the containers whose owners are surely dead, and what these left behind.

    Without any engine there are no containers, and that is no problem. A dry run starts no engine:
    Podman would make its folders, and without root leave a process behind.
    """
    failed: tuple[Failure, ...] = ()
    not_asked = None
    try:
        with connected(engine, own_service=not dry_run) as found:
            return _sweep(found, dry_run)
    except ContainerError as error:
        if error.kind is not Kind.NO_ENGINE:
            error.message = f"containers could not be looked at or removed: {error.message}"
            failed = (Failure(None, error),)
        elif dry_run and candidates.find_podman(os.environ) is not None:
            not_asked = "containers: no service of Podman runs, and a dry run starts none"
    swept = _sweep(None, dry_run)
    return replace(swept, failed=failed + swept.failed, not_asked=not_asked)


def find(engine: Engine, name: str) -> ContainerInfo:
    """The container with this name, or whose id begins so, or else whose name does.

    Kinds ``container_not_found`` and ``ambiguous_id``.
    """
    known = _all(engine)
    exact = [each for each in known if name in (each.name, each.id)]
    if exact:
        return exact[0]
    if len(name) >= SHORTEST_START:
        by_id = [each for each in known if each.id.startswith(name)]
        fits = by_id or [each for each in known if each.name.startswith(name)]
        if len(fits) > 1:
            raise _ambiguous(name, "ids" if by_id else "names", fits)
        if fits:
            return fits[0]
    raise _not_found(engine, name)


def _ambiguous(name: str, of: str, fits: list[ContainerInfo]) -> ContainerError:
    names = ", ".join(each.name for each in fits[:MOST_NAMED])
    more = f", and {len(fits) - MOST_NAMED} more" if len(fits) > MOST_NAMED else ""
    return ContainerError(
        f"{name} is the beginning of {len(fits)} {of}",
        kind=Kind.AMBIGUOUS_ID,
        remedy=f"give more of it, or a whole name: {names}{more}",
        subject=name,
    )


def _not_found(engine: Engine, name: str) -> ContainerError:
    theirs = any(name in (each.name, each.id) for each in engine.containers.list())
    return ContainerError(
        f"container {name} is there, but podbot did not make it"
        if theirs
        else f"podbot has no container {name}",
        kind=Kind.CONTAINER_NOT_FOUND,
        remedy="use the engine's own command for it" if theirs else "list them with `podbot ps`",
        subject=name,
    )


@contextmanager
def connected(engine: str | Engine | None, *, own_service: bool = True) -> Iterator[Engine]:
    """The engine, closed afterwards if it was opened here.

    Without ``own_service`` only one that runs.
    """
    if engine is not None and not isinstance(engine, str):
        yield engine
        return
    with connect(engine, ConnectOptions(own_service=own_service)) as found:
        yield found


def _all(engine: Engine) -> tuple[ContainerInfo, ...]:
    found = [_read(engine, each) for each in owned(engine)]
    return tuple(sorted(found, key=lambda each: (-each.created, each.name)))


def _read(engine: Engine, found: ContainerSummary) -> ContainerInfo:
    owner = labels.parse(found.labels.get(labels.OWNER, ""))
    return ContainerInfo(
        id=found.id,
        name=found.name,
        image=found.image,
        status=found.status,
        created=found.created,
        kind=found.labels.get(labels.KIND),
        session=found.labels.get(labels.SESSION),
        owner=None if owner is None else owner.pid,
        owner_state=owner_state(engine, found),
    )


def _stop(engine: Engine, container: ContainerInfo, keep: bool) -> None:
    if keep and container.kind == SANDBOX:
        raise ContainerError(
            f"container {container.name} cannot be kept: it is a sandbox's, which the engine "
            "removes when it ends; it was left as it is",
            kind=Kind.UNSUPPORTED,
            remedy="leave out --keep; what a run wrote to its files is in `podbot changes`",
            subject=container.id,
        )
    try:
        if container.status == "paused":
            engine.containers.unpause(container.id)  # what is frozen heeds no signal
        if container.running:
            grace = 0 if container.kind == SANDBOX else GRACE_SECONDS
            engine.containers.stop(container.id, grace)
    except ContainerError as error:
        # It went by itself meanwhile: that is what was wanted.
        if error.kind not in (Kind.CONTAINER_NOT_FOUND, Kind.CONTAINER_NOT_RUNNING):
            raise
    if not keep:
        engine.containers.remove(container.id)


def _sweep(engine: Engine | None, dry_run: bool) -> Swept:
    from podbot.sandbox import layers
    from podbot.sandbox.container import place, sweeping
    from podbot.tools.cached import sweep as sweep_kept
    from podbot.tools.temporary import sweep as sweep_temporary

    swept = sweeping.sweep(engine, dry_run)
    left = () if engine is None else _all(engine)
    gone = set(swept.containers)  # in a dry run they are still there
    live = tuple(each.name for each in left if each.name not in gone)
    folder = layers.place() / place.FOLDER
    folders = tuple(str(folder / name) for name in swept.folders)
    failed = tuple(Failure(name, error) for name, error in swept.failed)
    # After the containers, which may have been the last to use them.
    kept, temporary = sweep_kept(dry_run), sweep_temporary(dry_run)
    return Swept(
        swept.containers,
        folders,
        live,
        failed + tuple(Failure(path, error) for path, error in kept.failed + temporary.failed),
        kept.removed + temporary.removed,
        kept.kept,
        kept.live + temporary.live,
    )
