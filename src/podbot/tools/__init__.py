"""Tools for agents: one suite of nine, on any sandbox.

    from podbot.tools import OverlaySandboxConfig, OverlaySandboxSection

    section = OverlaySandboxSection(session=session, config=OverlaySandboxConfig(target="project"))

Names here are the public API; `podbot.tools.vfs`, `unsafe_local`, `overlay` and `podman` have
those of one section each, other modules below are not public.
"""

from __future__ import annotations

from podbot.on_use import on_use

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.tools.evaluation import EvalParams, EvalResult
    from podbot.tools.files import (
        EditFileParams,
        GlobParams,
        GlobResult,
        GrepMatch,
        GrepParams,
        GrepResult,
        Listing,
        ListParams,
        ReadFileParams,
        ReadFileResult,
        RemoveParams,
        WriteFileParams,
    )
    from podbot.tools.filesystem import (
        DeleteEntry,
        FileInfo,
        VfsFile,
        VirtualFileSystem,
        WriteFile,
    )
    from podbot.tools.mounts import HostMount, normalize_host_root
    from podbot.tools.overlay import (
        OverlaySandboxConfig,
        OverlaySandboxSection,
        OverlayWorkspace,
    )
    from podbot.tools.paths import VfsPath, normalize_string_path
    from podbot.tools.podman import (
        PodmanSandboxConfig,
        PodmanSandboxSection,
        PodmanShellParams,
        PodmanShellResult,
        PodmanWorkspace,
    )
    from podbot.tools.reducers import make_delete_reducer, make_write_reducer
    from podbot.tools.sandbox import SandboxConfig, SandboxSection, SandboxWorkspace
    from podbot.tools.section import WorkspaceConfig, WorkspaceSection
    from podbot.tools.shell import ShellParams, ShellResult
    from podbot.tools.snapshot_types import SNAPSHOT_TYPES
    from podbot.tools.unsafe_local import (
        LocalEvalParams,
        LocalShellParams,
        LocalShellResult,
        UnsafeLocalSandboxConfig,
        UnsafeLocalSandboxSection,
        UnsafeLocalWorkspace,
    )
    from podbot.tools.vfs import VfsToolsConfig, VfsToolsSection, VfsWorkspace

# Found when first used: whoever needs one part does not pay for the others.
_HOMES = {
    "podbot.tools.evaluation": "EvalParams EvalResult",
    "podbot.tools.files": (
        "EditFileParams GlobParams GlobResult GrepMatch GrepParams GrepResult Listing ListParams "
        "ReadFileParams ReadFileResult RemoveParams WriteFileParams"
    ),
    "podbot.tools.filesystem": "DeleteEntry FileInfo VfsFile VirtualFileSystem WriteFile",
    "podbot.tools.mounts": "HostMount normalize_host_root",
    "podbot.tools.overlay": "OverlaySandboxConfig OverlaySandboxSection OverlayWorkspace",
    "podbot.tools.paths": "VfsPath normalize_string_path",
    "podbot.tools.podman": (
        "PodmanSandboxConfig PodmanSandboxSection PodmanShellParams PodmanShellResult "
        "PodmanWorkspace"
    ),
    "podbot.tools.reducers": "make_delete_reducer make_write_reducer",
    "podbot.tools.sandbox": "SandboxConfig SandboxSection SandboxWorkspace",
    "podbot.tools.section": "WorkspaceConfig WorkspaceSection",
    "podbot.tools.shell": "ShellParams ShellResult",
    "podbot.tools.snapshot_types": "SNAPSHOT_TYPES",
    "podbot.tools.unsafe_local": (
        "LocalEvalParams LocalShellParams LocalShellResult UnsafeLocalSandboxConfig "
        "UnsafeLocalSandboxSection UnsafeLocalWorkspace"
    ),
    "podbot.tools.vfs": "VfsToolsConfig VfsToolsSection VfsWorkspace",
}

__all__ = [
    "SNAPSHOT_TYPES",
    "DeleteEntry",
    "EditFileParams",
    "EvalParams",
    "EvalResult",
    "FileInfo",
    "GlobParams",
    "GlobResult",
    "GrepMatch",
    "GrepParams",
    "GrepResult",
    "HostMount",
    "ListParams",
    "Listing",
    "LocalEvalParams",
    "LocalShellParams",
    "LocalShellResult",
    "OverlaySandboxConfig",
    "OverlaySandboxSection",
    "OverlayWorkspace",
    "PodmanSandboxConfig",
    "PodmanSandboxSection",
    "PodmanShellParams",
    "PodmanShellResult",
    "PodmanWorkspace",
    "ReadFileParams",
    "ReadFileResult",
    "RemoveParams",
    "SandboxConfig",
    "SandboxSection",
    "SandboxWorkspace",
    "ShellParams",
    "ShellResult",
    "UnsafeLocalSandboxConfig",
    "UnsafeLocalSandboxSection",
    "UnsafeLocalWorkspace",
    "VfsFile",
    "VfsPath",
    "VfsToolsConfig",
    "VfsToolsSection",
    "VfsWorkspace",
    "VirtualFileSystem",
    "WorkspaceConfig",
    "WorkspaceSection",
    "WriteFile",
    "WriteFileParams",
    "make_delete_reducer",
    "make_write_reducer",
    "normalize_host_root",
    "normalize_string_path",
]

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:
    __getattr__ = on_use(globals(), _HOMES)
