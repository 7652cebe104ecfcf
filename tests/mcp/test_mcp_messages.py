"""Lines as messages: names that come twice, and whose request a line was that is refused."""

from __future__ import annotations

import asyncio
import json
import os
import threading

import anyio
import pytest
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_clients import DEADLINE
from mcp_types import ErrorData

from podbot.mcp import LaunchRequest, ServeRequest, ToolServer, _messages, _stdio
from podbot.mcp._messages import MESSAGE_BYTES, TooLong, Written
from podbot.mcp._workspace import Workspace, workspace
from podbot.mcp.line import Line
from podbot.runtime.events import ToolInvoked

CALL = '{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": %s}'


def line(params: str) -> bytes:
    return (CALL % params).encode()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ('{"path": "a", "path": "b"}', "path"),
        ('{"path": "a", "\\u0070ath": "a"}', "path"),
        ('{"env": {"A": "1", "A": "1"}}', "A"),
        ('{"command": ["x", {"deep": [{"B": 1, "C": 2, "B": 3}]}]}', "B"),
    ],
)
def test_arguments_that_say_a_thing_twice_reach_the_tool_as_they_were_written(
    arguments: str, name: str
) -> None:
    found = _messages.parsed(line(f'{{"name": "ls", "arguments": {arguments}}}'))
    assert isinstance(found, SessionMessage)
    assert isinstance(found.metadata, ServerMessageMetadata)
    written = found.metadata.request_context
    assert isinstance(written, Written)
    names = [key for key, _ in json.loads(written.arguments, object_pairs_hook=flattened)]
    assert names.count(name) == 2


def flattened(pairs: list[tuple[str, object]]) -> list[tuple[str, object]]:
    found = list(pairs)
    for _, value in pairs:
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, list):
                waiting += each
            elif isinstance(each, tuple):
                found.append(each)
    return found


@pytest.mark.parametrize(
    "data",
    [
        b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "method": "ping"}',
        line('{"name": "ls", "name": "rm", "arguments": {}}'),
        line('{"name": "ls", "arguments": {}, "arguments": {"path": "x"}}'),
        line('{"name": "ls", "_meta": {"a": 1, "a": 2}, "arguments": {"path": 1, "path": 2}}'),
        line('[{"a": 1, "a": 2}]').replace(b"tools/call", b"ping"),
    ],
)
def test_a_name_that_comes_twice_elsewhere_is_an_error_of_the_protocol(data: bytes) -> None:
    refused = _messages.parsed(data)
    assert isinstance(refused, ErrorData)
    assert refused.code == -32600
    assert _messages.request_id(data) == 7


def test_the_error_names_what_comes_twice_and_is_short() -> None:
    name = "x" * 999
    refused = _messages.parsed(line(f'{{"{name}": 1, "{name}": 2}}'))
    assert isinstance(refused, ErrorData)
    assert 'the name "xxx' in refused.message
    assert len(refused.message) < 150


def test_an_id_that_comes_twice_is_none() -> None:
    for data in (
        b'{"jsonrpc": "2.0", "id": 7, "id": 8, "method": "ping"}',
        b'{"jsonrpc": "2.0", "id": 7, "id": 8, "method": "ping", "params": {"a": ' + b"[" * 5000,
        b'{"id": 7, "method": "m", "params": ' + b"[" * 5000 + b"]" * 5000 + b', "id": 7}',
    ):
        assert isinstance(_messages.parsed(data), ErrorData)
        assert _messages.request_id(data) is None


