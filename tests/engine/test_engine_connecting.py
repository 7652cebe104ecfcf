"""Connecting: what is told at once, what is told later, and by which kind of error."""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import certificates as certificates_of
import pytest
import standin
from standin import StandIn, reply

from podbot.engine import ConnectOptions, Engine, connect, connect_and_verify
from podbot.engine.http import dialing
from podbot.errors import ConfigError, ContainerError, Kind, PodbotError

NOTHING = ConnectOptions(environment={})


def kind_of(act: Callable[[], object]) -> Kind:
    with pytest.raises(PodbotError) as caught:
        act()
    assert caught.value.remedy
    return caught.value.kind


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port where nobody listens, and that nobody else can get meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


# Sockets


def test_a_socket_that_is_not_there_is_told_at_once(folder: Path) -> None:
    with pytest.raises(ContainerError) as caught:
        connect(f"unix://{folder}/none.sock")

    assert caught.value.kind is Kind.SOCKET_NOT_FOUND
    assert caught.value.subject == f"{folder}/none.sock"


def test_a_socket_below_a_file_is_not_there_either(folder: Path) -> None:
    (folder / "file").write_text("")

    assert kind_of(lambda: connect(f"{folder}/file/none.sock")) is Kind.SOCKET_NOT_FOUND


def test_a_socket_that_may_not_be_used_is_told_at_once(folder: Path, ending: ExitStack) -> None:
    ending.callback(standin.on_socket(folder / "engine.sock").close)
    (folder / "engine.sock").chmod(0)

    assert _as_ordinary_user(folder) == Kind.PERMISSION_DENIED


