"""The suite put together: one class for sandboxes that block, one for async ones.

Both run the same tests; the async one drives an `AsyncSandbox` from outside of its event loop, so
that no behaviour is written down, or forgotten, twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, cast

import pytest

from podbot.sandbox import AsyncSandbox, Sandbox
from podbot.testing.blocking import Blocking, LoopThread
from podbot.testing.commands import CommandTests
from podbot.testing.evaluating import EvaluationTests
from podbot.testing.files import FileTests
from podbot.testing.kernel import KernelTests
from podbot.testing.lifetime import LifetimeTests
from podbot.testing.paths import PathTests
from podbot.testing.processes import ProcessTests
from podbot.testing.searching import SearchTests
from podbot.testing.shells import ShellTests
from podbot.testing.tars import TarTests
from podbot.testing.transfers import TransferTests


class SandboxConformance(
    FileTests,
    PathTests,
    SearchTests,
    TransferTests,
    TarTests,
    CommandTests,
    ShellTests,
    ProcessTests,
    KernelTests,
    EvaluationTests,
    LifetimeTests,
):
    """What a `Sandbox` must do. Subclass it as ``Test…`` and say how to open one.

    Set `has_processes` or `confines_files` to False for a backend that runs nothing, or whose
    file verbs reach beyond the working folder; the tests that do not apply are then not there.
    """


class AsyncSandboxConformance(SandboxConformance):
    """The same for an `AsyncSandbox`: define `open_async_sandbox` instead."""

    _loop: ClassVar[LoopThread]

    def open_async_sandbox(self, **options: object) -> AsyncSandbox:
        """A sandbox that is not started yet."""
        raise NotImplementedError

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def event_loop_thread(cls) -> Iterator[None]:
        """The loop in which this class's sandboxes live."""
        cls._loop = LoopThread()
        yield
        cls._loop.stop()

    def open_sandbox(self, **options: object) -> Sandbox:
        """An async sandbox behind a face that blocks."""
        sandbox = self._loop.run(self.open_async_sandbox(**options).start())
        return cast(Sandbox, Blocking(sandbox, self._loop))
