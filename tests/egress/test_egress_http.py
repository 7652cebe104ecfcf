"""Tunnels and plain requests that are allowed: all of it arrives, as it was, as soon as it can."""

from __future__ import annotations

import hashlib
import resource
import socket
import threading
from collections.abc import Iterator

import pytest
from small_web import (
    OK,
    PATIENCE,
    Server,
    Through,
    answering,
    echo,
    named,
    proxied,
    read_all,
    read_head,
    wait_until,
)

from podbot.egress import HOST_NAME, ProxyLimits, Rules, Verdict


def test_a_tunnel_carries_bytes_both_ways_and_is_one_record() -> None:
    with Server(echo) as server, proxied(Rules.of(named(server))) as through:
        sock, head = through.tunnel(HOST_NAME, server.port)
        with sock:
            assert head.startswith(b"HTTP/1.1 200 ")
            sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert sock.recv(100) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        record = through.record()

    assert (record.verdict, record.method, record.status) == (Verdict.ALLOWED, "CONNECT", 200)
    assert (record.host, record.port, record.path) == (HOST_NAME, server.port, None)
    assert (record.bytes_up, record.bytes_down, record.reason) == (24, 24, "")
    assert record.rule == named(server) and record.would_allow is None
    assert record.seconds > 0 and len(through.records) == 1


def test_what_a_client_sends_ahead_of_the_answer_goes_through_too() -> None:
    with Server(echo) as server, proxied(Rules.of(named(server))) as through:
        place = named(server).encode()
        with through.client() as sock:
            sock.sendall(b"CONNECT " + place + b" HTTP/1.1\r\nHost: " + place + b"\r\n\r\nahead")
            assert read_head(sock).startswith(b"HTTP/1.1 200 ")
            assert sock.recv(5) == b"ahead"


def test_each_direction_of_a_tunnel_ends_by_itself() -> None:
    def late(sock: socket.socket) -> None:
        heard = read_all(sock)  # up to the client's end
        sock.sendall(b"heard " + heard)

    with Server(late) as server, proxied(Rules.of(named(server))) as through:
        sock, _ = through.tunnel(HOST_NAME, server.port)
        with sock:
            sock.sendall(b"all of it")
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock) == b"heard all of it"


def test_much_goes_through_a_tunnel_unchanged_while_a_slow_reader_holds_it_back() -> None:
    piece = bytes(range(256)) * 256
    sent = threading.Event()

    def much(sock: socket.socket) -> None:
        for _ in range(2048):  # 128 MiB, far more than any buffer on the way
            sock.sendall(piece)
        sent.set()

    with Server(much) as server, proxied(Rules.of(named(server))) as through:
        sock, _ = through.tunnel(HOST_NAME, server.port)
        with sock:
            assert sock.recv(1) == piece[:1]
            assert not sent.wait(0.3)  # it is held back: nobody reads
            digest = hashlib.sha256(piece[:1] + read_all(sock)).digest()

    assert digest == hashlib.sha256(piece * 2048).digest()


def test_a_plain_request_arrives_as_one_for_the_server_alone() -> None:
    heard: list[bytes] = []
    with (
        Server(answering(OK, heard)) as server,
        proxied(Rules.of(named(server))) as through,
    ):
        url = f"http://{named(server)}/a%20path?key=secret"
        answer = through.get(
            url,
            "Accept: text/html",
            "Proxy-Authorization: Basic c2VjcmV0",
            "Proxy-Connection: keep-alive",
            "TE: trailers",
        )
        record = through.record()

    lines = heard[0].split(b"\r\n")
    assert lines[0] == b"GET /a%20path?key=secret HTTP/1.1"
    assert f"Host: {named(server)}".encode() in lines and b"Accept: text/html" in lines
    assert b"Connection: close" in lines
    assert b"roxy" not in heard[0] and b"trailers" not in heard[0]
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\nhello")
    assert (record.method, record.path, record.status) == ("GET", "/a%20path", 200)
    assert "secret" not in repr(record)


def test_requests_on_one_connection_are_judged_and_recorded_one_by_one() -> None:
    with (
        Server(answering(OK)) as server,
        proxied(Rules.of(f"GET {named(server)}/open")) as through,
        through.client() as sock,
    ):
        for path in ("/open", "/open/too", "/closed"):
            line = f"GET http://{named(server)}{path} HTTP/1.1\r\nHost: {named(server)}\r\n\r\n"
            sock.sendall(line.encode())
            head = read_head(sock)
            if path != "/closed":
                assert head.startswith(b"HTTP/1.1 200 ") and sock.recv(5) == b"hello"
        assert head.startswith(b"HTTP/1.1 403 ")
        through.record(2)

    assert [(r.path, r.verdict) for r in through.records] == [
        ("/open", Verdict.ALLOWED),
        ("/open/too", Verdict.ALLOWED),
        ("/closed", Verdict.REFUSED),
    ]
    assert server.came == 2


