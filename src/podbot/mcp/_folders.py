"""The tools on a folder of this machine: on the folder itself, or in a container over it.

`podbot.tools` has sections whose workspace is made for them and goes with them. A person who
starts a server has a folder and wants the work to be there afterwards: in `ContainerFolderSection`
as changes to review, as with an overlay; in `LocalFolderSection` at once. **The second isolates
nothing**: it is for machines that are a sandbox themselves, a container or a CI job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from podbot.runtime.session import Session
from podbot.sandbox.folders import existing_folder
from podbot.sandbox.policy import Policy
from podbot.sandbox.sandbox import Sandbox
from podbot.tools import texts
from podbot.tools.live import Times
from podbot.tools.mounts import HostPath
from podbot.tools.paths import WORKSPACE
from podbot.tools.section import SectionKind, WorkspaceConfig, WorkspaceSection
from podbot.visible import visible

if TYPE_CHECKING:
    from podbot.sandbox.container.settings import ContainerOptions
    from podbot.sandbox.layers import Layer

_LOCAL = texts.joined(
    """\
You have a workspace: the folder `{target}` itself. **Nothing isolates it**: what you change is
changed at once, and commands run as the user who runs this program, with that user's files,
processes and network. Keep to the workspace, and change nothing outside of it.""",
    texts.FILES,
    texts.commands("Python of any length"),
    texts.RELATIVE,
)

_CONTAINER = texts.joined(
    """\
You have a workspace: the folder `{target}`, at `/workspace` in a container. You see it as it is,
and what you change stays apart until a person has reviewed it. Commands have {network} and no
privileges. Besides the workspace only `/tmp` can be written to, and it is thrown away.""",
    texts.FILES,
    texts.commands("Python of any length"),
)


@dataclass(frozen=True, slots=True)
class FolderConfig(WorkspaceConfig):
    """The folder, what is seen of the machine, and for a container its image.

    ``title`` is what the work is called where its changes are listed.
    """

    target: HostPath = "."
    policy: Policy = field(default_factory=Policy)
    image: str | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class FolderWorkspace:
    """The folder, as the session knows it; ``workdir`` is what tool arguments call it."""

    target: str
    workdir: str
    started_at: datetime
    last_used_at: datetime


class LocalFolderSection(WorkspaceSection):
    """All nine tools on a folder as it is. **It isolates nothing**: see the module."""

    config: FolderConfig

    def __init__(self, *, session: Session, config: FolderConfig):
        target = str(existing_folder(config.target))

        def opened(layer: Layer | None) -> Sandbox:
            from podbot.sandbox.local import LocalSandbox

            return LocalSandbox(target, policy=config.policy)

        super().__init__(
            session=session,
            config=config,
            kind=_kind("local", "Local Folder", _LOCAL.format(target=visible(target))),
            home=lambda given: _FolderHome(target, target, opened),
        )


class ContainerFolderSection(WorkspaceSection):
    """All nine tools on a folder in a container. What they change is kept for review."""

    config: FolderConfig

    def __init__(self, *, session: Session, config: FolderConfig):
        target = str(existing_folder(config.target))

        def opened(layer: Layer | None) -> Sandbox:
            from podbot.sandbox.container.sandbox import ContainerSandbox

            options: ContainerOptions = {
                "policy": config.policy, "layer": layer, "title": config.title,
            }  # fmt: skip
            if config.image is not None:
                options["image"] = config.image
            return ContainerSandbox(target if layer is None else None, **options)

        text = _CONTAINER.format(target=visible(target), network=config.policy.network.described)
        super().__init__(
            session=session,
            config=config,
            kind=_kind("container", "Workspace in a Container", text),
            home=lambda given: _FolderHome(target, WORKSPACE, opened),
        )


def _kind(name: str, title: str, text: str) -> SectionKind:
    return SectionKind(f"{name}.folder", title, text, f"mcp.{name}", FolderWorkspace)


class _FolderHome:
    """The folder. Should its sandbox be lost, the next one goes on with the same changes."""

    stands = True

    def __init__(self, target: str, workdir: str, opened: Callable[[Layer | None], Sandbox]):
        self.workdir: str | None = workdir
        self._target = target
        self._opened = opened
        self._layer: Layer | None = None

    def open(self) -> Sandbox:
        kept = self._layer is not None and self._layer.path.exists()
        sandbox = self._opened(self._layer if kept else None)
        self._layer = sandbox.layer
        return sandbox

    def workspace(self, sandbox: Sandbox, times: Times) -> FolderWorkspace:
        return FolderWorkspace(self._target, WORKSPACE, times.started_at, times.last_used_at)

    def end(self) -> None:
        """Nothing was made but the changes, which stay."""
