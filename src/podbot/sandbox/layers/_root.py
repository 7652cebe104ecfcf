"""Where layers lie: a folder of the user's own, outside of all that a sandbox may cover."""

from __future__ import annotations

import errno
import os
import stat
from functools import lru_cache
from pathlib import Path

from podbot.errors import Kind, LaunchError
from podbot.sandbox.layers._files import NAME

ROOT_VARIABLE = "PODBOT_LAYERS"


def root() -> Path:
    """The folder that holds this user's layers; made, and checked to be ours alone.

    ``$PODBOT_LAYERS``, else ``/var/lib/podbot/layers`` for root, else ``/var/tmp/podbot-UID``:
    outside of every home, because a layer may not lie below what it covers.
    """
    return checked_root(os.environ.get(ROOT_VARIABLE), os.getuid())


def place() -> Path:
    """Where the layer folder is, whether or not it exists."""
    return _chosen(os.environ.get(ROOT_VARIABLE), os.getuid())


def described() -> str:
    """How messages name the layer folder: as the user did, or else by its path."""
    name = os.environ.get(ROOT_VARIABLE)
    return f"{ROOT_VARIABLE}={name}" if name else f"the layer folder {place()}"


def outside_of(folder: str) -> str:
    """What to do about layers that lie in a folder which is overlaid."""
    return (
        f"set {ROOT_VARIABLE} to a folder of yours outside of {folder}, on a local disk, "
        "mode 0700, such as one below /var/lib or on another disk"
    )


def _chosen(name: str | None, uid: int) -> Path:
    if not name:
        default = "/var/lib/podbot/layers" if uid == 0 else f"/var/tmp/podbot-{uid}"  # noqa: S108 - checked to be ours
        return Path(default)
    if not os.path.isabs(name):
        raise LaunchError(
            f"{ROOT_VARIABLE}={name} is not an absolute path",
            kind=Kind.LAYER_FAILED,
            remedy="start it with /",
        )
    return Path(name)


@lru_cache(maxsize=8)
def checked_root(chosen: str | None, uid: int) -> Path:
    path = _chosen(chosen, uid)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise LaunchError(
            f"the layer folder {path} cannot be made: {error.strerror}",
            kind=Kind.DISK_FULL if error.errno == errno.ENOSPC else Kind.LAYER_FAILED,
            remedy=f"set {ROOT_VARIABLE} to a folder you own on a local disk",
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise LaunchError(
            f"the layer folder {path} is not a folder of yours",
            kind=Kind.LAYER_FAILED,
            remedy=f"remove it, or set {ROOT_VARIABLE} to a folder you own",
        )
    if found.st_mode & 0o077:
        raise LaunchError(
            f"the layer folder {path} is open to others",
            kind=Kind.LAYER_FAILED,
            remedy=f"name a new folder in {ROOT_VARIABLE}, or, if nobody else uses it: "
            f"chmod 700 {path}",
        )
    return path.resolve()


def entries() -> list[Path]:
    """What podbot made in the layer folder. Whatever else lies there is none of our business."""
    if not os.path.lexists(place()):
        return []
    return sorted(
        entry
        for entry in root().iterdir()
        if NAME.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink()
    )
