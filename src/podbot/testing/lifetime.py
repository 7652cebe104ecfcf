"""A sandbox from its opening to its end, and what it says about itself."""

# ruff: noqa: S101 - a suite asserts

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from podbot.errors import GuestLostError, Kind, SandboxError
from podbot.sandbox import Sandbox
from podbot.testing.base import SOON, Base, eventually, needs_processes, refused


def every_verb(sandbox: Sandbox, folder: Path) -> dict[str, Callable[[], object]]:
    """Each verb with arguments that would do if the sandbox were open."""
    return {
        "exec": lambda: sandbox.exec(["true"]),
        "spawn": lambda: sandbox.spawn(["true"]),
        "processes": sandbox.processes,
        "python": lambda: sandbox.python("1"),
        "python_interrupt": sandbox.python_interrupt,
        "python_restart": sandbox.python_restart,
        "read": lambda: sandbox.read("file"),
        "write": lambda: sandbox.write("file", b"x"),
        "append": lambda: sandbox.append("file", b"x"),
        "edit": lambda: sandbox.edit("file", "a", "b"),
        "list": sandbox.list,
        "glob": lambda: sandbox.glob("*"),
        "grep": lambda: sandbox.grep("x"),
        "stat": lambda: sandbox.stat("file"),
        "exists": lambda: sandbox.exists("file"),
        "move": lambda: sandbox.move("file", "other"),
        "remove": lambda: sandbox.remove("file"),
        "mkdir": lambda: sandbox.mkdir("folder"),
        "symlink": lambda: sandbox.symlink("link", "file"),
        "upload": lambda: sandbox.upload(folder, "in"),
        "download": lambda: sandbox.download("file", folder / "out"),
    }


def running(mark: str) -> bool:
    """Whether a process with this word in its command line runs on this host."""
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and mark.encode() in Path("/proc", name, "cmdline").read_bytes():
                return True
        except OSError:
            continue  # gone meanwhile, or not ours to see
    return False


def a_long_sleep() -> str:
    """A number of seconds that no other process sleeps."""
    return f"600.{random.SystemRandom().randrange(10**9):09d}"


