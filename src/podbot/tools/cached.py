"""The folders in the cache that hold the workspaces of container sections: whose they are.

Each section that uses a folder leaves a mark beside the workspace, where nothing in the container
can reach it: the process that it belongs to, told apart from every other, and whether the files
are to be kept. It takes the mark away when it ends, so a mark of a process that is gone tells of a
crash. `sweep` removes what such a crash left; it never touches a folder without a mark, one that
may be in use, or files that were to be kept.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from podbot.config import variables
from podbot.engine import labels
from podbot.errors import ConfigError, Kind, PodbotError, SandboxError
from podbot.frozen import dataclass
from podbot.sandbox import layers

WORKSPACE_NAME = "workspace"
METADATA_NAME = ".wink-metadata"
OWNERS_NAME = "owners"

KEEP, REMOVE = "keep", "remove"
LONGEST_MARK = 400
TRIES = 10


@dataclass(frozen=True, slots=True)
class SweptWorkspaces:
    """Folders of dead sessions, by path: removed, kept for their files, in use, or stuck."""

    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    failed: tuple[tuple[str, PodbotError], ...] = ()


@dataclass(frozen=True, slots=True)
class _Mark:
    path: Path
    alive: bool
    unwanted: bool


def root() -> Path:
    """Where such folders lie: ``$PODBOT_CACHE``, else ``~/.cache/podbot/podman``."""
    said = variables.CACHE.read()
    if said is None:
        return Path(os.path.expanduser("~"), ".cache", "podbot", "podman")
    if not os.path.isabs(said):
        raise ConfigError(
            f"{variables.CACHE.name}={said} is not an absolute path",
            remedy="start it with /",
            field=variables.CACHE.name,
        )
    return Path(said)


def claim(folder: Path, *, keep: bool) -> Path:
    """Make a folder ours, if it is not there make it first; gives the mark.

    `OSError` if it cannot be made, or is not a folder of this user's.
    """
    for _ in range(TRIES):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = os.lstat(folder)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
            raise OSError(1, "it is not a folder of yours")
        with suppress(FileNotFoundError), _locked(folder) as fd:
            # A sweep may have removed it before we had the lock.
            if not os.path.samestat(os.fstat(fd), os.lstat(folder)):
                continue
            if facts.st_mode & 0o077:
                os.chmod(folder, 0o700)
            _forget_dead(folder)
            return _marked(folder, keep)
    raise OSError(16, "somebody keeps removing it")


def finish(mark: Path, *, keep: bool) -> None:
    """Whoever made this mark has done; the folder goes too, if nobody else uses it or wants it."""
    folder = mark.parents[2]
    with suppress(FileNotFoundError), _locked(folder):
        _forget_dead(folder)
        mark.unlink()
        if not _marks(folder) and (not keep or is_empty(folder / WORKSPACE_NAME)):
            remove(folder)


def sweep(dry_run: bool = False) -> SweptWorkspaces:
    """Remove the folders that a crash left, unless they hold files that were to be kept."""
    removed: list[str] = []
    kept: list[str] = []
    live: list[str] = []
    failed: list[tuple[str, PodbotError]] = []
    try:
        folders = sorted(root().iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return SweptWorkspaces()
    except ConfigError as error:
        return SweptWorkspaces(failed=((variables.CACHE.name, error),))
    except OSError as error:
        return SweptWorkspaces(failed=((str(root()), _stuck(root(), error)),))
    for folder in folders:
        try:
            if os.lstat(folder).st_uid != os.getuid():
                continue
            with _locked(folder, at_once=True):
                fate = _fate(folder)
                if fate == "removed" and not dry_run:
                    remove(folder)
        except BlockingIOError:
            fate = "live"  # somebody is filling it
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failed.append((str(folder), _stuck(folder, error)))
            continue
        {"removed": removed, "kept": kept, "live": live}.get(fate, []).append(str(folder))
    return SweptWorkspaces(tuple(removed), tuple(kept), tuple(live), tuple(failed))


def remove(path: Path) -> None:
    """Remove a file, or a folder with whatever was made in it, if it is there."""
    with suppress(FileNotFoundError):
        layers.remove(path)


def is_empty(folder: Path) -> bool:
    """Whether nothing is in a folder, or there is none. One that cannot be looked at is not."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _fate(folder: Path) -> str:
    """What becomes of a folder; nothing if it is not podbot's."""
    marks = _marks(folder)
    if not marks:
        return ""
    if any(mark.alive for mark in marks):
        return "live"
    wanted = any(not mark.unwanted for mark in marks)
    return "kept" if wanted and not is_empty(folder / WORKSPACE_NAME) else "removed"


def _marked(folder: Path, keep: bool) -> Path:
    owners = folder / METADATA_NAME / OWNERS_NAME
    owners.mkdir(mode=0o700, parents=True, exist_ok=True)
    mark = owners / os.urandom(8).hex()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(mark, flags, 0o600), "w", encoding="ascii") as file:
        file.write(f"{labels.owner_label()}\n{KEEP if keep else REMOVE}\n")
    return mark


def _marks(folder: Path) -> list[_Mark]:
    """The marks in a folder; half a mark is of one that may live."""
    owners = folder / METADATA_NAME / OWNERS_NAME
    found = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(owners.iterdir()):
            with suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                with open(fd, encoding="ascii", errors="replace") as file:
                    label, _, fate = file.read(LONGEST_MARK).partition("\n")
                found.append(_Mark(path, labels.owner_alive(label), fate.strip() == REMOVE))
    return found


def _forget_dead(folder: Path) -> None:
    """Whoever uses a folder after a crash decides about it: what the dead wanted counts no more."""
    for mark in _marks(folder):
        if not mark.alive:
            mark.path.unlink()


@contextmanager
def _locked(folder: Path, *, at_once: bool = False) -> Iterator[int]:
    """One process at a time fills, marks or removes a folder."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(folder, flags)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (fcntl.LOCK_NB if at_once else 0))
        yield fd
    finally:
        os.close(fd)


def _stuck(folder: Path, error: OSError) -> SandboxError:
    return SandboxError(
        f"{folder} could not be removed: {error.strerror or error}",
        kind=Kind.IO,
        remedy="files of a container's own ids go with: podman unshare rm -rf FOLDER",
    )
