"""Calls to an engine: connections that are used again, errors that say what was tried."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import standin
from standin import Asked, StandIn, chunked, reply

from podbot.engine import Engine
from podbot.engine.http import replies
from podbot.engine.http.client import Call, Client, Purpose
from podbot.engine.http.dialing import SocketDialer
from podbot.errors import ContainerError, Kind

PURPOSE = Purpose("do it", Kind.ENGINE_FAILED, "thing")


@pytest.fixture
def made(podman: tuple[StandIn, Engine]) -> StandIn:
    return podman[0]


@pytest.fixture
def client(podman: tuple[StandIn, Engine]) -> Client:
    return podman[1].client


def get(path: str = "/x", seconds: float | None = 60) -> Call:
    return Call("GET", path, PURPOSE, seconds=seconds)


def failure(client: Client, call: Call) -> ContainerError:
    with pytest.raises(ContainerError) as caught:
        client.call(call)
    return caught.value


def test_connections_are_used_again(made: StandIn, client: Client) -> None:
    made.on("GET /x", reply({"a": 1}))

    answers = [client.call(get()).json() for _ in range(5)]

    assert answers == [{"a": 1}] * 5
    assert made.connections == 1


def test_json_is_sent_as_such(made: StandIn, client: Client) -> None:
    made.on("POST /x", reply({}))

    client.call(Call("POST", "/x", PURPOSE, {"q": "1"}, json={"é": [1, None]}))

    assert made.last.json() == {"é": [1, None]}
    assert made.last.headers["content-type"] == "application/json"
    assert made.last.target == "/x?q=1"


def test_a_connection_that_the_engine_closed_is_not_used_again(
    made: StandIn, client: Client
) -> None:
    made.on("POST /x", reply({}))
    client.call(Call("POST", "/x", PURPOSE))
    made.hang_up()

    client.call(Call("POST", "/x", PURPOSE))

    assert made.connections == 2


def hanging_up_once(made: StandIn) -> None:
    """The second request on any connection is met by its end."""
    seen: list[socket.socket] = []

    def answer(connection: socket.socket, asked: Asked) -> bytes | None:
        if connection in seen:
            connection.shutdown(socket.SHUT_RDWR)
            return None
        seen.append(connection)
        return reply({})

    made.on("(GET|POST) /x", answer)


def test_asking_is_tried_again_when_an_old_connection_ends_under_it(
    made: StandIn, client: Client
) -> None:
    hanging_up_once(made)

    client.call(get())
    client.call(get())

    assert made.connections == 2


def test_doing_is_not_tried_again_because_it_may_have_been_done(
    made: StandIn, client: Client
) -> None:
    hanging_up_once(made)
    client.call(Call("POST", "/x", PURPOSE))

    error = failure(client, Call("POST", "/x", PURPOSE))

    assert error.kind is Kind.CONNECTION_FAILED
    assert "closed the connection without an answer" in error.message


def test_a_reply_that_takes_too_long_says_how_long(made: StandIn, client: Client) -> None:
    made.on("GET /x", lambda *_: b"")

    error = failure(client, get(seconds=0.05))

    assert error.kind is Kind.CONNECTION_FAILED
    assert "gave no answer within 0.05 s" in error.message
    assert (error.subject, isinstance(error.__cause__, TimeoutError)) == ("thing", True)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, {"message": "it broke"}, "cannot do it: it broke"),
        (500, {"message": "", "cause": "deep"}, "cannot do it: deep"),
        (400, {"error": "bad"}, "cannot do it: bad"),
        (502, "<html>proxy\x1b[31m</html>", r"cannot do it: <html>proxy\x1b[31m</html>"),
        (500, {}, "cannot do it: Said"),
        (500, [1], "cannot do it: Said"),
        (500, b"\xff\xfe", "cannot do it: ��"),
        (500, {"message": "x" * 9000}, "cannot do it: " + "x" * 2000 + "…"),
    ],
)
def test_a_refusal_says_what_the_engine_said(
    made: StandIn, client: Client, status: int, body: object, said: str
) -> None:
    made.on("GET /x", reply(body, status))

    error = failure(client, get())

    assert error.message == said
    assert error.kind is Kind.ENGINE_FAILED


def test_a_status_that_is_expected_is_no_error(made: StandIn, client: Client) -> None:
    made.on("GET /x", reply({}, 404))

    assert client.call(get(), accept=(404,)).status == 404


@pytest.mark.parametrize(
    ("status", "cause", "kind"),
    [
        (404, "x", Kind.IMAGE_NOT_FOUND),
        (409, "x", Kind.IN_USE),
        (500, "that name is already in use", Kind.NAME_IN_USE),
        (500, "image not known", Kind.IMAGE_NOT_FOUND),
        (404, "no such container", Kind.CONTAINER_NOT_FOUND),
        (500, "container state improper", Kind.CONTAINER_NOT_RUNNING),
        (500, "other", Kind.CREATE_FAILED),
    ],
)
def test_the_kind_of_a_refusal_follows_from_status_and_cause(
    made: StandIn, client: Client, status: int, cause: str, kind: Kind
) -> None:
    made.on("GET /x", reply({"cause": cause, "message": "no"}, status))
    purpose = Purpose(
        "do it",
        Kind.CREATE_FAILED,
        missing=Kind.IMAGE_NOT_FOUND,
        conflict=Kind.IN_USE,
        remedies={kind: "mend it"},
    )

    error = failure(client, Call("GET", "/x", purpose))

    assert (error.kind, error.remedy) == (kind, "mend it")


def test_a_purpose_that_knows_one_kind_gets_no_other(made: StandIn, client: Client) -> None:
    made.on("GET /x", reply({"cause": "no such container", "message": "no"}, 404))

    assert failure(client, get()).kind is Kind.ENGINE_FAILED


@pytest.mark.parametrize(
    "said",
    [
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n",
    ],
)
def test_a_reply_that_breaks_the_rules_is_an_error_of_the_protocol(
    made: StandIn, client: Client, said: bytes
) -> None:
    def answer(connection: socket.socket, _: object) -> None:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_RDWR)

    made.on("GET /x", answer)

    error = failure(client, get())

    assert error.kind is Kind.ENGINE_PROTOCOL
    assert "Docker or Podman" in str(error.remedy)


def test_a_reply_without_end_is_cut_off(
    made: StandIn, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podbot.engine.http.client.MAX_REPLY", 1000)
    made.on("GET /x", reply(b"x" * 2000))

    assert failure(client, get()).kind is Kind.ENGINE_PROTOCOL


def test_an_upload_that_is_refused_halfway_tells_the_engines_reason(
    made: StandIn, client: Client, folder: Path
) -> None:
    """As Go's servers do: they answer, read a little more, and close."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "early.sock"))
    listener.listen()

    def parts() -> Iterator[bytes]:
        yield b"x" * 100_000
        connection, _ = listener.accept()
        connection.sendall(reply({"message": "no such folder"}, 404))
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()
        while True:
            yield b"x" * 100_000

    uploading = Client(SocketDialer(str(folder / "early.sock")), "early")
    call = Call("PUT", "/x", PURPOSE, body=parts(), seconds=60)
    try:
        assert failure(uploading, call).message == "cannot do it: no such folder"
    finally:
        uploading.close()
        listener.close()


