"""The tools in a sandbox of any backend, by its name: `SandboxSection`.

    SandboxSection(session=session, backend="overlay", config=OverlaySandboxConfig(target="src"))
    SandboxSection(session=session, backend="theirs", config=SandboxConfig(options={"size": 2}))

What podbot's own backends bring is in their modules, as a `Backing` each, and their named sections
are this one with the backend filled in. A backend of another package, found by its entry point,
needs nothing but its launcher: the sandbox is its workspace, filled with the mounts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from podbot.errors import ConfigError
from podbot.runtime.given import expect
from podbot.runtime.session import Session
from podbot.sandbox import backends
from podbot.sandbox.options import launcher_of
from podbot.sandbox.policy import Policy
from podbot.sandbox.sandbox import Sandbox
from podbot.tools import _hydration, texts
from podbot.tools.live import Home, Times
from podbot.tools.paths import WORKSPACE
from podbot.tools.section import Given, SectionKind, WorkspaceConfig, WorkspaceSection, settings_for
from podbot.visible import visible

if TYPE_CHECKING:
    from podbot.runtime.events import EventBus
    from podbot.sandbox.layers import Layer

_TEXT = """\
You have a workspace in a sandbox of the kind `{backend}`, which decides what can be read, changed
and reached from inside. Do not assume that files of the machine around it are there."""


@dataclass(frozen=True, slots=True)
class SandboxConfig(WorkspaceConfig):
    """Settings of a `SandboxSection` on a backend that has no settings of its own here.

    - ``options``: those of the backend, as `podbot.sandbox.open` takes them; ``base_environment``
      is added to the variables of its ``policy``.
    - ``commands``: whether the backend runs commands. Without them there are the seven file tools.
    - ``text``: what a model is told of the workspace, in place of the usual sentences.
    """

    options: Mapping[str, object] = field(default_factory=dict)
    commands: bool = True
    text: str | None = None


@dataclass(frozen=True, slots=True)
class SandboxWorkspace:
    """The workspace of such a section, as its session knows it.

    ``path`` is the folder inside the sandbox, ``workdir`` what tool arguments call it.
    """

    backend: str
    path: str
    workdir: str
    env: tuple[tuple[str, str], ...]
    started_at: datetime
    last_used_at: datetime


@dataclass(frozen=True, slots=True)
class Workplace:
    """What a section is made of: its settings, what it says of itself, where its sandbox lives.

    ``kept`` is the folder with the files of an earlier section, if they are still there.
    """

    config: WorkspaceConfig
    kind: SectionKind
    home: Callable[[Given], Home]
    kept: Path | None = None


@dataclass(frozen=True, slots=True)
class Backing:
    """What a backend brings to a `SandboxSection`.

    ``config`` is the class of its settings, which ``workplace`` is given with the session. Sections
    that bring the same ``exclusive`` thing do not share a prompt.
    """

    config: type[WorkspaceConfig]
    workplace: Callable[[Session, Any], Workplace]  # Any: its own config class
    exclusive: str | None = None


_BACKINGS: Mapping[str, str] = {
    backends.OVERLAY: "podbot.tools.overlay",
    backends.CONTAINER: "podbot.tools.podman",
    backends.MEMORY: "podbot.tools.vfs",
    backends.LOCAL: "podbot.tools.unsafe_local",
}


class SandboxSection(WorkspaceSection):
    """All nine tools in a sandbox of any backend.

    ``config`` is of the backend's own class (`OverlaySandboxConfig` for ``overlay``, and so on);
    for a backend of another package it is a `SandboxConfig`. How far its file tools can be led by
    links inside of the sandbox is then that backend's business.
    """

    def __init__(
        self,
        *,
        session: Session,
        backend: str = backends.OVERLAY,
        config: WorkspaceConfig | None = None,
    ):
        expect(backend, str, "the backend of a section", ConfigError)
        expect(session, Session, "the session of a section", ConfigError)
        self.backend = backends.real_name(backend)
        backing = _backing(self.backend)
        workplace = backing.workplace(session, settings_for(config, backing.config))
        if backing.exclusive is not None:
            self.exclusive = backing.exclusive
        super().__init__(
            session=session, config=workplace.config, kind=workplace.kind, home=workplace.home,
            kept=workplace.kept,
        )  # fmt: skip

    @property
    def layer(self) -> Layer | None:
        """Where the changes are, once a call has opened the sandbox; stays after `close`.

        None too for a backend that does not keep them apart.
        """
        return self._live.layer

    def clone(self, *, session: Session, bus: EventBus) -> Self:
        """The same section for another session: its own sandbox, mounts copied anew."""
        made = type(self)(session=session, backend=self.backend, config=self.config)
        made.bus = bus
        return made


def _backing(backend: str) -> Backing:
    module = _BACKINGS.get(backend)
    if module is not None:
        backing: Backing = import_module(module).BACKING
        return backing
    backends.find(backend)  # unknown ones are told of now, not at the first call
    return Backing(SandboxConfig, lambda _, config: _of_another_package(backend, config))


def _of_another_package(backend: str, config: SandboxConfig) -> Workplace:
    expect(config.options, Mapping, "options of SandboxConfig", ConfigError)
    policy = config.options.get("policy")
    expect(Policy() if policy is None else policy, Policy, "policy of SandboxConfig", ConfigError)
    text = _TEXT.format(backend=visible(backend)) if config.text is None else config.text
    tools = [texts.commands("Python of any length"), texts.RELATIVE] if config.commands else []
    kind = SectionKind(
        key="sandbox.workspace",
        title="Workspace in a Sandbox",
        text=texts.joined(text, texts.FILES, *tools),
        component="tools.sandbox",
        workspace=SandboxWorkspace,
        commands=config.commands,
    )
    return Workplace(config, kind, lambda given: _SandboxHome(given, backend, config))


class _SandboxHome:
    """A sandbox of its own, and should it be lost another one, filled anew."""

    stands = True

    def __init__(self, given: Given, backend: str, config: SandboxConfig):
        policy = config.options.get("policy") or Policy()
        assert isinstance(policy, Policy)  # noqa: S101 - it was checked when the section was made
        environment = {**policy.environment, **given.environment}
        self._given = given
        self._backend = backend
        self._options = {**config.options, "policy": replace(policy, environment=environment)}
        self.workdir: str | None = None

    def open(self) -> Sandbox:
        """A sandbox that holds the mounts."""
        sandbox = launcher_of(self._backend, self._options).sandbox()
        try:
            _hydration.send(self._given.mounts, sandbox)
        except BaseException:
            sandbox.close()
            raise
        self.workdir = sandbox.workdir
        return sandbox

    def workspace(self, sandbox: Sandbox, times: Times) -> SandboxWorkspace:
        """What the session is told."""
        return SandboxWorkspace(
            backend=self._backend,
            path=sandbox.workdir,
            workdir=WORKSPACE,
            env=tuple(sorted(self._given.environment.items())),
            started_at=times.started_at,
            last_used_at=times.last_used_at,
        )

    def end(self) -> None:
        """Closing the sandbox ended all there was."""
