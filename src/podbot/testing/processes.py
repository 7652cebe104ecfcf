"""`spawn`: processes in the background, their streams, their terminals and their end."""

# ruff: noqa: S101 - a suite asserts

from __future__ import annotations

import signal
import threading

import pytest

from podbot.errors import Kind
from podbot.sandbox import Limits, Process, Sandbox, Terminal
from podbot.testing.base import (
    SOON,
    Base,
    beating,
    beats,
    eventually,
    has_begun,
    interrupted_after,
    needs_processes,
    refused,
)
from podbot.testing.commands import DAEMONS, shell


def read_until(process: Process, wanted: bytes) -> bytes:
    """Read stdout until it holds these bytes."""
    found = b""
    while wanted not in found:
        part = process.stdout.read(timeout=SOON)
        assert part, f"the end came before {wanted!r}: {found!r}"
        found += part
    return found


class ProcessTests(Base):
    """Processes in the background."""

    # Streams

    @needs_processes
    def test_a_conversation_through_its_pipes(self, sandbox: Sandbox) -> None:
        with sandbox.spawn(
            shell('while read line; do echo "got $line"; done; echo end')
        ) as process:
            for word in ("one", "zwei 🎉"):
                process.write(word + "\n")
                assert read_until(process, b"\n").decode() == f"got {word}\n"
            process.close_stdin()
            assert process.stdout.read_all() == b"end\n"
            assert process.wait(SOON) == 0

    @needs_processes
    def test_its_two_streams_are_apart_and_end(self, sandbox: Sandbox) -> None:
        process = sandbox.spawn(shell("echo out; echo err >&2; exit 5"))
        assert process.stdout.read_all() == b"out\n"
        assert process.stderr.read_all() == b"err\n"
        assert process.stdout.read() == b""
        assert process.wait(SOON) == 5
        assert process.poll() == 5

    @needs_processes
    def test_a_stream_can_be_iterated_over(self, sandbox: Sandbox) -> None:
        process = sandbox.spawn(["head", "-c", "5000000", "/dev/zero"])
        assert sum(len(chunk) for chunk in process.stdout) == 5_000_000

    @needs_processes
    def test_a_read_gives_no_more_than_it_was_asked_for(self, sandbox: Sandbox) -> None:
        process = sandbox.spawn(["echo", "abcdef"])
        assert process.stdout.read(2) == b"ab"
        assert process.stdout.read(3) == b"cde"
        assert process.stdout.read_all() == b"f\n"

    @needs_processes
    def test_a_read_without_output_in_time_is_an_error_and_loses_nothing(
        self, sandbox: Sandbox
    ) -> None:
        process = sandbox.spawn(shell("read line; echo here"))
        with refused(Kind.TIMEOUT):
            process.stdout.read(timeout=0.1)
        process.write("go\n")
        assert read_until(process, b"\n") == b"here\n"

    @needs_processes
    def test_ctrl_c_in_a_read_kills_nothing_and_loses_nothing(self, sandbox: Sandbox) -> None:
        process = sandbox.spawn(shell("read line; echo here; read line"))
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.3):
            process.stdout.read()
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.3):
            process.wait()
        assert process.poll() is None
        process.write("go\n")
        assert read_until(process, b"\n") == b"here\n"

    @needs_processes
    def test_its_stdin_may_be_empty_from_the_start(self, sandbox: Sandbox) -> None:
        process = sandbox.spawn(["cat"], stdin=False)
        assert process.wait(SOON) == 0
        with refused(Kind.IO):
            process.write("x")

    @needs_processes
    def test_writing_to_one_that_ended_is_an_error(self, sandbox: Sandbox) -> None:
        process = sandbox.spawn(["true"])
        process.wait(SOON)
        with refused(Kind.IO):
            for _ in range(100):
                process.write("x" * 10_000)

    @needs_processes
    def test_megabytes_go_in_and_come_out(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 12_288
        process = sandbox.spawn(["cat"])

        def feed() -> None:
            process.write(data)
            process.close_stdin()

        feeder = threading.Thread(target=feed)
        feeder.start()
        assert process.stdout.read_all() == data
        feeder.join(SOON)
        assert process.wait(SOON) == 0

    # Between calls

    @needs_processes
    def test_it_runs_between_calls_and_its_output_is_fetched_later(self, sandbox: Sandbox) -> None:
        number = sandbox.spawn(shell("echo one; touch ran; echo two; exit 7")).number
        eventually(lambda: sandbox.exists("ran"))
        (process,) = sandbox.processes()
        assert (process.number, process.argv[0]) == (number, "sh")
        assert process.wait(SOON) == 7
        assert process.stdout.read_all() == b"one\ntwo\n"
        (process,) = sandbox.processes()  # until it is closed
        process.close()
        assert sandbox.processes() == []

    @needs_processes
    def test_one_ahead_of_its_reader_waits_and_nothing_is_lost(self) -> None:
        with self.open_sandbox(limits=Limits(buffer=100_000)) as sandbox:
            process = sandbox.spawn(shell("seq 1 400000; touch wrote"))
            with refused(Kind.TIMEOUT):
                process.wait(0.5)
            assert not sandbox.exists("wrote")
            lines = process.stdout.read_all().split()
            assert [lines[0], lines[-1], len(lines)] == [b"1", b"400000", 400_000]
            assert process.wait(SOON) == 0
            assert process.stdout.dropped == 0

    @needs_processes
    def test_one_may_drop_its_oldest_output_instead_of_waiting(self) -> None:
        with self.open_sandbox(limits=Limits(buffer=100_000)) as sandbox:
            process = sandbox.spawn(shell("seq 1 400000"), drop_oldest=True)
            assert process.wait(SOON) == 0
            kept = process.stdout.read_all()
            total = sum(len(str(number)) + 1 for number in range(1, 400_001))
            assert kept.endswith(b"\n399999\n400000\n")
            assert 0 < len(kept) <= 100_000 + 1024 * 1024  # the buffer, and what the pipe held
            assert process.stdout.dropped == total - len(kept)

    @needs_processes
    def test_waiting_has_a_limit_when_asked(self, sandbox: Sandbox) -> None:
        process = sandbox.spawn(["sleep", "600"])
        with refused(Kind.TIMEOUT):
            process.wait(0.1)
        assert process.poll() is None

    # Signals and terminals

    @needs_processes
    def test_a_signal_reaches_it(self, sandbox: Sandbox) -> None:
        process = sandbox.spawn(
            shell("trap 'echo caught; exit 9' USR1; echo ready; sleep 60 & wait")
        )
        read_until(process, b"ready\n")
        process.signal(signal.SIGUSR1)
        assert read_until(process, b"\n") == b"caught\n"
        assert process.wait(SOON) == 9
        process.signal(signal.SIGTERM)  # too late, and harmless

    @needs_processes
    def test_a_signal_reaches_its_whole_group_when_asked(self, sandbox: Sandbox) -> None:
        process = sandbox.spawn(shell(f"({beating('beat')}) & {beating('other')}"))
        eventually(lambda: has_begun(sandbox, "beat") and has_begun(sandbox, "other"))
        process.signal(signal.SIGTERM, group=True)
        assert process.wait(SOON) == 128 + signal.SIGTERM
        assert not beats(sandbox, "beat")

    @needs_processes
    def test_a_signal_that_is_none_is_refused(self, sandbox: Sandbox) -> None:
        process = sandbox.spawn(["sleep", "600"])
        with refused(Kind.INVALID):
            process.signal(12345)
        assert process.poll() is None

    @needs_processes
    def test_a_terminal_has_a_size_and_tells_when_it_changes(self, sandbox: Sandbox) -> None:
        script = "trap 'stty size' WINCH; test -t 0 && stty size; while :; do sleep 0.05; done"
        with sandbox.spawn(shell(script), terminal=Terminal(30, 100)) as process:
            read_until(process, b"30 100\r\n")
            process.resize(50, 132)
            read_until(process, b"50 132\r\n")

    @needs_processes
    def test_a_terminal_passes_on_what_is_typed(self, sandbox: Sandbox) -> None:
        process = sandbox.spawn(["cat"], terminal=Terminal())
        process.write("hello\n")
        read_until(process, b"hello\r\nhello\r\n")  # its echo, and cat's
        process.write(b"\x04")
        assert process.wait(SOON) == 0
        assert process.stderr.read_all() == b""
        other = sandbox.spawn(["cat"], terminal=Terminal())
        other.write("x\n")
        read_until(other, b"x\r\nx\r\n")
        other.write(b"\x03")
        assert other.wait(SOON) == 128 + signal.SIGINT

    @needs_processes
    def test_what_has_no_terminal_has_no_size(self, sandbox: Sandbox) -> None:
        process = sandbox.spawn(["sleep", "600"])
        with refused(Kind.INVALID):
            process.resize(10, 10)

    # Its end

    @needs_processes
    @pytest.mark.parametrize("what", DAEMONS)
    def test_closing_it_kills_all_it_started(self, sandbox: Sandbox, what: str) -> None:
        process = sandbox.spawn(shell(DAEMONS[what].format(beat=beating("beat"))))
        eventually(lambda: has_begun(sandbox, "beat"))
        process.close()
        assert not beats(sandbox, "beat")
        for act in (process.poll, process.stdout.read, process.close):
            with refused(Kind.NO_SUCH_PROCESS, Kind.CLOSED):
                act()
        assert sandbox.processes() == []

    @needs_processes
    def test_leaving_its_context_closes_it(self, sandbox: Sandbox) -> None:
        with sandbox.spawn(shell(beating("beat"))):
            eventually(lambda: has_begun(sandbox, "beat"))
        assert not beats(sandbox, "beat")
        assert sandbox.processes() == []

    @needs_processes
    def test_one_that_cannot_start_is_an_error_of_its_kind(self, sandbox: Sandbox) -> None:
        with refused(Kind.COMMAND_NOT_FOUND):
            sandbox.spawn(["no-such-command-anywhere"])
        with refused(Kind.COMMAND_NOT_FOUND):
            sandbox.spawn(["no-such-command-anywhere"], terminal=Terminal())
        with refused(Kind.BAD_CWD):
            sandbox.spawn(["true"], cwd="missing")
        with refused(Kind.INVALID):
            sandbox.spawn("sleep 60")
        assert sandbox.processes() == []

    @needs_processes
    def test_it_gets_the_environment_and_folder_it_was_given(self, sandbox: Sandbox) -> None:
        sandbox.mkdir("sub")
        process = sandbox.spawn(shell('echo "$WORD"; pwd'), env={"WORD": "w"}, cwd="sub")
        assert process.stdout.read_all().decode() == f"w\n{sandbox.workdir}/sub\n"

    @needs_processes
    def test_many_run_at_once_each_with_its_own_output(self, sandbox: Sandbox) -> None:
        running = [sandbox.spawn(shell(f"cat; echo {number}")) for number in range(20)]
        for process in running:
            process.write("x")
            process.close_stdin()
        for number, process in enumerate(running):
            assert process.stdout.read_all() == b"x%d\n" % number
            assert process.wait(SOON) == 0
        assert len(sandbox.processes()) == 20
