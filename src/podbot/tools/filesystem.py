"""What a session knows of a workspace's files: the `VirtualFileSystem` slice and what changes it.

The sandbox is the truth; this is a picture of it that programs and prompts can read without a
call. Frozen data only: `reducers` change it after an event, `_mirror` after a look into the
sandbox.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from podbot.tools.paths import VfsPath

KEPT_CHARACTERS = 48_000
"""The longest text a slice, or one write, may hold."""

Encoding = Literal["utf-8", "binary"]
WriteMode = Literal["create", "overwrite", "append"]
EntryKind = Literal["file", "directory", "link", "other"]


@dataclass(frozen=True, slots=True)
class VfsFile:
    """One file of the workspace.

    ``content`` is None for what a session does not keep: binary files, long ones, and those that
    were there before and that nobody touched; ``read_file`` reads them. ``version`` counts the
    contents that were seen, from 1.
    """

    path: VfsPath
    content: str | None
    encoding: Encoding
    size_bytes: int
    version: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class VirtualFileSystem:
    """The files of a workspace, sorted by path.

    ``complete`` is False when there are more than a session keeps; then it has those that were
    changed last, and ``left_out`` counts the others, as far as they were looked at. It is False
    too before the workspace was looked into at all.
    """

    files: tuple[VfsFile, ...] = ()
    complete: bool = True
    left_out: int = 0

    def find(self, path: VfsPath) -> VfsFile | None:
        """The file at a path."""
        place = self._place(path)
        if place < len(self.files) and self.files[place].path == path:
            return self.files[place]
        return None

    def put(self, file: VfsFile) -> VirtualFileSystem:
        """With this file, in the place of the one that was there."""
        place = self._place(file.path)
        there = place < len(self.files) and self.files[place].path == file.path
        rest = self.files[place + 1 :] if there else self.files[place:]
        return replace(self, files=(*self.files[:place], file, *rest))

    def without(self, path: VfsPath) -> VirtualFileSystem:
        """Without the file at a path, and without all below it."""
        start = end = self._place(path)
        while end < len(self.files) and self.files[end].path.below(path):
            end += 1
        if start == end:
            return self
        return replace(self, files=(*self.files[:start], *self.files[end:]))

    def changed(self, files: Mapping[VfsPath, VfsFile | None]) -> VirtualFileSystem:
        """With these files; those that are None are gone."""
        kept = {file.path: file for file in self.files}
        for path, file in files.items():
            if file is None:
                kept.pop(path, None)
            else:
                kept[path] = file
        return replace(self, files=sorted_by_path(kept.values()))

    def _place(self, path: VfsPath) -> int:
        return bisect_left(self.files, path.segments, key=_segments)


def sorted_by_path(files: Iterable[VfsFile]) -> tuple[VfsFile, ...]:
    """Files in the order that a `VirtualFileSystem` keeps."""
    return tuple(sorted(files, key=_segments))


def _segments(file: VfsFile) -> tuple[str, ...]:
    return file.path.segments


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A file was written. ``content`` is None when it is longer than a session keeps."""

    path: VfsPath
    content: str | None
    mode: WriteMode = "create"
    encoding: Encoding = "utf-8"

    def render(self) -> str:
        """For a model, which knows the content: it sent it."""
        size = "" if self.content is None else f", {len(self.content)} characters"
        return f"{self.path} ({self.mode}{size})"


@dataclass(frozen=True, slots=True)
class DeleteEntry:
    """A file was removed, or a folder with all that was in it."""

    path: VfsPath

    def render(self) -> str:
        """For a model."""
        return str(self.path)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What ``ls`` says of one entry. ``version`` is None for what is not a file."""

    path: VfsPath
    kind: EntryKind
    size_bytes: int
    version: int | None
    updated_at: datetime
