"""The disk limit of layers: one thread for all sandboxes, looking about once a second.

No file system the backend can count on has quotas for a folder, so a sandbox may go over its
limit for a moment before it is ended. The guarantees say so.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

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
    global _thread
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_run, name="podbot-disk", daemon=True)
        _thread.start()


def _run() -> None:
    while True:
        started = time.monotonic()
        with _guard:
            if not _watched:
                global _thread
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

    By descriptor, with few of them open: neither depth nor modes hide anything.
    """
    total = 0
    try:
        top = os.open(path, _FOLDER)
    except OSError:
        return 0
    with _Walk(top) as walk:
        while total <= enough and walk.folders:
            for facts in walk.step():
                total += facts.st_blocks * 512
    return total


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Walk:
    """Walks a tree that its owner changes meanwhile and may try to hide."""

    def __init__(self, top: int):
        self.folders: list[tuple[int, str]] = [(top, ".")]
        self._users = {top: 1}  # how many entries of `folders` still need each descriptor

    def __enter__(self) -> _Walk:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._users:
            os.close(fd)

    def step(self) -> list[os.stat_result]:
        """Look into one folder: the facts of its entries."""
        parent, name = self.folders.pop()
        found: list[os.stat_result] = []
        try:
            fd, mode = self._opened(parent, name)
        except OSError:
            self._done_with(parent)
            return found  # gone, or no folder any more
        self._users[fd] = 1
        try:
            for entry in os.listdir(fd):
                with contextlib.suppress(OSError):  # gone since it was listed
                    facts = os.lstat(entry, dir_fd=fd)
                    found.append(facts)
                    if stat.S_ISDIR(facts.st_mode):
                        self.folders.append((fd, entry))
                        self._users[fd] += 1
        except OSError:
            pass
        finally:
            if mode is not None:
                os.fchmod(fd, mode)
            self._done_with(fd)
            self._done_with(parent)
        return found

    def _opened(self, parent: int, name: str) -> tuple[int, int | None]:
        """A folder's descriptor; with its own mode if it had to be lifted for a moment."""
        facts = os.lstat(name, dir_fd=parent)
        mode = stat.S_IMODE(facts.st_mode)
        if not stat.S_ISDIR(facts.st_mode) or mode & 0o500 == 0o500:
            return os.open(name, _FOLDER, dir_fd=parent), None
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            # By way of /proc, because a link may have taken its place.
            os.chmod(f"/proc/self/fd/{handle}", mode | 0o500)
            return os.open(f"/proc/self/fd/{handle}", _FOLDER & ~os.O_NOFOLLOW), mode
        finally:
            os.close(handle)

    def _done_with(self, fd: int) -> None:
        self._users[fd] -= 1
        if not self._users[fd]:
            del self._users[fd]
            os.close(fd)
