"""Things of the wrong type: each is refused where it comes in, by name, with what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import podbot.sandbox
from podbot import review
from podbot.api import RunRequest
from podbot.changes import (
    ChangeSet,
    Entry,
    apply_changes,
    decide_overlaps,
    select_changes,
    undo_changes,
)
from podbot.engine.image.recipes import Recipe
from podbot.engine.profiles import Profile
from podbot.errors import (
    ChangesError,
    ConfigError,
    Kind,
    LaunchError,
    PodbotError,
    PromptError,
    SandboxError,
    SessionError,
    SnapshotRestoreError,
    ToolValidationError,
)
from podbot.prompt import (
    Deadline,
    Delegation,
    MarkdownSection,
    OverridesStore,
    Prompt,
    ScriptedModel,
    Section,
    SubagentIsolationLevel,
    SubagentsSection,
    Tool,
    ToolContext,
    ToolResult,
    current_texts,
    dispatch_subagents,
    execute,
    overrides_for,
)
from podbot.review import Review, Summary
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.logging import get_logger
from podbot.runtime.session import Session, Snapshot, append, upsert_by
from podbot.sandbox import Policy
from podbot.sandbox.container.settings import Settings
from podbot.sandbox.launcher import Launched, Launcher
from podbot.tools import (
    HostMount,
    OverlaySandboxConfig,
    OverlaySandboxSection,
    PodmanSandboxConfig,
    PodmanSandboxSection,
    UnsafeLocalSandboxConfig,
    UnsafeLocalSandboxSection,
    VfsToolsConfig,
    VfsToolsSection,
)
from podbot.tools.vfs import normalize_host_root, normalize_string_path

# What no type checker would let through is the subject here.
Wrong = Any


@dataclass(frozen=True, slots=True)
class Note:
    text: str = ""


@dataclass(frozen=True, slots=True)
class Params:
    text: str = ""


def note(params: Params, *, context: ToolContext) -> ToolResult[Note]:
    return ToolResult("Noted.", Note(params.text))


NOTE = Tool[Params, Note](name="note", description="Note it.", handler=note)


def a_session(**given: Wrong) -> Session:
    return Session(**{"bus": InProcessEventBus(), **given})


def a_section(**given: Wrong) -> MarkdownSection:
    return MarkdownSection(**{"key": "notes", "title": "Notes", "template": "x", **given})


def a_prompt(*tools: Tool[Any, Any]) -> Prompt:
    return Prompt(ns="a", key="b", sections=[a_section(tools=tools or [NOTE])])


def wrong(value: object) -> Wrong:
    return value


Act = Callable[[], object]


def check(act: Act, error: type[PodbotError], words: str) -> None:
    with pytest.raises(PodbotError) as raised:
        act()
    assert type(raised.value) is error
    assert words in raised.value.message
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: a_session(bus=None), "the bus of a session is None"),
        (lambda: a_session(bus=InProcessEventBus), "the class InProcessEventBus"),
        (lambda: a_session().clone(bus=wrong("x")), "the bus of a session is a str"),
        (lambda: a_session(parent="x"), "the parent of a session is a str, not a Session"),
        (lambda: a_session(tags="abc"), "the tags of a session is a str, not a Mapping"),
        (lambda: a_session(tags={1: "a"}), "the tag 1 is not text"),
        (lambda: a_session(clock=5), "the clock of a session is an int"),
        (lambda: a_session(clock=lambda: 5), "the clock of a session says is an int"),
        (lambda: a_session(clock=lambda: datetime(2030, 1, 1)), "times without a zone"),
        (lambda: a_session().slice_of(wrong(None)), "None is not a dataclass"),
        (lambda: a_session().query(Note).where(wrong(5)), "the predicate of where() is an int"),
        (lambda: a_session().query(Note).where(wrong(None)), "where() is None, not a function"),
        (
            lambda: a_session().mutate(Note).register(Note, wrong(5)),
            "the reducer of Note is an int",
        ),
        (
            lambda: a_session().mutate().rollback(wrong(None)),
            "roll back to is None, not a Snapshot",
        ),
        (lambda: a_session().mutate().rollback(wrong("{}")), "roll back to is a str"),
        (lambda: a_session().mutate().rollback(wrong(a_session().snapshot)), "is a method"),
        (lambda: upsert_by(wrong("text")), "the key of upsert_by is a str"),
        (lambda: InProcessEventBus().subscribe(wrong("x"), print), "subscribe to is a str"),
        (lambda: InProcessEventBus().subscribe(Note, wrong(None)), "the handler of Note is None"),
    ],
)
def test_sessions_and_buses(act: Act, words: str) -> None:
    check(act, SessionError, words)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: Snapshot.from_json(wrong(None), types=()), "is None, not a str or a bytes"),
        (lambda: Snapshot.from_json(wrong({}), types=()), "a snapshot is a dict"),
        (lambda: Snapshot.from_json("{}", types=wrong(None)), "types a snapshot may name must"),
        (lambda: Snapshot.from_json("{}", types=wrong("abc")), "but is a str"),
        (lambda: Snapshot.from_json("{}", types=wrong([Note()])), "item 0 of the types"),
        (lambda: Snapshot.from_json("{}", types=(), max_bytes=wrong(None)), "max_bytes is None"),
    ],
)
def test_snapshots(act: Act, words: str) -> None:
    check(act, SnapshotRestoreError, words)


def test_a_snapshot_may_be_read_with_types_from_a_generator() -> None:
    session = a_session()
    session.mutate(Note).append(Note("a"))
    text = session.snapshot().to_json()
    assert Snapshot.from_json(text, types=(each for each in session.types)).slices[Note]


def test_one_secret_is_not_taken_for_its_letters() -> None:
    words = "the secrets of a logger must be a list, each item a str, but is a str"
    check(lambda: get_logger("x", secrets="hunter2"), PodbotError, words)
    check(lambda: get_logger("x").hiding("hunter2"), PodbotError, words)
    check(lambda: get_logger("x").hiding(wrong([5])), PodbotError, "item 0 of the secrets")


MODEL = ScriptedModel([])
ISOLATION = SubagentIsolationLevel.NO_ISOLATION


def called(**given: Wrong) -> Act:
    return lambda: a_prompt().call("note", **{"session": a_session(), **given})


def delegated(delegations: Wrong, isolation: Wrong = ISOLATION, **given: Wrong) -> Act:
    whole = {"adapter": MODEL, "prompt": a_prompt(), "session": a_session(), **given}
    return lambda: dispatch_subagents(delegations, isolation, **whole)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (
            lambda: Tool[Params, Note](name="n", description="d", handler=wrong(None)),
            "the handler of the tool n is None",
        ),
        (lambda: ToolResult(wrong(None), None), "the message of a ToolResult is None, not a str"),
        (lambda: a_section(tools=None), "tools of the section notes must be a list"),
        (lambda: a_section(tools=NOTE), "each item a Tool, but is a Tool"),
        (lambda: a_section(tools=["ls"]), "item 0 of tools of the section notes is a str"),
        (lambda: a_section(tools=[NOTE, note]), "item 1 of tools of the section notes is a func"),
        (lambda: a_section(children=None), "children of the section notes must be a list"),
        (lambda: a_section(children=["x"]), "item 0 of children"),
        (lambda: a_section(template=None), "the template of the section notes is None"),
        (lambda: a_section(params="abc"), "params of the section notes is a str"),
        (
            lambda: Section(key="k", title="T", session=wrong("x")),
            "the session of the section k is a str, not a Session",
        ),
        (lambda: Prompt(ns="a", key="b", sections=wrong(None)), "sections of the prompt a:b"),
        (lambda: Prompt(ns="a", key="b", sections=wrong(a_section())), "is a MarkdownSection"),
        (
            lambda: Prompt(ns="a", key="b", sections=wrong([MarkdownSection])),
            "is the class MarkdownSection, not a Section",
        ),
        (lambda: a_prompt().section_of("nope"), 'the prompt a:b has no tool "nope"'),
        (lambda: a_prompt().render(session=wrong("x")), "session= is a str"),
        (lambda: a_prompt().render(overrides=wrong("x")), "overrides= is a str"),
        (called(session="x"), "session= is a str, not a Session"),
        (called(call_id=5), "call_id= is an int"),
        (called(deadline=5), "deadline= is an int, not a Deadline"),
        (called(cancellation=5), "cancellation= is an int"),
        (called(on_progress=5), "on_progress= is an int, not a function"),
        (lambda: asyncio.run(a_prompt().acall("note", deadline=wrong(5))), "deadline= is an int"),
        (lambda: Deadline.after(wrong("5")), "until a deadline is a str, not an int or a float"),
        (lambda: Deadline.after(float("nan")), "NaN"),
        (lambda: execute(wrong(None), a_prompt(), a_session()), "the adapter is None"),
        (lambda: execute(wrong(print), a_prompt(), a_session()), "are needed: run"),
        (lambda: ScriptedModel(wrong("abc")), "the steps of a script must be a list"),
        (lambda: ScriptedModel(wrong([None])), "step 0 of the script is None"),
        (delegated(None), "what to delegate is None"),
        (delegated(Delegation("x")), "what to delegate is a Delegation"),
        (delegated(["x"]), "item 0 of what to delegate is a str, not a Delegation"),
        # Any word would have meant full isolation.
        (delegated([Delegation("x")], "no_isolation"), "the isolation of subagents is a str"),
        (delegated([Delegation("x")], adapter=None), "the adapter of the subagents is None"),
        (delegated([Delegation("x")], prompt="x"), "the prompt of the subagents is a str"),
        (
            lambda: SubagentsSection(adapter=MODEL, isolation=wrong("full_isolation")),
            "the isolation of subagents is a str",
        ),
        (lambda: SubagentsSection(adapter=wrong(None)), "the adapter of the subagents is None"),
        (lambda: OverridesStore(wrong(None)), "the folder of overrides is None"),
        (lambda: OverridesStore("x").save(wrong(None)), "what to save is None"),
        (lambda: OverridesStore("x").load(wrong(None)), "the prompt to override is None"),
        (lambda: OverridesStore("x").remove(wrong(None)), "the prompt to override is None"),
        (lambda: OverridesStore("x").tags(wrong(None)), "the prompt to override is None"),
        (lambda: current_texts(wrong(None)), "the prompt to override is None"),
        (lambda: overrides_for(wrong("x")), "the prompt to override is a str"),
        (lambda: overrides_for(a_prompt(), sections={"notes": wrong(5)}), "an int, not a str"),
        (
            lambda: overrides_for(a_prompt(), parameters={"note": {"text": wrong(5)}}),
            "the override of note.text is an int",
        ),
    ],
)
def test_prompts_sections_and_tools(act: Act, words: str) -> None:
    check(act, PromptError, words)


def test_sections_and_tools_may_come_from_a_generator() -> None:
    section = a_section(tools=(tool for tool in (NOTE,)))
    prompt = Prompt(ns="a", key="b", sections=wrong(each for each in (section,)))
    assert [tool.name for tool in prompt.tools] == ["note"]


def test_a_handler_that_returns_nothing_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def forgetful(params: Params, *, context: ToolContext) -> Wrong:
        return None

    tool = Tool[Params, Note](name="forgetful", description="d", handler=forgetful)
    result = a_prompt(tool).call("forgetful", session=a_session())
    assert not result.success
    assert result.message == (
        "the tool forgetful failed by a fault of its own: it gave no result; its handler returns "
        "None where a ToolResult belongs"
    )


SECTIONS = [
    VfsToolsSection,
    UnsafeLocalSandboxSection,
    OverlaySandboxSection,
    PodmanSandboxSection,
]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_wants_a_session_and_a_config_of_its_own(section: Wrong) -> None:
    for session in (None, "x", Session):
        check(lambda s=session: section(session=s), ConfigError, "the session of a section is")  # type: ignore[misc]  # a lambda with a default
    for config in ("x", VfsToolsConfig, 5):
        check(
            lambda c=config: section(session=a_session(), config=c),  # type: ignore[misc]  # likewise
            ConfigError,
            "the config of a section is",
        )


def test_the_config_of_another_section_is_refused() -> None:
    for section, config in (
        (UnsafeLocalSandboxSection, OverlaySandboxConfig()),
        (OverlaySandboxSection, UnsafeLocalSandboxConfig()),
        (PodmanSandboxSection, UnsafeLocalSandboxConfig()),
    ):
        make: Wrong = section
        with pytest.raises(ConfigError) as raised:
            make(session=a_session(), config=config)
        assert f"is an {type(config).__name__}, not a" in raised.value.message


def mounted(*mounts: object, roots: object = ("/",)) -> Act:
    config = VfsToolsConfig(mounts=wrong(mounts), allowed_host_roots=wrong(roots))
    return lambda: VfsToolsSection(session=a_session(), config=config)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (mounted("/tmp"), "item 0 of mounts is a str, not a HostMount"),
        (mounted(HostMount(wrong(5))), "host_path of a mount is an int"),
        (mounted(HostMount("/etc", max_bytes=wrong("5"))), "max_bytes of the mount /etc is a str"),
        (mounted(HostMount("/etc", mount_path=wrong(5))), "mount_path is an int, not a str"),
        (mounted(HostMount("/etc"), roots=None), "allowed_host_roots must be a list"),
        (mounted(HostMount("/etc"), roots=(5,)), "an allowed host root is an int"),
        (lambda: normalize_host_root(wrong(5)), "an allowed host root is an int"),
        (lambda: normalize_string_path(wrong(5)), "path is an int, not a str"),
    ],
)
def test_mounts_and_paths(act: Act, words: str) -> None:
    check(act, ToolValidationError, words)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"base_environment": ["A=1"]}, "base_environment is a list, not a Mapping"),
        ({"clock": 5}, "the clock of a section is an int"),
        ({"target": 5}, "target of OverlaySandboxConfig must be a list"),
        ({"target": (5,)}, "a target of OverlaySandboxConfig is an int"),
        ({"policy": "none"}, "policy of OverlaySandboxConfig is a str, not a Policy"),
        ({"limits": 5}, "limits of OverlaySandboxConfig is an int, not a Limits"),
    ],
)
def test_settings_of_a_section(config: Wrong, words: str) -> None:
    check(
        lambda: OverlaySandboxSection(session=a_session(), config=OverlaySandboxConfig(**config)),
        ConfigError,
        words,
    )


BACKENDS = ["memory", "local", "overlay", "container"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("opening", [podbot.sandbox.open, podbot.sandbox.open_async])
def test_an_option_that_a_backend_does_not_have_is_named(backend: str, opening: Wrong) -> None:
    with pytest.raises(SandboxError) as raised:
        opening(backend, polcy=None)
    error = raised.value
    assert error.kind is Kind.INVALID
    assert error.message == f"the backend {backend} has no option 'polcy' (did you mean policy?)"
    assert error.remedy is not None
    assert error.remedy.startswith("its options are: ")
    assert {"policy", "limits"} <= set(error.remedy.removeprefix("its options are: ").split(", "))


@pytest.mark.parametrize(
    ("backend", "options", "words"),
    [
        ("overlay", {"foo": 1}, "has no option 'foo'"),
        ("memory", {"target": "."}, "the backend memory has no option 'target'"),
        (
            "local",
            {"policy": "none"},
            "the option policy of the backend local is 'none', not a Pol",
        ),
        ("memory", {"limits": {"memory": 1}}, "not a Limits"),
        ("local", {"target": 5}, "the option target of the backend local is 5"),
        ("local", {"target": ["a", "b"]}, "the option target of the backend local is ['a', 'b']"),
        ("overlay", {"target": 5}, "not the path of a folder"),
        ("overlay", {"target": ["/etc", 5]}, "not the path of a folder"),
        ("overlay", {"layer": "x"}, "the option layer of the backend overlay is 'x', not a Layer"),
        ("memory", {"files": ["a"]}, "not a mapping of paths to text or bytes"),
        ("memory", {"files": {"a": 5}}, "not a mapping of paths to text or bytes"),
    ],
)
def test_options_that_make_no_sense(backend: str, options: Wrong, words: str) -> None:
    with pytest.raises(SandboxError) as raised:
        podbot.sandbox.open(backend, **options)
    assert raised.value.kind is Kind.INVALID
    assert words in raised.value.message
    assert raised.value.remedy


def test_a_fault_of_a_backend_is_not_taken_for_a_wrong_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Plain(Launcher):
        def __init__(self, size: int = 1):
            raise TypeError("a fault of its own")

        def launch(self) -> Launched:
            raise NotImplementedError

    class Open(Plain):
        def __init__(self, **options: object):
            raise TypeError("a fault of its own")

    for factory in (Plain, Open):
        monkeypatch.setattr("podbot.sandbox.backends.find", lambda name, f=factory: f)
        with pytest.raises(TypeError, match="a fault of its own"):
            podbot.sandbox.open("theirs", **({} if factory is Plain else {"any": 1}))
    monkeypatch.setattr("podbot.sandbox.backends.find", lambda name: Plain)
    with pytest.raises(SandboxError, match="has no option 'sizes'"):
        podbot.sandbox.open("theirs", sizes=2)


def test_several_targets_are_still_several(tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as raised:
        podbot.sandbox.open("overlay", target=[tmp_path / "none", tmp_path])
    assert raised.value.kind is Kind.TARGET_MISSING


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"environment": ["A"]}, "Policy.environment must be a mapping"),
        ({"environment": {"A": 1}}, "'A' has a name or a value that is not text"),
        ({"hidden": None}, "Policy.hidden must be a tuple of strings, not None"),
    ],
)
def test_policies(given: Wrong, words: str) -> None:
    check(lambda: Policy(**given), SandboxError, words)


# Words of which there are a few, and paths

NO_CHANGES = ChangeSet("x", (), (), 0, wrong(None))
SUMMARY = Summary(wrong(None), NO_CHANGES, {}, {}, {}, NO_CHANGES)
CONFLICTS = "'stop', 'skip', 'overwrite'"
NEVER_RUN = Entry("20300101-000000-00000000", None, None)


@pytest.mark.parametrize(
    ("act", "words", "known"),
    [
        (
            lambda: apply_changes(NO_CHANGES, on_conflict=wrong("skipp")),
            "on_conflict='skipp' is not known; did you mean 'skip'?",
            CONFLICTS,
        ),
        (
            lambda: undo_changes(NEVER_RUN.id, on_conflict=wrong("SKIP")),
            "on_conflict='SKIP' is not known",
            CONFLICTS,
        ),
        (
            lambda: Review(NEVER_RUN).apply(on_conflict=wrong(None)),
            "on_conflict=None is not known",
            CONFLICTS,
        ),
        (
            lambda: Review(NEVER_RUN).undo(on_conflict=wrong(["skip"])),
            "on_conflict=['skip'] is not known",
            CONFLICTS,
        ),
        (
            lambda: SUMMARY.flags_by_folder(wrong("by itself")),
            "level='by itself' is not known; did you mean 'runs by itself'?",
            "'runs by itself', 'runs when used'",
        ),
        (
            lambda: decide_overlaps(NO_CHANGES, {"/a": [wrong("ours")]}),
            "a choice for /a='ours' is not known",
            "'host', 'run', 'host, then run', 'run, then host', 'base'",
        ),
        (lambda: Policy(network=wrong("none ")), "network='none ' is not known", '"none"'),
        (
            lambda: RunRequest(("true",), network=wrong("hosts")),
            "network='hosts' is not known",
            '"host"',
        ),
        (lambda: Settings(workspace=wrong("coppy")), "workspace='coppy' is not known", '"copy"'),
        (lambda: Settings(seccomp=wrong("none")), "seccomp='none' is not known", '"engine"'),
        (lambda: Settings(runtime=wrong("runk")), "runtime='runk' is not known", '"runc"'),
        (
            lambda: podbot.sandbox.open("container", runtime="runk"),
            "runtime='runk' is not known",
            '"runsc"',
        ),
        (
            lambda: a_prompt().tools_for(wrong("opnai")),
            '"opnai" is not a format for tools',
            "anthropic",
        ),
        (lambda: Recipe(wrong("tol")), "the variant 'tol' of an image is not known", "sandbox"),
        (
            lambda: Profile("mine", seccomp=wrong("podbt")),
            "profile mine: seccomp='podbt' is not known",
            "podbot, nested, default, unconfined",
        ),
        (
            lambda: Profile("mine", selinux=wrong("off")),
            "profile mine: selinux='off' is not known",
            "default, disable",
        ),
    ],
)
def test_a_word_that_is_none_is_refused_with_those_there_are(
    act: Act, words: str, known: str
) -> None:
    with pytest.raises(PodbotError) as raised:
        act()
    if not isinstance(raised.value, PromptError):  # whose errors have no kinds
        assert raised.value.kind is Kind.INVALID
    assert words in raised.value.message
    assert known in (raised.value.remedy or "")


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: apply_changes(NO_CHANGES, only=wrong(None)), "only=None is not a path"),
        (lambda: apply_changes(NO_CHANGES, only=wrong([5])), "only=5 is not a path"),
        (lambda: apply_changes(NO_CHANGES, only=wrong({"a": 1})), "only={'a': 1} is not a path"),
        (lambda: apply_changes(NO_CHANGES, allow_flagged=wrong(1)), "allow_flagged=1 is not a"),
        (lambda: apply_changes(NO_CHANGES, hunks={"a": wrong("0")}), "the hunks of a are '0'"),
        (lambda: apply_changes(NO_CHANGES, hunks={"a": wrong(0)}), "the hunks of a are 0"),
        (lambda: undo_changes(NEVER_RUN.id, only=wrong(b"a")), "only=b'a' is not a path"),
        (lambda: select_changes(NO_CHANGES, wrong(5)), "patterns=5 is not a path"),
        (lambda: Review(NEVER_RUN).undo(wrong(5)), "only=5 is not a path"),
        (lambda: Review(NEVER_RUN, None, wrong(5)), "paths=5 is not a path"),
        (lambda: review.load("x.tar", wrong(5)), "targets=5 is not a path"),
    ],
)
def test_what_is_no_path_is_refused_by_name(act: Act, words: str) -> None:
    with pytest.raises(ChangesError) as raised:
        act()
    assert raised.value.kind is Kind.INVALID
    assert words in raised.value.message
    assert raised.value.remedy


def test_what_was_right_stays_right() -> None:
    session = a_session(tags={}, clock=None)
    session.mutate(Note).register(Note, append)
    assert (
        a_prompt().call("note", session=session, call_id="c", deadline=Deadline.after(60)).success
    )
    assert PodmanSandboxConfig().image
