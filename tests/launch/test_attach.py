"""A command in a sandbox behaves as if run bare: terminal, pipes, signals, exit status."""

from __future__ import annotations

import hashlib
import os
import random
import re
import select
import signal
import socket
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from screen import PODBOT, Screen, by_marker, is_nonblocking, signal_of, state, until

from podbot.errors import GuestLostError, Kind, SandboxError
from podbot.launch import attach as attaching
from podbot.launch.attach import Ending, Streams, attach
from podbot.sandbox import joined, layers, ops
from podbot.sandbox.local import LocalSandbox
from podbot.sandbox.memory import MemorySandbox
from podbot.sandbox.overlay.launcher import OverlaySandbox

RUN = (*PODBOT, "run", "--discard", "--")


def marker(number: int) -> str:
    """How long a command is to sleep: so that nobody else on the machine sleeps so long."""
    return f"98765.{os.getpid()}{number}"


class Clock:
    """The time as `attach` sees it, which a test can have run on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.ahead = 0.0
        self.step = 0.0
        monkeypatch.setattr(attaching, "time", self)

    def monotonic(self) -> float:
        self.ahead += self.step
        return time.monotonic() + self.ahead


@pytest.fixture(scope="module")
def target(layers_root: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="podbot-test-", dir="/var/tmp")).resolve()
    yield path
    layers.remove(path)


@pytest.fixture(scope="module")
def sandbox(target: Path) -> Iterator[OverlaySandbox]:
    with OverlaySandbox(target, discard=True) as sandbox:
        yield sandbox


def bare(target: Path, *argv: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    """`podbot run -- argv` on pipes."""
    options = {"input": b"", **options} if "stdin" not in options else options
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [*RUN, *argv], capture_output=True, cwd=target, timeout=300, check=False, **options
    )


@contextmanager
def started(target: Path, *argv: str, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """The same in the background, with all three streams on pipes."""
    pipe = subprocess.PIPE
    streams = {"stdin": pipe, "stdout": pipe, "stderr": pipe, **options}
    with subprocess.Popen([*RUN, *argv], cwd=target, **streams) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def in_thread(
    sandbox: OverlaySandbox, argv: list[str], streams: Streams, timeout: float | None = None
) -> tuple[threading.Thread, list[Ending | BaseException]]:
    """`attach` in another thread, as a library user might."""
    told: list[Ending | BaseException] = []

    def work() -> None:
        try:
            told.append(attach(sandbox, ops.command(argv, None, None), streams, timeout))
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, told


# Terminals


def test_inside_is_a_terminal_of_the_same_size(target: Path) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && stty size && tty && echo $TERM"
    with Screen([*RUN, "sh", "-c", script], cwd=target, env={"TERM": "vt220"}) as screen:
        assert screen.end() == 0
        assert screen.seen.replace(b"\r\n", b"\n") == b"30 100\n/dev/pts/0\nvt220\n"


def test_programs_show_colours_at_a_terminal_and_none_in_a_pipe(target: Path) -> None:
    argv = [*RUN, "ls", "-d", "--color=auto", "/usr"]
    with Screen(argv, cwd=target, env={"TERM": "xterm-256color"}) as screen:
        assert screen.end() == 0
        assert b"\x1b[" in screen.seen
    assert b"\x1b[" not in bare(target, "ls", "-d", "--color=auto", "/usr").stdout


def test_a_resized_window_is_told(target: Path) -> None:
    script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"
    with Screen([*RUN, "sh", "-c", script], cwd=target) as screen:
        screen.see("ready")
        screen.resize(11, 222)
        screen.see("11 222")
        screen.type("\x03")
        screen.end()


def test_ctrl_c_reaches_the_command_alone(target: Path) -> None:
    script = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done"
    with Screen([*RUN, "sh", "-c", script], cwd=target) as screen:
        screen.see("ready")
        assert screen.raw
        screen.type("\x03")
        screen.see("caught")
        assert screen.end() == 7
        assert screen.modes == screen.before
        assert b"Traceback" not in screen.seen


def test_a_command_that_ctrl_c_killed_is_seen_to_have_died_of_it(target: Path) -> None:
    with Screen([*RUN, "sh", "-c", "echo ready; exec sleep 1000"], cwd=target) as screen:
        screen.see("ready")
        screen.type("\x03")
        assert signal_of(screen.end()) is signal.SIGINT
        assert screen.modes == screen.before


def test_keys_are_echoed_and_edited_by_the_commands_own_terminal(target: Path) -> None:
    with Screen([*RUN, "sh", "-c", "echo ready; cat; echo over"], cwd=target) as screen:
        screen.see("ready")
        screen.type("häx\x7fllo\r")  # the letter before the backspace is taken back
        screen.see("hällo\r\n".encode())
        screen.type("\x04")
        screen.see("over")
        assert screen.end() == 0


def test_modes_of_the_callers_terminal_hold_inside(target: Path) -> None:
    with Screen([*RUN, "stty", "-a"], cwd=target) as screen:
        assert screen.end() == 0
    with Screen(
        ["sh", "-c", f"stty erase '#' -ixon; exec {' '.join(RUN)} stty -a"], cwd=target
    ) as (other):
        assert other.end() == 0
        assert b"erase = #" in other.seen and b"-ixon" in other.seen
    assert b"erase = #" not in screen.seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_sent_to_podbot_reaches_the_command_and_the_terminal_is_restored(
    target: Path, number: signal.Signals
) -> None:
    with Screen([*RUN, "sh", "-c", "echo ready; exec sleep 1000"], cwd=target) as screen:
        screen.see("ready")
        screen.process.send_signal(number)
        assert signal_of(screen.end()) is number
        assert screen.modes == screen.before


def test_the_terminal_is_restored_when_there_is_no_such_command(target: Path) -> None:
    with Screen([*RUN, "no-such-command"], cwd=target) as screen:
        assert screen.end() == 127
        assert screen.modes == screen.before
        assert b"no such command" in screen.seen


def test_the_terminal_is_restored_when_the_guest_is_killed(target: Path) -> None:
    script = f"echo ready; exec sleep {marker(1)}"
    with Screen([*RUN, "sh", "-c", script], cwd=target) as screen:
        screen.see("ready")
        until(lambda: bool(by_marker(marker(1))))  # the shell becomes it after it said so
        (inside,) = by_marker(marker(1))
        guest = int(Path(f"/proc/{inside}/stat").read_text().rpartition(")")[2].split()[1])
        assert screen.raw
        os.kill(guest, signal.SIGKILL)
        assert screen.end() == 125
        assert screen.modes == screen.before
        assert b"Traceback" not in screen.seen


def test_a_closed_window_hangs_up_on_the_command(target: Path) -> None:
    script = "trap 'echo hung up > told; exit' HUP; echo ready; while :; do sleep 0.05; done"
    argv = [*PODBOT, "run", "--keep", "--name", "window", "--", "sh", "-c", script]
    with Screen(argv, cwd=target) as screen:
        screen.see("ready")
        screen.unplug()
        screen.process.wait(60)
    from podbot.runs import records

    entry = records.find("window")
    assert entry.layer is not None
    assert (entry.layer.upper(0) / "told").read_text() == "hung up\n"
    entry.layer.discard()
    records.remove(entry.id)


def test_streams_that_are_no_terminal_stay_apart_from_it(target: Path) -> None:
    script = "test -t 0 && test -t 1 && ! test -t 2 && echo out && echo err >&2"
    with tempfile.TemporaryFile() as file:
        with Screen([*RUN, "sh", "-c", script], cwd=target, stderr=file.fileno()) as screen:
            assert screen.end() == 0
            assert screen.seen == b"out\r\n"
        file.seek(0)
        assert file.read() == b"err\n"


def test_output_to_a_file_leaves_stdin_at_the_terminal(target: Path) -> None:
    script = "test -t 2 && echo ready >&2; read line; echo got $line"
    with tempfile.TemporaryFile() as file:
        with Screen([*RUN, "sh", "-c", script], cwd=target, stdout=file.fileno()) as screen:
            screen.see("ready")
            assert not screen.raw
            screen.type("a line\r")
            assert screen.end() == 0
        file.seek(0)
        assert file.read() == b"got a line\n"


def test_input_from_a_pipe_keeps_the_colours_and_the_keyboard(target: Path) -> None:
    # What a pager does: text from stdin, keys from the terminal.
    script = (
        "test -t 1 && cat; stty -icanon -echo </dev/tty; echo ready;"
        "key=$(dd bs=1 count=1 </dev/tty 2>/dev/null); stty sane </dev/tty; echo pressed $key"
    )
    read, write = os.pipe()
    with Screen([*RUN, "sh", "-c", script], cwd=target, stdin=read) as screen:
        os.close(read)
        os.write(write, b"some text\n")
        os.close(write)
        screen.see("some text")
        screen.see("ready")
        screen.type("q")
        screen.see("pressed q")
        assert screen.end() == 0
        assert screen.modes == screen.before


def test_keys_meant_for_a_pager_beside_us_are_left_to_it(target: Path) -> None:
    read, write = os.pipe()
    with Screen([*RUN, "sh", "-c", "echo ready >&2; sleep 1"], cwd=target, stdout=write) as screen:
        os.close(write)
        screen.see("ready")
        mine = termios.tcgetattr(screen.far)
        mine[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(screen.far, termios.TCSANOW, mine)
        mine = termios.tcgetattr(screen.far)
        screen.type("q")
        assert screen.end() == 0
        assert os.read(screen.far, 10) == b"q"
        assert screen.modes == mine  # and nobody changed the pager's modes
    os.close(read)


@pytest.fixture
def shell(target: Path) -> Iterator[Screen]:
    """An interactive bash with job control."""
    argv = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
    with Screen(argv, cwd=target, env={"PS1": "$ ", "HISTFILE": ""}) as screen:
        screen.see("$ ")
        yield screen
        screen.type("exit\rexit\r")
        screen.end()


def typed(*argv: str) -> str:
    return " ".join([*RUN, *argv]) + "\r"


def test_ctrl_z_stops_the_command_with_podbot_and_fg_goes_on(shell: Screen) -> None:
    shell.type(typed("sh", "-c", "'echo rea''dy; read line; echo got $line'"))
    shell.see("ready")
    shell.type("\x1a")
    shell.see("Stopped")
    shell.see("$ ")
    assert not shell.raw
    shell.type("fg\r")
    shell.see("podbot run")
    until(lambda: shell.raw)
    shell.type("more\r")
    shell.see("got more")
    shell.see("$ ")
    assert not shell.raw


def test_ctrl_z_is_just_a_key_for_a_program_that_reads_keys(shell: Screen) -> None:
    shell.type(
        typed(
            "sh", "-c", "'stty raw -echo; echo rea''dy; dd bs=1 count=1 | od -An -tx1; stty sane'"
        )
    )
    shell.see("ready")
    shell.type("\x1a")
    shell.see(" 1a")
    shell.see("$ ")


def test_a_job_in_the_background_is_not_stopped_by_the_terminal(shell: Screen) -> None:
    shell.type(typed("sh", "-c", "'sleep 0.3; echo fini''shed'").rstrip("\r") + " &\r")
    shell.see("$ ")
    assert not shell.raw
    shell.type("wait $!; echo status=$?\r")
    shell.see("status=0")
    assert b"finished" in shell.seen  # before the prompt or after it


def test_a_job_brought_to_the_foreground_gets_the_keys(shell: Screen) -> None:
    shell.type(typed("sh", "-c", "'read line; echo got $line'").rstrip("\r") + " &\r")
    shell.see("$ ")
    shell.type("fg\r")
    until(lambda: shell.raw)
    shell.type("this\r")
    shell.see("got this")
    shell.see("$ ")


def test_a_loop_of_commands_ends_when_ctrl_c_killed_one(shell: Screen) -> None:
    shell.type("for i in 1 2 3; do " + typed("sh", "-c", "'echo rea''dy; exec sleep 99'")[:-1])
    shell.type("; done; echo over\r")
    shell.see("ready")
    shell.type("\x03")
    shell.see("$ ")
    assert shell.seen.count(b"ready") == 1


# Pipes


def test_bytes_go_through_exactly_and_the_streams_stay_apart(target: Path) -> None:
    data = random.Random(3).randbytes(3 << 20)
    result = bare(target, "sh", "-c", "tee /dev/stderr", input=data)
    assert (result.returncode, result.stdout, result.stderr) == (0, data, data)


def test_both_streams_in_one_pipe_keep_their_order(target: Path) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo out$i; echo err$i >&2; done"
    wanted = "".join(f"out{i}\nerr{i}\n" for i in range(1, 10)).encode()
    command = [*RUN, "sh", "-c", script]
    result = subprocess.run(
        command, cwd=target, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True
    )
    assert result.stdout == wanted
    with tempfile.TemporaryFile() as file:
        subprocess.run(command, cwd=target, stdout=file, stderr=file, check=True)
        file.seek(0)
        assert file.read() == wanted


def test_what_is_written_comes_at_once_and_answers_can_be_given(target: Path) -> None:
    code = "import sys\nfor line in sys.stdin.buffer:\n sys.stdout.write('.');sys.stdout.flush()"
    with started(target, "python3", "-c", code) as process:
        assert process.stdin is not None and process.stdout is not None
        for _ in range(20):
            process.stdin.write(b"x\n")
            process.stdin.flush()
            assert process.stdout.read(1) == b"."  # no line end, and yet it is here
        process.stdin.close()
        assert process.wait(60) == 0


def test_much_input_goes_in_whole(target: Path) -> None:
    data = random.Random(4).randbytes(5 << 20)
    wanted = hashlib.sha256(data).hexdigest()
    assert wanted.encode() in bare(target, "sha256sum", input=data).stdout
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        assert wanted.encode() in bare(target, "sha256sum", stdin=file).stdout


def loop(body: str) -> str:
    return f'while read n; do echo "line $n"; {" ".join(RUN)} {body}; done'


@pytest.mark.parametrize("body", ["true", "head -c 2", "sh -c 'read x'"])
@pytest.mark.parametrize("source", ["pipe", "file"])
def test_a_loop_that_reads_lines_loses_none(target: Path, source: str, body: str) -> None:
    lines = "1\n2\n3\n"

    def run(script: str) -> subprocess.CompletedProcess[bytes]:
        if source == "pipe":
            argv = ["sh", "-c", f"printf '{lines}' | {{ {script}; }}"]
            return subprocess.run(argv, cwd=target, stdout=subprocess.PIPE, check=False)
        with tempfile.TemporaryFile() as file:
            file.write(lines.encode())
            file.seek(0)
            argv = ["sh", "-c", script]
            return subprocess.run(argv, cwd=target, stdin=file, stdout=subprocess.PIPE, check=False)

    ours, plain = run(loop(body)), run(loop(body).replace(" ".join(RUN), ""))
    # The last `read` finds nothing left, and its exit status is that of the loop.
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)


def test_what_a_command_leaves_of_much_input_is_there_for_the_next(target: Path) -> None:
    run = " ".join(RUN)
    script = f"{{ {run} head -c 5000 | wc -c; wc -c; }}"
    data = b"x" * 60_000  # more than one piece, less than what is exact
    result = subprocess.run(
        ["sh", "-c", f"cat | {script}"], input=data, cwd=target, capture_output=True, check=True
    )
    taken, left = map(int, result.stdout.split())
    assert taken == 5000 and left % 4096 in (55_000 % 4096, 60_000 % 4096)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        result = subprocess.run(
            ["sh", "-c", script], stdin=file, cwd=target, capture_output=True, check=True
        )
    assert sum(map(int, result.stdout.split())) <= 60_000


def test_a_reader_that_goes_away_ends_the_command_and_podbot_silently(target: Path) -> None:
    with started(target, "yes", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert signal_of(process.wait(60)) is signal.SIGPIPE
        assert process.stderr.read() == b""


def test_a_reader_that_goes_away_is_told_to_a_command_that_writes_later(target: Path) -> None:
    code = (
        "import os, select\nwatch = select.poll()\nwatch.register(1, 0)\n"
        "if watch.poll(60_000): os.write(2, b'told')\n"
        "try: os.write(1, b'late')\nexcept BrokenPipeError: os._exit(5)"
    )
    with started(target, "python3", "-c", code) as process:
        assert process.stdout and process.stderr
        process.stdout.close()  # it has written nothing yet, and will not before it knows
        assert process.stderr.read().startswith(b"told")  # by the command, then by podbot
        assert process.wait(60) == 5


def test_a_full_disk_is_said_and_is_no_success(target: Path) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [*RUN, "echo", "hello"], stdout=full, stderr=subprocess.PIPE, cwd=target, check=False
        )
    assert result.returncode == 125
    assert b"writing to stdout: No space left on device" in result.stderr


def test_sockets_serve_as_streams(target: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [*RUN, "tr", "a-z", "A-Z"], stdin=theirs, stdout=theirs, cwd=target
        )
        theirs.close()
        data = b"letters\n" * 50_000
        sender = threading.Thread(
            target=lambda: (ours.sendall(data), ours.shutdown(socket.SHUT_WR))
        )
        sender.start()
        got = b""
        while part := ours.recv(65536):
            got += part
        sender.join()
        assert process.wait(60) == 0
    assert got == data.upper()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "< /dev/null"])
def test_closed_and_odd_streams_do_no_harm(target: Path, closed: str) -> None:
    script = f"{' '.join(RUN)} sh -c 'cat; echo out; echo err >&2; exit 4' {closed}"
    result = subprocess.run(["sh", "-c", script], cwd=target, capture_output=True, check=False)
    assert result.returncode == 4
    assert b"Traceback" not in result.stderr


def test_a_folder_as_stdin_is_empty(sandbox: OverlaySandbox, target: Path) -> None:
    folder = os.open(target, os.O_RDONLY)
    assert attach(sandbox, ops.command(["cat"], None, None), Streams(folder)) == Ending(0)
    os.close(folder)


def test_flags_of_shared_descriptors_are_left_alone(target: Path) -> None:
    ends = [os.pipe() for _ in range(3)]
    (stdin, feed), (out, stdout), (err, stderr) = ends
    os.write(feed, b"x" * 1000)
    os.close(feed)
    code = "import sys, time; print(end=sys.stdin.read(), flush=True); time.sleep(0.3)"
    process = subprocess.Popen(
        [*RUN, "python3", "-c", code], stdin=stdin, stdout=stdout, stderr=stderr, cwd=target
    )
    assert len(os.read(out, 2000)) == 1000
    assert not any(is_nonblocking(fd) for fd in (stdin, stdout, stderr))
    assert process.wait(60) == 0
    assert not any(is_nonblocking(fd) for fd in (stdin, stdout, stderr))
    for fd in (stdin, out, stdout, err, stderr):
        os.close(fd)


def test_no_descriptor_of_the_caller_gets_inside(target: Path) -> None:
    # With the caller's own pipe one could write into what others read from it.
    with started(target, "sh", "-c", "read x; readlink /proc/self/fd/*; exit 0") as process:
        assert process.stdin and process.stdout and process.stderr
        names = {os.readlink(f"/proc/self/fd/{each.fileno()}")
                 for each in (process.stdin, process.stdout, process.stderr)}  # fmt: skip
        out, err = process.communicate(b"go\n", timeout=60)
    found = set(re.findall(r"pipe:\[\d+\]", out.decode()))
    assert found and not found & names, (found, names, err)


def test_a_command_of_run_has_three_descriptors_and_no_more(target: Path) -> None:
    script = (
        "import os; print([fd for fd in range(1 << 16) if os.path.exists(f'/proc/self/fd/{fd}')])"
    )
    result = subprocess.run(
        [*RUN, "python3", "-I", "-S", "-c", script],
        cwd=target,
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        check=True,
    )

    assert result.stdout == "[0, 1, 2]\n"


def test_what_a_command_leaves_in_the_background_is_not_waited_for(target: Path) -> None:
    result = bare(target, "sh", "-c", "sleep 1000 & echo done; yes > /dev/null & exit 6")
    assert (result.returncode, result.stdout) == (6, b"done\n")


def test_all_that_was_written_comes_out_though_others_hold_the_pipe(target: Path) -> None:
    result = bare(target, "sh", "-c", "sleep 1000 & head -c 200000 /dev/zero; exit 0")
    assert len(result.stdout) == 200_000


def test_a_terminal_held_in_the_background_is_let_go(target: Path) -> None:
    script = "sleep 1000 & head -c 50000 /dev/zero | tr '\\0' x; echo over"
    with Screen([*RUN, "sh", "-c", script], cwd=target) as screen:
        assert screen.end() == 0
        assert screen.seen.count(b"x") == 50_000 and b"over" in screen.seen


@pytest.mark.parametrize("busy", ["podbot", "the reader"])
def test_a_busy_machine_loses_nothing_of_a_terminal_held_in_the_background(
    sandbox: OverlaySandbox, monkeypatch: pytest.MonkeyPatch, busy: str
) -> None:
    near, far = os.openpty()
    seen = b""
    if busy == "podbot":
        Clock(monkeypatch).step = 1.0  # a second goes by between any two looks at the clock
    else:
        monkeypatch.setattr(attaching, "LINGER_SECONDS", 0.001)  # it is slow in comparison
    script = "trap '' HUP; sleep 1000 & head -c 50000 /dev/zero | tr '\\0' x; echo over"
    thread, told = in_thread(sandbox, ["sh", "-c", script], Streams(far, far, far))
    while (alive := thread.is_alive()) or select.select([near], [], [], 0)[0]:
        if alive and busy == "the reader":
            time.sleep(0.01)
        if select.select([near], [], [], 0.01)[0]:
            seen += os.read(near, 65536)
    for fd in (near, far):
        os.close(fd)
    assert told == [Ending(0, plain=True)]
    assert seen.count(b"x") == 50_000 and seen.endswith(b"over\r\n")


# Exit status and signals


@pytest.mark.parametrize("code", [0, 1, 2, 125, 130, 137, 255])
def test_the_exit_status_is_the_commands_own(sandbox: OverlaySandbox, code: int) -> None:
    command = ops.command(["sh", "-c", f"exit {code}"], None, None)
    assert attach(sandbox, command) == Ending(code)


@pytest.mark.parametrize("name", ["KILL", "SEGV", "TERM", "ABRT", "USR1", "HUP"])
def test_a_death_by_signal_is_told_from_an_exit_status(sandbox: OverlaySandbox, name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    command = ops.command(["sh", "-c", f"kill -{name} $$"], None, None)
    assert attach(sandbox, command) == Ending(128 + number, signal=number)


@pytest.mark.parametrize("name", ["KILL", "SEGV", "QUIT", "TERM"])
def test_podbot_dies_as_the_command_did(target: Path, name: str) -> None:
    result = bare(target, "sh", "-c", f"kill -{name} $$")
    assert signal_of(result.returncode) is signal.Signals[f"SIG{name}"]
    assert not list(target.glob("core*"))


def test_a_command_that_is_not_there_or_not_executable(target: Path) -> None:
    missing = bare(target, "no-such-command")
    assert missing.returncode == 127 and b"no-such-command" in missing.stderr
    plain = bare(target, "/etc/passwd")
    assert plain.returncode == 126 and b"/etc/passwd" in plain.stderr


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"])
def test_signals_go_to_the_commands_group(target: Path, name: str) -> None:
    # The second process of the group gets it too, as from a terminal or from `kill -- -group`.
    child = f'trap "echo child; exit" {name}; echo ready; while :; do sleep 0.05; done'
    script = f"trap 'echo parent; exit 9' {name}; sh -c '{child}'; sleep 60"
    with started(target, "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.1)
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert process.wait(60) == 9
        assert sorted(process.stdout.read().split()) == [b"child", b"parent"]


def test_a_second_ctrl_c_kills_what_would_not_end(target: Path) -> None:
    script = "trap 'echo no' INT; echo ready; while :; do sleep 0.05; done"
    with started(target, "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"no\n"
        process.send_signal(signal.SIGINT)
        assert signal_of(process.wait(60)) is signal.SIGKILL


def test_an_ignored_signal_stays_ignored(target: Path) -> None:
    argv = ["sh", "-c", f"trap '' HUP; exec {' '.join(RUN)} sh -c 'echo ready; read x; exit 3'"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=target, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
        process.stdin.write(b"x\n")
        process.stdin.close()
        assert process.wait(60) == 3


def test_stopping_and_continuing_podbot_does_so_with_the_command(target: Path) -> None:
    script = f"echo ready; exec sleep {marker(2)}"
    # A group of its own, below us: the kernel does not stop one that nobody could continue.
    with started(target, "sh", "-c", script, process_group=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        until(lambda: bool(by_marker(marker(2))))
        (inside,) = by_marker(marker(2))
        process.send_signal(signal.SIGTSTP)
        until(lambda: state(process.pid) == "T" and state(inside) == "T")
        process.send_signal(signal.SIGCONT)
        until(lambda: state(inside) == "S")
        process.send_signal(signal.SIGTERM)
        assert signal_of(process.wait(60)) is signal.SIGTERM


def test_who_is_told_to_end_does_not_wait_for_a_reader_that_does_not_read(target: Path) -> None:
    with started(target, "sh", "-c", "echo ready >&2; exec yes") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stderr.readline() == b"ready\n"
        time.sleep(0.3)  # all pipes are full by now
        process.send_signal(signal.SIGTERM)
        assert signal_of(process.wait(60)) is signal.SIGTERM


def test_out_of_time(target: Path) -> None:
    result = subprocess.run(
        [*PODBOT, "run", "--timeout", "0.3", "--", "sleep", "1000"],
        cwd=target, capture_output=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (124, b"")


def test_what_was_written_before_the_time_was_out_is_passed_on(
    sandbox: OverlaySandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    read, write = os.pipe()
    # It says something now and then, so that the clock is looked at.
    script = "trap 'echo ended; exit' TERM; echo begun; while sleep 0.05; do echo; done"
    thread, told = in_thread(sandbox, ["sh", "-c", script], Streams(0, write, write), timeout=1000)
    assert os.read(read, 6) == b"begun\n"
    clock.ahead = 1000
    thread.join(60)
    os.close(write)
    assert told == [Ending(124, timed_out=True)]
    assert os.read(read, 65536).endswith(b"ended\n")
    os.close(read)


def test_who_will_not_end_in_time_is_killed(
    sandbox: OverlaySandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "KILL_SECONDS", 0.2)
    clock = Clock(monkeypatch)
    script = f"trap '' TERM; setsid sleep {marker(3)} & while sleep 0.05; do echo; done"
    read, write = os.pipe()
    thread, told = in_thread(sandbox, ["sh", "-c", script], Streams(0, write, 2), timeout=1000)
    # Something arrives: the command is followed, and the clock has begun.
    assert os.read(read, 1) == b"\n"
    until(lambda: bool(by_marker(marker(3))))
    assert os.read(read, 1) == b"\n"  # what is passed on shows that its time has begun to run
    clock.ahead = 1000
    thread.join(60)
    for fd in (read, write):
        os.close(fd)
    assert told == [Ending(124, timed_out=True)]
    until(lambda: not by_marker(marker(3)))


# For library users


def test_in_another_thread_no_signal_is_taken(sandbox: OverlaySandbox) -> None:
    before = signal.getsignal(signal.SIGINT)
    read, write = os.pipe()
    thread, told = in_thread(sandbox, ["sh", "-c", "echo hello"], Streams(0, write, write))
    thread.join(60)
    os.close(write)
    assert told == [Ending(0)]
    assert os.read(read, 100) == b"hello\n"
    os.close(read)
    assert signal.getsignal(signal.SIGINT) is before


def test_handlers_and_descriptors_are_as_before(sandbox: OverlaySandbox) -> None:
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    descriptors = set(os.listdir("/proc/self/fd"))
    for argv in (["true"], ["no-such-command"], ["sh", "-c", "kill -9 $$"]):
        attach(sandbox, ops.command(argv, None, None))
    with pytest.raises(SandboxError) as caught:
        attach(sandbox, ops.command(["true"], "/no/such/folder", None))
    assert caught.value.kind is Kind.BAD_CWD
    # Something of an earlier test may have gone away meanwhile.
    until(lambda: set(os.listdir("/proc/self/fd")) <= descriptors)
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers


def test_a_sandbox_that_is_lost_raises(target: Path) -> None:
    with OverlaySandbox(target, discard=True) as sandbox:
        read, write = os.pipe()
        thread, told = in_thread(sandbox, ["sh", "-c", "echo x; sleep 999"], Streams(0, write, 2))
        assert os.read(read, 10) == b"x\n"
        sandbox.close()
        thread.join(60)
        for fd in (read, write):
            os.close(fd)
    assert len(told) == 1 and isinstance(told[0], SandboxError)


def test_backends_without_descriptors_refuse(tmp_path: Path) -> None:
    with MemorySandbox() as sandbox, pytest.raises(SandboxError) as caught:
        attach(sandbox, ops.command(["true"], None, None))
    assert caught.value.kind is Kind.UNSUPPORTED
    with LocalSandbox(tmp_path) as local:
        assert attach(local, ops.command(["sh", "-c", "exit 3"], None, None)) == Ending(3)


@pytest.mark.parametrize("sent", ["nothing", "a file", "another device", "two"])
def test_a_guest_can_hand_over_nothing_but_a_terminal(sent: str, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    near, far = os.openpty()
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    given = {"nothing": [], "a file": [file], "another device": [far], "two": [near, near]}[sent]
    with ours, theirs:
        socket.send_fds(theirs, [b"-"], given)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(GuestLostError) as caught:
            joined._terminal(ours)
        assert caught.value.kind is Kind.PROTOCOL
        assert len(os.listdir("/proc/self/fd")) <= before
    for fd in (near, far, file):
        os.close(fd)


def test_the_near_end_of_a_terminal_is_taken() -> None:
    ours, theirs = socket.socketpair()
    near, far = os.openpty()
    with ours, theirs:
        socket.send_fds(theirs, [b"-"], [near])
        taken = joined._terminal(ours)
    os.write(taken, b"x\n")
    assert select.select([far], [], [], 60)[0]
    for fd in (near, far, taken):
        os.close(fd)
