"""The way out of a sandbox that names hosts: a socket from inside, a proxy outside.

What the proxy refuses is tried in tests/egress. Here it is who can reach it, and who can take its
place.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hosts_servers import serving
from inside import PYTHON, inside, until

from podbot.egress import HOST_NAME, Record, Verdict
from podbot.errors import Kind, LaunchError
from podbot.sandbox import Network, Policy, connections, gateway
from podbot.sandbox.gateway import PORT, VARIABLES, Gateway
from podbot.sandbox.overlay.launcher import OverlaySandbox

ASK = """
import http.client
def ask(url, timeout=30):
    "What the proxy, or who is behind it, says: a status and a body; or the name of an error."
    line = http.client.HTTPConnection("127.0.0.1", 3128, timeout=timeout)
    try:
        line.request("GET", url)
        answer = line.getresponse()
        return [answer.status, answer.read().decode()]
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
    except http.client.HTTPException as error:
        return type(error).__name__
    finally:
        line.close()
"""
BIND = """
def bind(address, family=socket.AF_INET, options=()):
    with socket.socket(family) as server:
        for option in options:
            server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind((address, 3128))
        server.listen()
def try_all():
    return [attempt(bind, address, socket.AF_INET, options)
            for address in ("127.0.0.1", "0.0.0.0")
            for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,),
                            (socket.SO_REUSEADDR, socket.SO_REUSEPORT))] + [
            attempt(bind, "::", socket.AF_INET6, (socket.SO_REUSEADDR, socket.SO_REUSEPORT))]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with serving({"/": b"of the host"}) as (port, _):
        yield port


@pytest.fixture
def opened(target: Path, server: int) -> Iterator[OverlaySandbox]:
    """A sandbox that may reach the server."""
    policy = Policy(network=Network.allow(f"{HOST_NAME}:{server}"), python=PYTHON)
    with OverlaySandbox(target, policy=policy) as sandbox:
        yield sandbox
    if sandbox.layer is not None and sandbox.layer.path.exists():
        sandbox.layer.discard()


def way(sandbox: OverlaySandbox) -> Gateway:
    assert sandbox.gateway is not None
    return sandbox.gateway


def ask(sandbox: OverlaySandbox, host: str, port: int) -> Any:
    return inside(sandbox, ASK + "tell(ask(sys.argv[1]))", f"http://{host}:{port}/")


def test_what_is_named_is_reached_and_nothing_else(opened: OverlaySandbox, server: int) -> None:
    with serving({"/": b"of another"}) as (other, asked):
        assert ask(opened, HOST_NAME, server) == [200, "of the host"]
        for host, port in [(HOST_NAME, other), ("127.0.0.1", other), ("localhost", server)]:
            status, said = ask(opened, host, port)
            assert status == 403 and "of another" not in said
        assert asked == []

    assert until(lambda: len(way(opened).records) == 4)
    found = {(record.host, record.port, record.verdict.value) for record in way(opened).records}
    assert found == {
        (HOST_NAME, server, "allowed"), (HOST_NAME, other, "refused"),
        ("127.0.0.1", other, "refused"), ("localhost", server, "refused"),
    }  # fmt: skip


def test_programs_find_the_proxy_by_their_variables(opened: OverlaySandbox) -> None:
    found = inside(opened, "tell(dict(os.environ))")

    assert {name: found.get(name) for name in VARIABLES} == VARIABLES
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        assert found[name] == found[name.lower()]


def test_a_variable_that_the_caller_sets_wins(target: Path) -> None:
    policy = Policy(network=Network.allow("a.example"), environment={"HTTPS_PROXY": "mine"})
    with OverlaySandbox(target, policy=policy, discard=True) as sandbox:
        assert inside(sandbox, "tell(os.environ['HTTPS_PROXY'])") == "mine"


def test_the_port_of_the_proxy_cannot_be_taken(opened: OverlaySandbox, server: int) -> None:
    assert set(inside(opened, BIND + "tell(try_all())")) == {"EADDRINUSE"}

    way(opened)._end()  # as if it had died: nobody accepts now

    assert set(inside(opened, BIND + "tell(try_all())")) == {"EADDRINUSE"}


def test_without_its_proxy_nothing_leaves_and_the_sandbox_goes_on(
    opened: OverlaySandbox, server: int
) -> None:
    assert ask(opened, HOST_NAME, server) == [200, "of the host"]

    way(opened)._end()

    found = inside(opened, ASK + "tell(ask(sys.argv[1], 1))", f"http://{HOST_NAME}:{server}/")
    assert found == "TimeoutError"
    assert opened.exec(["echo", "on"]).stdout == "on\n"


