"""`podbot ps`, `exec`, `stop` and `gc` against a real engine, as a person would use them.

The engine here has no containers but those of these tests: `stop --all` and `gc` mean all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import services
from screen import PATIENCE, PODBOT, Screen, by_marker, until
from services import Service

pytestmark = [pytest.mark.e2e, pytest.mark.podman]

# A sandbox with a process in it that can be told by its name, from outside too.
OWNER = """
import sys, podbot.sandbox
sandbox = podbot.sandbox.open("container", name=sys.argv[1], image=sys.argv[2])
sandbox.spawn(["sleep", sys.argv[3]])
print("ready", flush=True)
sys.stdin.read()
sandbox.close()
"""
# A container that does not end with whoever made it.
LEAVER = """
import sys
from podbot import engine
with engine.connect() as podman:
    spec = engine.ContainerSpec(sys.argv[2], ("sleep", sys.argv[3]), name=sys.argv[1])
    made = podman.containers.create(spec)
    podman.containers.start(made.id)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def alone() -> Iterator[Service]:
    """An engine of this file's own."""
    kind = next(kind for kind in services.served() if kind in ("rootful", "rootless"))
    with services.start_or_skip(kind, alone=True) as service:
        yield service


@pytest.fixture(autouse=True)
def uses_it(alone: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in alone.environment.items():
        monkeypatch.setenv(name, value)
    yield
    # Some are on their way out by themselves, which makes the command fail.
    until(lambda: _removed(alone))


def _removed(alone: Service) -> bool:
    alone.cli("rm", "--all", "--force", "--time=0", check=False)
    return not alone.containers()


class Owner:
    """A process with a container, and the words that name the two."""

    def __init__(self, service: Service, program: str):
        self.name = f"e2e-{uuid.uuid4().hex[:8]}"
        self.marker = f"{10**9 + uuid.uuid4().int % 10**9}"  # seconds to sleep
        command = [sys.executable, "-c", program, self.name, service.image, self.marker]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        # Podman's own children have the marker too; inside it is the last word of `sleep`.
        until(self.inside)

    def inside(self) -> list[int]:
        """What runs in the container for it."""
        found = []
        for pid in by_marker(self.marker):
            words = _words(pid)
            if words and os.path.basename(words[0]) == "sleep":
                found.append(pid)
        return found

    def kill(self) -> None:
        """As the kernel does when memory runs out."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


@contextmanager
def owning(service: Service, program: str = OWNER) -> Iterator[Owner]:
    with ExitStack() as stack:
        owner = Owner(service, program)
        for stream in (owner.process.stdin, owner.process.stdout):
            assert stream is not None
            stack.callback(stream.close)
        stack.callback(owner.process.wait)
        stack.callback(owner.process.kill)
        yield owner


def podbot(*words: str, stdin: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [*PODBOT, *words], input=stdin, capture_output=True, check=False, timeout=300
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def listed() -> dict[str, dict[str, object]]:
    told = json.loads(podbot("ps", "--json").stdout)
    return {container["name"]: container for container in told["containers"]}


def test_ps_tells_of_podbots_containers_and_of_no_other(alone: Service) -> None:
    alone.cli("run", "--detach", "--name=theirs", "--network=none", alone.image, "sleep", "100")
    with owning(alone) as owner:
        found = listed()

        assert set(found) == {owner.name}
        container = found[owner.name]
        assert container["status"] == "running"
        assert container["owner"] == {"pid": owner.process.pid, "state": "alive"}
        shown = podbot("ps").stdout.decode()
        assert owner.name in shown and f"pid {owner.process.pid}" in shown
        refused = podbot("stop", "theirs", code=2).stderr.decode()
        assert "podbot did not make it" in refused
    assert "theirs" in alone.cli("ps", "--format={{.Names}}")


def test_exec_hands_through_bytes_and_exit_codes(alone: Service) -> None:
    with owning(alone) as owner:
        data = os.urandom(300_000)
        assert podbot("exec", owner.name, "--", "cat", stdin=data).stdout == data

        done = podbot("exec", owner.name, "--", "sh", "-c", "echo a; echo b >&2; exit 7", code=7)
        assert (done.stdout, done.stderr) == (b"a\n", b"b\n")
        podbot("exec", owner.name, "--", "sh", "-c", "kill -9 $$", code=137)
        podbot("exec", owner.name, "--", "no-such-command", code=127)
        podbot("exec", owner.name, "--", "/etc/passwd", code=126)
        podbot("exec", "no-such-container", "--", "true", code=125)

        detached = podbot(
            "exec", owner.name, "--detach", "--", "sh", "-c", "echo a; exit 3", code=3
        )
        assert detached.stdout == b""
        script = 'echo "$WORD" && pwd && test ! -t 1'
        done = podbot("exec", "--env=WORD=x", "--workdir=/usr", owner.name, "sh", "-c", script)
        assert done.stdout == b"x\n/usr\n"


def test_exec_has_a_terminal_whose_size_follows_the_callers(alone: Service, tmp_path: Path) -> None:
    script = "test -t 0 && test -t 1 && echo ready; while read line; do stty size; done; exit 5"

    def sees(screen: Screen, rows: str, columns: str) -> None:
        """Ask for the size until it is this one: it takes its way through the engine."""
        size: bytes | None = None
        deadline = time.monotonic() + PATIENCE
        while size != f"{rows} {columns}".encode():
            assert time.monotonic() < deadline, size
            screen.type("\n")
            screen.see("\n")  # the echo
            size = screen.see("\n").strip()

    with owning(alone) as owner:
        argv = [*PODBOT, "exec", owner.name, "--", "sh", "-c", script]
        with Screen(argv, cwd=tmp_path, rows=33, columns=77) as screen:
            screen.see("ready")
            screen.see("\n")
            assert screen.raw
            sees(screen, "33", "77")
            screen.resize(20, 60)
            sees(screen, "20", "60")
            screen.type("\x04")
            assert screen.end() == 5
            assert screen.modes == screen.before


def test_exec_has_no_terminal_if_one_end_is_a_pipe(alone: Service, tmp_path: Path) -> None:
    with owning(alone) as owner:
        argv = [*PODBOT, "exec", owner.name, "--", "sh", "-c", "test -t 0 || test -t 1"]
        near, far = os.pipe()
        try:
            with Screen(argv, cwd=tmp_path, stdin=near) as screen:
                os.close(far)
                far = -1
                assert screen.end() == 1
        finally:
            for fd in (near, far):
                if fd >= 0:
                    os.close(fd)


def test_stop_ends_a_container_and_everything_in_it(alone: Service) -> None:
    with owning(alone) as stopped, owning(alone) as other:
        id = str(listed()[stopped.name]["id"])

        done = podbot("stop", id[:12])

        assert stopped.name in done.stdout.decode()
        until(lambda: not stopped.inside())
        until(lambda: alone.containers() == [str(listed()[other.name]["id"])])
        assert other.inside()
        assert b"no container" in podbot("stop", stopped.name, code=2).stderr


def test_stop_all_ends_every_container_of_podbots_and_no_other(alone: Service) -> None:
    alone.cli("run", "--detach", "--name=theirs", "--network=none", alone.image, "sleep", "100")
    with owning(alone) as one, owning(alone, LEAVER) as two:
        told = json.loads(podbot("stop", "--all", "--json").stdout)

        assert {each["name"] for each in told["stopped"]} == {one.name, two.name}
        until(lambda: not one.inside() and not two.inside())
        until(lambda: not alone.containers("label=podbot.owner"))
        assert alone.cli("ps", "--all", "--format={{.Names}}").split() == ["theirs"]


def test_gc_removes_containers_of_dead_owners_and_never_of_live_ones(alone: Service) -> None:
    with owning(alone, LEAVER) as dead, owning(alone, LEAVER) as living:
        podbot("gc")
        assert set(listed()) == {dead.name, living.name}
        dead.kill()
        assert dead.inside()  # nobody else ends it
        assert listed()[dead.name]["owner"] == {"pid": dead.process.pid, "state": "dead"}

        would = podbot("gc", "--dry-run").stdout.decode()
        assert f"would remove  container {dead.name}" in would
        assert dead.inside()
        done = podbot("gc").stdout.decode()

        assert f"removed  container {dead.name}" in done
        assert f"in use   container {living.name}" in done
        until(lambda: not dead.inside())
        assert set(listed()) == {living.name} and living.inside()


def test_nothing_is_left_of_a_sandbox_whose_owner_was_killed(alone: Service) -> None:
    with owning(alone) as owner:
        owner.kill()

        podbot("gc")

        until(lambda: not owner.inside())
        until(lambda: not alone.containers("label=podbot.owner"))
        until(lambda: not by_marker(owner.marker))
