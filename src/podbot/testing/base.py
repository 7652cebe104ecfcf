"""What the parts of the suite share: how to open a sandbox, and words to say what is expected."""

# ruff: noqa: S101 - a suite asserts

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from podbot.errors import FileError, Kind, SandboxError
from podbot.sandbox import Sandbox

SOON = 120.0
"""What takes longer than this hangs. Never a measure of speed."""

PATIENCE = (0.5, 2.0, 8.0, 32.0, SOON)
"""Limits on time, each tried where the one before was over too early on a busy machine."""

LEISURELY = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
"""For random examples: no machine is too slow for them."""

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")


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
    forks_interpreters: ClassVar[bool] = True
    """Whether pieces of Python are forked from an interpreter that is kept."""
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

    @pytest.fixture
    def own_sandbox(self) -> Iterator[Sandbox]:
        """One that is no other test's, for what cannot be taken back; `sandbox` may be shared."""
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


def out_of_time(run: Callable[[float], T], is_under_way: Callable[[], bool]) -> T:
    """The result of a run whose limit on time was over only after it was well under way."""
    for seconds in PATIENCE:
        result = run(seconds)
        if is_under_way():
            return result
    pytest.fail("it never got under way")


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Ctrl-C in the main thread after a while."""
    with _alarm_is_ctrl_c():
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def interrupted_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C in the main thread once something is true, asked for in another thread."""
    main = threading.main_thread().ident
    assert main is not None

    def watch() -> None:
        try:
            eventually(condition)
        finally:  # else the main thread would wait for ever
            signal.pthread_kill(main, signal.SIGALRM)

    with _alarm_is_ctrl_c(), ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            yield
        finally:
            watching.result()


@contextmanager
def _alarm_is_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        pytest.fail("Ctrl-C only reaches the main thread: run the suite there")

    def strike(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def beating(name: str) -> str:
    """A shell loop that shows that it lives by making a file grow."""
    return f"while :; do echo x >> {name}; sleep 0.02; done"


def beats(sandbox: Sandbox, name: str) -> bool:
    """Whether such a loop, which was to be ended, still lives."""
    before = sandbox.stat(name).size
    time.sleep(0.3)
    # A beat that was under way when its loop was killed may still come.
    return sandbox.stat(name).size > before + len("x\n")


def next_beat(sandbox: Sandbox, name: str) -> None:
    """Such a loop lives: wait until it shows."""
    eventually(lambda: has_begun(sandbox, name))
    before = sandbox.stat(name).size
    eventually(lambda: sandbox.stat(name).size > before)


def has_begun(sandbox: Sandbox, name: str) -> bool:
    """Whether such a loop has begun."""
    return sandbox.exists(name) and sandbox.stat(name).size > 0
