"""The marks on everything podbot makes, and whether the process that made it still lives.

An owner is told by machine, boot, pid namespace, pid and start time, so that neither a used-again
pid nor another machine at the same engine is taken for it. Only an owner that is surely gone
counts as dead: what cannot be told (another machine, another pid namespace, a label that makes no
sense) counts as alive, because `gc` removes what belongs to the dead.
"""

from __future__ import annotations

import os
from typing import Literal

from podbot.frozen import dataclass

OWNER = "podbot.owner"
KIND = "podbot.kind"
SESSION = "podbot.session"
NAME = "podbot.name"
VERSION = "podbot.version"
MADE = "podbot.made"
"""Another value for each request, to find what came of one whose answer was not heard."""

_FORMAT = "1"

OwnerState = Literal["alive", "dead", "unknown"]


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told apart from every other."""

    machine: str
    boot: str
    pid_namespace: str
    pid: int
    started: int

    def label(self) -> str:
        """As the value of a label."""
        parts = (self.machine, self.boot, self.pid_namespace, self.pid, self.started)
        return "/".join([_FORMAT, *map(str, parts)])


def owner_label() -> str:
    """The label of this process."""
    return this_process().label()


def owner_alive(label: str) -> bool:
    """Whether the process of a label may still live; false only if it surely does not."""
    return owner_state(label) != "dead"


def owner_state(label: str) -> OwnerState:
    """What is known of the process of a label."""
    owner = parse(label)
    here = this_process()
    if owner is None or owner.machine != here.machine:
        return "unknown"
    if owner.boot != here.boot:
        # Without an id of the machine, another boot may be another machine's.
        return "dead" if here.machine else "unknown"
    if owner.pid_namespace != here.pid_namespace:
        return "unknown"
    if _started(owner.pid) == owner.started:
        return "alive"
    return "unknown" if _unseen(owner.pid) else "dead"


def parse(label: str) -> Owner | None:
    """An owner from its label; none if it is not one."""
    parts = label.split("/")
    if len(parts) != 6 or parts[0] != _FORMAT or len(label) > 200:
        return None
    machine, boot, namespace, pid, started = parts[1:]
    if not boot or not namespace or not (pid + started).isascii():
        return None
    if not pid.isdigit() or not started.isdigit():
        return None
    return Owner(machine, boot, namespace, int(pid), int(started))


def this_process() -> Owner:
    """The owner that is this process. Not kept: a fork is another one."""
    pid = os.getpid()
    return Owner(
        machine=_machine(),
        boot=_read("/proc/sys/kernel/random/boot_id"),
        pid_namespace=str(os.stat("/proc/self/ns/pid").st_ino),
        pid=pid,
        started=_started(pid) or 0,
    )


def _machine() -> str:
    # The id itself is not for others to see: its manual says so.
    import hashlib

    found = _read("/etc/machine-id")
    return hashlib.sha256(b"podbot " + found.encode()).hexdigest()[:16] if found else ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(200).strip()
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """When a process began, in ticks since boot; none if there is none such, or it is over."""
    # The name before it may hold spaces and brackets; the last bracket ends it.
    _, _, rest = _read_stat(pid).rpartition(") ")
    words = rest.split()
    if len(words) < 20 or words[0] in "ZX":
        return None
    return int(words[19])


def _unseen(pid: int) -> bool:
    """Whether there is such a process, but not for us to look at (``hidepid``)."""
    if _read_stat(pid):
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return bool(pid)  # 0 would be ourselves, and is nobody's


def _read_stat(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read(2000)
    except OSError:
        return ""
