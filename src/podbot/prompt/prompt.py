"""`Prompt`: sections put together, what a model is told and which tools it may call.

A prompt renders Markdown and the tool set, hands calls to the tool they name, and owns its
sections: closing it closes them. It knows no model and no sandbox; an adapter runs it, sections
bring what is live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from podbot.errors import Kind, PromptError
from podbot.frozen import dataclass
from podbot.prompt._dispatch import Arguments, Call, dispatch
from podbot.prompt.context import Cancellation, Deadline, Progress
from podbot.prompt.formats import ToolFormat, tools_for
from podbot.prompt.json_text import quoted
from podbot.prompt.overrides import IgnoredOverride, PromptOverrides, texts
from podbot.prompt.result import Json, ToolResult
from podbot.prompt.section import KEY, Section, clone_all, close_all, walk
from podbot.prompt.tool import AnyTool
from podbot.runtime.events import PromptRendered
from podbot.runtime.given import expect, expect_each
from podbot.runtime.session import Session

if TYPE_CHECKING:
    from podbot.runtime.events import EventBus

NS_PARTS = 8
_DEEPEST_HEADING = 6


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """What a model is told. ``ignored`` lists overrides that were not applied, and why."""

    ns: str
    key: str
    text: str
    tools: tuple[AnyTool, ...]
    ignored: tuple[IgnoredOverride, ...] = ()

    def tools_for(self, form: ToolFormat) -> list[dict[str, Json]]:
        """The tools as a model provider wants them."""
        return tools_for(self.tools, form)


class Prompt:
    """Sections under a namespace and a key. Use it as a context manager, or call `close`.

    Raises `PromptError` if two sections have one place, two tools one name, two sections something
    that there may be only one of, or sections belong to different sessions.
    """

    def __init__(self, *, ns: str, key: str, sections: Sequence[Section]):
        _check_name(ns, key)
        self.ns = ns
        self.key = key
        self.sections: tuple[Section, ...] = expect_each(
            sections, Section, f"sections of the prompt {ns}:{key}", PromptError
        )
        self.places: Mapping[str, Section] = MappingProxyType(_places(self.sections))
        self._found = _tools(self.places)
        self._tools = tuple(tool for _, tool in self._found.values())
        _check_exclusive(self.places)
        self._session = _one_session(self.places)

    def __repr__(self) -> str:
        return f"<Prompt {self.ns}:{self.key}>"

    @property
    def tools(self) -> tuple[AnyTool, ...]:
        """Every tool, in the order of the sections."""
        return self._tools

    @property
    def session(self) -> Session | None:
        """The session its sections are bound to, if any of them is."""
        return self._session

    def find(self, name: object) -> tuple[Section, AnyTool] | None:
        """The tool of this name with its section."""
        return self._found.get(name) if isinstance(name, str) else None

    def section_of(self, name: str) -> Section:
        """The section that brings the tool of this name; raises `PromptError` if none does."""
        found = self.find(name)
        if found is None:
            names = ", ".join(tool.name for tool in self._tools) or "none"
            raise PromptError(
                f"the prompt {self.ns}:{self.key} has no tool {quoted(str(name))}",
                remedy=f"name one of its tools: {names}",
            )
        return found[0]

    def render(
        self, *, session: Session | None = None, overrides: PromptOverrides | None = None
    ) -> RenderedPrompt:
        """The Markdown and the tools, with overrides where they fit.

        Publishes `PromptRendered` on the session's bus, if there is a session (the one given, else
        the one the sections are bound to).
        """
        if session is not None:
            expect(session, Session, "session=", PromptError)
        found = texts(self, overrides)
        parts: list[str] = []
        for place, section in self.places.items():
            level = min(place.count("/") + 2, _DEEPEST_HEADING)
            body = section.body(found.templates[place]).strip()
            heading = f"{'#' * level} {section.title}"
            parts.append(f"{heading}\n\n{body}" if body else heading)
        text = "\n\n".join(parts) + "\n"
        rendered = RenderedPrompt(
            self.ns, self.key, text, tuple(found.tools.values()), found.ignored
        )
        session = self._session if session is None else session
        if session is not None:
            names = tuple(tool.name for tool in rendered.tools)
            session.bus.publish(PromptRendered(self.ns, self.key, text, names, session.session_id))
        return rendered

    def tools_for(self, form: ToolFormat) -> list[dict[str, Json]]:
        """The tools as a model provider wants them: openai, openai-responses, anthropic, mcp."""
        return tools_for(self._tools, form)

    def call(
        self,
        name: str,
        arguments: Arguments = None,
        *,
        session: Session | None = None,
        call_id: str | None = None,
        deadline: Deadline | None = None,
        cancellation: Cancellation | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> ToolResult[object]:
        """Have a tool called; whatever a model did wrong or a tool raised is a failing result.

        ``session`` may be left out when the sections are bound to one. Any number of threads may
        call at once.
        """
        call = Call(name, arguments, call_id, deadline, cancellation, on_progress)
        return dispatch(self, self._session_for(session), call)

    async def acall(
        self,
        name: str,
        arguments: Arguments = None,
        *,
        session: Session | None = None,
        call_id: str | None = None,
        deadline: Deadline | None = None,
        cancellation: Cancellation | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> ToolResult[object]:
        """`call` for event loops: the handler runs in a worker thread.

        When the task is cancelled, so is the call; the handler ends in its own time, and progress
        is reported from its thread.
        """
        import asyncio

        cancellation = cancellation or Cancellation()
        call = Call(name, arguments, call_id, deadline, cancellation, on_progress)
        try:
            return await asyncio.to_thread(dispatch, self, self._session_for(session), call)
        except asyncio.CancelledError:
            cancellation.cancel()
            raise

    def clone(self, *, session: Session, bus: EventBus) -> Prompt:
        """The same prompt for another session, sharing nothing live with this one."""
        sections = clone_all(self.sections, session=session, bus=bus)
        try:
            return Prompt(ns=self.ns, key=self.key, sections=sections)
        except BaseException:
            close_all(sections)
            raise

    def close(self) -> None:
        """Close every section, whatever the others do; then raise the first error."""
        close_all(self.sections)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _session_for(self, session: Session | None) -> Session:
        session = self._session if session is None else session
        if session is not None:
            expect(session, Session, "session=", PromptError)
        else:
            raise PromptError(
                f"nothing says to which session a call of {self.ns}:{self.key} belongs",
                remedy="pass session=",
            )
        if self._session is not None and self._session is not session:
            raise PromptError(
                f"the sections of {self.ns}:{self.key} belong to session "
                f"{self._session.session_id}, not to {session.session_id}",
                remedy="call prompt.clone(session=..., bus=...) and use the clone",
            )
        return session


def _check_name(ns: object, key: object) -> None:
    parts = ns.split("/") if isinstance(ns, str) else []
    if not 1 <= len(parts) <= NS_PARTS or not all(map(KEY.fullmatch, parts)):
        raise PromptError(
            f"{quoted(str(ns))} cannot be the namespace of a prompt",
            remedy=f"use 1 to {NS_PARTS} parts joined by /, each 1 to 64 of a-z, 0-9, '.', _ and "
            "-, beginning with a letter or a digit",
        )
    if not isinstance(key, str) or KEY.fullmatch(key) is None:
        raise PromptError(
            f"{quoted(str(key))} cannot be the key of a prompt",
            remedy="use 1 to 64 of a-z, 0-9, '.', _ and -, beginning with a letter or a digit",
        )


def _places(sections: Sequence[Section]) -> dict[str, Section]:
    places: dict[str, Section] = {}
    for place, section in walk(sections):
        if place in places:
            raise PromptError(
                f"two sections have the place {place}",
                remedy="give one of them another key",
            )
        places[place] = section
    if not places:
        raise PromptError("the prompt has no section", remedy="give it at least one")
    return places


def _tools(places: Mapping[str, Section]) -> dict[str, tuple[Section, AnyTool]]:
    homes: dict[str, str] = {}
    found: dict[str, tuple[Section, AnyTool]] = {}
    for place, section in places.items():
        for tool in section.tools:
            if tool.name in homes:
                raise PromptError(
                    f"the tool {tool.name} is there twice: "
                    f"in section {homes[tool.name]} and in section {place}",
                    remedy="leave one of the sections out, or rename one of the tools",
                )
            homes[tool.name] = place
            found[tool.name] = section, tool
    return found


def _check_exclusive(places: Mapping[str, Section]) -> None:
    homes: dict[str, str] = {}
    for place, section in places.items():
        what = section.exclusive
        if what is None:
            continue
        if what in homes:
            raise PromptError(
                f"a prompt can have one {what}, but the sections {homes[what]} and {place} both "
                "are one",
                kind=Kind.CONFLICT,
                remedy="leave one of them out",
            )
        homes[what] = place


def _one_session(places: Mapping[str, Section]) -> Session | None:
    found: Session | None = None
    first = ""
    for place, section in places.items():
        if section.session is None:
            continue
        if found is not None and section.session is not found:
            raise PromptError(
                f"the sections {first} and {place} belong to different sessions",
                remedy="make both with the same session",
            )
        found, first = section.session, place
    return found
