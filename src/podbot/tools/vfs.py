"""The file tools on memory: `VfsToolsSection`, and the names of the virtual file system.

For agents that only read and write. Nothing can be run, and no path leads to the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from podbot.runtime.session import Session
from podbot.sandbox import backends
from podbot.sandbox.memory import MemorySandbox
from podbot.sandbox.sandbox import Sandbox
from podbot.tools import _hydration, texts
from podbot.tools.filesystem import (
    DeleteEntry,
    FileInfo,
    VfsFile,
    VirtualFileSystem,
    WriteFile,
    WriteMode,
)
from podbot.tools.live import Times
from podbot.tools.mounts import HostMount, normalize_host_root
from podbot.tools.paths import WORKSPACE, VfsPath, normalize_string_path
from podbot.tools.reducers import make_delete_reducer, make_write_reducer
from podbot.tools.sandbox import Backing, SandboxSection, Workplace
from podbot.tools.section import Given, SectionKind, WorkspaceConfig, WorkspaceSection

__all__ = [
    "DeleteEntry",
    "FileInfo",
    "HostMount",
    "VfsFile",
    "VfsPath",
    "VfsToolsConfig",
    "VfsToolsSection",
    "VfsWorkspace",
    "VirtualFileSystem",
    "WriteFile",
    "WriteMode",
    "make_delete_reducer",
    "make_write_reducer",
    "normalize_host_root",
    "normalize_string_path",
]

_TEXT = texts.joined(
    """\
You have a workspace of files that live in memory. Nothing can be run there, and no file of the
machine can be reached.""",
    texts.FILES,
)

VfsToolsConfig = WorkspaceConfig
"""A `VfsToolsSection` needs no settings of its own; ``base_environment`` has no meaning there."""


@dataclass(frozen=True, slots=True)
class VfsWorkspace:
    """The workspace of a `VfsToolsSection`, as its session knows it."""

    workdir: str
    started_at: datetime
    last_used_at: datetime


_KIND = SectionKind(
    key="vfs.tools",
    title="Virtual Filesystem",
    text=_TEXT,
    component="tools.vfs",
    workspace=VfsWorkspace,
    commands=False,
)


class VfsToolsSection(SandboxSection):
    """The seven file tools on files in memory. Mounts are copied in; nothing is written back."""

    def __init__(self, *, session: Session, config: VfsToolsConfig | None = None):
        super().__init__(session=session, backend=backends.MEMORY, config=config)

    clone = WorkspaceSection.clone  # the backend is given already


class _MemoryHome:
    """A memory sandbox: it cannot be lost, so it is opened once."""

    workdir: str | None = WORKSPACE
    stands = True

    def __init__(self, given: Given):
        self._mounts = given.mounts

    def open(self) -> Sandbox:
        """A sandbox that holds the mounts."""
        sandbox = MemorySandbox()
        try:
            _hydration.send(self._mounts, sandbox)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def workspace(self, sandbox: Sandbox, times: Times) -> VfsWorkspace:
        """What the session is told."""
        return VfsWorkspace(sandbox.workdir, times.started_at, times.last_used_at)

    def end(self) -> None:
        """Closing the sandbox dropped all there was."""


BACKING = Backing(VfsToolsConfig, lambda session, config: Workplace(config, _KIND, _MemoryHome))
