"""A prompt's tools as an MCP server: the list, the calls, their progress and their cancellation.

    server = tool_server(prompt, hints=hints_of_suite(reaches_out=False))

Each call runs in a thread of its own, so calls are served at the same time. While one runs, a
client that asked for it hears once a second that it does. A call that the client cancels, or that
is under way when it hangs up, is cancelled in the tool too, and what it started is killed. Nothing
here knows what the tools do or over what the client is connected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Self

from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    Tool,
    ToolAnnotations,
)

from podbot import __version__
from podbot.frozen import dataclass, field, frozen_dict
from podbot.mcp._messages import Written
from podbot.mcp._results import answer, refused
from podbot.mcp.annotations import Hints
from podbot.prompt.context import Cancellation, Deadline, Progress
from podbot.prompt.json_text import quoted, short

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams, PaginatedRequestParams

    from podbot.prompt.prompt import Prompt
    from podbot.prompt.result import ToolResult
    from podbot.prompt.tool import AnyTool
    from podbot.runtime.session import Session

    Context = ServerRequestContext[dict[str, object]]

NAME = "podbot"
THREADS = 32
"""Calls that run at the same time; more wait for their turn."""
WAITING = 256
"""Calls that may be under way or wait; more are refused."""
PROGRESS_SECONDS = 1.0
PROGRESS_CHARACTERS = 500
"""What is told of a handler's own words about its progress."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How a prompt is served.

    ``hints`` are told of tools by name. ``call_seconds`` is the most one call may take (None: any
    time). ``data``: results are sent as data too, for programs; see `podbot.mcp._results`.
    """

    hints: Mapping[str, Hints] = field(default_factory=frozen_dict)
    call_seconds: float | None = None
    data: bool = False
    progress_seconds: float = PROGRESS_SECONDS
    threads: int = THREADS
    waiting: int = WAITING


class ToolServer:
    """The tools of a prompt, ready to be served. Closing it ends its threads, not the prompt.

    ``session`` may be left out when the prompt's sections are bound to one.
    """

    def __init__(
        self, prompt: Prompt, *, session: Session | None = None, serving: Serving | None = None
    ):
        self._prompt = prompt
        self._session = session
        self._serving = serving or Serving()
        self._threads = ThreadPoolExecutor(self._serving.threads, "podbot-mcp")
        self._under_way: set[Cancellation] = set()
        self.protocol: Server[dict[str, object]] = Server(
            NAME,
            version=__version__,
            instructions=prompt.render(session=session).text,
            on_list_tools=self._list,
            on_call_tool=self._call,
            # There are none. Clients that ask before they look at the capabilities get an answer.
            on_list_resources=_no_resources,
            on_list_resource_templates=_no_templates,
            on_list_prompts=_no_prompts,
        )

    async def _list(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                described(tool, self._serving.hints.get(tool.name)) for tool in self._prompt.tools
            ]
        )

    async def _call(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        if self._prompt.find(params.name) is None:
            # A fault of the client, which was told the names: MCP wants an error of the protocol.
            names = ", ".join(tool.name for tool in self._prompt.tools)
            raise MCPError(INVALID_PARAMS, f"no tool {quoted(params.name)}; there are: {names}")
        if len(self._under_way) >= self._serving.waiting:
            return refused(
                f"{len(self._under_way)} calls are under way, more are not taken; "
                "wait until some of them have ended"
            )
        running = _Running(params.name)
        self._under_way.add(running.cancellation)
        try:
            return answer(await self._result(ctx, params, running), data=self._serving.data)
        finally:
            self._under_way.discard(running.cancellation)

    async def _result(
        self, ctx: Context, params: CallToolRequestParams, running: _Running
    ) -> ToolResult[object]:
        serving = self._serving
        limit = serving.call_seconds
        # The transport says so when what the SDK parsed is not all that was written.
        written = ctx.request.arguments if isinstance(ctx.request, Written) else None
        call = partial(
            self._prompt.call,
            params.name,
            written or params.arguments or {},
            session=self._session,
            call_id=None if ctx.request_id is None else str(ctx.request_id),
            deadline=None if limit is None else Deadline.after(limit),
            cancellation=running.cancellation,
            on_progress=running.heard,
        )
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        try:
            while not (await asyncio.wait({future}, timeout=serving.progress_seconds))[0]:
                await ctx.session.report_progress(running.seconds(), None, running.words())
        except asyncio.CancelledError:
            future.cancel()  # if it waits for its turn, it never has one
            running.cancellation.cancel()
            raise
        return future.result()

    def close(self) -> None:
        """Cancel what is under way, and have the threads end with it."""
        for cancellation in tuple(self._under_way):
            cancellation.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Running:
    """A call under way: since when, what its handler says of it, and how to stop it."""

    def __init__(self, name: str):
        self.cancellation = Cancellation()
        self._name = name
        self._started = time.monotonic()
        self._said: Progress | None = None

    def heard(self, progress: Progress) -> None:
        """The handler tells, from its thread, how far it is."""
        self._said = progress

    def seconds(self) -> float:
        """For how long it runs: a measure that only grows, as MCP wants it."""
        return round(time.monotonic() - self._started, 3)

    def words(self) -> str:
        """What a person is shown while it runs."""
        text = f"{self._name} has run for {self.seconds():.0f} s"
        said = self._said
        if said is None:
            return text
        of = "" if said.total is None else f" of {said.total:g}"
        more = "" if said.message is None else f": {said.message}"
        return short(f"{text} ({said.done:g}{of}{more})", PROGRESS_CHARACTERS)


async def _no_resources(ctx: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
    return ListResourcesResult(resources=[])


async def _no_templates(
    ctx: Context, params: PaginatedRequestParams | None
) -> ListResourceTemplatesResult:
    return ListResourceTemplatesResult(resource_templates=[])


async def _no_prompts(ctx: Context, params: PaginatedRequestParams | None) -> ListPromptsResult:
    return ListPromptsResult(prompts=[])


def described(tool: AnyTool, hints: Hints | None) -> Tool:
    """A tool as a client is told of it."""
    return Tool(
        name=tool.name,
        title=None if hints is None else hints.title,
        description=tool.description,
        input_schema=tool.json_schema(),
        annotations=None if hints is None else _annotations(hints),
    )


def _annotations(hints: Hints) -> ToolAnnotations:
    return ToolAnnotations(
        title=hints.title,
        read_only_hint=hints.reads,
        destructive_hint=hints.destroys,
        idempotent_hint=hints.repeats,
        open_world_hint=hints.reaches_out,
    )
