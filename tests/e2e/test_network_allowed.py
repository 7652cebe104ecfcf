"""Containers that may reach some hosts: the way out is the one of the overlay."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts_servers import serving
from model_service import BACKWARDS, PIECES, REAL, SEARCH, STREAM, model, pieces
from services import Service

import podbot.sandbox
from podbot.egress import HOST_NAME, FromFile, FromVariable, built_in
from podbot.errors import Kind, LaunchError
from podbot.sandbox import ContainerSandbox, Network, Policy, connections, control
from podbot.sandbox.publishing import Port, Publication
from podbot.testing.base import eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.podman,
    pytest.mark.engines("rootful", "rootless", "docker"),
]

INSIDE = r"""
import errno, http.client, os, socket, sys
def attempt(name, work):
    try:
        print(name, work())
    except OSError as error:
        print(name, errno.errorcode.get(error.errno, type(error).__name__))
def ask(url):
    line = http.client.HTTPConnection("127.0.0.1", 3128, timeout=60)
    line.request("GET", url)
    answer = line.getresponse()
    return f"{answer.status} {answer.read().decode()}"
def bind(address, *options):
    with socket.socket() as server:
        for option in options:
            server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind((address, 3128))
        server.listen()
    return "TAKEN"
def connect(family, kind, address):
    with socket.socket(family, kind) as line:
        line.settimeout(5)
        line.connect(address)
        line.send(b"x")
        return "REACHED"
server, other = sys.argv[1:]
attempt("named", lambda: ask(f"http://host.podbot.internal:{server}/"))
attempt("other", lambda: ask(f"http://host.podbot.internal:{other}/").split()[0])
attempt("literal", lambda: ask(f"http://127.0.0.1:{other}/").split()[0])
attempt("bind", lambda: bind("127.0.0.1"))
attempt("bind-any", lambda: bind("0.0.0.0", socket.SO_REUSEADDR))
attempt("bind-shared", lambda: bind("127.0.0.1", socket.SO_REUSEPORT, socket.SO_REUSEADDR))
attempt("loopback", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", int(server))))
attempt("tcp", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)))
attempt("udp", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)))
attempt("tcp6", lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 80)))
attempt("dns", lambda: socket.getaddrinfo("example.org", 80))
attempt("abstract", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + os.environ["NAME"]))
print("proxy", os.environ["https_proxy"])
"""
REFUSED = {
    "bind": {"EADDRINUSE"}, "bind-any": {"EADDRINUSE"}, "bind-shared": {"EADDRINUSE"},
    "loopback": {"ECONNREFUSED"}, "tcp": {"ENETUNREACH"}, "udp": {"ENETUNREACH"},
    "tcp6": {"ENETUNREACH", "EADDRNOTAVAIL"}, "dns": {"gaierror"}, "abstract": {"ECONNREFUSED"},
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with serving({"/": b"of the host"}) as (port, _):
        yield port


def opened(service: Service, port: int, **options: object) -> ContainerSandbox:
    policy = Policy(network=Network.allow(f"{HOST_NAME}:{port}"))
    made = podbot.sandbox.open(
        "container", engine=service.url, image=service.image, policy=policy, **options
    )
    assert isinstance(made, ContainerSandbox)
    return made


def asked(sandbox: ContainerSandbox, server: int, other: int = 9) -> dict[str, str]:
    """What the attempts came to."""
    argv = ["python3", "-I", "-c", INSIDE, str(server), str(other)]
    done = sandbox.exec(argv, env={"NAME": f"podbot-test-{os.getpid()}"}, timeout=300).check()
    return {line.partition(" ")[0]: line.partition(" ")[2] for line in done.stdout.splitlines()}


def test_only_what_is_named_is_reached_and_the_port_cannot_be_taken(
    service: Service, server: int
) -> None:
    with serving({"/": b"of another"}) as (other, requests), opened(service, server) as sandbox:
        assert sandbox.gateway is not None
        found = asked(sandbox, server, other)

        assert found.pop("named") == "200 of the host"
        assert found.pop("proxy") == "http://127.0.0.1:3128"
        assert (found.pop("other"), found.pop("literal")) == ("403", "403")
        lacking = {name: said for name, said in found.items() if said not in REFUSED[name]}
        assert not lacking and found.keys() == REFUSED.keys()
        assert requests == []
        eventually(lambda: len(sandbox.gateway.records) == 3)

        sandbox.gateway._end()  # as if it had died
        again = sandbox.exec(
            [
                "python3",
                "-I",
                "-c",
                INSIDE.partition("server, other")[0]
                + """
