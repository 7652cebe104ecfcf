"""Whole trees by descriptor: walking and removing them, however deep, links not followed."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Entry = tuple[str, os.stat_result, int]
    """(path below the folder walked, stat, open parent)"""


OPEN_FOLDERS = 64


def remove_tree(folder: int, name: str) -> None:
    """rm -rf by descriptor: follows no link, and neither depth nor modes stop it, nor someone who
    removes some of it at the same time."""
    inside: list[_Removal] = []  # the folders we are in, outermost first
    try:
        if not _unlinked(folder, name):
            inside.append(_Removal(folder, name))
        while inside:
            here = inside[-1]
            if here.entries:
                entry = here.entries[-1]
                below = None
                try:
                    if not _unlinked(here.fd, entry):
                        below = _Removal(here.fd, entry)
                except FileNotFoundError:
                    pass  # somebody else was quicker
                except PermissionError:
                    if _emptied(here.fd, entry):
                        here.entries.pop()
                        continue
                    if here.opened_up:
                        raise
                    here.opened_up = True
                    os.fchmod(here.fd, 0o700)
                    continue
                here.entries.pop()
                if below is not None:
                    inside.append(below)
                    if len(inside) > OPEN_FOLDERS:
                        inside[-1 - OPEN_FOLDERS].let_go()
                continue
            if len(inside) > 1:
                inside[-2].come_back(here.fd)
            inside.pop()
            here.let_go()
            try:
                os.rmdir(here.name, dir_fd=inside[-1].fd if inside else folder)
            except FileNotFoundError:
                pass  # likewise
            except PermissionError:
                if not inside or inside[-1].opened_up:
                    raise
                inside[-1].opened_up = True
                os.fchmod(inside[-1].fd, 0o700)
                os.rmdir(here.name, dir_fd=inside[-1].fd)
    finally:
        for left in inside:
            left.let_go()


def _unlinked(folder: int, name: str) -> bool:
    """Remove anything but a folder; False if it is one."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    except PermissionError:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            raise
        return False
    return True


def _emptied(folder: int, name: str) -> bool:
    """Remove a folder of someone else's that is empty, as an overlay of an engine's leaves one."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        return False
    return True


class _Removal:
    """A folder whose entries are being removed."""

    FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

    def __init__(self, folder: int, name: str) -> None:
        self.name = name
        self.opened_up = False
        try:
            self.fd = os.open(name, self.FLAGS, dir_fd=folder)
        except PermissionError:
            os.chmod(name, 0o700, dir_fd=folder)
            self.fd = os.open(name, self.FLAGS, dir_fd=folder)
        try:
            self._identity = self._identify()
            self.entries = os.listdir(self.fd)
        except BaseException:
            self.let_go()
            raise

    def _identify(self) -> tuple[int, int]:
        found = os.fstat(self.fd)
        return found.st_dev, found.st_ino

    def let_go(self) -> None:
        """Close it; a deep tree must not cost a descriptor for each step down."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def come_back(self, below: int) -> None:
        """Open it again from a folder below, unless that was moved elsewhere meanwhile."""
        if self.fd < 0:
            self.fd = os.open("..", self.FLAGS, dir_fd=below)
            if self._identify() != self._identity:
                raise OSError(errno.EXDEV, "moved while it was removed", self.name)


class _Level:
    """A folder that is being walked; its descriptor may be let go of while we are far below."""

    def __init__(self, fd: int, prefix: str) -> None:
        self.fd, self.prefix = fd, prefix
        facts = os.fstat(fd)
        self._identity = facts.st_dev, facts.st_ino
        with os.scandir(fd) as entries:
            self.names = sorted((entry.name for entry in entries), reverse=True)

    def let_go(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def come_back(self, below: int) -> bool:
        """Have a descriptor again, through the folder below; False if it was moved away."""
        if self.fd < 0:
            self.fd = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=below)
            facts = os.fstat(self.fd)
            return self._identity == (facts.st_dev, facts.st_ino)
        return True


def entries_of(fd: int) -> Iterator[Entry]:
    """(name, stat, the folder) of a folder's entries by name, links not followed."""
    with os.scandir(fd) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        try:
            yield name, os.lstat(name, dir_fd=fd), fd
        except OSError:
            continue  # gone since it was listed


def walk(fd: int) -> Iterator[Entry]:
    """(relative path, stat, open parent) of everything below a folder, links not followed.

    A folder's entries follow it, by name. Neither depth nor the limit on descriptors stops it.
    """
    levels = [_Level(os.dup(fd), "")]
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        while levels:
            here = levels[-1]
            if not here.names:
                if len(levels) > 1 and not levels[-2].come_back(here.fd):
                    return  # someone moved folders about while we were below: this is the end
                levels.pop().let_go()
                continue
            name = here.names.pop()
            try:
                facts = os.lstat(name, dir_fd=here.fd)
            except OSError:
                continue  # gone since it was listed
            yield here.prefix + name, facts, here.fd
            if stat.S_ISDIR(facts.st_mode):
                try:
                    below = os.open(name, flags, dir_fd=here.fd)
                except OSError:
                    continue  # not ours to read, or gone
                levels.append(_Level(below, here.prefix + name + "/"))
                if len(levels) > OPEN_FOLDERS:
                    levels[-1 - OPEN_FOLDERS].let_go()
    finally:
        for level in levels:
            level.let_go()
