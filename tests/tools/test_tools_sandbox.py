"""One section for every backend, by its name: podbot's own, and one of another package."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
from section_behaviour import CommandToolBehaviour, FileToolBehaviour
from stand_in import PlainContainer

from podbot.errors import ConfigError, Kind, PromptError, SandboxError
from podbot.prompt import Prompt
from podbot.prompt._dispatch import Call, dispatch
from podbot.prompt.builtins.podman import PodmanShellSection
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.sandbox import Guarantee, Launched, Launcher, Limits, Policy
from podbot.sandbox.backends import ENTRY_POINTS, NAMES
from podbot.sandbox.local import LocalLauncher
from podbot.sandbox.memory import MemoryChannel
from podbot.tools import (
    OverlaySandboxConfig,
    OverlaySandboxSection,
    PodmanSandboxConfig,
    PodmanSandboxSection,
    SandboxConfig,
    SandboxSection,
    SandboxWorkspace,
    UnsafeLocalSandboxConfig,
    UnsafeLocalSandboxSection,
    VfsToolsConfig,
    VfsToolsSection,
)
from podbot.tools.section import WorkspaceConfig, WorkspaceSection

FACES: dict[str, tuple[type[Any], type[WorkspaceConfig]]] = {
    "overlay": (OverlaySandboxSection, OverlaySandboxConfig),
    "container": (PodmanSandboxSection, PodmanSandboxConfig),
    "memory": (VfsToolsSection, VfsToolsConfig),
    "local": (UnsafeLocalSandboxSection, UnsafeLocalSandboxConfig),
}


class ToyLauncher(Launcher):
    """What another package would write: files only."""

    name = "toy"

    def __init__(self, policy: Policy | None = None, limits: Limits | None = None):
        self.policy = policy or Policy()
        self.limits = limits or Limits()

    def launch(self) -> Launched:
        channel = MemoryChannel(self.limits, {})
        return Launched("/workspace", (Guarantee("files", True, "a toy"),), channel.close, channel)


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if packages with these two backends were installed."""
    given = {"toy": ToyLauncher, "plain": LocalLauncher}
    entries = [
        importlib.metadata.EntryPoint(name, f"toys:{thing.__name__}", ENTRY_POINTS)
        for name, thing in given.items()
    ]
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: given[self.name])
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda **wanted: importlib.metadata.EntryPoints(entries).select(**wanted),
    )


def new_session() -> Session:
    return Session(bus=InProcessEventBus())


class TestFilesOfAnotherPackage(FileToolBehaviour):
    def make_section(self, session: Session, **config: Any) -> WorkspaceSection:
        chosen = SandboxConfig(commands=False, **config)
        return SandboxSection(session=session, backend="toy", config=chosen)


class TestCommandsOfAnotherPackage(CommandToolBehaviour):
    def make_section(self, session: Session, **config: Any) -> WorkspaceSection:
        return SandboxSection(session=session, backend="plain", config=SandboxConfig(**config))


def test_every_backend_of_ours_has_a_face() -> None:
    assert set(FACES) == set(NAMES)


@pytest.mark.parametrize("backend", NAMES)
def test_a_named_section_is_the_same_one_with_the_backend_filled_in(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    face, config = FACES[backend]
    session = new_session()
    named, generic = face(session=session), SandboxSection(session=session, backend=backend)
    try:
        assert isinstance(named, SandboxSection) and named.backend == generic.backend == backend
        assert type(named.config) is type(generic.config) is config
        assert (named.key, named.title, named.exclusive) == (
            generic.key,
            generic.title,
            generic.exclusive,
        )
        assert [tool.name for tool in named.tools] == [tool.name for tool in generic.tools]
        with Prompt(ns="a", key="b", sections=[named]) as one:
            said = one.render().text
        with Prompt(ns="a", key="b", sections=[generic]) as other:
            assert other.render().text == said
    finally:
        named.close()
        generic.close()


@pytest.mark.parametrize("backend", ["toy", "memory", "overlay", "podman"])
def test_a_clone_is_on_the_same_backend(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session = new_session()
    section = SandboxSection(session=session, backend=backend)
    child = session.clone(bus=InProcessEventBus())
    clone = section.clone(session=child, bus=child.bus)
    assert type(clone) is SandboxSection
    assert clone.backend == section.backend and clone.config == section.config
    section.close()
    clone.close()


def test_podman_is_the_container_backend(containers: list[PlainContainer], cache: Path) -> None:
    section = SandboxSection(session=new_session(), backend="podman")
    try:
        section.open()
        assert section.backend == "container" and len(containers) == 1
    finally:
        section.close()


def test_the_changes_of_a_backend_that_keeps_them_apart_are_known(tmp_path: Path) -> None:
    config = OverlaySandboxConfig(target=tmp_path)
    section = SandboxSection(session=new_session(), backend="overlay", config=config)
    assert section.layer is None
    section.open().write("made", "here")
    layer = section.layer
    section.close()
    assert layer is not None and layer is section.layer and layer.path.exists()
    layer.discard()

    other = SandboxSection(session=new_session(), backend="toy")
    other.open()
    assert other.layer is None
    other.close()


def test_two_containers_in_one_prompt_are_refused_by_whichever_name() -> None:
    session = new_session()
    sections = [
        SandboxSection(session=session, backend="container"),
        PodmanShellSection(session=session),
    ]
    with pytest.raises(PromptError, match="container"):
        Prompt(ns="a", key="b", sections=sections)


def test_what_another_package_is_given() -> None:
    session = new_session()
    section = SandboxSection(
        session=session,
        backend="toy",
        config=SandboxConfig(
            options={"policy": Policy(environment={"A": "1"})},
            base_environment={"B": "2"},
            text="It is a toy.",
        ),
    )
    with Prompt(ns="a", key="b", sections=[section]) as prompt:
        assert "It is a toy." in prompt.render().text
        sandbox = section.open()
        assert dict(sandbox.policy.environment) == {"A": "1", "B": "2"}


def test_the_session_knows_the_workspace_of_another_package() -> None:
    session = new_session()
    section = SandboxSection(session=session, backend="toy")
    with Prompt(ns="a", key="b", sections=[section]) as prompt:
        assert dispatch(prompt, session, Call("ls", {})).success
    workspace = session.query(SandboxWorkspace).latest()
    assert workspace is not None
    assert (workspace.backend, workspace.path, workspace.workdir) == (
        "toy",
        "/workspace",
        "/workspace",
    )


def test_what_does_not_fit_is_refused_when_the_section_is_made() -> None:
    session = new_session()
    with pytest.raises(SandboxError) as unknown:
        SandboxSection(session=session, backend="moon")
    assert unknown.value.kind is Kind.UNKNOWN_BACKEND and "toy" in unknown.value.remedy
    for backend, config in (
        ("toy", OverlaySandboxConfig()),
        ("overlay", SandboxConfig()),
        ("toy", SandboxConfig(options={"policy": "none"})),
        ("toy", SandboxConfig(options="policy")),  # type: ignore[arg-type]  # that is the point
    ):
        with pytest.raises(ConfigError):
            SandboxSection(session=session, backend=backend, config=config)
    with pytest.raises(ConfigError):
        SandboxSection(session=session, backend=None)  # type: ignore[arg-type]  # likewise
