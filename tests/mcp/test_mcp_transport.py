"""Messages over pipes and files: lines of any length, clients that go away or do not read."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_clients import DEADLINE
from mcp_types import ErrorData, JSONRPCNotification, JSONRPCRequest

from podbot.mcp import _messages, _stdio
from podbot.mcp._messages import TooLong
from podbot.mcp.line import Line

PING = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
TOO_LONG = TooLong(b"x", b"x")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of these tests reads, but may be kept from it for longer than one would wait."""
    monkeypatch.setattr(_stdio, "FLUSH_SECONDS", DEADLINE)


class Pipes:
    """A line, and the client's ends of it."""

    def __init__(self) -> None:
        near_in, self.to_server = os.pipe()
        self.from_server, near_out = os.pipe()
        self.line = Line(near_in, near_out)
        self._open = {self.to_server, self.from_server}

    def waiting(self) -> int:
        """How many bytes of the client's the server has yet to read."""
        count = fcntl.ioctl(self.line.reading, termios.FIONREAD, b"\0" * 4)
        return int.from_bytes(count, sys.byteorder)

    def close(self, *ends: int) -> None:
        for end in ends or tuple(self._open):
            if end in self._open:
                self._open.discard(end)
                os.close(end)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.close()
    made.line.close()


def all_lines(fd: int, limit: int) -> list[bytes | TooLong]:
    async def collected() -> list[bytes | TooLong]:
        return [line async for line in _stdio.lines(fd, limit)]

    return asyncio.run(collected())


def test_lines_come_whole_however_they_were_sent(pipes: Pipes) -> None:
    data = b"one\n\n  \ntwo\r\n" + b"x" * 100_000 + b"\nunfinished"

    def send() -> None:
        for at in range(0, len(data), 7919):
            os.write(pipes.to_server, data[at : at + 7919])
        pipes.close(pipes.to_server)

    sender = threading.Thread(target=send)
    sender.start()
    found = all_lines(pipes.line.reading, 200_000)
    sender.join()

    assert found == [b"one", b"two\r", b"x" * 100_000]


def test_a_line_that_is_too_long_is_dropped_and_the_next_one_is_read(tmp_path: Path) -> None:
    for size in (11, 70_000, 300_000):
        file = tmp_path / "lines"
        file.write_bytes(b"before\n" + b"x" * size + b"\nafter\n" + b"y" * size)
        with file.open("rb") as opened:
            before, cut, after = all_lines(opened.fileno(), 10)
        assert (before, after) == (b"before", b"after")
        assert isinstance(cut, TooLong)
        assert set(cut.head) == set(cut.tail) == {ord("x")}


def test_a_descriptor_that_cannot_be_read_is_at_its_end(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert all_lines(folder, 10) == []
    finally:
        os.close(folder)


def test_lines_are_messages_or_errors() -> None:
    found = _messages.parsed(PING)
    assert isinstance(found, SessionMessage)
    assert isinstance(found.message, JSONRPCRequest)

    for data, code in (
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 10_000, -32700),
        (b"[]", -32600),
        (b'{"id": 1, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": "ping"}', -32600),
        (TOO_LONG, -32600),
    ):
        refused = _messages.parsed(data)
        assert isinstance(refused, ErrorData)
        assert refused.code == code, data
        assert len(refused.message) < 150


CALL = b'{"jsonrpc": "2.0", "id": %s, "method": "tools/call", "params": {"a": %s}}'


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        (CALL % (b"7", b'"\\ud800"'), 7),
        (CALL % (b'"seven"', b'"\\ud800"'), "seven"),
        (CALL % (b"7", b"9" * 10_000), 7),
        (b'{"id": 7, "method": "ping"}', 7),
        (CALL % (b'"\\ud800"', b"1"), None),
        (CALL % (b"9" * 10_000, b"1"), None),
        (CALL % (b"true", b'"\\ud800"'), None),
        (b'{"id": 7}', None),
        (b"[7]", None),
        (b"[" * 10_000, None),
        (TOO_LONG, None),
    ],
)
def test_a_refused_request_is_answered_by_its_id_where_it_can_be_told(
    data: bytes | TooLong, asked: str | int | None
) -> None:
    """Without it a client waits for ever: half a character in an argument is enough."""
    assert isinstance(_messages.parsed(data), ErrorData)
    assert _messages.request_id(data) == asked


