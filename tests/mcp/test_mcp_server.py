"""A prompt as an MCP server, in this process: lists, calls, progress, cancellation, limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_clients import DEADLINE, text_of

from podbot.mcp import Serving, ToolServer, hints_of_suite
from podbot.mcp._results import DATA_CHARACTERS, TEXT_CHARACTERS, answer
from podbot.mcp.server import described
from podbot.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from podbot.runtime.events import InProcessEventBus, ToolInvoked
from podbot.runtime.session import Session

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Params:
    """For the tools of these tests."""

    text: str = field(default="", metadata={"description": "Some text."})


class Handlers:
    """Tools that wait until they are told, or cancelled."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.cancelled = threading.Semaphore(0)
        self.server: ToolServer | None = None

    async def under_way(self, calls: int) -> None:
        """Wait until the server has so many calls to see to."""
        while self.server is None or len(self.server._under_way) != calls:
            await asyncio.sleep(0.01)

    def echo(self, params: Params, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult("It said:", params.text)

    def fail(self, params: Params, *, context: ToolContext) -> ToolResult[str]:
        raise RuntimeError("out of luck")

    def wait(self, params: Params, *, context: ToolContext) -> ToolResult[str]:
        woken = threading.Event()
        forget = context.cancellation.on_cancel(woken.set)
        self.started.release()
        context.report(1, 4, "first part")
        while not (self.go_on.is_set() or woken.is_set()):
            if context.remaining() == 0.0:
                context.check()
            self.go_on.wait(0.01)
        forget()
        if woken.is_set():
            self.cancelled.release()
        context.check()
        return ToolResult("waited", None)

    def prompt(self, session: Session) -> Prompt:
        tools = [
            Tool[Params, str](name=name, description=f"To {name}.", handler=handler)
            for name, handler in (("echo", self.echo), ("fail", self.fail), ("wait", self.wait))
        ]
        section = MarkdownSection(key="tests", title="Tests", template="Be good.", tools=tools)
        return Prompt(ns="tests", key="mcp", sections=[section])


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def session() -> Session:
    return Session(bus=InProcessEventBus())


def talking(
    handlers: Handlers,
    session: Session,
    talk: Callable[[Client], Awaitable[T]],
    serving: Serving | None = None,
    mode: str = "legacy",
) -> T:
    """What came of a talk with a server."""

    async def both() -> T:
        prompt = handlers.prompt(session)
        with ToolServer(prompt, session=session, serving=serving) as server:
            handlers.server = server
            async with Client(server.protocol, mode=mode) as client:
                with anyio.fail_after(DEADLINE):
                    return await talk(client)

    try:
        return asyncio.run(both())
    finally:
        handlers.go_on.set()


async def started(handlers: Handlers) -> None:
    """Wait until a call of ``wait`` is under way."""
    assert await asyncio.to_thread(handlers.started.acquire, timeout=DEADLINE)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_resources_and_prompts_are_asked_for_in_vain_but_answered(
    mode: str, handlers: Handlers, session: Session
) -> None:
    async def talk(client: Client) -> None:
        assert (await client.list_resources()).resources == []
        assert (await client.list_resource_templates()).resource_templates == []
        assert (await client.list_prompts()).prompts == []

    talking(handlers, session, talk, mode=mode)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_tools_are_listed_with_their_schemas_and_called(
    mode: str, handlers: Handlers, session: Session
) -> None:
    async def talk(client: Client) -> None:
        assert client.instructions == "## Tests\n\nBe good.\n"
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["echo", "fail", "wait"]
        assert tools["echo"].description == "To echo."
        assert tools["echo"].input_schema["properties"]["text"]["description"] == "Some text."
        assert tools["echo"].annotations is None  # unknown here: a client assumes the worst
        result = await client.call_tool("echo", {"text": "hello"})
        assert (text_of(result), result.is_error) == ("It said:\n\nhello", False)
        assert result.structured_content is None
        result = await client.call_tool("echo")
        assert text_of(result) == "It said:\n\n"

    talking(handlers, session, talk, mode=mode)

    assert [event.name for event in session.query(ToolInvoked).all()] == ["echo", "echo"]


def test_what_fails_is_an_answer_marked_as_an_error(handlers: Handlers, session: Session) -> None:
    async def talk(client: Client) -> None:
        result = await client.call_tool("fail", {})
        assert result.is_error and "RuntimeError: out of luck" in text_of(result)
        result = await client.call_tool("echo", {"text": 7})
        assert result.is_error and "text" in text_of(result)
        with pytest.raises(MCPError, match=r'no tool "reboot"; there are: echo, fail, wait'):
            await client.call_tool("reboot", {})

    talking(handlers, session, talk)


def test_data_is_sent_when_it_was_asked_for(handlers: Handlers, session: Session) -> None:
    async def talk(client: Client) -> None:
        result = await client.call_tool("echo", {"text": "hi"})
        assert result.structured_content == {"success": True, "message": "It said:", "value": "hi"}

    talking(handlers, session, talk, Serving(data=True))


def test_a_client_hears_how_a_long_call_goes(handlers: Handlers, session: Session) -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def talk(client: Client) -> None:
        async def heard(progress: float, total: float | None, message: str | None) -> None:
            told.append((progress, total, message))
            if len(told) >= 3 and "first part" in (message or ""):
                handlers.go_on.set()

        result = await client.call_tool("wait", {}, progress_callback=heard)
        assert text_of(result) == "waited"

    talking(handlers, session, talk, Serving(progress_seconds=0.01))

    assert told == sorted(told, key=lambda each: each[0])
    assert len({progress for progress, _, _ in told}) == len(told)  # it grows, as MCP wants it
    assert all("wait has run for" in (message or "") for _, _, message in told)
    assert "(1 of 4: first part)" in (told[-1][2] or "")


def test_a_cancelled_call_is_cancelled_in_the_tool_and_the_server_goes_on(
    handlers: Handlers, session: Session
) -> None:
    async def talk(client: Client) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "wait", {})
            await started(handlers)
            tasks.cancel_scope.cancel()
        assert await asyncio.to_thread(handlers.cancelled.acquire, timeout=DEADLINE)
        while not session.query(ToolInvoked).all():  # its thread has yet to say how it ended
            await asyncio.sleep(0.01)
        assert text_of(await client.call_tool("echo", {"text": "still here"}))

    talking(handlers, session, talk)

    invoked = [(event.name, event.success) for event in session.query(ToolInvoked).all()]
    assert invoked == [("wait", False), ("echo", True)]


