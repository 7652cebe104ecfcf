"""How much memory a sandbox has in all, measured from outside, for want of a control group.

A limit on each process counts neither shared memory nor what many processes have together. So all
of them are looked at: what each has for itself and its share of what is shared, memory files that
are only open, and what lies in the sandbox's own tmpfs. It comes late, after the fact, and what
nobody maps or holds open (System V segments) goes unseen: a net, no wall.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from podbot.sandbox.layers.disk_watcher import NAME_BYTES

_TMPFS = ("tmp", "var/tmp", "run", "dev")
_SHARED = ("/memfd:", "/dev/zero (deleted)", "/SYSV", "[anon_shmem")


def usage(guest: int, enough: int) -> int:
    """Bytes in use by a guest and all that descends from it; stops counting past ``enough``."""
    total = 0
    files: dict[tuple[int, int], int] = {}
    mounted: dict[int, int] = {}
    pids = list(_family(guest))
    for pid in pids:
        if not mounted:
            mounted = _private(pid)
        _open_files(pid, files)
    total += sum(mounted.values())
    total += sum(size for (device, _), size in files.items() if device not in mounted)
    for pid in pids:
        if total > enough:
            break
        total += _mapped(pid, files, mounted)
    return total


def _family(pid: int) -> Iterator[int]:
    """A process and what descends from it: orphans are the children of the first."""
    waiting = [pid]
    while waiting:
        pid = waiting.pop()
        yield pid
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                    waiting += map(int, file.read().split())


def _private(pid: int) -> dict[int, int]:
    """What the sandbox's own tmpfs hold, by device."""
    found = {}
    for name in _TMPFS:
        with suppress(OSError):
            place = os.open(f"/proc/{pid}/root/{name}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                facts = os.fstatvfs(place)
                used = (facts.f_blocks - facts.f_bfree) * facts.f_bsize
                used += (facts.f_files - facts.f_ffree) * NAME_BYTES
                found[os.fstat(place).st_dev] = used
            finally:
                os.close(place)
    return found


def _open_files(pid: int, found: dict[tuple[int, int], int]) -> None:
    """Files without a name that lie in memory, mapped or not."""
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                path = f"/proc/{pid}/fd/{fd}"
                if os.readlink(path).startswith(_SHARED):
                    facts = os.stat(path)
                    found[facts.st_dev, facts.st_ino] = facts.st_blocks * 512


def _mapped(pid: int, files: dict[tuple[int, int], int], mounted: dict[int, int]) -> int:
    """What a process has mapped, but for what was counted as a file."""
    total = 0
    share = own = 0
    is_file = counted = False
    try:
        with open(f"/proc/{pid}/smaps", errors="replace") as table:
            for line in table:
                word, _, rest = line.partition(" ")
                if not word.endswith(":"):  # the head of the next mapping
                    total += _part(share, own, is_file, counted)
                    share = own = 0
                    fields = rest.split(None, 4)
                    major, minor = (int(part, 16) for part in fields[2].split(":"))
                    device, inode = os.makedev(major, minor), int(fields[3])
                    name = fields[4].strip() if len(fields) > 4 else ""
                    is_file = inode != 0 and not name.startswith(_SHARED)
                    counted = (device, inode) in files or device in mounted
                elif word in ("Pss:", "SwapPss:"):
                    share += int(rest.split()[0])
                elif word == "Anonymous:":
                    own = int(rest.split()[0])
    except (OSError, ValueError, IndexError):
        return total
    return total + _part(share, own, is_file, counted)


def _part(share: int, own: int, is_file: bool, counted: bool) -> int:
    """Bytes of one mapping: of a file on a disk only what was written, as that alone is ours."""
    if counted:
        return 0
    return (min(share, own) if is_file else share) * 1024
