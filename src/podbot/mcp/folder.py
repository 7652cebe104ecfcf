"""The tools on a folder of this machine, without a sandbox: what ``--backend local --target`` is.

**It isolates nothing, and what the tools do is done.** Where `UnsafeLocalSandboxSection` makes a
temporary workspace that goes with it, this one works on a folder that is there and stays. For
machines that are a sandbox themselves: a container, a CI job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from podbot.runtime.session import Session
from podbot.sandbox.channel import visible
from podbot.sandbox.folders import existing_folder
from podbot.sandbox.local import LocalSandbox
from podbot.sandbox.policy import Policy
from podbot.sandbox.sandbox import Sandbox
from podbot.tools import texts
from podbot.tools.mounts import HostPath
from podbot.tools.paths import WORKSPACE
from podbot.tools.section import Given, Kindred, WorkspaceConfig, WorkspaceSection

_TEXT = texts.joined(
    """\
You have a workspace: the folder `{target}` itself. **Nothing isolates it**: what you change is
changed at once, and commands run as the user who runs this program, with that user's files,
processes and network. Keep to the workspace, and change nothing outside of it.""",
    texts.FILES,
    texts.commands("Python of any length"),
    texts.RELATIVE,
)


@dataclass(frozen=True, slots=True)
class FolderConfig(WorkspaceConfig):
    """Settings of a `FolderSection`: the folder, and which environment commands see."""

    target: HostPath = "."
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True, slots=True)
class FolderWorkspace:
    """The folder, as the session knows it."""

    target: str
    workdir: str
    started_at: datetime
    last_used_at: datetime


class FolderSection(WorkspaceSection):
    """All nine tools on a folder as it is. **It isolates nothing**: see the module."""

    config: FolderConfig

    def __init__(self, *, session: Session, config: FolderConfig | None = None):
        chosen = config or FolderConfig()
        target = existing_folder(chosen.target)
        kind = Kindred(
            key="local.folder",
            title="Local Folder",
            text=_TEXT.format(target=visible(str(target))),
            component="mcp.folder",
            workspace=FolderWorkspace,
        )
        super().__init__(
            session=session,
            config=chosen,
            kind=kind,
            home=lambda given: _FolderHome(given, target, chosen.policy),
        )


class _FolderHome:
    """The folder: it was there before, and stays."""

    def __init__(self, given: Given, target: Path, policy: Policy):
        self._target = target
        self._policy = policy
        self.workdir: str | None = str(target)

    def open(self) -> Sandbox:
        return LocalSandbox(self._target, policy=self._policy)

    def workspace(self, sandbox: Sandbox, now: datetime) -> FolderWorkspace:
        return FolderWorkspace(sandbox.workdir, WORKSPACE, now, now)

    def end(self) -> None:
        """Nothing was made, so there is nothing to remove."""
