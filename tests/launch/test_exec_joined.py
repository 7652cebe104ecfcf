"""`podbot exec` joins its command to streams as `podbot run` does, through a container's engine.

The engine is a stand-in that runs commands as processes of this machine; tests/e2e has real ones.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from screen import PODBOT, Screen, by_marker, is_nonblocking, signal_of, state, until
from service_of_containers import ServiceOfContainers, container, reply, running
from standin import Asked

from podbot import api
from podbot.engine import ExecSpec, connect, labels, signalling
from podbot.errors import ContainerError, Kind
from podbot.launch import _in_container
from podbot.launch._flow import waiting
from podbot.sandbox.joined import FarEnds

EXEC = (*PODBOT, "exec", "one", "--")
pytestmark = pytest.mark.usefixtures("service")


def marker(number: int) -> str:
    """How long a command is to sleep: so that nobody else on the machine sleeps so long."""
    return f"87654.{os.getpid()}{number}"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceOfContainers]:
    with running() as made:
        monkeypatch.setenv("PODBOT_ENGINE_SOCKET", made.url)
        made.containers = [container("one", labels.owner_label())]
        yield made


@contextmanager
def started(*argv: str, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """`podbot exec` in the background, with all three streams on pipes."""
    pipe = subprocess.PIPE
    streams = {"stdin": pipe, "stdout": pipe, "stderr": pipe, **options}
    with subprocess.Popen([*EXEC, *argv], **streams) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


# Signals


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"])
def test_signals_go_to_the_commands_group(name: str) -> None:
    # The second process of the group gets it too, as from a terminal.
    child = f'trap "echo child; exit" {name}; echo ready; while :; do sleep 0.05; done'
    script = f"trap 'echo parent; exit 9' {name}; sh -c '{child}'; sleep 60"
    with started("sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert process.wait(60) == 9
        assert sorted(process.stdout.read().split()) == [b"child", b"parent"]


def test_what_runs_inside_does_not_outlive_a_signal_to_end() -> None:
    script = f"echo ready; sleep {marker(1)}; echo late"
    with started("sh", "-c", script) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        until(lambda: bool(by_marker(marker(1))))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
    until(lambda: not by_marker(marker(1)))


def test_a_second_ctrl_c_kills_what_would_not_end_with_all_it_started() -> None:
    script = (
        f"trap 'echo no' INT; setsid sleep {marker(2)} & echo ready; while :; do sleep 0.05; done"
    )
    with started("sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        until(lambda: bool(by_marker(marker(2))))
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"no\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGKILL
    until(lambda: not by_marker(marker(2)))


def test_stopping_and_continuing_podbot_does_so_with_the_command() -> None:
    # A group of its own, below us: the kernel does not stop one that nobody could continue.
    with started("sh", "-c", f"echo ready; exec sleep {marker(3)}", process_group=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        until(lambda: len(by_marker(marker(3))) == 1)
        (inside,) = by_marker(marker(3))
        process.send_signal(signal.SIGTSTP)
        until(lambda: state(process.pid) == "T" and state(inside) == "T")
        process.send_signal(signal.SIGCONT)
        until(lambda: state(inside) == "S")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


def test_a_signal_that_finds_no_way_is_not_lost_in_silence(
    service: ServiceOfContainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing runs: it is found nowhere, and the container has no shell to look for it.
    monkeypatch.setattr(signalling, "_here", lambda *_: False)
    service.on(r"POST .*/exec/e0/start", lambda connection, _: _held(connection))
    service.on(r"POST .*/exec/e1/start", lambda connection, _: _said(connection, b""))
    service.on(r"GET .*/exec/e1/json", reply({"Running": False, "ExitCode": 127, "Pid": 0}))
    ends = [*os.pipe(), *os.pipe()]
    with connect() as engine:
        job = _in_container.start(
            engine, "one", ExecSpec(("cmd",)), FarEnds(ends[0], ends[3], ends[3])
        )
        job.signal(signal.SIGTERM)
        with pytest.raises(ContainerError) as caught:
            job.ending()
    for fd in ends:
        os.close(fd)
    assert caught.value.kind is Kind.UNSUPPORTED
    assert "cannot be sent a signal: there is no sh" in caught.value.message
    assert "podbot stop" in (caught.value.remedy or "")


def _held(connection: socket.socket) -> None:
    """A command that runs until its connection is closed."""
    connection.sendall(b"HTTP/1.1 101 UPGRADED\r\n\r\n")
    connection.recv(1)


def _said(connection: socket.socket, data: bytes) -> None:
    connection.sendall(b"HTTP/1.1 101 UPGRADED\r\n\r\n" + data)


def test_only_what_has_the_mark_gets_a_signal() -> None:
    spec = signalling.marked(ExecSpec(("x",)))
    assert spec.env[signalling.VARIABLE] != signalling.marked(spec).env[signalling.VARIABLE]
    mark = f"{signalling.VARIABLE}={spec.env[signalling.VARIABLE]}"
    longer = {signalling.VARIABLE: spec.env[signalling.VARIABLE] + "0"}
    with (
        subprocess.Popen(["sleep", "60"], env=dict(spec.env), start_new_session=True) as ours,
        subprocess.Popen(["sleep", "60"], env=longer, start_new_session=True) as other,
    ):
        until(lambda: signalling._here(mark.encode(), signal.SIGTERM, False))
        assert signal_of(ours.wait(60)) is signal.SIGTERM
        assert not signalling._here(mark.encode(), signal.SIGTERM, True)
        assert other.poll() is None
        other.kill()


# Readers that go away


def test_a_reader_that_goes_away_ends_the_command_silently() -> None:
    with started("yes", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.wait(60) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""


def test_who_does_not_heed_that_its_reader_is_gone_is_told_to_end(
    service: ServiceOfContainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_in_container, "UNREAD", ((0.0, signal.SIGPIPE), (0.0, signal.SIGTERM)))
    read, write = os.pipe()
    os.close(read)
    request = api.ExecRequest(
        "one", ("sh", "-c", "trap '' PIPE; while :; do sleep 0.02; echo; done")
    )
    with open(os.devnull, "rb") as null:
        assert api.exec(request, api.Streams(null.fileno(), write, 2)) == 128 + signal.SIGTERM
    os.close(write)


def test_a_full_disk_is_said_and_is_no_success() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*EXEC, "echo", "hello"],
            stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 125
    assert b"writing to stdout: No space left on device" in done.stderr


# Bytes


def test_bytes_go_through_exactly_and_the_streams_stay_apart() -> None:
    data = random.Random(5).randbytes(3 << 20)
    done = subprocess.run(
        [*EXEC, "tee", "/dev/stderr"], input=data, capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, data, data)


@pytest.mark.parametrize("source", ["pipe", "file"])
def test_much_input_goes_in_whole(source: str) -> None:
    data = random.Random(6).randbytes(5 << 20)
    wanted = hashlib.sha256(data).hexdigest().encode()
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        given: dict[str, object] = {"input": data} if source == "pipe" else {"stdin": file}
        done = subprocess.run(  # type: ignore[call-overload]
            [*EXEC, "sha256sum"], capture_output=True, check=True, timeout=60, **given
        )
    assert wanted in done.stdout


def test_a_slow_reader_slows_the_command(tmp_path: Path) -> None:
    counted = tmp_path / "count"
    counted.touch()
    script = (
        f"import os\ncount = os.open({str(counted)!r}, os.O_WRONLY)\n"
        "for n in range(400):\n    os.write(1, b'x' * 65536)\n    os.pwrite(count, b'%d' % n, 0)"
    )
    with started("python3", "-c", script, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        seen, silent = b"", 0
        while silent < 20:  # until it writes no more, though nobody told it
            before, seen = seen, counted.read_bytes()
            silent = silent + 1 if seen and seen == before else 0
            threading.Event().wait(0.05)
        assert int(seen) < 100  # some 6 MB; a few buffers are on the way
        assert len(process.stdout.read()) == 400 * 65536
        assert process.wait(60) == 0


def test_flags_of_shared_descriptors_are_left_alone() -> None:
    (stdin, feed), (out, stdout) = os.pipe(), os.pipe()
    with started("cat", stdin=stdin, stdout=stdout) as process:
        os.write(feed, b"x")
        assert os.read(out, 10) == b"x"
        assert not is_nonblocking(stdin) and not is_nonblocking(stdout)
        os.close(feed)
        assert process.wait(60) == 0
    for fd in (stdin, out, stdout):
        os.close(fd)


def test_an_input_the_caller_does_not_have_is_an_empty_one(
    capfd: pytest.CaptureFixture[str],
) -> None:
    request = api.ExecRequest("one", ("sh", "-c", "cat; exit 4"))
    assert api.exec(request, api.Streams(stdin=990)) == 4


# Terminals


def test_a_terminal_is_one_inside_too_and_keys_go_through(tmp_path: Path) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && stty size; trap 'echo caught; exit 7' INT;"
    script += "echo ready; while :; do sleep 0.05; done"
    with Screen([*EXEC, "sh", "-c", script], cwd=tmp_path, rows=33, columns=44) as screen:
        screen.see("ready")
        assert screen.raw
        screen.type("\x03")
        screen.see("caught")
        assert screen.end() == 7
        assert screen.modes == screen.before


def test_the_size_is_told_at_once_and_whenever_it_changes(
    service: ServiceOfContainers, tmp_path: Path
) -> None:
    service.on(r"POST .*/exec/[^/]+/resize", reply({"message": "not now"}, 500))  # no failure

    def sizes() -> list[str]:
        return [each.target.partition("?")[2] for each in service.asked if "/resize" in each.path]

    argv = [*EXEC, "sh", "-c", "echo ready; read x"]
    with Screen(argv, cwd=tmp_path, rows=33, columns=44) as screen:
        screen.see("ready")
        until(lambda: sizes() == ["h=33&w=44"])
        screen.resize(20, 60)
        until(lambda: sizes()[-1] == "h=20&w=60")
        screen.type("\r")
        assert screen.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_command_of_a_terminal_and_its_modes_come_back(
    tmp_path: Path, number: signal.Signals
) -> None:
    argv = [*EXEC, "sh", "-c", f"echo ready; exec sleep {marker(4)}"]
    with Screen(argv, cwd=tmp_path) as screen:
        screen.see("ready")
        screen.process.send_signal(number)
        assert screen.end() == 128 + number
        assert screen.modes == screen.before
    until(lambda: not by_marker(marker(4)))


def test_a_closed_window_ends_the_command(tmp_path: Path) -> None:
    argv = [*EXEC, "sh", "-c", f"echo ready; exec sleep {marker(5)}"]
    with Screen(argv, cwd=tmp_path) as screen:
        screen.see("ready")
        until(lambda: bool(by_marker(marker(5))))
        screen.unplug()
        screen.process.wait(60)
    until(lambda: not by_marker(marker(5)))


def test_modes_come_back_when_the_engine_goes_away(
    service: ServiceOfContainers, tmp_path: Path
) -> None:
    connections = []

    def start(connection: socket.socket, _: Asked) -> None:
        connections.append(connection)
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\n\r\nready")
        connection.recv(1)

    service.on(r"POST .*/exec/[^/]+/start", start)
    service.on(r"GET .*/exec/[^/]+/json", reply({"message": "gone"}, 500))
    with Screen([*EXEC, "sh"], cwd=tmp_path) as screen:
        screen.see("ready")
        assert screen.raw
        connections[0].shutdown(socket.SHUT_RDWR)
        assert screen.end() == 125
        assert screen.modes == screen.before


@pytest.mark.parametrize("elsewhere", ["stdin", "stdout"])
def test_only_two_terminals_make_one(elsewhere: str, tmp_path: Path) -> None:
    read, write = os.pipe()
    given = {"stdin": read} if elsewhere == "stdin" else {"stdout": write}
    argv = [*EXEC, "sh", "-c", "test -t 0 || test -t 1 || test -t 2 || exit 3"]
    with Screen(argv, cwd=tmp_path, **given) as screen:  # type: ignore[arg-type]
        os.close(write)
        assert screen.end() == 3
        assert screen.modes == screen.before
    os.close(read)


def test_who_is_told_to_end_does_not_wait_for_a_reader_that_does_not_read() -> None:
    # It writes only once its word has come: both go through one stream, and might change places.
    with started("sh", "-c", "echo ready >&2; read go; exec yes") as process:
        assert process.stdin is not None
        assert process.stdout is not None and process.stderr is not None
        assert process.stderr.readline() == b"ready\n"
        process.stdin.write(b"go\n")
        process.stdin.flush()
        held = -1
        while (held, held := waiting(process.stdout.fileno()))[0] != held or not held:
            threading.Event().wait(0.3)  # until all pipes are full
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
