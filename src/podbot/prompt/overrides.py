"""Overrides: other texts for a prompt's sections, tools and parameters, without touching code.

Each override carries the hash of the text it was written for. When that text has changed since, the
override is stale: it is ignored and reported, never applied to something its author did not see.
Only texts can be replaced. Where overrides are kept is `overrides_store`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from podbot.errors import Kind, PromptError
from podbot.frozen import dataclass, field
from podbot.prompt.json_text import quoted
from podbot.prompt.tool import AnyTool, checked_description
from podbot.runtime.given import expect

if TYPE_CHECKING:
    from podbot.prompt.prompt import Prompt
    from podbot.prompt.section import Section

SECTION_LENGTH = 100_000
PARAMETER_LENGTH = 1_000


@dataclass(frozen=True, slots=True)
class TextOverride:
    """A text, and the hash of the one it takes the place of."""

    hash: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolOverride:
    """Texts for a tool: its description (None: as it is), and those of its parameters."""

    description: TextOverride | None = None
    parameters: Mapping[str, TextOverride] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PromptOverrides:
    """The overrides of one prompt under one tag. Sections are named by place (``parent/child``)."""

    ns: str
    key: str
    tag: str
    sections: Mapping[str, TextOverride] = field(default_factory=dict)
    tools: Mapping[str, ToolOverride] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IgnoredOverride:
    """An override that was not applied: ``sections/intro``, ``tools/ls/path``; and why."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class Texts:
    """What a prompt is rendered with: templates by place, tools by name, what was ignored."""

    templates: Mapping[str, str]
    tools: Mapping[str, AnyTool]
    ignored: tuple[IgnoredOverride, ...]


