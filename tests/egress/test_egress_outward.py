"""A host that has a proxy of its own: podbot's goes through it, and judges all the same."""

from __future__ import annotations

import socket

import pytest
from small_web import OK, Server, answering, echo, proxied, read_head

from podbot.egress import HOST_NAME, Rules, Verdict
from podbot.egress._outward import NextProxy, Outward


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])
def test_a_tunnel_goes_through_the_hosts_own_proxy(name: str) -> None:
    heard: list[bytes] = []

    def next_proxy(sock: socket.socket) -> None:
        heard.append(read_head(sock))
        sock.sendall(b"HTTP/1.1 200 Fine\r\n\r\nfirst")
        echo(sock)

    with Server(next_proxy) as server:
        environment = {name: f"http://user:p%40ss@127.0.0.1:{server.port}"}
        with proxied(Rules.of("a.example"), environment=environment) as through:
            sock, head = through.tunnel("a.example", 443)
            with sock:
                assert head.startswith(b"HTTP/1.1 200 ") and sock.recv(5) == b"first"
                sock.sendall(b"x")
                assert sock.recv(1) == b"x"

    lines = heard[0].split(b"\r\n")
    assert lines[0] == b"CONNECT a.example:443 HTTP/1.1" and b"Host: a.example:443" in lines
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNz" in lines


def test_a_plain_request_goes_through_it_as_it_is_asked() -> None:
    heard: list[bytes] = []
    with Server(answering(OK, heard)) as server:
        environment = {"http_proxy": f"127.0.0.1:{server.port}", "https_proxy": "http://[::1]:1"}
        with proxied(Rules.of("a.example"), environment=environment) as through:
            assert through.get("http://a.example/x?y=1").endswith(b"hello")

    assert heard[0].startswith(b"GET http://a.example/x?y=1 HTTP/1.1\r\nHost: a.example\r\n")


def test_what_is_refused_is_refused_before_it_is_asked() -> None:
    with Server(answering(OK)) as server:
        environment = {"all_proxy": f"http://127.0.0.1:{server.port}"}
        names = {"inner.example": ["10.1.2.3"]}
        rules = Rules.of("a.example", "inner.example")
        with proxied(rules, names, environment=environment) as through:
            for host in ("evil.example", "inner.example", "10.1.2.3", "127.0.0.1"):
                assert through.get(f"http://{host}/").startswith(b"HTTP/1.1 403 ")
        assert server.came == 0


def test_the_hosts_loopback_and_what_no_proxy_names_are_reached_directly() -> None:
    with Server(answering(OK)) as server:
        environment = {"all_proxy": "http://127.0.0.1:1", "no_proxy": "b.example,.c.example"}
        rules = Rules.of(f"{HOST_NAME}:{server.port}")
        with proxied(rules, environment=environment) as through:
            assert through.get(f"http://{HOST_NAME}:{server.port}/").endswith(b"hello")
        outward = Outward(environment)
        assert outward.next_proxy("a.example", 443, tunnel=True) == NextProxy("127.0.0.1", 1)
        for host in ("b.example", "d.c.example"):
            assert outward.next_proxy(host, 443, tunnel=True) is None


def test_a_proxy_of_the_host_that_refuses_is_said() -> None:
    refused = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    with Server(answering(refused)) as server:
        environment = {"all_proxy": f"http://127.0.0.1:{server.port}"}
        with proxied(Rules.of("a.example"), environment=environment) as through:
            sock, head = through.tunnel("a.example", 443)
            sock.close()
            assert head.startswith(b"HTTP/1.1 502 ")
            assert "refused with 407" in through.record().reason


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200"])
def test_a_proxy_of_the_host_that_makes_no_sense_is_said(answer: bytes) -> None:
    with Server(answering(answer)) as server:
        environment = {"all_proxy": f"http://127.0.0.1:{server.port}"}
        with proxied(Rules.of("a.example"), environment=environment) as through:
            sock, head = through.tunnel("a.example", 443)
            sock.close()
            assert head.startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize(
    "given", ["socks5://127.0.0.1:1", "https://127.0.0.1:1", "http://:x", "http://"]
)
def test_a_proxy_of_the_host_that_cannot_be_used_closes_the_way(given: str) -> None:
    environment = {"all_proxy": given}
    names = {"a.example": ["127.0.0.1"]}
    with proxied(Rules.of("a.example"), names, environment=environment) as through:
        assert through.get("http://a.example/").startswith(b"HTTP/1.1 502 ")
        record = through.record()

    assert record.verdict is Verdict.FAILED and "the host's own proxy" in record.reason
