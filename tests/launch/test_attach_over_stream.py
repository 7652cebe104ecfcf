"""`attach` on a sandbox that is reached by a stream of bytes: no descriptor can be passed there."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import termios
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import pytest
from piped import PipedLauncher
from screen import Screen, by_marker, until

import podbot.sandbox
from podbot.errors import GuestLostError, Kind, SandboxError
from podbot.launch._flow import waiting
from podbot.launch.attach import Ending, Streams, attach
from podbot.sandbox import Sandbox, joined, ops
from podbot.sandbox.joined import FarEnds
from podbot.sandbox.ops import Ended

PROGRAM = """
import sys
sys.path[:0] = [sys.argv[1]]
from piped import PipedLauncher
from podbot.launch.attach import attach
from podbot.sandbox import ops
with PipedLauncher().sandbox() as sandbox:
    ending = attach(sandbox, ops.command(sys.argv[2:], None, None))
sys.exit(ending.exit_status)
"""
ATTACHED = (sys.executable, "-c", PROGRAM, str(Path(__file__).parents[1]))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with PipedLauncher().sandbox() as made:
        yield made


def marker(number: int) -> str:
    """How long a command is to sleep: so that nobody else on the machine sleeps so long."""
    return f"76543.{os.getpid()}{number}"


def attached(sandbox: Sandbox, *argv: str, stdin: int = -1, stdout: int = -1) -> Ending:
    """Run it with what is not given from and to nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    streams = Streams(*(null if fd < 0 else fd for fd in (stdin, stdout, -1)))
    try:
        return attach(sandbox, ops.command(list(argv), None, None), streams)
    finally:
        os.close(null)


def reading(fd: int) -> tuple[threading.Thread, bytearray]:
    """Somebody who reads it to its end."""
    got = bytearray()

    def work() -> None:
        while data := os.read(fd, 1 << 20):
            got.extend(data)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, got


@pytest.mark.parametrize("code", [0, 7, 255])
def test_the_exit_status_is_the_commands_own(sandbox: Sandbox, code: int) -> None:
    assert attached(sandbox, "sh", "-c", f"exit {code}") == Ending(code)


def test_a_death_by_signal_and_a_missing_command_are_told(sandbox: Sandbox) -> None:
    assert attached(sandbox, "sh", "-c", "kill -9 $$") == Ending(137, signal=signal.SIGKILL)
    assert attached(sandbox, "no-such-command").exit_status == 127


def test_much_goes_through_exactly_in_both_directions(sandbox: Sandbox) -> None:
    data = random.Random(8).randbytes(5 << 20)
    (stdin, feed), (out, stdout) = os.pipe(), os.pipe()

    def write() -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(feed, rest) :]
        os.close(feed)

    threading.Thread(target=write, daemon=True).start()
    reader, got = reading(out)
    assert attached(sandbox, "cat", stdin=stdin, stdout=stdout) == Ending(0)
    os.close(stdout)
    reader.join(60)
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    for fd in (stdin, out):
        os.close(fd)


def test_a_reader_that_goes_away_is_told_as_by_a_pipe(sandbox: Sandbox) -> None:
    read, write = os.pipe()
    os.close(read)
    assert attached(sandbox, "yes", stdout=write) == Ending(141, signal=signal.SIGPIPE)
    script = "import os\ntry:\n    while True: print('y')\nexcept BrokenPipeError: os._exit(5)"
    assert attached(sandbox, "python3", "-c", script, stdout=write) == Ending(5)
    os.close(write)


def test_what_a_command_leaves_in_the_background_is_not_waited_for(sandbox: Sandbox) -> None:
    read, write = os.pipe()
    reader, got = reading(read)
    script = "sleep 1000 & head -c 300000 /dev/zero; exit 6"
    assert attached(sandbox, "sh", "-c", script, stdout=write) == Ending(6)
    os.close(write)
    reader.join(60)
    assert len(got) == 300_000
    os.close(read)


def test_all_that_a_command_was_ahead_of_its_reader_comes_after_its_end(sandbox: Sandbox) -> None:
    sandbox.write("ended", b"")
    script = (
        "import os, time\nos.set_blocking(1, False)\nwritten, stuck = 0, 0\n"
        "while stuck < 20:\n"  # until nothing more goes anywhere
        "    try:\n        written, stuck = written + os.write(1, b'x' * 4096), 0\n"
        "    except BlockingIOError:\n        stuck += 1\n        time.sleep(0.05)\n"
        f"open({sandbox.workdir + '/ended'!r}, 'w').write(str(written))\n"
    )
    read, write = os.pipe()
    with ThreadPoolExecutor() as pool:
        job = pool.submit(attached, sandbox, "python3", "-c", script, stdout=write)
        until(lambda: bool(sandbox.read("ended")) and not by_marker(script))
        reader, got = reading(read)
        assert job.result() == Ending(0)
    os.close(write)
    reader.join(60)
    os.close(read)
    assert len(got) == int(sandbox.read("ended"))


def test_a_command_is_killed_before_anybody_asks_how_it_ended(sandbox: Sandbox) -> None:
    with podbot.sandbox.open("local") as local:
        for there in (sandbox, local):
            job = joined.start(there, ops.command(["sleep", "1000"], None, None), FarEnds())
            job.kill()
            assert job.ending() == Ended(128 + signal.SIGKILL, signal.SIGKILL)