class LifetimeTests(Base):
    """Opening, closing, and what lies between."""

    waits_for_death = True
    """Whether everything is dead when ``close`` returns. False only for what is discarded."""

    def are_dead(self, *marks: str) -> None:
        """After closing: at once, or soon where the backend says that it does not wait."""
        if self.waits_for_death:
            assert not any(running(mark) for mark in marks)
        else:
            eventually(lambda: not any(running(mark) for mark in marks))

    def test_it_says_what_it_is(self, sandbox: Sandbox) -> None:
        assert sandbox.backend
        assert sandbox.workdir.startswith("/")
        assert sandbox.stat(sandbox.workdir).is_dir
        assert sandbox.backend in repr(sandbox)
        assert "open" in repr(sandbox)
        names = [guarantee.name for guarantee in sandbox.guarantees]
        assert names
        assert len(set(names)) == len(names)
        assert all(guarantee.by for guarantee in sandbox.guarantees)

    def test_it_starts_empty_and_shares_nothing(self, sandbox: Sandbox) -> None:
        assert sandbox.list() == []

    def test_after_its_end_every_verb_says_so(self, tmp_path: Path) -> None:
        with self.open_sandbox() as sandbox:
            sandbox.write("file", b"x")
        assert sandbox.closed
        assert "closed" in repr(sandbox)
        for verb in every_verb(sandbox, tmp_path).values():
            with refused(Kind.CLOSED):
                verb()
        assert list(tmp_path.iterdir()) == []

    def test_closing_twice_is_harmless(self) -> None:
        sandbox = self.open_sandbox()
        sandbox.close()
        sandbox.close()

    def test_whatever_lies_in_it_it_can_be_closed(self) -> None:
        sandbox = self.open_sandbox()
        sandbox.mkdir("d/" * 1100)
        sandbox.symlink("loop", "loop")
        sandbox.write("folder/file", b"x", mode=0)
        sandbox.close()
        assert sandbox.closed

    def test_closing_frees_who_waits(self, sandbox: Sandbox) -> None:
        begun = threading.Event()

        def work() -> Kind | None:
            try:
                while True:
                    sandbox.write("file", b"x")
                    sandbox.read("file")
                    begun.set()
            except SandboxError as error:
                return error.kind

        with ThreadPoolExecutor(4) as pool:
            workers = [pool.submit(work) for _ in range(4)]
            assert begun.wait(SOON)
            sandbox.close()
            assert {worker.result(SOON) for worker in workers} == {Kind.CLOSED}

    def test_many_threads_may_use_its_files(self, sandbox: Sandbox) -> None:
        def work(number: int) -> None:
            for turn in range(10):
                data = bytes([number]) * (1000 + turn * 100_000)
                sandbox.write(f"{number}/file", data)
                assert sandbox.read(f"{number}/file") == data
                assert [entry.path for entry in sandbox.list(f"{number}")] == [f"{number}/file"]
                sandbox.remove(f"{number}", recursive=True)

        with ThreadPoolExecutor(8) as pool:
            for worker in [pool.submit(work, number) for number in range(8)]:
                worker.result(SOON)
        assert sandbox.list() == []

    def test_a_backend_says_what_it_cannot_do(self, sandbox: Sandbox, tmp_path: Path) -> None:
        if self.has_processes:
            return
        verbs = every_verb(sandbox, tmp_path)
        for name in ("exec", "spawn", "processes", "python", "python_interrupt", "python_restart"):
            with refused(Kind.UNSUPPORTED):
                verbs[name]()
        with refused(Kind.UNSUPPORTED):
            sandbox.exec(["cat"], stdin=b"x" * 2_000_000)

    @needs_processes
    def test_closing_kills_everything_and_frees_who_waits(self) -> None:
        mark, daemon, spawned = a_long_sleep(), a_long_sleep(), a_long_sleep()
        sandbox = self.open_sandbox()
        sandbox.exec(["sh", "-c", f"setsid sleep {daemon} >/dev/null 2>&1 &"]).check()
        sandbox.spawn(["sleep", spawned])

        def wait() -> Kind | None:
            try:
                sandbox.exec(["sleep", mark])
            except SandboxError as error:
                return error.kind
            return None

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(wait)
            eventually(lambda: all(running(word) for word in (mark, daemon, spawned)))
            sandbox.close()
            assert waiting.result(SOON) is Kind.CLOSED
        self.are_dead(mark, daemon, spawned)

    @needs_processes
    def test_one_that_is_forgotten_is_closed(self) -> None:
        mark = a_long_sleep()
        sandbox = self.open_sandbox()
        sandbox.exec(["sh", "-c", f"sleep {mark} >/dev/null 2>&1 &"]).check()
        eventually(lambda: running(mark))
        del sandbox
        gc.collect()
        eventually(lambda: not running(mark))

    @needs_processes
    def test_an_error_inside_its_context_closes_it_too(self) -> None:
        mark = a_long_sleep()
        try:
            with self.open_sandbox() as sandbox:
                sandbox.spawn(["sleep", mark])
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        assert sandbox.closed
        self.are_dead(mark)

    @needs_processes
    def test_the_death_of_the_guest_is_an_error_and_not_a_wait(self, sandbox: Sandbox) -> None:
        mark = a_long_sleep()
        sandbox.exec(["sh", "-c", f"setsid sleep {mark} >/dev/null 2>&1 &"]).check()
        lost = False
        try:
            # Where the guest is process 1 of its own name space, the kernel protects it.
            sandbox.exec(["sh", "-c", "kill -9 $PPID; sleep 1"], timeout=SOON)
        except GuestLostError as error:
            lost = error.kind is Kind.GUEST_LOST
            assert lost
        if lost:
            with refused(Kind.GUEST_LOST):
                sandbox.exec(["true"])
        else:
            assert sandbox.exec(["true"]).ok
        sandbox.close()
        self.are_dead(mark)

    @needs_processes
    def test_two_of_them_know_nothing_of_each_other(self, sandbox: Sandbox) -> None:
        with self.open_sandbox() as other:
            process = sandbox.spawn(["sleep", "600"])
            sandbox.python("x = 1")
            assert other.processes() == []
            assert other.python("'x' in globals()").value == "False"
            other.close()
            time.sleep(0.1)
            assert process.poll() is None
            assert sandbox.python("x").value == "1"
