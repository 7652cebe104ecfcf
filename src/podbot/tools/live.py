"""The live part of a section: a sandbox that is opened when first needed, and its slices.

`Live` belongs to one section and is what its tools hold, so that tools never keep a section alive.
It opens the sandbox at the first call, opens it again if it was lost, keeps the session's slices
true and ends everything once. What a backend adds is a `Home`; nothing here knows which.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from podbot.errors import (
    FileError,
    GuestLostError,
    Kind,
    PodbotError,
    SandboxError,
    ToolValidationError,
)
from podbot.runtime.logging import StructuredLogger
from podbot.runtime.session import Session
from podbot.sandbox.sandbox import Sandbox
from podbot.tools import _traces
from podbot.tools._mirror import Mirror
from podbot.tools.filesystem import DeleteEntry, VirtualFileSystem, WriteFile
from podbot.tools.paths import WORKSPACE, check_segments
from podbot.tools.reducers import FilesSeen

if TYPE_CHECKING:
    from podbot.prompt.context import ToolContext
    from podbot.sandbox.layers import Layer
    from podbot.tools._traces import Traces

ROUNDS = 3
"""How often a look is repeated while other calls change the same files."""
OPEN_UP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Times:
    """When a workspace was opened, and when a tool last used it."""

    started_at: datetime
    last_used_at: datetime


class Home(Protocol):
    """What a backend brings: where its sandbox lives."""

    @property
    def workdir(self) -> str | None:
        """What commands call the workspace, once that is known."""
        ...

    @property
    def stands(self) -> bool:
        """Whether the place of the open sandbox is still there, and the same."""
        ...

    def open(self) -> Sandbox:
        """Open the sandbox; again, in the same place, after one was lost."""
        ...

    def workspace(self, sandbox: Sandbox, times: Times) -> object:
        """The value that tells the session of it: a frozen dataclass."""
        ...

    def end(self) -> None:
        """Remove what it made, the sandbox being closed. May be called twice."""
        ...


@runtime_checkable
class Stopping(Protocol):
    """A sandbox that may be stopped while nobody uses it."""

    on_stop: Callable[[], object] | None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a live sandbox works for: the session, its clock, and where to log.

    ``commands``: whether there are tools that run some, and a model may be told to use them.
    """

    session: Session
    clock: Callable[[], datetime]
    logger: StructuredLogger
    commands: bool = True


