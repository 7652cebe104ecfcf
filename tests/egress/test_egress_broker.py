"""Routes that add a credential: the service gets the real one, and what runs inside never has it.

The service here accepts the real key only, over TLS; inside there are placeholders.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import certificates
import pytest
from small_web import (
    Server,
    Through,
    echo,
    proxied,
    read_head,
)

from podbot.egress import (
    HOST_NAME,
    Broker,
    EgressError,
    FromCommand,
    FromFile,
    FromVariable,
    Route,
    Rules,
    Source,
    Verdict,
    built_in,
)
from podbot.egress.broker import may_be_credential
from podbot.errors import Kind

REAL = "real-key-5ca1ab1e"
PLACEHOLDER = "sk-ant-placeholder"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.make(
        tmp_path_factory.mktemp("certificates"),
        model=("/CN=model.test", "DNS:model.test"),
        other=("/CN=other.test", "DNS:other.test"),
    )


Answering = Callable[[socket.socket, bytes], None]


def read_body(sock: socket.socket, head: bytes) -> None:
    """What belongs to a head: to close on what was not read would take the answer back."""
    (size,) = re.findall(rb"(?i)\r\ncontent-length: (\d+)", head) or [b"0"]
    left = int(size)
    while left:
        left -= len(sock.recv(left))


def fine(sock: socket.socket, head: bytes) -> None:
    read_body(sock, head)
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nSet-Cookie: a=b\r\n\r\nfine")


class Service(Server):
    """Over TLS, for who has the real key."""

    def __init__(self, papers: Path, answer: Answering = fine, *, holder: str = "model"):
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(papers / f"{holder}.pem", papers / f"{holder}-key.pem")
        self.heard: list[bytes] = []
        self._answer = answer
        super().__init__(self._one_request)

    def _one_request(self, raw: socket.socket) -> None:
        with self._context.wrap_socket(raw, server_side=True) as sock:
            head = read_head(sock)
            self.heard.append(head)
            if f"x-api-key: {REAL}\r\n".encode() not in head.lower():
                read_body(sock, head)
                sock.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
            else:
                self._answer(sock, head)


def route(port: int, source: Source, **more: object) -> Route:
    base = f"https://model.test:{port}"
    return built_in("anthropic", source, base=base, **more)  # type: ignore[arg-type]


@contextmanager
def brokered(papers: Path, *routes: Route, **more: object) -> Iterator[Through]:
    names = {"model.test": ["127.0.0.1"]}
    environment = {"SSL_CERT_FILE": str(papers / "ca.pem")}
    more = {"environment": environment} | more
    with proxied(Rules(), names, broker=Broker(routes), **more) as through:
        yield through


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> FromVariable:
    monkeypatch.setenv("MODEL_KEY", REAL)
    return FromVariable("MODEL_KEY")


def ask(
    through: Through, line: str = "POST /anthropic/v1/messages", *headers: str, body: str = "{}"
) -> bytes:
    lines = [f"{line} HTTP/1.1", f"Host: 127.0.0.1:{through.port}", "Connection: close"]
    lines += [f"Content-Length: {len(body)}", *headers, "", body]
    return through.says("\r\n".join(lines).encode())


def test_the_service_gets_the_real_key_and_nothing_that_may_be_another(
    papers: Path, source: FromVariable
) -> None:
    with Service(papers) as service, brokered(papers, route(service.port, source)) as through:
        answer = ask(
            through,
            f"POST /anthropic/v1/messages?beta=true&key={PLACEHOLDER}&access_token={PLACEHOLDER}",
            f"x-api-key: {PLACEHOLDER}",
            f"X-API-KEY: {PLACEHOLDER}",
            f"Authorization: Bearer {PLACEHOLDER}",
            f"Proxy-Authorization: Basic {PLACEHOLDER}",
            f"Cookie: session={PLACEHOLDER}",
            f"X-Goog-Api-Key: {PLACEHOLDER}",
            f"api-key: {PLACEHOLDER}",
            f"apiKey: {PLACEHOLDER}",
            f"X-Amz-Security-Token: {PLACEHOLDER}",
            f"X-Auth-Token: {PLACEHOLDER}",
            "X-HTTP-Method-Override: DELETE",
            "anthropic-version: 2023-06-01",
            "Idempotency-Key: once",
        )
        record = through.record()

    head = service.heard[0]
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"fine")
    assert b"et-Cookie" not in answer
    assert head.startswith(b"POST /v1/messages?beta=true HTTP/1.1\r\n")
    assert f"Host: model.test:{service.port}\r\n".encode() in head
    assert head.lower().count(b"x-api-key") == 1 and PLACEHOLDER.encode() not in head
    assert b"Override" not in head
    assert b"anthropic-version: 2023-06-01" in head and b"Idempotency-Key: once" in head
    assert (record.verdict, record.host, record.port) == (
        Verdict.ALLOWED,
        "model.test",
        service.port,
    )
    assert (record.rule, record.path, record.status) == ("route anthropic", "/v1/messages", 200)


def test_the_key_is_in_nothing_that_what_runs_inside_can_see(
    papers: Path, source: FromVariable
) -> None:
    with Service(papers) as service, brokered(papers, route(service.port, source)) as through:
        said = [
            ask(through),
            ask(through, "POST /anthropic/v1/other"),
            ask(through, "GET /elsewhere/v1/messages"),
            ask(through, "TRACE /anthropic/v1/messages"),
        ]
        through.record(3)

    everything = b"".join(said).decode() + repr(through.records)
    everything += repr([each.as_data() for each in through.records]) + repr(source)
    assert REAL not in everything


def test_what_a_model_says_comes_through_piece_by_piece(papers: Path, source: FromVariable) -> None:
    seen = threading.Semaphore(0)

    def stream(sock: socket.socket, head: bytes) -> None:
        read_body(sock, head)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\n")  # fmt: skip
        for number in range(4):
            event = b"data: %d\n\n" % number
            sock.sendall(b"%x\r\n%s\r\n" % (len(event), event))
            assert seen.acquire(timeout=60)  # the next only once this was received
        sock.sendall(b"0\r\n\r\n")

    with (
        Service(papers, stream) as service,
        brokered(papers, route(service.port, source)) as through,
        through.client() as sock,
    ):
        sock.sendall(
            b"POST /anthropic/v1/messages HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 2\r\n\r\n{}"
        )
        assert b"text/event-stream" in read_head(sock)
        for number in range(4):
            got = b""
            while b"data: %d\n\n" % number not in got:
                got += sock.recv(1000)
            seen.release()


def test_a_large_body_goes_up_and_comes_back_through_tls(
    papers: Path, source: FromVariable
) -> None:
    size = 8 * 1024 * 1024

    def back(sock: socket.socket, _: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        left = size
        while left:
            data = sock.recv(65536)
            sock.sendall(data)
            left -= len(data)

    with (
        Service(papers, back) as service,
        brokered(papers, route(service.port, source)) as through,
        through.client() as sock,
    ):
        head = "POST /anthropic/v1/messages HTTP/1.1\r\nHost: [::1]:1\r\n"
        body = f"{head}Content-Length: {size}\r\n\r\n".encode() + b"x" * size
        sending = threading.Thread(target=sock.sendall, args=(body,))
        sending.start()
        read_head(sock)
        got = 0
        while got < size:
            got += len(sock.recv(65536))
        sending.join()

    assert got == size


@pytest.mark.parametrize(
    "line",
    [
        "GET /anthropic/v1/messages",
        "POST /anthropic/v1/messages/",
        "POST /anthropic/v1/messages/batches",
        "POST /anthropic/v1/files",
        "DELETE /anthropic/v1/models/x",
        "GET /anthropic/v1/models/",
        "GET /anthropic/v1/models/../organizations",
        "GET /anthropic/v1/models/%2e%2e/organizations",
        "GET /anthropic/v1/models/..%2forganizations",
        "GET /anthropic/v1/models//organizations",
        "GET /anthropic/v1/models/%252e%252e/organizations",
        "POST /anthropic//v1/messages",
        "POST /anthropic",
        "POST /anthropic/",
        "POST //anthropic/v1/messages",
        "POST /ANTHROPIC/v1/messages",
        "POST /v1/messages",
        "GET /",
        "POST /openai/../anthropic/v1/messages",
        "GET /anthropic/../openai/v1/models",
        "GET /anthropic/v1/models/../../../openai/v1/models",
        "GET /openai/v1/models",
        "CONNECT /anthropic/v1/messages",
        "POST /anthropic/v1/messages#x",
        "POST /anthropic/v1\\messages",
    ],
)
def test_only_what_a_route_lists_is_passed_on_and_no_other_route_is_reached(
    papers: Path, source: FromVariable, line: str
) -> None:
    with Service(papers) as service, brokered(papers, route(service.port, source)) as through:
        answer = ask(through, line)
        record = through.record()

    assert answer.split()[1] in (b"403", b"400") and service.came == 0
    assert record.verdict is Verdict.REFUSED and len(through.records) == 1


@pytest.mark.parametrize(
    "host", ["model.test", "evil.example", "127.0.0.1.evil.example", "127.0.0.1:x"]
)
def test_a_route_is_asked_by_the_proxys_own_address_only(
    papers: Path, source: FromVariable, host: str
) -> None:
    with Service(papers) as service, brokered(papers, route(service.port, source)) as through:
        text = f"POST /anthropic/v1/messages HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n"
        assert through.says(text.encode()).startswith(b"HTTP/1.1 403 ")
        assert service.came == 0


def test_a_route_allows_no_connection_to_its_host(papers: Path, source: FromVariable) -> None:
    with Service(papers) as service, brokered(papers, route(service.port, source)) as through:
        sock, head = through.tunnel("model.test", service.port)
        sock.close()
        assert head.startswith(b"HTTP/1.1 403 ")
        url = f"http://model.test:{service.port}/v1/messages"
        assert through.get(url).startswith(b"HTTP/1.1 403 ")
        assert service.came == 0


@pytest.mark.parametrize(("holder", "trusted"), [("other", True), ("model", False)])
def test_the_key_goes_to_nobody_who_cannot_show_who_he_is(
    papers: Path, source: FromVariable, holder: str, trusted: bool
) -> None:
    more = {} if trusted else {"environment": {}}
    with (
        Service(papers, holder=holder) as service,
        brokered(papers, route(service.port, source), **more) as through,
    ):
        assert ask(through).startswith(b"HTTP/1.1 502 ")
        assert "certificate" in through.record().reason
    assert service.heard == []


def test_whoever_speaks_no_tls_gets_no_key(papers: Path, source: FromVariable) -> None:
    heard: list[bytes] = []

    def plain(sock: socket.socket) -> None:
        heard.append(sock.recv(1000))
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with Server(plain) as service, brokered(papers, route(service.port, source)) as through:
        assert ask(through).startswith(b"HTTP/1.1 502 ")
    assert REAL.encode() not in b"".join(heard)


def test_an_answer_that_is_cut_off_is_not_made_whole(papers: Path, source: FromVariable) -> None:
    def cut(sock: socket.socket, head: bytes) -> None:
        read_body(sock, head)
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        # Without TLS's own goodbye: it could be somebody between who ends it.
        os.close(sock.detach())

    with Service(papers, cut) as service, brokered(papers, route(service.port, source)) as through:
        answer = ask(through)
        record = through.record()

    assert not answer.endswith(b"0\r\n\r\n") and record.verdict is Verdict.FAILED


def test_an_answer_comes_through_while_the_request_is_not_read(
    papers: Path, source: FromVariable
) -> None:
    """A side that is slow to read must not keep us from reading what it says."""
    size = 32 * 1024 * 1024  # more than all the buffers on the way

    def answer_first(sock: socket.socket, _: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        sock.sendall(bytes(size))
        while sock.recv(65536):
            pass

    with (
        Service(papers, answer_first) as service,
        brokered(papers, route(service.port, source)) as through,
        through.client() as sock,
    ):
        head = "POST /anthropic/v1/messages HTTP/1.1\r\nHost: [::1]:1\r\n"
        body = f"{head}Content-Length: {size}\r\n\r\n".encode() + bytes(size)

        def send() -> None:
            with suppress(OSError):  # the answer was whole before
                sock.sendall(body)

        sending = threading.Thread(target=send)
        sending.start()
        read_head(sock)
        got = 0
        while got < size:
            part = len(sock.recv(65536))
            assert part
            got += part
        sending.join()


def test_requests_of_a_route_follow_each_other_on_one_connection(
    papers: Path, source: FromVariable
) -> None:
    with (
        Service(papers) as service,
        brokered(papers, route(service.port, source)) as through,
        through.client() as sock,
    ):
        for _ in range(2):
            sock.sendall(b"GET /anthropic/v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert read_head(sock).startswith(b"HTTP/1.1 200 ")
            assert sock.recv(4) == b"fine"


def test_a_key_that_is_renewed_is_used_at_once(papers: Path, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("old\n")
    with (
        Service(papers) as service,
        brokered(papers, route(service.port, FromFile(str(file)))) as through,
    ):
        assert ask(through).startswith(b"HTTP/1.1 401 ")
        file.write_text(f"{REAL}\n")
        assert ask(through).startswith(b"HTTP/1.1 200 ")


def test_a_key_comes_from_a_command(papers: Path) -> None:
    source = FromCommand((sys.executable, "-c", f"print({REAL!r})"))
    with Service(papers) as service, brokered(papers, route(service.port, source)) as through:
        assert ask(through).startswith(b"HTTP/1.1 200 ")


class Broken:
    """A source of somebody else's."""

    def read(self) -> str:
        raise ValueError(REAL)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (FromVariable("PODBOT_TEST_NOT_SET"), "its variable is not set"),
        (FromFile("/nowhere/key"), "its file cannot be read"),
        (FromCommand(("/nowhere/command",)), "its command gives none"),
        (FromCommand(()), "its command gives none"),
        (FromCommand(("sh", "-c", f"echo {REAL}; exit 3")), "its command gives none"),
        (FromCommand(("printf", f"{REAL}\\r\\nX: y")), "its command gives none"),
        (Broken(), "its source gives none"),
    ],
)
def test_without_a_credential_nothing_is_asked_and_it_is_said_why(
    papers: Path, source: Source, why: str
) -> None:
    with Service(papers) as service, brokered(papers, route(service.port, source)) as through:
        answer = ask(through)
        record = through.record()

    assert answer.startswith(b"HTTP/1.1 502 ") and why in answer.decode()
    assert record.verdict is Verdict.FAILED and why in record.reason
    assert service.came == 0 and REAL not in answer.decode() + repr(record)
    # Where the key should have lain is nobody's business inside.
    assert not re.search("PODBOT_TEST|nowhere|printf|sh", answer.decode() + record.reason)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (FromVariable("PODBOT_TEST_NOT_SET"), "PODBOT_TEST_NOT_SET: it is empty or not set"),
        (FromFile("/nowhere/key"), "/nowhere/key: No such file"),
        (FromCommand(("/nowhere/command",)), "/nowhere/command: it does not start"),
        (FromCommand(()), "it does not start"),
        (FromCommand(("sh", "-c", f"echo {REAL}; exit 3")), "it ended with 3"),
        (FromCommand(("printf", f"{REAL}\\r\\nX: y")), "holds what no credential does"),
    ],
)
def test_who_reads_a_source_is_told_why_there_is_nothing(source: Source, why: str) -> None:
    with pytest.raises(EgressError, match=re.escape(why)) as caught:
        source.read()
    assert caught.value.kind is Kind.NO_CREDENTIAL and REAL not in str(caught.value)


