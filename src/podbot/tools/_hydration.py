"""Filling a workspace with its mounts: all of them, or nothing.

Files are copied into a staging folder first. A workspace on the host is that folder, renamed into
place and marked complete, so that half a copy is never taken for a whole one and a workspace that
was filled once keeps what was changed in it. A sandbox that has no such folder is sent the staged
files. Every failure is a `ToolValidationError`.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from podbot.errors import Kind, SandboxError, ToolValidationError
from podbot.sandbox.sandbox import Sandbox
from podbot.tools import cached
from podbot.tools._mirror import ENTRIES, READS, moment, text_of
from podbot.tools.filesystem import (
    KEPT_CHARACTERS,
    VfsFile,
    VirtualFileSystem,
    sorted_by_path,
)
from podbot.tools.mounts import PREVIEW_ENTRIES, HostMount, Mount, MountedFile, resolve
from podbot.visible import visible

WORKSPACE_NAME = cached.WORKSPACE_NAME
METADATA_NAME = cached.METADATA_NAME
STAGING_NAME = "staging"
MARKER_NAME = "hydrated"

remove = cached.remove

_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Preview:
    """What a prompt tells of one mount."""

    mount: Mount
    names: tuple[str, ...]
    count: int

    def render(self) -> str:
        """As lines of Markdown."""
        lines = [f"- `/workspace/{'' if self.mount.at.is_root else self.mount.at}`:"]
        lines += [f"  - `{name}`" for name in self.names]
        if self.count > len(self.names):
            lines.append(f"  - and {self.count - len(self.names)} more")
        elif not self.names:
            lines[0] += " no files"
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Scan:
    """What mounts will bring: for the prompt, and for the session."""

    previews: tuple[Preview, ...]
    files: VirtualFileSystem


def scan(mounts: Sequence[Mount]) -> Scan:
    """Go through the mounts without copying. Checks all that copying would."""
    previews = []
    kept: dict[tuple[str, ...], VfsFile] = {}
    folders: set[tuple[str, ...]] = set()
    reads, complete = READS, True
    for mount in mounts:
        names: list[str] = []
        count = 0
        for file in mount.files():
            count += 1
            if len(names) < PREVIEW_ENTRIES:
                names.append(_shown(str(file.path)))
            if len(kept) >= ENTRIES:
                complete = False
                continue
            read = reads > 0 and file.size <= KEPT_CHARACTERS
            reads -= read
            _make_way(kept, folders, file.path.segments)
            kept[file.path.segments] = _seed(file, read)
        previews.append(Preview(mount, tuple(names), count))
    files = tuple(kept[key] for key in sorted(kept))
    return Scan(tuple(previews), VirtualFileSystem(files, complete))


def kept_in(root: Path) -> Path | None:
    """The workspace folder below ``root`` if it was filled before, and is as it was left."""
    workspace = root / WORKSPACE_NAME
    try:
        filled = (root / METADATA_NAME / MARKER_NAME).is_file() and _is_folder(workspace)
    except OSError:
        return None  # not ours to look into: whoever opens it is told
    return workspace if filled else None


def scan_kept(workspace: Path) -> VirtualFileSystem:
    """The files of such a folder. What ran there made them: no link is followed."""
    (mount,) = resolve([HostMount(workspace, "/")], [workspace])
    kept, reads = [], READS
    with suppress(ToolValidationError):  # some of it is not ours to read: the sandbox will tell
        for file in islice(mount.files(), ENTRIES):
            read = reads > 0 and file.size <= KEPT_CHARACTERS
            reads -= read
            kept.append(_seed(file, read))
    return VirtualFileSystem(sorted_by_path(kept))


def _seed(file: MountedFile, read: bool) -> VfsFile:
    text = text_of(b"".join(file.parts(KEPT_CHARACTERS))) if read else None
    updated = moment(file.mtime_ns)
    return VfsFile(
        path=file.path,
        content=text,
        encoding="binary" if read and text is None else "utf-8",
        size_bytes=file.size,
        version=1,
        created_at=updated,
        updated_at=updated,
    )


def _make_way(
    kept: dict[tuple[str, ...], VfsFile], folders: set[tuple[str, ...]], place: tuple[str, ...]
) -> None:
    """A later mount wins: a file where folders were, and a folder where a file was."""
    for depth in range(1, len(place)):
        kept.pop(place[:depth], None)
        folders.add(place[:depth])
    if place in folders:
        for other in [key for key in kept if key[: len(place)] == place]:
            del kept[other]


def hydrated(root: Path, mounts: Sequence[Mount]) -> Path:
    """The workspace folder below ``root``, filled the first time and as it was left after that."""
    workspace, marker = root / WORKSPACE_NAME, root / METADATA_NAME / MARKER_NAME
    try:
        with _locked(root):
            if (kept := kept_in(root)) is not None:
                return kept
            for name in (STAGING_NAME, WORKSPACE_NAME):  # what somebody did not finish
                remove(root / name)
            staging = root / STAGING_NAME
            staging.mkdir(mode=0o700)
            try:
                stage(mounts, staging)
                staging.rename(workspace)
            except BaseException:
                remove(staging)
                raise
            marker.parent.mkdir(mode=0o700, exist_ok=True)
            marker.touch(mode=0o600)
    except OSError as error:
        raise _failed(error) from error
    return workspace


def send(mounts: Sequence[Mount], sandbox: Sandbox) -> None:
    """Copy the mounts into an open sandbox."""
    if not mounts:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="podbot-mounts-") as folder:
            stage(mounts, Path(folder))
            left_out = sandbox.upload(folder, ".").skipped
    except OSError as error:
        raise _failed(error) from error
    except SandboxError as error:
        raise ToolValidationError(
            f"the mounts could not be copied into the workspace: {error.message}",
            kind=error.kind,
            remedy=error.remedy,
        ) from error
    if left_out:
        raise _failed(OSError(5, f"{left_out[0][0]} was left out: {left_out[0][1]}"))


def stage(mounts: Sequence[Mount], folder: Path) -> None:
    """Copy every mount into a folder that is ours alone; later ones win."""
    for mount in mounts:
        left = _NO_LIMIT if mount.given.max_bytes is None else mount.given.max_bytes
        for file in mount.files():
            place = folder.joinpath(*file.path.segments)
            _make_way_on_disk(folder, file.path.segments)
            left -= _copied(file, place, left)
            if left < 0:
                raise mount.too_large()  # it grew while it was read


def _copied(file: MountedFile, place: Path, limit: int) -> int:
    size = 0
    mode = 0o755 if file.mode & 0o111 else 0o644
    with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as copy:
        for part in file.parts(limit):
            copy.write(part)
            size += len(part)
    os.utime(place, ns=(file.mtime_ns, file.mtime_ns))
    return size


def _make_way_on_disk(folder: Path, names: tuple[str, ...]) -> None:
    here = folder
    for name in names[:-1]:
        here = here / name
        if here.is_file():
            here.unlink()
        here.mkdir(mode=0o755, exist_ok=True)
    remove(here / names[-1])


def _is_folder(path: Path) -> bool:
    """Whether it is a folder itself: what ran there may have put a link in its place."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time fills a workspace."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _failed(error: OSError) -> ToolValidationError:
    return ToolValidationError(
        f"the workspace could not be filled: {error.strerror or error}",
        kind=Kind.IO,
        remedy="check the room and the permissions there, then call again: nothing was kept",
    )


def _shown(name: str) -> str:
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return visible(text).replace("`", "'").replace("\n", " ")[:200]
