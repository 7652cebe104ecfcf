"""Making, moving and dressing single things by folder and name: what apply and undo are made of.

Every call names a folder by descriptor and a thing by its name in it, so no link is ever followed.
Nothing here replaces anything: a thing comes where nothing is, or trades places with what is there,
which is then in hand. Knows nothing of plans and journals.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from podbot import kernel
from podbot.changes.model import TYPES, FileType, State
from podbot.changes.tree import Place, is_kept_xattr
from podbot.frozen import replace
from podbot.sandbox import extents

SMALL = 256 * 1024
"""Files up to this size are read and written at once."""
CHUNK = 8 * 1024 * 1024

_FICLONE = 0x40049409
_NOT_HERE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_NO_FAST_COPY = _NOT_HERE | {errno.EXDEV, errno.ENOTTY, errno.EPERM, errno.EBADF}
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


Named = tuple[int, str]
"""A thing by its folder and its name there."""


class SourceChangedError(Exception):
    """What should be copied is no longer what was looked at."""


def facts_of(folder: int, name: str) -> os.stat_result | None:
    """What `lstat` says of a thing, None if it is not there."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


@contextmanager
def handle(folder: int, name: str) -> Iterator[int]:
    """Hold whatever it is, without opening it: a FIFO does not block, nothing is followed."""
    fd = os.open(name, _HANDLE, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def by_handle(fd: int) -> Place:
    """A path to what a handle holds, for calls that take no handles."""
    return Place(fd)


# Names


def put(thing: Named, to: Named) -> None:
    """Rename to a name that must be free (EEXIST else), on the same file system."""
    try:
        kernel.rename(
            (thing[0], os.fsencode(thing[1])),
            (to[0], os.fsencode(to[1])),
            kernel.RENAME_NOREPLACE,
        )
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        _put_slowly(thing, to)


def _put_slowly(thing: Named, to: Named) -> None:
    """For file systems without NOREPLACE: a second name never replaces anything either."""
    there, facts = facts_of(*to), os.stat(thing[1], dir_fd=thing[0], follow_symlinks=False)
    if there is None:
        try:
            os.link(thing[1], to[1], src_dir_fd=thing[0], dst_dir_fd=to[0], follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError:  # a folder, or no links here
            os.rename(thing[1], to[1], src_dir_fd=thing[0], dst_dir_fd=to[0])
            return
    elif (there.st_dev, there.st_ino) != (facts.st_dev, facts.st_ino):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), to[1])
    # Else both are names of it already: an interrupted attempt got this far.
    os.unlink(thing[1], dir_fd=thing[0])


def swap(thing: Named, other: Named) -> None:
    """Let two things in one folder trade places.

    A folder among them must be empty, and may become another.
    """
    try:
        kernel.rename(
            (thing[0], os.fsencode(thing[1])),
            (other[0], os.fsencode(other[1])),
            kernel.RENAME_EXCHANGE,
        )
    except OSError as error:
        # overlayfs says EXDEV for a folder of its lower layer.
        if error.errno not in _NOT_HERE | {errno.EXDEV}:
            raise
        _swap_slowly(thing[0], thing[1], other[1])


def aside(name: str) -> str:
    """Where `swap` leaves a thing for a moment where it cannot do it at once."""
    return f"{name}~"


