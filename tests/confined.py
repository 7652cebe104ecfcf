"""The tests must not harm the machine: what they may write to, and proof that they kept to it.

As root they run in a mount namespace of their own, in which all is read-only but the checkout, a
home made for the run, and private `/tmp`, `/var/tmp` and `/dev/shm`. It begins in the process that
starts pytest, before there are workers, and so holds for all that a test starts. An ordinary user
cannot harm much else than the own home: that one is replaced as well, and has a canary.

`/proc`, devices and control groups stay as they are: sandboxes need them. What needs the whole
machine sets `PODBOT_UNCONFINED` to the reason; tests/e2e/set_up.py does, for engines.

This knows nothing of podbot, whose faults it is meant to survive.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

UNCONFINED = "PODBOT_UNCONFINED"
"""Why a run must not be confined."""
WITHIN = "PODBOT_CONFINED"
"""Set for all that a confined run starts, and so for runs within it."""
SHARED = "/var/tmp"
PRIVATE = ("/tmp", SHARED)
MEMORY = "/dev/shm"
RUN = "/run"
STILL_WRITABLE = ("/proc", "/dev/pts", "/sys/fs/cgroup")
NAME = "podbot-tests-"
PATIENCE = 20.0

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MS_NOSUID, MS_NODEV, MNT_DETACH = 2, 4, 2
MOUNT_SETATTR, OPEN_TREE = 442, 428  # the same on every architecture
MOUNT_ATTR_RDONLY = 1
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


def wanted() -> bool:
    """Whether this process is to confine itself: it is no worker, nor within a confined run."""
    return not os.environ.get(WITHIN) and not os.environ.get(UNCONFINED)


@dataclass
class Confinement:
    """One run's private places; the only thing it leaves behind is what `left` names."""

    home: Path
    told: str
    _lock: int
    _remove: list[tuple[str, int]]
    _mounts: list[str] = field(default_factory=list)
    _canary: Canary | None = None

    def left(self) -> list[str]:
        """What the tests left in `/var/tmp`; helpers that are still removing get a while."""
        deadline = time.monotonic() + PATIENCE
        folder = os.environ[WITHIN]
        while (names := sorted(os.listdir(folder))) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [f"{SHARED}/{name}" for name in names]

    def harmed(self) -> str | None:
        """What happened to the canary in the real home."""
        return None if self._canary is None else self._canary.harmed()

    def end(self) -> None:
        """Remove the private places."""
        if self._canary is not None:
            self._canary.path.unlink(missing_ok=True)
        # What is mounted upon cannot be removed. Coverage still writes to the checkout after us.
        stay = {place: _open_tree(Path(place)) for place in self._mounts if place != str(self.home)}
        for place in [*reversed(self._mounts), *(PRIVATE if self._mounts else ())]:
            _libc.umount2(os.fsencode(place), MNT_DETACH)
        for name, folder in self._remove:
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
        for place, tree in stay.items():
            _bind(tree, place)
        os.close(self._lock)


@dataclass(frozen=True)
class Canary:
    """A file that nobody has a reason to touch."""

    path: Path
    text: str
    facts: tuple[int, ...]

    @classmethod
    def put(cls, folder: Path) -> Canary:
        path = folder / f".{NAME}canary-{secrets.token_hex(8)}"
        text = (
            "Here to show that the tests of podbot leave your home alone; remove it if none run.\n"
        )
        path.write_text(text)
        return cls(path, text, cls._facts(path))

    @staticmethod
    def _facts(path: Path) -> tuple[int, ...]:
        found = path.lstat()
        return found.st_ino, found.st_mode, found.st_uid, found.st_nlink, found.st_ctime_ns

    def harmed(self) -> str | None:
        """What is wrong with it now, if anything is."""
        try:
            same = self._facts(self.path) == self.facts and self.path.read_text() == self.text
        except OSError as error:
            return f"{self.path}: {error.strerror}"
        return None if same else f"{self.path} was changed"


def enter(checkout: Path, keep: Sequence[Path] = ()) -> Confinement:
    """Confine this process and all that it starts from now on.

    ``keep`` are more places that the run writes to, such as one given on pytest's command line.
    """
    sweep(Path(SHARED))
    real_home = Path.home()
    own = Path(tempfile.mkdtemp(prefix=NAME, dir=SHARED))
    lock = os.open(own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_SH)
    shared = own / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    home = _new_home(real_home, own)
    os.write(lock, os.fsencode(home))
    places = [own] if home.is_relative_to(own) else [own, home]
    refused = "only root can have more" if os.geteuid() else _begin_namespace()
    if refused is None:
        remove = [(place.name, _open_tree(place.parent)) for place in places]
        mounts = _mount_private(own, [checkout, home, *keep])
        told, canary = "read-only but for private folders and the checkout", None
        os.environ[WITHIN] = SHARED
    else:
        remove = [(place.name, os.open(place.parent, os.O_PATH | os.O_CLOEXEC)) for place in places]
        mounts = []
        told, canary = f"a home of their own ({refused})", _put_canary(real_home)
        os.environ[WITHIN] = str(shared)
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        del os.environ[name]
    os.environ.pop("PYTHONUNBUFFERED", None)  # what it would hide, most people meet
    os.environ["HOME"] = str(home)
    if canary is not None:
        os.write(lock, b"\0" + os.fsencode(canary.path))
    told = f"the machine is kept from the tests: {told}"
    return Confinement(home, told, lock, remove, mounts, canary)


