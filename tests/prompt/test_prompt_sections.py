"""Sections and prompts: what may be put together, how it renders, who is closed and cloned."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import podbot.prompt
from podbot.errors import Kind, PromptError
from podbot.prompt import MarkdownSection, Prompt, Section, Tool, ToolContext, ToolResult
from podbot.runtime.events import EventBus, InProcessEventBus, PromptRendered
from podbot.runtime.session import Session


def idle(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("idle", None)


def tool(name: str) -> Tool[None, None]:
    return Tool[None, None](name=name, description="Wait.", handler=idle)


def text(key: str, **more: Any) -> MarkdownSection:
    return MarkdownSection(key=key, title=key.title(), **{"template": f"About {key}.", **more})


def prompt_of(*sections: Section, **more: str) -> Prompt:
    return Prompt(**{"ns": "tests", "key": "main", **more}, sections=sections)


class Live(Section):
    """Holds something, in the way sandboxes are held."""

    exclusive = "live thing"

    def __init__(self, session: Session, log: list[str], key: str = "live"):
        self.log = log
        super().__init__(key=key, title="Live", template="It lives.", session=session)

    def body(self, template: str) -> str:
        return f"{template} (mounted: nothing)"

    def clone(self, *, session: Session, bus: EventBus) -> Live:
        assert session.bus is bus
        return Live(session, self.log, self.key)

    def close(self) -> None:
        assert self.session is not None
        self.log.append(f"closed {self.key} of {self.session.session_id}")


# Keys and titles


@pytest.mark.parametrize("key", ["a", "0", "a.b_c-d", "a" * 64])
def test_a_section_may_have_such_a_key(key: str) -> None:
    assert text(key).key == key


@pytest.mark.parametrize("key", ["", "A", ".a", "-a", "a/b", "..", "a b", "é", "a" * 65, None])
def test_a_section_or_prompt_may_not_have_such_a_key(key: Any) -> None:
    with pytest.raises(PromptError, match="cannot be the key of a section"):
        MarkdownSection(key=key, title="T", template="")
    with pytest.raises(PromptError, match="cannot be the key of a prompt"):
        prompt_of(text("a"), key=key)


@pytest.mark.parametrize("title", ["", " ", "two\nlines", None])
def test_a_section_may_not_have_such_a_title(title: Any) -> None:
    with pytest.raises(PromptError, match="has no title"):
        MarkdownSection(key="a", title=title, template="")


@pytest.mark.parametrize("ns", ["agents", "agents/workspace", "a/b/c/d/e/f/g/h"])
def test_a_prompt_may_have_such_a_namespace(ns: str) -> None:
    assert prompt_of(text("a"), ns=ns).ns == ns


@pytest.mark.parametrize("ns", ["", "/a", "a/", "a//b", "a/../b", "..", "A", "a/" * 9 + "a", None])
def test_a_prompt_may_not_have_such_a_namespace(ns: Any) -> None:
    with pytest.raises(PromptError, match="be the namespace"):
        prompt_of(text("a"), ns=ns)


# Rendering


def test_a_prompt_renders_as_markdown() -> None:
    prompt = prompt_of(
        text("first", children=[text("child", template="  Below.\n"), text("other", template="")]),
        text("second", template="Cost: $5 and ${HOME}."),
    )

    assert prompt.render().text == (
        "## First\n\nAbout first.\n\n### Child\n\nBelow.\n\n### Other\n\n"
        "## Second\n\nCost: $5 and ${HOME}.\n"
    )
    assert repr(prompt) == "<Prompt tests:main>"
    assert repr(prompt.sections[0]) == "<MarkdownSection first>"


def test_headings_go_no_deeper_than_markdown_does() -> None:
    section = text("z")
    for key in "gfedcba":
        section = text(key, children=[section])

    rendered = prompt_of(section).render().text

    assert "\n###### E\n" in rendered and "\n###### Z\n" in rendered
    assert "#######" not in rendered


def test_values_are_put_into_a_template_and_not_looked_into() -> None:
    section = text("a", template="Review ${what} for $$5.", params={"what": "${HOME} $what"})

    assert "Review ${HOME} $what for $5." in prompt_of(section).render().text


@pytest.mark.parametrize("template", ["${missing}", "$", "${", "${a b}"])
def test_a_template_that_lacks_a_value_is_refused_when_it_is_made(template: str) -> None:
    with pytest.raises(PromptError, match="template of the section a") as caught:
        text("a", template=template, params={})
    assert "params" in str(caught.value.remedy)


def test_rendering_is_told_on_the_bus(session: Session) -> None:
    prompt = prompt_of(text("a", tools=[tool("x"), tool("y")]))

    rendered = prompt.render(session=session)
    prompt.render()  # nobody to tell

    (event,) = session.query(PromptRendered).all()
    assert (event.prompt_ns, event.prompt_key, event.text) == ("tests", "main", rendered.text)
    assert (event.tools, event.session_id) == (("x", "y"), session.session_id)


def test_the_session_of_a_section_is_told_without_being_named(session: Session) -> None:
    prompt = prompt_of(Live(session, []))

    assert "It lives. (mounted: nothing)" in prompt.render().text
    assert len(session.query(PromptRendered).all()) == 1
    assert prompt.session is session


# What cannot be put together


def test_the_tools_are_those_of_all_sections_in_order() -> None:
    first = text("a", tools=[tool("x")], children=[text("b", tools=[tool("y")])])
    prompt = prompt_of(first, text("c", tools=[tool("z")]))

    assert [each.name for each in prompt.tools] == ["x", "y", "z"]
    assert prompt.section_of("y").key == "b"
    assert prompt.find("x") == (first, first.tools[0])
    assert prompt.find("nope") is prompt.find(None) is None


def test_one_tool_name_twice_is_refused_and_both_sections_are_named() -> None:
    with pytest.raises(PromptError) as caught:
        prompt_of(text("a", tools=[tool("x")]), text("b", children=[text("c", tools=[tool("x")])]))

    assert "the tool x is there twice: in section a and in section b/c" in str(caught.value)


def test_two_sections_that_exclude_each_other_are_refused_and_named(session: Session) -> None:
    log: list[str] = []
    with pytest.raises(PromptError) as caught:
        prompt_of(Live(session, log, "one"), text("t", children=[Live(session, log, "two")]))

    assert caught.value.kind is Kind.CONFLICT
    assert "one live thing, but the sections one and t/two both" in str(caught.value)


def test_two_sections_at_one_place_are_refused() -> None:
    with pytest.raises(PromptError, match="two sections have the place a"):
        prompt_of(text("a"), text("a"))
    assert prompt_of(text("a", children=[text("a")])).places.keys() == {"a", "a/a"}


def test_a_prompt_without_sections_is_refused() -> None:
    with pytest.raises(PromptError, match="no section"):
        prompt_of()


def test_sections_of_different_sessions_are_refused(session: Session) -> None:
    other = Session(bus=InProcessEventBus())
    plain = Section(key="p", title="P", session=other)

    with pytest.raises(PromptError, match="live and p belong to different sessions"):
        prompt_of(text("a"), Live(session, []), plain)


# Closing and cloning


class Broken(Section):
    """Cannot be closed, cannot be cloned."""

    def __init__(self, key: str = "broken"):
        super().__init__(key=key, title="Broken")

    def clone(self, *, session: Session, bus: EventBus) -> Section:
        raise OSError("no room")

    def close(self) -> None:
        raise OSError("stuck")


def test_closing_a_prompt_closes_every_section(session: Session) -> None:
    log: list[str] = []
    with prompt_of(text("a", children=[Live(session, log)])) as prompt:
        assert log == []
        assert prompt.session is session

    assert log == [f"closed live of {session.session_id}"]


def test_a_section_that_cannot_be_closed_does_not_keep_others_open(session: Session) -> None:
    log: list[str] = []
    prompt = prompt_of(Broken(), Live(session, log))

    with pytest.raises(OSError, match="stuck"):
        prompt.close()

    assert len(log) == 1


def test_a_clone_shares_nothing_live(session: Session) -> None:
    log: list[str] = []
    prompt = prompt_of(text("a", tools=[tool("x")], children=[Live(session, log)]))
    other = session.clone(bus=InProcessEventBus())

    clone = prompt.clone(session=other, bus=other.bus)

    assert (clone.ns, clone.key, clone.session) == ("tests", "main", other)
    assert clone.places.keys() == prompt.places.keys()
    assert clone.places["a/live"] is not prompt.places["a/live"]
    assert prompt.session is session
    assert clone.render().text == prompt.render().text
    clone.close()
    assert log == [f"closed live of {other.session_id}"]


def test_what_was_cloned_before_a_failure_is_closed(session: Session) -> None:
    log: list[str] = []
    prompt = prompt_of(Live(session, log), Broken())
    other = session.clone(bus=InProcessEventBus())

    with pytest.raises(OSError, match="no room"):
        prompt.clone(session=other, bus=other.bus)

    assert log == [f"closed live of {other.session_id}"]


def test_clones_that_do_not_go_together_are_closed(session: Session) -> None:
    log: list[str] = []

    class Changing(Live):
        exclusive = None  # type: ignore[assignment]

        def clone(self, *, session: Session, bus: EventBus) -> Live:
            return Live(session, self.log, self.key)

    prompt = prompt_of(Changing(session, log, "one"), Changing(session, log, "two"))
    other = session.clone(bus=InProcessEventBus())

    with pytest.raises(PromptError, match="one live thing"):
        prompt.clone(session=other, bus=other.bus)

    assert len(log) == 2


def test_a_section_bound_to_a_session_must_say_how_it_is_cloned(session: Session) -> None:
    section = Section(key="p", title="P", session=session)

    with pytest.raises(PromptError, match="does not say how to clone it") as caught:
        section.clone(session=session, bus=session.bus)
    assert caught.value.kind is Kind.UNSUPPORTED


def test_a_section_whose_tools_are_its_own_methods_must_say_it_too(session: Session) -> None:
    class Stateful(Section):
        def __init__(self) -> None:
            super().__init__(
                key="s",
                title="S",
                tools=[Tool[None, None](name="x", description="X.", handler=self.run)],
            )

        def run(self, params: None, *, context: ToolContext) -> ToolResult[None]:
            return ToolResult("", None)

    with pytest.raises(PromptError, match="does not say how to clone it"):
        Stateful().clone(session=session, bus=session.bus)


# The package


def test_every_public_name_is_there() -> None:
    for name in podbot.prompt.__all__:
        assert getattr(podbot.prompt, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        _ = podbot.prompt.nope  # type: ignore[attr-defined]


def test_importing_the_package_loads_nothing_else() -> None:
    code = (
        "import podbot.prompt, sys;print(sorted(m for m in sys.modules if m.startswith('podbot.')))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout

    assert said.strip() == "['podbot.on_use', 'podbot.prompt']"
