"""How an endpoint is written, and what each form means."""

from __future__ import annotations

import pytest

from podbot.engine.finding.endpoints import Endpoint, parse
from podbot.errors import ConfigError, Kind

MEANT = [
    # text, scheme, path, host, port
    ("unix:///run/podman/podman.sock", "unix", "/run/podman/podman.sock", "", 0),
    ("UNIX:///run/podman/podman.sock", "unix", "/run/podman/podman.sock", "", 0),
    ("/run/podman/podman.sock", "unix", "/run/podman/podman.sock", "", 0),
    ("engine.sock", "unix", "engine.sock", "", 0),
    ("  /run/docker.sock  ", "unix", "/run/docker.sock", "", 0),
    ("npipe:////./pipe/docker_engine", "npipe", "//./pipe/docker_engine", "", 0),
    (r"\\.\pipe\docker_engine", "npipe", r"\\.\pipe\docker_engine", "", 0),
    ("//./pipe/docker_engine", "npipe", "//./pipe/docker_engine", "", 0),
    ("//some/path", "npipe", "//some/path", "", 0),
    ("tcp://localhost:1234", "tcp", "", "localhost", 1234),
    ("tcp://10.0.0.1", "tcp", "", "10.0.0.1", 2375),
    ("http://box:80/", "http", "", "box", 80),
    ("https://box", "https", "", "box", 2376),
    ("https://[::1]:2376", "https", "", "::1", 2376),
    ("tcp://[fe80::1]", "tcp", "", "fe80::1", 2375),
    ("ssh://root@box/run/podman/podman.sock", "ssh", "/run/podman/podman.sock", "box", 22),
    ("ssh://box:2222/run/docker.sock", "ssh", "/run/docker.sock", "box", 2222),
]

MEANINGLESS = [
    ("", "it is empty"),
    ("   ", "it is empty"),
    ("unix://relative.sock", "absolute"),
    ("fd://", "fd is not a way"),
    ("ftp://box", "ftp is not a way"),
    ("tcp://", "names no host"),
    ("tcp://:80", "names no host"),
    ("tcp://box:0", "port"),
    ("tcp://box:65536", "port"),
    ("tcp://box:abc", "port"),
    ("tcp://box:²", "port"),
    ("tcp://[::1", "closed by ]"),
    ("tcp://[::1]x", "closed by ]"),
    ("tcp://me@box", "only part of an ssh endpoint"),
    ("http://box/prefix", "path after the host"),
    ("ssh://box", "socket's path"),
    ("ssh://box/", "socket's path"),
    ("ssh://box/a:b", "socket's path"),
    ("ssh://-oProxyCommand=evil/run/x.sock", "names no host"),
    ("ssh://-l@box/run/x.sock", "user is not valid"),
    ("ssh://me:secret@box/run/x.sock", "user is not valid"),
    ("tcp://box\n:80", "control characters"),
    ("/run/\x1b[31m.sock", "control characters"),
]


@pytest.mark.parametrize(("text", "scheme", "path", "host", "port"), MEANT)
def test_each_form_means_one_thing(text: str, scheme: str, path: str, host: str, port: int) -> None:
    found = parse(text)

    assert (found.scheme, found.path, found.host, found.port) == (scheme, path, host, port)
    assert str(found) == text.strip()


@pytest.mark.parametrize(("text", "why"), MEANINGLESS)
def test_what_cannot_be_meant_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse(text)

    assert caught.value.kind is Kind.INVALID
    assert caught.value.field == "engine_socket"
    assert "ssh://" in str(caught.value.remedy)


def test_an_ssh_endpoint_keeps_its_user_and_key() -> None:
    found = parse("ssh://dev@box/run/podman.sock", "/home/dev/.ssh/id")

    assert (found.user, found.identity) == ("dev", "/home/dev/.ssh/id")


@pytest.mark.parametrize(
    ("text", "is_socket", "is_local", "is_loopback"),
    [
        ("/run/docker.sock", True, True, False),
        ("//./pipe/docker", True, False, False),
        ("tcp://127.0.0.1", False, False, True),
        ("tcp://127.1.2.3", False, False, True),
        ("tcp://localhost", False, False, True),
        ("http://[::1]:1", False, False, True),
        ("tcp://10.0.0.1", False, False, False),
        ("ssh://localhost/x", False, False, True),
    ],
)
def test_what_is_here_and_what_is_elsewhere_is_told_apart(
    text: str, is_socket: bool, is_local: bool, is_loopback: bool
) -> None:
    found: Endpoint = parse(text)

    assert (found.is_socket, found.is_local, found.is_loopback) == (
        is_socket,
        is_local,
        is_loopback,
    )