def content_hash(text: str) -> str:
    """The hash by which an override knows the text it was written for."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def overrides_for(
    prompt: Prompt,
    *,
    tag: str = "latest",
    sections: Mapping[str, str] | None = None,
    tools: Mapping[str, str] | None = None,
    parameters: Mapping[str, Mapping[str, str]] | None = None,
) -> PromptOverrides:
    """Overrides for the texts that this prompt has now.

    ``sections`` gives bodies by place, ``tools`` descriptions by name, ``parameters`` descriptions
    by tool and parameter. Raises `PromptError` for what the prompt does not have or does not allow.
    """
    expect_prompt(prompt)
    bodies = {
        place: TextOverride(content_hash(_open(prompt, place).template), _body(place, text))
        for place, text in (sections or {}).items()
    }
    changed: dict[str, ToolOverride] = {}
    for name in [*(tools or {}), *(name for name in parameters or {} if name not in (tools or {}))]:
        tool = _open_tool(prompt, name)
        said = (tools or {}).get(name)
        changed[name] = ToolOverride(
            None if said is None else _description(tool, said),
            {
                parameter: _parameter(tool, parameter, text)
                for parameter, text in (parameters or {}).get(name, {}).items()
            },
        )
    return PromptOverrides(prompt.ns, prompt.key, tag, bodies, changed)


def current_texts(prompt: Prompt, *, tag: str = "latest") -> PromptOverrides:
    """All that may be overridden, with the texts of now: something to write to a file and edit."""
    expect_prompt(prompt)
    open_tools = [tool for tool in prompt.tools if prompt.section_of(tool.name).accepts_overrides]
    return overrides_for(
        prompt,
        tag=tag,
        sections={
            place: section.template
            for place, section in prompt.places.items()
            if section.accepts_overrides
        },
        tools={tool.name: tool.description for tool in open_tools},
        parameters={tool.name: tool.parameters for tool in open_tools if tool.parameters},
    )


def texts(prompt: Prompt, overrides: PromptOverrides | None) -> Texts:
    """The texts of a prompt with overrides applied where they fit."""
    templates = {place: section.template for place, section in prompt.places.items()}
    tools = {tool.name: tool for tool in prompt.tools}
    if overrides is None:
        return Texts(templates, tools, ())
    expect(overrides, PromptOverrides, "overrides=", PromptError)
    if (overrides.ns, overrides.key) != (prompt.ns, prompt.key):
        raise PromptError(
            f"the overrides are for {overrides.ns}:{overrides.key}, "
            f"the prompt is {prompt.ns}:{prompt.key}",
            kind=Kind.BAD_OVERRIDE,
            remedy="load those of this prompt",
        )
    ignored: list[IgnoredOverride] = []
    for place, said in overrides.sections.items():
        section = prompt.places.get(place)
        reason = _misfit(section, None if section is None else section.template, said)
        if reason is None and section is not None:
            reason = _unfit(section, said.text)
        if reason is None:
            templates[place] = said.text
        else:
            ignored.append(IgnoredOverride(f"sections/{place}", reason))
    for name, asked in overrides.tools.items():
        if name in tools:
            tools[name] = _described(prompt, tools[name], asked, ignored)
        else:
            ignored.append(IgnoredOverride(f"tools/{name}", _ABSENT))
    return Texts(templates, tools, tuple(ignored))


_ABSENT = "the prompt has no such text"
_CLOSED = "the section accepts no overrides"
_STALE = "stale: the text has changed since the override was written"


def _misfit(section: Section | None, text: str | None, said: TextOverride) -> str | None:
    """Why an override is not applied, or None."""
    if section is None or text is None:
        return _ABSENT
    if not section.accepts_overrides:
        return _CLOSED
    return None if content_hash(text) == said.hash else _STALE


def _unfit(section: Section, text: str) -> str | None:
    """Why a section cannot be rendered with this text, or None."""
    try:
        section.body(text)
    except PromptError as error:
        return f"the text does not fit: {error.message}"
    return None


def _described(
    prompt: Prompt, tool: AnyTool, asked: ToolOverride, ignored: list[IgnoredOverride]
) -> AnyTool:
    section = prompt.section_of(tool.name)
    description = tool.description
    if asked.description is not None:
        reason = _misfit(section, description, asked.description)
        if reason is None:
            description = asked.description.text
        else:
            ignored.append(IgnoredOverride(f"tools/{tool.name}", reason))
    parameters: dict[str, str] = {}
    for name, said in asked.parameters.items():
        reason = _misfit(section, tool.parameters.get(name), said)
        if reason is None:
            parameters[name] = said.text
        else:
            ignored.append(IgnoredOverride(f"tools/{tool.name}/{name}", reason))
    return tool.described(description, parameters)


def _open(prompt: Prompt, place: str) -> Section:
    section = prompt.places.get(place)
    if section is None or not section.accepts_overrides:
        raise _refused(prompt, f"section {quoted(place)}", _ABSENT if section is None else _CLOSED)
    return section


def _open_tool(prompt: Prompt, name: str) -> AnyTool:
    found = [tool for tool in prompt.tools if tool.name == name]
    if not found or not prompt.section_of(name).accepts_overrides:
        raise _refused(prompt, f"tool {quoted(name)}", _CLOSED if found else _ABSENT)
    return found[0]


def _refused(prompt: Prompt, what: str, reason: str) -> PromptError:
    return PromptError(
        f"the {what} of {prompt.ns}:{prompt.key} cannot be overridden: {reason}",
        kind=Kind.BAD_OVERRIDE,
        remedy="name a text that the prompt has, in a section with accepts_overrides=True",
    )


def expect_prompt(prompt: object) -> None:
    """Raise `PromptError` unless it is a prompt."""
    from podbot.prompt.prompt import Prompt

    expect(prompt, Prompt, "the prompt to override", PromptError)


def _body(place: str, text: str) -> str:
    expect(text, str, f"the override of section {quoted(place)}", PromptError)
    if len(text) > SECTION_LENGTH:
        raise PromptError(
            f"the override of section {quoted(place)} has {len(text)} characters",
            kind=Kind.BAD_OVERRIDE,
            remedy=f"keep it within {SECTION_LENGTH}",
        )
    return text


def _description(tool: AnyTool, text: str) -> TextOverride:
    checked_description(text, f"the tool {tool.name}")
    return TextOverride(content_hash(tool.description), text)


def _parameter(tool: AnyTool, name: str, text: str) -> TextOverride:
    present = tool.parameters.get(name)
    expect(text, str, f"the override of {tool.name}.{name}", PromptError)
    if present is None or len(text) > PARAMETER_LENGTH:
        raise PromptError(
            f"the parameter {quoted(name)} of the tool {tool.name} cannot have this override",
            kind=Kind.BAD_OVERRIDE,
            remedy=f"it has: {', '.join(tool.parameters)}; "
            f"a description has at most {PARAMETER_LENGTH} characters",
        )
    return TextOverride(content_hash(present), text)