def redirect() -> None:
    """Where `/var/tmp` itself is not private, temporary folders made there lie in a private one."""
    folder = os.environ.get(WITHIN, SHARED)
    if folder == SHARED:
        return
    make = tempfile.mkdtemp

    def mkdtemp(
        suffix: str | None = None, prefix: str | None = None, dir: str | None = None
    ) -> str:
        return make(suffix, prefix, folder if dir == SHARED else dir)

    tempfile.mkdtemp = mkdtemp


def sweep(parent: Path) -> None:
    """Remove what runs that were killed left: their locks are free."""
    for own in parent.glob(f"{NAME}*"):
        with suppress(OSError):
            if own.lstat().st_uid != os.getuid():
                continue
            lock = os.open(own / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for left in filter(None, os.read(lock, 16384).split(b"\0")):
                    with suppress(FileNotFoundError):
                        os.unlink(left) if os.path.isfile(left) else shutil.rmtree(left)
                shutil.rmtree(own, ignore_errors=True)
            finally:
                os.close(lock)


def _new_home(real: Path, own: Path) -> Path:
    """A home like any: on the same disk as the real one, and where a sandbox does not hide it."""
    with suppress(OSError):
        return Path(tempfile.mkdtemp(prefix=f".{NAME}home-", dir=real)).resolve()
    (own / "home").mkdir(mode=0o700)
    return own / "home"


def _put_canary(home: Path) -> Canary | None:
    with suppress(OSError):
        return Canary.put(home)
    return None  # a home that cannot be written to needs none


def _begin_namespace() -> str | None:
    """Leave the machine's mount namespace; the reason if that is refused, as in a container."""
    if _libc.unshare(CLONE_NEWNS):
        return f"unshare: {os.strerror(ctypes.get_errno())}"
    try:
        _mount("none", "/", None, MS_REC | MS_PRIVATE)
        os.close(_open_tree(Path("/")))
    except OSError as error:
        return str(error)
    return None


def _mount_private(own: Path, writable: Sequence[Path]) -> list[str]:
    """Cover what is shared with others by places of our own; make the rest read-only.

    Gives where something else that stays writable is mounted.
    """
    # Found before anything covers them.
    kept = {os.path.realpath(place): _open_tree(place) for place in writable}
    kept |= {
        os.path.realpath(place): _open_tree(Path(place))
        for place in (sys.prefix, sys.base_prefix)
        if os.path.realpath(place).startswith(tuple(f"{each}/" for each in PRIVATE))
    }
    covers = {}
    for name, place in zip(("tmp", "shared"), PRIVATE, strict=True):
        (own / name).mkdir(exist_ok=True)
        (own / name).chmod(0o1777)
        covers[place] = _open_tree(own / name)
    covered = [RUN] if _cover(RUN, own) else []
    _set_read_only("/", True)
    for place in [*filter(_is_mounted, STILL_WRITABLE), *covered]:
        _set_read_only(place, False)
    for place, tree in covers.items():
        _bind(tree, place)
    if os.path.isdir(MEMORY):
        _mount("tmpfs", MEMORY, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    for place, tree in kept.items():
        os.makedirs(place, exist_ok=True)  # below a private place it is not there any more
        _bind(tree, place)
    os.chdir(os.getcwd())  # into what now lies there
    os.environ.pop("TMPDIR", None)
    tempfile.tempdir = None
    return list(kept)


def _cover(place: str, own: Path) -> bool:
    """Have a folder show what it holds, and keep what is written to it for ourselves."""
    upper, work = own / "upper", own / "work"
    for folder in (upper, work):
        folder.mkdir()
    upper.chmod(0o755)
    with suppress(OSError):  # on some disks there is none: then it can only be read
        _mount("run", place, "overlay", 0, f"lowerdir={place},upperdir={upper},workdir={work}")
        return True
    return False


def _is_mounted(place: str) -> bool:
    with open("/proc/self/mountinfo") as table:
        return any(row.split(" ")[4] == place for row in table)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(data)):
        raise _failed(f"mount on {target}")


def _open_tree(place: Path) -> int:
    """What lies at a place, apart from how it is mounted there: it stays writable."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE
    tree = _libc.syscall(OPEN_TREE, AT_FDCWD, os.fsencode(place), flags)
    if tree < 0:
        raise _failed(f"open_tree of {place}")
    return int(tree)


def _bind(tree: int, place: str) -> None:
    move_mount, from_empty_path = 429, 4
    if _libc.syscall(move_mount, tree, b"", AT_FDCWD, os.fsencode(place), from_empty_path):
        raise _failed(f"mount on {place}")
    os.close(tree)


def _set_read_only(place: str, only: bool) -> None:
    class Attributes(ctypes.Structure):
        _fields_ = (
            ("set", ctypes.c_uint64), ("clear", ctypes.c_uint64),
            ("propagation", ctypes.c_uint64), ("namespace", ctypes.c_uint64),
        )  # fmt: skip

    change = Attributes(*((MOUNT_ATTR_RDONLY, 0) if only else (0, MOUNT_ATTR_RDONLY)))
    if _libc.syscall(
        MOUNT_SETATTR, AT_FDCWD, os.fsencode(place), AT_RECURSIVE,
        ctypes.byref(change), ctypes.c_size_t(ctypes.sizeof(change)),
    ):  # fmt: skip
        raise _failed(f"mount_setattr of {place}")


def _failed(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
