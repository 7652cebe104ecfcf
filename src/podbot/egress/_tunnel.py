"""Bytes between two lines, until both have ended. Each direction ends by itself (half-close).

Nothing of what goes through is looked at: TLS, HTTP/2 and WebSockets pass as they are.
"""

from __future__ import annotations

import asyncio

from podbot.egress._lines import PIECE, Line


async def join(one: Line, other: Line) -> None:
    """Carry bytes both ways. Raises `OSError` if either side breaks."""
    loop = asyncio.get_running_loop()
    tasks = loop.create_task(_carry(one, other)), loop.create_task(_carry(other, one))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        await stop(*tasks)


async def stop(*tasks: asyncio.Task[None]) -> None:
    """End tasks, and be sure that they have: only then may what they wait for be closed."""
    for task in tasks:
        task.cancel()
    again = False
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            again = True
    for task in tasks:
        if not task.cancelled():
            task.exception()  # whoever wanted to know has asked before
    if again:
        raise asyncio.CancelledError


async def _carry(source: Line, sink: Line) -> None:
    """One direction, to its end."""
    scratch: memoryview | None = None
    while True:
        if scratch is None:
            scratch = memoryview(bytearray(PIECE))
        try:
            size = source.sock.recv_into(scratch)
        except (BlockingIOError, InterruptedError):
            scratch = None  # a tunnel that waits holds no memory
            await source.readable()
            continue
        if not size:
            sink.end_sending()
            return
        source.count_received(size)
        await sink.send(scratch[:size])
        await source.take_turns()
