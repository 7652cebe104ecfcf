"""What a program inside may try on the proxy's port: none of it gets out, all of it is noted.

The loopback stands for what must not be reached: in each test a server waits there, and it is asked
afterwards whether anybody came.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from small_web import (
    OK,
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

from podbot.egress import HOST_NAME, Rules, Verdict, _addresses

PUBLIC = "127.0.0.2"
"""An address that these tests take for one of the Internet."""


@pytest.fixture
def server() -> Iterator[Server]:
    """What must not be reached."""
    with Server(answering(OK)) as server:
        yield server


@pytest.fixture
def through(server: Server) -> Iterator[Through]:
    """A proxy that allows some names, none of which leads to the server."""
    rules = Rules.of("good.example:*", "*.wide.example:*", "xn--mnchen-3ya.example:*")
    names = {"good.example": ["127.0.0.1"], "evil.wide.example": ["127.0.0.1"]}
    with proxied(rules, names) as through:
        yield through
    assert server.came == 0


@pytest.fixture
def one_public_address(monkeypatch: pytest.MonkeyPatch) -> None:
    kind_of = _addresses.kind_of
    monkeypatch.setattr(
        _addresses, "kind_of", lambda text: None if text == PUBLIC else kind_of(text)
    )


def request(target: str, *lines: str, host: str | None = "good.example") -> bytes:
    """A request line and headers."""
    hosts = [] if host is None else [f"Host: {host}"]
    return "\r\n".join([target, *hosts, *lines, "", ""]).encode("latin-1")


LOOPBACKS = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "127.0.1",
    "0177.0.0.1",
    "0x7f.0.0.1",
    "0x7f000001",
    "2130706433",
    "017700000001",
    "0",
    "0.0.0.0",  # noqa: S104 - nobody binds it
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[::1%25lo]",
    "localhost",
    "LOCALHOST.",
    "localhost.localdomain",
    "foo.localhost",
    HOST_NAME,
    HOST_NAME.upper(),
    f"{HOST_NAME}.",
    "good.example",
    "evil.wide.example",
]


@pytest.mark.parametrize("host", LOOPBACKS)
def test_services_of_the_host_are_reached_by_no_spelling(
    through: Through, server: Server, host: str
) -> None:
    place = f"{host}:{server.port}"

    tunnel = through.says(request(f"CONNECT {place} HTTP/1.1", host=place))
    plain = through.says(request(f"GET http://{place}/ HTTP/1.1", host=place))

    assert tunnel.startswith(b"HTTP/1.1 403 ") and plain.startswith(b"HTTP/1.1 403 ")
    assert {through.record(n).verdict for n in (0, 1)} == {Verdict.REFUSED}
    assert {through.record(n).status for n in (0, 1)} == {403}


@pytest.mark.parametrize("host", LOOPBACKS)
def test_services_of_the_host_are_reached_by_no_spelling_in_socks(
    through: Through, server: Server, host: str
) -> None:
    name = host.encode()
    ask = b"\5\1\0\3" + bytes([len(name)]) + name + struct.pack("!H", server.port)

    assert through.says(b"\5\1\0", ask)[:4] == b"\5\0\5\2"
    record = through.record()
    assert (record.verdict, record.method, record.status) == (Verdict.REFUSED, "SOCKS5", 2)


@pytest.mark.parametrize(
    "address",
    [
        b"\1" + socket.inet_aton("127.0.0.1"),
        b"\1" + bytes(4),
        b"\4" + socket.inet_pton(socket.AF_INET6, "::1"),
        b"\4" + socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1"),
    ],
)
def test_services_of_the_host_are_reached_by_no_address_in_socks(
    through: Through, server: Server, address: bytes
) -> None:
    ask = b"\5\1\0" + address + struct.pack("!H", server.port)

    assert through.says(b"\5\1\0", ask)[:4] == b"\5\0\5\2"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "good.example.evil.example",
        "evilgood.example",
        "good.example\0.evil.example",
        "evil.example\0.wide.example",
        "evil.example%00.wide.example",
        "evil.example#.wide.example",
        "evil.example?.wide.example",
        "evil.example/.wide.example",
        "evil.example\\.wide.example",
        "evil.example@good.example",
        "good.example@evil.example",
        "good.example:80@evil.example",
        "good.example:80:evil.example",
        "good.example..",
        "..wide.example",
        "wide.example",
        "m\xfcnchen.example",
        "xn--good.example",
        "g\u0585od.example".encode().decode("latin-1"),
        "[good.example]",
        "",
    ],
)
def test_no_trick_with_a_name_reaches_another(through: Through, host: str) -> None:
    tunnel = through.says(request(f"CONNECT {host}:443 HTTP/1.1", host=host))
    plain = through.says(request(f"GET http://{host}/ HTTP/1.1", host=host))
    socks = host.encode("latin-1")
    through.says(b"\5\1\0", b"\5\1\0\3" + bytes([len(socks)]) + socks + b"\1\xbb")

    assert tunnel.split()[1] in (b"403", b"400") and plain.split()[1] in (b"403", b"400")
    for number in range(3):
        record = through.record(number)
        assert record.verdict is Verdict.REFUSED and record.reason
        assert record.host.isprintable() and "@" not in record.host


@pytest.mark.parametrize("host", ["GOOD.example", "good.example.", "Good.Example."])
def test_other_spellings_of_an_allowed_name_are_that_name(
    one_public_address: None, host: str
) -> None:
    asked: list[str] = []

    def resolver(name: str) -> list[str]:
        asked.append(name)
        return [PUBLIC]

    with (
        Server(answering(OK)) as server,
        proxied(Rules.of("good.example:*"), resolver=resolver) as through,
    ):
        through.says(request(f"CONNECT {host}:{server.port} HTTP/1.1", host=host))

    assert asked == ["good.example"] and through.record().host == "good.example"


def test_the_address_that_was_judged_is_the_one_that_is_dialled(one_public_address: None) -> None:
    """A name may lead elsewhere the next time it is asked for: it is asked for once."""
    answers = [["127.0.0.1"]]
    with Server(answering(OK)) as inner, proxied(
        Rules.of("good.example:*"), resolver=lambda _: answers.pop()
    ) as through:  # fmt: skip
        with socket.create_server((PUBLIC, inner.port)) as outer:
            answers.append([PUBLIC])
            sock, head = through.tunnel("good.example", inner.port)
            with sock, outer.accept()[0]:
                assert head.startswith(b"HTTP/1.1 200 ")
        assert len(answers) == 1 and inner.came == 0
        sock, head = through.tunnel("good.example", inner.port)
        sock.close()
        assert head.startswith(b"HTTP/1.1 403 ") and inner.came == 0

    assert "a loopback address" in through.record(1).reason


def test_a_name_that_is_not_allowed_is_not_looked_up() -> None:
    """Asking for it would tell whoever answers for the name."""
    asked: list[str] = []
    rules = Rules.of("good.example", deny=("secret.good.example",))
    with proxied(rules, resolver=lambda name: asked.append(name) or []) as through:
        for host in ("secret.evil.example", "secret.good.example", "1.2.3.4", "good.example:81"):
            through.get(f"http://{host}/")

    assert asked == [] and len(through.records) == 4


def test_of_several_addresses_only_those_that_may_be_are_dialled(one_public_address: None) -> None:
    names = {"good.example": ["127.0.0.1", "::1", "169.254.169.254", PUBLIC]}
    with Server(answering(OK)) as inner, proxied(Rules.of("good.example:*"), names) as through:
        sock, head = through.tunnel("good.example", inner.port)
        sock.close()

    assert head.startswith(b"HTTP/1.1 502 ") and inner.came == 0
    assert through.record().verdict is Verdict.FAILED


@pytest.mark.parametrize(
    "host",
    ["evil.example", "good.example:81", "good.example@evil.example", "good.example, evil.example",
     "good.example evil.example", ""],
)  # fmt: skip
def test_a_host_header_that_differs_from_the_target_is_refused(through: Through, host: str) -> None:
    answer = through.says(request("GET http://good.example/ HTTP/1.1", host=host))
    assert answer.startswith(b"HTTP/1.1 400 ")
    answer = through.says(request("CONNECT good.example:443 HTTP/1.1", host=host))
    assert answer.startswith(b"HTTP/1.1 400 ")

    assert through.record(0).verdict is through.record(1).verdict is Verdict.REFUSED


GOOD = "GET http://good.example/ HTTP/1.1"
POST = "POST http://good.example/ HTTP/1.1\r\nHost: good.example\r\n"
SMUGGLED = {
    "length and chunks": f"{POST}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": f"{POST}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": f"{POST}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "the same length twice": f"{POST}Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "lengths in one": f"{POST}Content-Length: 5, 6\r\n\r\nhello!",
    "a signed length": f"{POST}Content-Length: +5\r\n\r\nhello",
    "a negative length": f"{POST}Content-Length: -5\r\n\r\nhello",
    "a length in hex": f"{POST}Content-Length: 0x5\r\n\r\nhello",
    "a length with an underscore": f"{POST}Content-Length: 1_0\r\n\r\nhello",
    "chunks twice": f"{POST}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"
    "0\r\n\r\n",
    "other codings": f"{POST}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks, then identity": f"{POST}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunks spelled oddly": f"{POST}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks in quotes": f'{POST}Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "chunks after a tab": f"{POST}Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": f"{POST}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a folded header": f"{POST}X: a\r\n b\r\n\r\n",
    "a folded coding": f"{POST}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a folded first header": "GET http://good.example/ HTTP/1.1\r\n Host: good.example\r\n\r\n",
    "a bare LF between headers": f"{POST}X: a\nY: b\r\n\r\n",
    "a bare LF after the first line": f"{GOOD}\nHost: good.example\r\n\r\n",
    "bare LFs alone": f"{GOOD}\nHost: good.example\n\n",
    "a bare CR": f"{POST}X: a\rTransfer-Encoding: chunked\r\n\r\n",
    "a NUL in a header": f"{POST}X: a\0b\r\n\r\n",
    "two hosts": f"{GOOD}\r\nHost: good.example\r\nHost: evil.example\r\n\r\n",
    "no host": f"{GOOD}\r\n\r\n",
    "a header without a name": f"{POST}: x\r\n\r\n",
    "a header without a colon": f"{POST}x\r\n\r\n",
    "chunks in HTTP/1.0": "POST http://good.example/ HTTP/1.0\r\nHost: good.example\r\n"
    "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "HTTP/0.9": "GET http://good.example/\r\n\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2": "GET http://good.example/ HTTP/1.2\r\nHost: good.example\r\n\r\n",
    "two spaces": "GET  http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
    "a tab": "GET\thttp://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
    "a space in the target": "GET http://good.example/ x HTTP/1.1\r\nHost: good.example\r\n\r\n",
    "a body of a tunnel": "CONNECT good.example:80 HTTP/1.1\r\nHost: good.example:80\r\n"
    "Content-Length: 5\r\n\r\nhello",
    "chunks of a tunnel": "CONNECT good.example:80 HTTP/1.1\r\nHost: good.example:80\r\n"
    "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a head without an end": f"{POST}X: " + "a" * 200_000,
}  # fmt: skip


@pytest.mark.parametrize("text", SMUGGLED.values(), ids=list(SMUGGLED))
def test_a_request_with_two_readings_is_refused_and_nothing_after_it_is_read(
    one_public_address: None, text: str
) -> None:
    """All of them ask an allowed host, so that it is their form which is refused."""
    after = "GET http://good.example/smuggled HTTP/1.1\r\nHost: good.example\r\n\r\n"
    names = {"good.example": [PUBLIC]}
    with proxied(Rules.of("good.example:*"), names) as through:
        answer = through.says((text + after).encode("latin-1"))
        record = through.record()

    assert answer.split()[1] in (b"400", b"403", b"431", b"501", b"505"), answer
    assert answer.count(b"HTTP/1.1 ") == 1 and len(through.records) == 1
    assert record.verdict is Verdict.REFUSED and record.status == int(answer.split()[1])


@pytest.mark.parametrize(
    "chunks", ["5\nhello\r\n0\r\n\r\n", "5\r\nhelloXX0\r\n\r\n", "-1\r\nx", "0x5\r\nhello\r\n",
               "5;\nhello\r\n", "z\r\n", "5 5\r\nhello\r\n0\r\n\r\n", "f" * 30 + "\r\n"],
)  # fmt: skip
def test_a_body_that_is_not_what_it_says_does_not_arrive_as_whole(chunks: str) -> None:
    heard: list[bytes] = []

    def listen(sock: socket.socket) -> None:
        heard.append(read_all(sock))

    with Server(listen) as server, proxied(Rules.of(named(server))) as through:
        place = named(server)
        head = f"POST http://{place}/ HTTP/1.1\r\nHost: {place}\r\nTransfer-Encoding: chunked\r\n"
        with through.client() as sock:
            sock.sendall(f"{head}\r\n{chunks}GET /smuggled HTTP/1.1\r\n\r\n".encode())
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock).startswith(b"HTTP/1.1 400 ")
        wait_until(lambda: heard)

    assert not heard[0].endswith(b"0\r\n\r\n") and b"smuggled" not in heard[0]


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/http://good.example/",
        "//good.example/",
        "http:/good.example/",
        "http:///good.example/",
        "http://",
        "http:good.example",
        "http:\\\\good.example\\",
        "https://good.example/",
        "ftp://good.example/",
        "file:///etc/passwd",
        "unix:///run/podman/podman.sock:/",
        "http+unix://%2Frun%2Fpodman.sock/",
        "good.example/",
        "good.example:80",
        "*",
        "http://good.example#@evil.example/",
        "http://good.example/#fragment",
        "http://good.example:/",
        "http://good.example:0/",
        "http://good.example:65536/",
        "http://good.example:080080/",
        "http://good.example:+80/",
        "http://good.example:8 0/",
        "http://good.example\\@evil.example/",
        "http://user:secret@good.example/",
        "/podbot/allow?host=evil.example",
        "http://podbot.internal/",
    ],
)
def test_the_proxy_itself_answers_nothing_and_odd_targets_are_refused(
    through: Through, target: str
) -> None:
    for method in ("GET", "OPTIONS", "TRACE", "POST"):
        answer = through.says(request(f"{method} {target} HTTP/1.1"))
        assert answer.split()[1] in (b"400", b"403"), (method, answer)
    assert "secret" not in repr([through.record(n) for n in range(4)])
    assert {through.record(n).verdict for n in range(4)} == {Verdict.REFUSED}


@pytest.mark.parametrize(
    "target",
    [
        "good.example",
        "good.example:",
        "http://good.example:443/",
        "good.example:443/",
        ":443",
        "443",
        "good.example:http",
    ],
)
def test_odd_targets_of_tunnels_are_refused(through: Through, target: str) -> None:
    answer = through.says(request(f"CONNECT {target} HTTP/1.1"))

    assert answer.split()[1] in (b"400", b"403")


def test_what_follows_a_refused_tunnel_is_not_served(server: Server) -> None:
    with proxied(Rules.of(named(server))) as through:
        place = named(server)
        allowed = f"GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\n\r\n".encode()
        evil = request("CONNECT evil.example:443 HTTP/1.1", host="evil.example:443")
        answer = through.says(evil + allowed)

    assert answer.count(b"HTTP/1.1 ") == 1 and answer.startswith(b"HTTP/1.1 403 ")
    assert server.came == 0 and len(through.records) == 1


def test_what_follows_an_allowed_request_is_judged_by_itself(server: Server) -> None:
    with proxied(Rules.of(named(server))) as through:
        place = named(server)
        allowed = f"GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\n\r\n".encode()
        for after in (
            request("GET http://evil.example/ HTTP/1.1", host="evil.example"),
            request("CONNECT evil.example:443 HTTP/1.1", host="evil.example"),
        ):
            answer = through.says(allowed + after)
            assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1 403 ") == 1

    assert [r.verdict.value for r in through.records] == ["allowed", "refused"] * 2


def test_a_redirect_is_a_new_request_that_is_judged() -> None:
    there = b"HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n"
    with Server(answering(there)) as server, proxied(Rules.of(named(server))) as through:
        import urllib.error
        import urllib.request

        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({"http": f"http://127.0.0.1:{through.port}"})
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            opener.open(f"http://{named(server)}/", timeout=60)
        with caught.value as error:
            said = error.read().decode()

    assert caught.value.code == 403
    assert said == (
        "podbot: evil.example:80 is not on the allowlist\nto allow it: --allow evil.example\n"
    )


def test_no_other_protocol_takes_over_a_plain_line() -> None:
    """HTTP/2 without TLS would carry requests that nobody judges."""
    heard: list[bytes] = []
    with Server(answering(OK, heard)) as server, proxied(Rules.of(named(server))) as through:
        answer = through.get(
            f"http://{named(server)}/",
            "Upgrade: h2c",
            "HTTP2-Settings: AAMAAABk",
        )

    assert answer.startswith(b"HTTP/1.1 200 ") and b"pgrade" not in heard[0]


def test_a_server_cannot_make_a_plain_line_another_protocols() -> None:
    switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
    with Server(answering(switching)) as server, proxied(Rules.of(named(server))) as through:
        assert through.get(f"http://{named(server)}/").startswith(b"HTTP/1.1 502 ")


def test_an_answer_with_two_lengths_reaches_the_client_with_one() -> None:
    both = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n0\r\n\r\n"
    )
    with Server(answering(both)) as server, proxied(Rules.of(named(server))) as through:
        answer = through.get(f"http://{named(server)}/")

    assert b"ontent-" not in answer and answer.endswith(b"5\r\nhello\r\n0\r\n\r\n")


def test_a_header_cannot_be_used_to_strip_those_that_matter() -> None:
    heard: list[bytes] = []
    with Server(answering(OK, heard)) as server, proxied(Rules.of(named(server))) as through:
        place = named(server)
        through.says(
            f"POST http://{place}/ HTTP/1.1\r\nHost: {place}\r\nX-Mine: 1\r\nContent-Length: 0\r\n"
            "Connection: close, host, content-length, x-mine\r\n\r\n".encode()
        )

    assert f"Host: {place}\r\n".encode() in heard[0] and b"Content-Length: 0" in heard[0]
    assert b"X-Mine" not in heard[0]


@pytest.mark.parametrize(
    "first",
    [
        b"\x16\x03\x01\x02\x00",  # TLS
        b"\4\1\0\x50\x7f\0\0\1\0",  # SOCKS4
        b"SSH-2.0-x\r\n\r\n",
        b"\r\n\r\n",
        b"\0",
        b"\xff" * 100 + b"\r\n\r\n",
    ],
)
def test_other_protocols_on_the_port_are_refused_and_noted(through: Through, first: bytes) -> None:
    with through.client() as sock:
        sock.sendall(first)
        sock.shutdown(socket.SHUT_WR)
        read_all(sock)

    assert through.record().verdict is Verdict.REFUSED


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ((b"\5\1\2",), b"\5\xff"),  # only with a password
        ((b"\5\1\0", b"\5\2\0\1\1\2\3\4\0\x50"), b"\5\0\5\7"),  # BIND
        ((b"\5\1\0", b"\5\3\0\1\1\2\3\4\0\x50"), b"\5\0\5\7"),  # UDP
        ((b"\5\1\0", b"\5\1\0\2"), b"\5\0\5\x08"),  # no kind of address
        ((b"\5\1\0", b"\4\1\0\1\1\2\3\4\0\x50"), b"\5\0\5\1"),  # another version
        ((b"\5\1\0", b"\5\1\0\3\0\0\x50"), b"\5\0\5\2"),  # no name
        ((b"\5\1\0", b"\5\1\0\3\x0cgood.example\0\0"), b"\5\0\5\2"),  # no port
    ],
)
def test_of_socks_only_connecting_is_allowed(
    through: Through, pieces: tuple[bytes, ...], code: bytes
) -> None:
    assert through.says(*pieces)[: len(code)] == code
    assert through.record().verdict is Verdict.REFUSED


def test_socks_reaches_what_is_allowed() -> None:
    with Server(echo) as server, proxied(Rules.of(named(server))) as through:
        name = HOST_NAME.encode()
        with through.client() as sock:
            sock.sendall(b"\5\2\0\2")
            assert sock.recv(2) == b"\5\0"
            ask = b"\5\1\0\3" + bytes([len(name)]) + name + struct.pack("!H", server.port)
            sock.sendall(ask + b"ahead")
            assert sock.recv(10) == b"\5\0\0\1" + bytes(6)
            assert sock.recv(5) == b"ahead"
        record = through.record()

    assert (record.verdict, record.method, record.status) == (Verdict.ALLOWED, "SOCKS5", 0)
    assert (record.bytes_up, record.bytes_down) == (5, 5)


def test_socks_says_when_nobody_answers() -> None:
    with Server(echo) as server:
        port = server.port
    with proxied(Rules.of(f"{HOST_NAME}:{port}")) as through:
        name = HOST_NAME.encode()
        ask = b"\5\1\0\3" + bytes([len(name)]) + name + struct.pack("!H", port)
        assert through.says(b"\5\1\0", ask)[:4] == b"\5\0\5\5"

    assert through.record().verdict is Verdict.FAILED


def test_no_secret_of_a_request_is_in_a_record_or_an_answer(server: Server) -> None:
    secret = "s3cr3t-value"
    tries = [
        f"GET http://evil.example/path?key={secret} HTTP/1.1\r\nHost: evil.example\r\n"
        f"Authorization: Bearer {secret}\r\nCookie: {secret}\r\n\r\n",
        f"GET http://u:{secret}@evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        f"CONNECT {secret}@evil.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        f"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nbad header {secret}\r\n\r\n",
        f"GET http://evil.example/ HTTP/1.1\r\nHost: {secret}:{secret}\r\n\r\n",
        f"{secret} {secret}\r\n\r\n",
        f"POST http://{named(server)}/?{secret} HTTP/1.1\r\nHost: {named(server)}\r\n"
        f"X-Api-Key: {secret}\r\nContent-Length: {len(secret)}\r\n\r\n{secret}",
    ]
    with proxied(Rules.of(named(server))) as through:
        for number, text in enumerate(tries):
            with through.client() as sock:
                sock.sendall(text.encode())
                sock.shutdown(socket.SHUT_WR)
                assert secret.encode() not in read_all(sock)
            through.record(number)

    assert secret not in repr(through.records) + repr([r.as_data() for r in through.records])


def test_a_refusal_says_what_would_allow_it(through: Through) -> None:
    sock, head = through.tunnel("files.example", 8443)
    with sock:
        body = read_all(sock)

    assert head.startswith(b"HTTP/1.1 403 ") and b"text/plain" in head
    assert b"to allow it: --allow files.example:8443\n" in body
    assert through.record().would_allow == "files.example:8443"


def test_the_answer_to_a_refused_head_request_has_no_body(through: Through) -> None:
    with through.client() as sock:
        sock.sendall(request("HEAD http://evil.example/ HTTP/1.1", host="evil.example"))
        assert read_head(sock).startswith(b"HTTP/1.1 403 ") and read_all(sock) == b""
