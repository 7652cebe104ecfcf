"""Host files that a workspace starts with: which ones, and how they are copied.

The person who builds a section names them; what lies below is not trusted. Folders are walked by
descriptor, links are left out unless asked for and never lead out of the allowed roots, and what
goes over a budget is an error before anything is in its place. Every failure is a
`ToolValidationError`. Nothing here writes to the host outside of the folder it is given.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from podbot.changes.tree import Tree
from podbot.errors import Kind, ToolValidationError
from podbot.runtime.given import expect, expect_each
from podbot.sandbox.guest.globs import Glob
from podbot.sandbox.guest.refusals import Refused
from podbot.tools.paths import VfsPath, check_segments, normalize_string_path
from podbot.visible import visible

MAX_FILES = 100_000
"""The most files all mounts of a section may bring."""
MAX_DEPTH = 64
"""How deep the folders of a mount may nest."""
PREVIEW_ENTRIES = 20
"""How many files of each mount the prompt shows."""
CHUNK = 1024 * 1024

HostPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class HostMount:
    """A host file or folder that is copied into the workspace before anything runs there.

    - ``host_path``: absolute, or relative to one of the allowed roots.
    - ``mount_path``: where it goes; default its own name, ``"/"`` is the workspace itself.
    - ``include_glob``: only files that match one of these; ``exclude_glob``: none of those. As in
      the ``glob`` tool: ``*`` stays inside a folder, ``**`` crosses any number of them. A folder
      that is excluded goes with all in it.
    - ``max_bytes``: the most this mount may bring, 0 is nothing; default no limit.
    - ``follow_symlinks``: copy what links lead to, as long as it lies in an allowed root. Without
      it links are left out. A link that the globs leave out by its name may lead anywhere.
    """

    host_path: HostPath
    mount_path: VfsPath | str | None = None
    include_glob: tuple[str, ...] = ()
    exclude_glob: tuple[str, ...] = ()
    max_bytes: int | None = None
    follow_symlinks: bool = False


@dataclass(frozen=True, slots=True)
class MountedFile:
    """One file of a mount: its place in the workspace, and where it is read from."""

    path: VfsPath
    size: int
    mode: int
    mtime_ns: int
    tree: Tree = field(repr=False, compare=False)
    name: str

    def parts(self, limit: int) -> Iterator[bytes]:
        """Its bytes, ``limit`` and one more at most: a file may grow while it is read."""
        left = limit + 1
        try:
            with self.tree.open(self.name) as file:
                while left > 0 and (part := file.read(min(CHUNK, left))):
                    left -= len(part)
                    yield part
        except OSError as error:
            raise _unreadable(Path(self.tree.path, self.name), error) from error


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount whose paths were found and allowed."""

    given: HostMount
    host: Path
    at: VfsPath
    roots: tuple[Path, ...]
    include: tuple[Glob, ...] = field(repr=False)
    exclude: tuple[Glob, ...] = field(repr=False)

    def files(self) -> Iterator[MountedFile]:
        """The files it brings, by path. Use each before asking for the next."""
        left = self.given.max_bytes
        try:
            for found in _Walk(self).files():
                if left is not None:
                    left -= found.size
                    if left < 0:
                        raise self.too_large()
                yield found
        except OSError as error:
            raise _unreadable(self.host, error) from error

    def wants(self, names: tuple[str, ...]) -> bool:
        """Whether the globs let a file through."""
        path = "/".join(names)
        if self.include and not any(glob.matches(path) for glob in self.include):
            return False
        return not self.excludes(names)

    def excludes(self, names: tuple[str, ...]) -> bool:
        """Whether a file, or a folder with all in it, is left out by name."""
        path = "/".join(names)
        return any(glob.matches(path) for glob in self.exclude)

    def looks_below(self, names: tuple[str, ...]) -> bool:
        """Whether the globs may let something through that lies in a folder."""
        if self.excludes(names):
            return False
        return not self.include or any(_leads_on(glob, names) for glob in self.include)

    def too_large(self) -> ToolValidationError:
        """The error for a mount over its budget."""
        return ToolValidationError(
            f"the mount {_shown(self.host)} holds more than its {self.given.max_bytes} bytes",
            kind=Kind.TOO_LARGE,
            remedy="raise max_bytes, or narrow it by include_glob and exclude_glob",
        )


