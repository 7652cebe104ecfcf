"""The fallback for targets an overlay cannot serve: a whole copy, reflinked where that works.

Used when mounts lie below the target (an overlay would show their empty mount points: half a
view), or when the kernel refuses (the layer or the target on a file system it will not take). The
caller says in the guarantees that it was used.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

from podbot.errors import Kind, LaunchError
from podbot.sandbox import extents
from podbot.sandbox.layers import mounts
from podbot.sandbox.layers.mounts import is_below
from podbot.sandbox.limits import GIB, Limits

DEFAULT_BYTES = 2 * GIB
MAX_ENTRIES = 200_000
_FICLONE = 0x40049409


def needed(targets: tuple[str, ...]) -> str | None:
    """Why these targets must be copied, if we know before trying."""
    for target in targets:
        place = mounts.any_below(target)
        if place is not None:
            return f"{place} is a mount below the target {target}"
    return None


def copy(source: str, destination: Path, limits: Limits, hidden: tuple[str, ...]) -> None:
    """Copy a target into a layer, less what is hidden: links as links, modes and times kept,
    mounts followed."""
    from podbot import kernel

    try:
        # By descriptor: a target swapped for a link since it was checked is not followed.
        root = kernel.open_real(os.fsencode(source), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            place = f"/proc/self/fd/{root}"
            below = tuple(place + path[len(source) :] for path in hidden if is_below(path, source))
            budget = _Budget(source, limits.disk or DEFAULT_BYTES, below)
            _copy_folder(os.fsencode(place), os.fsencode(destination), budget)
        finally:
            os.close(root)
    except OSError as error:
        raise LaunchError(
            f"copying {source} failed: {error}",
            kind=Kind.DISK_FULL if error.errno == errno.ENOSPC else Kind.LAYER_FAILED,
            remedy="free some space, or choose a smaller target",
        ) from None


class _Budget:
    def __init__(self, source: str, limit: int, hidden: tuple[str, ...]):
        self._source, self._limit = source, limit
        self.hidden = {os.fsencode(path) for path in hidden}
        self._bytes = self._entries = 0

    def spend(self, size: int) -> None:
        self._bytes += size
        self._entries += 1
        if self._bytes > self._limit or self._entries > MAX_ENTRIES:
            raise LaunchError(
                f"{self._source} must be copied, as an overlay cannot serve it here, and it is "
                f"larger than {self._limit} bytes or {MAX_ENTRIES} entries",
                kind=Kind.TARGET_TOO_LARGE,
                remedy="choose a smaller target, unmount what lies below it, "
                "or raise Limits(disk=…)",
            )


def _copy_folder(source: bytes, destination: bytes, budget: _Budget) -> None:
    import shutil  # only where copies are made

    os.makedirs(destination, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.path in budget.hidden:
                continue
            target = os.path.join(destination, entry.name)
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                budget.spend(0)
                _copy_folder(entry.path, target, budget)
            elif stat.S_ISLNK(facts.st_mode):
                budget.spend(0)
                os.symlink(os.readlink(entry.path), target)
                shutil.copystat(entry.path, target, follow_symlinks=False)
            elif stat.S_ISREG(facts.st_mode):
                _copy_file(entry.path, target, budget)
            # FIFOs, sockets and devices mean nothing in a copy.
    shutil.copystat(source, destination)


def _copy_file(source: bytes, destination: bytes, budget: _Budget) -> None:
    import shutil

    with open(source, "rb") as reading:
        budget.spend(extents.amount(reading.fileno()))
        with open(destination, "xb") as writing:
            try:
                fcntl.ioctl(writing, _FICLONE, reading.fileno())  # shares blocks on btrfs and xfs
            except OSError:
                extents.copy(reading.fileno(), writing.fileno())
    shutil.copystat(source, destination)