def test_what_is_under_way_when_the_server_closes_is_cancelled(
    handlers: Handlers, session: Session
) -> None:
    async def talk(client: Client) -> None:
        call = asyncio.ensure_future(client.call_tool("wait", {}))
        await started(handlers)
        call.cancel()

    talking(handlers, session, talk)

    assert handlers.cancelled.acquire(timeout=DEADLINE)


def test_closing_cancels_what_its_client_did_not(handlers: Handlers, session: Session) -> None:
    async def both() -> None:
        with ToolServer(handlers.prompt(session), session=session) as server:
            async with Client(server.protocol, mode="legacy") as client:
                call = asyncio.ensure_future(client.call_tool("wait", {}))
                await started(handlers)
                server.close()
                result = await call
                assert result.is_error and "cancelled" in text_of(result)

    asyncio.run(both())


def test_a_call_that_waits_for_its_turn_never_has_one_when_cancelled(
    handlers: Handlers, session: Session
) -> None:
    async def talk(client: Client) -> None:
        first = asyncio.ensure_future(client.call_tool("wait", {}))
        await started(handlers)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "echo", {"text": "late"})
            await handlers.under_way(2)
            tasks.cancel_scope.cancel()
        await handlers.under_way(1)
        handlers.go_on.set()
        assert text_of(await first) == "waited"
        assert text_of(await client.call_tool("echo", {"text": "next"}))

    talking(handlers, session, talk, Serving(threads=1))

    names = [event.name for event in session.query(ToolInvoked).all()]
    assert names == ["wait", "echo"]


def test_more_calls_than_may_wait_are_refused(handlers: Handlers, session: Session) -> None:
    async def talk(client: Client) -> None:
        first = asyncio.ensure_future(client.call_tool("wait", {}))
        await started(handlers)
        result = await client.call_tool("echo", {})
        assert result.is_error and "1 calls are under way" in text_of(result)
        handlers.go_on.set()
        await first
        assert not (await client.call_tool("echo", {})).is_error

    talking(handlers, session, talk, Serving(waiting=1))


def test_a_call_has_so_much_time_and_no_more(handlers: Handlers, session: Session) -> None:
    async def talk(client: Client) -> None:
        result = await client.call_tool("wait", {})
        assert result.is_error and "deadline" in text_of(result)

    talking(handlers, session, talk, Serving(call_seconds=0.05))


# Hints


def test_the_hints_of_the_suite_are_honest() -> None:
    hints = hints_of_suite(reaches_out=False)

    assert {name for name, each in hints.items() if each.reads} == {
        "ls", "read_file", "glob", "grep"
    }  # fmt: skip
    assert {name for name, each in hints.items() if each.destroys} == {
        "edit_file", "rm", "shell_execute", "evaluate_python"
    }  # fmt: skip
    assert not any(each.reaches_out for each in hints.values())
    open_ones = {n for n, each in hints_of_suite(reaches_out=True).items() if each.reaches_out}
    assert open_ones == {"shell_execute", "evaluate_python"}


def test_hints_become_annotations(handlers: Handlers, session: Session) -> None:
    [tool, *_] = handlers.prompt(session).tools

    shown = described(tool, hints_of_suite(reaches_out=True)["rm"])

    assert shown.title == "Remove a file or folder"
    assert shown.annotations is not None
    assert shown.annotations.model_dump(exclude={"title"}) == {
        "read_only_hint": False,
        "destructive_hint": True,
        "idempotent_hint": True,
        "open_world_hint": False,
    }


# What a result may hold


def test_a_result_is_bounded_as_text_and_as_data() -> None:
    sent = answer(ToolResult("long", "x" * (DATA_CHARACTERS + 1)), data=True)

    assert len(text_of(sent)) < TEXT_CHARACTERS + 100
    assert "[truncated" in text_of(sent)
    assert sent.structured_content is None


def test_half_characters_are_replaced_so_that_the_answer_can_be_sent() -> None:
    sent = answer(ToolResult("odd", {"name": "a\udc80b", "\ud800": 1.5}), data=True)

    assert "a?b" in text_of(sent)
    assert sent.structured_content["value"] == {"name": "a?b", "?": 1.5}
    assert sent.model_dump_json()


def test_what_a_model_shall_not_see_is_not_in_the_data() -> None:
    result = ToolResult("made", "the text", exclude_value_from_context=True)

    sent = answer(result, data=True)

    assert "the text" not in sent.model_dump_json()