def test_a_file_that_holds_no_text_holds_no_credential(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(EgressError) as caught:
        FromFile(str(file)).read()
    assert caught.value.kind is Kind.NO_CREDENTIAL


def test_a_route_goes_through_the_hosts_own_proxy(papers: Path, source: FromVariable) -> None:
    asked: list[bytes] = []

    with Service(papers) as service:

        def forward(sock: socket.socket) -> None:
            asked.append(read_head(sock))
            with socket.create_connection(("127.0.0.1", service.port)) as there:
                sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                up = threading.Thread(target=_carry, args=(sock, there), daemon=True)
                up.start()
                _carry(there, sock)
                sock.shutdown(socket.SHUT_RDWR)  # closing would not wake the other thread

        with Server(forward) as next_proxy:
            environment = {
                "https_proxy": f"http://127.0.0.1:{next_proxy.port}",
                "CURL_CA_BUNDLE": str(papers / "ca.pem"),
            }
            routed = route(service.port, source)
            with brokered(papers, routed, environment=environment) as through:
                assert ask(through).endswith(b"fine")

    assert asked[0].startswith(f"CONNECT model.test:{service.port} ".encode())
    assert REAL.encode() not in asked[0]


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)


def test_a_model_on_this_machine_is_reached_without_tls(source: FromVariable) -> None:
    heard: list[bytes] = []

    def local(sock: socket.socket) -> None:
        heard.append(read_head(sock))
        read_body(sock, heard[0])
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with Server(local) as server:
        base = f"http://{HOST_NAME}:{server.port}/api"
        routes = [built_in("openai", source, name="local", base=base)]
        with proxied(Rules(), broker=Broker(routes)) as through:
            answer = ask(through, "POST /local/v1/chat/completions")

    assert answer.endswith(b"ok") and heard[0].startswith(b"POST /api/v1/chat/completions HTTP/1.1")
    assert f"Authorization: Bearer {REAL}\r\n".encode() in heard[0]


