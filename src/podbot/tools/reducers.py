"""How events change the `VirtualFileSystem` slice of a session.

Pure functions, as a session's reducers are: they may run again when another call is taken back.
A write that says what is there already changes nothing, so an event and a look into the sandbox
may come in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from podbot.runtime.session import Reducer, ReducerContext, Slice
from podbot.tools.filesystem import DeleteEntry, VfsFile, VirtualFileSystem, WriteFile
from podbot.tools.paths import VfsPath

Clock = Callable[[], datetime]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that is not as the session had it: None where there was, or is, none."""

    path: VfsPath
    before: VfsFile | None
    after: VfsFile | None


@dataclass(frozen=True, slots=True)
class FilesSeen:
    """What a look into the sandbox found changed, whether it saw everything, and how many files
    it leaves out."""

    changes: tuple[FileChange, ...]
    complete: bool = True
    left_out: int = 0


def make_write_reducer(clock: Clock | None = None) -> Reducer[VirtualFileSystem, WriteFile]:
    """The reducer for `WriteFile`; times are the clock's, else the session's."""

    def write(
        values: Slice[VirtualFileSystem], event: WriteFile, *, context: ReducerContext
    ) -> tuple[VirtualFileSystem]:
        now = (clock or context.session.clock)()
        present = latest(values)
        return (present.put(_written(present.find(event.path), event, now)),)

    return write


def make_delete_reducer() -> Reducer[VirtualFileSystem, DeleteEntry]:
    """The reducer for `DeleteEntry`."""

    def delete(
        values: Slice[VirtualFileSystem], event: DeleteEntry, *, context: ReducerContext
    ) -> tuple[VirtualFileSystem]:
        return (latest(values).without(event.path),)

    return delete


def files_seen(
    values: Slice[VirtualFileSystem], event: FilesSeen, *, context: ReducerContext
) -> tuple[VirtualFileSystem]:
    """The reducer for `FilesSeen`: what another event changed since the look stays as that said."""
    present = latest(values)
    changes = {
        change.path: change.after
        for change in event.changes
        if present.find(change.path) == change.before
    }
    files = present.changed(changes).files if changes else present.files
    return (VirtualFileSystem(files, event.complete, event.left_out),)


def append_each(values: Slice[T], event: T, *, context: ReducerContext) -> Slice[T]:
    """The reducer for results that count each time, also when two are equal."""
    return values.appended(event)


def latest(values: Slice[VirtualFileSystem]) -> VirtualFileSystem:
    """The slice's one value; an empty workspace if there is none."""
    return values[-1] if values else VirtualFileSystem()


def _written(old: VfsFile | None, event: WriteFile, now: datetime) -> VfsFile:
    content = event.content
    if event.mode == "append" and old is not None:
        content = None if old.content is None or content is None else old.content + content
    if old is not None and content is not None and content == old.content:
        return old
    size = 0 if content is None else len(content.encode("utf-8", "surrogatepass"))
    return VfsFile(
        path=event.path,
        content=content,
        encoding=event.encoding,
        size_bytes=size,
        version=1 if old is None else old.version + 1,
        created_at=now if old is None else old.created_at,
        updated_at=now,
    )
