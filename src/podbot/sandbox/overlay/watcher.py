"""The disk limit of layers: one thread for all sandboxes, looking about once a second.

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

from podbot.sandbox import guest

INTERVAL = 1.0


class DiskWatcher:
    """Minds one layer; calls ``end`` once it holds more than ``limit`` bytes."""

    def __init__(self, path: Path, limit: int, end: Callable[[], None]):
        self.path, self.limit, self._end = path, limit, end
        self.tripped = False
        with _guard:
            _watched.append(self)
            _ensure_thread()

    def stop(self) -> None:
        """No more of it."""
        with _guard:
            if self in _watched:
                _watched.remove(self)

    def look(self) -> None:
        """Measure once."""
        if usage(self.path, self.limit) > self.limit:
            self.tripped = True
            self.stop()
            self._end()


_watched: list[DiskWatcher] = []
_guard = threading.Lock()
_thread: threading.Thread | None = None


def _ensure_thread() -> None:
    global _thread  # noqa: PLW0603 - one a process
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_run, name="podbot-disk", daemon=True)
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
            watcher.look()
        # Never spend more than a tenth of a core on looking.
        time.sleep(max(INTERVAL, 9 * (time.monotonic() - started)))


def _forget_in_child() -> None:
    global _guard, _thread
    _guard, _thread = threading.Lock(), None
    _watched.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def usage(path: Path, enough: int) -> int:
    """Bytes on disk below a folder, links not followed; stops counting past ``enough``.

    What runs inside cannot hide anything: a folder it made unreadable is read all the same, and
    a tree too deep to be looked into counts as too much.
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
                        with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                            facts = os.lstat(entry, dir_fd=fd)
                            total += facts.st_blocks * 512
                            if stat.S_ISDIR(facts.st_mode):
                                folders.append(f"{folder}/{entry}")
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    return enough + 1
    finally:
        os.close(top)
    return total


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def _reading(top: int, folder: str) -> Iterator[int]:
    """A folder's descriptor; if its mode is in the way, it is lifted for that long."""
    try:
        fd = guest.open_beneath(top, folder, _FOLDER, 0)
    except PermissionError:
        handle = guest.open_beneath(top, folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, 0)
    else:
        try:
            if os.access(".", os.X_OK, dir_fd=fd):
                yield fd
                return
            handle = os.dup(fd)
        finally:
            os.close(fd)
    # By its descriptor, so that nothing outside of the layer can take its place.
    name = f"/proc/self/fd/{handle}"
    try:
        mode = stat.S_IMODE(os.stat(name).st_mode)
        os.chmod(name, mode | 0o500)
        try:
            fd = os.open(name, _FOLDER & ~os.O_NOFOLLOW)
            try:
                yield fd
            finally:
                os.close(fd)
        finally:
            os.chmod(name, mode)
    finally:
        os.close(handle)
