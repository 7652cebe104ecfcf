"""Control groups, where this host lets us have them: v2 that is delegated, or v1 as root.

One group a sandbox and controller, made before it starts and removed after it ended. Where there
is none, the caller falls back to rlimits and says so.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import cache
from pathlib import Path

from podbot.frozen import dataclass

PREFIX = "podbot-"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups can be made: per controller its parent folder, and the version."""

    version: int
    parents: dict[str, Path]


@dataclass(frozen=True, slots=True)
class Group:
    """The groups of one sandbox, and which limits they enforce."""

    folders: tuple[Path, ...]
    enforced: dict[str, str]

    def remove(self) -> None:
        """Remove the groups; the kernel may need a moment to let go of a dead process."""
        for folder in self.folders:
            for _ in range(100):
                try:
                    os.rmdir(folder)
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.002)


NO_GROUP = Group((), {})


@cache
def hierarchy() -> Hierarchy:
    """What this process may use, tried once."""
    return _delegated_v2() or _v1() or Hierarchy(0, {})


def _memberships() -> dict[str, str]:
    found = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            found[name] = path
    return found


def _mounts() -> list[tuple[str, str, str]]:
    """(mount point, type, super options) of every cgroup mount."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            place = left.split(" ")[4].encode().decode("unicode_escape")
            found.append((place, kind, options))
    return found


def _delegated_v2() -> Hierarchy | None:
    own = _memberships().get("")
    for place, kind, _ in _mounts():
        if kind != "cgroup2" or own is None:
            continue
        folder = Path(place + own)
        # The nearest folder above us that hands controllers down and lets us move in.
        while folder != folder.parent and str(folder).startswith(place):
            with contextlib.suppress(OSError):
                controllers = (folder / "cgroup.subtree_control").read_text().split()
                usable = {name for name in ("cpu", "memory", "pids") if name in controllers}
                if usable and os.access(folder / "cgroup.procs", os.W_OK) and _makes(folder):
                    return Hierarchy(2, dict.fromkeys(sorted(usable), folder))
            folder = folder.parent
    return None


def _v1() -> Hierarchy | None:
    members = _memberships()
    parents: dict[str, Path] = {}
    for place, kind, options in _mounts():
        if kind != "cgroup":
            continue
        for name in ("cpu", "memory", "pids"):
            if name in options.split(",") and name in members:
                folder = Path(place + members[name])
                if not folder.is_dir():
                    folder = Path(place)
                if _makes(folder):
                    parents[name] = folder
    return Hierarchy(1, parents) if parents else None


def _makes(folder: Path) -> bool:
    if not os.access(folder, os.W_OK):
        return False
    probe = folder / f"{PREFIX}probe-{os.urandom(4).hex()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def create(cpu: float | None, memory: int | None, pids: int | None) -> Group:
    """Groups for the limits that are set, as far as this host allows them."""
    if cpu is None and memory is None and pids is None:
        return NO_GROUP
    place = hierarchy()
    wanted = {"cpu": cpu, "memory": memory, "pids": pids}
    name = f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
    folders: dict[Path, None] = {}
    enforced = {}
    for controller, value in wanted.items():
        parent = place.parents.get(controller)
        if value is None or parent is None:
            continue
        folder = parent / name
        try:
            if folder not in folders:
                folder.mkdir()
                folders[folder] = None
            for file, text in _settings(place.version, controller, value):
                (folder / file).write_text(text)
        except OSError:
            continue  # not enforced by a group, then: the caller reports what is left
        if controller == "memory":
            with contextlib.suppress(OSError):  # only there where swap is accounted for
                (folder / "memory.swap.max").write_text("0")
        enforced[controller] = f"cgroup v{place.version}"
    return Group(tuple(folders), enforced)


def _settings(version: int, controller: str, value: float) -> list[tuple[str, str]]:
    if controller == "pids":
        return [("pids.max", str(int(value)))]
    if controller == "cpu":
        quota = max(1000, int(value * 100_000))
        if version == 2:
            return [("cpu.max", f"{quota} 100000")]
        return [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", str(quota))]
    if version == 2:
        return [("memory.max", str(int(value)))]
    return [("memory.limit_in_bytes", str(int(value)))]


def sweep(dry_run: bool = False) -> list[str]:
    """Remove groups of podbot processes that are gone; a group in use cannot be removed."""
    removed = []
    for parent in set(hierarchy().parents.values()):
        for folder in parent.glob(f"{PREFIX}*-*"):
            pid = folder.name[len(PREFIX) :].split("-")[0]
            if not pid.isdigit() or os.path.exists(f"/proc/{pid}"):
                continue
            with contextlib.suppress(OSError):
                if not dry_run:
                    folder.rmdir()
                elif (folder / "cgroup.procs").read_text():
                    continue
                removed.append(str(folder))
    return removed
