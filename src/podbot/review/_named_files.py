"""Files that a caller names: one to read, a new one to write.

Reading never waits for ever. A new file is there whole or not at all, whatever kills who writes it:
it has no name until it is whole and on the disk, so a kill leaves nothing behind. Where a file
system has no files without names, it is written under a name nobody can foresee, locked meanwhile,
and what a dead writer left there goes with the next one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from podbot.changes.diffs.text import shown_name
from podbot.errors import ChangesError, Kind

_NO_NAMELESS = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EPERM})
_DRAFT = ".podbot-save-"
_A_DRAFT = re.compile(rf"{re.escape(_DRAFT)}[0-9a-f]{{32}}")
_SURELY_LOCKED = 60.0
"""Seconds after which whoever made a draft has locked it, or is dead."""
_DRAFT_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def opened_to_read(path: str, remedy: str) -> BinaryIO:
    """A file that holds what it says; a pipe too, if somebody handed it to us (`<(…)`, stdin).

    A FIFO, a device or a terminal may never say anything: refused instead of waited for.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise ChangesError(
            f"{shown_name(path)} cannot be read: {error.strerror}",
            kind=Kind.NOT_FOUND if isinstance(error, FileNotFoundError) else Kind.IO,
            remedy=remedy,
        ) from None
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    is_pipe = kind == stat.S_IFIFO and os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:")
    if kind != stat.S_IFREG and not is_pipe:
        os.close(fd)
        raise ChangesError(
            f"{shown_name(path)} cannot be read: it is {_WHAT.get(kind, 'a device')}, not a file",
            kind=Kind.IO,
            remedy=remedy,
        )
    os.set_blocking(fd, True)
    return open(fd, "rb")


_WHAT = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO"}


@contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
    """A file to write, which gets its name if the block ends well.

    Raises `FileExistsError`, before the block or after it, if anything has that name, and `OSError`
    if it cannot be made or brought to the disk. Nothing is left behind then.
    """
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    above, name = os.path.split(path)
    if not name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    folder = os.open(above or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _draft(folder) as (fd, draft):
            with open(fd, "wb", closefd=False) as file:
                yield file
                file.flush()
                os.fsync(fd)
            if draft is None:
                # By a descriptor of the folder, or Python's call would link the link itself.
                os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=folder, follow_symlinks=True)
            else:
                _name(folder, draft, name)
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _draft(folder: int) -> Iterator[tuple[int, str | None]]:
    """A file in a folder with its temporary name, None if it needs none."""
    try:
        fd = os.open(".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o666, dir_fd=folder)
        draft = None
    except OSError as error:
        if error.errno not in _NO_NAMELESS:
            raise
        _sweep(folder)
        draft = f"{_DRAFT}{os.urandom(16).hex()}"
        fd = os.open(draft, _DRAFT_FLAGS, 0o666, dir_fd=folder)
        with suppress(OSError):  # a file system without locks: others may not sweep there either
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield fd, draft
    finally:
        if draft is not None:
            with suppress(OSError):
                os.unlink(draft, dir_fd=folder)
        os.close(fd)


def _name(folder: int, draft: str, name: str) -> None:
    """Give a draft its name, unless something has it."""
    from podbot import kernel

    source, destination = (folder, os.fsencode(draft)), (folder, os.fsencode(name))
    try:
        kernel.rename(source, destination, kernel.RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)


def _sweep(folder: int) -> None:
    """Remove what others left who died: regular files of ours that nobody has locked."""
    for name in os.listdir(folder):
        if not _A_DRAFT.fullmatch(name):
            continue
        with suppress(OSError):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            try:
                facts = os.fstat(fd)
                is_ours = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
                if is_ours and time.time() - facts.st_mtime > _SURELY_LOCKED:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name, dir_fd=folder)
            finally:
                os.close(fd)
