"""What the parts of the suite share: how to open a sandbox, and words to say what is expected."""

# ruff: noqa: S101 - a suite asserts

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar, TypeVar

import pytest

from podbot.errors import FileError, Kind, SandboxError
from podbot.sandbox import Sandbox

SOON = 30.0
"""What takes longer than this hangs. Never a measure of speed."""

F = TypeVar("F", bound=Callable[..., object])


def needs_processes(test: F) -> F:
    """Marks a test that makes no sense where nothing can be run."""
    test.needs = "has_processes"  # type: ignore[attr-defined]  # a mark
    return test


def needs_confinement(test: F) -> F:
    """Marks a test of file verbs that cannot leave the working folder."""
    test.needs = "confines_files"  # type: ignore[attr-defined]  # a mark
    return test


class Base:
    """How a backend joins the suite."""

    has_processes: ClassVar[bool] = True
    """Whether the backend runs commands and Python."""
    confines_files: ClassVar[bool] = True
    """Whether file verbs refuse to leave the working folder (kind ``path_escape``)."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        for name in dir(cls):
            flag = getattr(getattr(cls, name), "needs", None)
            if isinstance(flag, str) and not getattr(cls, flag):
                setattr(cls, name, None)  # not collected: better than a row of skips

    def open_sandbox(self, **options: object) -> Sandbox:
        """A new sandbox with an empty working folder; options are ``policy`` and ``limits``."""
        raise NotImplementedError

    @pytest.fixture
    def sandbox(self) -> Iterator[Sandbox]:
        """A sandbox for one test."""
        with self.open_sandbox() as sandbox:
            yield sandbox


@contextmanager
def refused(*kinds: Kind) -> Iterator[None]:
    """What is inside must raise a `SandboxError` of one of these kinds, with words in it."""
    with pytest.raises(SandboxError) as caught:
        yield
    assert caught.value.kind in kinds, caught.value
    assert caught.value.message


@contextmanager
def file_refused(*kinds: Kind) -> Iterator[None]:
    """As `refused`, and a `FileError`."""
    with pytest.raises(FileError) as caught:
        yield
    assert caught.value.kind in kinds, caught.value
    assert caught.value.message


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Ctrl-C in the main thread after a while."""
    if threading.current_thread() is not threading.main_thread():
        pytest.fail("Ctrl-C only reaches the main thread: run the suite there")

    def strike(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def beating(name: str) -> str:
    """A shell loop that shows that it lives by making a file grow."""
    return f"while :; do echo x >> {name}; sleep 0.02; done"


def beats(sandbox: Sandbox, name: str) -> bool:
    """Whether such a loop still lives."""
    before = sandbox.stat(name).size
    time.sleep(0.3)
    return sandbox.stat(name).size > before


def has_begun(sandbox: Sandbox, name: str) -> bool:
    """Whether such a loop has begun."""
    return sandbox.exists(name) and sandbox.stat(name).size > 0