class Live:
    """A sandbox that is there when a tool needs it. Any thread may call."""

    def __init__(self, home: Home, kind: type, around: Surroundings):
        self._home = home
        self._kind = kind
        self._around = around
        self._owner = os.getpid()
        self._opening = threading.Lock()
        self._syncing = threading.Lock()
        self._synced = 0
        self._sandbox: Sandbox | None = None
        self._started = self._used = around.clock()
        self._telling = threading.RLock()
        self._ended = False
        self._mirror = Mirror()
        self._after: tuple[Traces, VirtualFileSystem] | None = None
        self.layer: Layer | None = None
        """Where the changes are, of a backend that keeps them apart; stays after the end."""

    @property
    def workdir(self) -> str | None:
        """What commands call the workspace, once that is known."""
        return self._home.workdir

    @property
    def sandbox(self) -> Sandbox | None:
        """The sandbox, if it is open."""
        return self._sandbox

    @property
    def commands(self) -> bool:
        """Whether a model has tools that run commands here."""
        return self._around.commands

    @property
    def logger(self) -> StructuredLogger:
        """Where it is told what becomes of the workspace, and what was run in it."""
        return self._around.logger

    def files(self) -> VirtualFileSystem:
        """The files as the session knows them."""
        return self._around.session.query(VirtualFileSystem).latest() or VirtualFileSystem()

    def opened(self) -> Sandbox:
        """The sandbox, opened now if it is not; what stands in the way of that is raised."""
        sandbox = self._sandbox
        if sandbox is not None and self._serves(sandbox):
            return sandbox
        with self._opening:
            if self._ended:
                raise _closed()
            sandbox = self._sandbox
            if sandbox is None or not self._serves(sandbox):
                if sandbox is not None:
                    sandbox.close()
                sandbox = self._sandbox = self._open()
            return sandbox

    def _serves(self, sandbox: Sandbox) -> bool:
        return not sandbox.closed and self._home.stands

    @contextmanager
    def call(self, context: ToolContext) -> Iterator[Sandbox]:
        """The open sandbox, for one call of a tool.

        The call can be cancelled from another thread; what the model did wrong comes out as
        `ToolValidationError`.
        """
        context.check()
        sandbox = self.opened()
        thread = threading.get_ident()
        try:
            with context.cancellation.stopping(lambda: sandbox.cancel(thread)):
                context.check()  # opening it may have taken long
                yield sandbox
        except SandboxError as error:
            if self._ended:
                raise _closed() from error
            if _is_over(error):
                self._lost(sandbox, error)
            if sandbox.closed:
                raise _opened_again(error) from error
            context.check()  # what was cancelled fails in many ways: say the true one
            raise self._for_model(error) from error
        finally:
            self._touch(sandbox)
        context.check()

    def write(self, event: WriteFile) -> None:
        """Do what a program dispatched to the session; raises what stands in the way."""
        if event.path.is_root or event.content is None or event.encoding != "utf-8":
            raise ToolValidationError(
                f"{event.path} cannot be written by this event: it needs a path and its text",
                kind=Kind.INVALID,
                remedy="write what is no text by section.open().write(path, data)",
            )
        path, content = self._path_of(event), event.content
        if event.mode == "append":
            self._do(lambda sandbox: sandbox.append(path, content))
        else:
            new = event.mode == "create"
            self._do(lambda sandbox: sandbox.write(path, content, exclusive=new))

    def delete(self, event: DeleteEntry) -> None:
        """Do what a program dispatched to the session; raises what stands in the way."""
        if event.path.is_root:
            raise ToolValidationError(
                "the workspace itself cannot be removed", remedy="name what is in it"
            )
        path = self._path_of(event)
        self._do(lambda sandbox: sandbox.remove(path, recursive=True))

    def _path_of(self, event: WriteFile | DeleteEntry) -> str:
        check_segments(event.path.segments, "path")
        return str(event.path)

    def _do(self, deed: Callable[[Sandbox], object]) -> None:
        sandbox = self.opened()
        try:
            deed(sandbox)
        except SandboxError as error:
            if self._ended:
                raise _closed() from error
            if _is_over(error):
                self._lost(sandbox, error)
            raise
        finally:
            self._touch(sandbox)

    def _for_model(self, error: SandboxError) -> SandboxError | ToolValidationError:
        told = error_for_model(error, self.commands)
        workdir = self._home.workdir
        if workdir is not None:  # which a model calls by another name, and may not be told
            told.message = as_tools_say(told.message, workdir)
        return told

    def seconds(self, context: ToolContext, most: float) -> float:
        """How long something may take: no longer than the call itself."""
        left = context.remaining()
        return most if left is None else max(0.001, min(most, left))

    def sync_files(self) -> None:
        """Bring the file slice up to date with the sandbox, if that is open."""
        wanted = self._synced + 1
        with self._syncing:
            sandbox = self._sandbox
            if self._synced >= wanted or sandbox is None:
                return  # another call looked after this one was done, or nobody can have written
            self._synced += 1
            try:
                self._sync(sandbox)
            except SandboxError as error:
                if _is_over(error):
                    self._lost(sandbox, error)
                raise

    def sync_after_command(self) -> None:
        """Look after a command that did what it did: its result is not lost if that fails.

        Not at all while neither the layer nor what the session knows has changed since the last.
        """
        sandbox = self._sandbox
        seen = None if sandbox is None else _traces.of(sandbox.layer)
        known = self._around.session.query(VirtualFileSystem).latest()
        after, self._after = self._after, None
        if seen is not None and after is not None and after[0] == seen and after[1] is known:
            self._after = after
            return
        try:
            self.sync_files()
        except SandboxError as error:
            self._around.logger.warning(
                "workspace.unseen", kind=error.kind.value, reason=error.message
            )
            return
        known = self._around.session.query(VirtualFileSystem).latest()
        if seen is not None and known is not None:
            self._after = (seen, known)

    def _sync(self, sandbox: Sandbox) -> None:
        try:
            # Again, if other calls changed the same files meanwhile.
            any(self._sync_once(sandbox) for _ in range(ROUNDS))
        except SandboxError as error:
            if error.kind is not Kind.PERMISSION:
                raise
            # A command has closed the workspace itself (``chmod -R 644 .`` does), and then no tool
            # could be used any more, not even to open it again.
            sandbox.exec(["chmod", "u+rwx", sandbox.workdir], cwd="/", timeout=OPEN_UP_SECONDS)
            self._sync_once(sandbox)

    def refresh(self) -> None:
        """After a call failed and its changes were taken back: tell of it again, and look."""
        sandbox = self._sandbox
        if sandbox is not None and not sandbox.closed:
            self._touch(sandbox)
            self.sync_files()

    def end(self) -> None:
        """Close the sandbox and remove what was made for it. In a fork, nothing."""
        if os.getpid() != self._owner:
            return
        with self._opening:
            if self._ended:
                return
            self._ended = True
            sandbox, self._sandbox = self._sandbox, None
            try:
                if sandbox is not None:
                    sandbox.close()
            finally:
                self._home.end()
        self._around.logger.info("workspace.closed", session_id=self._around.session.session_id)

    def _open(self) -> Sandbox:
        around = self._around
        try:
            sandbox = self._home.open()
        except PodbotError as error:
            around.logger.warning("workspace.failed", kind=error.kind.value, reason=error.message)
            raise
        self.layer = sandbox.layer
        if isinstance(sandbox, Stopping):
            sandbox.on_stop = _telling(weakref.ref(self))
        try:
            self._started = around.clock()
            self._sync_once(sandbox)
        except BaseException:
            sandbox.close()
            raise
        around.logger.info(
            "workspace.opened", session_id=around.session.session_id, backend=sandbox.backend
        )
        return sandbox

    def _touch(self, sandbox: Sandbox) -> None:
        """Every call counts as use of the workspace, also one whose changes are taken back."""
        with self._telling:
            self._used = self._around.clock()
            self._tell(sandbox)

    def stopped(self) -> None:
        """The sandbox was stopped, to be started again by the next call: what was it is no more."""
        with self._telling:
            sandbox = self._sandbox
            if sandbox is not None and not self._ended:
                self._tell(sandbox)

    def _tell(self, sandbox: Sandbox) -> None:
        workspace = self._home.workspace(sandbox, Times(self._started, self._used))
        self._around.session.mutate(self._kind).dispatch(workspace)

    def _sync_once(self, sandbox: Sandbox) -> bool:
        """Look once; whether the slice is now as it was seen."""
        seen = self._mirror.compare(sandbox, self.files())
        if seen.changes or seen.complete != self.files().complete:
            self._around.session.mutate(VirtualFileSystem).dispatch(seen)
        return _is_up_to_date(seen, self.files())

    def _lost(self, sandbox: Sandbox, error: SandboxError) -> None:
        """The sandbox died: the next call opens another in the same place."""
        with self._opening:
            if self._sandbox is sandbox:
                self._sandbox = None
        sandbox.close()
        self._around.logger.warning("workspace.lost", kind=error.kind.value, reason=error.message)


