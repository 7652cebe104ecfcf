"""The tools in an overlay sandbox: `OverlaySandboxSection`. Changes are kept for review.

A folder of the host is the workspace, seen copy-on-write: an agent works on it as it is, and not a
byte of it changes. What was done lies in a layer that `podbot.changes` shows, applies, undoes or
throws away. Commands are closed in by namespaces, seccomp and Landlock, without network.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import cast

from podbot.errors import ConfigError, Kind, LaunchError
from podbot.runtime.given import expect, expect_each
from podbot.runtime.session import Session
from podbot.sandbox import backends
from podbot.sandbox.folders import existing_folder
from podbot.sandbox.layers import Layer, check_title
from podbot.sandbox.limits import Limits
from podbot.sandbox.overlay.launcher import OverlayLauncher
from podbot.sandbox.policy import Policy
from podbot.sandbox.sandbox import Sandbox
from podbot.tools import _hydration, texts
from podbot.tools.evaluation import EvalParams, EvalResult
from podbot.tools.live import Times
from podbot.tools.mounts import HostPath
from podbot.tools.paths import WORKSPACE
from podbot.tools.sandbox import Backing, SandboxSection, Workplace
from podbot.tools.section import Given, SectionKind, WorkspaceConfig, WorkspaceSection
from podbot.tools.shell import ShellParams, ShellResult
from podbot.visible import visible

__all__ = [
    "OverlayEvalParams",
    "OverlayEvalResult",
    "OverlaySandboxConfig",
    "OverlaySandboxSection",
    "OverlayShellParams",
    "OverlayShellResult",
    "OverlayWorkspace",
]

OverlayShellParams = ShellParams
OverlayShellResult = ShellResult
OverlayEvalParams = EvalParams
OverlayEvalResult = EvalResult

_TEXT = texts.joined(
    """\
You have a workspace: the folder `{target}`, in a sandbox. You see it as it is on this machine, and
what you change stays in the sandbox {until}. Commands have {network} and no
privileges. They can read the rest of the machine where it is not hidden, and not change it{but};
`/tmp` and the home directory can be written to, and are thrown away.""",
    texts.FILES,
    texts.commands("Python of any length"),
    texts.RELATIVE,
)


@dataclass(frozen=True, slots=True)
class OverlaySandboxConfig(WorkspaceConfig):
    """Settings of an `OverlaySandboxSection`.

    - ``target``: the folder that is the workspace; default the current one. Further folders are
      seen copy-on-write too, at their own paths, by commands.
    - ``discard``: throw the changes away at the end. Without it they stay for review, unless
      there are none.
    - ``policy``, ``limits``: as for any overlay sandbox; ``base_environment`` is added to the
      policy's.
    - ``title``: what the work is called where its changes are listed.
    """

    target: HostPath | Sequence[HostPath] = "."
    discard: bool = False
    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    title: str | None = None


@dataclass(frozen=True, slots=True)
class OverlayWorkspace:
    """The workspace of an `OverlaySandboxSection`, as its session knows it.

    ``target`` is the folder it is, ``workdir`` what tool arguments call it, ``layer_id`` the name
    of the changes: ``podbot changes show LAYER_ID`` shows them.
    """

    target: str
    workdir: str
    layer_id: str
    env: tuple[tuple[str, str], ...]
    started_at: datetime
    last_used_at: datetime


class OverlaySandboxSection(SandboxSection):
    """All nine tools on a copy-on-write view of a folder; `layer` is where the changes are."""

    config: OverlaySandboxConfig

    def __init__(self, *, session: Session, config: OverlaySandboxConfig | None = None):
        super().__init__(session=session, backend=backends.OVERLAY, config=config)

    clone = WorkspaceSection.clone  # the backend is given already


def _workplace(session: Session, config: OverlaySandboxConfig) -> Workplace:
    expect(config.policy, Policy, "policy of OverlaySandboxConfig", ConfigError)
    expect(config.limits, Limits, "limits of OverlaySandboxConfig", ConfigError)
    check_title(config.title)
    paths = _targets(config)
    if not isinstance(config.target, str | os.PathLike):
        config = replace(config, target=paths)  # an iterator would have nothing for a clone
    # Found now: the current folder may be another one when the sandbox is opened.
    targets = tuple(str(existing_folder(target)) for target in paths)
    until = "and is thrown away with it" if config.discard else "until a person has reviewed it"
    writable = ", ".join(f"`{visible(path)}`" for path in config.policy.writable)
    text = _TEXT.format(
        target=visible(targets[0]),
        network=config.policy.network.described,
        until=until,
        but=f", but for {writable}, which is changed at once" if writable else "",
    )
    kind = SectionKind(
        key="overlay.sandbox",
        title="Sandboxed Workspace",
        text=text,
        component="tools.overlay",
        workspace=OverlayWorkspace,
    )
    return Workplace(config, kind, lambda given: _OverlayHome(given, config, targets))


BACKING = Backing(OverlaySandboxConfig, _workplace)


def _targets(config: OverlaySandboxConfig) -> tuple[HostPath, ...]:
    target = config.target
    if isinstance(target, str | os.PathLike):
        return (target,)
    paths: tuple[object, ...] = ()
    if target is not None:
        paths = expect_each(target, object, "target of OverlaySandboxConfig", ConfigError)
        for path in paths:
            expect(path, (str, os.PathLike), "a target of OverlaySandboxConfig", ConfigError)
    if not paths:
        raise LaunchError(
            "there is no target", kind=Kind.TARGET_REFUSED, remedy="name a folder to work on"
        )
    return cast("tuple[HostPath, ...]", paths)


class _OverlayHome:
    """A layer over the target, made for the first sandbox and gone on in by those after it."""

    stands = True

    def __init__(self, given: Given, config: OverlaySandboxConfig, targets: tuple[str, ...]):
        self._given = given
        self._targets = targets
        self._limits = config.limits
        self._discard = config.discard
        self._title = config.title
        environment = {**config.policy.environment, **given.environment}
        self._policy = replace(config.policy, environment=environment)
        self.workdir: str | None = targets[0]
        self.layer: Layer | None = None

    def open(self) -> Sandbox:
        """A sandbox over the target, or over the layer of the one that was lost."""
        if self.layer is not None and self.layer.path.exists():
            return Sandbox(self._launcher(None, self.layer))
        sandbox = Sandbox(self._launcher(self._targets, None))
        try:
            _hydration.send(self._given.mounts, sandbox)
        except BaseException:
            sandbox.close()
            _throw_away(sandbox.layer)
            raise
        self.layer = sandbox.layer
        return sandbox

    def _launcher(self, targets: tuple[str, ...] | None, layer: Layer | None) -> OverlayLauncher:
        return OverlayLauncher(
            targets,
            policy=self._policy,
            limits=self._limits,
            layer=layer,
            confined=True,
            title=self._title,
        )

    def workspace(self, sandbox: Sandbox, times: Times) -> OverlayWorkspace:
        """What the session is told."""
        environment = tuple(sorted(self._given.environment.items()))
        layer_id = "" if self.layer is None else self.layer.id
        return OverlayWorkspace(
            sandbox.workdir, WORKSPACE, layer_id, environment, times.started_at, times.last_used_at
        )

    def end(self) -> None:
        """Throw the changes away, if that was asked for."""
        if self._discard:
            _throw_away(self.layer)


def _throw_away(layer: Layer | None) -> None:
    if layer is not None and layer.path.exists():  # an empty one went with its sandbox
        layer.discard()
