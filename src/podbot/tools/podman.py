"""The tools in a container of Podman or Docker: `PodmanSandboxSection`.

The workspace is a folder of the session's own, kept in the user's cache and bound to ``/workspace``
of a hardened container without network. The container comes with the first call and goes with the
section; the folder stays, so that a session that is taken up again finds its files.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from podbot.config import variables
from podbot.errors import ConfigError, Kind, SandboxError, ToolValidationError
from podbot.prompt.section import CONTAINER_SHELL
from podbot.runtime.session import Session
from podbot.sandbox import backends
from podbot.sandbox.policy import Policy
from podbot.sandbox.sandbox import Sandbox
from podbot.tools import _hydration, cached, texts
from podbot.tools.evaluation import EvalParams, EvalResult
from podbot.tools.live import Times
from podbot.tools.paths import WORKSPACE
from podbot.tools.sandbox import Backing, SandboxSection, Workplace
from podbot.tools.section import Given, SectionKind, WorkspaceConfig, WorkspaceSection
from podbot.tools.shell import ShellParams, ShellResult

if TYPE_CHECKING:
    from podbot.engine import Engine
    from podbot.sandbox.container.settings import Runtime

__all__ = [
    "DEFAULT_IMAGE",
    "PodmanEvalParams",
    "PodmanEvalResult",
    "PodmanSandboxConfig",
    "PodmanSandboxSection",
    "PodmanShellParams",
    "PodmanShellResult",
    "PodmanWorkspace",
]

DEFAULT_IMAGE = "python:3.12-bookworm"

PodmanShellParams = ShellParams
PodmanShellResult = ShellResult
PodmanEvalParams = EvalParams
PodmanEvalResult = EvalResult

_TEXT = texts.joined(
    """\