def _swap_slowly(folder: int, name: str, other: str) -> None:
    facts = os.stat(other, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISDIR(facts.st_mode):
        os.rmdir(other, dir_fd=folder)
        put((folder, name), (folder, other))
        os.mkdir(name, 0o700, dir_fd=folder)
        return
    left, thing = facts_of(folder, aside(name)), facts_of(folder, name)
    if left is not None and left.st_ino in (facts.st_ino, thing and thing.st_ino):
        os.unlink(aside(name), dir_fd=folder)  # a second name, left by an interrupted attempt
    put((folder, other), (folder, aside(name)))
    try:
        put((folder, name), (folder, other))
    except OSError:
        put((folder, aside(name)), (folder, other))
        raise
    put((folder, aside(name)), (folder, name))


def remove(folder: int, name: str) -> None:
    """Remove a thing, a folder only if it is empty; it may be gone already."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        facts = facts_of(folder, name)
        if facts is None or not stat.S_ISDIR(facts.st_mode):
            raise
        os.rmdir(name, dir_fd=folder)


# Things


def make_file(
    to: Named,
    want: State,
    source: BinaryIO | int,
    seen: State | None = None,
    *,
    bare: bool = False,
    durable: bool = False,
) -> os.stat_result:
    """A new file with the bytes of an open one; ``seen`` is what that must be.

    ``bare`` says that new files here have no attributes by themselves, ``durable`` to wait until
    it is on the disk. Gives what `stat` said.
    """
    # Attributes can only be set on a file its owner may write.
    mode = 0o600 if want.xattrs else want.mode & 0o777
    fd = os.open(to[1], _CREATE, mode, dir_fd=to[0])
    try:
        _copy(source, fd, want.size, seen)
        facts = os.fstat(fd)
        dress(fd, facts, want, bare)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    return facts


def make_other(to: Named, want: State) -> None:
    """A new link, FIFO, socket or folder; a folder is its owner's alone until it is dressed."""
    folder, name = to
    if want.type is FileType.LINK:
        os.symlink(want.link or "", name, dir_fd=folder)
        dress_link(folder, name, want)
        return
    if want.type is FileType.FOLDER:
        make_folder(to, want)
        return
    if want.type is FileType.FIFO:
        os.mkfifo(name, 0o600, dir_fd=folder)
    elif want.type is FileType.SOCKET:
        os.mknod(name, stat.S_IFSOCK | 0o600, dir_fd=folder)
    else:
        raise OSError(errno.EOPNOTSUPP, f"a {want.type} cannot be made", name)
    with handle(folder, name) as fd:
        dress(by_handle(fd), os.fstat(fd), want)


def make_folder(to: Named, want: State) -> None:
    """A new folder that its owner may write into, whatever the umask and the folder above say.

    Nobody else may, until it is dressed (see `is_unfinished`); with one exception: who is not in
    the group that a setgid folder hands down loses that bit with every change of mode, so that a
    folder that should have it gets its mode at once.
    """
    folder, name = to
    mode = 0o700
    if want.mode & stat.S_ISGID and os.geteuid() != 0:
        above = os.fstat(folder)
        if above.st_mode & stat.S_ISGID and above.st_gid not in (os.getegid(), *os.getgroups()):
            mode |= want.mode & 0o777
    os.mkdir(name, mode, dir_fd=folder)
    with handle(folder, name) as fd:
        have = os.fstat(fd).st_mode & 0o7777
        if have & 0o700 != 0o700:
            os.chmod(by_handle(fd), have | 0o700)


def is_unfinished(mode: int, want: State) -> bool:
    """Whether a folder may have this mode because it was made and is not dressed yet.

    What it is made in may hand setgid down, and take rights away by its access list.
    """
    return mode & ~(want.mode | stat.S_ISGID | 0o700) == 0 and mode & 0o700 == 0o700


def copy(thing: Named, to: Named, durable: bool = False, mode: int | None = None) -> None:
    """A copy of anything but a folder, with all that is kept of it; ``durable`` as for a file.

    ``mode`` is what the copy shall have, if not what the thing has now.
    """
    folder, name = thing
    with handle(folder, name) as fd:
        facts = os.fstat(fd)
        link = None
        if stat.S_ISLNK(facts.st_mode):
            link = os.readlink(name, dir_fd=folder)
        want = State.of(facts, link, () if link is not None else xattrs(by_handle(fd)))
    if want.type is FileType.FILE:
        want = want if mode is None else replace(want, mode=mode)
        with os.fdopen(_readable(folder, name, facts), "rb", buffering=0) as source:
            make_file(to, want, source, durable=durable)
    elif want.type is FileType.DEVICE:
        os.mknod(to[1], facts.st_mode, facts.st_rdev, dir_fd=to[0])
        with handle(*to) as fd:
            dress(by_handle(fd), os.fstat(fd), want)
    else:
        make_other(to, want)


def _readable(folder: int, name: str, facts: os.stat_result) -> int:
    """An open file; one closed to us, its owner, is opened for a moment to get hold of it."""
    try:
        return os.open(name, _READ, dir_fd=folder)
    except PermissionError:
        if facts.st_uid != os.geteuid():
            raise
    with handle(folder, name) as fd:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        os.chmod(by_handle(fd), mode | stat.S_IRUSR)
        try:
            return os.open(by_handle(fd), _READ & ~os.O_NOFOLLOW)
        finally:
            os.chmod(by_handle(fd), mode)


# Attributes


def dress(place: int | str, have: os.stat_result, want: State, bare: bool = False) -> None:
    """Give an open file, or what a handle holds, its owner, attributes, mode and time.

    ``bare`` says that it has no attributes yet.
    """
    mode = have.st_mode & 0o7777
    if have.st_uid != want.uid or have.st_gid != want.gid:
        _own(place, have, want)
        mode = -1  # a new owner may have cleared bits of it
    if (want.xattrs or not bare) and _set_xattrs(place, have, want):
        mode = -1
    if mode != want.mode:
        os.chmod(place, want.mode)
    set_time(place, have, want.mtime_ns)


def set_time(place: int | str, have: os.stat_result, mtime_ns: int) -> None:
    """Give a thing its time. A folder of someone else keeps its own: only an owner may set it."""
    if have.st_mtime_ns == mtime_ns:
        return
    try:
        os.utime(place, ns=(have.st_atime_ns, mtime_ns))
    except PermissionError:
        if not stat.S_ISDIR(have.st_mode):
            raise


def set_folder_mode(place: int | str, have: os.stat_result, mode: int) -> None:
    """Give a folder its mode back. One of someone else keeps what its owner gave it."""
    if have.st_mode & 0o7777 != mode:
        with suppress(PermissionError):
            os.chmod(place, mode)


def dress_link(folder: int, name: str, want: State) -> None:
    """The same for a symbolic link, which has an owner and a time only."""
    have = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if (have.st_uid, have.st_gid) != (want.uid, want.gid):
        with suppress(PermissionError):  # only root gives things away
            os.chown(name, want.uid, want.gid, dir_fd=folder, follow_symlinks=False)
    times = (have.st_atime_ns, want.mtime_ns)
    os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)