def test_an_upload_that_is_cut_off_without_a_word_is_a_lost_connection(folder: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "early.sock"))
    listener.listen()

    def parts() -> Iterator[bytes]:
        yield b"x"
        listener.accept()[0].close()
        while True:
            yield b"x" * 100_000

    uploading = Client(SocketDialer(str(folder / "early.sock")), "early")
    try:
        call = Call("PUT", "/x", PURPOSE, body=parts(), seconds=60)
        error = failure(uploading, call)
    finally:
        uploading.close()
        listener.close()

    assert error.kind is Kind.CONNECTION_FAILED
    assert "was lost" in error.message


def test_an_error_in_the_body_of_an_upload_is_the_callers(made: StandIn, client: Client) -> None:
    def parts() -> Iterator[bytes]:
        yield b"x"
        raise KeyError("mine")

    for _ in range(2):  # with a fresh connection and with an idle one
        with pytest.raises(KeyError):
            client.call(Call("PUT", "/x", PURPOSE, body=parts()))
        client.call(get("/_ping"))


def test_a_stream_is_read_as_it_comes_and_gives_its_connection_back(
    made: StandIn, client: Client
) -> None:
    made.on("GET /x", chunked([b"a\n\nbc", b"d\n", b"e"]))

    with client.stream(get()) as stream:
        assert list(stream.lines()) == [b"a", b"bcd", b"e"]
        assert stream.read_some() == b""
    client.call(get("/_ping"))

    assert made.connections == 1


def test_a_stream_that_is_left_early_takes_its_connection_along(
    made: StandIn, client: Client
) -> None:
    made.on("GET /x", chunked([b"a", b"b"]))

    stream = client.stream(get())
    assert stream.read_some() in (b"a", b"ab")
    stream.close()
    stream.close()
    client.call(get("/_ping"))

    assert made.connections == 2


def test_a_stream_that_ends_with_its_connection_is_whole(made: StandIn, client: Client) -> None:
    def answer(connection: socket.socket, _: object) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nabc")
        connection.shutdown(socket.SHUT_RDWR)

    made.on("GET /x", answer)

    with client.stream(get()) as stream:
        assert b"".join(stream) == b"abc"


def test_a_line_without_end_is_an_error(made: StandIn, client: Client) -> None:
    made.on("GET /x", chunked([b"x" * 5000]))

    with (
        pytest.raises(ContainerError, match="longer than 1000") as caught,
        client.stream(get()) as stream,
    ):
        list(stream.lines(1000))
    assert caught.value.kind is Kind.ENGINE_PROTOCOL


