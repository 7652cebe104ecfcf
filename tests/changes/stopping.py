"""Kill a piece of work at a system call of one's choice: a tracer of a few lines, for any user.

The work runs in a fork that puts itself under a filter (seccomp), by which the kernel stops it for
its tracer (ptrace) before each call of interest: those that may change a file system, or every
single one. The tracer counts them, and at the one that was asked for it kills instead of going on:
the call itself is never made. Knows nothing of podbot.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass

_libc = ctypes.CDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]

_TRACEME, _CONT, _SETOPTIONS = 0, 7, 0x4200
# Follow forks and threads, tell of the filter, and let nobody outlive the tracer.
_OPTIONS = 0x2 | 0x4 | 0x8 | 0x80 | 0x100000
_AT_THE_FILTER = signal.SIGTRAP | 7 << 8
_EVENTS = {signal.SIGTRAP | event << 8 for event in (1, 2, 3, 4)}
_ALL = 0x40000000  # __WALL: threads too

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_ALLOW, _TRACE = 0x7FFF0000, 0x7FF00000
_LOAD, _IF_EQUAL, _IF_ANY, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _SECOND, _THIRD = 0, 24, 32  # where they are in what a filter sees

# Number on x86_64 and on aarch64, which has no old forms.
CHANGING = {
    "write": (1, 64), "pwrite64": (18, 68), "writev": (20, 66),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "unlink": (87, None), "unlinkat": (263, 35), "rmdir": (84, None),
    "mkdir": (83, None), "mkdirat": (258, 34), "mknod": (133, None), "mknodat": (259, 33),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47), "creat": (85, None),
    "copy_file_range": (326, 285), "sendfile": (40, 71), "splice": (275, 76),
}  # fmt: skip
_OPENAT, _IOCTL = (257, 56), (16, 29)
_WRITES = {1, 18, 20} if platform.machine() == "x86_64" else {64, 68, 66}
_MAKES = os.O_CREAT | os.O_TRUNC
_FICLONE, _FICLONERANGE = 0x40049409, 0x4020940D


@dataclass(frozen=True, slots=True)
class Ended:
    """How a piece of work ended: calls it came to, and the one it was killed at, or its status."""

    calls: int
    killed_at: str | None
    status: int


def run(work: Callable[[], int], at: int | None = None, *, every: bool = False) -> Ended:
    """Do some work in a fork, killed before its call number ``at`` (from 0) if it comes so far.

    Counted are the calls that may change a file system, or ``every`` call.
    """
    child = os.fork()
    if child == 0:
        status = 70
        try:
            _be_traced(every)
            status = work()
        finally:
            os._exit(status)
    _wait_for(child)
    _ask(_SETOPTIONS, child, _OPTIONS)
    _ask(_CONT, child)
    calls, killed_at = 0, None
    while True:
        pid, status = os.waitpid(-1, _ALL)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            if pid == child:
                return Ended(calls, killed_at, os.waitstatus_to_exitcode(status))
            continue
        passed_on = os.WSTOPSIG(status)
        if status >> 8 == _AT_THE_FILTER:
            passed_on = 0
            if every or _changes_something(pid):
                if calls == at:
                    killed_at = _call(pid)
                    os.kill(child, signal.SIGKILL)
                    continue
                calls += 1
        elif status >> 8 in _EVENTS or passed_on == signal.SIGSTOP:
            passed_on = 0
        _ask(_CONT, pid, passed_on, may_be_gone=True)


def _wait_for(child: int) -> None:
    _, status = os.waitpid(child, 0)
    assert os.WIFSTOPPED(status), "it did not get as far as to be traced"


def _ask(request: int, pid: int, data: int = 0, *, may_be_gone: bool = False) -> None:
    if _ptrace(request, pid, None, data) < 0 and not may_be_gone:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace: {os.strerror(number)}")


def _be_traced(every: bool) -> None:
    program = _filter(every)
    _ask(_TRACEME, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    buffer = ctypes.create_string_buffer(program, len(program))
    text = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    prctl = _libc.prctl
    assert prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert prctl(_PR_SET_SECCOMP, 2, ctypes.create_string_buffer(text, len(text)), 0, 0) == 0


def _here(numbers: tuple[int, int | None]) -> int | None:
    return numbers[0 if platform.machine() == "x86_64" else 1]


def _filter(every: bool) -> bytes:
    """Stop at every call, or at those that may change a file system."""

    def one(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    if every:
        return one(_RETURN, _TRACE)
    program = one(_LOAD, _NUMBER)
    for number in filter(None, map(_here, CHANGING.values())):
        program += one(_IF_EQUAL, number, 0, 1) + one(_RETURN, _TRACE)
    opening, control = _here(_OPENAT), _here(_IOCTL)
    assert opening is not None
    assert control is not None
    program += one(_IF_EQUAL, opening, 0, 3) + one(_LOAD, _THIRD)
    program += one(_IF_ANY, _MAKES, 0, 1) + one(_RETURN, _TRACE)
    # What was loaded last may be flags: look at the number again.
    program += one(_LOAD, _NUMBER) + one(_IF_EQUAL, control, 0, 4) + one(_LOAD, _SECOND)
    program += one(_IF_EQUAL, _FICLONE, 1) + one(_IF_EQUAL, _FICLONERANGE, 0, 1)
    return program + one(_RETURN, _TRACE) + one(_RETURN, _ALLOW)


def _words(pid: int) -> list[str]:
    with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
        return file.read().split()


def _changes_something(pid: int) -> bool:
    """Whether it is no write to a pipe or a terminal."""
    number, *arguments = _words(pid)
    if int(number) not in _WRITES:
        return True
    try:
        facts = os.stat(f"/proc/{pid}/fd/{int(arguments[0], 16)}")
    except OSError:
        return False
    return stat.S_ISREG(facts.st_mode)


def _call(pid: int) -> str:
    """The name of the call it has come to."""
    number = int(_words(pid)[0])
    named = {_here(numbers): name for name, numbers in CHANGING.items()}
    named |= {_here(_OPENAT): "openat", _here(_IOCTL): "ioctl"}
    return named.get(number, f"call {number}")
