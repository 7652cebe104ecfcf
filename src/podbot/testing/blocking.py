"""A face that blocks, for async sandboxes: so that tests are written once for both.

Every coroutine runs in an event loop in another thread while the caller waits. A Ctrl-C in the
caller cancels the task, as it would in a program built on asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from podbot.sandbox import AsyncProcess, AsyncSandbox, AsyncShell
from podbot.sandbox.async_sandbox import AsyncStream

T = TypeVar("T")


class LoopThread:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """The result of a coroutine, awaited there."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            # The task may take a moment to clean up after itself; a caller would await it.
            asyncio.run_coroutine_threadsafe(self._until_idle(), self._loop).result()
            with suppress(CancelledError):
                future.result()
            raise

    async def _until_idle(self) -> None:
        me = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not me]
        if others:
            await asyncio.wait(others)

    def stop(self) -> None:
        """Let every task end, then the loop."""
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """Stands for an `AsyncSandbox`, or for a process or a stream of one."""

    def __init__(
        self, inner: AsyncSandbox | AsyncProcess | AsyncShell | AsyncStream, loop: LoopThread
    ):
        self._inner = inner
        self._thread = loop

    def __getattr__(self, name: str) -> object:
        value = getattr(self._inner, name)
        if inspect.ismethod(value) and not inspect.iscoroutinefunction(value):
            return lambda *args, **options: self._faced(value(*args, **options))
        if not inspect.iscoroutinefunction(value):
            return self._faced(value)

        def blocking(*args: object, **options: object) -> object:
            return self._faced(self._thread.run(value(*args, **options)))

        return blocking

    def _faced(self, value: object) -> object:
        if isinstance(value, AsyncSandbox | AsyncProcess | AsyncShell | AsyncStream):
            return Blocking(value, self._thread)
        if isinstance(value, list):
            return [self._faced(item) for item in value]
        return value

    def __iter__(self) -> Iterator[bytes]:
        stream = self._inner
        if not isinstance(stream, AsyncStream):
            raise TypeError("only streams are iterated over")
        chunks = aiter(stream)
        while True:
            try:
                yield self._thread.run(_next(chunks))
            except StopAsyncIteration:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stream = self._inner
        if not isinstance(stream, AsyncStream):
            self._thread.run(stream.__aexit__(kind, error, traceback))

    def __repr__(self) -> str:
        return repr(self._inner)


async def _next(chunks: object) -> bytes:
    # Any object is taken, so that the wrapper need not know whose stream it wraps.
    return await anext(chunks)  # type: ignore[call-overload, no-any-return]  # see above
