"""A sandbox's own folder on the host, and the door in it through which the guest comes, once.

The folder ``door`` holds one socket and is mounted read-only into the container. The guest
connects; the host takes exactly that one connection, sees who it is, and removes the name, so that
nothing that runs inside later can come the same way. From then on no engine stands between host and
guest. Beside it lies ``workspace``, for a sandbox without a target, and ``lower`` for one over a
folder of root's. The folder is locked while its owner lives; `sweep` removes the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from podbot.errors import Kind, LaunchError
from podbot.frozen import dataclass
from podbot.sandbox import layers
from podbot.sandbox.container import _idmapped

FOLDER = "containers"
INSIDE = "/run/podbot/door"
SOCKET = "line"
LOWER = "lower"
DRAFT = ".new-"
LOOK_SECONDS = 0.5
"""How long to wait for a guest before asking the engine whether its container still runs."""
HALF_MADE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who came through a door. ``first`` is false unless it is process 1 of a pid namespace."""

    pid: int
    uid: int
    first: bool


class Place:
    """A sandbox's own folder: made, locked, and removed with all in it."""

    def __init__(self) -> None:
        folder = layers.root() / FOLDER
        self.path = folder / os.urandom(8).hex()
        self._lock = -1
        draft = folder / f"{DRAFT}{self.path.name}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            draft.mkdir(mode=0o700)
            self._lock = _locked(draft)
            os.rename(draft, self.path)  # locked before a sweep can see it
            self.workspace.mkdir(mode=0o755)
            self.door.mkdir()
            self.door.chmod(0o711)  # the user inside goes through it, and lists nothing
        except OSError as error:
            self.remove()
            raise LaunchError(
                f"a folder for the container cannot be made in {folder}: {error.strerror}",
                kind=Kind.DISK_FULL if error.errno == 28 else Kind.LAYER_FAILED,
                remedy=f"free some space, or set {layers.ROOT_VARIABLE} to another disk",
            ) from None

    @property
    def door(self) -> Path:
        """What to mount at `INSIDE`."""
        return self.path / "door"

    @property
    def workspace(self) -> Path:
        """An empty folder, for a sandbox that has no other."""
        return self.path / "workspace"

    @property
    def lower(self) -> Path:
        """Where a folder of root's is mounted as nobody sees it, while a container starts."""
        return self.path / LOWER

    def remove(self) -> None:
        """The container is gone: take all of it away. May be called twice."""
        try:
            if os.path.lexists(self.path):
                _removed(self.path)
        finally:  # what could not be removed is left for a sweep, which a lock would keep away
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1


class Door:
    """The socket that waits for a guest."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SOCKET
        self._waiting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # By descriptor: a name in an address may have 107 bytes only.
            with _held(folder) as fd:
                self._waiting.bind(f"/proc/self/fd/{fd}/{SOCKET}")
            # The user inside may be another than ours; nobody else gets through the place above.
            os.chmod(self._path, 0o666)  # noqa: S103 - see above
            self._waiting.listen(1)
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float, check: Callable[[], None]) -> tuple[socket.socket, Visitor]:
        """The guest's connection, and the door is closed behind it.

        ``check`` is called now and then, and raises if there is no use in waiting any longer.
        """
        deadline = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self._waiting, select.POLLIN)
        while not poller.poll(LOOK_SECONDS * 1000):
            check()
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"the guest did not connect within {seconds:.0f} s",
                    kind=Kind.GUEST_UNRESPONSIVE,
                    remedy="look at what else this machine is doing; "
                    "`podbot doctor` tells whether containers work here",
                )
        line, _ = self._waiting.accept()
        self.close()
        return line, _visitor(line)

    def close(self) -> None:
        """Let nobody in any more. May be called twice."""
        self._waiting.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


def sweep(dry_run: bool = False) -> list[str]:
    """Remove the folders whose owners are gone; gives their names."""
    folder = layers.place() / FOLDER
    found = []
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        with contextlib.suppress(OSError):  # its owner lives, it went meanwhile, or it stays
            age = time.time() - os.lstat(entry).st_mtime
            if entry.name.startswith(DRAFT) and age < HALF_MADE_SECONDS:
                continue
            lock = _locked(entry)
            try:
                if not dry_run:
                    _removed(entry)
                found.append(entry.name)
            finally:
                os.close(lock)
    return found


def _removed(path: Path) -> None:
    if (path / LOWER).exists():
        _idmapped.take_down(path / LOWER)  # read-only: what is there could not be removed anyway
    layers.remove(path)


def any_left() -> bool:
    """Whether any sandbox has a folder here, live ones included."""
    folder = layers.place() / FOLDER
    return folder.is_dir() and any(folder.iterdir())


def _locked(path: Path) -> int:
    """A lock on a folder; `OSError` if someone has it."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(lock)
        raise
    return lock


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _visitor(line: socket.socket) -> Visitor:
    raw = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return Visitor(pid, uid, _is_first(pid))


def _is_first(pid: int) -> bool:
    """Whether a process is number 1 in a pid namespace below ours."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in text.splitlines() if line[:6] == "NSpid:"), [])
    return len(numbers) > 1 and numbers[-1] == "1"