def test_a_notification_that_speaks_of_ids_is_one() -> None:
    found = _messages.parsed(b'{"jsonrpc": "2.0", "method": "m", "params": {"id": 1}}')
    assert isinstance(found, SessionMessage)


def test_what_is_no_message_is_answered_and_the_rest_is_handed_on(pipes: Pipes) -> None:
    os.write(pipes.to_server, b"nonsense\n" + PING)

    async def served() -> SessionMessage | Exception:
        async with _stdio.connected(pipes.line) as (inbound, _):
            with anyio.fail_after(DEADLINE):
                return await inbound.receive()

    found = asyncio.run(served())

    assert isinstance(found, SessionMessage)
    sent = json.loads(os.read(pipes.from_server, 65536))
    assert sent["id"] is None
    assert sent["error"]["code"] == -32700


def test_a_client_that_hangs_up_ends_the_stream(pipes: Pipes) -> None:
    pipes.close(pipes.to_server)

    async def served() -> list[object]:
        async with _stdio.connected(pipes.line) as (inbound, _):
            with anyio.fail_after(DEADLINE):
                return [message async for message in inbound]

    assert asyncio.run(served()) == []


def note(text: str) -> SessionMessage:
    return SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notes", params={"text": text}))


def test_a_long_message_is_sent_whole(pipes: Pipes) -> None:
    received = bytearray()

    def read() -> None:
        while chunk := os.read(pipes.from_server, 65536):
            received.extend(chunk)
            if chunk.endswith(b"\n"):
                return

    reader = threading.Thread(target=read)
    reader.start()

    async def served() -> None:
        async with _stdio.connected(pipes.line) as (_, outbound):
            await outbound.send(note("ä" * 200_000))

    asyncio.run(served())
    reader.join()

    assert json.loads(received)["params"]["text"] == "ä" * 200_000


def test_messages_can_be_sent_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "out"
    line = Line(os.open(os.devnull, os.O_RDONLY), os.open(file, os.O_WRONLY | os.O_CREAT))

    async def served() -> None:
        async with _stdio.connected(line) as (_, outbound):
            await outbound.send(note("one"))
            await outbound.send(note("two"))

    asyncio.run(served())
    line.close()

    assert [json.loads(each)["params"]["text"] for each in file.read_text().splitlines()] == [
        "one",
        "two",
    ]


def test_a_client_that_reads_no_more_counts_as_gone(pipes: Pipes) -> None:
    pipes.close(pipes.from_server)

    async def served() -> list[object]:
        async with _stdio.connected(pipes.line) as (inbound, outbound):
            await outbound.send(note("to nobody"))
            with anyio.fail_after(DEADLINE):
                return [message async for message in inbound]

    assert asyncio.run(served()) == []


def test_a_client_that_does_not_read_cannot_keep_the_server(
    pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stdio, "FLUSH_SECONDS", 0.05)

    async def served() -> None:
        async with _stdio.connected(pipes.line) as (_, outbound):
            await outbound.send(note("x" * 1_000_000))

    with anyio.from_thread.start_blocking_portal() as portal:
        portal.start_task_soon(served).result(DEADLINE)


def test_a_server_that_stopped_listening_is_left_alone(pipes: Pipes) -> None:
    async def served() -> None:
        async with _stdio.connected(pipes.line) as (inbound, _):
            inbound.close()
            os.write(pipes.to_server, PING)
            with anyio.fail_after(DEADLINE):
                while pipes.waiting():
                    await anyio.sleep(0.01)

    asyncio.run(served())
