"""Collections that callers give: any kind is taken and kept, what is none is refused."""

from __future__ import annotations

import os
from collections import UserList, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podbot.errors import ConfigError, Kind, LaunchError, SandboxError
from podbot.frozen import replace
from podbot.prompt import MarkdownSection, Prompt, ScriptedModel
from podbot.prompt.scripted import ScriptedCall
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.sandbox import DEFAULT_HIDDEN, Policy
from podbot.sandbox.options import launcher_of
from podbot.sandbox.overlay.launcher import OverlayLauncher
from podbot.tools import OverlaySandboxConfig, OverlaySandboxSection
from podbot.tools.mounts import normalize_host_roots

# What no type checker would let through is the subject here.
Wrong = Any


def wrong(value: object) -> Wrong:
    return value


def once(*items: object) -> Iterator[Wrong]:
    """Items that can be gone through only once."""
    yield from items


# Iterators, which can be gone through only once


def test_roots_may_come_from_an_iterator(tmp_path: Path) -> None:
    assert normalize_host_roots(wrong(once(tmp_path, "/"))) == (tmp_path.resolve(), Path("/"))


def test_the_steps_of_a_script_may_come_from_an_iterator() -> None:
    call = ScriptedCall("none_such")
    model = ScriptedModel(wrong(once(call, call)))
    assert model.steps == (call, call)
    assert model == ScriptedModel([call, call])

    seen: list[int] = []
    model = ScriptedModel(wrong(once(lambda _: seen.append(1))))
    section = MarkdownSection(key="notes", title="Notes", template="x")
    prompt = Prompt(ns="a", key="b", sections=[section])
    for _ in range(2):
        assert model.run(prompt, Session(bus=InProcessEventBus())).text == "Done."
    assert seen == [1, 1]


def test_the_targets_of_a_section_may_come_from_an_iterator(tmp_path: Path) -> None:
    session = Session(bus=InProcessEventBus())
    config = OverlaySandboxConfig(target=wrong(once(tmp_path, str(tmp_path))))
    section = OverlaySandboxSection(session=session, config=config)
    assert str(tmp_path) in section.template
    other = section.clone(session=Session(bus=InProcessEventBus()), bus=InProcessEventBus())
    assert other.config.target == (tmp_path, str(tmp_path))

    with pytest.raises(LaunchError, match="there is no target"):
        OverlaySandboxSection(session=session, config=OverlaySandboxConfig(target=wrong(once())))
    with pytest.raises(ConfigError, match="is an int"):
        OverlaySandboxSection(
            session=session, config=OverlaySandboxConfig(target=wrong(once(tmp_path, 5)))
        )


# Policies


@pytest.mark.parametrize(
    "given",
    [
        ["/a", "~/b"],
        {"/a", "~/b"},
        {"/a": 1, "~/b": 2}.keys(),
        once("/a", "~/b"),
        (Path("/a"), "~/b"),
    ],
    ids=["list", "set", "keys", "generator", "path"],
)
def test_a_policy_takes_any_collection_and_keeps_it(given: Wrong) -> None:
    policy = Policy(hidden=given)

    assert sorted(policy.hidden) == ["/a", "~/b"] and isinstance(policy.hidden, tuple)
    assert policy.hidden_paths(Path("/h")) == ("/a", "/h/b")
    assert policy.hidden_paths(Path("/second")) == ("/a", "/second/b")
    assert replace(policy, network="host").hidden_paths(Path("/h")) == ("/a", "/h/b")
    hash(policy.hidden)


def test_what_else_a_policy_lists_may_come_from_an_iterator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PODBOT_TEST_WORD", "x")
    policy = Policy(
        readable=wrong(once("~/.aws")),
        writable=wrong(once(Path("/srv"))),
        pass_environment=wrong(once("PODBOT_TEST_WORD")),
    )
    for home in ("/one", "/two"):
        assert f"{home}/.aws" not in policy.hidden_paths(Path(home))
        assert policy.environment_inside(Path(home))["PODBOT_TEST_WORD"] == "x"
    assert policy.writable == ("/srv",)
    assert Policy().hidden == DEFAULT_HIDDEN


@pytest.mark.parametrize("name", ["hidden", "readable", "writable", "pass_environment"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("/a", "a tuple of strings, not one string"),
        (b"/a", "a tuple of strings, not b'/a'"),
        (5, "a tuple of strings, not 5"),
        (Path("/a"), "a tuple of strings, not PosixPath('/a')"),
        ((1,), "holds 1, which is not a string"),
        ((b"/a",), "holds b'/a', which is not a string"),
        (("/a", None), "holds None, which is not a string"),
    ],
)
def test_a_policy_refuses_what_are_no_strings(name: str, given: Wrong, words: str) -> None:
    with pytest.raises(SandboxError) as raised:
        Policy(**{name: given})
    assert f"Policy.{name} " in raised.value.message and words in raised.value.message
    assert raised.value.kind is Kind.INVALID and raised.value.remedy


def test_a_variable_has_no_path_for_a_name() -> None:
    with pytest.raises(SandboxError, match="is not a string"):
        Policy(pass_environment=wrong((Path("HOME"),)))


def test_a_path_of_bytes_is_none(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with os.scandir(os.fsencode(tmp_path)) as entries, pytest.raises(SandboxError):
        Policy(hidden=wrong(tuple(entries)))


# Options


@pytest.mark.parametrize("several", [list, tuple, deque, UserList])
def test_several_targets_may_be_any_sequence(several: Wrong, tmp_path: Path) -> None:
    launcher = launcher_of("overlay", {"target": several([str(tmp_path), tmp_path])})
    assert isinstance(launcher, OverlayLauncher)
    assert launcher.targets == (str(tmp_path), tmp_path)


@pytest.mark.parametrize("given", [b"/etc", b"", deque([5]), range(2), {"/etc"}])
def test_what_is_no_sequence_of_paths_is_no_target(given: Wrong) -> None:
    with pytest.raises(SandboxError, match="not the path of a folder"):
        launcher_of("overlay", {"target": given})
