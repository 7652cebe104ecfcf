"""Files and input that come or go in parts: one being written, one being read, bytes to keep."""

from __future__ import annotations

import errno
import os
import stat
import time

from podbot.sandbox.guest.refusals import Refused, refused
from podbot.sandbox.guest.streams import close_quietly
from podbot.sandbox.guest.wire import MAX_PAYLOAD, READ_SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.sandbox.guest.files import Files
    from podbot.sandbox.guest.wire import Head


SPOOL_LIMIT = 64 * 1024 * 1024
UMASK = 0o022


class Draft:
    """A file being written.

    One that comes in a single request is written in place: renaming over a file makes ext4 write
    to the disk at once, which takes longer than all the rest. A larger one lies beside its place
    until it is whole, and is then renamed into it.
    """

    def __init__(self, files: Files, request: Head, size: int | None) -> None:
        """``size`` is how long the file will be, if that is known."""
        path: str = request["path"]
        self._mode: str = request["mode"]
        self._size = size
        self._path = path
        permissions = request.get("permissions")
        if path.endswith("/"):
            raise Refused("is_directory", f"{path} names a folder")
        above = os.path.dirname(path)
        if above:
            try:
                self._folder, self._name = files.parent(path)
            except Refused as error:
                if error.kind != "not_found":
                    raise
                files.make_folders(above)
                self._folder, self._name = files.parent(path)
        else:
            self._folder, self._name = files.parent(path)
        self._temporary: str | None = None
        try:
            self._fd = self._begin(files, path, permissions)
        except OSError as error:
            os.close(self._folder)
            raise refused(error, path) from error
        except BaseException:
            os.close(self._folder)
            raise

    def _begin(self, files: Files, path: str, permissions: int | None) -> int:
        found: os.stat_result | None
        try:
            found = os.lstat(self._name, dir_fd=self._folder)
        except FileNotFoundError:
            found = None
        if found is not None and stat.S_ISDIR(found.st_mode):
            raise Refused("is_directory", f"{path} is a folder")
        if found is not None and self._mode == "create":
            raise Refused("exists", f"{path} exists already")
        link = found is not None and stat.S_ISLNK(found.st_mode)
        if found is not None and not link and not stat.S_ISREG(found.st_mode):
            raise Refused("not_a_file", f"{path} is not a regular file")
        if self._mode == "append" or link or (found is not None and found.st_nlink > 1):
            # Through the link or into the shared inode: a rename would cut it off.
            how = os.O_APPEND if self._mode == "append" else os.O_TRUNC
            fd = files.open(path, os.O_WRONLY | os.O_CREAT | how)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise Refused("not_a_file", f"{path} is not a regular file")
        elif self._size is not None:
            fd = self._in_place(found, self._size, permissions)
            if found is None and permissions is None:
                return fd
        else:
            self._temporary = f".podbot-{os.getpid()}-{time.monotonic_ns():x}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            if permissions is None and found is not None:
                permissions = stat.S_IMODE(found.st_mode)
            mode = 0o666 if permissions is None else permissions & 0o777
            fd = os.open(self._temporary, flags, mode, dir_fd=self._folder)
            if permissions == mode & ~UMASK:
                return fd  # as it was opened
        if permissions is not None:
            os.fchmod(fd, permissions & 0o7777)
        return fd

    def _in_place(self, found: os.stat_result | None, size: int, permissions: int | None) -> int:
        if found is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            mode = 0o666 if permissions is None else permissions & 0o777
            return os.open(self._name, flags, mode, dir_fd=self._folder)
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self._name, flags, dir_fd=self._folder)
        try:
            if size > found.st_size:
                os.posix_fallocate(fd, 0, size)  # a full disk is met before a byte changes
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                os.close(fd)
                raise
        return fd

    def write(self, data: bytes) -> None:
        """Add bytes."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise refused(error, self._path) from error

    def finish(self) -> None:
        """Put it in its place."""
        try:
            if self._size is not None and self._mode != "append":
                os.ftruncate(self._fd, self._size)
            if self._temporary is not None:
                if self._mode == "create":
                    os.link(
                        self._temporary,
                        self._name,
                        src_dir_fd=self._folder,
                        dst_dir_fd=self._folder,
                        follow_symlinks=False,
                    )
                    os.unlink(self._temporary, dir_fd=self._folder)
                else:
                    os.replace(
                        self._temporary,
                        self._name,
                        src_dir_fd=self._folder,
                        dst_dir_fd=self._folder,
                    )
                self._temporary = None
        except OSError as error:
            raise refused(error, self._path) from error
        finally:
            self.close()

    def close(self) -> None:
        """Let go; what is not finished is thrown away."""
        if self._temporary is not None:
            try:
                os.unlink(self._temporary, dir_fd=self._folder)
            except OSError:
                pass  # its folder went meanwhile
            self._temporary = None
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self._folder)
            self._fd = -1


class Reading:
    """A large file being read in parts."""

    def __init__(self, fd: int, offset: int) -> None:
        self._fd, self._offset = fd, offset

    def read(self, size: int) -> bytes:
        """The next bytes."""
        data = os.pread(self._fd, min(size, MAX_PAYLOAD), self._offset)
        self._offset += len(data)
        return data

    def read_on(self, size: int) -> bytes:
        """As much as there is, up to a size."""
        parts = []
        while size > 0:
            part = self.read(min(size, READ_SIZE))
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Let go."""
        close_quietly(self._fd)


class Spool:
    """Bytes for a later request that are too many for one frame."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        """Add bytes."""
        if len(self.data) + len(data) > SPOOL_LIMIT:
            raise Refused("too_large", f"more than {SPOOL_LIMIT} bytes of input")
        self.data += data

    def close(self) -> None:
        """Nothing to let go of."""
