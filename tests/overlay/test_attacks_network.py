"""Attacks over the network and over sockets. Nothing leaves: there is nowhere to go.

A sandbox that may reach some hosts through podbot's proxy is attacked like one without a network.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from inside import PYTHON, inside, shell

from podbot.sandbox import Network, Policy
from podbot.sandbox.layers import mounts
from podbot.sandbox.overlay.launcher import OverlaySandbox

CONNECT = """
def connect(family, kind, address):
    with socket.socket(family, kind) as line:
        line.settimeout(5)
        line.connect(address)
        line.send(b"x")
"""


TUNNELS = ("sit", "tunl", "ip6tnl", "gre", "erspan", "ip_vti", "ip6_vti", "ip6gre")


@pytest.fixture(scope="module", params=["none", "allow pypi.org"])
def shared(request: pytest.FixtureRequest, shared_target: Path) -> Iterator[OverlaySandbox]:
    policy = Policy(python=PYTHON, network=Network(request.param))
    with OverlaySandbox(shared_target, discard=True, policy=policy) as sandbox:
        yield sandbox


@contextmanager
def listening(family: int, address: object) -> Iterator[socket.socket]:
    """A server of the host."""
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(address)
        server.listen()
        server.settimeout(0.2)
        yield server


def was_reached(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except TimeoutError:
        return False
    return True


def test_only_a_loopback_device_exists(shared: OverlaySandbox) -> None:
    names, routes = inside(
        shared,
        """
with open("/proc/net/dev") as file:
    names = [line.split(":")[0].strip() for line in file if ":" in line]
with open("/proc/net/route") as file:
    tell([names, file.read().splitlines()[1:]])
""",
    )

    # Some kernels put the ends of tunnels that nobody made into each new network.
    assert [name for name in names if not name.startswith(TUNNELS)] == ["lo"]
    assert routes == []


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
@pytest.mark.parametrize(
    "address", ["169.254.169.254", "8.8.8.8", "10.0.0.1", "192.168.0.1", "224.0.0.1"]
)
def test_no_address_outside_can_be_reached(shared: OverlaySandbox, address: str, kind: str) -> None:
    code = CONNECT + f"tell(attempt(connect, socket.AF_INET, socket.{kind}, (sys.argv[1], 80)))"

    assert inside(shared, code, address) == "ENETUNREACH"


def test_no_address_of_version_6_can_be_reached(shared: OverlaySandbox) -> None:
    code = (
        CONNECT
        + """
tell([attempt(connect, socket.AF_INET6, kind, (address, 80))
      for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
      for address in ("2001:4860:4860::8888", "fd00:ec2::254", "fe80::1")])
"""
    )
    assert set(inside(shared, code)) <= {"ENETUNREACH", "EADDRNOTAVAIL", "EINVAL", "EAFNOSUPPORT"}


def test_names_cannot_be_looked_up(shared: OverlaySandbox) -> None:
    code = """
try:
    found = socket.getaddrinfo("example.com", 80)
except socket.gaierror as error:
    found = "no answer"
tell(found)
"""
    assert inside(shared, code) == "no answer"


def test_nobody_can_be_pinged(shared: OverlaySandbox) -> None:
    code = (
        CONNECT
        + """
def ping():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1) as line:
        line.sendto(b"\\x08" + bytes(7), ("8.8.8.8", 1))
tell([attempt(connect, socket.AF_INET, socket.SOCK_RAW, ("8.8.8.8", 1)), attempt(ping)])
"""
    )
    assert set(inside(shared, code)) <= {"EPERM", "EACCES", "ENETUNREACH", "EPROTONOSUPPORT"}


def test_the_network_cannot_be_set_up_from_inside(shared: OverlaySandbox) -> None:
    code = """
import fcntl
control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
request = struct.pack("16sh22x", b"lo", 0)
def add_link():
    line = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    body = struct.pack("BxHiII", 0, 0, 0, 0, 0) + struct.pack("HH", 10, 3) + b"veth0\\0\\0\\0"
    line.send(struct.pack("IHHII", 16 + len(body), 16, 0x605, 1, 0) + body)
    answer = line.recv(4096)
    number = -struct.unpack_from("i", answer, 16)[0]
    if number:
        raise OSError(number, "netlink")
tell([attempt(fcntl.ioctl, control, 0x8914, request), attempt(add_link)])
"""
    assert set(inside(shared, code)) == {"EPERM"}


def test_a_server_on_the_hosts_loopback_is_not_on_ours(shared: OverlaySandbox) -> None:
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            CONNECT
            + """
port = int(sys.argv[1])
tell([attempt(connect, socket.AF_INET, socket.SOCK_STREAM, (address, port))
      for address in ("127.0.0.1", "127.1.2.3", "0.0.0.0", "localhost")])
"""
        )
        found = inside(shared, code, str(port))
        assert not was_reached(server)

    assert set(found) == {"ECONNREFUSED"}


def test_a_loopback_of_our_own_works(shared: OverlaySandbox) -> None:
    code = """
server = socket.create_server(("127.0.0.1", 0))
line = socket.create_connection(server.getsockname())
there, _ = server.accept()
line.sendall(b"hello")
tell(there.recv(5).decode())
"""
    assert inside(shared, code) == "hello"


def test_an_abstract_socket_of_the_host_cannot_be_reached(shared: OverlaySandbox) -> None:
    name = f"\0podbot-test-{os.getpid()}"
    with listening(socket.AF_UNIX, name) as server:
        code = (
            CONNECT
            + """