def _telling(alive: weakref.ref[Live]) -> Callable[[], None]:
    """Tells a live sandbox that it was stopped, without keeping it."""

    def tell() -> None:
        found = alive()
        if found is not None:
            found.stopped()

    return tell


_OVER = frozenset({Kind.GUEST_LOST, Kind.GUEST_UNRESPONSIVE, Kind.PROTOCOL, Kind.DISK_LIMIT})


def _is_over(error: SandboxError) -> bool:
    """Whether a sandbox does not come back from this."""
    return isinstance(error, GuestLostError) or error.kind in _OVER


def _closed() -> SandboxError:
    return SandboxError(
        "the workspace of this section is closed",
        kind=Kind.CLOSED,
        remedy="make a new section, or clone this one for a new session",
    )


def _opened_again(error: SandboxError) -> SandboxError:
    """The loss of a sandbox as a model should hear it: it need not, and cannot, open another."""
    return SandboxError(
        error.message,
        kind=error.kind,
        remedy="call a tool again: the workspace is opened anew, with the files as they are",
    )


def _is_up_to_date(seen: FilesSeen, files: VirtualFileSystem) -> bool:
    return all(files.find(change.path) == change.after for change in seen.changes)


_REMEDIES: dict[Kind, str] = {
    Kind.NOT_FOUND: "use ls or glob to see what is there",
    Kind.IS_DIRECTORY: "name a file; use ls to see what is in a folder",
    Kind.NOT_DIRECTORY: "name a folder; use read_file for a file",
    Kind.NOT_A_FILE: "only regular files can be read and written",
    Kind.EXISTS: "write_file only creates: change the file with edit_file, or rm it first",
    Kind.PERMISSION: "look at its mode with shell_execute (ls -l), or use another path",
    Kind.PATH_ESCAPE: "the path leads out of the workspace, perhaps through a link: use another",
    Kind.TOO_LARGE: "use grep or shell_execute (head, sed -n) to look at a part, or narrow it",
    Kind.NO_MATCH: "read the file and copy the text exactly, spaces and line breaks included",
    Kind.NOT_UNIQUE: "take more of the lines around it into old_string, or set replace_all",
    Kind.BAD_PATTERN: "correct the pattern, and escape what is meant literally",
    Kind.BAD_CWD: "name a folder that exists; use ls to see which do",
    Kind.TIMEOUT: "use a simpler pattern, or narrow the search by path and glob",
    Kind.DISK_FULL: "remove what is not needed with rm",
    Kind.UNSUPPORTED: "use the file tools: this workspace runs no commands",
}


# Where there are no commands, a model is not told to run one.
_WITHOUT_COMMANDS: dict[Kind, str] = {
    Kind.PERMISSION: "use another path",
    Kind.TOO_LARGE: "use grep to look at a part, or narrow it",
}


def error_for_model(
    error: SandboxError, commands: bool = True
) -> SandboxError | ToolValidationError:
    """The error as a model should hear it: what it can mend by another call says how."""
    mendable = error.kind in _REMEDIES or error.kind is Kind.INVALID
    if not mendable and not isinstance(error, FileError):
        return error
    remedy = _REMEDIES.get(error.kind, error.remedy)
    if not commands:
        remedy = _WITHOUT_COMMANDS.get(error.kind, remedy)
    return ToolValidationError(error.message, kind=error.kind, remedy=remedy)


def as_tools_say(text: str, workdir: str) -> str:
    """A message with paths below the workspace as tools take them, whatever commands see."""
    if workdir == WORKSPACE:
        return text
    return text.replace(f"{workdir}/", f"{WORKSPACE}/").replace(workdir, WORKSPACE)
