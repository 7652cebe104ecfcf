"""The temporary folders of local sections: made, and swept once their process was killed.

They lie wherever a section was told to make them, so each is in a list: a file in the state folder,
written before the folder is made, that names the folder and the process it belongs to. A folder
bears the name of its entry in the list, and is removed for no other. Where the list cannot be kept
a folder is made all the same, and a crash leaves it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from podbot.config import places
from podbot.engine import labels
from podbot.errors import Kind, PodbotError, SandboxError
from podbot.frozen import dataclass
from podbot.tools.cached import SweptWorkspaces, remove

PREFIX = "wink-"
LIST = "workspaces"
LONGEST_ENTRY = 8192
TRIES = 10


@dataclass(frozen=True, slots=True)
class Temporary:
    """A folder that is ours, and its entry in the list if it has one."""

    path: Path
    entry: Path | None


def make(root: Path, session_id: str) -> Temporary:
    """Make a private folder in ``root`` whose name nobody can guess; `OSError` if that fails."""
    for _ in range(TRIES):
        mark = os.urandom(8).hex()
        path = root / f"{PREFIX}{session_id}-{mark}"
        entry = _noted(mark, path)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            _forget(entry)
            continue
        except BaseException:
            _forget(entry)
            raise
        return Temporary(path, entry)
    raise OSError(17, "somebody is always there first")


def end(made: Temporary) -> None:
    """Remove the folder with everything in it; `OSError` if that fails."""
    remove(made.path)
    _forget(made.entry)


def sweep(dry_run: bool = False) -> SweptWorkspaces:
    """Remove the folders whose processes are surely gone."""
    removed: list[str] = []
    live: list[str] = []
    failed: list[tuple[str, PodbotError]] = []
    for entry, owner, path in _entries():
        if labels.owner_alive(owner):
            if _is_ours(path, entry.name):
                live.append(str(path))
            continue
        try:
            if _is_ours(path, entry.name):
                if not dry_run:
                    remove(path)
                removed.append(str(path))
            if not dry_run:
                _forget(entry)
        except OSError as error:
            failed.append((str(path), _stuck(path, error)))
    return SweptWorkspaces(tuple(removed), (), tuple(live), tuple(failed))


def _noted(mark: str, path: Path) -> Path | None:
    """Note in the list what is about to be made."""
    try:
        entry = places.state_folder(LIST) / mark
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(entry, flags, 0o600), "wb") as file:
            file.write(labels.owner_label().encode() + b"\n" + os.fsencode(path))
    except (PodbotError, OSError):
        return None
    return entry


def _entries() -> Iterator[tuple[Path, str, Path]]:
    """Each entry with its owner and its folder; what makes no sense is left alone."""
    try:
        found = sorted((places.state_place() / LIST).iterdir())
    except (PodbotError, OSError):
        return
    for entry in found:
        try:
            fd = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                owner, _, path = file.read(LONGEST_ENTRY).partition(b"\n")
        except OSError:
            continue
        if path.startswith(b"/"):
            yield entry, owner.decode("ascii", "replace"), Path(os.fsdecode(path))


def _is_ours(path: Path, mark: str) -> bool:
    """Whether the folder of an entry is still there, and is that folder."""
    try:
        facts = os.lstat(path)
    except OSError:
        return False
    ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    return ours and path.name.startswith(PREFIX) and path.name.endswith(f"-{mark}")


def _forget(entry: Path | None) -> None:
    if entry is not None:
        with suppress(OSError):
            entry.unlink()


def _stuck(path: Path, error: OSError) -> SandboxError:
    return SandboxError(
        f"{path} could not be removed: {error.strerror or error}",
        kind=Kind.IO,
        remedy=f"remove it by hand: rm -rf {str(path)!r}",
    )
