"""Letting one host more through from another program, while a sandbox lives."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from hosts_servers import serving
from inside import PYTHON, fill, inside, new_folder, removed, until

from podbot.egress import HOST_NAME
from podbot.errors import Kind, SandboxError
from podbot.sandbox import Network, Policy, control
from podbot.sandbox.overlay.launcher import OverlaySandbox

ASK = """
import http.client
line = http.client.HTTPConnection("127.0.0.1", 3128, timeout=60)
line.request("GET", sys.argv[1])
tell(line.getresponse().status)
"""
CONNECT = """
line = socket.socket(socket.AF_UNIX)
try:
    line.connect(sys.argv[1])
    line.sendall(b'{"allow": ["evil.example"]}')
    line.shutdown(socket.SHUT_WR)
    tell(line.recv(1000).decode())
except OSError as error:
    tell(errno.errorcode[error.errno])
"""


def opened(target: Path, **more: Any) -> OverlaySandbox:
    policy = Policy(network=Network.allow("a.example"), python=PYTHON, **more)
    return OverlaySandbox(target, policy=policy)


def ended(sandbox: OverlaySandbox) -> None:
    sandbox.close()
    if sandbox.layer is not None and sandbox.layer.path.exists():
        sandbox.layer.discard()


def test_a_host_is_let_through_from_outside_and_only_from_then_on(target: Path) -> None:
    with serving({"/": b"of the host"}) as (port, _), opened(target) as sandbox:
        url = f"http://{HOST_NAME}:{port}/"
        assert inside(sandbox, ASK, url) == 403
        assert sandbox.layer is not None

        control.allow(sandbox.layer, [f"{HOST_NAME}:{port}"])

        assert inside(sandbox, ASK, url) == 200
        with pytest.raises(SandboxError, match="a host is named, not a URL") as caught:
            control.allow(sandbox.layer, ["b.example", "https://a.example/"])
        assert caught.value.kind is Kind.INVALID
        assert inside(sandbox, ASK, "http://b.example/") == 403  # all of them, or none


def test_the_socket_is_its_owners_alone_and_goes_with_the_sandbox(target: Path) -> None:
    sandbox = opened(target)
    try:
        sandbox.write("made", "x")  # so that the layer stays
        assert sandbox.layer is not None
        path = sandbox.layer.path / control.NAME
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

        sandbox.close()

        assert not path.exists()
        with pytest.raises(SandboxError) as caught:
            control.allow(sandbox.layer, ["a.example"])
        assert caught.value.kind is Kind.CLOSED
    finally:
        ended(sandbox)


def test_it_does_not_exist_inside(target: Path) -> None:
    with opened(target) as sandbox:
        assert sandbox.layer is not None
        path = sandbox.layer.path / control.NAME
        assert path.is_socket()
        assert inside(sandbox, CONNECT, str(path)) == "ENOENT"


def test_who_is_inside_of_a_sandbox_is_not_heard_even_where_he_reaches_it(target: Path) -> None:
    asked: list[str] = []
    place = fill(new_folder())
    with opened(target, writable=(str(place),)) as sandbox:
        listening = control.Control(place, asked.append)  # made later: not covered
        try:
            said = inside(sandbox, CONNECT, str(place / control.NAME))
            assert said in ("", "EPIPE", "ECONNRESET")  # hung up on, sooner or later
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(place / control.NAME))
                line.sendall(b'{"allow": ["b.example"]}')
                line.shutdown(socket.SHUT_WR)
                assert line.recv(1000) == b'{"allowed": ["b.example"]}'
        finally:
            listening.close()
    assert asked == ["b.example"]
    assert until(lambda: removed(place))


@pytest.mark.parametrize(
    "said", [b"", b"nonsense", b"[" * 50_000, b"[]", b'{"deny": []}', b'{"allow": "x"}', b"["]
)
def test_nothing_else_can_be_asked_and_the_next_is_heard(said: bytes) -> None:
    asked: list[str] = []
    place = new_folder()
    listening = control.Control(place, asked.append)
    try:
        for data in (said, b'{"allow": ["a.example"]}'):
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(place / control.NAME))
                line.sendall(data)
                line.shutdown(socket.SHUT_WR)
                line.recv(1000)
    finally:
        listening.close()
    assert asked == ["a.example"]
    assert until(lambda: removed(place))


def test_one_that_was_left_by_the_dead_is_no_obstacle() -> None:
    place = new_folder()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place / control.NAME))
    deep = control.Control(place, lambda host: None)
    deep.close()
    deep.close()
    assert os.listdir(place) == []
    assert until(lambda: removed(place))


def test_a_folder_may_lie_deeper_than_a_sockets_name_may_be_long() -> None:
    place = new_folder()
    deep = place / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    listening = control.Control(deep, lambda host: None)
    assert (deep / control.NAME).is_socket()
    listening.close()
    assert until(lambda: removed(place))
