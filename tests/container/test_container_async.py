"""The async twin: the same life, from an event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from small_engine import NAMES, SmallEngine, until

import podbot.sandbox
from podbot.errors import ContainerError, GuestLostError, Kind, LaunchError, SandboxError
from podbot.sandbox import AsyncContainerSandbox


def unopened(engine: SmallEngine, **options: object) -> AsyncContainerSandbox:
    made = podbot.sandbox.open_async("container", image="image", engine=engine, **options)
    assert isinstance(made, AsyncContainerSandbox)
    return made


async def eventually(condition: Callable[[], object]) -> bool:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await work()

    asyncio.run(whole())


def test_it_runs_commands_and_comes_back_after_a_loss(engine: SmallEngine) -> None:
    async def work() -> None:
        async with unopened(engine) as sandbox:
            await sandbox.write("a", "1")
            process = await sandbox.spawn(["echo", "hi"])
            assert await process.stdout.read_all() == b"hi\n"
            assert sandbox.container is not None
            await sandbox.set_environment({"LATER": "x"})
            engine.containers.kill_from_outside()
            with pytest.raises(GuestLostError):
                await sandbox.exec(["true"])
            assert await sandbox.read("a") == b"1"
            assert engine.containers.made == 2
            await sandbox.start()
            assert engine.containers.made == 2
        assert sandbox.container is None
        with pytest.raises(SandboxError) as caught:
            await sandbox.exec(["true"])
        assert caught.value.kind is Kind.CLOSED

    run(work)


def test_many_tasks_lose_one_container_and_start_one(
    engine: SmallEngine, target: Path, tmp_path: Path
) -> None:
    async def work() -> None:
        async with unopened(engine) as sandbox:

            async def use() -> str:
                try:
                    await sandbox.exec(["sleep", "100"])
                except GuestLostError:
                    return (await sandbox.exec(["echo", "again"])).stdout
                return "never lost"

            tasks = [asyncio.create_task(use()) for _ in range(4)]

            begun = 0
            deadline = time.monotonic() + 60
            while begun < 4:
                assert time.monotonic() < deadline
                begun = (await sandbox.exec(NAMES)).stdout.split().count("sleep")
            engine.containers.kill_from_outside()
            assert await asyncio.gather(*tasks) == ["again\n"] * 4
            assert engine.containers.made == 2
            engine.containers.kill_from_outside()
            with pytest.raises(GuestLostError):
                await sandbox.upload(target, "in")
            await sandbox.upload(target, "in")
            assert await sandbox.read("in/a.txt") == b"one\n"

    run(work)


def test_lazy_stopped_frozen_and_filled(engine: SmallEngine, target: Path) -> None:
    async def work() -> None:
        async with unopened(engine, lazy=True) as sandbox:
            assert engine.containers.made == 0
            await sandbox.stop()
            assert (await sandbox.exec(["true"])).ok
            await sandbox.pause()
            (container,) = engine.containers.all.values()
            assert container.paused
            assert (await sandbox.exec(["true"])).ok
            await sandbox.pause()
            await sandbox.resume()
            assert not container.paused
            process = await sandbox.spawn(["sleep", "100"])
            await sandbox.stop()
            assert sandbox.container is None
            with pytest.raises(SandboxError):
                await process.stdout.read()
            await sandbox.fill(target)
            assert await sandbox.read("a.txt") == b"one\n"
            assert sandbox.layer is not None and sandbox.layer.targets == (str(target),)
            assert sandbox.last_used > 0
        sandbox.layer.discard()

    run(work)


def test_one_that_was_never_started_says_so(engine: SmallEngine) -> None:
    async def work() -> None:
        sandbox = unopened(engine)
        with pytest.raises(SandboxError, match="not started"):
            await sandbox.exec(["true"])
        await sandbox.close()
        lazy = await unopened(engine, lazy=True)
        await lazy.close()
        with pytest.raises(SandboxError) as caught:
            await lazy.exec(["true"])
        assert caught.value.kind is Kind.CLOSED

    run(work)


def test_an_idle_one_is_stopped(engine: SmallEngine) -> None:
    async def work() -> None:
        async with unopened(engine, idle=0.2) as sandbox:
            await sandbox.write("a", "1")
            assert await eventually(lambda: sandbox.container is None)
            assert await sandbox.read("a") == b"1"
            process = await sandbox.spawn(["sleep", "100"])
            assert sandbox.unused() == 0.0
            await process.close()
            await sandbox._stop_if_unused(1000.0)
            assert sandbox.container is not None
        sandbox.stop_if_unused(0.0)
        await asyncio.sleep(0)

    run(work)


def test_whoever_asked_is_told_in_its_loop_that_it_was_stopped(engine: SmallEngine) -> None:
    async def work() -> None:
        async with unopened(engine, idle=0.2) as sandbox:
            told: list[tuple[object, object]] = []
            here = asyncio.get_running_loop()
            sandbox.on_stop = lambda: told.append((sandbox.container, asyncio.get_running_loop()))
            assert await eventually(lambda: told)  # because nobody used it
            assert (await sandbox.exec(["true"])).ok
            await sandbox.stop()
            assert told[:2] == [(None, here)] * 2
            told.clear()
            await sandbox.stop()  # it was stopped
            assert told == []

    run(work)


def test_after_its_loop_it_is_left_alone(engine: SmallEngine) -> None:
    async def work() -> AsyncContainerSandbox:
        return await unopened(engine)

    sandbox = asyncio.run(work())
    sandbox.stop_if_unused(0.0)
    assert sandbox.container is not None
    del sandbox
    gc.collect()
    assert until(lambda: engine.containers.list({}) == ())


def test_what_fails_is_raised_and_leaves_nothing(engine: SmallEngine, own_layers: Path) -> None:
    def refuse(verb: str) -> None:
        if verb in ("create", "pause"):
            raise ContainerError("no", kind=Kind.CREATE_FAILED, remedy="x")

    async def work() -> None:
        engine.containers.trouble = refuse
        with pytest.raises(LaunchError):
            await unopened(engine)
        engine.containers.trouble = lambda verb: None
        async with unopened(engine) as sandbox:
            engine.containers.trouble = refuse
            with pytest.raises(SandboxError) as caught:
                await sandbox.pause()
            assert caught.value.kind is Kind.UNSUPPORTED
            assert (await sandbox.exec(["true"])).ok
            engine.containers.kill_from_outside()
            for expected in (GuestLostError, LaunchError):
                with pytest.raises(expected):
                    await sandbox.exec(["true"])
            engine.containers.trouble = lambda verb: None
            assert (await sandbox.exec(["true"])).ok

    run(work)
    assert list((own_layers / "containers").iterdir()) == []


def test_a_first_request_that_fails_closes_it(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(config: object):  # type: ignore[no-untyped-def]
        raise GuestLostError("it speaks another protocol", kind=Kind.PROTOCOL)
        yield

    async def work() -> None:
        monkeypatch.setattr("podbot.sandbox.ops.init", broken)
        sandbox = unopened(engine)
        with pytest.raises(GuestLostError):
            await sandbox
        assert sandbox.closed

    run(work)


def test_a_start_that_is_cancelled_leaves_no_container(engine: SmallEngine) -> None:
    async def work() -> None:
        begun, may_go_on = threading.Event(), threading.Event()

        def halfway(verb: str) -> None:
            if verb == "start":
                begun.set()
                may_go_on.wait(60)

        engine.containers.trouble = halfway
        sandbox = unopened(engine)
        starting = asyncio.create_task(sandbox.start())
        assert await eventually(begun.is_set)
        assert engine.containers.made == 1
        starting.cancel()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert await eventually(lambda: engine.containers.list({}) == ())
        await sandbox.close()

    run(work)


def test_an_engine_elsewhere_is_sent_the_target(own_layers: Path, target: Path) -> None:
    engine = SmallEngine(local=False)

    async def work() -> None:
        async with unopened(engine, target=target, workspace="copy") as sandbox:
            assert await sandbox.read("a.txt") == b"one\n"

    run(work)
    engine.close()


def test_a_pause_needs_a_container(engine: SmallEngine) -> None:
    async def work() -> None:
        sandbox = await unopened(engine)
        sandbox._session.stop()
        with pytest.raises(SandboxError):
            await sandbox.pause()
        await sandbox.close()

    run(work)
