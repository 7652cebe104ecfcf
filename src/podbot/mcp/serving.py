"""A server from its start to its end: opened, served, and all of it cleaned up.

It ends when the client hangs up or when the process is told to (SIGTERM, SIGINT, SIGHUP). Then
calls under way are cancelled, their processes killed, the sandbox closed; what an overlay holds is
kept for review. Nothing here prints: `Started` and `Served` say what a person should know.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from podbot.errors import PodbotError
from podbot.frozen import dataclass
from podbot.mcp._sdk import explained
from podbot.mcp._workspace import workspace
from podbot.mcp.annotations import hints_of_suite
from podbot.runs import opening
from podbot.runs.run import Run
from podbot.runtime.events import ToolInvoked

if TYPE_CHECKING:
    from types import FrameType

    from podbot.mcp.line import Line
    from podbot.mcp.request import ServeRequest
    from podbot.mcp.server import ToolServer
    from podbot.prompt.prompt import Prompt
    from podbot.sandbox.sandbox import Sandbox

END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Started:
    """A server that is ready. ``workdir`` is where the tools work; ``notes`` are its sandbox's.

    ``reviewed``: what the tools change is kept apart, for a person to decide on.
    """

    backend: str
    workdir: str
    notes: tuple[str, ...]
    reviewed: bool = True


@dataclass(frozen=True, slots=True)
class Served:
    """How a server ended.

    ``exit_status`` is 0 when the client hung up, 128 + n after signal n. ``changes`` is the id of
    what the tools changed, if that is kept for review. ``problem`` is what could not be cleaned up.
    """

    exit_status: int
    changes: str | None = None
    problem: str | None = None


def serve(
    request: ServeRequest, line: Line, *, on_start: Callable[[Started], object] | None = None
) -> Served:
    """Serve one client on ``line`` until it hangs up. To be called in the main thread.

    Raises `PodbotError` if the workspace cannot be opened; nothing is left behind then.
    """
    with _signals_end_it():
        kept = Run(request.launch)
        place = workspace(request)
        error: str | None = None
        try:
            sandbox = place.section.open()
            opening.check_kept(request.launch, sandbox)
            kept.begin(sandbox)
            # Should the sandbox be lost, the next call opens another one.
            place.session.bus.subscribe(ToolInvoked, lambda _: _follow(kept, place.section.sandbox))
            if on_start is not None:
                on_start(_started(sandbox))
            with _server(request, place.prompt) as server:
                number = asyncio.run(_until_stopped(server, line))
        except Exception as fault:
            error = f"{type(fault).__name__}: {fault}"
            raise
        finally:
            _no_more_signals()
            kept.end(0 if error is None else 1, error=error)
            problem = _closed(place.prompt)
            layer, _ = kept.finish()  # what a full disk has no room for is listed all the same
    changes = None if layer is None else layer.id
    return Served(0 if number is None else 128 + number, changes, problem)


def _follow(kept: Run, sandbox: Sandbox | None) -> None:
    if sandbox is not None:
        kept.begin(sandbox)


def _server(request: ServeRequest, prompt: Prompt) -> ToolServer:
    try:  # last, as it takes a second: what was asked for has been found possible by now
        from podbot.mcp.server import Serving, ToolServer
    except ImportError as error:
        raise explained(error) from error
    serving = Serving(
        hints=hints_of_suite(reaches_out=request.reaches_out),
        call_seconds=request.call_seconds,
        data=request.data,
    )
    return ToolServer(prompt, serving=serving)


def _closed(prompt: Prompt) -> str | None:
    """Close it; what could not be cleaned up."""
    try:
        prompt.close()
    except PodbotError as error:
        return str(error)
    return None


async def _until_stopped(server: ToolServer, line: Line) -> int | None:
    """Serve; the number of the signal that ended it, None if the client hung up."""
    import anyio

    from podbot.mcp._stdio import connected

    signals: list[int] = []
    serving = anyio.CancelScope()

    def end(number: int) -> None:
        signals.append(number)
        serving.cancel()

    for number in _heeded():
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    protocol = server.protocol
    async with connected(line) as (inbound, outbound):
        # The line outlives it: what was under way is still answered.
        with serving:
            await protocol.run(inbound, outbound, protocol.create_initialization_options())
    return signals[0] if signals else None


def _started(sandbox: Sandbox) -> Started:
    return Started(sandbox.backend, sandbox.workdir, sandbox.notes, sandbox.layer is not None)


@contextmanager
def _signals_end_it() -> Iterator[None]:
    """Have a signal that comes before or after serving end the process by way of every `finally`.

    While the event loop runs, it has them itself.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        _no_more_signals()
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in _heeded()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _heeded() -> tuple[signal.Signals, ...]:
    """Those that end it: one that was ignored from the start stays so (`nohup`, a script's `&`)."""
    return tuple(number for number in END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN)


def _no_more_signals() -> None:
    """From here on all is being cleaned up, and once is enough."""
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