attempt("bind", lambda: bind("127.0.0.1", socket.SO_REUSEADDR))
""",
            ]
        )
        assert again.stdout == "bind EADDRINUSE\n"

        sandbox.gateway.restart()
        assert asked(sandbox, server)["named"] == "200 of the host"


def test_nothing_in_the_container_keeps_the_socket(service: Service, server: int) -> None:
    with opened(service, server) as sandbox:
        assert asked(sandbox, server)["named"] == "200 of the host"
        assert sandbox.gateway is not None

        sandbox.gateway.close()

        assert asked(sandbox, server)["named"] == "ECONNREFUSED"


def test_a_container_that_is_started_again_has_a_way_out_again(
    service: Service, server: int
) -> None:
    with opened(service, server) as sandbox:
        assert asked(sandbox, server)["named"] == "200 of the host"
        sandbox.stop()
        assert asked(sandbox, server)["named"] == "200 of the host"


def test_a_run_in_a_container_names_what_was_refused(
    service: Service, server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("layers", "state", "project"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("PODBOT_LAYERS", str(tmp_path / "layers"))
    monkeypatch.setenv("PODBOT_STATE", str(tmp_path / "state"))
    script = "import urllib.request as u; u.urlopen('http://denied.example/')"
    done = subprocess.run(
        [sys.executable, "-m", "podbot", "run", "--backend", "container", "--image", service.image,
         "--allow", f"{HOST_NAME}:{server}", "--", "python3", "-c", script],
        cwd=tmp_path / "project", capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "denied.example:80 is not on the allowlist" in done.stderr
    assert "to allow it: podbot run --allow denied.example" in done.stderr


@pytest.mark.engines("runsc")
def test_where_no_socket_gets_through_it_is_refused_and_said(service: Service, server: int) -> None:
    with pytest.raises(LaunchError, match="chosen hosts") as caught:
        opened(service, server)
    assert caught.value.kind is Kind.UNSUPPORTED
    assert caught.value.remedy is not None and "overlay" in caught.value.remedy


def test_connections_of_a_container_are_noted_beside_its_layer(
    service: Service, server: int, tmp_path: Path
) -> None:
    target = tmp_path / "project"
    target.mkdir()
    with opened(service, server, target=target) as sandbox:
        asked(sandbox, server)
        sandbox.write("made", "x")
    assert sandbox.layer is not None
    lines, _ = connections.read(sandbox.layer)
    assert {line["host"] for line in lines} >= {HOST_NAME}
    sandbox.layer.discard()


def test_a_container_that_lives_is_let_through_to_one_host_more(
    service: Service, server: int, tmp_path: Path
) -> None:
    target = tmp_path / "project"
    target.mkdir()
    with (
        serving({"/": b"of another"}) as (other, _),
        opened(service, server, target=target) as sandbox,
    ):
        assert asked(sandbox, server, other)["other"] == "403"
        assert sandbox.layer is not None

        control.allow(sandbox.layer, [f"{HOST_NAME}:{other}"])

        assert asked(sandbox, server, other)["other"] == "200"
        sandbox.stop()
        assert asked(sandbox, server, other)["other"] == "200"
        sandbox.write("made", "x")
    assert not (sandbox.layer.path / control.NAME).exists()
    sandbox.layer.discard()


def test_a_port_of_a_container_can_be_published(service: Service, server: int) -> None:
    code = """
import socket
server = socket.create_server(("127.0.0.1", 3000))
print("listens", flush=True)
line, _ = server.accept()
line.sendall(b"from inside")
"""
    with opened(service, server) as sandbox, Publication(sandbox, Port(3000, 0)) as published:
        process = sandbox.spawn(["python3", "-c", code])
        assert process.stdout.read(timeout=60) == b"listens\n"
        with socket.create_connection(published.address, timeout=60) as line:
            assert line.makefile().read() == "from inside"


@pytest.mark.parametrize("where", ["variable", "file"])
def test_a_model_is_used_with_a_key_that_is_nowhere_in_the_container(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    target = tmp_path / "project"
    target.mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    if where == "file":
        (target / "key").write_text(REAL)
    else:
        monkeypatch.setenv("MODEL_KEY", REAL)
    source = FromFile(str(target / "key")) if where == "file" else FromVariable("MODEL_KEY")
    with model(tmp_path) as provider:
        policy = Policy(
            routes=(built_in("anthropic", source, base=provider.base),),
            pass_environment=("MODEL_KEY",),
        )
        options = {"engine": service.url, "image": service.image, "target": target}
        with podbot.sandbox.open("container", policy=policy, **options) as sandbox:
            with sandbox.spawn(["python3", "-I", "-S", "-c", STREAM]) as process:
                said = pieces(process, provider)
            assert said == ["200", *(f"piece{number}" for number in range(PIECES))]
            assert provider.keys == [REAL]
            argv = ["python3", "-I", "-S", "-c", SEARCH, BACKWARDS, "/workspace", "/etc"]
            found, seen = json.loads(sandbox.exec(argv, timeout=300).check().stdout)
            assert found == [] and seen > 3
            sandbox.write("made", "x")
            told = repr((sandbox.guarantees, sandbox.notes))
    assert sandbox.layer is not None
    told += repr(connections.read(sandbox.layer))
    sandbox.layer.discard()
    assert "route:anthropic" in told and REAL not in told
