"""What a job started, found in /proc whatever it did to hide, so that all of it can be killed."""

from __future__ import annotations

import os
import re
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    ProcessTable = dict[int, tuple[int, int, str, int]]


JOB_VARIABLE = "PODBOT_JOB"


def boot_time() -> float:
    """Now, on the clock that the kernel notes a process's start by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Family:
    """The processes one job started, found in /proc whatever they did to hide."""

    def __init__(self, number: int, pid: int, began: float) -> None:
        """``began`` is a `boot_time` before the first of them was started."""
        self.number = number
        self.pid = pid
        self._began = began

    def kill(self, others: AbstractSet[int | None]) -> None:
        """SIGKILL the whole family; ``others`` are the pids of jobs that live on."""
        for _ in range(10):
            victims = self._members(others)
            if not victims:
                return
            for pid in victims:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass  # gone meanwhile
            time.sleep(0.001)

    def _members(self, others: AbstractSet[int | None]) -> list[int]:
        """The living ones, oldest first: no parent lives to tell that its child was killed."""
        table = process_table()
        me = os.getpid()
        ticks = self._began * os.sysconf("SC_CLK_TCK") - 2
        members: set[int] = set()
        for pid, (parent, session, state, start) in table.items():
            if state in "ZX" or pid == me:
                continue
            if session == self.pid or _descends(pid, self.pid, table):
                members.add(pid)
            elif parent == me and start >= ticks and session not in others:
                # An orphan that started a session of its own. Its environment tells whose it
                # is; one that wiped it is taken for ours, as it started after us.
                job = _job_of(pid)
                if job == self.number or (job is None and pid not in others):
                    members.add(pid)
        for pid in list(table):
            if pid in members or pid == me or table[pid][2] in "ZX":
                continue
            if any(_descends(pid, member, table) for member in members):
                members.add(pid)
        return sorted(members, key=lambda pid: (table[pid][3], pid))


def _descends(pid: int, ancestor: int, table: ProcessTable) -> bool:
    while pid in table:
        if pid == ancestor:
            return True
        pid = table[pid][0]
    return False


def _job_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = file.read(1 << 20)
    except OSError:
        return None
    found = re.search(rb"(?:^|\0)" + JOB_VARIABLE.encode() + rb"=(\d{1,18})(?:\0|$)", environ)
    return int(found.group(1)) if found else None


def process_table() -> ProcessTable:
    """{pid: (parent, session, state, start in ticks)} of every process visible."""
    table: ProcessTable = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rsplit(b")", 1)[1].split()
        except (OSError, IndexError):
            continue
        table[int(name)] = (int(fields[1]), int(fields[3]), fields[0].decode(), int(fields[19]))
    return table


def exit_of(status: int) -> tuple[int, int | None]:
    """(exit code, signal) as a shell would tell it."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def end_descendants() -> None:
    """Kill everything below this process, whatever it did to get away, and wait for it."""
    me = os.getpid()
    for _ in range(800):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # orphans come to us: without children there is nothing below us
        table = process_table()
        below = [
            pid
            for pid, (_, _, state, _) in table.items()
            if pid != me and state not in "ZX" and _descends(pid, me, table)
        ]
        if not below:
            return
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # gone meanwhile
        time.sleep(0.005)
