"""Putting what came out of a container onto the host, below one new folder and nowhere else.

Everything is made by descriptor, without following a link, and must not exist yet. Links and
devices are left out and reported: a link planted inside could mislead whoever reads the result.
What fails leaves nothing behind.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial

from podbot.engine._tar_reading import Member, TarReader, bad
from podbot.errors import ContainerError, Kind
from podbot.frozen import dataclass
from podbot.tar_reading import Read

MAX_BYTES = 8 * 1024**3
MAX_ENTRIES = 200_000
MAX_SKIPPED = 10_000

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What was written, and what was left out with the reason."""

    files: int
    bytes: int
    skipped: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """How much to take at most."""

    bytes: int = MAX_BYTES
    entries: int = MAX_ENTRIES


def unpack(read: Read, destination: str, limits: UnpackLimits | None = None) -> Unpacked:
    """Write the one file or folder of an archive to ``destination``, which must not exist.

    Kinds: ``exists``, ``bad_archive``, ``too_large``, ``io``.
    """
    destination = os.path.abspath(destination)
    parent = os.path.dirname(destination)
    try:
        if os.path.lexists(destination):
            raise ContainerError(
                f"{destination} exists already",
                kind=Kind.EXISTS,
                remedy="choose another place, or move it away",
                subject=destination,
            )
        staging = tempfile.mkdtemp(prefix=".podbot-", dir=parent)
    except OSError as error:
        raise _host_error(error, parent) from error
    try:
        unpacked = _Unpacking(staging, limits or UnpackLimits()).run(read)
        _put_in_place(staging, destination)
    except OSError as error:
        raise _host_error(error, destination) from error
    finally:
        _remove(staging)
    return unpacked


def _put_in_place(staging: str, destination: str) -> None:
    names = os.listdir(staging)
    if len(names) != 1:
        raise bad("it does not hold exactly one file or folder")
    os.rename(os.path.join(staging, names[0]), destination)


def _remove(staging: str) -> None:
    import shutil

    shutil.rmtree(staging, ignore_errors=True)


class _Unpacking:
    """One archive on its way into one folder."""

    def __init__(self, staging: str, limits: UnpackLimits):
        self._staging, self._limits = staging, limits
        self._files = self._bytes = self._entries = 0
        self._skipped: list[tuple[str, str]] = []
        # Folders may be closed to us by their own mode: that comes last.
        self._modes: list[tuple[tuple[str, ...], int]] = []

    def run(self, read: Read) -> Unpacked:
        root = os.open(self._staging, _FOLDER)
        try:
            reader = TarReader(read)
            for member in reader.members():
                self._count()
                self._place(root, member, reader)
            for path, mode in reversed(self._modes):
                self._within(root, path, partial(_set_mode, mode))
        finally:
            os.close(root)
        return Unpacked(self._files, self._bytes, tuple(self._skipped))

    def _count(self) -> None:
        self._entries += 1
        if self._entries > self._limits.entries:
            raise _too_large(f"more than {self._limits.entries} entries")

    def _place(self, root: int, member: Member, reader: TarReader) -> None:
        if not member.path:
            return  # the top itself
        if member.kind == "folder":
            self._within(root, member.path, _make_folder)
            self._modes.append((member.path, member.mode))
        elif member.kind == "file":
            self._within(root, member.path, lambda fd, name: self._write(fd, name, member, reader))
        else:
            reason = (
                "a link" if member.kind in ("symlink", "hardlink") else "neither file nor folder"
            )
            if len(self._skipped) < MAX_SKIPPED:
                self._skipped.append(("/".join(member.path), reason))

    def _write(self, folder: int, name: str, member: Member, reader: TarReader) -> None:
        if self._bytes + member.size > self._limits.bytes:
            raise _too_large(f"more than {self._limits.bytes} bytes")
        try:
            fd = os.open(name, _CREATE, 0o600, dir_fd=folder)
        except FileExistsError:
            raise bad("it names one file twice") from None
        try:
            for part in reader.data():
                rest = memoryview(part)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                self._bytes += len(part)
            os.fchmod(fd, member.mode & 0o777)  # nothing from inside is setuid out here
            os.utime(fd, (member.mtime, member.mtime))
        finally:
            os.close(fd)
        self._files += 1

    def _within(self, root: int, path: tuple[str, ...], act: Callable[[int, str], object]) -> None:
        """Do something in the folder that holds a path, walking there without following links."""
        folder = os.dup(root)
        try:
            for name in path[:-1]:
                _make_folder(folder, name)
                below = os.open(name, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = below
            act(folder, path[-1])
        finally:
            os.close(folder)


def _make_folder(folder: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        return  # opening it will tell if it is no folder


def _set_mode(mode: int, folder: int, name: str) -> None:
    fd = os.open(name, _FOLDER, dir_fd=folder)
    try:
        os.fchmod(fd, mode & 0o777)
    finally:
        os.close(fd)


def _too_large(what: str) -> ContainerError:
    return ContainerError(
        f"the archive from the container holds {what}",
        kind=Kind.TOO_LARGE,
        remedy="take a smaller part of it, or allow more",
    )


def _host_error(error: OSError, place: str) -> ContainerError:
    return ContainerError(
        f"{place} cannot be written: {error.strerror or error}",
        kind=Kind.IO,
        remedy="choose a folder that you may write to and that has room",
        subject=place,
    )