def normalize_host_root(root: HostPath) -> Path:
    """An allowed root as an absolute folder without links, or `ToolValidationError`."""
    expect(root, (str, os.PathLike), "an allowed host root", ToolValidationError)
    path = os.path.expanduser(os.fspath(root))
    try:
        real = os.path.realpath(path, strict=True)
        if not path or not stat.S_ISDIR(os.stat(real).st_mode):
            raise NotADirectoryError(20, "not a folder")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ToolValidationError(
            f"the allowed host root {_shown(path)} cannot be used: {reason}",
            kind=Kind.TARGET_REFUSED,
            remedy="name a folder that exists",
        ) from None
    return Path(real)


def normalize_host_roots(roots: Sequence[HostPath]) -> tuple[Path, ...]:
    """Every allowed root, as `normalize_host_root` has it."""
    if isinstance(roots, str | os.PathLike):  # of which each letter would be a root, "/" first
        raise ToolValidationError(
            "allowed_host_roots must be a list of folders, not one",
            remedy=f"write allowed_host_roots=({_shown(os.fspath(roots))!r},)",
        )
    expected = expect_each(roots, object, "allowed_host_roots", ToolValidationError)
    return tuple(normalize_host_root(cast("HostPath", root)) for root in expected)


def resolve(mounts: Sequence[HostMount], roots: Sequence[HostPath]) -> tuple[Mount, ...]:
    """Find every mount and check that it may be read."""
    if isinstance(mounts, HostMount):
        raise ToolValidationError(
            "mounts must be a list of mounts, not one", remedy="write mounts=(HostMount(...),)"
        )
    if not mounts:
        return ()
    mounts = expect_each(mounts, HostMount, "mounts", ToolValidationError)
    allowed = normalize_host_roots(roots)
    if not allowed:
        raise ToolValidationError(
            "there are mounts, but no host root is allowed",
            kind=Kind.PERMISSION,
            remedy="name the folders they may come from in allowed_host_roots",
        )
    return tuple(_resolved(mount, allowed) for mount in mounts)


def is_inside(path: Path, roots: Sequence[Path]) -> bool:
    """Whether a path without links lies in one of these folders, or is one."""
    return any(path == root or root in path.parents for root in roots)


def _resolved(mount: HostMount, roots: tuple[Path, ...]) -> Mount:
    expect(mount.host_path, (str, os.PathLike), "host_path of a mount", ToolValidationError)
    given = os.path.expanduser(os.fspath(mount.host_path))
    if mount.max_bytes is not None:
        expect(mount.max_bytes, int, f"max_bytes of the mount {_shown(given)}", ToolValidationError)
    if mount.max_bytes is not None and mount.max_bytes < 0:
        raise ToolValidationError(
            f"the mount {_shown(given)} has max_bytes={mount.max_bytes}",
            kind=Kind.INVALID,
            remedy="give a number of bytes from zero up, or None for no limit",
        )
    host = _found(given, roots)
    if not is_inside(host, roots):
        raise ToolValidationError(
            f"the mount {_shown(given)} leads to {_shown(host)}, outside of the allowed roots",
            kind=Kind.PATH_ESCAPE,
            remedy="add a folder that holds it to allowed_host_roots",
        )
    return Mount(
        mount, host, _place(mount, given), roots, _globs(mount, "include"), _globs(mount, "exclude")
    )


def _found(given: str, roots: tuple[Path, ...]) -> Path:
    """Where a mount really is: below the first root that has it, if it is relative."""
    places = [given] if os.path.isabs(given) else [os.path.join(root, given) for root in roots]
    for place in places if given else ():
        try:
            return Path(os.path.realpath(place, strict=True))
        except (OSError, ValueError):
            continue
    raise ToolValidationError(
        f"the mount {_shown(given)} does not exist",
        kind=Kind.NOT_FOUND,
        remedy="give host_path as an absolute path, or relative to one of allowed_host_roots",
    )


def _place(mount: HostMount, given: str) -> VfsPath:
    if isinstance(mount.mount_path, VfsPath):
        check_segments(mount.mount_path.segments, "mount_path")
        return mount.mount_path
    if mount.mount_path is not None:
        return normalize_string_path(mount.mount_path, field="mount_path")
    name = os.path.basename(os.path.normpath(given))
    if name in ("", ".", ".."):
        return VfsPath()
    check_segments((name,), "the mount's own name, as no mount_path is given,")
    return VfsPath((name,))


def _globs(mount: HostMount, which: str) -> tuple[Glob, ...]:
    patterns: Sequence[str] = getattr(mount, f"{which}_glob")
    if isinstance(patterns, str):
        raise ToolValidationError(
            f"{which}_glob must be a tuple of patterns, not one string",
            kind=Kind.INVALID,
            remedy=f"write {which}_glob=({patterns!r},)",
        )
    try:
        return tuple(Glob(pattern) for pattern in patterns)
    except Refused as error:
        raise ToolValidationError(
            f"{which}_glob: {error.message}",
            kind=Kind.BAD_PATTERN,
            remedy="use a pattern without '..', such as **/*.py",
        ) from None