def _own(place: int | str, have: os.stat_result, want: State) -> None:
    for uid, gid in ((want.uid, want.gid), (-1, want.gid)):
        try:
            os.chown(place, uid, gid)
        except PermissionError:
            continue  # only root gives things away, and a user only to groups of his
        return


def _set_xattrs(place: int | str, have: os.stat_result, want: State) -> bool:
    """Whether anything had to be done."""
    found = dict(xattrs(place))
    wanted = dict(want.xattrs)
    if found == wanted:
        return False
    if not have.st_mode & stat.S_IWUSR:
        os.chmod(place, stat.S_IMODE(have.st_mode) | stat.S_IWUSR)
    for name in found.keys() - wanted.keys():
        os.removexattr(place, name)
    for name, value in wanted.items():
        if found.get(name) != value:
            try:
                os.setxattr(place, name, value)
            except OSError as error:
                # A file system without them; or one that only root may set.
                if error.errno not in (errno.EOPNOTSUPP, errno.EPERM):
                    raise
    return True


def xattrs(place: int | str) -> tuple[tuple[str, bytes], ...]:
    """The user's extended attributes of an open file or of what a handle holds."""
    try:
        return tuple(
            sorted(
                (name, os.getxattr(place, name))
                for name in os.listxattr(place)
                if is_kept_xattr(name)
            )
        )
    except OSError:
        return ()  # a file system without them