def test_a_proxy_that_is_started_anew_serves_on_the_same_port(
    opened: OverlaySandbox, server: int
) -> None:
    held = """
line = socket.create_connection(("127.0.0.1", 3128))
line.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\nHost: {sys.argv[1]}\\r\\n\\r\\n".encode())
print(line.recv(1000).split()[1].decode(), flush=True)
try:
    line.settimeout(60)
    print("end" if not line.recv(1) else "more", flush=True)
except ConnectionError:
    print("end", flush=True)
"""
    code = "import socket, sys" + held
    argv = [PYTHON, "-I", "-S", "-c", code, f"{HOST_NAME}:{server}"]
    with opened.spawn(argv) as process:
        assert process.stdout.read(timeout=60) == b"200\n"

        way(opened).restart()

        assert process.stdout.read(timeout=60) == b"end\n"  # what went through the old one ended
    assert ask(opened, HOST_NAME, server) == [200, "of the host"]


def test_nothing_inside_keeps_the_socket(opened: OverlaySandbox, server: int) -> None:
    assert ask(opened, HOST_NAME, server) == [200, "of the host"]

    way(opened).close()  # whatever podbot holds of it

    assert ask(opened, HOST_NAME, server) == "ECONNREFUSED"


def test_a_host_can_be_allowed_while_the_sandbox_lives(opened: OverlaySandbox) -> None:
    with serving({"/": b"another"}) as (port, _):
        assert ask(opened, HOST_NAME, port)[0] == 403

        way(opened).allow(f"{HOST_NAME}:{port}")
        assert ask(opened, HOST_NAME, port) == [200, "another"]

        way(opened).restart()
        assert ask(opened, HOST_NAME, port) == [200, "another"]


def test_closing_a_sandbox_lets_go_of_everything(target: Path, server: int) -> None:
    def once() -> None:
        policy = Policy(network=Network.allow(f"{HOST_NAME}:{server}"), python=PYTHON)
        with OverlaySandbox(target, policy=policy, discard=True) as sandbox:
            assert ask(sandbox, HOST_NAME, server) == [200, "of the host"]

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    once()  # what is loaded and kept for all is there from now on
    before = held()

    for _ in range(3):
        once()

    assert until(lambda: held() <= before), (before, held())


def test_connections_are_noted_beside_the_layer(opened: OverlaySandbox, server: int) -> None:
    ask(opened, HOST_NAME, server)
    ask(opened, "denied.example", 443)
    opened.write("made", "x")
    assert until(lambda: len(way(opened).records) == 2)

    opened.close()

    assert opened.layer is not None
    lines, left_out = connections.read(opened.layer)
    assert left_out == 0
    assert [(line["host"], line["verdict"]) for line in lines] == [
        (HOST_NAME, "allowed"), ("denied.example", "refused"),
    ]  # fmt: skip


