"""Paths of a sandbox: what they mean, and opening them without leaving its root."""

from __future__ import annotations

import os
import stat

from podbot.sandbox.guest.refusals import Refused, refused
from podbot.sandbox.guest.syscalls import open_beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.sandbox.guest.wire import Head


KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "char",
    stat.S_IFBLK: "block",
}


def describe(path: str, found: os.stat_result, target: str | None) -> Head:
    """One entry as the host wants it."""
    return {
        "path": path,
        "kind": KINDS.get(stat.S_IFMT(found.st_mode), "file"),
        "size": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "mtime_ns": found.st_mtime_ns,
        "link_target": target,
    }


def under(path: str, name: str) -> str:
    """A name below a path, spelled as the caller spelled the path."""
    if path in (".", "./"):
        return name
    return path.rstrip("/") + "/" + name


class Files:
    """Paths of this sandbox. ``confined``: nothing outside the root can be named or reached."""

    def __init__(self, root: str, workdir: str) -> None:
        self.confined = root != "/"
        self._root, self._workdir = root, workdir
        self._root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY) if self.confined else -1

    def _below(self, path: str) -> str:
        """A path relative to the root (confined) or absolute (not)."""
        if not self.confined:
            return path if path.startswith("/") else os.path.join(self._workdir, path)
        if not path.startswith("/"):
            return path
        if path == self._root or path.startswith(self._root + "/"):
            return path[len(self._root) :].lstrip("/") or "."
        raise Refused("path_escape", f"{path} is outside of the working folder {self._root}")

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        """Open by path: never blocks on a FIFO, never takes a terminal, never leaves the root."""
        flags |= os.O_CLOEXEC
        if not flags & os.O_PATH:  # openat2 refuses flags that mean nothing with this one
            flags |= os.O_NONBLOCK | os.O_NOCTTY
        try:
            if self.confined:
                return open_beneath(self._root_fd, self._below(path), flags, mode)
            return os.open(self._below(path), flags, mode)
        except OSError as error:
            raise refused(error, path) from error

    def parent(self, path: str) -> tuple[int, str]:
        """(descriptor of the folder, name in it) for a path that is about to change."""
        below = self._below(path).rstrip("/")
        folder, name = os.path.split(below)
        if name in ("", ".", ".."):
            raise Refused("invalid", f"{path} is the root, or ends in dots")
        folder = folder or ("." if self.confined else "/")
        try:
            if self.confined:
                fd = open_beneath(self._root_fd, folder, os.O_PATH | os.O_DIRECTORY, 0)
            else:
                fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise refused(error, path) from error
        return fd, name

    def regular(self, path: str) -> tuple[int, os.stat_result]:
        """A readable descriptor of a regular file, and its stat."""
        fd = self.open(path, os.O_RDONLY)
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            return fd, found
        os.close(fd)
        if stat.S_ISDIR(found.st_mode):
            raise Refused("is_directory", f"{path} is a folder")
        raise Refused("not_a_file", f"{path} is not a regular file")

    def is_workdir(self, path: str) -> bool:
        """Whether a path names the working folder or one it lies in."""
        here = os.path.normpath(os.path.join(self._workdir, path))
        return here in ("/", self._workdir) or self._workdir.startswith(here + "/")

    def make_folders(self, path: str) -> None:
        """mkdir -p, step by step below the root."""
        missing = []
        while path:
            try:
                os.close(self.open(path, os.O_PATH | os.O_DIRECTORY))
                break
            except Refused as error:
                if error.kind != "not_found":
                    raise
            missing.append(path)
            path = os.path.dirname(path.rstrip("/"))
        for folder in reversed(missing):
            fd, name = self.parent(folder)
            try:
                os.mkdir(name, dir_fd=fd)
            except FileExistsError:
                pass
            except OSError as error:
                raise refused(error, folder) from error
            finally:
                os.close(fd)


def is_folder(folder: int, name: str) -> bool:
    """Whether a name is a folder, or a link to one."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder).st_mode)
    except OSError:
        return False


def is_there(folder: int, name: str) -> bool:
    """Whether there is anything of a name, a link to nothing included."""
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True
