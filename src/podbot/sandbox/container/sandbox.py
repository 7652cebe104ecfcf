"""`ContainerSandbox`: the verbs of `Sandbox`, in a container that may come and go beneath them.

It can start at the first call, be stopped when idle, be frozen, and be started again after it was
lost, always over the same files. The call that finds a container lost raises; the one after it
starts a new one. What lived in the old one (processes, the Python kernel) is gone then.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Self, TypeVar, Unpack

from podbot.errors import ContainerError, GuestLostError, Kind, SandboxError
from podbot.frozen import dataclass
from podbot.sandbox._pipes import OutputPipes
from podbot.sandbox.channel import closed_error
from podbot.sandbox.container import _idling, _report
from podbot.sandbox.container._running import Running
from podbot.sandbox.container._session import ContainerSession
from podbot.sandbox.container.launcher import ContainerLauncher
from podbot.sandbox.container.settings import (
    INSTEAD_OF_A_USER,
    WORKDIR,
    ContainerOptions,
    Target,
)
from podbot.sandbox.ops import Op
from podbot.sandbox.sandbox import Sandbox

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CurrentContainer:
    """Which container a sandbox is in at the moment."""

    id: str
    name: str
    image: str

    @classmethod
    def of(cls, session: ContainerSession) -> CurrentContainer | None:
        """The container of a session, while there is one."""
        running = session.running
        return None if running is None else cls(running.id, running.name, session.settings.image)


class ContainerSandbox(Sandbox):
    """A sandbox of the container backend; see `Settings` for the options."""

    _instead_of_a_user = INSTEAD_OF_A_USER

    def __init__(self, target: Target | None = None, **options: Unpack[ContainerOptions]):
        self._begin(ContainerLauncher(target, **options))

    @classmethod
    def of(cls, launcher: ContainerLauncher) -> Self:
        """A sandbox of a launcher that was made already."""
        made = cls.__new__(cls)
        made._begin(launcher)
        return made

    def _begin(self, launcher: ContainerLauncher) -> None:
        self._launcher, self._session = launcher, launcher.session
        self._settings = launcher.settings
        self._gate = threading.RLock()  # held by whoever starts, stops or freezes it
        self._ready = False
        self._waking: int | None = None
        self._use = _idling.Use()
        self.on_stop: Callable[[], object] | None = None
        """Called after its container was stopped, by `stop` or because nobody used it."""
        self.backend, self.limits, self.policy = launcher.name, launcher.limits, launcher.policy
        self.workdir = WORKDIR
        self.guarantees, self.notes = (), ()
        self.layer, self.gateway = None, None
        self._descriptors = False
        self._pipes: dict[int, OutputPipes] = {}
        self._closing = threading.Lock()
        self._finalizer = weakref.finalize(self, self._session.end)
        if not self._settings.lazy:
            try:
                self.start()
            except BaseException:
                self.close()
                raise
        if self._settings.idle is not None:
            _idling.mind(self, self._settings.idle)

    # The container

    @property
    def container(self) -> CurrentContainer | None:
        """The container it is in; none before it is started and after it was stopped."""
        return CurrentContainer.of(self._session)

    def start(self) -> None:
        """Start the container now, if it does not run; thaw it if it is frozen."""
        with self._gate:
            if self._ready:
                return
            if self.closed:
                raise closed_error()
            running = self._session.running
            if running is not None and running.paused:
                resumed(running)
                self._ready = True
                return
            self._waking = threading.get_ident()
            try:
                launched = self._launcher.launch()
                before = self._finalizer.detach()
                if before is not None and self._session.starts > 1:
                    self._channel.close()
                    self._drop_pipes()
                self._attach(self._launcher, launched)
                if self._session.to_send is not None:
                    self.upload(self._session.to_send, WORKDIR)
                self._ready = True
            finally:
                self._waking = None

    def stop(self) -> None:
        """End the container and keep the files; the next call starts another one."""
        with self._gate:
            if self.closed or self._session.running is None:
                return
            self._ready = False
            self._channel.close()
            self._session.stop()
            self._drop_pipes()
        if self.on_stop is not None:
            self.on_stop()

    def pause(self) -> None:
        """Freeze everything in it; the next call, or `resume`, lets it go on.

        Raises kind ``unsupported`` where the engine cannot (rootless, on old control groups).
        """
        with self._gate:
            self.start()
            running = self._session.running
            assert running is not None  # noqa: S101 - it was started
            try:
                running.pause()
            except ContainerError as error:
                raise cannot_freeze(error) from error
            self._ready = False

    def resume(self) -> None:
        """Let what was frozen go on."""
        self.start()

    def fill(self, target: Target) -> None:
        """Give a sandbox that was opened without a target one: its files are copied in.

        The changes to it are then in `layer`, as if it had been opened with it.
        """
        self.start()
        self._session.fill(target)
        if self._session.made is not None:
            self.layer = self._session.made.contents.layer
            self.guarantees = _report.guarantees(self._session.made)

    def cancel(self, thread: int) -> bool:
        """End what another thread waits for; see `Sandbox.cancel`."""
        # Before the first start is through there is no channel, and nothing to end.
        return hasattr(self, "_channel") and super().cancel(thread)

    @property
    def last_used(self) -> float:
        """When the last call ended, as `time.time` counts; now while one is under way."""
        return time.time() - self._use.seconds()

    def close(self) -> None:
        """End the sandbox: its container is gone when this returns. May be called twice."""
        with self._gate:
            super().close()

    # Every verb comes through here

    def _run(self, op: Op[T]) -> T:
        self._use.begin()
        channel = None
        try:
            if not self._ready and self._waking != threading.get_ident():
                self.start()
            channel = self._channel
            return super()._run(op)
        except GuestLostError:
            # Only if it is still this one: another thread may have started the next already.
            if self._settings.restart and self._channel is channel and self._waking is None:
                self._ready = False
            raise
        finally:
            self._use.end()

    @property
    def _passes_descriptors(self) -> bool:
        # Asked before a verb is under way: a sandbox that does not run yet cannot tell.
        if not self._ready and self._waking != threading.get_ident():
            self.start()
        return self._descriptors

    @_passes_descriptors.setter
    def _passes_descriptors(self, value: bool) -> None:
        self._descriptors = value

    # Idleness

    def unused(self) -> float:
        """For how many seconds nobody has used it. What was spawned and still runs is use."""
        in_use = any(not pipes.ended for pipes in list(self._pipes.values()))
        if self.closed or not self._ready or in_use:
            return 0.0
        return self._use.seconds()

    def stop_if_unused(self, seconds: float) -> None:
        """Stop the container if nobody has used it for so long."""
        with self._gate:
            if self.closed or not self._ready:
                return
            # In this order: whoever begins a call from now on finds it not ready, and waits.
            self._ready = False
            if self._use.seconds() < seconds:
                self._ready = True
            else:
                self.stop()

    def _drop_pipes(self) -> None:
        for pipes in self._pipes.values():
            pipes.close()
        self._pipes = {}


def resumed(running: Running) -> None:
    """Let a container go on; raises as a sandbox does."""
    try:
        running.resume()
    except ContainerError as error:
        raise SandboxError(error.message, kind=error.kind, remedy=error.remedy) from error


def cannot_freeze(error: ContainerError) -> SandboxError:
    """What it means that an engine would not freeze a container."""
    return SandboxError(
        f"the container cannot be frozen: {error.message}",
        kind=Kind.UNSUPPORTED,
        remedy="stop it instead: its files are kept",
    )
