"""A sandbox's stay in containers: one workspace, and one container after the other.

The workspace is made once. A container is made for it, and another one when that was stopped or
lost, over the same files. This module does; `plan.py`, `identity.py` and `target.py` decide.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading

from podbot.engine import Engine, Facts
from podbot.errors import (
    ContainerError,
    GuestLostError,
    Kind,
    LaunchError,
    PodbotError,
    SandboxError,
)
from podbot.frozen import dataclass, replace
from podbot.sandbox import over_stream
from podbot.sandbox.container import (
    _engines,
    _identity,
    _kit,
    _making,
    _overlays,
    _plan,
    _report,
    _workspace,
)
from podbot.sandbox.container import _target as targets
from podbot.sandbox.container._identity import EngineKind, Identity
from podbot.sandbox.container._running import Running
from podbot.sandbox.container._stream import Attached
from podbot.sandbox.container._target import Target
from podbot.sandbox.container._workspace import Workspace
from podbot.sandbox.container.place import Door, Place
from podbot.sandbox.container.settings import WORKDIR, Settings, no_folder
from podbot.sandbox.container.settings import Target as GivenTarget
from podbot.sandbox.launcher import Launched
from podbot.sandbox.layers.disk_watcher import DiskWatcher

READY_SECONDS = 60.0
SELINUX = "/sys/fs/selinux/enforce"


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a stay rests on, found once."""

    engine: Engine
    facts: Facts
    target: Target | None
    identity: Identity
    place: Place
    workspace: Workspace


@dataclass(frozen=True, slots=True)
class Line:
    """A connection to a guest that answers. ``stream`` says why it goes through the engine."""

    running: Running
    socket: socket.socket
    stream: str = ""


