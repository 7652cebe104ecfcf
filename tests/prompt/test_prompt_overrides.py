"""Overrides: other texts, applied only where they fit, kept where nothing else can be reached."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podbot.errors import Kind, PromptError
from podbot.prompt import (
    IgnoredOverride,
    MarkdownSection,
    OverridesStore,
    Prompt,
    PromptOverrides,
    TextOverride,
    Tool,
    ToolContext,
    ToolOverride,
    ToolResult,
    content_hash,
    current_texts,
    overrides_for,
)
from podbot.prompt._overrides_text import decoded

# A machine under load is slow; that says nothing about what is tested.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True, slots=True)
class Params:
    path: str = field(metadata={"description": "Where to look."})
    depth: int = 1


def look(params: Params, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("nothing", None)


def tool(name: str, description: str = "Look around.") -> Tool[Params, None]:
    return Tool[Params, None](name=name, description=description, handler=look)


def make(intro: str = "Be brief.", ns: str = "agents/review", key: str = "main") -> Prompt:
    child = MarkdownSection(key="child", title="Child", template="Below.")
    return Prompt(
        ns=ns,
        key=key,
        sections=[
            MarkdownSection(
                key="intro", title="Intro", template=intro, tools=[tool("look")], children=[child]
            ),
            MarkdownSection(
                key="fixed",
                title="Fixed",
                template="As it is.",
                tools=[tool("stare")],
                accepts_overrides=False,
            ),
        ],
    )


def write(store: OverridesStore, text: str | bytes, tag: str = "latest") -> Path:
    path = store.path("agents/review", "main", tag)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# Applying


def test_texts_are_replaced_and_nothing_else() -> None:
    prompt = make()
    asked = overrides_for(
        prompt,
        sections={"intro": "Be thorough.", "intro/child": "Further below."},
        tools={"look": "Look closely."},
        parameters={"look": {"path": "Where."}},
    )

    rendered = prompt.render(overrides=asked)

    assert rendered.ignored == ()
    assert "Be thorough." in rendered.text and "Further below." in rendered.text
    assert "Be brief." not in rendered.text and "As it is." in rendered.text
    changed, kept = rendered.tools_for("anthropic")
    assert changed["description"] == "Look closely."
    properties: Any = changed["input_schema"]
    assert properties["properties"]["path"]["description"] == "Where."
    assert kept["description"] == "Look around."
    assert prompt.render().text == make().render().text  # the prompt itself is as it was


def test_an_override_of_a_text_that_changed_since_is_ignored_and_reported() -> None:
    asked = overrides_for(
        make("Be brief."),
        sections={"intro": "Be thorough.", "intro/child": "Further."},
        tools={"look": "Look closely."},
        parameters={"look": {"path": "Where."}},
    )
    changed = Prompt(
        ns="agents/review",
        key="main",
        sections=[
            MarkdownSection(
                key="intro",
                title="Intro",
                template="Be kind.",
                tools=[tool("look", "Look elsewhere.")],
            )
        ],
    )

    rendered = changed.render(overrides=asked)

    assert "Be kind." in rendered.text
    stale = "stale: the text has changed since the override was written"
    assert rendered.ignored == (
        IgnoredOverride("sections/intro", stale),
        IgnoredOverride("sections/intro/child", "the prompt has no such text"),
        IgnoredOverride("tools/look", stale),
    )
    assert rendered.tools[0].description == "Look elsewhere."
    assert rendered.tools[0].parameters["path"] == "Where."  # that text is as it was


def test_what_accepts_no_overrides_or_is_not_there_is_left_alone() -> None:
    said = TextOverride(content_hash("As it is."), "Changed.")
    about = TextOverride(content_hash("Look around."), "Changed.")
    other = TextOverride("0" * 64, "Changed.")
    asked = PromptOverrides(
        "agents/review",
        "main",
        "latest",
        {"fixed": said},
        {
            "stare": ToolOverride(about),
            "nope": ToolOverride(about),
            "look": ToolOverride(None, {"path": other, "nope": other}),
        },
    )

    rendered = make().render(overrides=asked)

    assert "Changed." not in rendered.text
    assert [each.place for each in rendered.ignored] == [
        "sections/fixed",
        "tools/stare",
        "tools/nope",
        "tools/look/path",
        "tools/look/nope",
    ]
    assert rendered.ignored[0].reason == "the section accepts no overrides"


def test_a_text_that_its_section_cannot_render_is_left_out() -> None:
    section = MarkdownSection(key="a", title="A", template="${x}", params={"x": "value"})
    prompt = Prompt(ns="n", key="k", sections=[section])

    good = prompt.render(overrides=overrides_for(prompt, sections={"a": "now ${x}"}))
    bad = prompt.render(overrides=overrides_for(prompt, sections={"a": "${nope}"}))

    assert "now value" in good.text and "\nvalue\n" in bad.text
    (ignored,) = bad.ignored
    assert ignored.reason.startswith("the text does not fit: the template of the section a")


def test_overrides_of_another_prompt_are_refused() -> None:
    asked = overrides_for(make(key="other"), sections={"intro": "x"})

    with pytest.raises(PromptError, match="are for agents/review:other") as caught:
        make().render(overrides=asked)
    assert caught.value.kind is Kind.BAD_OVERRIDE


@pytest.mark.parametrize(
    "asked",
    [
        {"sections": {"nope": "x"}},
        {"sections": {"fixed": "x"}},
        {"sections": {"intro": "x" * 100_001}},
        {"tools": {"nope": "x"}},
        {"tools": {"stare": "x"}},
        {"tools": {"look": ""}},
        {"tools": {"look": "é"}},
        {"parameters": {"nope": {"path": "x"}}},
        {"parameters": {"look": {"nope": "x"}}},
        {"parameters": {"look": {"path": "x" * 1001}}},
    ],
)
def test_an_override_that_cannot_be_is_refused_when_it_is_made(asked: dict[str, Any]) -> None:
    with pytest.raises(PromptError) as caught:
        overrides_for(make(), **asked)
    assert caught.value.remedy


def test_all_that_may_be_changed_can_be_had_to_edit() -> None:
    texts = current_texts(make(), tag="mine")

    assert {place: said.text for place, said in texts.sections.items()} == {
        "intro": "Be brief.",
        "intro/child": "Below.",
    }
    assert texts.tools.keys() == {"look"}
    assert {name: said.text for name, said in texts.tools["look"].parameters.items()} == {
        "path": "Where to look.",
        "depth": "",
    }
    rendered = make().render(overrides=texts)
    assert (rendered.text, rendered.ignored) == (make().render().text, ())


# Keeping


def test_overrides_are_kept_below_the_project_and_found_again(tmp_path: Path) -> None:
    store = OverridesStore(tmp_path)
    prompt = make()
    assert store.load(prompt) is None
    assert store.tags(prompt) == ()
    asked = overrides_for(
        prompt,
        sections={"intro": "Ausführlich, bitte."},
        tools={"look": "Look closely."},
        parameters={"look": {"path": "Where."}},
    )

    path = store.save(asked)

    place = ".podbot/prompts/overrides/agents/review/main/latest.json"
    assert path == tmp_path / place
    assert store.load(prompt) == asked
    assert "Ausführlich" in path.read_text()
    store.save(overrides_for(prompt, tag="v2", sections={"intro": "x"}))
    (path.parent / "README.json.bak").touch()
    (path.parent / "Not a tag.json").touch()
    assert store.tags(prompt) == ("latest", "v2")
    assert store.remove(prompt, "v2") and not store.remove(prompt, "v2")
    assert store.tags(prompt) == ("latest",)
    assert not OverridesStore(tmp_path / "nowhere").remove(prompt)


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    store, prompt = OverridesStore(tmp_path), make()
    versions = [overrides_for(prompt, sections={"intro": letter * 50_000}) for letter in "ab"]
    store.save(versions[0])
    stop = threading.Event()

    def save() -> None:
        while not stop.is_set():
            for each in versions:
                store.save(each)

    writer = threading.Thread(target=save)
    writer.start()
    try:
        for _ in range(50):
            assert store.load(prompt) in versions
    finally:
        stop.set()
        writer.join()
    names = os.listdir(store.path("agents/review", "main", "latest").parent)
    assert names == ["latest.json"]  # and no draft is left


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, prompt = OverridesStore(tmp_path), make()
    old = overrides_for(prompt, sections={"intro": "old"})
    path = store.save(old)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PromptError, match="cannot be written: No space left"):
        store.save(overrides_for(prompt, sections={"intro": "new"}))

    assert store.load(prompt) == old
    assert os.listdir(path.parent) == ["latest.json"]


@pytest.mark.parametrize("part", ["..", ".", "a/b", "", ".hidden", "A", "a\0"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, part: str) -> None:
    store = OverridesStore(tmp_path)

    for place in ((part, "k", "t"), ("n", part, "t"), ("n", "k", part)):
        if place[0] == "a/b":
            continue  # a namespace may have several parts
        with pytest.raises(PromptError, match="cannot be part of the place"):
            store.path(*place)
        with pytest.raises(PromptError):
            store.save(PromptOverrides(*place))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PromptError):
        store.load(make(), part)


@pytest.mark.parametrize("linked", [".podbot", ".podbot/prompts/overrides/agents"])
def test_a_link_on_the_way_is_refused(tmp_path: Path, linked: str) -> None:
    elsewhere, project = tmp_path / "elsewhere", tmp_path / "project"
    elsewhere.mkdir()
    prompt = make()
    asked = overrides_for(prompt, sections={"intro": "x"})
    OverridesStore(elsewhere).save(asked)
    (project / linked).parent.mkdir(parents=True)
    (project / linked).symlink_to(elsewhere / linked)
    store = OverridesStore(project)

    for verb in (
        lambda: store.load(prompt),
        lambda: store.save(asked),
        lambda: store.remove(prompt),
        lambda: store.tags(prompt),
    ):
        with pytest.raises(PromptError) as caught:
            verb()  # type: ignore[no-untyped-call]
        assert caught.value.kind is Kind.BAD_OVERRIDE
    assert OverridesStore(elsewhere).load(prompt) == asked


def test_the_project_itself_may_lie_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    asked = overrides_for(make(), sections={"intro": "x"})

    OverridesStore(tmp_path / "link").save(asked)

    assert OverridesStore(tmp_path / "real").load(make()) == asked


def test_a_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    store = OverridesStore(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("{}")
    path = write(store, "")
    path.unlink()
    path.symlink_to(secret)

    with pytest.raises(PromptError, match="cannot be read"):
        store.load(make())
    store.save(overrides_for(make(), sections={"intro": "x"}))
    assert secret.read_text() == "{}"
    assert not path.is_symlink()


def test_a_pipe_or_folder_in_the_place_of_the_file_hangs_nobody(tmp_path: Path) -> None:
    store = OverridesStore(tmp_path)
    path = write(store, "")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(PromptError, match="not a regular file"):
        store.load(make())
    path.unlink()
    path.mkdir()
    with pytest.raises(PromptError):
        store.load(make())
    with pytest.raises(PromptError, match="cannot be written"):
        store.save(overrides_for(make(), sections={"intro": "x"}))
    assert os.listdir(path.parent) == ["latest.json"]


# Reading what anyone may have written


def good(**changes: object) -> dict[str, Any]:
    digest = content_hash("Be brief.")
    return {
        "version": 1,
        "ns": "agents/review",
        "key": "main",
        "tag": "latest",
        "sections": {"intro": {"hash": digest, "text": "Be thorough."}},
        **changes,
    }


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in good().items() if key != name}


SAID = {"hash": "0" * 64, "text": "x"}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([], "the file is not an object"),
        (without("version"), "has no version"),
        (without("ns"), "has no ns"),
        (good(version=2), "only version 1"),
        (good(version=True), "only version 1"),
        (good(extra=1), '"extra", which is unknown'),
        (good(ns=1), "ns is not text"),
        (good(ns="agents/other"), "for another prompt or tag"),
        (good(key="k" * 65), "key is not text of at most 64"),
        (good(tag="v2"), "for another prompt or tag"),
        (good(sections=[]), "sections is not an object"),
        (good(sections={str(n): SAID for n in range(1001)}), "at most 1000 entries"),
        (good(sections={"intro": "x"}), 'sections["intro"] is not an object'),
        (good(sections={"intro": {"text": "x"}}), "has no hash"),
        (good(sections={"intro": {**SAID, "more": 1}}), "unknown"),
        (good(sections={"intro": {**SAID, "hash": "x" * 64}}), "not a SHA-256"),
        (good(sections={"intro": {**SAID, "text": "x" * 100_001}}), "at most 100000"),
        (good(sections={"intro": {**SAID, "text": None}}), "is not text"),
        (good(sections={"intro": {**SAID, "text": "\ud800"}}), "half of a character"),
        (good(tools={"look": SAID}), "unknown"),
        (good(tools={"look": {"description": {**SAID, "text": "é"}}}), "printable ASCII"),
        (good(tools={"look": {"description": {**SAID, "text": "x" * 201}}}), "at most 200"),
        (good(tools={"look": {"handler": "x"}}), "unknown"),
        (good(tools={"look": {"parameters": {"path": {**SAID, "text": "x" * 1001}}}}), "1000"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused(
    tmp_path: Path, data: object, reason: str
) -> None:
    store = OverridesStore(tmp_path)
    path = write(store, json.dumps(data))

    with pytest.raises(PromptError) as caught:
        store.load(make())

    assert caught.value.kind is Kind.BAD_OVERRIDE
    assert reason in caught.value.message and str(path) in caught.value.message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "Expecting value"),
        (b"\xff", "codec"),
        (b'{"version": 1, "version": 1}', "comes twice"),
        (b"[" * 100_000, "nested too deep"),
        (b" " * (4 << 20) + b"{}", "more than 4194304 bytes"),
    ],
    ids=range(5),
)
def test_text_that_is_not_strict_json_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    store = OverridesStore(tmp_path)
    write(store, text)

    with pytest.raises(PromptError, match=reason):
        store.load(make())


def test_a_file_as_it_should_be_is_read(tmp_path: Path) -> None:
    store = OverridesStore(tmp_path)
    write(store, json.dumps(good(tools={"look": {}})))

    found = store.load(make())

    assert "Be thorough." in make().render(overrides=found).text


def test_too_much_is_not_written(tmp_path: Path) -> None:
    sections = {str(number): TextOverride("0" * 64, "x" * 90_000) for number in range(50)}

    with pytest.raises(PromptError, match="4194304 are allowed"):
        OverridesStore(tmp_path).save(PromptOverrides("n", "k", "t", sections))
    for odd in (TextOverride("nonsense", "x"), TextOverride("0" * 64, "\ud800")):
        with pytest.raises(PromptError, match=r"not a SHA-256|codec can't decode"):
            OverridesStore(tmp_path).save(PromptOverrides("n", "k", "t", {"a": odd}))
    assert list(tmp_path.iterdir()) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@PATIENT
@given(
    st.dictionaries(
        st.sampled_from(["version", "ns", "key", "tag", "sections", "tools", "x"]), JSON
    )
)
def test_whatever_a_file_holds_it_is_read_or_refused(data: Any) -> None:
    try:
        decoded({**good(), **data})
    except ValueError as error:
        assert str(error)