def test_bodies_go_up_in_chunks_and_come_down_in_chunks() -> None:
    def upper(sock: socket.socket) -> None:
        assert b"Transfer-Encoding: chunked" in read_head(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        body = b""
        while not body.endswith(b"0\r\n\r\n"):
            body += sock.recv(100)
        assert body == b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        sock.sendall(b"5\r\nABCDE\r\n0\r\n\r\n")

    with Server(upper) as server, proxied(Rules.of(named(server))) as through:
        place = named(server)
        answer = through.says(
            f"POST http://{place}/ HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode(),
            b"3\r\nabc\r\n",
            b"2;ext=1\r\nde\r\n0\r\n\r\n",
        )

    assert answer.endswith(b"\r\n\r\n5\r\nABCDE\r\n0\r\n\r\n")


def test_server_sent_events_come_through_one_by_one() -> None:
    seen = threading.Semaphore(0)

    def events(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(3):
            sock.sendall(b"data: %d\n\n" % number)
            assert seen.acquire(timeout=30)  # the next only once this was received

    with Server(events) as server, proxied(Rules.of(named(server))) as through:
        place = named(server)
        with through.client() as sock:
            sock.sendall(f"GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
            read_head(sock)
            for number in range(3):
                assert b"data: %d\n\n" % number in sock.recv(100)
                seen.release()


def test_a_websocket_takes_the_line_over() -> None:
    heard: list[bytes] = []

    def socket_server(sock: socket.socket) -> None:
        heard.append(read_head(sock))
        answer = (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        )
        sock.sendall(answer + b"Sec-WebSocket-Accept: x\r\n\r\nfirst")
        echo(sock)

    with Server(socket_server) as server, proxied(Rules.of(named(server))) as through:
        place = named(server)
        with through.client() as sock:
            sock.sendall(
                f"GET http://{place}/ws HTTP/1.1\r\nHost: {place}\r\nConnection: keep-alive, "
                "Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n".encode()
            )
            head = read_head(sock)
            assert head.startswith(b"HTTP/1.1 101 ") and b"Sec-WebSocket-Accept: x" in head
            assert sock.recv(5) == b"first"
            sock.sendall(b"\x81\x02hi")
            assert sock.recv(100) == b"\x81\x02hi"
        record = through.record()

    assert b"Upgrade: websocket" in heard[0] and b"Connection: Upgrade" in heard[0]
    assert (record.status, record.path) == (101, "/ws")


def test_a_client_that_waits_for_a_word_before_its_body_gets_it_from_the_server() -> None:
    def careful(sock: socket.socket) -> None:
        assert b"Expect: 100-continue" in read_head(sock)
        sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert sock.recv(4) == b"body"
        sock.sendall(OK)

    with Server(careful) as server, proxied(Rules.of(named(server))) as through:
        place = named(server)
        with through.client() as sock:
            sock.sendall(
                f"PUT http://{place}/ HTTP/1.1\r\nHost: {place}\r\nContent-Length: 4\r\n"
                "Expect: 100-continue\r\nConnection: close\r\n\r\n".encode()
            )
            assert read_head(sock).startswith(b"HTTP/1.1 100 ")
            sock.sendall(b"body")
            assert read_all(sock).endswith(b"hello")


def test_an_answer_that_comes_before_the_request_is_whole_ends_it() -> None:
    def hasty(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        read_all(sock)

    with Server(hasty) as server, proxied(Rules.of(named(server))) as through:
        place = named(server)
        answer = through.says(
            f"PUT http://{place}/ HTTP/1.1\r\nHost: {place}\r\n"
            "Content-Length: 1000000\r\n\r\nstart".encode()
        )

    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
    ],
)
def test_answers_without_a_body_leave_the_line_open_for_the_next(
    method: str, answer: bytes
) -> None:
    with (
        Server(answering(answer)) as server,
        proxied(Rules.of(named(server))) as through,
        through.client() as sock,
    ):
        for _ in range(2):
            line = f"{method} http://{named(server)}/ HTTP/1.1\r\nHost: {named(server)}\r\n\r\n"
            sock.sendall(line.encode())
            assert read_head(sock).split()[1] == answer.split()[1]


def test_a_client_of_http_1_0_gets_an_answer_it_understands() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    with Server(answering(chunked)) as server, proxied(Rules.of(named(server))) as through:
        answer = through.says(f"GET http://{named(server)}/ HTTP/1.0\r\n\r\n".encode())

    assert answer.endswith(b"\r\n\r\nhello") and b"chunked" not in answer


@pytest.mark.parametrize(
    "answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"]
)
def test_a_server_that_makes_no_sense_is_a_failure_that_is_told(answer: bytes) -> None:
    with Server(answering(answer)) as server, proxied(Rules.of(named(server))) as through:
        assert through.get(f"http://{named(server)}/").startswith(b"HTTP/1.1 502 ")
        record = through.record()

    assert (record.verdict, record.status) == (Verdict.FAILED, 502)


def test_an_answer_cut_short_is_not_made_whole() -> None:
    short = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello"
    with Server(answering(short)) as server, proxied(Rules.of(named(server))) as through:
        answer = through.get(f"http://{named(server)}/")
        record = through.record()

    assert answer.endswith(b"hello") and b"Content-Length: 50" in answer
    assert record.verdict is Verdict.FAILED and "cut short" in record.reason


def test_nobody_at_the_far_end_is_a_failure_not_a_refusal() -> None:
    with Server(echo) as server:
        port = server.port
    with proxied(Rules.of(f"{HOST_NAME}:{port}")) as through:
        sock, head = through.tunnel(HOST_NAME, port)
        sock.close()
        assert head.startswith(b"HTTP/1.1 502 ")
        record = through.record()

    assert record.verdict is Verdict.FAILED and "refused" in record.reason.lower()


def test_a_name_that_nobody_knows_is_a_failure() -> None:
    with proxied(Rules.of("nowhere.example")) as through:
        assert b"cannot resolve" in through.get("http://nowhere.example/")

    assert through.record().verdict is Verdict.FAILED


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """As many as may be: of each tunnel all four ends are this process's here."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_five_hundred_connections_at_once_are_all_carried(many_descriptors: None) -> None:
    with Server(echo) as server, proxied(Rules.of(named(server))) as through:
        socks = [through.tunnel(HOST_NAME, server.port)[0] for _ in range(500)]
        for number, sock in enumerate(socks):
            sock.sendall(b"%d" % number)
        for number, sock in enumerate(socks):
            assert sock.recv(10) == b"%d" % number
        for sock in socks:
            sock.close()
        wait_until(lambda: len(through.records) == 500)

    assert {record.verdict for record in through.records} == {Verdict.ALLOWED}


def test_more_connections_than_allowed_are_turned_away_and_noted() -> None:
    limits = ProxyLimits(connections=2)
    with Server(echo) as server, proxied(Rules.of(named(server)), limits=limits) as through:
        first, _ = through.tunnel(HOST_NAME, server.port)
        second, _ = through.tunnel(HOST_NAME, server.port)
        with through.client() as third:
            assert read_head(third).startswith(b"HTTP/1.1 503 ")
        assert "more than 2 connections" in through.record().reason
        with first, second:
            pass
        through.record(2)
        again, head = through.tunnel(HOST_NAME, server.port)
        with again:
            assert head.startswith(b"HTTP/1.1 200 ")


def test_a_head_that_comes_byte_by_byte_is_understood() -> None:
    with Server(answering(OK)) as server, proxied(Rules.of(named(server))) as through:
        place = named(server)
        text = f"GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n"
        with through.client() as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for number in range(len(text)):
                sock.sendall(text[number : number + 1].encode())
            assert read_all(sock).endswith(b"hello")


def said_before(through: Through, said: bytes) -> socket.socket:
    """A client that has spoken by the time its clock starts, however busy the machine."""
    ours, its = socket.socketpair()
    ours.settimeout(PATIENCE)
    ours.sendall(said)
    through.proxy.adopt(its)
    return ours


def test_a_client_that_dawdles_over_its_head_is_cut_off() -> None:
    with proxied(Rules(), limits=ProxyLimits(head_seconds=0.2)) as through:
        with said_before(through, b"GET http://a.example/ HTTP/1.1\r\nX: ") as sock:
            assert read_all(sock) == b""
        assert "no whole request" in through.record().reason

    assert through.record().verdict is Verdict.REFUSED


def test_a_tunnel_through_which_nothing_moves_is_ended() -> None:
    limits = ProxyLimits(idle_seconds=0.2)
    with Server(echo) as server, proxied(Rules.of(named(server)), limits=limits) as through:
        place = named(server)
        tunnel = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode()
        with said_before(through, tunnel) as sock:
            read_all(sock)
        assert "nothing moved" in through.record().reason
