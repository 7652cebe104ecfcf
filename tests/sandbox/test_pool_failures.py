"""Pools that were asked for something wrong, or whose stock comes to nothing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import podbot.sandbox
from podbot.errors import Kind, LaunchError, SandboxError
from podbot.sandbox import Pool, Sandbox
from podbot.sandbox.memory import MemoryLauncher

# What no type checker would let through is the subject here.
Wrong = Any


@pytest.mark.parametrize(
    ("backend", "options", "words"),
    [
        ("memory", {"polcy": 1}, "no option 'polcy' (did you mean policy?)"),
        ("memory", {"policy": 1}, "the option policy of the backend memory is 1"),
        ("overlay", {"target": 5}, "not the path of a folder"),
        ("nonesuch", {}, "there is no sandbox backend 'nonesuch'"),
    ],
)
def test_a_pool_refuses_wrong_options_at_once(
    backend: str, options: dict[str, Wrong], words: str
) -> None:
    with pytest.raises(SandboxError) as raised:
        Pool(backend, size=1, **options)
    assert words in raised.value.message and raised.value.remedy


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3), LaunchError("no room")])
def test_whatever_a_fill_raises_reaches_whoever_claims(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(_: MemoryLauncher) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(MemoryLauncher, "launch", launch)
        stock = Pool("memory", size=1)
        with pytest.raises(type(error)) as raised:
            stock.claim()
        assert raised.value is error
        assert stock.wait_full(60)
    with stock:
        with pytest.raises(type(error)):  # from before it was mended
            stock.claim()
        with stock.claim() as sandbox:
            assert sandbox.backend == "memory"


def test_a_sandbox_that_fails_its_first_command_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[podbot.sandbox.Sandbox] = []

    def opened(launcher: MemoryLauncher) -> podbot.sandbox.Sandbox:
        made.append(Sandbox(launcher))
        return made[-1]

    def fail(*_: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(MemoryLauncher, "sandbox", opened)
    monkeypatch.setattr(podbot.sandbox.Sandbox, "exec", fail)
    with Pool("memory", size=1) as stock, pytest.raises(ValueError, match="odd"):
        stock.claim()
    assert made and "closed" in repr(made[0])


def test_who_waits_for_a_pool_that_is_closed_is_told() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Pool) -> Sandbox:
        begun.set()
        go_on.wait(60)
        raise SandboxError("nothing came of it", kind=Kind.LAUNCH_FAILED)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pool, "_warm", slow)
        stock = Pool("memory", size=1)
        begun.wait(60)
        with ThreadPoolExecutor(3) as threads:
            waiting = [threads.submit(stock.claim) for _ in range(2)]
            closing = threads.submit(stock.close)
            go_on.set()
            closing.result(60)
            told = [each.exception(60) for each in waiting]
    kinds = {each.kind for each in told if isinstance(each, SandboxError)}
    assert len(told) == 2 and None not in told
    assert Kind.CLOSED in kinds and kinds <= {Kind.CLOSED, Kind.LAUNCH_FAILED}
