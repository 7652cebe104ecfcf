"""The life of a sandbox in containers: one workspace, and one container after the other.

The workspace is made once. A container is made for it, and another one when that was stopped or
lost, over the same files. This module does; `_plan.py`, `_identity.py` and `_target.py` decide.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

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
from podbot.sandbox import bookkeeping, over_stream
from podbot.sandbox.container import (
    _engines,
    _identity,
    _idmapped,
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
from podbot.sandbox.container.settings import BACKEND, WORKDIR, Settings, no_folder
from podbot.sandbox.container.settings import Target as GivenTarget
from podbot.sandbox.launcher import Launched
from podbot.sandbox.layers.disk_watcher import DiskWatcher

if TYPE_CHECKING:
    from podbot.sandbox.gateway import Gateway
    from podbot.sandbox.layers import Layer

READY_SECONDS = 60.0
SELINUX = "/sys/fs/selinux/enforce"


@dataclass(frozen=True, slots=True)
class Prepared:
    """What every start rests on, found once."""

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


class ContainerSession:
    """From the first start to the last end. One thread at a time."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.starts = 0
        self._prepared: Prepared | None = None
        self.running: Running | None = None
        self.made: _report.Made | None = None
        """What was made last, for whoever tells of it."""
        self._watcher: DiskWatcher | None = None
        self.gateway: Gateway | None = None
        self._over = False
        self._began = time.time()
        self._process = os.getpid()
        self._lock = threading.RLock()

    # Starting

    def start(self) -> Launched:
        """Start a container; again after it was stopped or lost, over the same files."""
        with self._lock:
            try:
                prepared = self._found()
                self._drop()
                return self._launch(prepared)
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
                if self.starts == 0 and self._prepared is not None:
                    self._leave()  # nothing is left behind by one that never came to be

    def _found(self) -> Prepared:
        if self._over:
            raise LaunchError("this sandbox is closed", kind=Kind.CLOSED)
        if self._prepared is None:
            self._prepared = self._find()
        return self._prepared

    def _find(self) -> Prepared:
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
        return Prepared(engine, facts, target, who, place, Workspace(contents, settings.discard))

    def _launch(self, prepared: Prepared) -> Launched:
        try:
            line = self._reach(prepared)
        except _overlays.Unfit as unfit:
            if self.settings.layer is not None:
                raise LaunchError(
                    f"layer {self.settings.layer.id} cannot be used with this engine: {unfit}",
                    kind=Kind.UNSUPPORTED,
                    remedy="use the engine or the backend that made it",
                ) from None
            prepared = self._prepared = self._find_again(prepared)
            line = self._reach(prepared)
        self.running = line.running
        self.starts += 1
        contents = prepared.workspace.contents
        self._watch(prepared, line.running)
        made = self.made = _report.Made(
            self.settings, prepared.facts, prepared.identity, contents,
            line.running.runtime, line.running.grouped, _selinux(prepared, line), line.stream,
        )  # fmt: skip
        return Launched(
            workdir=WORKDIR,
            guarantees=_report.guarantees(made),
            end=self.end,
            connection=line.socket,
            config=self._config(_report.rlimits(made), self.starts - 1, made.runtime),
            died=self.reason,
            notes=_report.notes(made),
            layer=contents.layer,
            descriptors=not line.stream,
            gateway=self.gateway,
        )

    def _watch(self, prepared: Prepared, running: Running) -> None:
        """Mind how much the workspace holds, if that is limited."""
        limit, layer = self.settings.limits.disk, prepared.workspace.layer
        if limit is not None and self.settings.workspace != "bind":
            watched = prepared.place.path if layer is None else layer.path
            self._watcher = DiskWatcher(watched, limit, running.kill)

    def _find_again(self, prepared: Prepared) -> Prepared:
        """The engine's overlays turned out to be of no use: work on a copy."""
        prepared.workspace.release()
        prepared.place.remove()
        self._prepared = None
        return self._find()

    def _reach(self, prepared: Prepared) -> Line:
        """A guest that answers, past the engine if that can be."""
        view = prepared.workspace.contents.view
        if view is None:
            return self._reached(prepared)
        try:
            with view.mounted():
                return self._reached(prepared)
        except _idmapped.Unmappable as unmappable:
            raise _overlays.refused(prepared.engine, str(unmappable)) from None

    def _reached(self, prepared: Prepared) -> Line:
        why = _engines.why_stream(prepared.engine, self.settings.runtime)
        if why is None:
            try:
                return self._by_socket(prepared)
            except _making.SocketUselessError as useless:
                line = self._by_stream(prepared, str(useless))
                _engines.remember_stream(prepared.engine, str(useless))
                return line
        return self._by_stream(prepared, why)

    def _by_socket(self, prepared: Prepared) -> Line:
        door = Door(prepared.place.door)
        try:
            running = self._created(prepared, stream=False)
            try:
                why = _engines.why_stream(running.engine, running.runtime)
                if why is not None:  # the engine's default, as it turns out
                    raise _making.SocketUselessError(why)
                _making.start(running, self.settings.image)
                line, visitor = door.wait(READY_SECONDS, lambda: _making.check_alive(running))
                try:
                    running.hold(visitor.pid)
                    _making.check_visitor(visitor, prepared.identity)
                    _overlays.check(running.engine, visitor.pid, prepared.workspace.contents)
                    _making.verify(running)
                    self._open_gateway(line, prepared)
                except BaseException:
                    line.close()
                    raise
            except BaseException:
                running.end()
                raise
        finally:
            door.close()
        return Line(running, line)

    def _open_gateway(self, line: socket.socket, prepared: Prepared) -> None:
        """Take what the guest hands out, if the policy names hosts."""
        network = self.settings.policy.network
        if not network.proxied:
            return
        from podbot.sandbox import gateway  # few sandboxes have one

        if self.gateway is None:
            self.gateway = gateway.Gateway(network, self.settings.policy.routes)
        self.gateway.take(gateway.handed_out(line, READY_SECONDS))
        self._note_connections(prepared)

    def _note_connections(self, prepared: Prepared) -> None:
        layer = prepared.workspace.layer
        if self.gateway is not None and layer is not None and not self.settings.discard:
            self.gateway.note_in(layer)

    def _by_stream(self, prepared: Prepared, why: str) -> Line:
        if self.settings.policy.network.proxied:
            raise LaunchError(
                f"the network cannot be opened for chosen hosts in this container: {why}",
                kind=Kind.UNSUPPORTED,
                remedy="use an engine on this machine with runc or crun, or the overlay backend; "
                "or the network none or host",
            )
        if prepared.workspace.contents.view is not None:
            # What is mounted in there could not be looked at.
            raise _overlays.refused(prepared.engine, f"it cannot be looked into: {why}")
        running = self._created(prepared, stream=True)
        try:
            hijacked = running.engine.containers.attach(running.id)
            try:
                _making.start(running, self.settings.image)
            except BaseException:
                hijacked.close()
                raise
            line = self._booted(Attached(hijacked))
            try:
                _making.verify(running)
            except BaseException:
                line.close()
                raise
            if prepared.facts.local:
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

    def _config(self, rlimits: dict[str, int], starts: int, runtime: str) -> dict[str, object]:
        rg = None if self._elsewhere else _kit.ripgrep()
        return _plan.config(self.settings, rlimits, starts, rg, runtime)

    @property
    def _elsewhere(self) -> bool:
        """Whether the workspace is in another machine's memory."""
        return self._prepared is not None and self._prepared.workspace.contents.mount is None

    @property
    def to_send(self) -> str | None:
        """The folder whose files must be sent in, as they could not be mounted."""
        prepared = self._prepared
        return prepared.target.path if self._elsewhere and prepared and prepared.target else None

    def _created(self, prepared: Prepared, *, stream: bool) -> Running:
        draft = _plan.Draft(
            self.settings,
            prepared.facts,
            prepared.identity,
            prepared.workspace.contents.mount,
            self.settings.name or f"podbot-{os.urandom(6).hex()}",
            prepared.place.door,
            stream,
            prepared.facts.local and not stream and os.path.exists(SELINUX),
        )
        spec = _plan.spec(draft)
        engine = prepared.engine
        try:
            created = _making.create(engine, spec)
        except ContainerError as error:
            other = _engines.with_runtime(engine, spec.runtime, error)
            if other is None:
                raise
            self._prepared = replace(prepared, engine=other)
            engine, created = other, _making.create(other, spec)
        return Running(engine, created, spec)

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
            prepared = self._found()
            if prepared.target is not None:
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
            settings = self.settings
            prepared.workspace.fill(target, prepared.identity, settings.limits, settings.title)
            self._prepared = replace(prepared, target=target)
            self._note_connections(prepared)
            if self._watcher is not None and self.running is not None:
                self._watcher.stop()
                self._watch(prepared, self.running)
            if self.made is not None:
                self.made = replace(self.made, contents=prepared.workspace.contents)

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
                if self.gateway is not None:
                    self.gateway.close()
                self._leave()

    def _drop(self) -> None:
        if self.gateway is not None:
            self.gateway.shut()
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None
        running, self.running = self.running, None
        if running is not None:
            with contextlib.suppress(ContainerError, OSError):
                # What an engine cannot remove now, it removes by itself or `podbot gc` does.
                running.end()

    def _leave(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return
        try:
            prepared.workspace.release()
        finally:
            prepared.place.remove()
        self._note(prepared.workspace.layer)

    def _note(self, layer: Layer | None) -> None:
        """Say in the books who made what stays of it, if anything does."""
        settings, made = self.settings, self.made
        if layer is not None and made is not None and layer.path.exists():
            kept = bookkeeping.Kept(
                layer, BACKEND, settings.policy.network, _report.guarantees(made),
                _report.notes(made), settings.title, self._began,
            )  # fmt: skip
            bookkeeping.note(kept)
        elif settings.layer is not None and not settings.layer.path.exists():
            bookkeeping.left(settings.layer.id)


def _selinux(prepared: Prepared, line: Line) -> bool:
    return prepared.facts.local and not line.stream and os.path.exists(SELINUX)
