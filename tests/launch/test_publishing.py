"""Ports of a sandbox at the host's loopback."""

from __future__ import annotations

import os
import resource
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cli_runs import PODBOT, workplace
from screen import until

from podbot.api import RunRequest
from podbot.errors import ConfigError, Kind, SandboxError
from podbot.sandbox import OverlaySandbox, Sandbox, publishing
from podbot.sandbox.publishing import Port, Publication, connected

ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])), family=int(sys.argv[3]))
print("listens", flush=True)
while True:
    line, _ = server.accept()
    while data := line.recv(65536):
        line.sendall(data)
    line.sendall(b" - and out")
    line.close()
"""


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


@pytest.fixture
def sandbox(project: Path) -> Iterator[OverlaySandbox]:
    with OverlaySandbox(project, discard=True) as sandbox:
        yield sandbox


def serve(
    sandbox: Sandbox, port: int, host: str = "127.0.0.1", family: int = socket.AF_INET
) -> None:
    """Have something inside send back what it is sent."""
    process = sandbox.spawn(["python3", "-c", ECHO, host, str(port), str(int(family))])
    assert process.stdout.read(timeout=60) == b"listens\n", process.stderr.read_all()


def exchange(address: tuple[str, int], data: bytes) -> bytes:
    """What comes back of some bytes."""
    with socket.create_connection(address, timeout=60) as line:
        sender = threading.Thread(target=lambda: (line.sendall(data), line.shutdown(1)))
        sender.start()
        parts = []
        while part := line.recv(65536):
            parts.append(part)
        sender.join()
        return b"".join(parts)


def test_what_listens_inside_is_reached_and_ends_like_any_connection(
    sandbox: OverlaySandbox,
) -> None:
    serve(sandbox, 3000)
    data = os.urandom(3_000_000)
    with Publication(sandbox, Port(3000, 0)) as published:
        assert published.address[0] == "127.0.0.1"
        assert exchange(published.address, data) == data + b" - and out"
        assert exchange(published.address, b"again") == b"again - and out"


def test_what_listens_for_version_6_alone_is_reached_too(sandbox: OverlaySandbox) -> None:
    if not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("/proc/net/if_inet6 is not installed")
    serve(sandbox, 3000, "::1", socket.AF_INET6)
    with Publication(sandbox, Port(3000, 0)) as published:
        assert exchange(published.address, b"six") == b"six - and out"


def test_a_port_where_nothing_listens_yet_is_there_once_something_does(
    sandbox: OverlaySandbox,
) -> None:
    with Publication(sandbox, Port(3000, 0)) as published:
        with socket.create_connection(published.address, timeout=60) as line:
            assert line.recv(1) == b""
        serve(sandbox, 3000)
        assert exchange(published.address, b"now") == b"now - and out"


def test_many_wait_for_their_turn(sandbox: OverlaySandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "MOST", 2)
    serve(sandbox, 3000)
    with Publication(sandbox, Port(3000, 0)) as published:
        found: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: found.append(exchange(published.address, b"x" * 9999)))
            for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == [b"x" * 9999 + b" - and out"] * 12


def test_closing_ends_what_goes_through_and_lets_go_of_the_port(sandbox: OverlaySandbox) -> None:
    serve(sandbox, 3000)
    before = len(os.listdir("/proc/self/fd"))
    published = Publication(sandbox, Port(3000, 0))
    with socket.create_connection(published.address, timeout=60) as line:
        line.sendall(b"x")
        assert line.recv(1) == b"x"
        published.close()
        published.close()
        assert line.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(published.address)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_after_the_sandbox_a_published_port_ends_connections(project: Path) -> None:
    with OverlaySandbox(project, discard=True) as sandbox:
        published = Publication(sandbox, Port(3000, 0))
    with published, socket.create_connection(published.address, timeout=60) as line:
        assert line.recv(1) == b""


def test_a_port_of_the_host_that_is_taken_is_refused_with_what_to_do(
    sandbox: OverlaySandbox,
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(SandboxError, match="cannot be had") as caught,
    ):
        Publication(sandbox, Port(3000, taken.getsockname()[1]))
    assert caught.value.kind is Kind.INVALID and "0:3000" in str(caught.value.remedy)
    assert caught.value.message.endswith("cannot be had: Address already in use")


@pytest.mark.parametrize(
    ("word", "port"),
    [("3000", Port(3000, 3000)), ("8080:3000", Port(3000, 8080)), ("0:1", Port(1, 0)),
     (3000, Port(3000, 3000)), (Port(1, 2), Port(1, 2))],
)  # fmt: skip
def test_ports_are_written_as_people_write_them(word: str | int | Port, port: Port) -> None:
    assert Port.of(word) == port
    assert RunRequest((), publish=(word,)).publish == (port,)


@pytest.mark.parametrize(
    "word", ["", "x", "0", "65536", "1:0", "-1", ":3000", "1.2.3.4:5:6", "\uff13"]
)
def test_what_is_no_port_is_refused(word: str) -> None:
    with pytest.raises(SandboxError, match="is no port"):
        Port.of(word)


def test_the_network_of_the_host_has_nothing_to_publish() -> None:
    with pytest.raises(ConfigError, match="needs not be published"):
        RunRequest((), network="host", publish=(3000,))


class Lying:
    """A sandbox whose guest hands over something else than was asked for."""

    _passes_descriptors = True

    def __init__(self, *given: int):
        self.given = given

    def _run(self, op: object) -> None:
        call = next(op)  # type: ignore[call-overload]  # the generator of `ops.connect`
        line = socket.socket(fileno=os.dup(call.descriptors[0]))
        with line:
            if self.given:
                socket.send_fds(line, [b"-"], self.given)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A server of this machine, on another port than was asked for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize(
    "make",
    [
        lambda server: server.dup(),
        lambda server: socket.create_connection(server.getsockname()),
        lambda _: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        lambda _: socket.socket(socket.AF_UNIX),
        lambda _: open(os.devnull),  # noqa: SIM115 - the test closes it
    ],
)
def test_a_guest_that_hands_over_something_else_is_not_believed(
    make: Callable[[socket.socket], socket.socket], server: socket.socket
) -> None:
    with make(server) as given:
        before = len(os.listdir("/proc/self/fd"))
        for count in (1, 2, 3):
            lying = Lying(*[given.fileno()] * count)
            with pytest.raises(SandboxError, match="no connection"):
                connected(lying, 3000)  # type: ignore[arg-type]  # what of it is asked, it has
        assert len(os.listdir("/proc/self/fd")) <= before


class Lingering(Lying):
    """It keeps nothing of the connection it hands over, which is to be closed out here then."""

    def _run(self, op: object) -> None:
        super()._run(op)
        for fd in self.given:
            os.close(fd)


@pytest.fixture
def lingering(server: socket.socket) -> Lingering:
    """It hands over a connection to `server` that is full, and that closing would wait for."""
    line = socket.create_connection(server.getsockname())
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    line.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            line.send(bytes(65536))
    return Lingering(line.detach())


def ends(work: Callable[[], object]) -> bool:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def test_a_connection_that_closing_would_wait_for_is_closed_at_once(
    lingering: Lingering, server: socket.socket
) -> None:
    port = server.getsockname()[1]
    published = Publication(lingering, Port(port, 0))  # type: ignore[arg-type]  # as above
    with socket.create_connection(published.address, timeout=60):
        until(lambda: published._pairs)
        assert ends(published.close)


def test_so_is_one_that_is_not_what_was_asked_for(lingering: Lingering) -> None:
    def ask() -> None:
        with pytest.raises(SandboxError, match="no connection"):
            connected(lingering, 1)  # type: ignore[arg-type]  # as above

    assert ends(ask)


def test_without_a_descriptor_to_spare_a_connection_is_closed_and_others_go_on(
    sandbox: OverlaySandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(sandbox, 3000)
    with Publication(sandbox, Port(3000, 0)) as published:
        with socket.create_connection(published.address, timeout=60) as first:
            first.sendall(b"x")
            assert first.recv(1) == b"x"
            monkeypatch.setattr(publishing, "has_room", lambda _: False)
            with socket.create_connection(published.address, timeout=60) as second:
                assert second.recv(1) == b""
            first.sendall(b"y")
            assert first.recv(1) == b"y"
        monkeypatch.undo()
        assert exchange(published.address, b"again") == b"again - and out"


def test_a_port_that_can_accept_nothing_waits_without_spinning(sandbox: OverlaySandbox) -> None:
    with Publication(sandbox, Port(3000, 0)) as published, socket.socket() as client:
        looked = 0
        accept = published._accept

        def count() -> None:
            nonlocal looked
            looked += 1
            accept()

        published._accept = count  # type: ignore[method-assign]
        taken: list[int] = []
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, limits[1]))
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.dup(client.fileno()))
            client.connect(published.address)
            until(lambda: looked >= 3)
            before, began = looked, time.monotonic()
            until(lambda: looked >= before + 5)
            assert time.monotonic() - began >= 4 * publishing.PAUSE_SECONDS
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for fd in taken:
                os.close(fd)
        client.settimeout(60)
        assert client.recv(1) == b""  # it was accepted, and nobody listens inside


def test_a_run_publishes_a_port_and_says_where(project: Path) -> None:
    command = [*PODBOT, "run", "--publish", "0:3000", "--", "python3", "-c", ECHO]
    with subprocess.Popen(
        [*command, "127.0.0.1", "3000", str(int(socket.AF_INET))],
        cwd=project, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        said = process.stderr.readline()
        while "port 3000 inside is at" not in said:
            assert said
            said = process.stderr.readline()
        host, _, port = said.split()[-1].partition(":")
        assert process.stdout.readline() == "listens\n"

        assert exchange((host, int(port)), b"hello") == b"hello - and out"

        process.terminate()
        process.communicate()
