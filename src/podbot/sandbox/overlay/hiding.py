"""Hiding paths: what a policy hides does not exist inside, whether or not it exists outside yet.

Where an overlay lies over a path's surroundings (a target, the home), a *template* goes between
it and the real folder: a lower layer that holds nothing but whiteouts. It is made once and shared
by all sandboxes, so hiding a hundred paths costs no mount at all, and a secret that appears on
the host later is hidden too. Elsewhere the parent folder gets a read-only overlay of that kind.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from podbot.sandbox.overlay import layers


@dataclass(frozen=True, slots=True)
class Hiding:
    """How the hidden paths are hidden.

    ``templates``: per overlaid folder, the lower layer that hides beneath it. ``parents``:
    folders outside of every overlay that need a read-only one, with theirs.
    """

    templates: dict[str, str]
    parents: dict[str, str]
    uncovered: tuple[str, ...]


def is_below(path: str, folder: str) -> bool:
    """Whether a path lies strictly below a folder."""
    return path.startswith(folder.rstrip("/") + "/")


def arrange(hidden: Iterable[str], overlaid: Iterable[str], private: Iterable[str]) -> Hiding:
    """Sort the hidden paths by what can hide them; nested overlays take the innermost."""
    points = sorted(overlaid, key=len, reverse=True)
    below: dict[str, set[str]] = {}
    beside: dict[str, set[str]] = {}
    uncovered = []
    for path in hidden:
        point = next((point for point in points if is_below(path, point)), None)
        if point is not None:
            below.setdefault(point, set()).add(os.path.relpath(path, point))
        elif not any(path == folder or is_below(path, folder) for folder in private):
            parent = os.path.dirname(path)
            if parent == "/" or not os.path.isdir(parent):
                if os.path.lexists(path):
                    uncovered.append(path)
            elif _matters(path, parent):
                beside.setdefault(parent, set()).add(os.path.basename(path))
    return Hiding(
        {point: _template(point, names) for point, names in below.items()},
        {parent: _template(parent, names) for parent, names in beside.items()},
        tuple(uncovered),
    )


def _matters(path: str, parent: str) -> bool:
    """Whether the caller could ever read this: file modes hide the rest without our help."""
    return os.geteuid() == 0 or os.access(path, os.R_OK) or os.access(parent, os.W_OK)


def _template(point: str, names: set[str]) -> str:
    """The folder of whiteouts for these names, made if it is not there yet.

    A name whose parent does not exist hides that parent: the first missing step is whited out.
    """
    leaves = set()
    for name in names:
        parts = name.split("/")
        depth = 1
        while depth < len(parts) and _is_folder(point, parts[:depth]):
            depth += 1
        leaves.add("/".join(parts[:depth]))
    leaves = {leaf for leaf in leaves if not any(is_below(leaf, other) for other in leaves)}
    folders = sorted({folder for leaf in leaves for folder in _above(leaf)})
    modes = [stat.S_IMODE(os.stat(os.path.join(point, folder)).st_mode) for folder in ("", *folders)]
    key = repr((point, sorted(leaves), modes)).encode("utf-8", "surrogateescape")
    store = layers.root() / "templates"
    path = store / hashlib.sha256(key).hexdigest()[:32]
    if not path.is_dir():
        _make(path, leaves, dict(zip(("", *folders), modes, strict=True)))
    return str(path)


def _is_folder(point: str, parts: list[str]) -> bool:
    path = os.path.join(point, *parts)
    return os.path.isdir(path) and not os.path.islink(path)


def _above(leaf: str) -> list[str]:
    parts = leaf.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _make(path: Path, leaves: set[str], modes: dict[str, int]) -> None:
    """Build beside its place and rename: another process may be doing the same."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=path.parent))
    for folder in modes:
        (draft / folder).mkdir(exist_ok=True)
    for leaf in leaves:
        # A whiteout: the one device node that needs no privilege.
        os.mknod(draft / leaf, stat.S_IFCHR | 0o600, os.makedev(0, 0))
    for folder in sorted(modes, reverse=True):
        os.chmod(draft / folder, modes[folder])
    try:
        os.rename(draft, path)
    except OSError:
        layers.remove(draft)  # another one was first
        if not path.is_dir():
            raise
