"""What ends `podbot exec` ends its command, on real engines: nothing of it goes on inside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from screen import PODBOT, Screen, until

from podbot.engine import Engine, ExecSpec

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.podman,
    pytest.mark.engines("rootful", "rootless", "docker", "runsc"),
]

# As if the engine were elsewhere: nothing of it is found on this machine.
FROM_AFAR = """
import sys
from podbot.cli import main
from podbot.engine import signalling
signalling._here = lambda *_: False
sys.exit(main(sys.argv[1:]))
"""
WAYS = {"here": PODBOT, "from afar": (sys.executable, "-c", FROM_AFAR)}


def started(name: str, *argv: str, way: str = "here", **given: object) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    streams = {"stdin": pipe, "stdout": pipe, "stderr": pipe, **given}
    return subprocess.Popen([*WAYS[way], "exec", name, "--", *argv], **streams)  # type: ignore[call-overload,no-any-return]


def inside(opened: Engine, name: str, program: str) -> bool:
    """Whether it runs in the container."""
    script = "grep -lsa . /proc/[0-9]*/cmdline | xargs cat | tr '\\0' '\\n'"
    done = opened.execs.run(name, ExecSpec(("sh", "-c", script)), seconds=60)
    return program.encode() in done.stdout.split(b"\n")


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_whole_group(
    opened: Engine, name: str, number: signal.Signals, way: str
) -> None:
    with started(name, "sh", "-c", "echo ready; sleep 4321; echo late", way=way) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        until(lambda: inside(opened, name, "4321"))
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
    until(lambda: not inside(opened, name, "4321"))


@pytest.mark.parametrize("way", list(WAYS))
def test_a_second_ctrl_c_kills_it_with_all_it_started(opened: Engine, name: str, way: str) -> None:
    script = "trap 'echo no' INT; setsid sleep 4322 & echo ready; while :; do sleep 0.05; done"
    with started(name, "sh", "-c", script, way=way) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        until(lambda: inside(opened, name, "4322"))
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"no\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGKILL
    until(lambda: not inside(opened, name, "4322"))


def test_a_reader_that_is_gone_ends_it(opened: Engine, name: str) -> None:
    with started(name, "yes", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.wait(60) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
    until(lambda: not inside(opened, name, "yes"))


def test_a_reader_that_does_not_read_keeps_nobody_from_ending(opened: Engine, name: str) -> None:
    # It writes only once its word has come: both go through one stream, and might change places.
    with started(name, "sh", "-c", "echo ready >&2; read go; exec yes") as process:
        assert process.stdin is not None and process.stderr is not None
        assert process.stderr.readline() == b"ready\n"
        process.stdin.write(b"go\n")
        process.stdin.flush()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    until(lambda: not inside(opened, name, "yes"))


# The terminals of the gVisor that Debian 12 has send no signals.
@pytest.mark.engines("rootful", "rootless", "docker")
@pytest.mark.parametrize("how", ["SIGTERM", "a key", "a closed window"])
def test_what_ends_it_on_a_terminal(opened: Engine, name: str, how: str, tmp_path: Path) -> None:
    argv = [*PODBOT, "exec", name, "--", "sh", "-c", "echo ready; sleep 4323; echo late"]
    with Screen(argv, cwd=tmp_path) as screen:
        screen.see("ready")
        until(lambda: inside(opened, name, "4323"))
        assert screen.raw
        if how == "a closed window":
            screen.unplug()
            screen.process.wait(60)
        else:
            if how == "a key":
                screen.type("\x03")
            else:
                os.kill(screen.process.pid, signal.SIGTERM)
            assert screen.end() == 128 + (signal.SIGINT if how == "a key" else signal.SIGTERM)
            assert screen.modes == screen.before
    until(lambda: not inside(opened, name, "4323"))