DEEP = b"[" * 5000 + b"]" * 5000


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        # The id first, as the Python SDK has it; last, as the TypeScript SDK has it.
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":%s}}', 7),
        (b'{"method":"tools/call","params":{"a":%s},"jsonrpc":"2.0","id":7}', 7),
        (b'{"method":"tools/call","params":{"a":%s},"id":"seven","jsonrpc":"2.0"}', "seven"),
        (b' { "id" : "a\\u0062c" , "params" : {"a" : %s}, "method" : "m" } ', "abc"),
        (b'{"id":-7,"method":"m","params":%s}', -7),
        # Answers to a server are no requests, and what lies in a string is no member.
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":%s}}', None),
        (b'{"method":"m","params":{"a":%s,"b":",\\"id\\":7}"}}', None),
        (b'{"method":"m","params":{"a":%s,"id":7}}', None),
        (b'{"method":"m","params":%s,"id":1.5}', None),
        (b'{"method":"m","params":%s,"id":"\xc3\xa4"}', None),
        (b'{"method":"m","id":"\\ud83","params":%s}', None),
        (b'{"method":"m","id":' + b"9" * 30 + b',"params":%s}', None),
        (b"%s", None),
    ],
)
def test_a_message_that_is_too_deep_or_too_long_is_answered_by_its_id(
    data: bytes, asked: str | int | None
) -> None:
    deep = data % DEEP
    refused = _messages.parsed(deep)
    assert isinstance(refused, ErrorData)
    assert refused.code == -32700
    assert _messages.request_id(deep) == asked
    long = data % (b'"' + b"x" * 5000 + b'"')
    assert _messages.request_id(TooLong(long[:1024], long[-1024:])) == asked


def test_too_deep_and_not_json_are_told_apart() -> None:
    for data, said in (
        (b'{"method": "m", "params": ' + DEEP + b"}", "nested too deep"),
        (b'{"id": 1, "method": "m", "params": ', "is not JSON"),
        (b"nonsense", "not JSON"),
    ):
        refused = _messages.parsed(data)
        assert isinstance(refused, ErrorData)
        assert said in refused.message


class Client:
    """The far end of a server of ours on real pipes."""

    def __init__(self) -> None:
        near_in, self.writing = os.pipe()
        self.reading, near_out = os.pipe()
        self.line = Line(near_in, near_out)
        self.answers: dict[object, dict[str, object]] = {}

    def talk(self, *lines: bytes) -> None:
        """Send lines, and hear one answer to each."""
        with os.fdopen(self.writing, "wb") as sending, os.fdopen(self.reading, "rb") as hearing:
            for each in lines:
                sending.write(each + b"\n")
                sending.flush()
                answer = json.loads(hearing.readline())
                self.answers[answer["id"]] = answer


def serve(place: Workspace, client: Client) -> None:
    async def serving() -> None:
        with ToolServer(place.prompt) as server:
            protocol = server.protocol
            async with _stdio.connected(client.line) as (inbound, outbound):
                with anyio.fail_after(DEADLINE):
                    await protocol.run(inbound, outbound, protocol.create_initialization_options())

    asyncio.run(serving())
    client.line.close()


def test_a_call_that_says_a_thing_twice_is_a_failing_call_that_names_it() -> None:
    """Over the real transport and the SDK's server; and a long message does not go unanswered."""
    place = workspace(ServeRequest(LaunchRequest(backend="memory")))
    client = Client()
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"},
    }
    talking = threading.Thread(
        target=client.talk,
        args=(
            json.dumps(
                {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
            ).encode(),
            line('{"name": "write_file", "arguments": {"file_path": "a", "content": "1", '
                 '"content": "2"}}'),
            line('{"name": "write_file", "arguments": {"file_path": "a", "content": "%s"}}'
                 % ("x" * MESSAGE_BYTES)).replace(b'"id": 7', b'"id": 8'),
            line('{"name": "ls", "arguments": {}}').replace(b'"id": 7', b'"id": 9'),
        ),
    )  # fmt: skip
    talking.start()
    try:
        serve(place, client)
    finally:
        talking.join(DEADLINE)
        place.prompt.close()

    refused = client.answers[7]["result"]
    assert isinstance(refused, dict)
    assert refused["isError"] is True
    assert 'the name "content" comes twice in one object' in refused["content"][0]["text"]
    assert "error" in client.answers[8]
    listed = client.answers[9]["result"]
    assert isinstance(listed, dict)
    assert "(empty)" in listed["content"][0]["text"]
    calls = place.session.query(ToolInvoked).all()
    assert [(call.name, call.success) for call in calls] == [("write_file", False), ("ls", True)]