def test_a_slow_reader_slows_the_command(sandbox: Sandbox) -> None:
    sandbox.write("count", b"")
    script = (
        f"import os\ncount = os.open({sandbox.workdir + '/count'!r}, os.O_WRONLY)\n"
        "for n in range(2000):\n    os.write(1, b'x' * 65536)\n    os.pwrite(count, b'%d' % n, 0)"
    )
    with Popen([*ATTACHED, "python3", "-c", script], stdin=DEVNULL, stdout=PIPE) as process:
        assert process.stdout is not None
        seen, silent = b"", 0
        while silent < 20:  # until it writes no more, though nobody told it
            before, seen = seen, sandbox.read("count")
            silent = silent + 1 if seen and seen == before else 0
            threading.Event().wait(0.05)
        assert int(seen) < 1000  # what the limits let it write ahead, and a few pipes
        assert len(process.stdout.read()) == 2000 * 65536
        assert process.wait(60) == 0


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_signals_go_to_the_commands_group(name: str) -> None:
    child = f'trap "echo child; exit" {name}; echo ready; while :; do sleep 0.05; done'
    script = f"trap 'echo parent; exit 9' {name}; sh -c '{child}'; sleep 60"
    with Popen([*ATTACHED, "sh", "-c", script], stdin=DEVNULL, stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert process.wait(60) == 9
        assert sorted(process.stdout.read().split()) == [b"child", b"parent"]


def test_a_second_ctrl_c_kills_what_would_not_end() -> None:
    script = (
        f"trap 'echo no' INT; setsid sleep {marker(1)} & echo ready; while :; do sleep 0.05; done"
    )
    with Popen([*ATTACHED, "sh", "-c", script], stdin=DEVNULL, stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"no\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGKILL
    until(lambda: not by_marker(marker(1)))


def test_who_is_told_to_end_does_not_wait_for_a_reader_that_does_not_read() -> None:
    with Popen([*ATTACHED, "yes"], stdin=DEVNULL, stdout=PIPE) as process:
        assert process.stdout is not None
        held, before = 0, -1
        while not held or held != before:  # until all pipes are full
            threading.Event().wait(0.3)
            held, before = waiting(process.stdout.fileno()), held
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


def test_a_terminal_is_one_inside_too(tmp_path: Path) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && stty size; trap 'x=1; stty size' WINCH;"
    script += 'echo ready; until test "$x"; do sleep 0.05; done; read line; echo got $line; exit 3'
    with Screen([*ATTACHED, "sh", "-c", script], cwd=tmp_path, rows=33, columns=44) as screen:
        screen.see("33 44")
        screen.see("ready")
        assert screen.raw
        screen.resize(20, 60)
        screen.see("20 60")
        screen.type("this\r")
        screen.see("got this")
        assert screen.end() == 3
        assert screen.modes == screen.before


def test_ctrl_c_reaches_the_command_alone(tmp_path: Path) -> None:
    script = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done"
    with Screen([*ATTACHED, "sh", "-c", script], cwd=tmp_path) as screen:
        screen.see("ready")
        screen.type("\x03")
        screen.see("caught")
        assert screen.end() == 7
        assert screen.modes == screen.before


def test_a_closed_window_hangs_up_on_the_command(tmp_path: Path) -> None:
    script = (
        f"trap 'echo hung up > {tmp_path}/told; exit' HUP; echo ready; while :; do sleep 0.05; done"
    )
    with Screen([*ATTACHED, "sh", "-c", script], cwd=tmp_path) as screen:
        screen.see("ready")
        screen.unplug()
        screen.process.wait(60)
    assert (tmp_path / "told").read_text() == "hung up\n"


def test_a_terminal_whose_person_left_hangs_up_in_a_thread_too(sandbox: Sandbox) -> None:
    near, far = os.openpty()
    told: list[Ending] = []
    streams = Streams(far, far, far)
    command = ops.command(["sh", "-c", "echo ready; exec sleep 1000"], None, None)
    thread = threading.Thread(target=lambda: told.append(attach(sandbox, command, streams)))
    thread.start()
    seen = b""
    while b"ready" not in seen:
        seen += os.read(near, 100)
    before = termios.tcgetattr(far)
    assert not before[3] & termios.ICANON
    os.close(near)
    thread.join(60)
    os.close(far)
    assert told == [Ending(129, signal=signal.SIGHUP, plain=True)]


def test_a_sandbox_that_is_lost_raises() -> None:
    with PipedLauncher().sandbox() as made, pytest.raises(GuestLostError):
        attached(made, "sh", "-c", "kill -9 $PPID; sleep 60")


def test_a_folder_that_is_not_there_is_said(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError) as caught:
        attach(sandbox, ops.command(["true"], "/no/such/folder", None))
    assert caught.value.kind is Kind.BAD_CWD


def test_handlers_and_descriptors_are_as_before(sandbox: Sandbox) -> None:
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    descriptors = set(os.listdir("/proc/self/fd"))
    for argv in (["true"], ["no-such-command"], ["sh", "-c", "kill -9 $$"]):
        attached(sandbox, *argv)
    until(lambda: set(os.listdir("/proc/self/fd")) <= descriptors)
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers
