"""Hiding paths: what a policy hides does not exist inside, whether or not it exists outside yet.

Where an overlay lies over a path's surroundings (a target, the home), a *template* goes between
it and the real folder: a lower layer that holds nothing but whiteouts. It is made once and shared
by all sandboxes, so hiding a hundred paths costs no mount at all, and a secret that appears on
the host later is hidden too. Elsewhere the parent folder gets a read-only overlay of that kind.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import lru_cache
from pathlib import Path

from podbot.errors import Kind, LaunchError
from podbot.frozen import dataclass
from podbot.sandbox import layers
from podbot.sandbox.layers import mounts
from podbot.sandbox.layers.mounts import is_below
from podbot.sandbox.policy import DEFAULT_HIDDEN


@dataclass(frozen=True, slots=True)
class Hiding:
    """How the hidden paths are hidden.

    ``templates``: per overlaid folder, the lower layer that hides beneath it. ``parents``:
    folders outside of every overlay that need a read-only one, with theirs. ``covers``: paths
    that exist where no overlay can be, and what to put over them. ``uncovered``: what does not
    exist there yet, and would be seen if it came to be.
    """

    templates: dict[str, str]
    parents: dict[str, str]
    covers: dict[str, str]
    uncovered: tuple[str, ...]


def arrange(hidden: tuple[str, ...], overlaid: tuple[str, ...], private: tuple[str, ...]) -> Hiding:
    """How to hide these paths, given what is overlaid and what is private anyway."""
    stamps = tuple(_stamp(folder) for folder in _parents(hidden))
    hidden = _with_link_targets(hidden, stamps)
    # Overlays that hold nothing hidden need no template, and would only spoil the caches.
    holding = tuple(point for point in overlaid if _holds(point, hidden))
    below, beside = _sorted(hidden, holding, private)
    parents: dict[str, str] = {}
    covers: dict[str, str] = {}
    uncovered = []
    for parent, names in beside:
        mattering = tuple(name for name in names if _matters(parent, name))
        if not mattering or not os.path.isdir(parent):
            continue
        if parent != "/" and not mounts.any_below(parent):
            parents[parent] = _template(parent, mattering, stamps)
            continue
        # An overlay would hide the mounts below it too: cover one by one what is there.
        for path in (os.path.join(parent, name) for name in mattering):
            if os.path.lexists(path):
                covers[path] = cover_for(path)
            else:
                uncovered.append(path)
    templates = {point: _template(point, names, stamps) for point, names in below}
    return Hiding(templates, parents, covers, tuple(uncovered))


@lru_cache(maxsize=64)
def _holds(folder: str, paths: tuple[str, ...]) -> bool:
    start = f"{folder}/"
    return any(path.startswith(start) for path in paths)


@lru_cache(maxsize=64)
def above_or_at(place: str, paths: tuple[str, ...]) -> str | None:
    """The first of the paths that a place lies in, or is."""
    return next((path for path in paths if f"{place}/".startswith(f"{path}/")), None)


@lru_cache(maxsize=64)
def _folders_over(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Every folder that one of the paths lies in."""
    found = set()
    for path in paths:
        while (path := os.path.dirname(path)) not in found and path != "/":
            found.add(path)
    return tuple(found)


def cover_for(path: str) -> str:
    """Something empty of the same kind, to put over a path."""
    return empty_folder() if os.path.isdir(path) else empty_file()


Groups = tuple[tuple[str, tuple[str, ...]], ...]


@lru_cache(maxsize=64)
def _sorted(
    hidden: tuple[str, ...], overlaid: tuple[str, ...], private: tuple[str, ...]
) -> tuple[Groups, Groups]:
    """Hidden names by the overlay they lie below (the innermost), and by parent elsewhere."""
    points = sorted(overlaid, key=len, reverse=True)
    below: dict[str, list[str]] = {}
    beside: dict[str, list[str]] = {}
    elsewhere = []
    for path in hidden:
        point = next((point for point in points if is_below(path, point)), None)
        if point is not None:
            below.setdefault(point, []).append(_beneath(path, point))
        elif not any(path == folder or is_below(path, folder) for folder in private):
            elsewhere.append(path)
    # The outermost parent serves those below it too: one overlay less for each.
    parents = sorted({os.path.dirname(other) for other in elsewhere} - {"/"}, key=len)
    for path in elsewhere:
        parent = next((p for p in parents if is_below(path, p)), "/")
        beside.setdefault(parent, []).append(_beneath(path, parent))
    return (
        tuple((point, tuple(sorted(names))) for point, names in below.items()),
        tuple((parent, tuple(sorted(names))) for parent, names in beside.items()),
    )


def _beneath(path: str, folder: str) -> str:
    """The rest of a path below a folder; both are absolute and plain."""
    return path[len(folder.rstrip("/")) + 1 :]