def default_acl(folder: int) -> bool:
    """Whether files get attributes by being made in this folder."""
    try:
        os.getxattr(by_handle(folder), "system.posix_acl_default")
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.EOPNOTSUPP)
    return True


# Bytes


def _copy(source: BinaryIO | int, to: int, size: int, seen: State | None) -> None:
    if isinstance(source, int):
        fd = source
    else:
        try:
            fd = source.fileno()
        except OSError:  # not a file on disk
            _copy_stream(source, to, size)
            return
    if size <= SMALL:
        data = os.read(fd, size)
        written = os.write(to, data) if data else 0
        if written < size:
            _write(to, data[written:])
            _copy_range(fd, to, size - len(data))
    else:
        check_source(fd, seen)
        _copy_large(fd, to, size)
    check_source(fd, seen)  # afterwards: whatever it was before, this is what was copied


def check_source(fd: int, seen: State | None) -> None:
    """Raise `SourceChangedError` unless an open file is what was looked at."""
    if seen is None:
        return
    facts = os.fstat(fd)
    if (
        facts.st_ino != seen.inode
        or facts.st_dev != seen.device
        or facts.st_size != seen.size
        or facts.st_mtime_ns != seen.mtime_ns
        # A file closed to its owner must be opened for a moment to be read, which moves its ctime.
        or (facts.st_ctime_ns != seen.ctime_ns and seen.mode & stat.S_IRUSR)
    ):
        raise SourceChangedError


def _copy_stream(source: BinaryIO, to: int, size: int) -> None:
    left = size
    while left:
        data = source.read(min(left, CHUNK))
        if not data:
            raise SourceChangedError
        left -= len(data)
        _write(to, data)


def _copy_large(fd: int, to: int, size: int) -> None:
    """Share the blocks if the file system can, else copy what is data and leave the holes."""
    try:
        fcntl.ioctl(to, _FICLONE, fd)
    except OSError as error:
        if error.errno not in _NO_FAST_COPY:
            raise
    else:
        if os.fstat(to).st_size != size:
            raise SourceChangedError
        return
    for start, end in extents.data(fd, size):
        os.lseek(fd, start, os.SEEK_SET)
        os.lseek(to, start, os.SEEK_SET)
        _copy_range(fd, to, end - start)
    os.ftruncate(to, size)


def _copy_range(fd: int, to: int, left: int) -> None:
    """Copy so many bytes from where both files stand."""
    in_kernel = left > SMALL
    while left:
        if in_kernel:
            try:
                count = os.copy_file_range(fd, to, min(left, 1 << 30))
            except OSError as error:
                if error.errno not in _NO_FAST_COPY:
                    raise
                count = 0
            in_kernel = count > 0
            left -= count
            continue
        data = os.read(fd, min(left, CHUNK))
        if not data:
            raise SourceChangedError
        left -= len(data)
        _write(to, data)


def _write(to: int, data: bytes) -> None:
    written = os.write(to, data)
    while written < len(data):
        written += os.write(to, memoryview(data)[written:])


def type_of(facts: os.stat_result) -> FileType:
    """What kind of thing a `lstat` tells of."""
    return TYPES[stat.S_IFMT(facts.st_mode)]


def is_same_object(facts: os.stat_result, state: State) -> bool:
    """Whether it is the same file or folder, whatever became of it."""
    return facts.st_ino == state.inode and facts.st_dev == state.device


def is_same(facts: os.stat_result, state: State | None) -> bool:
    """The same object, with the same size, mode, owner and time of change."""
    return (
        state is not None
        and facts.st_ino == state.inode
        and facts.st_dev == state.device
        and facts.st_mtime_ns == state.mtime_ns
        and facts.st_size == state.size
        and facts.st_mode & 0o7777 == state.mode
        and facts.st_uid == state.uid
        and facts.st_gid == state.gid
    )
