"""Git data outside of the targets: a worktree's, a submodule's, that of a repository around."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from podbot.sandbox.layers.mounts import is_below
from podbot.sandbox.overlay.shared import PRIVATE

ACROSS = "GIT_DISCOVERY_ACROSS_FILESYSTEM"
"""What has git look for its data above a folder where something is mounted, as a target is."""


def around(target: str, targets: tuple[str, ...]) -> str | None:
    """The repository that a target lies in, if its data is outside of every target."""
    if os.path.lexists(f"{target}/.git"):
        return None
    folder = target
    while folder != "/":
        folder = os.path.dirname(folder)
        if os.path.isfile(f"{folder}/.git") or os.path.isfile(f"{folder}/.git/HEAD"):
            inside = any(folder == other or is_below(folder, other) for other in targets)
            return None if inside else folder
    return None


def outside(target: str, targets: tuple[str, ...]) -> str | None:
    """Where the git data of a target is, if outside of every target."""
    pointer = Path(target) / ".git"
    try:
        if pointer.is_symlink():
            place = str(pointer.resolve())
        elif pointer.is_file():
            text = _read(pointer)
            if not text.startswith("gitdir:"):
                return None
            place = str((Path(target) / text[len("gitdir:") :].strip()).resolve())
        else:
            return None
    except (OSError, RuntimeError, ValueError):
        return None
    inside = any(place == other or is_below(place, other) for other in targets)
    return None if inside else place


def covered(place: str) -> bool:
    """Whether a private folder of the sandbox lies over it."""
    return any(is_below(place, folder) for folder in PRIVATE)


def repository(place: str, target: str) -> str | None:
    """The repository to show for a worktree, if it names the target as a worktree of its own.

    The pointer in the target is content and may be hostile: it alone must not decide what of a
    covered folder is shown.
    """
    data = Path(place)
    try:
        back = _read(data / "gitdir").strip()
        common = os.path.realpath(data / _read(data / "commondir").strip())
        if os.path.realpath(os.path.dirname(data / back)) != target:
            return None
        is_whole = os.path.isfile(f"{common}/HEAD") and os.path.isdir(f"{common}/objects")
    except (OSError, ValueError):
        return None
    return common if is_whole and is_below(place, common) and covered(common) else None


def _read(path: Path) -> str:
    # Which file this is may be somebody else's word: what waits for a writer is not waited for.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(fd, encoding="utf-8", errors="surrogateescape") as file:
        return file.read(4096) if stat.S_ISREG(os.fstat(fd).st_mode) else ""