You have a workspace in a Linux container of your own, at `/workspace`. It has no network and no
privileges; everything but `/workspace` and `/tmp` is read-only. Do not assume that files of the
machine around it are there. One processor and 1 GiB of memory are meant for it; where the machine
can hold it to that, a command that wants more is slowed down or killed.""",
    texts.FILES,
    texts.commands("Python of any length"),
)


@dataclass(frozen=True, slots=True)
class PodmanSandboxConfig(WorkspaceConfig):
    """Settings of a `PodmanSandboxSection`.

    - ``image``: with a Python of 3.8 or newer; pulled if it is not there.
    - ``engine``: an engine or its address; default what `podbot.engine.connect` finds.
    - ``runtime``: ``runc``, ``crun``, ``runsc`` or ``kata``; default the engine's.
    - ``idle_seconds``: stop the container when it was not used for so long; the next call starts
      another over the same files. Default never.
    - ``keep_workspace``: keep the folder of files when the section ends, if it holds any. That of a
      session with a parent, such as a subagent's own, is never kept.
    """

    image: str = DEFAULT_IMAGE
    engine: Engine | str | None = None
    runtime: Runtime | None = None
    idle_seconds: float | None = None
    keep_workspace: bool = True


@dataclass(frozen=True, slots=True)
class PodmanWorkspace:
    """The workspace of a `PodmanSandboxSection`, as its session knows it.

    ``workdir`` is the workspace inside the container, ``overlay_path`` the host folder it is.
    """

    container_id: str
    container_name: str
    image: str
    workdir: str
    overlay_path: str
    env: tuple[tuple[str, str], ...]
    started_at: datetime
    last_used_at: datetime


_KIND = SectionKind(
    key="podman.sandbox",
    title="Container Workspace",
    text=_TEXT,
    component="tools.podman",
    workspace=PodmanWorkspace,
)


class PodmanSandboxSection(SandboxSection):
    """All nine tools in a container. A prompt has one section at most that brings a container."""

    exclusive = CONTAINER_SHELL
    config: PodmanSandboxConfig

    def __init__(self, *, session: Session, config: PodmanSandboxConfig | None = None):
        super().__init__(session=session, backend=backends.CONTAINER, config=config)

    clone = WorkspaceSection.clone  # the backend is given already


def _workplace(session: Session, config: PodmanSandboxConfig) -> Workplace:
    image: object = config.image  # callers need not be typed
    if not isinstance(image, str) or not image.strip():
        raise ConfigError(
            "no image is set",
            kind=Kind.MISSING_REQUIRED,
            remedy="name an image, or leave it out for the usual one",
            field="image",
        )
    root = overlay_root(session.session_id)
    kept = _hydration.kept_in(root)
    return Workplace(config, _KIND, lambda given: _ContainerHome(given, config, root), kept)


BACKING = Backing(PodmanSandboxConfig, _workplace, exclusive=CONTAINER_SHELL)


def overlay_root(session_id: str) -> Path:
    """Where the files of a session's container lie.

    ``$PODBOT_CACHE``, else ``~/.cache/podbot/podman``, and the session's id below it.
    """
    return cached.root() / session_id


class _ContainerHome:
    """A folder in the cache, and one container after the other over it."""

    workdir: str | None = WORKSPACE
    stands = True

    def __init__(self, given: Given, config: PodmanSandboxConfig, root: Path):
        self._given = given
        self._config = config
        self._root = root
        self._name = f"wink-{given.session.session_id}"
        # Nobody comes back to the session of a subagent: only its answer is wanted.
        self._keep = config.keep_workspace and given.session.parent is None
        self._mark: Path | None = None

    def open(self) -> Sandbox:
        """A container over the folder, which is made and filled the first time."""
        from podbot.sandbox.container.sandbox import ContainerSandbox

        config = self._config
        sandbox = ContainerSandbox(
            self._filled(),
            workspace="bind",
            hand_over=True,
            image=config.image,
            engine=config.engine,
            runtime=config.runtime,
            policy=Policy(environment=self._given.environment),
            name=self._name,
            idle=config.idle_seconds,
            confined=True,
            session=self._given.session.session_id,
        )
        try:
            _check_ready(sandbox)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def _filled(self) -> Path:
        if self._mark is None or not self._mark.exists():
            try:
                if self._mark is None:
                    cached.sweep()  # what sections that crashed have left
                self._mark = cached.claim(self._root, keep=self._keep)
            except OSError as error:
                raise _unusable(self._root, error.strerror or str(error)) from error
        return _hydration.hydrated(self._root, self._given.mounts)

    def workspace(self, sandbox: Sandbox, times: Times) -> PodmanWorkspace:
        """What the session is told."""
        container = getattr(sandbox, "container", None)  # none while it is stopped
        return PodmanWorkspace(
            container_id="" if container is None else container.id,
            container_name=self._name,
            image=self._config.image,
            workdir=WORKSPACE,
            overlay_path=str(self._root / _hydration.WORKSPACE_NAME),
            env=tuple(sorted(self._given.environment.items())),
            started_at=times.started_at,
            last_used_at=times.last_used_at,
        )

    def end(self) -> None:
        """Remove the folder if nobody wants it, or if it is empty."""
        mark, self._mark = self._mark, None
        if mark is not None:
            cached.finish(mark, keep=self._keep)


def _unusable(root: Path, reason: str) -> ToolValidationError:
    return ToolValidationError(
        f"the folder {root} cannot hold the workspace: {reason}",
        kind=Kind.IO,
        remedy=f"set {variables.CACHE.name} to a folder that can be written to",
    )


def _check_ready(sandbox: Sandbox) -> None:
    """See that the workspace is there, inside."""
    try:
        if sandbox.stat(".").is_dir:
            return
        reason = "it is no folder"
    except SandboxError as error:
        reason = error.message
    raise ToolValidationError(
        f"{WORKSPACE} is not there in the container: {reason}",
        kind=Kind.LAUNCH_FAILED,
        remedy="look at the image and at what the engine mounted (podman inspect)",
    )
