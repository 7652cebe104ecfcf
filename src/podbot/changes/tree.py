"""A folder held by descriptor: whatever lies beneath is reached without following a link.

Both sides of a change set are read through this, and apply and undo write through it. A path is
walked by the kernel in one call that refuses links and every way out (openat2), so a link that is
swapped in meanwhile makes the call fail instead of leading elsewhere. A folder that was handed out
stays open for as long as someone holds it: what is kept of it can never come to mean another one.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections import OrderedDict
from typing import BinaryIO, Self

from podbot import kernel
from podbot.changes.model import State

MAX_FOLDERS = 64
"""How many folders a tree holds open for whoever asks next."""

LONGEST = 4000
"""The longest path, in bytes, that is handed to the kernel at once; its limit is 4096."""

OVERLAY_PREFIX = "user.overlay."
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ_QUIETLY = _READ | os.O_NOATIME  # noting the time of the first read costs more than the read


class Held(int):
    """A descriptor that is closed once nobody holds it any more, and never before.

    The kernel gives the number of a closed descriptor to the next file that is opened, so whoever
    keeps a bare number keeps, in the end, another file. This one cannot be outlived: keep it (in a
    `Spot`, a variable, a `Place`) for as long as you use it, and do not make a plain number of it.
    """

    __slots__ = ()

    def __del__(self) -> None:
        os.close(self)


class Place(str):
    """A path by descriptor, for calls that take no descriptors; it holds the folder it leads by."""

    __slots__ = ("_holds",)
    _holds: int

    def __new__(cls, fd: int, below: str = "") -> Self:
        place = super().__new__(cls, f"/proc/self/fd/{fd}{below}")
        place._holds = fd
        return place


class Tree:
    """One folder and all below it. Paths are relative, "" is the folder itself.

    Of a tree that is closed nothing can be asked any more (`ValueError`).
    """

    def __init__(self, path: str | os.PathLike[str]):
        """Hold a folder; no step of its path may be a link (`OSError` else)."""
        self.path = os.fspath(path)
        self._open: OrderedDict[str, Held] = OrderedDict()
        try:
            fd = kernel.open_real(os.fsencode(self.path), _FOLDER)
        except kernel.KernelError as error:  # which says the name of the call
            number = error.errno or 0
            raise OSError(number, os.strerror(number), self.path) from None
        self._held: Held | None = Held(fd)
        self._last: tuple[str, Held] = "", self._held  # the folder that was asked for last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of everything; what someone still holds is closed when he lets go of it."""
        self._open.clear()
        self._held = None
        del self._last

    def forget(self) -> None:
        """Let go of the folders beneath, as after they were renamed or replaced."""
        self._last = "", self._root
        self._open.clear()

    @property
    def _root(self) -> Held:
        if self._held is None:
            raise ValueError(f"the tree {self.path} is closed")
        return self._held

    def folder(self, path: str) -> Held:
        """A descriptor of a folder beneath, open for as long as it is held."""
        if self._held is None or not path:
            return self._root
        last, fd = self._last
        if path == last:
            return fd
        known = self._open.get(path)
        if known is not None:
            self._open.move_to_end(path)
            fd = known
        else:
            fd = self._reach(path)
            while len(self._open) >= MAX_FOLDERS:
                self._open.popitem(last=False)
            self._open[path] = fd
        self._last = path, fd
        return fd

    def _reach(self, path: str) -> Held:
        """Open a folder beneath; one too far down for a single call in several."""
        name = os.fsencode(path)
        above = self._root
        if len(name) < LONGEST:
            return Held(kernel.open_beneath(above, name, _FOLDER))
        steps = name.split(b"/")
        while steps:
            count, size = 0, 0
            while count < len(steps) and (size := size + len(steps[count]) + 1) < LONGEST:
                count += 1
            above = Held(kernel.open_beneath(above, b"/".join(steps[:count]), _FOLDER))
            steps = steps[count:]
        return above

    def parent(self, path: str) -> tuple[Held, str]:
        """The folder a path lies in, and its name there; the path may not be empty."""
        above, _, name = path.rpartition("/")
        return self.folder(above), name

    def facts(self, path: str) -> os.stat_result | None:
        """What `lstat` says of a path, None if nothing is there or its folder is not a folder.

        A link is not one, wherever it leads: below it there is nothing.
        """
        try:
            if not path:
                return os.fstat(self._root)
            above, _, name = path.rpartition("/")
            return os.stat(name, dir_fd=self.folder(above), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
            raise

    def state(self, path: str) -> State | None:
        """All that is kept of a path, None if nothing is there."""
        facts = self.facts(path)
        return None if facts is None else self.state_of(path, facts)

    def state_of(self, path: str, facts: os.stat_result) -> State:
        """The same for a path whose `lstat` is known."""
        link = None
        if stat.S_ISLNK(facts.st_mode):
            folder, name = self.parent(path)
            link = os.readlink(name, dir_fd=folder)
        return State.of(facts, link, self.xattrs(path))

    def names(self, path: str) -> list[str]:
        """What is in a folder, unsorted."""
        # An O_PATH descriptor cannot be listed; this opens the very same folder again.
        return os.listdir(Place(self.folder(path)))

    def place(self, path: str) -> Place:
        """A path for calls that know no descriptors; only its last step could be a link."""
        if not path:
            return Place(self._root, "/.")
        folder, name = self.parent(path)
        return Place(folder, f"/{name}")

    def xattrs(self, path: str) -> tuple[tuple[str, bytes], ...]:
        """Extended attributes that are the user's, sorted; the overlay's own are left out."""
        place = self.place(path)
        found = []
        try:
            for name in os.listxattr(place, follow_symlinks=False):
                if is_kept_xattr(name):
                    found.append((name, os.getxattr(place, name, follow_symlinks=False)))
        except OSError:
            return ()  # a file system without them, or one we may not read
        return tuple(sorted(found))

    def open(self, path: str) -> BinaryIO:
        """A regular file for reading; `OSError` for anything else, links too."""
        return io.FileIO(self.descriptor(path), "rb")

    def descriptor(self, path: str) -> int:
        """The same as a bare descriptor, the caller's to close."""
        above, _, name = path.rpartition("/")
        folder = self.folder(above)
        try:
            fd = os.open(name, _READ_QUIETLY, dir_fd=folder)
        except PermissionError:  # only the owner may
            fd = os.open(name, _READ, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(f"{path} is not a regular file")
        return fd


def is_kept_xattr(name: str) -> bool:
    """Whether an attribute belongs to the user: not the overlay's, not the security module's."""
    return not name.startswith((OVERLAY_PREFIX, "trusted.", "security.selinux", "security.ima"))
