"""A folder of root's as nobody sees it: a read-only mount in which root's files are nobody's.

An engine that runs as root maps no ids, and nobody inside is root. So that nobody may work on what
is root's without a copy of it, podbot mounts the folder once more, with root's id and nobody's
trading places (an idmapped mount, Linux 5.19 for overlays), and gives that to the engine as the
lower layer. An overlay keeps what it was mounted from: the mount is there only while a container
starts. It is read-only, so that nothing that goes wrong with it can reach the folder itself. What
a killed podbot leaves lies in its place, and goes with that (`place.sweep`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from podbot.frozen import dataclass
from podbot.sandbox.container._identity import Ids
from podbot.sandbox.container.settings import NOBODY
from podbot.sandbox.layers import copying

UNMOUNTED = ".podbot-is-not-mounted"
"""Lies in the folder beneath the mount: who sees it does not see the mount."""
_REST = 2**32 - 1 - (NOBODY + 1)
_MAP = f"""\
0 {NOBODY} 1
1 1 {NOBODY - 1}
{NOBODY} 0 1
{NOBODY + 1} {NOBODY + 1} {_REST}
"""


class Unmappable(Exception):
    """No such mount can be had; the text says why."""


@dataclass(frozen=True, slots=True)
class View:
    """A folder as nobody sees it: what is shown, and where."""

    source: str
    place: Path

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """Have it mounted for a while; raises `Unmappable`."""
        from podbot import kernel

        try:
            # By descriptor: a folder swapped for a link since it was checked is not followed.
            flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
            folder = kernel.open_real(os.fsencode(self.source), flags)
            try:
                mount = kernel.clone_tree(b"/proc/self/fd/%d" % folder)
            finally:
                os.close(folder)
            try:
                add = kernel.MOUNT_ATTR_IDMAP | kernel.MOUNT_ATTR_RDONLY
                kernel.set_attributes(mount, add, users=_users(os.getpid()))
                self.place.mkdir(mode=0o700, exist_ok=True)
                (self.place / UNMOUNTED).touch(mode=0o600)
                kernel.attach(mount, os.fsencode(self.place))
            finally:
                os.close(mount)
        except OSError as error:
            raise Unmappable(f"root's ids cannot be mapped there: {error.strerror}") from error
        try:
            yield
        finally:
            take_down(self.place)

    def check_owners(self) -> None:
        """See that all in it is root's: others' files would stay theirs, and closed to nobody.

        What is too much to look at is too much to copy as well. Raises `Unmappable`.
        """
        folders, left = [self.source], copying.MAX_ENTRIES
        while folders and left > 0:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    facts = entry.stat(follow_symlinks=False)
                    if facts.st_uid != 0 and not stat.S_ISLNK(facts.st_mode):
                        what = os.path.relpath(entry.path, self.source)
                        raise Unmappable(f"{what} in it is user {facts.st_uid}'s")
                    if stat.S_ISDIR(facts.st_mode):
                        folders.append(entry.path)
                    left -= 1

    def try_overlay(self, upper: Path) -> None:
        """See that the kernel takes it as a lower layer of an overlay; raises `Unmappable`.

        Of one that only reads: taking down another would wait for the disk.
        """
        from podbot import kernel

        with self.mounted():
            try:
                os.close(kernel.new_mount("overlay", {"lowerdir": f"{self.place}:{upper}"}))
            except OSError as error:
                reason = f"no overlay can lie over it with root's ids mapped: {error.strerror}"
                raise Unmappable(reason) from error


def swapped(ids: Ids) -> Ids:
    """The ids that files of these have in the mount."""
    other = {0: NOBODY, NOBODY: 0}
    return other.get(ids[0], ids[0]), other.get(ids[1], ids[1])


def seen_by(pid: int, workspace: str) -> bool:
    """Whether a container's workspace, by its first process, lies over the mount."""
    return not os.path.lexists(f"/proc/{pid}/root{workspace}/{UNMOUNTED}")


def take_down(place: Path) -> None:
    """Take the mount down, if there is one: more than one, if a start was cut short."""
    from podbot import kernel

    with contextlib.suppress(OSError):  # EINVAL: nothing is mounted there
        while True:
            kernel.detach(os.fsencode(place))


@cache
def _users(_pid: int) -> int:
    """A user namespace in which root and nobody trade places, for the life of this process."""
    # Made by a program, as a process with threads can neither fork safely nor unshare itself.
    command = ["unshare", "--user", "--", "sh", "-c", "echo ready; read _"]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        raise Unmappable(f"unshare(1) cannot be run: {error.strerror}") from error
    with process:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101 - as asked
        try:
            if process.stdout.readline() != b"ready\n":
                raise Unmappable("no user namespace can be made")
            for table in ("uid_map", "gid_map"):
                Path(f"/proc/{process.pid}/{table}").write_bytes(_MAP.encode())
            return os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            process.stdin.close()
