"""`AsyncContainerSandbox`: the async twin of `ContainerSandbox`; what it does stands there."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Self, TypeVar, Unpack

from podbot.errors import ContainerError, GuestLostError
from podbot.sandbox.async_channel import AsyncAdapter, AsyncSocketChannel
from podbot.sandbox.async_sandbox import AsyncSandbox, finish
from podbot.sandbox.channel import closed_error
from podbot.sandbox.container import _idling, _report
from podbot.sandbox.container.launcher import ContainerLauncher
from podbot.sandbox.container.sandbox import CurrentContainer, cannot_freeze, resumed
from podbot.sandbox.container.settings import (
    INSTEAD_OF_A_USER,
    WORKDIR,
    ContainerOptions,
    Target,
)
from podbot.sandbox.launcher import Launched
from podbot.sandbox.ops import Op

T = TypeVar("T")


class AsyncContainerSandbox(AsyncSandbox):
    """A sandbox of the container backend, for an event loop; see `Settings` for the options."""

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
        super().__init__(launcher)
        self._session, self._settings = launcher.session, launcher.settings
        self._gate = asyncio.Lock()  # held by whoever starts, stops or freezes it
        self._ready = self._begun = False
        self._waking: asyncio.Task[object] | None = None
        self._use = _idling.Use()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        self.on_stop: Callable[[], object] | None = None
        """Called in its loop after its container was stopped, by `stop` or because nobody used it.
        """
        self.workdir = WORKDIR

    # The container

    @property
    def container(self) -> CurrentContainer | None:
        """The container it is in; none before it is started and after it was stopped."""
        return CurrentContainer.of(self._session)

    async def start(self) -> Self:
        """Start the sandbox; a lazy one only gets ready to, and starts at the first verb.

        Later: start the container now, if it does not run.
        """
        if not self._begun:
            self._begun = True
            self._loop = asyncio.get_running_loop()
            self._finalizer = weakref.finalize(self, self._session.end)
            if self._settings.idle is not None:
                _idling.mind(self, self._settings.idle)
            if self._settings.lazy:
                return self
        try:
            await self._wake()
        except BaseException:
            if self._session.starts == 0:
                await self.close()
            raise
        return self

    async def _wake(self) -> None:
        async with self._gate:
            if self._ready:
                return
            if self.closed:
                raise closed_error()
            self._waking = asyncio.current_task()
            try:
                running = self._session.running
                if running is not None and running.paused:
                    await finish(asyncio.to_thread(resumed, running), None)
                else:
                    launch = asyncio.to_thread(self._launcher.launch)
                    launched = await finish(launch, self._let_go)
                    if self._finalizer is not None:
                        self._finalizer.detach()
                    self._drop()
                    await self._attach(launched)
                    if self._session.to_send is not None:
                        await self.upload(self._session.to_send, WORKDIR)
                self._ready = True
            finally:
                self._waking = None

    def _let_go(self, launched: Launched) -> None:
        """A start that nobody waits for any more; the files stay."""
        launched.connection.close()
        self._session.stop()

    async def stop(self) -> None:
        """End the container and keep the files; the next call starts another one."""
        async with self._gate:
            await self._stop()

    async def _stop(self) -> None:
        if self.closed or self._session.running is None:
            return
        self._ready = False
        self._drop()
        try:
            await finish(asyncio.to_thread(self._session.stop), None)
        finally:  # whoever waited may have been cancelled: it was stopped all the same
            if self.on_stop is not None:
                self.on_stop()

    async def pause(self) -> None:
        """Freeze everything in it; the next call, or `resume`, lets it go on."""
        await self._wake()
        async with self._gate:
            running = self._session.running
            if running is None:
                raise closed_error()
            self._ready = False
            try:
                await finish(asyncio.to_thread(running.pause), None)
            except ContainerError as error:
                self._ready = True
                raise cannot_freeze(error) from error

    async def resume(self) -> None:
        """Let what was frozen go on."""
        await self._wake()

    async def fill(self, target: Target) -> None:
        """Give a sandbox that was opened without a target one: its files are copied in."""
        await self._wake()
        await finish(asyncio.to_thread(self._session.fill, target), None)
        if self._session.made is not None:
            self.layer = self._session.made.contents.layer
            self.guarantees = _report.guarantees(self._session.made)

    @property
    def last_used(self) -> float:
        """When the last call ended, as `time.time` counts; now while one is under way."""
        return time.time() - self._use.seconds()

    async def close(self) -> None:
        """End the sandbox: its container is gone when this returns. May be called twice."""
        if asyncio.current_task() is self._waking:
            await super().close()  # a start that failed: the gate is ours
            return
        async with self._gate:
            await super().close()

    # Every verb comes through here

    async def _awake(self) -> AsyncSocketChannel | AsyncAdapter:
        if self._begun and not self._ready and asyncio.current_task() is not self._waking:
            await self._wake()
        return self._started()

    async def _run(self, op: Op[T]) -> T:
        self._use.begin()
        channel = None
        try:
            await self._awake()
            channel = self._channel
            return await super()._run(op)
        except GuestLostError:
            self._lose(channel)
            raise
        finally:
            self._use.end()

    async def _run_apart(self, op: Op[T]) -> T:
        self._use.begin()
        channel = None
        try:
            await self._awake()
            channel = self._channel
            return await super()._run_apart(op)
        except GuestLostError:
            self._lose(channel)
            raise
        finally:
            self._use.end()

    def _lose(self, channel: AsyncSocketChannel | AsyncAdapter | None) -> None:
        """Only if it is still this one: another task may have started the next already."""
        if self._settings.restart and self._channel is channel and self._waking is None:
            self._ready = False

    # Idleness

    def unused(self) -> float:
        """For how many seconds nobody has used it. What was spawned and still runs is use."""
        in_use = any(not pipes.ended for pipes in list(self._pipes.values()))
        if self.closed or not self._ready or in_use:
            return 0.0
        return self._use.seconds()

    def stop_if_unused(self, seconds: float) -> None:
        """Stop the container if nobody has used it for so long; for the thread that minds it."""
        if self._loop is not None:
            # The loop may be closed at any moment: no coroutine is made until it takes this up.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._begin_stop, seconds)

    def _begin_stop(self, seconds: float) -> None:
        if not self.closed:
            task = asyncio.ensure_future(self._stop_if_unused(seconds))
            self._stopping.add(task)  # a loop holds its tasks weakly
            task.add_done_callback(self._stopping.discard)

    async def _stop_if_unused(self, seconds: float) -> None:
        async with self._gate:
            # Nothing else runs in this loop until the first await in `_stop`.
            if not self.closed and self._ready and self._use.seconds() >= seconds:
                await self._stop()

    def _drop(self) -> None:
        """Let go of the line to a container that is no more, and of what was spawned in it."""
        if self._channel is not None:
            self._channel.close()
        for pipes in self._pipes.values():
            pipes.close()
        self._pipes = {}
