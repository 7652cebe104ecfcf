"""Putting the members of an archive into the upper layers of a new layer, by descriptor.

Everything is made new (nothing that exists is opened), private until its contents are whole, and
given its owner, mode, attributes and time last. Folders on the way that are no change look like the
host's own, so that only what the archive changes shows as changed. Decides nothing: what may be put
where was checked before.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Self

from podbot.changes.archive._manifest import Entry, NewFacts
from podbot.changes.archive._members import Step
from podbot.changes.archive._tar import OPAQUE, Member, MemberType, bad
from podbot.changes.archive._tar_reading import Reader
from podbot.changes.model import FileType, State
from podbot.changes.tree import Tree
from podbot.sandbox.layers import Layer

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_A_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# These change with the mode or the owner, or change it: they come after both.
_LATE_XATTRS = ("system.posix_acl_access", "system.posix_acl_default", "security.capability")
Xattrs = tuple[tuple[str, bytes], ...]


class Unpacking:
    """A layer that is being filled. Folders get their mode and time at the end, in `finish`."""

    def __init__(self, layer: Layer):
        self._layer = layer
        self._uppers: list[Tree] = []
        self._hosts: list[Tree | None] = []
        self._between: set[tuple[int, str]] = set()
        self._folders: dict[tuple[int, str], tuple[NewFacts, Xattrs] | None] = {}

    def __enter__(self) -> Self:
        for index, target in enumerate(self._layer.targets):
            upper = self._layer.upper(index)
            os.chmod(upper, 0o700)  # it has the mode of the target, which may keep its owner out
            self._uppers.append(Tree(upper))
            try:
                self._hosts.append(Tree(target))
            except OSError:
                self._hosts.append(None)
            self._folders[index, ""] = None
        return self

    def __exit__(self, *_: object) -> None:
        for tree in (*self._uppers, *self._hosts):
            if tree is not None:
                tree.close()

    def expect(self, folders: Iterable[tuple[int, str]]) -> None:
        """Folders that are made when something has to go into them."""
        self._between.update(folders)

    def put(self, step: Step, member: Member | None, reader: Reader) -> None:
        """Put one thing into place, with its data from the archive."""
        self._make_way(step.target, step.path)
        new = None if step.entry is None else step.entry.new
        if member is not None and member.type is MemberType.FOLDER and new is not None:
            self._put_folder(step, new, member.xattrs)
            return
        upper = self._uppers[step.target]
        folder, name = upper.parent(step.path)
        if new is None:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=folder)
        elif member is None or member.type is MemberType.FIFO:
            node = stat.S_IFSOCK if new.type is FileType.SOCKET else stat.S_IFIFO
            os.mknod(name, node | 0o600, dir_fd=folder)
            self._dress_node(folder, name, new)
        elif member.type is MemberType.FILE:
            self._put_file(folder, name, new, member, reader)
        elif member.type is MemberType.LINK:
            os.symlink(member.link, name, dir_fd=folder)
            _own(
                lambda uid, gid: os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False), new
            )
            os.utime(name, ns=_times(new), dir_fd=folder, follow_symlinks=False)
        else:
            self._put_other_name(step)

    def finish(self, times: Mapping[tuple[int, str], Entry]) -> None:
        """Give every folder its mode, owner, attributes and time, the innermost first."""
        for target, path in times:
            host = self._host_state(target, path)
            if host is not None and host.type is FileType.FOLDER:
                self._make_way(target, f"{path}/x")
        for (target, path), facts in reversed(self._folders.items()):
            if facts is None:
                self._dress_like_host(target, path, times.get((target, path)))
            else:
                self._dress_folder(target, path, *facts)

    # Folders

    def _make_way(self, target: int, path: str) -> None:
        missing = []
        above = path
        while above:
            above = above.rpartition("/")[0]
            if (target, above) in self._folders:
                break
            missing.append(above)
        for folder in reversed(missing):
            if (target, folder) not in self._between:
                raise bad("its folder is not there", path)
            self._make_folder(target, folder)
            self._folders[target, folder] = None

    def _make_folder(self, target: int, path: str) -> None:
        folder, name = self._uppers[target].parent(path)
        os.mkdir(name, 0o700, dir_fd=folder)

    def _put_folder(self, step: Step, new: NewFacts, xattrs: Xattrs) -> None:
        if step.path:
            self._make_folder(step.target, step.path)
            if new.opaque:
                place = self._uppers[step.target].place(step.path)
                os.setxattr(place, OPAQUE, b"y", follow_symlinks=False)
        kept = tuple((name, value) for name, value in xattrs if name != OPAQUE)
        _check_xattrs(step.path, kept)
        self._folders[step.target, step.path] = new, kept

    def _dress_folder(self, target: int, path: str, new: NewFacts, xattrs: Xattrs) -> None:
        fd = self._open_folder(target, path)
        try:
            _dress(fd, new, xattrs)
        finally:
            os.close(fd)

    def _dress_like_host(self, target: int, path: str, time: Entry | None) -> None:
        """As the host has it; so does the overlay when something in a folder changes."""
        host = self._host_state(target, path)
        fd = self._open_folder(target, path)
        try:
            if host is not None and host.type is FileType.FOLDER:
                facts = NewFacts(
                    host.type, host.mode, host.uid, host.gid, 0, host.mtime_ns
                )  # fmt: skip
                # An attribute we may not set is one that shows as changed: told, not hidden.
                with suppress(OSError):
                    _dress(fd, facts, host.xattrs)
                os.fchmod(fd, host.mode)
                os.utime(fd, ns=_times(facts))
            else:
                os.fchmod(fd, 0o755)
            if time is not None:
                os.utime(fd, ns=(time.mtime_ns, time.mtime_ns))
        finally:
            os.close(fd)

    def _host_state(self, target: int, path: str) -> State | None:
        tree = self._hosts[target]
        try:
            return tree.state(path) if tree is not None else None
        except OSError:
            return None  # a link on the way, or a folder that is closed to us

    def _open_folder(self, target: int, path: str) -> int:
        if not path:
            return os.open(self._layer.upper(target), _A_FOLDER)
        folder, name = self._uppers[target].parent(path)
        return os.open(name, _A_FOLDER, dir_fd=folder)

    # All else

    def _put_file(
        self, folder: int, name: str, new: NewFacts, member: Member, reader: Reader
    ) -> None:
        _check_xattrs(member.name, member.xattrs)
        fd = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
        try:
            for offset, chunk in reader.chunks(member):
                written = 0
                while written < len(chunk):
                    written += os.pwrite(fd, chunk[written:], offset + written)
            os.ftruncate(fd, member.size)
            _dress(fd, new, member.xattrs)
        finally:
            os.close(fd)

    def _dress_node(self, folder: int, name: str, new: NewFacts) -> None:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            place = f"/proc/self/fd/{fd}"
            _own(lambda uid, gid: os.chown(place, uid, gid), new)
            os.chmod(place, new.mode)
            os.utime(place, ns=_times(new))
        finally:
            os.close(fd)

    def _put_other_name(self, step: Step) -> None:
        assert step.entry is not None and step.entry.source is not None  # noqa: S101 - planned so
        upper = self._uppers[step.target]
        other, first = upper.parent(step.entry.source)
        folder, name = upper.parent(step.path)
        os.link(first, name, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)


def _dress(fd: int, new: NewFacts, xattrs: Xattrs) -> None:
    """Owner, attributes, mode and time, in the order in which none undoes another."""
    _own(lambda uid, gid: os.fchown(fd, uid, gid), new)
    for name, value in xattrs:
        if name not in _LATE_XATTRS:
            os.setxattr(fd, name, value)
    os.fchmod(fd, new.mode)
    for name, value in xattrs:
        if name in _LATE_XATTRS:
            os.setxattr(fd, name, value)
    os.utime(fd, ns=_times(new))


def _own(chown: Callable[[int, int], None], new: NewFacts) -> None:
    """Give it to its owner as far as this user may; else it is this user's own."""
    for uid in (new.uid, -1):
        try:
            chown(uid, new.gid)
            return
        except OSError as error:
            # Not allowed, or an id that does not exist in this user namespace.
            if error.errno not in (errno.EPERM, errno.EINVAL):
                raise


def _times(new: NewFacts) -> tuple[int, int]:
    return new.mtime_ns, new.mtime_ns


def _check_xattrs(path: str, xattrs: Xattrs) -> None:
    """Only attributes that are a user's: the overlay's own would make the layer say more."""
    for name, _ in xattrs:
        is_user = name.startswith("user.") and not name.startswith("user.overlay.")
        if not (is_user or name in _LATE_XATTRS):
            raise bad("it has an attribute that no change has", path)
