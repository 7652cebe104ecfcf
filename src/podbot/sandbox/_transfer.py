"""Copying files and trees between the host and a sandbox.

Built on the verbs of `ops`, so every backend has it. The guest is hostile: its names are checked,
everything on the host is opened by descriptor without following links, what it sends is counted
rather than believed, and a download that fails leaves nothing behind.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from podbot.errors import FileError, Kind, SandboxError
from podbot.sandbox import ops, wire
from podbot.sandbox.ops import Op
from podbot.sandbox.values import FileInfo, TransferResult
from podbot.visible import visible

MAX_BYTES = ops.DOWNLOAD_LIMIT
MAX_ENTRIES = 200_000
"""The most entries of one tree that `download` takes."""
MAX_DEPTH = 200
"""How deep folders may nest: each level holds a descriptor."""

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class _Tally:
    """What was copied so far, and what was not."""

    files: int = 0
    bytes: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def skip(self, path: str, reason: str) -> None:
        self.skipped.append((path, reason))

    def result(self) -> TransferResult:
        return TransferResult(self.files, self.bytes, tuple(self.skipped))


# In


def upload(source: str | os.PathLike[str], path: str) -> Op[TransferResult]:
    """Copy a host file or folder to ``path`` inside.

    ``source`` itself may be a link, since the caller names it; below it no link is followed.
    """
    tally = _Tally()
    try:
        fd = _open_source(os.fspath(source))
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            yield from _send_folder(fd, path, tally)
        else:
            yield from _send_file(fd, path, tally)
    except OSError as error:
        raise _host_error(error, source) from error
    return tally.result()


def _open_source(source: str) -> int:
    # Looked at before it is opened: opening a device can do something.
    if not _is_copied(os.stat(source).st_mode):
        raise FileError(
            f"{source} is neither a file nor a folder",
            kind=Kind.NOT_A_FILE,
            remedy="upload a regular file or a folder",
        )
    return os.open(source, _READ)


def _is_copied(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


@dataclass(slots=True)
class _Source:
    """A host folder that is being walked."""

    fd: int
    path: str
    shown: str
    names: Iterator[str]


def _send_folder(fd: int, path: str, tally: _Tally) -> Op[None]:
    """Walk a folder without recursion; takes over the descriptor."""
    root = path.rstrip("/") or "/"
    walking = [_Source(fd, root, "", iter(()))]
    try:
        yield from ops.mkdir(root, parents=True, exist_ok=True)
        walking[0].names = iter(sorted(os.listdir(fd)))
        while walking:
            here = walking[-1]
            name = next(here.names, None)
            if name is None:
                os.close(walking.pop().fd)
                continue
            below = yield from _send_entry(here, name, tally)
            if below is not None:
                walking.append(below)
                _check_depth(len(walking) - 1, here.path)
    finally:
        for folder in walking:
            os.close(folder.fd)


def _send_entry(here: _Source, name: str, tally: _Tally) -> Op[_Source | None]:
    """Send one entry; a folder is made inside and given back to be walked."""
    path, shown = f"{here.path.rstrip('/')}/{name}", here.shown + name
    try:
        found = os.stat(name, dir_fd=here.fd, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(name, dir_fd=here.fd)
            yield from _send_link(path, target)
            return None
        if not _is_copied(found.st_mode):
            tally.skip(shown, "not a file, a folder or a link")
            return None
        fd = os.open(name, _READ | os.O_NOFOLLOW, dir_fd=here.fd)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP):
            raise
        tally.skip(shown, os.strerror(error.errno))
        return None
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        try:
            yield from ops.mkdir(path, parents=True, exist_ok=True)
            return _Source(fd, path, f"{shown}/", iter(sorted(os.listdir(fd))))
        except BaseException:
            os.close(fd)
            raise
    yield from _send_file(fd, path, tally)
    return None


def _send_file(fd: int, path: str, tally: _Tally) -> Op[None]:
    """Send one file; takes over the descriptor."""
    try:
        found = os.fstat(fd)
        # A file that grows while it is sent is sent as long as it was; those of /proc say 0.
        parts = _parts(fd, found.st_size or MAX_BYTES)
        size = yield from ops.write_from(path, parts, "replace", found.st_mode & 0o777)
    finally:
        os.close(fd)
    tally.files += 1
    tally.bytes += size


def _parts(fd: int, size: int) -> Iterator[bytes]:
    while size > 0 and (part := os.read(fd, min(size, ops.PART))):
        size -= len(part)
        yield part


def _send_link(path: str, target: str) -> Op[None]:
    try:
        yield from ops.symlink(path, target)
    except FileError as error:
        if error.kind is not Kind.EXISTS:
            raise
        # Sent once before, perhaps: a link replaces whatever is not a filled folder.
        yield from ops.remove(path, recursive=False, missing_ok=True)
        yield from ops.symlink(path, target)


# Out


def download(
    path: str, destination: str | os.PathLike[str], max_bytes: int = MAX_BYTES
) -> Op[TransferResult]:
    """Copy a file or folder from inside to ``destination``, which must not exist."""
    info = yield from ops.stat(path, follow=True)
    folder, name = os.path.split(os.fspath(destination).rstrip("/"))
    if name in ("", ".", ".."):
        raise FileError(
            f"{destination} is not a name to create", kind=Kind.BAD_PATH, remedy="name a new path"
        )
    tally = _Tally()
    try:
        parent = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if info.is_dir:
                yield from _take_tree(path, info, _New(parent, name), tally, max_bytes)
            else:
                yield from _take_single(path, info, _New(parent, name), tally, max_bytes)
        finally:
            os.close(parent)
    except OSError as error:
        raise _host_error(error, destination) from error
    return tally.result()


@dataclass(slots=True)
class _New:
    """A file of the host that is made when its first bytes come."""

    folder: int
    name: str
    mode: int = 0
    fd: int = -1

    def write(self, data: bytes | bytearray) -> None:
        if self.fd < 0:
            # The umask applies, and the bits that give rights away are dropped.
            self.fd = os.open(self.name, _CREATE, self.mode & 0o777, dir_fd=self.folder)
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def _take_single(path: str, info: FileInfo, new: _New, tally: _Tally, max_bytes: int) -> Op[None]:
    if not info.is_file:
        raise FileError(f"{visible(path)} is not a regular file", kind=Kind.NOT_A_FILE)
    new.mode = info.mode
    try:
        yield from _take_file(path, new, tally, max_bytes)
    except BaseException:
        if new.fd >= 0:
            os.unlink(new.name, dir_fd=new.folder)
        raise


def _take_file(path: str, new: _New, tally: _Tally, max_bytes: int) -> Op[None]:
    room = max_bytes - tally.bytes
    try:
        size = yield from ops.read_into(path, new.write, 0, room + 1)
    finally:
        new.close()
    if size > room:
        raise _too_large(max_bytes)
    tally.files += 1
    tally.bytes += size


def _take_tree(path: str, info: FileInfo, new: _New, tally: _Tally, max_bytes: int) -> Op[None]:
    os.mkdir(new.name, _folder_mode(info), dir_fd=new.folder)
    try:
        root = os.open(new.name, _FOLDER, dir_fd=new.folder)
        folders = _Folders(root)
        try:
            yield from _take_entries(path, folders, tally, max_bytes)
        finally:
            folders.close()
    except BaseException:
        import shutil  # only for the clean-up: it costs start-up time

        shutil.rmtree(new.name, dir_fd=new.folder)
        raise


def _take_entries(path: str, folders: _Folders, tally: _Tally, max_bytes: int) -> Op[None]:
    entries = yield from ops.list_(path, recursive=True, max_entries=MAX_ENTRIES)
    if len(entries) > MAX_ENTRIES:
        raise wire.broken("more entries than asked for")
    if sum(entry.size for entry in entries if entry.is_file) > max_bytes:
        raise _too_large(max_bytes)
    links = []
    for entry in entries:
        parts = names_below(path, entry.path)
        shown = "/".join(parts)
        if entry.is_dir:
            _check_depth(len(parts), path)
            _make(folders, parts, entry)
        elif entry.is_file:
            new = _New(folders.at(parts[:-1]), parts[-1], entry.mode)
            try:
                yield from _take_file(entry.path, new, tally, max_bytes)
            except FileError as error:
                # Something inside replaced it between the listing and now.
                if new.fd >= 0 or error.kind not in _CHANGED:
                    raise
                tally.skip(shown, error.kind.value)
        elif entry.kind == "link":
            links.append((parts, entry.link_target or ""))
        else:
            tally.skip(shown, f"a {entry.kind}")
    # Links come last, so that nothing above was ever opened through one.
    for parts, target in links:
        if stays_inside(len(parts) - 1, target):
            os.symlink(target, parts[-1], dir_fd=folders.at(parts[:-1]))
        else:
            tally.skip("/".join(parts), "a link that leads out")


_CHANGED = frozenset(
    {Kind.NOT_FOUND, Kind.NOT_A_FILE, Kind.IS_DIRECTORY, Kind.NOT_DIRECTORY, Kind.PERMISSION}
)


def _make(folders: _Folders, parts: list[str], entry: FileInfo) -> None:
    try:
        os.mkdir(parts[-1], _folder_mode(entry), dir_fd=folders.at(parts[:-1]))
    except FileExistsError:
        raise wire.broken("an entry listed twice") from None


def _folder_mode(info: FileInfo) -> int:
    """As inside, but its owner can always fill and remove it."""
    return (info.mode & 0o777) | 0o700


class _Folders:
    """Descriptors of the folders from the destination down to where we are."""

    def __init__(self, root: int):
        self._names: list[str] = []
        self._fds = [root]

    def at(self, parts: list[str]) -> int:
        """The descriptor of a folder made before; nothing on the way is followed."""
        same = 0
        while same < min(len(parts), len(self._names)) and parts[same] == self._names[same]:
            same += 1
        while len(self._names) > same:
            self._names.pop()
            os.close(self._fds.pop())
        for name in parts[same:]:
            try:
                fd = os.open(name, _FOLDER, dir_fd=self._fds[-1])
            except (FileNotFoundError, NotADirectoryError):
                raise wire.broken("an entry of a folder that was not listed") from None
            self._fds.append(fd)
            self._names.append(name)
        return self._fds[-1]

    def close(self) -> None:
        """Let go of all."""
        for fd in self._fds:
            os.close(fd)


def names_below(root: str, path: str) -> list[str]:
    """The names from the downloaded folder to an entry of it, checked: the guest chose them."""
    prefix = "" if root in (".", "./") else root.rstrip("/") + "/"
    parts = path[len(prefix) :].split("/")
    if not path.startswith(prefix) or any(
        part in ("", ".", "..") or not ops.is_native(part) for part in parts
    ):
        raise wire.broken("an entry whose name is no name")
    return parts


def stays_inside(depth: int, target: str) -> bool:
    """Whether a link ``depth`` folders down stays below the destination, whatever else is there.

    Going up is allowed first and only as far as the top; a ``..`` after a name could turn round
    in another link and leave.
    """
    if not target or target.startswith("/") or not ops.is_native(target):
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    return up <= depth and ".." not in parts[up:]


# Both


def _check_depth(depth: int, path: str) -> None:
    if depth > MAX_DEPTH:
        raise FileError(
            f"{visible(path[:200])}: folders nest deeper than {MAX_DEPTH}",
            kind=Kind.TOO_LARGE,
            remedy="copy a part of the tree, or pack it into an archive first",
        )


def _too_large(max_bytes: int) -> SandboxError:
    return FileError(
        f"more than {max_bytes} bytes to copy",
        kind=Kind.TOO_LARGE,
        remedy="raise max_bytes=, or download a part of it",
    )


_KINDS = {
    errno.ENOENT: Kind.NOT_FOUND,
    errno.EEXIST: Kind.EXISTS,
    errno.ENOTDIR: Kind.NOT_DIRECTORY,
    errno.EACCES: Kind.PERMISSION,
    errno.EPERM: Kind.PERMISSION,
    errno.EROFS: Kind.PERMISSION,
    errno.ENAMETOOLONG: Kind.BAD_PATH,
    errno.ENOSPC: Kind.DISK_FULL,
    errno.EDQUOT: Kind.DISK_FULL,
    errno.EMFILE: Kind.OUT_OF_DESCRIPTORS,
    errno.ENFILE: Kind.OUT_OF_DESCRIPTORS,
}


def _host_error(error: OSError, path: str | os.PathLike[str]) -> SandboxError:
    kind = _KINDS.get(error.errno or 0, Kind.IO)
    remedy = "name a path that does not exist yet" if kind is Kind.EXISTS else None
    return FileError(f"{os.fspath(path)} on the host: {error.strerror}", kind=kind, remedy=remedy)