def _leads_on(glob: Glob, names: tuple[str, ...]) -> bool:
    """Whether anything below these names could match."""
    state = glob.start
    for name in names:
        state = glob.step(state, name)
    return glob.leads_on(state)


class _Walk:
    """Finds the files of one mount, holding each folder by descriptor."""

    def __init__(self, mount: Mount):
        self._mount = mount
        self._count = 0

    def files(self) -> Iterator[MountedFile]:
        host = self._mount.host
        if stat.S_ISDIR(os.lstat(host).st_mode):
            yield from self._tree(host, (), (host,))
            return
        with Tree(host.parent) as tree:
            facts = tree.facts(host.name)
            if facts is None or not stat.S_ISREG(facts.st_mode):
                raise _unreadable(host, OSError(22, "neither a file nor a folder"))
            if self._mount.wants((host.name,)):
                # ``mount_path`` names the file itself, unless it is the workspace.
                names = (host.name,) if self._mount.at.is_root else ()
                yield self._one(tree, host.name, names, facts)

    def _tree(
        self, at: Path, below: tuple[str, ...], above: tuple[Path, ...]
    ) -> Iterator[MountedFile]:
        """Files of a real folder. ``below``: its names in the mount; ``above``: how it was met."""
        with Tree(at) as tree:
            yield from self._folder(tree, "", below, above)

    def _folder(
        self, tree: Tree, path: str, below: tuple[str, ...], above: tuple[Path, ...]
    ) -> Iterator[MountedFile]:
        if len(below) > MAX_DEPTH:
            raise _unreadable(above[-1], OSError(40, "its folders nest too deep"))
        for name in sorted(tree.names(path)):
            inside = f"{path}/{name}" if path else name
            names = (*below, name)
            facts = tree.facts(inside)
            if facts is None:
                continue  # gone since it was listed
            if stat.S_ISDIR(facts.st_mode):
                if not self._mount.excludes(names):
                    yield from self._folder(tree, inside, names, above)
            elif stat.S_ISREG(facts.st_mode):
                if self._mount.wants(names):
                    yield self._one(tree, inside, names, facts)
            elif stat.S_ISLNK(facts.st_mode) and self._mount.given.follow_symlinks:
                yield from self._link(Path(tree.path, inside), names, above)

    def _link(
        self, link: Path, names: tuple[str, ...], above: tuple[Path, ...]
    ) -> Iterator[MountedFile]:
        if self._mount.excludes(names):
            return  # wherever it leads
        try:
            real = Path(os.path.realpath(link, strict=True))
            is_folder = stat.S_ISDIR(os.stat(real).st_mode)
        except OSError:
            return  # it dangles, or runs in a circle
        if not (self._mount.looks_below(names) if is_folder else self._mount.wants(names)):
            return
        if not is_inside(real, self._mount.roots):
            raise ToolValidationError(
                f"the link {_shown(link)} leads to {_shown(real)}, outside of the allowed roots",
                kind=Kind.PATH_ESCAPE,
                remedy="leave it out by exclude_glob, or do not follow links",
            )
        facts = os.lstat(real)
        if stat.S_ISDIR(facts.st_mode):
            if not any(real == other or real in other.parents for other in above):
                yield from self._tree(real, names, (*above, real))
        elif stat.S_ISREG(facts.st_mode):
            with Tree(real.parent) as tree:  # no step of this path is a link, or it fails
                yield self._one(tree, real.name, names, facts)

    def _one(
        self, tree: Tree, inside: str, names: tuple[str, ...], facts: os.stat_result
    ) -> MountedFile:
        self._count += 1
        if self._count > MAX_FILES:
            raise ToolValidationError(
                f"the mount {_shown(self._mount.host)} holds more than {MAX_FILES} files",
                kind=Kind.TOO_LARGE,
                remedy="narrow it by include_glob and exclude_glob",
            )
        path = self._mount.at.joined(*names)
        return MountedFile(path, facts.st_size, facts.st_mode, facts.st_mtime_ns, tree, inside)


def _unreadable(host: Path, error: OSError) -> ToolValidationError:
    return ToolValidationError(
        f"the mount {_shown(host)} cannot be read: {error.strerror or error}",
        kind=Kind.IO,
        remedy="check its permissions, or leave out what cannot be read by exclude_glob",
    )


def _shown(path: str | Path) -> str:
    return visible(os.fsencode(path).decode("utf-8", "backslashreplace"))
