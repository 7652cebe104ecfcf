"""The disk limit of layers: one thread for all sandboxes, looking about once a second.

No file system the backend can count on has quotas for a folder, so a sandbox may go over its
limit for a moment before it is ended. The guarantees say so.
"""

from __future__ import annotations

import os
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
    """Bytes on disk below a folder, links not followed; stops counting past ``enough``."""
    total = 0
    folders = [os.fspath(path)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    try:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
                    except OSError:
                        continue  # gone since it was listed
        except OSError:
            continue
        if total > enough:
            break
    return total
