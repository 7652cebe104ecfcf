"""The tools on plain processes of this machine: `UnsafeLocalSandboxSection`. **Isolates nothing.**

For hosts that are a sandbox themselves: a container, a CI job. Commands run as the calling user,
with all that user may do. What it does keep: a private temporary workspace that goes with the
section, a short environment, limits on time and output, and that no process outlives it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path

from podbot.config import variables
from podbot.errors import ConfigError, Kind, ToolValidationError
from podbot.runtime.given import expect
from podbot.runtime.session import Session
from podbot.sandbox import backends
from podbot.sandbox.local import LocalSandbox
from podbot.sandbox.policy import Policy
from podbot.sandbox.sandbox import Sandbox
from podbot.tools import _hydration, temporary, texts
from podbot.tools.evaluation import EvalParams, EvalResult
from podbot.tools.live import Times
from podbot.tools.mounts import (
    HostMount,
    HostPath,
    is_inside,
    normalize_host_root,
    normalize_host_roots,
)
from podbot.tools.paths import WORKSPACE
from podbot.tools.sandbox import Backing, SandboxSection, Workplace
from podbot.tools.section import Clock, Given, SectionKind, WorkspaceConfig, WorkspaceSection
from podbot.tools.shell import ShellParams, ShellResult
from podbot.tools.temporary import Temporary

__all__ = [
    "LocalEvalParams",
    "LocalEvalResult",
    "LocalShellParams",
    "LocalShellResult",
    "UnsafeLocalSandboxConfig",
    "UnsafeLocalSandboxSection",
    "UnsafeLocalWorkspace",
]

EVAL_CHARACTERS = 2000
"""The longest code `evaluate_python` takes here; longer scripts are files."""

# The same types on every backend, so that a tool call need not change when the backend does.
LocalShellParams = ShellParams
LocalShellResult = ShellResult
LocalEvalParams = EvalParams
LocalEvalResult = EvalResult

_ABOUT = """\
You have a workspace in a temporary folder of the machine this runs on. **Nothing isolates it**:
commands run as the user who runs this program, with that user's files, processes and network. Only
what encloses this program, if anything does, limits them. Keep to the workspace, and change nothing
outside of it."""


def _text(shell_strings: bool) -> str:
    return texts.joined(
        _ABOUT,
        texts.FILES,
        texts.commands(f"up to {EVAL_CHARACTERS:,} characters of Python", shell_strings),
        f"{texts.RELATIVE} The workspace is removed when the session ends.",
    )


@dataclass(frozen=True, slots=True, init=False)
class UnsafeLocalSandboxConfig(WorkspaceConfig):
    """Settings of an `UnsafeLocalSandboxSection`.

    ``workspace_root``: the folder to make the workspace in, which must lie in
    ``allowed_host_roots`` if those are given; default ``$PODBOT_WORKSPACE_ROOT``, else the
    machine's folder for temporary files. ``shell_strings``: ``shell_execute`` takes one string too,
    which a shell reads; the other sections do so always.
    """

    workspace_root: HostPath | None = None
    shell_strings: bool = False

    # Written out, as its place among the arguments is not its place among the fields.
    def __init__(
        self,
        mounts: Sequence[HostMount] = (),
        allowed_host_roots: Sequence[HostPath] = (),
        base_environment: Mapping[str, str] | None = None,
        workspace_root: HostPath | None = None,
        clock: Clock | None = None,
        accepts_overrides: bool = False,
        shell_strings: bool = False,
    ):
        given = locals()
        for each in fields(self):
            object.__setattr__(self, each.name, given[each.name])


@dataclass(frozen=True, slots=True)
class UnsafeLocalWorkspace:
    """The workspace of an `UnsafeLocalSandboxSection`, as its session knows it.

    ``workdir`` is what tool arguments call it, ``workspace_path`` the folder it is.
    """

    workspace_path: str
    workdir: str
    env: tuple[tuple[str, str], ...]
    started_at: datetime
    last_used_at: datetime


def _kind(shell_strings: bool) -> SectionKind:
    return SectionKind(
        key="local.sandbox",
        title="Local Workspace",
        text=_text(shell_strings),
        component="tools.unsafe_local",
        workspace=UnsafeLocalWorkspace,
        eval_characters=EVAL_CHARACTERS,
        shell_strings=shell_strings,
    )


class UnsafeLocalSandboxSection(SandboxSection):
    """All nine tools on plain processes. **It isolates nothing**: see the module."""

    config: UnsafeLocalSandboxConfig

    def __init__(self, *, session: Session, config: UnsafeLocalSandboxConfig | None = None):
        super().__init__(session=session, backend=backends.LOCAL, config=config)

    clone = WorkspaceSection.clone  # the backend is given already


def _workplace(session: Session, config: UnsafeLocalSandboxConfig) -> Workplace:
    root = _workspace_root(config)
    expect(config.shell_strings, bool, "shell_strings", ConfigError)
    return Workplace(config, _kind(config.shell_strings), lambda given: _LocalHome(given, root))


BACKING = Backing(UnsafeLocalSandboxConfig, _workplace)


def _workspace_root(config: UnsafeLocalSandboxConfig) -> Path:
    if config.workspace_root is None:
        said = variables.WORKSPACE_ROOT.read()
        return normalize_host_root(tempfile.gettempdir() if said is None else said)
    root = normalize_host_root(config.workspace_root)
    allowed = normalize_host_roots(config.allowed_host_roots)
    if allowed and not is_inside(root, allowed):
        raise ToolValidationError(
            f"workspace_root {root} is outside of the allowed host roots",
            kind=Kind.PATH_ESCAPE,
            remedy="choose a folder inside one of allowed_host_roots, or add it to them",
        )
    return root


class _LocalHome:
    """A private folder, made for the first sandbox and kept for those that follow it."""

    def __init__(self, given: Given, root: Path):
        self._given = given
        self._root = root
        self._made: Temporary | None = None
        self._opened: tuple[int, int] | None = None
        self.workdir: str | None = None

    @property
    def stands(self) -> bool:
        """A command may have removed the folder, or put another one in its place."""
        return self.workdir is not None and _identity(self.workdir) == self._opened

    def open(self) -> Sandbox:
        """A sandbox in the workspace folder, which is made and filled if it is not there."""
        workspace = self._filled()
        self._opened = _identity(workspace)
        sandbox = LocalSandbox(workspace, policy=Policy(environment=self._given.environment))
        self.workdir = sandbox.workdir
        return sandbox

    def _filled(self) -> Path:
        if self._made is None or _identity(self._made.path) is None:
            if self._made is None:
                temporary.sweep()
            else:
                temporary.end(self._made)  # a command removed it
            try:
                # Unpredictable, and 0700: nobody else can be there first, or look in.
                self._made = temporary.make(self._root, self._given.session.session_id)
            except OSError as error:
                raise ToolValidationError(
                    f"no workspace can be made in {self._root}: {error.strerror}",
                    kind=Kind.IO,
                    remedy=f"set workspace_root or {variables.WORKSPACE_ROOT.name} to a folder "
                    "that can be written to",
                ) from error
        return _hydration.hydrated(self._made.path, self._given.mounts)

    def workspace(self, sandbox: Sandbox, times: Times) -> UnsafeLocalWorkspace:
        """What the session is told."""
        environment = tuple(sorted(self._given.environment.items()))
        return UnsafeLocalWorkspace(
            sandbox.workdir, WORKSPACE, environment, times.started_at, times.last_used_at
        )

    def end(self) -> None:
        """Remove the folder with everything in it."""
        made, self._made = self._made, None
        if made is not None:
            try:
                temporary.end(made)
            except OSError as error:
                folder = made.path
                raise ToolValidationError(
                    f"the workspace {folder} could not be removed: {error.strerror}",
                    kind=Kind.IO,
                    remedy=f"remove it by hand: rm -rf {os.fspath(folder)!r}",
                ) from error


def _identity(path: Path | str) -> tuple[int, int] | None:
    """Which folder this is; None if it is none."""
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    return (facts.st_dev, facts.st_ino) if stat.S_ISDIR(facts.st_mode) else None
