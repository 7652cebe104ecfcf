"""What the kernel offers and Python does not: opening beneath a folder, and taking in orphans."""

from __future__ import annotations

import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from typing import Any


class _Libc:
    """prctl and openat2, loaded when first needed."""

    _ctypes: Any

    def __init__(self) -> None:
        self._libc: ctypes.CDLL | None = None
        self.has_openat2 = True

    def load(self) -> ctypes.CDLL:
        """The library itself; what forks guests does this once for all of them."""
        if self._libc is None:
            import ctypes

            self._ctypes = ctypes
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._libc.syscall.restype = ctypes.c_long
        return self._libc

    def become_subreaper(self) -> None:
        """Orphans below this process come to it instead of to the host's init."""
        self.load().prctl(36, self._ctypes.c_ulong(1), 0, 0, 0)

    def die_with_parent(self, wanted: bool) -> None:
        """Whether the kernel kills this process when its parent ends."""
        self.load().prctl(1, self._ctypes.c_ulong(9 if wanted else 0), 0, 0, 0)

    def openat2(self, dir_fd: int, path: str, flags: int, mode: int) -> int:
        """Open beneath a folder: no `..`, link or magic link leads out of it."""
        libc = self.load()
        beneath_no_magiclinks = 0x08 | 0x02
        how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, beneath_no_magiclinks)
        for _ in range(100):
            fd: int = libc.syscall(
                self._ctypes.c_long(437),
                dir_fd,
                os.fsencode(path),
                how,
                self._ctypes.c_size_t(len(how)),
            )
            if fd >= 0:
                return fd
            number = self._ctypes.get_errno()
            if number != errno.EAGAIN:  # a rename raced with `..`: the kernel says try again
                break
        raise OSError(number, os.strerror(number), path)


LIBC = _Libc()


def open_beneath(dir_fd: int, path: str, flags: int, mode: int) -> int:
    """Open ``path`` below ``dir_fd``, never outside of it."""
    if LIBC.has_openat2:
        try:
            # openat2 refuses a mode on a call that cannot create.
            return LIBC.openat2(dir_fd, path, flags, mode if flags & os.O_CREAT else 0)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
            if error.errno == errno.EPERM and _openat2_works(dir_fd):
                raise
            LIBC.has_openat2 = False
    # An old kernel, or a filter that forbids the call: walk, and follow no link at all.
    here = os.dup(dir_fd)
    try:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        if not parts:
            return os.open(".", flags, mode, dir_fd=here)
        for part in parts[:-1]:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        return os.open(parts[-1], flags | os.O_NOFOLLOW, mode, dir_fd=here)
    finally:
        os.close(here)


def _openat2_works(dir_fd: int) -> bool:
    try:
        os.close(LIBC.openat2(dir_fd, ".", os.O_PATH, 0))
    except OSError:
        return False
    return True
