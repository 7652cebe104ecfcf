"""Removing layers: out of sight first, then for good, whatever modes are found in them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from podbot.sandbox.layers import first_index
from podbot.sandbox.layers._files import DISCARDED, META, TRASH
from podbot.sandbox.layers._root import entries


def remove(path: Path) -> None:
    """Remove a tree of ours, whatever modes overlay or a guest left in it."""
    from podbot.sandbox.guest.trees import remove_tree  # mostly not needed

    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(folder, path.name)
    except FileNotFoundError:
        pass
    except PermissionError:
        if not _removed_by_podman(path):
            raise
    finally:
        os.close(folder)


def _removed_by_podman(path: Path) -> bool:
    """Remove what an overlay of rootless Podman left: some of it belongs to ids that the user has
    from the system, and that only programs like Podman can act as."""
    import shutil
    import subprocess

    podman = shutil.which("podman")
    if os.geteuid() == 0 or podman is None:
        return False
    command = [podman, "unshare", "rm", "-rf", "--", os.fspath(path)]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def unmake(path: Path, targets: int) -> None:
    """Remove a layer that nothing was written to: by name, as descriptors may have run out."""
    with contextlib.suppress(OSError):
        os.unlink(path / META)
    for index in range(targets):
        with contextlib.suppress(OSError):
            os.unlink(first_index.file(path, index))
    parts = [*map(str, range(targets)), "home"]
    for name in (f"{part}.{kind}" for part in parts for kind in ("upper", "work")):
        with contextlib.suppress(OSError):
            os.rmdir(path / name)
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError:
        remove(path)


def scrap(path: Path) -> None:
    """Remove a layer, which is out of sight before the first of it goes: nobody takes what a kill
    leaves of it for whole."""
    remove(path if path.name.startswith(TRASH) else throw_away(path))


def put_away_before() -> dict[str, Path]:
    """What is left of layers whose discarding was cut short, by the id they had."""
    return {
        entry.name.removeprefix(TRASH): entry
        for entry in entries()
        if entry.name.startswith(TRASH) and (entry / DISCARDED).exists()
    }


def throw_away(path: Path) -> Path:
    """Take a layer out of sight at once; gives where it waits to be removed."""
    trash = path.parent / f"{TRASH}{path.name}"
    with contextlib.suppress(FileNotFoundError):  # a sweep found it first: nobody lived in it
        os.rename(path, trash)
    return trash