class Stay:
    """From the first start to the last end. One thread at a time."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.starts = 0
        self._grounds: Grounds | None = None
        self.running: Running | None = None
        self.made: _report.Made | None = None
        """What was made last, for whoever tells of it."""
        self._watcher: DiskWatcher | None = None
        self._over = False
        self._process = os.getpid()
        self._lock = threading.RLock()

    # Starting

    def start(self) -> Launched:
        """Start a container; again after it was stopped or lost, over the same files."""
        with self._lock:
            try:
                grounds = self._found()
                self._drop()
                return self._launch(grounds)
            except SandboxError:
                raise
            except PodbotError as error:
                raise LaunchError(error.message, kind=error.kind, remedy=error.remedy) from error
            except OSError as error:
                raise LaunchError(
                    f"the container could not be started: {error}",
                    kind=Kind.LAUNCH_FAILED,
                    remedy="run `podbot doctor`",
                ) from error
            finally:
                if self.starts == 0 and self._grounds is not None:
                    self._leave()  # nothing is left behind by one that never came to be

    def _found(self) -> Grounds:
        if self._over:
            raise LaunchError("this sandbox is closed", kind=Kind.CLOSED)
        if self._grounds is None:
            self._grounds = self._find()
        return self._grounds

    def _find(self) -> Grounds:
        settings = self.settings
        engine = _engines.connect(settings.engine)
        facts = engine.facts
        given = settings.layer.targets[0] if settings.layer is not None else settings.target
        target = None if given is None else targets.checked(given, settings.policy)
        kind = EngineKind(facts.is_podman, facts.rootless, _engines.owner(engine))
        owned = settings.workspace != "copy" and target is not None
        caller = (os.geteuid(), os.getegid())
        if settings.privileged:
            who = _identity.choose_root(kind, caller)
        else:
            who = _identity.choose(kind, caller, target.owner if owned and target else None)
        able = _overlays.able(engine)
        contents, place = _workspace.prepare(settings, target, who, able)
        return Grounds(engine, facts, target, who, place, Workspace(contents, settings.discard))

    def _launch(self, grounds: Grounds) -> Launched:
        try:
            line = self._reach(grounds)
        except _overlays.Unfit as unfit:
            if self.settings.layer is not None:
                raise LaunchError(
                    f"layer {self.settings.layer.id} cannot be used with this engine: {unfit}",
                    kind=Kind.UNSUPPORTED,
                    remedy="use the engine or the backend that made it",
                ) from None
            grounds = self._grounds = self._find_again(grounds)
            line = self._reach(grounds)
        self.running = line.running
        self.starts += 1
        contents = grounds.workspace.contents
        self._watch(grounds, line.running)
        made = self.made = _report.Made(
            self.settings, grounds.facts, grounds.identity, contents,
            line.running.runtime, line.running.grouped, _selinux(grounds, line), line.stream,
        )  # fmt: skip
        return Launched(
            workdir=WORKDIR,
            guarantees=_report.guarantees(made),
            end=self.end,
            connection=line.socket,
            config=self._config(_report.rlimits(made), self.starts - 1),
            died=self.reason,
            notes=_report.notes(made),
            layer=contents.layer,
            descriptors=not line.stream,
        )

    def _watch(self, grounds: Grounds, running: Running) -> None:
        """Mind how much the workspace holds, if that is limited."""
        limit, layer = self.settings.limits.disk, grounds.workspace.layer
        if limit is not None and self.settings.workspace != "bind":
            watched = grounds.place.path if layer is None else layer.path
            self._watcher = DiskWatcher(watched, limit, running.kill)

    def _find_again(self, grounds: Grounds) -> Grounds:
        """The engine's overlays turned out to be of no use: work on a copy."""
        grounds.workspace.settle()
        grounds.place.remove()
        self._grounds = None
        return self._find()

    def _reach(self, grounds: Grounds) -> Line:
        """A guest that answers, past the engine if that can be."""
        why = _engines.why_stream(grounds.engine, self.settings.runtime)
        if why is None:
            try:
                return self._by_socket(grounds)
            except _making.SocketUselessError as useless:
                line = self._by_stream(grounds, str(useless))
                _engines.remember_stream(grounds.engine, str(useless))
                return line
        return self._by_stream(grounds, why)

    def _by_socket(self, grounds: Grounds) -> Line:
        door = Door(grounds.place.door)
        try:
            running = self._created(grounds, stream=False)
            try:
                why = _engines.why_stream(running.engine, running.runtime)
                if why is not None:  # the engine's default, as it turns out
                    raise _making.SocketUselessError(why)
                _making.start(running, self.settings.image)
                line, visitor = door.wait(READY_SECONDS, lambda: _making.look(running))
                try:
                    running.hold(visitor.pid)
                    _making.check_visitor(visitor, grounds.identity)
                    _overlays.check(running.engine, visitor.pid, grounds.workspace.contents)
                except BaseException:
                    line.close()
                    raise
            except BaseException:
                running.end()
                raise
        finally:
            door.close()
        return Line(running, line)

    def _by_stream(self, grounds: Grounds, why: str) -> Line:
        running = self._created(grounds, stream=True)
        try:
            hijacked = running.engine.containers.attach(running.id)
            try:
                _making.start(running, self.settings.image)
            except BaseException:
                hijacked.close()
                raise
            line = self._booted(Attached(hijacked))
            if grounds.facts.local:
                with contextlib.suppress(ContainerError):  # it ended: the channel will tell
                    running.hold(running.engine.containers.inspect(running.id).pid)
        except BaseException:
            running.end()
            raise
        return Line(running, line, _report.BY_STREAM.format(why=why))

    def _booted(self, attached: Attached) -> socket.socket:
        """See that a guest answers at the other end."""
        try:
            return over_stream.boot(attached.bytes, send=self._elsewhere, said=attached.said)
        except over_stream.NoGuestError as error:
            raise _making.no_guest(self.settings.image, error.said) from None

    def _config(self, rlimits: dict[str, int], starts: int) -> dict[str, object]:
        rg = None if self._elsewhere else _kit.ripgrep()
        return _plan.config(self.settings, rlimits, starts, rg)

    @property
    def _elsewhere(self) -> bool:
        """Whether the workspace is in another machine's memory."""
        return self._grounds is not None and self._grounds.workspace.contents.mount is None

    @property
    def to_send(self) -> str | None:
        """The folder whose files must be sent in, as they could not be mounted."""
        grounds = self._grounds
        return grounds.target.path if self._elsewhere and grounds and grounds.target else None

    def _created(self, grounds: Grounds, *, stream: bool) -> Running:
        draft = _plan.Draft(
            self.settings,
            grounds.facts,
            grounds.identity,
            grounds.workspace.contents.mount,
            self.settings.name or f"podbot-{os.urandom(6).hex()}",
            grounds.place.door,
            stream,
            grounds.facts.local and not stream and os.path.exists(SELINUX),
        )
        spec = _plan.spec(draft)
        engine = grounds.engine
        try:
            created = _making.create(engine, spec)
        except ContainerError as error:
            other = _engines.with_runtime(engine, spec.runtime, error)
            if other is None:
                raise
            self._grounds = replace(grounds, engine=other)
            engine, created = other, _making.create(other, spec)
        return Running(engine, created, spec.name or created.id)

    # Between start and end

    def reason(self) -> SandboxError | None:
        """Why the guest is gone, as well as we know. Asks no engine: it may be called anywhere."""
        if self._watcher is not None and self._watcher.tripped:
            return SandboxError(
                f"the sandbox wrote more than its disk limit of {self._watcher.limit} bytes",
                kind=Kind.DISK_LIMIT,
                remedy="raise Limits(disk=…); what it wrote is kept in its layer",
            )
        name = self.running.name if self.running is not None else "of this sandbox"
        again = "call again: it is started anew over the same files"
        if self._elsewhere:
            again = "call again: it is started anew; what was in its memory is gone"
        return GuestLostError(
            f"the container {name} ended while it was in use: it was killed or removed from "
            "outside, or ran out of memory",
            kind=Kind.GUEST_LOST,
            remedy=again if self.settings.restart else "open a new one; its files are kept",
        )

    def fill(self, given: GivenTarget) -> None:
        """Copy a target into the empty workspace of a container that runs already."""
        if self.settings.privileged:
            raise no_folder()
        with self._lock:
            grounds = self._found()
            if grounds.target is not None:
                raise SandboxError(
                    "this sandbox has a target already",
                    kind=Kind.INVALID,
                    remedy="open the pool without one, and name it with each claim",
                )
            if self._elsewhere:
                raise SandboxError(
                    "the engine is not on this machine: no folder can be put into its workspace",
                    kind=Kind.UNSUPPORTED,
                    remedy="upload() what it needs",
                )
            target = targets.checked(given, self.settings.policy)
            grounds.workspace.fill(target, grounds.identity, self.settings.limits)
            self._grounds = replace(grounds, target=target)
            if self._watcher is not None and self.running is not None:
                self._watcher.stop()
                self._watch(grounds, self.running)
            if self.made is not None:
                self.made = replace(self.made, contents=grounds.workspace.contents)

    # Ending

    def stop(self) -> None:
        """End the container; the files stay, and `start` goes on with them."""
        with self._lock:
            self._drop()

    def end(self) -> None:
        """End all of it. May be called twice; a fork of the owner ends nothing."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._over = True
            try:
                self._drop()
            finally:
                self._leave()

    def _drop(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None
        running, self.running = self.running, None
        if running is not None:
            with contextlib.suppress(ContainerError, OSError):
                # What an engine cannot remove now, it removes by itself or `podbot gc` does.
                running.end()

    def _leave(self) -> None:
        grounds, self._grounds = self._grounds, None
        if grounds is not None:
            try:
                grounds.workspace.settle()
            finally:
                grounds.place.remove()


def _selinux(grounds: Grounds, line: Line) -> bool:
    return grounds.facts.local and not line.stream and os.path.exists(SELINUX)