tell(attempt(connect, socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + sys.argv[1]))
"""
        )
        found = inside(shared, code, name[1:])
        assert not was_reached(server)

    assert found == "ECONNREFUSED"


def test_an_abstract_socket_of_the_host_cannot_be_reached_over_its_network_either(
    target: Path,
) -> None:
    name = f"\0podbot-test-host-{os.getpid()}"
    with (
        listening(socket.AF_UNIX, name) as server,
        OverlaySandbox(target, policy=Policy(network="host"), discard=True) as sandbox,
    ):
        promise = next(g for g in sandbox.guarantees if g.name == "abstract_sockets")
        if not promise.enforced:
            pytest.skip(f"not promised here: {promise.by}")
        code = (
            CONNECT
            + """
tell(attempt(connect, socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + sys.argv[1]))
"""
        )
        assert inside(sandbox, code, name[1:]) == "EPERM"
        assert not was_reached(server)


def test_the_hosts_network_is_there_only_when_the_policy_says_so(target: Path) -> None:
    with (
        listening(socket.AF_INET, ("127.0.0.1", 0)) as server,
        OverlaySandbox(target, policy=Policy(network="host"), discard=True) as sandbox,
    ):
        promise = next(g for g in sandbox.guarantees if g.name == "network")
        port = str(server.getsockname()[1])
        code = (
            CONNECT
            + """
tell(attempt(connect, socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", int(sys.argv[1]))))
"""
        )
        assert inside(sandbox, code, port) == "worked"
        assert was_reached(server)
        assert not promise.enforced


SESSION_SOCKETS = {
    "SSH_AUTH_SOCK": "ssh-agent/agent.1",
    "GPG_AGENT_INFO": "gnupg/S.gpg-agent",
    "DBUS_SESSION_BUS_ADDRESS": "dbus-session",
    "DISPLAY": ".X11-unix/X99",
    "WAYLAND_DISPLAY": "wayland-0",
    "DOCKER_HOST": "docker.sock",
}


@pytest.mark.parametrize("place", ["/tmp", "/run", "/var/tmp"])
def test_sockets_of_agents_buses_and_displays_do_not_exist(
    shared_target: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.access(place, os.W_OK):
        pytest.skip(f"{place} is not this user's to write")
    with tempfile.TemporaryDirectory(dir=place) as folder:
        for variable, name in SESSION_SOCKETS.items():
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            monkeypatch.setenv(variable, str(path))
            with (
                listening(socket.AF_UNIX, str(path)) as server,
                OverlaySandbox(shared_target, discard=True) as sandbox,
            ):
                code = (
                    CONNECT
                    + """
tell([attempt(connect, socket.AF_UNIX, socket.SOCK_STREAM, sys.argv[1]), sys.argv[2] in os.environ])
"""
                )
                assert inside(sandbox, code, str(path), variable) == ["ENOENT", False]
                assert not was_reached(server)


def test_a_socket_in_the_target_or_the_home_cannot_be_reached(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:
        monkeypatch.setenv("HOME", home)
        paths = [str(target / "agent.sock"), str(Path(home) / "agent.sock")]
        with (
            listening(socket.AF_UNIX, paths[0]) as one,
            listening(socket.AF_UNIX, paths[1]) as two,
            OverlaySandbox(target, discard=True) as sandbox,
        ):
            code = (
                CONNECT
                + """
tell([attempt(connect, socket.AF_UNIX, socket.SOCK_STREAM, path) for path in sys.argv[1:]])
"""
            )
            assert inside(sandbox, code, *paths) == ["ECONNREFUSED", "ECONNREFUSED"]
            assert not was_reached(one)
            assert not was_reached(two)


def test_sockets_in_a_folder_made_writable_are_covered_or_it_is_said(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "SOCKET_SECONDS", -1.0)  # what is there now, not a second ago
    code = CONNECT + "tell(attempt(connect, socket.AF_UNIX, socket.SOCK_STREAM, sys.argv[1]))"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:
        monkeypatch.setenv("HOME", home)
        real = Path(home) / "shared"
        real.mkdir()
        path, later = str(real / "agent.sock"), str(real / "later.sock")
        policy = Policy(writable=(str(real),))
        with (
            listening(socket.AF_UNIX, path) as server,
            OverlaySandbox(target, policy=policy, discard=True) as sandbox,
        ):
            assert inside(sandbox, code, path) in ("ECONNREFUSED", "EACCES")
            assert not was_reached(server)
            with listening(socket.AF_UNIX, later):
                assert inside(sandbox, code, later) == "worked"  # and so it is not promised
            promised = {g.name: g.enforced for g in sandbox.guarantees}
            assert promised["unix_sockets"] is False
            sandbox.write(str(real / "made"), b"x")
        assert (real / "made").read_bytes() == b"x"
    with OverlaySandbox(target, discard=True) as sandbox:
        assert {g.name: g.enforced for g in sandbox.guarantees}["unix_sockets"] is True


def test_a_fifo_of_the_target_does_not_lead_to_the_host(target: Path) -> None:
    pipe = target / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with OverlaySandbox(target, discard=True) as sandbox:
            shell(sandbox, f"timeout 1 sh -c 'echo x > {pipe}'")
        assert os.read(reader, 10) == b""
    finally:
        os.close(reader)