def test_without_a_broker_there_are_no_routes() -> None:
    with Server(echo) as server, proxied(Rules()) as through:
        assert ask(through).split()[1] == b"403"
        assert server.came == 0


@pytest.mark.parametrize(
    "field",
    [
        {"name": "Not A Name"},
        {"name": "a/b"},
        {"base": "http://model.test"},
        {"base": "ftp://model.test"},
        {"base": "https://user:secret@model.test"},
        {"base": "https://127.1"},
        {"base": "https://model.test:0"},
        {"base": "https://model.test/?x=1"},
        {"header": "X:Y"},
        {"form": "no place for it"},
        {"allows": ("/v1",)},
        {"allows": ("GET v1",)},
        {"allows": ("GET /v1/../v2",)},
    ],
)
def test_a_route_that_cannot_be_is_refused(field: dict[str, object], source: FromVariable) -> None:
    given = {"name": "a", "base": "https://a.example", "source": source, "allows": ()} | field
    with pytest.raises(EgressError) as caught:
        Route(**given)  # type: ignore[arg-type]
    assert caught.value.kind is Kind.BAD_RULE


def test_routes_have_names_of_their_own_and_kinds_that_there_are(source: FromVariable) -> None:
    made = built_in("gemini", source)
    assert made.permits("POST", "/v1beta/models/gemini-x:streamGenerateContent")
    with pytest.raises(EgressError, match="two of this name"):
        Broker([made, made])
    with pytest.raises(EgressError) as caught:
        built_in("claude", source)
    assert "anthropic" in (caught.value.remedy or "")
    assert Broker([made]).routes == (made,)


@pytest.mark.parametrize("name", ["anthropic-version", "content-type", "user-agent", "accept",
                                  "openai-organization", "x-stainless-lang", "alt", "monkey-x",
                                  "idempotency-key", "session_id"])  # fmt: skip
def test_what_is_no_credential_is_passed_on(name: str) -> None:
    assert may_be_credential(name) is (name == "monkey-x")  # rather one too many than too few