def _matters(parent: str, name: str) -> bool:
    """Whether the caller could ever read this: file modes hide the rest without our help."""
    if os.geteuid() == 0 or os.path.join(parent, name) not in DEFAULT_HIDDEN:
        return True
    return os.access(os.path.join(parent, name), os.R_OK) or os.access(parent, os.W_OK)


@lru_cache(maxsize=64)
def _folders_above(names: tuple[str, ...]) -> tuple[str, ...]:
    """Every folder on the way to the names, outermost first; "" is the point itself."""
    found = {""}
    for name in names:
        parts = name.split("/")
        found.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    return tuple(sorted(found))


Stamps = tuple[tuple[int, int] | None, ...]


@lru_cache(maxsize=64)
def _parents(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({os.path.dirname(path) for path in paths}))


def _stamp(folder: str) -> tuple[int, int] | None:
    """Changes whenever an entry of a folder comes or goes, or its mode changes."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


@lru_cache(maxsize=64)
def _with_link_targets(hidden: tuple[str, ...], _stamps: Stamps) -> tuple[str, ...]:
    """A secret that is a link is hidden where it points to as well."""
    linked = [folder for folder in _folders_over(hidden) if os.path.islink(folder)]
    pointed = {
        os.path.realpath(path)
        for path in hidden
        if os.path.islink(path) or any(is_below(path, folder) for folder in linked)
    }
    return tuple(sorted({*hidden, *pointed})) if pointed else hidden


_Key = tuple[str, tuple[str, ...], tuple[int | None, ...]]


def _template(point: str, names: tuple[str, ...], stamps: Stamps) -> str:
    """The folder of whiteouts for these names, made if it is not there yet."""
    path = _template_of(str(layers.root()), point, names, stamps)
    if not os.path.isdir(path):
        _template_of.cache_clear()
        path = _template_of(str(layers.root()), point, names, stamps)
    return path


@lru_cache(maxsize=256)
def _template_of(_root: str, point: str, names: tuple[str, ...], _stamps: Stamps) -> str:
    folders = _folders_above(names)
    modes = tuple(_folder_mode(os.path.join(point, folder)) for folder in folders)
    return _find_or_make((point, names, modes), dict(zip(folders, modes, strict=True)))


def _folder_mode(path: str) -> int | None:
    """The permissions of a real folder, None for anything else or nothing."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return None
    return stat.S_IMODE(mode) if stat.S_ISDIR(mode) else None


def _digest(data: bytes) -> str:
    try:
        from _blake2 import blake2b  # what hashlib has too, after loading all of OpenSSL
    except ImportError:
        from hashlib import blake2b
    return blake2b(data, digest_size=16).hexdigest()


def _find_or_make(key: _Key, modes: dict[str, int | None]) -> str:
    digest = _digest(repr(key).encode("utf-8", "surrogateescape"))
    path = layers.root() / "templates" / digest
    if path.is_dir():
        return str(path)
    _, names, _ = key
    leaves = set()
    for name in names:
        # A name whose folder does not exist hides that folder: the first missing step.
        parts, depth = name.split("/"), 1
        while depth < len(parts) and modes["/".join(parts[:depth])] is not None:
            depth += 1
        leaves.add("/".join(parts[:depth]))
    leaves = {leaf for leaf in leaves if not any(is_below(leaf, other) for other in leaves)}
    there = {folder: mode for folder, mode in modes.items() if mode is not None}
    needed = {folder for leaf in leaves for folder in _folders_above((leaf,))}
    _make(path, leaves, {folder: mode for folder, mode in there.items() if folder in needed})
    return str(path)


def empty_folder() -> str:
    """A folder with nothing in it, to cover others with."""
    path = layers.root() / "templates" / "empty"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return str(path)


def empty_file() -> str:
    """A file with nothing in it that nobody may read, to cover others with."""
    path = layers.root() / "templates" / "nothing"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o000)
    return str(path)


def _make(path: Path, leaves: set[str], modes: dict[str, int]) -> None:
    """Build beside its place and rename: another process may be doing the same."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    from tempfile import mkdtemp  # needed once in the life of a template

    draft = Path(mkdtemp(dir=path.parent))
    try:
        for folder in sorted(modes):
            (draft / folder).mkdir(exist_ok=True)
        for leaf in leaves:
            # A whiteout: the one device node that needs no privilege.
            os.mknod(draft / leaf, stat.S_IFCHR | 0o600, os.makedev(0, 0))
        for folder in sorted(modes, reverse=True):
            os.chmod(draft / folder, modes[folder])
    except OSError as error:
        layers.remove(draft)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
            raise
        raise LaunchError(
            f"the file system of {path.parent} cannot hold layers: {error.strerror}",
            kind=Kind.LAYER_FAILED,
            remedy=f"set {layers.ROOT_VARIABLE} to a folder on a local disk or a volume "
            "(inside a container the root file system will not do)",
        ) from None
    try:
        os.rename(draft, path)
    except OSError:
        layers.remove(draft)  # another one was first
        if not path.is_dir():
            raise
