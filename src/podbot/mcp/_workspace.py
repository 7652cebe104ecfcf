"""The prompt that is served: the section of a backend, bound to a session of its own.

A server may run for weeks, and nobody reads its session but the tools. So of all that a session
keeps (each call, each result) only the latest are left, and its memory does not grow.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from podbot.errors import Kind, LaunchError
from podbot.frozen import dataclass
from podbot.prompt.prompt import Prompt
from podbot.runtime.events import InProcessEventBus, ToolInvoked
from podbot.runtime.session import Session
from podbot.sandbox import backends
from podbot.sandbox.folders import existing_folder
from podbot.sandbox.layers.mounts import is_below
from podbot.tools.mounts import HostMount

if TYPE_CHECKING:
    from podbot.mcp.request import ServeRequest
    from podbot.runs.request import LaunchRequest
    from podbot.tools.section import WorkspaceSection

T = TypeVar("T")

NS, KEY = "podbot", "mcp"
COPY_BYTES = 256 * 1024 * 1024
"""The most that is copied of a target into memory."""
KEPT = 64
"""How many values of each kind the session keeps."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """What is served. Nothing is open yet."""

    session: Session
    section: WorkspaceSection
    prompt: Prompt


def workspace(request: ServeRequest) -> Workspace:
    """The tools of a backend, as a person asked for them."""
    session = Session(bus=InProcessEventBus())
    section = _section(request, session)
    session.bus.subscribe(ToolInvoked, lambda _: _forget_old(session))
    return Workspace(session, section, Prompt(ns=NS, key=KEY, sections=[section]))


def _section(request: ServeRequest, session: Session) -> WorkspaceSection:
    """Each backend's section; its module is loaded when it is asked for."""
    launch = request.launch
    policy = launch.policy()
    target = launch.targets[0] if launch.targets else "."
    if request.backend == backends.OVERLAY:
        from podbot.tools.overlay import OverlaySandboxConfig, OverlaySandboxSection

        overlay = OverlaySandboxConfig(target=target, policy=policy, title=launch.title)
        return OverlaySandboxSection(session=session, config=overlay)
    if request.backend == backends.CONTAINER:
        from podbot.mcp._folders import ContainerFolderSection, FolderConfig

        container = FolderConfig(
            target=target, policy=policy, image=launch.image, title=launch.title
        )
        return ContainerFolderSection(session=session, config=container)
    if request.backend == backends.MEMORY:
        from podbot.tools.vfs import VfsToolsConfig, VfsToolsSection

        mounts, roots = _copied(launch)
        memory = VfsToolsConfig(mounts=mounts, allowed_host_roots=roots)
        return VfsToolsSection(session=session, config=memory)
    if request.backend != backends.LOCAL:
        from podbot.runs.opening import said_options
        from podbot.tools.sandbox import SandboxConfig, SandboxSection

        other = SandboxConfig(options=said_options(launch))
        return SandboxSection(session=session, backend=request.backend, config=other)
    if launch.targets:
        from podbot.mcp._folders import FolderConfig, LocalFolderSection

        return LocalFolderSection(
            session=session, config=FolderConfig(target=target, policy=policy)
        )
    from podbot.tools.unsafe_local import UnsafeLocalSandboxConfig, UnsafeLocalSandboxSection

    passed = {name: os.environ[name] for name in launch.pass_environment if name in os.environ}
    local = UnsafeLocalSandboxConfig(base_environment={**passed, **launch.environment})
    return UnsafeLocalSandboxSection(session=session, config=local)


def _copied(launch: LaunchRequest) -> tuple[tuple[HostMount, ...], tuple[str, ...]]:
    """The target as a mount, for a copy in memory: without what is hidden."""
    if not launch.targets:
        return (), ()
    target = str(existing_folder(launch.targets[0]))
    hidden = []
    for path in launch.policy().hidden_paths(Path.home()):
        if target == path or is_below(target, path):
            raise LaunchError(
                f"target {target} is hidden from tools, as {path} is",
                kind=Kind.TARGET_REFUSED,
                remedy="name another folder, or make it visible with --show",
            )
        if is_below(path, target):
            hidden.append(_literal(os.path.relpath(path, target)))
    mount = HostMount(target, "/", exclude_glob=tuple(hidden), max_bytes=COPY_BYTES)
    return (mount,), (target,)


def _literal(path: str) -> str:
    """A pattern that matches this path alone."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in path)


def _forget_old(session: Session) -> None:
    """Leave the latest of each kind. What comes in between may be lost: nobody reads it."""
    for kind in session.types:
        _keep_latest(session, kind)


def _keep_latest(session: Session, kind: type[T]) -> None:
    values = session.slice_of(kind)
    if len(values) > 2 * KEPT:
        session.mutate(kind).seed(values.all()[-KEPT:])