def test_what_is_noted_is_bounded(
    target: Path, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_BYTES", 500)
    policy = Policy(network=Network.allow(f"{HOST_NAME}:{server}"), python=PYTHON)
    with OverlaySandbox(target, policy=policy) as sandbox:
        for _ in range(10):
            ask(sandbox, HOST_NAME, server)
        sandbox.write("made", "x")
        assert until(lambda: len(way(sandbox).records) == 10)
    assert sandbox.layer is not None

    lines, left_out = connections.read(sandbox.layer)

    assert 0 < len(lines) < 10 and len(lines) + left_out == 10
    assert connections.place(sandbox.layer).stat().st_size < 600
    sandbox.layer.discard()


def test_a_fork_of_the_program_does_not_keep_the_socket(
    opened: OverlaySandbox, server: int
) -> None:
    assert ask(opened, HOST_NAME, server) == [200, "of the host"]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until the other end is closed
        os._exit(0)
    try:
        way(opened).close()
        assert ask(opened, HOST_NAME, server) == "ECONNREFUSED"
    finally:
        os.close(read)
        os.close(write)
        os.waitpid(child, 0)


def test_a_sandbox_without_named_hosts_loads_nothing_of_it(target: Path) -> None:
    code = """
import sys
from podbot.sandbox import OverlaySandbox
with OverlaySandbox(sys.argv[1], discard=True) as sandbox:
    sandbox.exec(["true"])
    assert sandbox.gateway is None
print([name for name in sys.modules if "egress" in name or "gateway" in name])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# What is handed out


def _listening(family: int = socket.AF_INET, place: Any = ("127.0.0.1", PORT)) -> socket.socket:
    made = socket.socket(family)
    made.bind(place)
    made.listen()
    return made


def _udp() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _shared_port() -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made


@pytest.mark.parametrize(
    "make",
    [
        _udp,
        socket.socket,  # which does not listen
        lambda: socket.socket(socket.AF_UNIX),
        _shared_port,
        lambda: _listening(place=("127.0.0.1", 0)),  # another port
        lambda: _listening(place=("127.0.0.2", 0)),
        lambda: _listening(socket.AF_INET6, ("::1", 0)),
        lambda: _listening(socket.AF_UNIX, ""),
        lambda: open(os.devnull),  # noqa: SIM115 - the test closes it
        lambda: open("/proc/self/status"),  # noqa: SIM115 - likewise
    ],
)
def test_anything_else_than_the_socket_is_refused_and_closed(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with make() as given:
        handed = [os.dup(given.fileno())]
        with pytest.raises(LaunchError, match="handed out") as caught:
            Gateway(Network.allow()).take(handed)
    assert caught.value.kind is Kind.PROTOCOL
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("count", [0, 2, 3])
def test_one_descriptor_is_wanted_no_more_and_no_less(count: int) -> None:
    handed = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]
    numbers = list(handed)

    with pytest.raises(LaunchError, match=f"{count} descriptors"):
        Gateway(Network.allow()).take(handed)

    for number in numbers:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


@pytest.mark.parametrize(
    "said",
    [b"", b"\0\0", b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\2\0\0\0\1{}x", b"\0\0\x10\1\0\0\0\0"],
)
def test_a_guest_that_says_something_else_is_refused(said: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(LaunchError) as caught:
            gateway.handed_out(ours, 30)
    assert caught.value.kind is Kind.PROTOCOL


def test_more_descriptors_than_are_looked_at_are_closed_by_the_kernel() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as null:
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(theirs, [b"\0\0\0\2\0\0\0\0{}"], [null.fileno()] * 50)
        handed = gateway.handed_out(ours, 30)
        with pytest.raises(LaunchError, match="descriptors in place of one"):
            Gateway(Network.allow()).take(handed)
        assert len(os.listdir("/proc/self/fd")) <= before


def test_a_guest_that_kept_the_socket_cannot_keep_podbot_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as kept:  # as a guest would that is not ours
        monkeypatch.setattr(gateway, "PORT", kept.getsockname()[1])
        monkeypatch.setattr(gateway, "FORCED_SECONDS", 0.2)
        hostile = Gateway(Network.allow())
        hostile.take([os.dup(kept.fileno())])
        with socket.create_connection(kept.getsockname()) as first:
            first.sendall(b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
            assert first.recv(100).startswith(b"HTTP/1.1 403")
        kept.setblocking(True)  # the flag is one for all who hold the socket
        with socket.create_connection(kept.getsockname()) as second:
            second.sendall(b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")

            ending = threading.Thread(target=hostile.close)
            ending.start()
            ending.join(60)

        assert not ending.is_alive()


def test_who_hears_of_a_connection_may_allow_a_host_while_the_way_is_ended() -> None:
    hearing, told = threading.Event(), threading.Event()
    with _listening(place=("127.0.0.1", 0)) as listener:
        way = Gateway(Network.allow())
        way._listener = listener.dup()
        way._begin()

        def allow(_: object) -> None:
            hearing.set()
            told.wait(60)
            way.allow("a.example")

        way.hear(allow)
        with socket.create_connection(listener.getsockname()) as line:
            line.sendall(b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
            assert hearing.wait(60)
            ending = threading.Thread(target=way.close, daemon=True)
            ending.start()
            until(lambda: way._proxy is None)
            told.set()
            ending.join(60)

        assert not ending.is_alive()


def test_a_guest_that_hands_out_more_and_more_is_not_listened_to() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as null:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(8):
            socket.send_fds(theirs, [b"\0"], [null.fileno()] * 4)
        with pytest.raises(LaunchError, match="and more"):
            gateway.handed_out(ours, 30)
        assert len(os.listdir("/proc/self/fd")) <= before


def test_a_program_that_leaves_without_closing_says_nothing_of_it(target: Path) -> None:
    code = """
import sys
from podbot.sandbox import Network, OverlaySandbox, Policy
sandbox = OverlaySandbox(sys.argv[1], policy=Policy(network=Network.allow()), discard=True)
ask = "exec 3<>/dev/tcp/127.0.0.1/3128; echo no >&3; cat <&3 | head -c 8"
print(sandbox.exec(["bash", "-c", ask]).stdout)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("HTTP/1.1\n", "")


RECORD = Record(1.0, "a.example", 443, "CONNECT", None, Verdict.REFUSED, None, "it is denied")


def test_a_sandbox_that_begins_anew_is_noted_in_one_file_at_a_time(tmp_path: Path) -> None:
    layer: Any = SimpleNamespace(path=tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    way = Gateway(Network.allow())

    for time in range(3):
        way.note_in(layer)
        way._heard(RECORD)
        if not time:
            at_first = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) <= at_first
    way.close()

    assert len(os.listdir("/proc/self/fd")) <= before
    lines, left_out = connections.read(layer)
    assert ([line["host"] for line in lines], left_out) == (["a.example"] * 3, 0)


def test_a_line_that_the_disk_had_no_room_for_spoils_no_other(tmp_path: Path) -> None:
    layer: Any = SimpleNamespace(path=tmp_path)
    log = connections.Log(connections.place(layer))
    log.add(RECORD)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = connections.place(layer).stat().st_size + 10
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        log.add(RECORD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.add(RECORD)
    log.close()

    lines, left_out = connections.read(layer)
    assert (len(lines), left_out) == (2, 1)


def test_telemetry_is_let_through_only_once_it_is_named(target: Path) -> None:
    way = Gateway(Network.allow("*.anthropic.com"))
    assert not way._rules.judge("statsig.anthropic.com", 443).allowed
    assert way._rules.judge("api.anthropic.com", 443).allowed

    way.allow("statsig.anthropic.com")

    assert way._rules.judge("statsig.anthropic.com", 443).allowed
