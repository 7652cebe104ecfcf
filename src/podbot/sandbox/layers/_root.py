"""Where layers lie: a folder of the user's own, outside of all that a sandbox may cover.

An ordinary user's lies in /var/tmp, where anybody may take its name first. Then another is made
beside it, with a name that nobody can foresee, and the state folder remembers it: what is kept
there is found again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from podbot.config import places
from podbot.errors import Kind, LaunchError, PodbotError
from podbot.sandbox.layers._files import NAME

ROOT_VARIABLE = "PODBOT_LAYERS"
SHARED = "/var/tmp"  # noqa: S108 - what is there is checked to be ours
REMEMBERED = "layers-at"
MOST_TRIES = 10


def root() -> Path:
    """The folder that holds this user's layers; made, and checked to be ours alone.

    ``$PODBOT_LAYERS``, else ``/var/lib/podbot/layers`` for root, else ``/var/tmp/podbot-UID``:
    outside of every home, because a layer may not lie below what it covers. Where a stranger has
    taken the last one, another beside it.
    """
    return checked_root(os.environ.get(ROOT_VARIABLE), os.getuid())


def place() -> Path:
    """Where the layer folder is, whether or not it exists."""
    return chosen(os.environ.get(ROOT_VARIABLE), os.getuid())


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


def chosen(name: str | None, uid: int) -> Path:
    """Where it is to be, whether or not it exists; ``name`` is what the user asked for."""
    if not name:
        return Path("/var/lib/podbot/layers") if uid == 0 else _in_shared(uid)
    if not os.path.isabs(name):
        raise LaunchError(
            f"{ROOT_VARIABLE}={name} is not an absolute path",
            kind=Kind.LAYER_FAILED,
            remedy="start it with /",
        )
    return Path(name)


def _in_shared(uid: int) -> Path:
    usual = f"{SHARED}/podbot-{uid}"
    memory = places.state_place() / REMEMBERED
    noted = _noted(memory, usual)
    found = noted or usual
    for _ in range(MOST_TRIES):
        if not _is_taken(found, uid):
            return Path(found)
        with _remembering(found):
            _note(memory, f"{usual}-{os.urandom(8).hex()}", instead_of=noted)
            noted = _noted(memory, usual)
        found = noted or usual
    raise _taken(found)


def _is_taken(path: str, uid: int) -> bool:
    """Whether something else is there: a stranger's, or what a stranger linked to of ours."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return found.st_uid != uid or not stat.S_ISDIR(found.st_mode)


def _noted(memory: Path, usual: str) -> str | None:
    """The place that was chosen before, if one was."""
    try:
        path = memory.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    suffix = path.removeprefix(f"{usual}-")
    return path if suffix != path and suffix.isalnum() else None


def _note(memory: Path, path: str, instead_of: str | None) -> None:
    """Remember a place, unless another process was first."""
    draft = places.state_folder() / f"{REMEMBERED}.{os.urandom(8).hex()}"
    draft.write_text(path, encoding="ascii")
    try:
        if instead_of is not None:  # that one was taken in turn
            os.replace(draft, memory)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(draft, memory)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def _remembering(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, PodbotError):
        raise _taken(path) from None


def _taken(path: str) -> LaunchError:
    return LaunchError(
        f"the layer folder {path} belongs to another user, and no other place can be remembered",
        kind=Kind.LAYER_FAILED,
        remedy=f"set {ROOT_VARIABLE} to a folder you own on a local disk",
    )


@lru_cache(maxsize=8)
def checked_root(name: str | None, uid: int) -> Path:
    """The folder, made if it was not there, and ours alone."""
    path = chosen(name, uid)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not name and _is_taken(str(path), uid):  # somebody was quicker
            path = chosen(name, uid)
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
