"""What only root may read is not there for root inside: folders of the system are veiled.

A veil is the folder itself, mounted so that whatever root or anybody else owns there belongs to
nobody inside (an id-mapped mount). What is left is what everybody may read: by construction, for
whatever comes to be there too, and at no cost that grows with the folder. Ordinary users need none,
file modes do the same for them. Only real root can make one, so the zygote does, ahead.

Where a target, or a program that is needed, lies in a folder closed to others, an empty folder
takes that one's place and holds only what is shown there (an *opening*).
"""

from __future__ import annotations

import os
import stat

from podbot import kernel
from podbot.frozen import dataclass
from podbot.sandbox.layers import mounts

# Not from typing: it would cost every start of the zygote several milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDERS = (
    "/etc", "/home", "/root", "/var/lib", "/var/cache", "/var/backups", "/var/log", "/var/spool",
)  # fmt: skip
KERNELS = "/sys"
"""Where the kernel's own file systems are mounted, which know no veils."""
NEEDS = (5, 19)
"""The first Linux with overlays over such mounts."""

_SOMEBODY_ELSE = "65534 65534 1"


class Weaver:
    """Makes veils, in the process that forks the sandboxes of real root."""

    def __init__(self) -> None:
        self._namespace: int | None = None
        if os.getuid() == 0 and _release() >= NEEDS:
            try:
                self._namespace = _namespace_without_root()
            except OSError:
                return  # root of a container, perhaps: nothing is veiled, and that is said

    def weave(self) -> dict[str, int]:
        """A detached mount for each folder that can be veiled now."""
        if self._namespace is None:
            return {}
        woven: dict[str, int] = {}
        for folder in FOLDERS:
            # Where a file system mounted below it knows no such mounts, it is left out.
            for with_mounts in (True, False):
                try:
                    woven[folder] = self._veil(folder.encode(), self._namespace, with_mounts)
                    break
                except OSError:
                    continue
        return woven

    @staticmethod
    def _veil(folder: bytes, namespace: int, with_mounts: bool) -> int:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise NotADirectoryError(folder)
        mount = kernel.clone_tree(folder, recursive=with_mounts)
        try:
            flags = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
            flags |= kernel.MOUNT_ATTR_IDMAP
            kernel.set_attributes(mount, flags, recursive=True, users=namespace)
        except OSError:
            os.close(mount)
            raise
        return mount


def closed_mounts() -> list[str]:
    """What is mounted below /sys for root alone, such as debugfs, tracefs, pstore and bpf."""
    found: list[str] = []
    for name in sorted(mounts.all_below(KERNELS)) if os.getuid() == 0 else ():
        place = f"{KERNELS}/{name}"
        if not any(mounts.is_below(place, other) for other in found) and _is_closed(place):
            found.append(place)
    return found


def _namespace_without_root() -> int:
    """A user namespace in which neither root nor anybody real exists; its descriptor."""
    near, far = os.pipe2(os.O_CLOEXEC)
    pid = kernel.fork_into(kernel.CLONE_NEWUSER)
    if pid == 0:
        os.close(far)
        os.read(near, 1)  # until it is held, or whoever forked us is gone
        os._exit(0)
    try:
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(_SOMEBODY_ELSE)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(far)
        os.close(near)
        os.waitpid(pid, 0)


def _release() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


@dataclass(frozen=True, slots=True)
class Veiling:
    """What is veiled of a sandbox's view: ``folders``, the ``openings`` in them, and what must be
    ``shown`` through them."""

    folders: tuple[str, ...] = ()
    openings: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()


NOTHING = Veiling()


def arrange(mounted: Iterable[str], named: Iterable[str], needed: Iterable[str]) -> Veiling:
    """What to veil around what is ``mounted`` anyway, such as targets.

    What the policy has ``named`` is shown, and what is ``needed`` if a veil would close it.
    """
    mounted = tuple(mounted)
    folders = [f for f in FOLDERS if not any(f"{f}/".startswith(f"{path}/") for path in mounted)]
    shown: list[str] = []
    openings = set()
    for paths, always in ((mounted, False), (named, True), (needed, False)):
        for path in dict.fromkeys(paths):
            folder = next((folder for folder in folders if f"{path}/".startswith(f"{folder}/")), "")
            if not folder or not os.path.lexists(path):
                continue
            opening = _opening(path, folder)
            if opening is not None:
                openings.add(opening)
            if paths is not mounted and (always or opening is not None or _is_closed(path)):
                shown.append(path if always or opening is None else _with_its_own(path, opening))
    kept = (folder for folder in folders if folder not in openings)
    return Veiling(tuple(kept), tuple(sorted(openings)), tuple(dict.fromkeys(shown)))


def _opening(path: str, folder: str) -> str | None:
    """The outermost folder on the way to a path, from its veil on, that is closed to others.

    One that something is mounted on counts as closed: it may not be there behind the veil.
    """
    steps = path[len(folder) :].split("/")[:-1]
    mounted = mounts.all_below(folder)
    for depth in range(1, len(steps) + 1):
        below = "/".join(steps[:depth])
        place = folder + below
        try:
            if below[1:] in mounted or not os.stat(place).st_mode & stat.S_IXOTH:
                return place
        except OSError:
            return None
    return None


def _with_its_own(folder: str, opening: str) -> str:
    """A folder of programs with what lies beside it, where that is surely theirs.

    Not so with ``~/.local/bin`` or ``~/.cargo/bin``: logins are beside those.
    """
    above, name = os.path.split(folder)
    is_theirs = name == "shims" or os.path.exists(f"{above}/pyvenv.cfg")
    if name == "bin" and above.startswith(f"{opening}/"):
        is_theirs |= "/" in above[len(opening) + 1 :]
    return above if is_theirs and above.startswith(f"{opening}/") else folder


def _is_closed(path: str) -> bool:
    """Whether others than its owner and group may not read a file or folder."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & needed != needed
