"""`exec`: what a command sees, how it ends, and that nothing of it is left when it must not be."""

# ruff: noqa: S101 - a suite asserts

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from podbot.errors import CommandFailedError, Kind
from podbot.sandbox import Limits, Policy, Sandbox
from podbot.testing.base import (
    SOON,
    Base,
    beating,
    beats,
    eventually,
    has_begun,
    interrupted_when,
    needs_processes,
    next_beat,
    out_of_time,
    refused,
)

DAEMONS = {
    "a child": "({beat}) & sleep 600",
    "a session of its own": "setsid sh -c '{beat}' & sleep 600",
    "a double fork": "(setsid sh -c '({beat}) &' &); sleep 600",
    "a double fork without the environment": "(setsid env -i /bin/sh -c '({beat}) &' &); sleep 600",
}


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


class CommandTests(Base):
    """Commands that run to their end."""

    # What it says

    @needs_processes
    def test_output_and_exit_code_are_told(self, sandbox: Sandbox) -> None:
        result = sandbox.exec(shell("echo out; echo err >&2; exit 3"))
        assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
        assert (result.signal, result.timed_out, result.ok) == (None, False, False)
        assert result.duration >= 0
        assert result.argv == ("sh", "-c", "echo out; echo err >&2; exit 3")
        with pytest.raises(CommandFailedError):
            result.check()
        assert sandbox.exec(["true"]).check().ok

    @needs_processes
    @pytest.mark.parametrize("number", [2, 9, 11, 15])
    def test_a_death_by_signal_is_told_as_a_shell_would(
        self, sandbox: Sandbox, number: int
    ) -> None:
        result = sandbox.exec(shell(f"ulimit -c 0; kill -{number} $$; sleep 600"), timeout=SOON)
        assert (result.exit_code, result.signal) == (128 + number, number)

    @needs_processes
    def test_output_is_bytes_and_shown_as_text(self, sandbox: Sandbox) -> None:
        result = sandbox.exec(["printf", r"gr\303\274n \360\237\216\211 \377"])
        assert result.stdout_bytes == "grün 🎉 ".encode() + b"\xff"
        assert result.stdout == "grün 🎉 \ufffd"

    @needs_processes
    def test_words_arrive_as_they_were_given(self, sandbox: Sandbox) -> None:
        words = ["a b", "", "it's", '"', "$HOME", "*", "two\nlines", "grün🎉", "-n", "\\"]
        result = sandbox.exec(["printf", "%s\\0", *words])
        assert result.stdout == "".join(word + "\0" for word in words)

    @needs_processes
    def test_output_over_the_limit_is_cut_and_said_and_the_command_goes_on(self) -> None:
        with self.open_sandbox(limits=Limits(output=1000)) as sandbox:
            result = sandbox.exec(
                shell("head -c 3000000 /dev/zero; head -c 1000 /dev/zero >&2; echo x > marker")
            )
            assert (len(result.stdout_bytes), result.stdout_truncated) == (1000, True)
            assert (len(result.stderr_bytes), result.stderr_truncated) == (1000, False)
            assert result.ok
            assert sandbox.exists("marker")

    @needs_processes
    def test_much_output_on_both_streams_comes_whole(self) -> None:
        with self.open_sandbox(limits=Limits(output=8_000_000)) as sandbox:
            result = sandbox.exec(
                shell("head -c 5000000 /dev/zero & head -c 5000000 /dev/zero >&2; wait")
            )
            assert result.stdout_bytes == result.stderr_bytes == bytes(5_000_000)
            assert not result.stdout_truncated
            assert not result.stderr_truncated

    # What it sees

    @needs_processes
    def test_stdin_is_what_was_given_or_empty(self, sandbox: Sandbox) -> None:
        assert sandbox.exec(["cat"]).stdout == ""
        assert sandbox.exec(["cat"], stdin="grün").stdout == "grün"
        assert sandbox.exec(["cat"], stdin=b"\0\xff").stdout_bytes == b"\0\xff"

    @needs_processes
    def test_stdin_may_be_large(self) -> None:
        data = bytes(range(256)) * 12_288
        with self.open_sandbox(limits=Limits(output=4_000_000)) as sandbox:
            assert sandbox.exec(["cat"], stdin=data).stdout_bytes == data
            # A command need not read it.
            assert sandbox.exec(["true"], stdin=data).ok
            assert sandbox.exec(["head", "-c", "3"], stdin=data).stdout_bytes == data[:3]

    @needs_processes
    def test_the_environment_is_short_and_can_be_added_to(
        self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PODBOT_TEST_SECRET", "secret")
        with self.open_sandbox(policy=Policy(environment={"FROM_POLICY": "p"})) as other:
            seen = other.exec(["env"], env={"FROM_CALL": "c d", "HOME": "/"}).stdout
        assert "secret" not in seen
        assert "FROM_POLICY=p\n" in seen
        assert "FROM_CALL=c d\n" in seen
        assert "HOME=/\n" in seen
        assert "PATH=" in seen
        plain = sandbox.exec(["env"]).stdout
        assert "secret" not in plain
        assert "FROM_CALL" not in plain

    @needs_processes
    def test_it_starts_in_the_working_folder_or_where_it_is_told(self, sandbox: Sandbox) -> None:
        sandbox.mkdir("sub")
        root = sandbox.workdir
        assert sandbox.exec(["pwd"]).stdout == f"{root}\n"
        assert sandbox.exec(["pwd"], cwd="sub").stdout == f"{root}/sub\n"
        assert sandbox.exec(["pwd"], cwd=f"{root}/sub").stdout == f"{root}/sub\n"
        assert sandbox.exec(["pwd"], cwd="/").stdout == "/\n"

    @needs_processes
    def test_it_sees_the_files_and_its_changes_are_seen(self, sandbox: Sandbox) -> None:
        sandbox.write("in", b"x")
        sandbox.exec(shell("cp in out; mkdir sub; ln -s out link")).check()
        assert sandbox.read("link") == b"x"
        assert sandbox.stat("sub").is_dir

    @needs_processes
    def test_it_holds_no_descriptor_but_its_own_three(self, sandbox: Sandbox) -> None:
        found = sandbox.exec(shell("ls /proc/$$/fd")).stdout.split()
        assert set(found) <= {"0", "1", "2", "3", "10", "255"}  # shells open some for themselves

    @needs_processes
    def test_a_broken_pipe_ends_it_quietly_as_in_a_shell(self, sandbox: Sandbox) -> None:
        result = sandbox.exec(shell("yes | head -n 1"), timeout=SOON)
        assert (result.stdout, result.stderr, result.timed_out) == ("y\n", "", False)

    # What cannot be run

    @needs_processes
    def test_a_command_that_cannot_start_is_an_error_of_its_kind(self, sandbox: Sandbox) -> None:
        sandbox.mkdir("folder")
        sandbox.write("plain", b"#!/bin/sh\n")
        sandbox.write("orphan", b"#!/no/such/interpreter\n", mode=0o755)
        with refused(Kind.COMMAND_NOT_FOUND):
            sandbox.exec(["no-such-command-anywhere"])
        with refused(Kind.COMMAND_NOT_FOUND):
            sandbox.exec(["./missing"])
        with refused(Kind.COMMAND_NOT_FOUND):
            sandbox.exec(["./orphan"])
        with refused(Kind.COMMAND_NOT_EXECUTABLE):
            sandbox.exec(["./plain"])
        with refused(Kind.COMMAND_NOT_EXECUTABLE):
            sandbox.exec(["./folder"])
        with refused(Kind.BAD_CWD):
            sandbox.exec(["true"], cwd="missing")
        with refused(Kind.BAD_CWD):
            sandbox.exec(["true"], cwd="plain")
        with refused(Kind.TOO_LARGE):
            sandbox.exec(["true", "x" * 3_000_000])

    @needs_processes
    def test_a_script_without_its_first_line_is_run_by_sh(self, sandbox: Sandbox) -> None:
        sandbox.write("script", b'echo "$1"\n', mode=0o755)
        assert sandbox.exec(["./script", "word"]).stdout == "word\n"

    @needs_processes
    def test_what_makes_no_sense_is_refused(self, sandbox: Sandbox) -> None:
        for argv in ("ls -l", [], [""], ["a\0b"], ["\ud800"], [b"ls"]):
            with refused(Kind.INVALID):
                sandbox.exec(argv)  # type: ignore[arg-type]  # wrong on purpose
        for env in ({"": "x"}, {"a=b": "x"}, {"a": "\0"}):
            with refused(Kind.INVALID):
                sandbox.exec(["true"], env=env)
        for timeout in (0, -1, math.nan, math.inf):
            with refused(Kind.INVALID):
                sandbox.exec(["true"], timeout=timeout)

    # How it is ended

    @needs_processes
    def test_a_timeout_is_data_and_keeps_the_output_so_far(self, sandbox: Sandbox) -> None:
        argv = shell("echo so far; echo err >&2; touch said; sleep 600")
        result = out_of_time(
            lambda seconds: sandbox.exec(argv, timeout=seconds), lambda: sandbox.exists("said")
        )
        assert (result.timed_out, result.exit_code, result.ok) == (True, 124, False)
        assert (result.stdout, result.stderr) == ("so far\n", "err\n")

    @needs_processes
    def test_the_limit_on_time_holds_when_a_call_names_none(self) -> None:
        with self.open_sandbox(limits=Limits(wall_time=0.3)) as sandbox:
            assert sandbox.exec(["sleep", "600"]).timed_out
            assert not sandbox.exec(["sleep", "0.5"], timeout=SOON).timed_out

    @needs_processes
    @pytest.mark.parametrize("what", DAEMONS)
    def test_a_timeout_kills_all_it_started(self, sandbox: Sandbox, what: str) -> None:
        argv = shell(DAEMONS[what].format(beat=beating("beat")))
        result = out_of_time(
            lambda seconds: sandbox.exec(argv, timeout=seconds),
            lambda: has_begun(sandbox, "beat"),
        )
        assert result.timed_out
        assert not beats(sandbox, "beat")

    @needs_processes
    def test_a_timeout_kills_nothing_else(self, sandbox: Sandbox) -> None:
        sandbox.exec(shell(f"({beating('before')}) > /dev/null 2>&1 &")).check()
        process = sandbox.spawn(shell(beating("spawned")))
        sandbox.python("x = 1")
        next_beat(sandbox, "before")
        next_beat(sandbox, "spawned")
        assert sandbox.exec(["sleep", "600"], timeout=0.3).timed_out
        next_beat(sandbox, "before")
        next_beat(sandbox, "spawned")
        assert process.poll() is None
        assert sandbox.python("x").value == "1"

    @needs_processes
    def test_what_stays_in_the_background_neither_delays_nor_dies(self, sandbox: Sandbox) -> None:
        result = sandbox.exec(shell(f"({beating('beat')}) & echo done"), timeout=SOON)
        assert (result.stdout, result.timed_out) == ("done\n", False)
        assert sandbox.exec(shell("sleep 600 &"), timeout=SOON).timed_out is False
        next_beat(sandbox, "beat")

    @needs_processes
    def test_what_stays_in_the_background_may_go_on_writing(self, sandbox: Sandbox) -> None:
        sandbox.exec(shell("(sleep 0.4; echo late; echo later >&2; echo x > marker) & echo now"))
        eventually(lambda: sandbox.exists("marker"))

    @needs_processes
    def test_ctrl_c_kills_all_it_started_and_the_sandbox_goes_on(self, sandbox: Sandbox) -> None:
        script = DAEMONS["a double fork"].format(beat=beating("beat"))
        with (
            pytest.raises(KeyboardInterrupt),
            interrupted_when(lambda: has_begun(sandbox, "beat")),
        ):
            sandbox.exec(shell(script))
        assert not beats(sandbox, "beat")
        assert sandbox.exec(["echo", "fine"]).stdout == "fine\n"

    # Many at once

    @needs_processes
    def test_many_threads_run_commands_at_once(self, sandbox: Sandbox) -> None:
        ready = threading.Barrier(32)

        def run(number: int) -> bool:
            ready.wait(SOON)
            result = sandbox.exec(shell(f"sleep 0.1; cat; echo {number}"), stdin=f"{number} ")
            return result.stdout == f"{number} {number}\n"

        with ThreadPoolExecutor(32) as pool:
            assert all(pool.map(run, range(32)))

    @needs_processes
    def test_a_slow_command_does_not_hold_up_others(self, sandbox: Sandbox) -> None:
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(sandbox.exec, shell("until [ -e go ]; do sleep 0.02; done; echo ok"))
            for number in range(20):
                assert sandbox.exec(["echo", str(number)]).stdout == f"{number}\n"
            sandbox.write("go", b"")
            assert slow.result(SOON).stdout == "ok\n"