def test_a_stream_that_breaks_off_is_an_error(made: StandIn, client: Client) -> None:
    def answer(connection: socket.socket, _: object) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        connection.shutdown(socket.SHUT_RDWR)

    made.on("GET /x", answer)

    with pytest.raises(ContainerError, match="cut short"), client.stream(get()) as stream:
        list(stream)


def test_a_stream_that_is_refused_is_an_error(made: StandIn, client: Client) -> None:
    made.on("GET /x", reply({"message": "no"}, 500))
    with pytest.raises(ContainerError, match="no"):
        client.stream(get())

    made.on("GET /x", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: odd\r\n\r\n")
    with pytest.raises(ContainerError, match="coded"):
        client.stream(get())


def test_a_stream_is_raw_after_the_upgrade_with_what_came_ahead(
    made: StandIn, client: Client
) -> None:
    def answer(connection: socket.socket, _: object) -> None:
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\nahead")
        while data := connection.recv(100):
            connection.sendall(data.upper())
        connection.sendall(b"end")
        connection.shutdown(socket.SHUT_WR)

    made.on("POST /x", answer)

    with client.hijack(Call("POST", "/x", PURPOSE)) as stream:
        stream.settimeout(60)
        heard = b""
        while len(heard) < 5:
            heard += stream.recv(3)
        stream.send(b"abc")
        stream.close_write()
        while data := stream.recv():
            heard += data
        assert stream.pending == 0
        assert stream.fileno() >= 0

    assert heard == b"aheadABCend"
    assert made.last.headers["upgrade"] == "tcp"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reply({"message": "not running"}, 409), "not running"),
        (reply({}), "did not open a stream"),
        (b"HTTP/1.1 500 Odd\r\nTransfer-Encoding: odd\r\n\r\n", "coded"),
    ],
)
def test_a_stream_that_does_not_open_is_an_error(
    made: StandIn, client: Client, answer: bytes, said: str
) -> None:
    made.on("POST /x", answer)

    with pytest.raises(ContainerError, match=said):
        client.hijack(Call("POST", "/x", PURPOSE))


def test_a_closed_client_makes_no_calls(made: StandIn, client: Client) -> None:
    client.call(get("/_ping"))
    client.close()

    assert failure(client, get()).kind is Kind.CLOSED


def test_only_a_few_idle_connections_are_kept(made: StandIn, client: Client) -> None:
    made.on("GET /x", chunked([b"a"]))
    streams = [client.stream(get()) for _ in range(6)]
    for stream in streams:
        list(stream)

    for _ in range(6):
        client.call(get("/_ping"))

    assert made.connections == 6
    assert len(client._idle) == 4


def test_a_fork_makes_connections_of_its_own(made: StandIn, client: Client) -> None:
    client.call(get("/_ping"))
    child = os.fork()
    if child == 0:
        try:
            client.call(get("/_ping"))
        finally:
            os._exit(0 if len(client._idle) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0

    client.call(get("/_ping"))

    assert made.connections == 2


@pytest.mark.parametrize(
    "said", [b"{", b"\xff", b'{"a": NaN}', b"[" * 100_000, b"", b'{"a": 1e999}x']
)
def test_json_that_is_none_is_an_error_of_the_protocol(said: bytes) -> None:
    with pytest.raises(ContainerError) as caught:
        replies.parse(said)

    assert caught.value.kind is Kind.ENGINE_PROTOCOL


def test_fields_have_the_type_they_should_have_or_are_absent() -> None:
    found = {"t": "x", "n": 5, "f": 5.0, "b": True, "o": {"a": "b"}, "l": ["x"], "z": None}

    assert replies.text(found, "t") == "x" and replies.text(found, "z") == ""
    assert replies.whole(found, "n") == 5 and replies.whole(found, "f") == 5
    assert replies.whole(found, "z") == 0
    assert replies.flag(found, "b") and not replies.flag(found, "z")
    assert replies.below(found, "o") == {"a": "b"} and replies.below(found, "z") == {}
    assert replies.texts(found, "l") == ("x",) and replies.texts(found, "z") == ()
    assert replies.text_map(found, "o") == {"a": "b"}
    assert replies.objects([{}, {}]) == [{}, {}] and replies.objects(None) == []
    for read, name in (
        (replies.text, "n"),
        (replies.whole, "t"),
        (replies.whole, "b"),
        (replies.flag, "n"),
        (replies.below, "l"),
        (replies.texts, "o"),
    ):
        with pytest.raises(ContainerError, match=name):
            read(found, name)
    for bad in ({"x": [1]}, {"x": "s"}):
        with pytest.raises(ContainerError, match="list"):
            replies.texts(bad, "x")
    with pytest.raises(ContainerError):
        replies.objects([1])


def test_words_for_people_hold_nothing_that_a_terminal_acts_on() -> None:
    assert replies.visible("a\x1b[2J\u202eb\n") == "a\\x1b[2J\\u202eb"
    assert replies.visible("two\nlines") == "two\nlines"
    assert standin.reply({})  # the stand-in itself speaks proper HTTP
