"""A stock of open sandboxes, so that the next one need not be waited for.

One thread fills it in the background. Each sandbox is used once: whoever claims it closes it. What
a claim brings (variables, a folder to work on) is put into a sandbox that runs already.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

from podbot.errors import Kind, SandboxError
from podbot.sandbox.options import launcher_of
from podbot.sandbox.sandbox import Sandbox

REFILL_PAUSE = 0.01


_CLOSED = SandboxError("this pool is closed", kind=Kind.CLOSED)
"""In the stock of a closed pool, for those who wait."""


class Pool:
    """Keeps ``size`` sandboxes of one kind ready; the options are those of `open`.

    Options that do not fit are refused at once, as there.
    """

    def __init__(self, backend: str = "overlay", *, size: int = 2, **options: object):
        if size < 1:
            raise SandboxError(f"a pool of {size} holds nothing", kind=Kind.INVALID)
        launcher_of(backend, options)
        self._backend = backend
        self._options = options
        self._size = size
        self._stock: queue.SimpleQueue[Sandbox | BaseException] = queue.SimpleQueue()
        self._room = threading.Semaphore(size)
        self._full = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._fill, name="podbot-pool", daemon=True)
        self._thread.start()

    def claim(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        target: str | os.PathLike[str] | None = None,
    ) -> Sandbox:
        """A sandbox that is open already; waits if the stock is empty. Yours to close.

        ``environment`` is added to what its commands start with. ``target`` is copied into its
        workspace, which was there and empty; the changes to it are reviewed as ever (containers
        only). Raises what opening raised, or kinds ``closed``, ``unsupported``.
        """
        found = _CLOSED if self._closed else self._stock.get()
        if found is _CLOSED:
            self._stock.put(_CLOSED)  # for the next who waits
            raise SandboxError("this pool is closed", kind=Kind.CLOSED)
        self._full.clear()
        self._room.release()
        if isinstance(found, BaseException):
            raise found
        try:
            _equip(found, environment, target)
        except BaseException:
            found.close()
            raise
        return found

    def wait_full(self, timeout: float | None = None) -> bool:
        """Wait until the stock is full; False when the time ran out first."""
        return self._full.wait(timeout)

    def close(self) -> None:
        """Close what was not claimed. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._room.release()
        self._thread.join()
        while not self._stock.empty():
            left = self._stock.get()
            if isinstance(left, Sandbox):
                left.close()
        self._stock.put(_CLOSED)

    def _fill(self) -> None:
        while True:
            self._room.acquire()
            if not self._stock.empty():
                # Whoever just claimed one is about to use it: do not take the processor away.
                time.sleep(REFILL_PAUSE)
            if self._closed:
                return
            try:
                self._stock.put(self._warm())
            except BaseException as error:
                # For whoever claims next: without this thread they would wait for ever.
                self._stock.put(error)
            if self._stock.qsize() >= self._size:
                self._full.set()

    def _warm(self) -> Sandbox:
        """A new sandbox whose guest has done its work once: the first command is the slowest."""
        sandbox = launcher_of(self._backend, self._options).sandbox()
        try:
            with contextlib.suppress(SandboxError):  # a backend without commands, or without `true`
                sandbox.exec(["true"])
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _equip(
    sandbox: Sandbox,
    environment: Mapping[str, str] | None,
    target: str | os.PathLike[str] | None,
) -> None:
    """Put what a claim brings into a sandbox that runs already."""
    if target is not None:
        fill: Callable[[str | os.PathLike[str]], None] | None = getattr(sandbox, "fill", None)
        if fill is None:
            raise SandboxError(
                f"a sandbox of the {sandbox.backend} backend cannot be given a target later",
                kind=Kind.UNSUPPORTED,
                remedy="name the target when the pool is made",
            )
        fill(target)
    if environment:
        sandbox.set_environment(environment)
