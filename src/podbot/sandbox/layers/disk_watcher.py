"""The disk limit of layers, and the thread that looks after it for all sandboxes once a second.

No file system the backend can count on has quotas for a folder, so a sandbox may go over its
limit for a moment before it is ended. The guarantees say so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

INTERVAL = 1.0
NAME_BYTES = 1024
"""What an entry and its inode are taken to need, about what file systems spend on them."""


class Watcher:
    """Measures something of a sandbox again and again; calls ``end`` once it is over ``limit``.

    ``measure`` is told how much is enough to know.
    """

    def __init__(self, limit: int, measure: Callable[[int], int], end: Callable[[], None]):
        self.limit, self._measure, self._end = limit, measure, end
        self.tripped = False
        with _guard:
            _watched.append(self)
            _ensure_thread()

    def stop(self) -> None:
        """No more of it."""
        with _guard:
            if self in _watched:
                _watched.remove(self)

    def check(self) -> None:
        """Measure once."""
        if self._measure(self.limit) > self.limit:
            self.tripped = True
            self.stop()
            self._end()


class DiskWatcher(Watcher):
    """Minds how many bytes one layer holds."""

    def __init__(self, path: Path, limit: int, end: Callable[[], None]):
        super().__init__(limit, lambda enough: usage(path, enough), end)


_watched: list[Watcher] = []
_guard = threading.Lock()
_thread: threading.Thread | None = None


def _ensure_thread() -> None:
    global _thread  # noqa: PLW0603 - one a process
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_run, name="podbot-watcher", daemon=True)
        _thread.start()


def _run() -> None:
    while True:
        started = time.monotonic()
        with _guard:
            if not _watched:
                global _thread  # noqa: PLW0603 - one a process
                _thread = None
                return
            now = list(_watched)
        for watcher in now:
            watcher.check()
        # Never spend more than a tenth of a core on looking.
        time.sleep(max(INTERVAL, 9 * (time.monotonic() - started)))


def _forget_in_child() -> None:
    global _guard, _thread
    _guard, _thread = threading.Lock(), None
    _watched.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def usage(path: Path, enough: int) -> int:
    """Bytes on disk below a layer, links not followed; stops counting past ``enough``.

    Each name costs `NAME_BYTES` besides what it holds: a million empty files fill a disk, too.

    What runs inside cannot hide anything: folders it made unreadable are read all the same, and
    a tree that still cannot be looked into counts as too much.
    """
    total = 0
    try:
        top = os.open(path, _FOLDER)
    except OSError:
        return 0
    folders = ["."]
    try:
        while folders and total <= enough:
            folder = folders.pop()
            try:
                with _reading(top, folder) as fd:
                    for entry in os.listdir(fd):
                        if folder == "." and entry.endswith(".work"):
                            continue  # the kernel's own, and unreadable on purpose
                        with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                            facts = os.lstat(entry, dir_fd=fd)
                            total += facts.st_blocks * 512 + NAME_BYTES
                            if stat.S_ISDIR(facts.st_mode):
                                folders.append(f"{folder}/{entry}")
            except OSError as error:
                if error.errno in (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM):
                    return enough + 1
                # else it is gone, or no folder any more
    finally:
        os.close(top)
    return total


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_STEPS = 200


@contextlib.contextmanager
def _reading(top: int, folder: str) -> Iterator[int]:
    """A folder's descriptor; modes in the way, its own or above it, are lifted for that long."""
    with contextlib.ExitStack() as cleaning:
        fd = _open_plainly(top, folder)
        if fd is None:
            fd = _open_lifted(top, folder, cleaning)
        cleaning.callback(os.close, fd)
        yield fd


def _open_plainly(top: int, folder: str) -> int | None:
    from podbot.sandbox.guest.syscalls import open_beneath  # few sandboxes are watched

    try:
        fd = open_beneath(top, folder, _FOLDER, 0)
    except PermissionError:
        return None
    if os.access(".", os.X_OK, dir_fd=fd):
        return fd
    os.close(fd)
    return None


def _open_lifted(top: int, folder: str, cleaning: contextlib.ExitStack) -> int:
    """Step by step and by descriptor, so that no link leads us to anything of the host's."""
    steps = folder.split("/")
    if len(steps) > MOST_STEPS:
        raise OSError(errno.ENAMETOOLONG, "closed folders too deep to be opened")
    handle = top
    for name in steps:
        handle = os.open(name, _HANDLE, dir_fd=handle)
        cleaning.callback(os.close, handle)
        itself = f"/proc/self/fd/{handle}"
        mode = stat.S_IMODE(os.stat(itself).st_mode)
        if mode & 0o500 != 0o500:
            os.chmod(itself, mode | 0o500)
            cleaning.callback(os.chmod, itself, mode)
    return os.open(f"/proc/self/fd/{handle}", _FOLDER & ~os.O_NOFOLLOW)
