"""`Section`: a piece of a prompt, with its text and the tools that go with it.

A section that holds something live (a sandbox) opens it when first needed, ends it in `close`, and
makes a new one for another session in `clone`. A section neither renders other sections nor
dispatches calls: the prompt does.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from string import Template
from typing import TYPE_CHECKING

from podbot.errors import Kind, PromptError
from podbot.prompt.json_text import quoted
from podbot.prompt.tool import AnyTool, Tool
from podbot.runtime.given import expect, expect_each
from podbot.runtime.session import Session

if TYPE_CHECKING:
    from podbot.prompt.context import ToolContext
    from podbot.runtime.events import EventBus

KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
CONTAINER_SHELL = "container-backed shell"
"""What sections whose tools run commands in a container put into `Section.exclusive`."""


class Section:
    """A titled text with tools and child sections.

    ``session`` is the session the section is bound to (None: any). ``accepts_overrides`` says
    whether its texts may be replaced from a file. Subclasses change what they need: `body`,
    `clone`, `refresh`, `close`.
    """

    exclusive: str | None = None
    """What a prompt may have only once, such as `CONTAINER_SHELL`."""
    bus: EventBus | None = None
    """Where calls of its tools are told, besides to the session: the bus that `clone` was given."""

    def __init__(
        self,
        *,
        key: str,
        title: str,
        template: str = "",
        tools: Sequence[AnyTool] = (),
        children: Sequence[Section] = (),
        accepts_overrides: bool = True,
        session: Session | None = None,
    ):
        _check(key, title)
        expect(template, str, f"the template of the section {key}", PromptError)
        if session is not None:
            expect(session, Session, f"the session of the section {key}", PromptError)
        self.key = key
        self.title = title
        self.template = template
        self.tools: tuple[AnyTool, ...] = expect_each(
            tools, Tool, f"tools of the section {key}", PromptError
        )
        self.children: tuple[Section, ...] = expect_each(
            children, Section, f"children of the section {key}", PromptError
        )
        self.accepts_overrides = accepts_overrides
        self.session = session

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key}>"

    def body(self, template: str) -> str:
        """The text below the title, made from the template (or from what an override put there)."""
        return template

    def clone(self, *, session: Session, bus: EventBus) -> Section:
        """A section for another session that shares nothing live with this one.

        The base class can do this only for a section that is bound to no session and whose tools
        are no methods of its own; whoever holds something must say how to make another one, with
        clones of its children.
        """
        own = any(getattr(tool.handler, "__self__", None) is self for tool in self.tools)
        if own or self.session is not None:
            raise PromptError(
                f"the section {self.key} does not say how to clone it",
                kind=Kind.UNSUPPORTED,
                remedy=f"define clone() in {type(self).__name__}",
            )
        made = copy.copy(self)
        made.children = clone_all(self.children, session=session, bus=bus)
        made.bus = bus
        return made

    def refresh(self, context: ToolContext) -> None:
        """Bring the session's slices up to date after a call of one of the tools failed.

        By then the slices are as they were before the call, and the failure is recorded.
        """

    def close(self) -> None:
        """End whatever is live. May be called more than once."""


class MarkdownSection(Section):
    """A text. With ``params``, each ``${name}`` in the template is replaced by its value."""

    def __init__(
        self,
        *,
        key: str,
        title: str,
        template: str,
        params: Mapping[str, str] | None = None,
        tools: Sequence[AnyTool] = (),
        children: Sequence[Section] = (),
        accepts_overrides: bool = True,
    ):
        super().__init__(
            key=key,
            title=title,
            template=template,
            tools=tools,
            children=children,
            accepts_overrides=accepts_overrides,
        )
        if params is not None:
            expect(params, Mapping, f"params of the section {key}", PromptError)
        self.params = None if params is None else dict(params)
        self.body(template)  # a template that lacks a value is found now

    def body(self, template: str) -> str:
        """The template with its values. Values are not looked into for more names."""
        if self.params is None:
            return template
        try:
            return Template(template).substitute(self.params)
        except KeyError as error:
            problem = f"has no value for ${{{error.args[0]}}}"
        except ValueError:
            problem = "has a $ that begins no name"
        raise PromptError(
            f"the template of the section {self.key} {problem}",
            remedy="give every ${name} a value in params, and write $$ for a plain $",
        )


def walk(sections: Sequence[Section], above: tuple[str, ...] = ()) -> Iterator[tuple[str, Section]]:
    """Each section with its place (keys joined by ``/``), parents before their children."""
    for section in sections:
        place = (*above, section.key)
        yield "/".join(place), section
        yield from walk(section.children, place)


def clone_all(
    sections: Sequence[Section], *, session: Session, bus: EventBus
) -> tuple[Section, ...]:
    """A clone of each. If one fails, those made before it are closed."""
    made: list[Section] = []
    try:
        for section in sections:
            made.append(section.clone(session=session, bus=bus))
    except BaseException:
        close_all(made)
        raise
    return tuple(made)


def close_all(sections: Sequence[Section]) -> None:
    """Close each and all below it, whatever the others do; then raise the first error."""
    failed: Exception | None = None
    for _, section in walk(sections):
        try:
            section.close()
        except Exception as error:  # the others must still be closed
            failed = failed or error
    if failed is not None:
        raise failed


def _check(key: object, title: object) -> None:
    if not isinstance(key, str) or KEY.fullmatch(key) is None:
        raise PromptError(
            f"{quoted(str(key))} cannot be the key of a section",
            remedy="use 1 to 64 of a-z, 0-9, '.', _ and -, beginning with a letter or a digit",
        )
    if not isinstance(title, str) or not title.strip() or not title.isprintable():
        raise PromptError(
            f"the section {key} has no title that fits on one line",
            remedy="give it a title of printable characters",
        )
