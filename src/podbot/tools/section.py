"""What every section with a workspace shares: its tools, its slices, and how it ends.

A backend adds little: where its sandbox lives (`Home`), a value that tells the session of it, and
its text. The sandbox is opened by the first call and ended by `close`, by garbage collection or at
the exit of the interpreter, whichever comes first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from podbot.config import variables
from podbot.errors import ConfigError, Kind
from podbot.prompt.section import Section
from podbot.prompt.tool import AnyTool, Tool
from podbot.runtime.given import expect, expect_callable
from podbot.runtime.logging import get_logger
from podbot.runtime.session import Session, replace_latest
from podbot.sandbox.sandbox import Sandbox
from podbot.tools import _hydration, mounts, shell, texts
from podbot.tools._command_tools import CommandLimits, CommandTools
from podbot.tools._file_tools import FileTools
from podbot.tools.evaluation import EvalParams, EvalResult
from podbot.tools.files import (
    EditFileParams,
    GlobParams,
    GlobResult,
    GrepParams,
    GrepResult,
    Listing,
    ListParams,
    ReadFileParams,
    ReadFileResult,
    RemoveParams,
    WriteFileParams,
)
from podbot.tools.filesystem import DeleteEntry, VirtualFileSystem, WriteFile
from podbot.tools.live import Home, Live, Surroundings
from podbot.tools.mounts import HostMount, HostPath, Mount
from podbot.tools.reducers import (
    FilesSeen,
    append_each,
    files_seen,
    make_delete_reducer,
    make_write_reducer,
)
from podbot.tools.shell import ShellParams, ShellResult

if TYPE_CHECKING:
    from podbot.prompt.context import ToolContext
    from podbot.runtime.events import EventBus

C = TypeVar("C", bound="WorkspaceConfig")
Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class WorkspaceConfig:
    """What every section with a workspace can be told.

    - ``mounts``: host files that are copied in first; ``allowed_host_roots``: the folders they
      may come from, mandatory with mounts.
    - ``base_environment``: variables that every command starts with.
    - ``clock``: gives aware times; default the session's.
    - ``accepts_overrides``: whether the section's texts may be replaced from a file.
    """

    mounts: Sequence[HostMount] = ()
    allowed_host_roots: Sequence[HostPath] = ()
    base_environment: Mapping[str, str] | None = None
    clock: Clock | None = None
    accepts_overrides: bool = False


@dataclass(frozen=True, slots=True)
class SectionKind:
    """What one kind of section says of itself: names, text, and how far its tools go."""

    key: str
    title: str
    text: str
    component: str
    workspace: type
    commands: bool = True
    eval_characters: int | None = None
    shell_strings: bool = True


@dataclass(frozen=True, slots=True)
class Given:
    """What a home is made from: the session, the checked mounts, the variables to set."""

    session: Session
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class WorkspaceSection(Section):
    """A section whose tools work on one workspace. Subclasses are the public ones."""

    def __init__(
        self,
        *,
        session: Session,
        config: WorkspaceConfig,
        kind: SectionKind,
        home: Callable[[Given], Home],
        kept: Path | None = None,
    ):
        expect(session, Session, "the session of a section", ConfigError)
        found = mounts.resolve(config.mounts, config.allowed_host_roots)
        scan = _hydration.scan(found)
        clock = config.clock or session.clock
        expect_callable(clock, "the clock of a section", ConfigError)
        environment = _checked({} if config.base_environment is None else config.base_environment)
        logger = get_logger(__name__, component=kind.component, secrets=environment.values()).bind(
            session_id=session.session_id
        )
        live = Live(
            home(Given(session, found, environment)),
            kind.workspace,
            Surroundings(session, clock, logger, kind.commands),
        )
        limits = CommandLimits(_shell_seconds(), kind.eval_characters, kind.shell_strings)
        super().__init__(
            key=kind.key,
            title=kind.title,
            template=texts.with_timeout(kind.text, limits.shell_seconds),
            tools=_tools(live, limits if kind.commands else None),
            accepts_overrides=config.accepts_overrides,
            session=session,
        )
        self.config = config
        self._previews = scan.previews
        self._live = live
        _register(session, kind.workspace, clock)
        _carry_out(session, live)
        session.mutate(kind.workspace).clear()
        # Nobody has looked yet.
        files = scan.files if kept is None else _hydration.scan_kept(kept)
        session.mutate(VirtualFileSystem).seed(replace(files, complete=False))
        # Nothing in here leads back to the section, or it would never be collected.
        self._finalizer = weakref.finalize(self, live.end)

    @property
    def sandbox(self) -> Sandbox | None:
        """The sandbox that the tools work in, once a call has opened it."""
        return self._live.sandbox

    def open(self) -> Sandbox:
        """Open the sandbox now, not at the first call; what stands in the way is raised."""
        return self._live.opened()

    def body(self, template: str) -> str:
        """The text, and what was mounted."""
        if not self._previews:
            return template
        shown = "\n".join(preview.render() for preview in self._previews)
        return f"{template}\n\nCopied from the host into the workspace:\n\n{shown}"

    def clone(self, *, session: Session, bus: EventBus) -> Self:
        """The same section for another session: its own sandbox, mounts copied anew.

        Calls of its tools are told on ``bus``, and to the session.
        """
        made = type(self)(session=session, config=self.config)  # type: ignore[call-arg]  # public sections take these two
        made.bus = bus
        return made

    def refresh(self, context: ToolContext) -> None:
        """Tell the session what the sandbox is like, after a call failed."""
        self._live.refresh()

    def close(self) -> None:
        """End the sandbox and remove what was made for it."""
        self._finalizer()


def settings_for(config: C | None, kind: type[C]) -> C:
    """The settings of a section: those given, if they are its own, else the usual ones."""
    if config is None:
        return kind()
    expect(config, kind, "the config of a section", ConfigError)
    return config


def _checked(environment: Mapping[str, str]) -> dict[str, str]:
    expect(environment, Mapping, "base_environment", ConfigError)
    checked: dict[str, str] = {}
    given: Iterable[tuple[object, object]] = environment.items()  # callers need not be typed
    for name, value in given:
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(
                f"base_environment has {name!r}, whose name or value is not text",
                kind=Kind.INVALID,
                remedy="give strings",
                field="base_environment",
            )
        checked[name] = value
    return checked


def _register(session: Session, workspace: type, clock: Clock) -> None:
    session.mutate(workspace).register(workspace, replace_latest)
    files = session.mutate(VirtualFileSystem)
    files.register(WriteFile, make_write_reducer(clock))
    files.register(DeleteEntry, make_delete_reducer())
    files.register(FilesSeen, files_seen)
    session.mutate(EvalResult).register(EvalResult, append_each)


def _carry_out(session: Session, live: Live) -> None:
    """What a program dispatches is done in the sandbox too, or refused."""
    alive = weakref.ref(live)  # once it is gone, an event changes slices alone

    def write(event: WriteFile) -> None:
        if (found := alive()) is not None:
            found.write(event)

    def delete(event: DeleteEntry) -> None:
        if (found := alive()) is not None:
            found.delete(event)

    files = session.mutate(VirtualFileSystem)
    files.guard(WriteFile, write)
    files.guard(DeleteEntry, delete)


def _shell_seconds() -> float:
    """The timeout of a command that names none."""
    said = variables.SHELL_TIMEOUT.read()
    if said is None:
        return shell.DEFAULT_SECONDS
    try:
        seconds = float(said)
        if seconds > 0:
            return shell.clamped(seconds)
    except ValueError:
        pass
    raise ConfigError(
        f"{variables.SHELL_TIMEOUT.name}={said!r} is not a number of seconds",
        kind=Kind.INVALID,
        remedy=f"set it to {shell.LEAST_SECONDS:g} up to {shell.MOST_SECONDS:g}, or unset it",
        field=variables.SHELL_TIMEOUT.name,
    )


def _tools(live: Live, limits: CommandLimits | None) -> tuple[AnyTool, ...]:
    files = FileTools(live)
    tools: tuple[AnyTool, ...] = (
        Tool[ListParams, Listing](
            name="ls",
            description="List the files and folders in a folder of the workspace.",
            handler=files.ls,
        ),
        Tool[ReadFileParams, ReadFileResult](
            name="read_file",
            description="Read lines of a text file, with line numbers. 2000 lines at most at once.",
            handler=files.read_file,
        ),
        Tool[WriteFileParams, WriteFile](
            name="write_file",
            description="Create a text file; fails if it exists. Folders on the way are made.",
            handler=files.write_file,
        ),
        Tool[EditFileParams, WriteFile](
            name="edit_file",
            description="Replace a piece of text in a file. Every other byte stays as it is.",
            handler=files.edit_file,
        ),
        Tool[GlobParams, GlobResult](
            name="glob",
            description="Find files and folders whose path matches a pattern such as **/*.py.",
            handler=files.glob,
        ),
        Tool[GrepParams, GrepResult](
            name="grep",
            description="Find lines that match a Python regular expression, hidden files included.",
            handler=files.grep,
        ),
        Tool[RemoveParams, DeleteEntry](
            name="rm",
            description="Remove a file, a link, or a folder with everything in it.",
            handler=files.rm,
        ),
    )
    if limits is None:
        return tools
    commands = CommandTools(live, limits)
    return (
        *tools,
        _shell_tool(commands, limits.shell_seconds),
        Tool[EvalParams, EvalResult](
            name="evaluate_python",
            description="Run Python in the workspace with a fresh python3, 5 seconds at most. "
            "Gives what it printed and the value of a last expression.",
            handler=commands.evaluate_python,
        ),
    )


def _shell_tool(commands: CommandTools, seconds: float) -> Tool[ShellParams, ShellResult]:
    tool = Tool[ShellParams, ShellResult](
        name="shell_execute",
        description="Run a command in the workspace, 120 seconds at most. A failing command "
        "is described by its exit code and its output.",
        handler=commands.shell_execute,
    )
    if seconds == shell.DEFAULT_SECONDS:
        return tool
    said = tool.parameters["timeout_seconds"]
    default = f"default {shell.DEFAULT_SECONDS:g}"
    return tool.described(
        tool.description, {"timeout_seconds": said.replace(default, f"default {seconds:g}")}
    )