def _as_ordinary_user(folder: Path) -> str:
    """The kind of error an ordinary user gets; file modes do not count for root."""
    if os.geteuid() != 0:
        return kind_of(lambda: connect(f"{folder}/engine.sock"))
    folder.chmod(0o755)
    reading, writing = os.pipe()
    # Loaded before the fork: the folder of the sources may be closed to others.
    kind_of(lambda: connect(f"{folder}/none.sock"))
    child = os.fork()
    if child == 0:
        os.setresuid(65534, 65534, 65534)
        try:
            connect(f"{folder}/engine.sock")
        except ContainerError as error:
            os.write(writing, error.kind.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as told:
        return told.read()


def test_a_socket_where_nobody_listens_is_a_failed_connection(folder: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(folder / "dead.sock"))
    dead.close()

    with pytest.raises(ContainerError, match="nobody listens") as caught:
        connect(f"{folder}/dead.sock")
    assert caught.value.kind is Kind.CONNECTION_FAILED


def test_a_file_that_is_no_socket_is_a_failed_connection(folder: Path) -> None:
    (folder / "file").write_text("")

    with pytest.raises(ContainerError, match="not a socket") as caught:
        connect(f"{folder}/file")
    assert caught.value.kind is Kind.CONNECTION_FAILED


def test_a_path_that_is_too_long_for_a_socket_is_a_failed_connection() -> None:
    assert kind_of(lambda: connect("/" + "x" * 200)) is Kind.CONNECTION_FAILED


def test_a_pipe_of_another_system_is_not_supported() -> None:
    assert kind_of(lambda: connect(r"\\.\pipe\docker_engine")) is Kind.UNSUPPORTED


def test_an_engine_that_answers_is_verified(podman: tuple[StandIn, Engine]) -> None:
    made, engine = podman

    with connect_and_verify(engine.endpoint) as verified:
        assert verified.found_by == "named by the caller"
    assert [asked.path for asked in made.asked] == ["/_ping"]


@pytest.mark.parametrize(
    "answer",
    [
        reply(b"OK"),
        reply(b"OK", 204, {"Api-Version": "1.41"}),
        reply(b"OK", headers={"Api-Version": "new"}),
        reply(b"broken", 500),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",
    ],
)
def test_what_answers_but_is_no_engine_fails_the_health_check(
    podman: tuple[StandIn, Engine], answer: bytes
) -> None:
    made, engine = podman
    made.on("GET /_ping", lambda connection, _: connection.sendall(answer))

    assert kind_of(lambda: connect_and_verify(engine.endpoint)) is Kind.HEALTH_CHECK_FAILED


def test_what_never_answers_fails_the_health_check(
    folder: Path, ending: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = socket.socket(socket.AF_UNIX)
    ending.callback(silent.close)
    silent.bind(str(folder / "silent.sock"))
    silent.listen()
    monkeypatch.setattr("podbot.engine.engine.PING_SECONDS", 0.05)

    kind = kind_of(lambda: connect_and_verify(f"{folder}/silent.sock"))

    assert kind is Kind.HEALTH_CHECK_FAILED


def test_the_owner_of_a_socket_says_whether_an_engine_is_rootless(
    podman: tuple[StandIn, Engine],
) -> None:
    _, engine = podman

    assert engine.facts.rootless is (os.geteuid() != 0)
    assert engine.facts.local


# Ports


def test_a_port_is_left_alone_until_the_first_call(deaf_port: int) -> None:
    engine = connect(f"tcp://127.0.0.1:{deaf_port}", NOTHING)

    assert kind_of(engine.ping) is Kind.CONNECTION_FAILED


@pytest.mark.parametrize("scheme", ["tcp", "http", "https"])
def test_a_port_where_nobody_listens_never_looks_like_a_missing_socket(
    scheme: str, deaf_port: int
) -> None:
    place = f"{scheme}://127.0.0.1:{deaf_port}"

    assert kind_of(lambda: connect_and_verify(place, NOTHING)) is Kind.CONNECTION_FAILED


def test_a_host_without_an_address_is_a_failed_connection() -> None:
    place = "https://no-such-host.invalid"

    assert kind_of(lambda: connect_and_verify(place, NOTHING)) is Kind.CONNECTION_FAILED


def test_an_engine_on_a_port_is_asked_whether_it_is_rootless(ending: ExitStack) -> None:
    made = standin.on_port(ping=dict(standin.DOCKER))
    ending.callback(made.close)
    made.on("GET /v1.44/info", reply({"SecurityOptions": ["name=rootless"], "CgroupVersion": "2"}))

    with connect_and_verify(f"tcp://127.0.0.1:{made.listener.getsockname()[1]}", NOTHING) as engine:
        facts = engine.facts

    assert (facts.name, facts.version, facts.api_version) == ("docker", "27.5.1", "1.44")
    assert (facts.rootless, facts.cgroup_version, facts.local) == (True, 2, False)
    assert facts.limits_enforced


def test_plain_tcp_over_a_network_needs_a_yes() -> None:
    place = "tcp://192.0.2.1:2375"

    assert kind_of(lambda: connect(place, NOTHING)) is Kind.PLAIN_TCP_REFUSED
    assert kind_of(lambda: connect("http://192.0.2.1", NOTHING)) is Kind.PLAIN_TCP_REFUSED
    connect(place, ConnectOptions(plain_tcp=True, environment={})).close()
    for word in ("yes", "1", "TRUE"):
        connect(place, ConnectOptions(environment={"PODBOT_ENGINE_PLAIN_TCP": word})).close()
    for word in ("no", "0", ""):
        refused = ConnectOptions(environment={"PODBOT_ENGINE_PLAIN_TCP": word})
        assert kind_of(lambda: connect(place, refused)) is Kind.PLAIN_TCP_REFUSED  # noqa: B023 - called in this round of the loop


def test_a_yes_that_is_neither_yes_nor_no_is_refused() -> None:
    odd = ConnectOptions(environment={"PODBOT_ENGINE_PLAIN_TCP": "maybe"})

    with pytest.raises(ConfigError, match="neither yes nor no"):
        connect("tcp://192.0.2.1", odd)


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority of our own, a server's certificate for 127.0.0.1, and a client's."""
    return certificates_of.make(
        tmp_path_factory.mktemp("certificates"),
        server=("/CN=127.0.0.1", "IP:127.0.0.1"),
        client=("/CN=client", "IP:127.0.0.1"),
    )


@pytest.fixture
def secure(certificates: Path) -> Iterator[Callable[[bool], StandIn]]:
    """Makes an engine that speaks TLS, and may want to know who calls."""
    with ExitStack() as ending:

        def make(knows_clients: bool) -> StandIn:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates / "server.pem", certificates / "server-key.pem")
            if knows_clients:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(certificates / "ca.pem")
            made = standin.on_port(tls=context)
            made.on("GET /v1.41/info", reply({}))
            ending.callback(made.close)
            return made

        yield make


def place_of(made: StandIn, scheme: str = "https") -> str:
    return f"{scheme}://127.0.0.1:{made.listener.getsockname()[1]}"


def client_folder(certificates: Path, folder: Path, *names: str) -> str:
    for name in names:
        source = {"ca.pem": "ca.pem", "cert.pem": "client.pem", "key.pem": "client-key.pem"}[name]
        (folder / name).write_bytes((certificates / source).read_bytes())
    return str(folder)


def test_https_is_tls_with_a_certificate_that_is_checked(
    secure: Callable[[bool], StandIn], certificates: Path, folder: Path
) -> None:
    made = secure(False)
    trusting = {"DOCKER_CERT_PATH": client_folder(certificates, folder, "ca.pem")}

    connect_and_verify(place_of(made), ConnectOptions(environment=trusting)).close()

    assert made.asked[0].path == "/_ping"


def test_https_does_not_trust_a_stranger(secure: Callable[[bool], StandIn]) -> None:
    made = secure(False)

    with pytest.raises(ContainerError, match="no TLS with the engine") as caught:
        connect_and_verify(place_of(made), NOTHING)

    assert caught.value.kind is Kind.CONNECTION_FAILED
    assert "DOCKER_CERT_PATH" in str(caught.value.remedy)
    assert made.asked == []


def test_https_does_not_trust_a_certificate_for_another_name(
    secure: Callable[[bool], StandIn], certificates: Path, folder: Path
) -> None:
    place = place_of(secure(False)).replace("127.0.0.1", "localhost")
    trusting = {"DOCKER_CERT_PATH": client_folder(certificates, folder, "ca.pem")}

    kind = kind_of(lambda: connect_and_verify(place, ConnectOptions(environment=trusting)))

    assert kind is Kind.CONNECTION_FAILED


def test_https_to_a_plain_port_is_a_failed_connection(ending: ExitStack) -> None:
    made = standin.on_port()
    ending.callback(made.close)

    assert kind_of(lambda: connect_and_verify(place_of(made), NOTHING)) is Kind.CONNECTION_FAILED


def test_tcp_is_tls_when_docker_is_told_to_verify(
    secure: Callable[[bool], StandIn], certificates: Path, folder: Path
) -> None:
    made = secure(False)
    home = client_folder(certificates, folder, "ca.pem")
    told = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": home}

    connect_and_verify(place_of(made, "tcp"), ConnectOptions(environment=told)).close()

    assert made.asked[0].path == "/_ping"


def test_the_certificates_of_docker_are_the_default_when_it_is_told_to_verify(
    secure: Callable[[bool], StandIn],
    certificates: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = secure(False)
    (folder / ".docker").mkdir()
    client_folder(certificates, folder / ".docker", "ca.pem")
    monkeypatch.setenv("HOME", str(folder))

    options = ConnectOptions(environment={"DOCKER_TLS_VERIFY": "1"})
    connect_and_verify(place_of(made, "tcp"), options).close()

    assert made.asked[0].path == "/_ping"


def test_a_client_shows_its_certificate_to_an_engine_that_asks(
    secure: Callable[[bool], StandIn], certificates: Path, folder: Path
) -> None:
    made = secure(True)
    nobody = {"DOCKER_CERT_PATH": client_folder(certificates, folder, "ca.pem")}
    assert (
        kind_of(lambda: connect_and_verify(place_of(made), ConnectOptions(environment=nobody)))
        is Kind.CONNECTION_FAILED
    )

    client_folder(certificates, folder, "cert.pem", "key.pem")
    connect_and_verify(place_of(made), ConnectOptions(environment=nobody)).close()

    assert made.asked[0].path == "/_ping"


def test_certificates_that_cannot_be_used_are_named(folder: Path) -> None:
    (folder / "ca.pem").write_text("no certificate")
    odd = ConnectOptions(environment={"DOCKER_CERT_PATH": str(folder)})

    with pytest.raises(ConfigError, match=str(folder)) as caught:
        connect("https://127.0.0.1", odd)
    assert caught.value.field == "DOCKER_CERT_PATH"


def test_a_stream_over_tls_can_be_closed_in_one_direction(
    secure: Callable[[bool], StandIn], certificates: Path, folder: Path
) -> None:
    made = secure(False)

    def echo(connection: socket.socket, _: object) -> None:
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\n\r\n")
        heard = b""
        while data := connection.recv(1024):
            heard += data
        connection.sendall(b"heard " + heard)
        connection.close()

    made.on("POST /v1.41/containers/c/attach", echo)
    trusting = {"DOCKER_CERT_PATH": client_folder(certificates, folder, "ca.pem")}
    with connect(place_of(made), ConnectOptions(environment=trusting)) as engine:
        stream = engine.containers.attach("c")
        stream.settimeout(60)
        stream.sendall(b"some input " * 10_000)
        stream.close_write()
        said = b""
        while data := stream.recv():
            said += data
        stream.close()

    assert said == b"heard " + b"some input " * 10_000


def test_tls_can_be_read_without_waiting(
    secure: Callable[[bool], StandIn], certificates: Path, folder: Path
) -> None:
    made = secure(False)
    gate = threading.Event()

    def speak(connection: socket.socket, _: object) -> None:
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\n\r\n")
        gate.wait(60)
        connection.sendall(b"x" * 50_000)
        connection.recv(10)

    made.on("POST /v1.41/containers/c/attach", speak)
    trusting = {"DOCKER_CERT_PATH": client_folder(certificates, folder, "ca.pem")}
    with (
        connect(place_of(made), ConnectOptions(environment=trusting)) as engine,
        engine.containers.attach("c") as stream,
    ):
        stream.setblocking(False)
        with pytest.raises(BlockingIOError):
            stream.recv()
        gate.set()
        said, parts = b"", 0
        deadline = time.monotonic() + 60
        while len(said) < 50_000 and time.monotonic() < deadline:
            select.select([stream], [], [], 0.1 if not stream.pending else 0)
            with suppress(BlockingIOError):
                said += stream.recv(7000)
                parts += 1
        stream.close_write()
        stream.setblocking(True)
        assert stream.recv() == b""

    assert said == b"x" * 50_000 and parts > 7


def test_what_arrived_before_input_ends_over_tls_is_not_lost(
    secure: Callable[[bool], StandIn], certificates: Path, folder: Path
) -> None:
    made = secure(False)

    def speak(connection: socket.socket, _: object) -> None:
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\n\r\n")
        connection.sendall(b"early " * 5000)
        while connection.recv(1000):
            pass
        connection.sendall(b"late")

    made.on("POST /v1.41/containers/c/attach", speak)
    trusting = {"DOCKER_CERT_PATH": client_folder(certificates, folder, "ca.pem")}
    with (
        connect(place_of(made), ConnectOptions(environment=trusting)) as engine,
        engine.containers.attach("c") as stream,
    ):
        stream.settimeout(60)
        said = stream.recv(6)  # the rest is decrypted, or on its way
        stream.close_write()
        while data := stream.recv():
            said += data

    assert said == b"early " * 5000 + b"late"


def test_a_connection_that_is_interrupted_is_not_left_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(socket.socket, "connect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connect(f"{folder}/engine.sock")


def test_why_a_socket_refused_is_told_even_if_it_is_gone_meanwhile(folder: Path) -> None:
    refused = dialing.socket_error(OSError(errno.ECONNREFUSED, "refused"), f"{folder}/gone")
    odd = dialing.socket_error(OSError(errno.EAGAIN, "too busy"), f"{folder}/gone")

    assert "nobody listens" in refused.message and "too busy" in odd.message
    assert refused.kind is odd.kind is Kind.CONNECTION_FAILED
    with socket.socket() as tcp:
        assert dialing.peer_uid(tcp) is None


# Searching


def test_a_search_takes_the_first_engine_that_answers(folder: Path, ending: ExitStack) -> None:
    (folder / "podman").mkdir()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(folder / "podman/podman.sock"))
    dead.close()
    made = standin.on_socket(folder / "docker.sock", ping=dict(standin.DOCKER))
    ending.callback(made.close)

    options = ConnectOptions(environment={"XDG_RUNTIME_DIR": str(folder), "PATH": ""})
    with connect(options=options) as engine:
        assert engine.found_by == "the user's Docker socket"
        assert engine.endpoint.path == f"{folder}/docker.sock"


def test_a_search_that_finds_nothing_says_how_each_candidate_fared(
    folder: Path, ending: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = standin.on_socket(folder / "docker.sock")
    ending.callback(made.close)
    made.on("GET /_ping", reply(b"no", 500))
    # The machine that runs this test may have engines of its own.
    ours = [(f"{folder}/none.sock", "first"), (f"{folder}/docker.sock", "second")]
    monkeypatch.setattr("podbot.engine.finding.candidates.sockets", lambda _: iter(ours))
    monkeypatch.setattr("podbot.engine.finding.candidates.connections_mentioned", lambda _: False)

    with pytest.raises(ContainerError) as caught:
        connect(options=ConnectOptions(environment={"PATH": ""}))

    assert caught.value.kind is Kind.NO_ENGINE
    assert "the first socket: there is no engine socket" in caught.value.message
    assert "the second socket: cannot ask how the engine is: no" in caught.value.message
    assert "own Podman service: podman is not installed" in caught.value.message
    assert "PODBOT_ENGINE_SOCKET" in str(caught.value.remedy)

    with pytest.raises(ContainerError, match="own Podman service: not wanted"):
        connect(options=ConnectOptions(own_service=False, environment={"PATH": ""}))


def test_what_a_variable_names_is_not_replaced_by_something_that_works(
    folder: Path, ending: ExitStack
) -> None:
    ending.callback(standin.on_socket(folder / "docker.sock").close)
    environment = {"XDG_RUNTIME_DIR": str(folder), "CONTAINER_HOST": f"unix://{folder}/none.sock"}

    options = ConnectOptions(environment=environment)

    assert kind_of(lambda: connect(options=options)) is Kind.SOCKET_NOT_FOUND


def test_the_environment_of_the_process_counts_by_default(
    podman: tuple[StandIn, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine = podman
    monkeypatch.setenv("PODBOT_ENGINE_SOCKET", str(engine.endpoint))

    with connect() as found:
        assert found.found_by == "PODBOT_ENGINE_SOCKET"
        assert "PODBOT_ENGINE_SOCKET" in repr(found)
