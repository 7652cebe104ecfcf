"""What is particular to the memory backend: its limits, its matcher, its files at the start."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from podbot.errors import Kind, SandboxError
from podbot.sandbox import AsyncMemorySandbox, Limits, MemorySandbox, Policy
from podbot.sandbox import memory as memory_module
from podbot.sandbox._matching import LineSearch, search_lines
from podbot.sandbox.channel import Call
from podbot.sandbox.guest.globs import Glob

RUNAWAY = "^(?=(a+)+$)x"


def kind_of(act: object, *args: object, **options: object) -> Kind:
    with pytest.raises(SandboxError) as caught:
        act(*args, **options)  # type: ignore[operator]
    return caught.value.kind


def test_files_may_be_there_from_the_start() -> None:
    with MemorySandbox(files={"a.txt": "grün", "folder/b": b"\xff"}) as sandbox:
        assert sandbox.read("a.txt") == "grün".encode()
        assert sandbox.read("/workspace/folder/b") == b"\xff"


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"../x": b""}, Kind.PATH_ESCAPE),
        ({"\ud800": b""}, Kind.BAD_PATH),
        ({"a": b"", "./a": b""}, Kind.EXISTS),
        ({"a": b"", "a/b": b""}, Kind.NOT_DIRECTORY),
    ],
)
def test_files_that_cannot_be_are_refused_at_the_start(files: dict[str, bytes], kind: Kind) -> None:
    assert kind_of(MemorySandbox, files=files) is kind


def test_the_limit_on_all_files_counts_what_is_there_and_what_is_on_its_way() -> None:
    with MemorySandbox(limits=Limits(disk=3_000_000)) as sandbox:
        sandbox.write("a", b"x" * 1_000_000)
        sandbox.write("b", b"x" * 1_500_000)
        for size in (600_000, 2_000_000):
            assert kind_of(sandbox.write, "c", b"x" * size) is Kind.LIMIT
        assert kind_of(sandbox.append, "a", b"x" * 600_000) is Kind.LIMIT
        sandbox.edit("a", b"x" * 300_000 + b"", b"", replace_all=True)
        sandbox.move("a", "b", overwrite=True)
        sandbox.write("c", b"x" * 2_000_000)
        sandbox.remove("c")
        sandbox.write("folder/c", b"x" * 2_000_000)
        sandbox.remove("folder", recursive=True)
        sandbox.write("d", b"x" * 2_500_000)


def test_a_file_given_up_half_way_is_forgotten_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_module, "MAX_HANDLES", 3)
    channel = memory_module.MemoryChannel(Limits(), {"file": b"x" * 100})
    read = Call("read", {"path": "file", "offset": 0, "size": 1})
    first = channel.call(read).fields.number("handle")
    assert channel.call(Call("handle_read", {"handle": first, "size": 9})).payload == b"x" * 9
    for _ in range(3):
        channel.call(read)
    assert kind_of(channel.call, Call("handle_read", {"handle": first, "size": 9})) is Kind.IO
    assert kind_of(channel.call, Call("write_done", {"handle": first})) is Kind.IO


def test_closing_ends_a_search_under_way() -> None:
    sandbox = MemorySandbox(files={"file": b"a" * 100 + b"b"})
    threading.Timer(0.3, sandbox.close).start()
    assert kind_of(sandbox.grep, RUNAWAY, timeout=600) is Kind.CLOSED


def test_a_search_does_not_hold_up_an_event_loop() -> None:
    async def main() -> None:
        async with AsyncMemorySandbox(files={"file": b"a" * 100 + b"b"}) as sandbox:
            search = asyncio.create_task(sandbox.grep(RUNAWAY, timeout=1))
            turns = 0
            while not search.done():
                await sandbox.read("file")
                turns += 1
            assert turns > 1
            with pytest.raises(SandboxError) as caught:
                await search
            assert caught.value.kind is Kind.TIMEOUT

    asyncio.run(main())


def test_a_search_that_needs_too_much_memory_is_ended() -> None:
    lines = [b"a" * 40_000_000]
    search = LineSearch("(?:(a)|b)*c", False, 10, 60)
    assert kind_of(search_lines, search, lines) in (Kind.LIMIT, Kind.TIMEOUT)


def test_a_fork_of_the_owner_is_told_that_it_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MemorySandbox(files={"file": b"x"}) as sandbox:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            assert kind_of(sandbox.read, "file") is Kind.FOREIGN_PROCESS
            sandbox._channel.close()
        assert sandbox.read("file") == b"x"


def test_it_says_that_nothing_runs_and_nothing_is_reached() -> None:
    with MemorySandbox(policy=Policy(network="host")) as sandbox:
        enforced = {guarantee.name for guarantee in sandbox.guarantees if guarantee.enforced}
    assert enforced >= {"processes", "files", "network"}


def test_an_async_sandbox_must_be_started_and_starts_once() -> None:
    async def main() -> None:
        sandbox = AsyncMemorySandbox()
        with pytest.raises(SandboxError) as caught:
            await sandbox.read("file")
        assert caught.value.kind is Kind.INVALID
        assert "not started" in repr(sandbox)
        await sandbox.close()
        assert await sandbox is sandbox
        assert await sandbox.start() is sandbox
        await sandbox.close()
        with pytest.raises(SandboxError) as caught:
            await sandbox.read("file")
        assert caught.value.kind is Kind.CLOSED

    asyncio.run(main())


def test_what_a_kernel_would_say_of_odd_paths() -> None:
    with MemorySandbox(files={"a/b/c": b"x"}) as sandbox:
        assert sandbox.stat("a/b/..").is_dir
        assert sandbox.read("a/b/../b/c") == b"x"
        sandbox.symlink("abs", "/workspace/a")
        assert sandbox.read("abs/b/c") == b"x"
        assert kind_of(sandbox.read, "a/b/c/") is Kind.NOT_DIRECTORY
        assert kind_of(sandbox.move, ".", "x") is Kind.INVALID
        assert kind_of(sandbox.move, "a", "a/b/x") is Kind.INVALID
        sandbox.remove("a/b/..", recursive=True)
        assert [entry.path for entry in sandbox.list()] == ["abs"]


def test_a_glob_is_matched_name_by_name() -> None:
    glob = Glob("src/**/*.py")
    assert glob.matches("src/x.py")
    assert glob.matches("src/a/b/x.py")
    assert not glob.matches("x.py")
    assert not glob.step(glob.start, "other")
    assert not Glob("*a" * 100 + "b").matches("a" * 250)  # the naive way takes years
