"""MCP's stdio transport: one JSON message a line, in both directions.

Reading and writing happen in the event loop, so that the server can end at any moment: a thread
that waits for a line could not be told to stop. A message has a limit; what is too long or is no
message is answered with an error, and the server goes on. What is one is said in `messages`.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError

from podbot.mcp._messages import EDGE_BYTES, MESSAGE_BYTES, TooLong, parsed, request_id
from podbot.mcp.line import Line

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    Inbound = MemoryObjectReceiveStream[SessionMessage | Exception]
    Outbound = MemoryObjectSendStream[SessionMessage]

FLUSH_SECONDS = 1.0
"""How long a client that does not read is waited for at the end."""
_CHUNK = 64 * 1024


@asynccontextmanager
async def connected(line: Line) -> AsyncIterator[tuple[Inbound, Outbound]]:
    """The streams of messages that a `Server` runs on; they end when the client hangs up."""
    to_server, inbound = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbound, to_client = anyio.create_memory_object_stream[SessionMessage](0)
    answers = outbound.clone()
    reading, sent = anyio.CancelScope(), anyio.Event()

    async def read() -> None:
        with reading:
            await _read(line.reading, to_server, answers)

    async def write() -> None:
        await _write(line.writing, to_client)
        sent.set()
        reading.cancel()  # nobody is there to answer to

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield inbound, outbound
        finally:
            reading.cancel()
            inbound.close()
            outbound.close()
        with anyio.move_on_after(FLUSH_SECONDS):
            await sent.wait()  # a message is sent whole, or the client does not read
        tasks.cancel_scope.cancel()


async def _read(
    fd: int, to_server: MemoryObjectSendStream[SessionMessage | Exception], answers: Outbound
) -> None:
    """Hand on what comes until the client hangs up, or the server no longer listens."""
    async with to_server, answers:
        with suppress(anyio.BrokenResourceError):
            async for data in lines(fd, MESSAGE_BYTES):
                found = parsed(data)
                if isinstance(found, ErrorData):
                    # JSON-RPC has null for a request that cannot be told.
                    refusal = JSONRPCError(jsonrpc="2.0", id=request_id(data), error=found)
                    await answers.send(SessionMessage(refusal))
                else:
                    await to_server.send(found)


async def _write(fd: int, to_client: MemoryObjectReceiveStream[SessionMessage]) -> None:
    """Send what the server says until it has no more to say, or nobody reads it."""
    async with to_client:
        with suppress(OSError):
            async for item in to_client:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await _send(fd, text.encode() + b"\n")


async def lines(fd: int, limit: int) -> AsyncIterator[bytes | TooLong]:
    """Each line that comes, without its end, and `TooLong` for one of more than ``limit`` bytes.

    Blank lines are left out, and so is a last one that was not finished.
    """
    held, head = bytearray(), b""
    while chunk := await _received(fd):
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            held += part
            if head or len(held) > limit:
                yield TooLong(head or bytes(held[:EDGE_BYTES]), bytes(held[-EDGE_BYTES:]))
            elif held.strip():
                yield bytes(held)
            held.clear()
            head = b""
        held += rest
        if head or len(held) > limit:
            head = head or bytes(held[:EDGE_BYTES])
            del held[:-EDGE_BYTES]


async def _received(fd: int) -> bytes:
    """The next bytes; none when there will be no more."""
    loop = asyncio.get_running_loop()
    await _ready(fd, loop.add_reader, loop.remove_reader)
    try:
        return os.read(fd, _CHUNK)
    except OSError:  # a terminal or a connection that went away
        return b""


async def _send(fd: int, data: bytes) -> None:
    """Write all of it, whenever there is room; so much at a time that it cannot block."""
    loop = asyncio.get_running_loop()
    view = memoryview(data)
    while view:
        await _ready(fd, loop.add_writer, loop.remove_writer)
        view = view[os.write(fd, view[: select.PIPE_BUF]) :]


async def _ready(fd: int, watch: Callable[..., None], leave: Callable[[int], object]) -> None:
    """Wait until the descriptor will not make anyone wait."""
    ready = asyncio.Event()
    try:
        watch(fd, ready.set)
    except PermissionError:
        return  # a file: it never does
    try:
        await ready.wait()
    finally:
        leave(fd)
