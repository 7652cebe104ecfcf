"""A terminal that belongs to another user, as after `su`: it cannot be opened by its own name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from screen import until
from service_of_containers import container, running

import podbot
from podbot.engine import labels
from podbot.launch._flow import waiting

FILLS = """
import fcntl, os, signal, sys, termios
sys.path.insert(0, sys.argv[1])
from podbot.launch._flow import End

signal.alarm(60)  # who waits for a terminal that nobody reads waits for ever
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.fchmod(1, 0)  # nor may its owner open it now; root becomes somebody who is bound by that
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    os.open("/proc/self/fd/1", os.O_WRONLY | os.O_NOCTTY)
except PermissionError:
    print("closed to us", file=sys.stderr)
end = End.shared(1, os.O_WRONLY)
try:
    while True:
        end.write(memoryview(b"x" * 65536))
except BlockingIOError:
    print("full", file=sys.stderr)
print("shared:", os.get_blocking(1), file=sys.stderr, flush=True)
os._exit(0)
"""


def test_nothing_waits_for_it_when_its_screen_takes_no_more() -> None:
    screen, terminal = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", FILLS, str(Path(podbot.__file__).parent.parent)],
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            check=False,
        )
    finally:
        os.close(terminal)
        os.close(screen)

    assert done.returncode == 0, done
    assert done.stderr.splitlines() == ["closed to us", "full", "shared: True"]


# As whoever `su -c` or `sudo -u` made of us: with an inherited terminal that we may not open, and
# which need not even be the one that controls us.
JOINS = """
import fcntl, os, sys, termios
path, what, controls, url, folder, *words = sys.argv[1:]
sys.path.insert(0, path)
from podbot import api
from podbot.launch.attach import Streams, attach
from podbot.engine import connect
from podbot.sandbox import ops
from podbot.sandbox.local import LocalSandbox

on = Streams(0, 1, 1)
if what == "exec":
    engine = connect(url)
    join = lambda words, on: api.exec(api.ExecRequest("one", words, user="65534:65534"), on, engine)
else:
    sandbox = LocalSandbox(folder)
    join = lambda words, on: attach(sandbox, ops.command(words, None, None), on).exit_status
null = os.open("/dev/null", os.O_RDWR)
assert join(("true",), Streams(null, null, null)) == 0  # all is imported
if controls == "yes":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.fchmod(1, 0)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    os.open("/proc/self/fd/1", os.O_WRONLY | os.O_NOCTTY)
except PermissionError:
    os.write(2, b"closed to us\\n")
status = join(tuple(words), on)
assert os.get_blocking(0)
os._exit(status)
"""

both = pytest.mark.parametrize("what", ["run", "exec"])
controlling = pytest.mark.parametrize("controls", ["yes", "no"])


@pytest.fixture
def url() -> Iterator[str]:
    with running() as service:
        path = Path(service.url.removeprefix("unix://"))
        path.chmod(0o777)
        path.parent.chmod(0o755)
        service.containers = [container("one", labels.owner_label())]
        yield service.url


class Theirs:
    """A terminal, and a command that somebody else runs on it."""

    def __init__(self, folder: Path, url: str, what: str, controls: str, *words: str):
        self.near, self.far = os.openpty()
        self.before = termios.tcgetattr(self.far)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", JOINS, str(Path(podbot.__file__).parent.parent),
             what, controls, url, str(folder), *words],
            stdin=self.far, stdout=self.far, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        assert self.process.stderr.readline() == b"closed to us\n"
        self.seen = b""

    def see(self, text: bytes) -> None:
        while text not in self.seen:
            self.seen += os.read(self.near, 4096)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        for fd in (self.near, self.far):
            os.close(fd)


@contextmanager
def theirs(*given: object) -> Iterator[Theirs]:
    made = Theirs(*given)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.end()


@both
@controlling
def test_a_command_is_spoken_to_there_and_the_modes_come_back(
    tmp_path: Path, url: str, what: str, controls: str
) -> None:
    script = "stty -echo; echo ready; read line; echo got $line"
    with theirs(tmp_path, url, what, controls, "sh", "-c", script) as terminal:
        terminal.see(b"ready")
        os.write(terminal.near, b"this\r")
        terminal.see(b"got this")
        assert terminal.process.wait(60) == 0
        assert termios.tcgetattr(terminal.far) == terminal.before


@both
@controlling
def test_much_output_comes_out_whole(tmp_path: Path, url: str, what: str, controls: str) -> None:
    script = "head -c 100000 /dev/zero | tr '\\0' x; echo over"
    with theirs(tmp_path, url, what, controls, "sh", "-c", script) as terminal:
        terminal.see(b"over\r\n")
        assert terminal.seen.count(b"x") == 100_000
        assert terminal.process.wait(60) == 0


@both
@controlling
def test_it_is_not_deaf_while_the_screen_takes_no_more(
    tmp_path: Path, url: str, what: str, controls: str
) -> None:
    with theirs(tmp_path, url, what, controls, "yes") as terminal:
        held, before = 0, -1
        while not held or held != before:  # until its screen is full
            threading.Event().wait(0.3)
            held, before = waiting(terminal.near), held
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(60) == 128 + signal.SIGTERM
        assert termios.tcgetattr(terminal.far) == terminal.before


@both
@controlling
def test_it_is_not_deaf_while_nobody_types(
    tmp_path: Path, url: str, what: str, controls: str
) -> None:
    with theirs(tmp_path, url, what, controls, "sh", "-c", "echo ready; exec cat") as terminal:
        terminal.see(b"ready")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(60) == 128 + signal.SIGINT
        until(lambda: termios.tcgetattr(terminal.far) == terminal.before)
