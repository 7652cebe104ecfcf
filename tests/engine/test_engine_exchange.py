"""One HTTP exchange: what is sent, what is read, and what is not put up with."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podbot.engine.http import exchange
from podbot.engine.http.exchange import Head, HungUpError, Incoming, ProtocolError, Request, Wire


class Pair:
    """A wire, and the far end of it."""

    def __init__(self) -> None:
        near, self.far = socket.socketpair()
        self.wire = Wire(near)
        self.wire.allow(60)

    def say(self, data: bytes, end: bool = True) -> None:
        def send() -> None:
            with suppress(OSError):  # who has heard enough hangs up
                self.far.sendall(data)
                if end:
                    self.far.shutdown(socket.SHUT_WR)

        threading.Thread(target=send, daemon=True).start()

    def heard(self) -> bytes:
        self.wire.sock.close()
        data = b""
        while part := self.far.recv(65536):
            data += part
        return data

    def close(self) -> None:
        self.wire.close()
        self.far.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_a_part_of_a_path_is_quoted() -> None:
    assert exchange.quoted("a/b c?d&é%") == "a%2Fb%20c%3Fd%26%C3%A9%25"
    assert exchange.target("/x", {"a b": "c&d"}) == "/x?a%20b=c%26d"
    assert exchange.target("/x", {}) == "/x"


def test_a_body_of_bytes_is_sent_with_its_length(pair: Pair) -> None:
    exchange.send(pair.wire, Request("POST", "/x", "host", {"A": "b"}, b"body"))

    assert pair.heard() == (
        b"POST /x HTTP/1.1\r\nHost: host\r\nUser-Agent: podbot\r\nA: b\r\n"
        b"Content-Length: 4\r\n\r\nbody"
    )


def test_a_body_that_is_made_meanwhile_is_sent_in_chunks(pair: Pair) -> None:
    exchange.send(pair.wire, Request("PUT", "/x", "host", {}, iter([b"ab", b"", b"c" * 20])))

    assert pair.heard().endswith(
        b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n14\r\n" + b"c" * 20 + b"\r\n0\r\n\r\n"
    )


def test_a_post_without_a_body_says_so(pair: Pair) -> None:
    exchange.send(pair.wire, Request("POST", "/x", "host", {}))

    assert b"Content-Length: 0" in pair.heard()


def test_a_header_cannot_smuggle_another(pair: Pair) -> None:
    with pytest.raises(ValueError, match="line break"):
        exchange.send(pair.wire, Request("GET", "/x", "host", {"A": "b\r\nC: d"}))
    with pytest.raises(ValueError, match="line break"):
        exchange.send(pair.wire, Request("GET", "/x\r\nC: d", "host", {}))


def test_a_head_is_read_with_names_in_lower_case(pair: Pair) -> None:
    pair.say(b"HTTP/1.1 200 All Right\r\nServer:  x \r\nA: 1\r\na: 2\r\nB: 1\r\nb: 1\r\n\r\nrest")

    head = exchange.read_head(pair.wire)

    assert (head.status, head.reason, head.old) == (200, "All Right", False)
    assert head.headers == {"server": "x", "a": "1, 2", "b": "1"}
    assert pair.wire.read_some() == b"rest"


def test_a_provisional_head_is_skipped(pair: Pair) -> None:
    pair.say(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")

    assert exchange.read_head(pair.wire).status == 204


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "does not speak HTTP"),
        (b"HTTP/2 200 OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 20 OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 20x OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "is not valid"),
        (b"HTTP/1.1 200 OK\r\n: empty\r\n\r\n", "is not valid"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n", "is not valid"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "twice"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000 + b"\r\n\r\n", "too long"),
        (b"x" * 200_000, "too long"),
        (b"HTTP/1.1 200 OK\r\n" + b"".join(b"A%d: b\r\n" % n for n in range(500)), "too long"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000, "too long"),
        (b"HTTP/1.1 200 OK\r\nA: b", "middle of a line"),
    ],
)
def test_a_head_that_breaks_the_rules_is_refused(pair: Pair, said: bytes, why: str) -> None:
    pair.say(said)

    with pytest.raises(ProtocolError, match=why):
        exchange.read_head(pair.wire)


def test_a_connection_that_ends_before_the_reply_is_told_apart(pair: Pair) -> None:
    pair.say(b"")

    with pytest.raises(HungUpError):
        exchange.read_head(pair.wire)


def incoming(pair: Pair, headers: dict[str, str], method: str = "GET") -> Incoming:
    return Incoming(pair.wire, method, Head(200, "OK", headers))


@pytest.mark.parametrize(
    ("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304), ("GET", 101)]
)
def test_some_replies_have_no_body(pair: Pair, method: str, status: int) -> None:
    head = Head(status, "", {"content-length": "5"})

    assert Incoming(pair.wire, method, head).read_all(10) == b""


def test_a_body_ends_where_its_length_says(pair: Pair) -> None:
    pair.say(b"helloNEXT")
    body = incoming(pair, {"content-length": "5"})

    assert body.read_all(5) == b"hello"
    assert body.done and body.keeps
    assert pair.wire.read_some() == b"NEXT"


def test_a_body_without_a_length_ends_with_the_connection(pair: Pair) -> None:
    pair.say(b"all of it")
    body = incoming(pair, {})

    assert body.read_all(100) == b"all of it"
    assert not body.keeps


def test_an_old_server_or_one_that_says_close_does_not_keep_a_connection(pair: Pair) -> None:
    closing = {"content-length": "0", "connection": "Close"}

    assert not incoming(pair, closing).keeps
    assert not Incoming(pair.wire, "GET", Head(200, "", {"content-length": "0"}, True)).keeps


@pytest.mark.parametrize("length", ["-1", "+5", "5 5", "0x5", "³", "9" * 30, "1,1"])
def test_a_length_that_is_no_number_is_refused(pair: Pair, length: str) -> None:
    with pytest.raises(ProtocolError, match="how long"):
        incoming(pair, {"content-length": length})


def test_an_unknown_coding_is_refused(pair: Pair) -> None:
    with pytest.raises(ProtocolError, match="coded"):
        incoming(pair, {"transfer-encoding": "gzip, chunked"})


def test_a_body_that_is_cut_short_is_an_error(pair: Pair) -> None:
    pair.say(b"hel")

    with pytest.raises(ProtocolError, match="cut short"):
        incoming(pair, {"content-length": "5"}).read_all(10)


def test_a_body_that_is_too_long_is_an_error(pair: Pair) -> None:
    pair.say(b"x" * 100)

    with pytest.raises(ProtocolError, match="longer than 10"):
        incoming(pair, {}).read_all(10)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"zz\r\n", "how long"),
        (b"\r\n", "how long"),
        (b"-5\r\n", "how long"),
        (b"fffffffffffffffff\r\n", "how long"),
        (b"2\r\nabc\r\n0\r\n\r\n", "wrong length|too long"),
        (b"5\r\nab", "cut short"),
        (b"x" * 5000, "too long"),
        (b"0\r\n" + b"a: b\r\n" * 1000 + b"\r\n", "end of the reply is too long"),
    ],
)
def test_chunks_that_break_the_rules_are_refused(pair: Pair, said: bytes, why: str) -> None:
    pair.say(said)

    with pytest.raises(ProtocolError, match=why):
        incoming(pair, {"transfer-encoding": "chunked"}).read_all(1 << 20)


def test_trailers_and_extensions_of_chunks_are_passed_over(pair: Pair) -> None:
    pair.say(b"3;x=y\r\nabc\r\n 2 \r\nde\r\n0\r\nA: b\r\n\r\nNEXT")
    body = incoming(pair, {"transfer-encoding": "Chunked"})

    assert body.read_all(10) == b"abcde"
    assert body.read_some() == b""
    assert pair.wire.read_some() == b"NEXT"


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.lists(st.integers(1, 40)))
def test_chunks_are_joined_however_they_arrive(parts: list[bytes], cuts: list[int]) -> None:
    pair = Pair()
    said = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"

    def send() -> None:
        rest = said
        for cut in cuts:
            pair.far.sendall(rest[:cut])
            rest = rest[cut:]
        pair.far.sendall(rest)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        body = incoming(pair, {"transfer-encoding": "chunked"})
        assert body.read_all(1 << 20) == b"".join(parts)
    finally:
        sending.join()
        pair.close()


def test_the_time_for_a_reply_is_for_all_of_it(pair: Pair) -> None:
    pair.say(b"HTTP/1.1 200 OK\r\n", end=False)
    pair.wire.allow(0.05)

    with pytest.raises(TimeoutError):
        exchange.read_head(pair.wire)
    with pytest.raises(TimeoutError):
        pair.wire.read_some()  # the time is used up, whatever comes
