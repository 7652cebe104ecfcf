"""The system-call filter every overlay sandbox runs under, as a BPF program.

A deny list: what could undo the sandbox, reach kernel interfaces no tool needs, or type into
another terminal fails with EPERM (clone3 with ENOSYS, so that libc falls back to clone, whose
flags a filter can read). A call of another architecture kills the process.
"""

from __future__ import annotations

import errno
import struct

from podbot.kernel import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWTIME,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MACHINE,
)

_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID
    | CLONE_NEWNET
)  # fmt: skip

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None where the architecture has no such call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    # Mounts and roots
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    # Namespaces and other processes
    "setns": (308, 268), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    # Kernel interfaces with a history
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # Modules, kexec, the machine itself
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "create_module": (174, None), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "iopl": (172, None), "ioperm": (173, None), "vhangup": (153, 58),
    "nfsservctl": (180, 42), "lookup_dcookie": (212, 18), "uselib": (134, None),
    "_sysctl": (156, None), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262), "modify_ldt": (154, None),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}  # fmt: skip

_CALLS = {
    "clone": (56, 220), "clone3": (435, 435), "unshare": (272, 97), "ptrace": (101, 117),
    "ioctl": (16, 29), "socket": (41, 198), "socketpair": (53, 199), "fcntl": (72, 25),
    "setrlimit": (160, 164), "prlimit64": (302, 261),
}  # fmt: skip

_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_F_SETLEASE, _F_SETDELEG = 1024, 1040  # a lease on a host's file makes the host wait
_RLIMIT_CORE = 4
_PTRACE_ATTACH, _PTRACE_SEIZE = 16, 0x4206
_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink

_KILL = 0x80000000
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000

_LD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ARG0, _ARG1, _ARG2 = 16, 24, 32  # the low halves (both machines are little-endian)


def _op(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("HBBI", code, jt, jf, k)


def _deny(number: int = errno.EPERM) -> bytes:
    return _op(_RET, _ERRNO | number)


def program(machine: str = MACHINE) -> bytes:
    """The filter for a machine, as the kernel takes it."""
    column = ("x86_64", "aarch64").index(machine)
    calls = {name: numbers[column] for name, numbers in _CALLS.items()}
    parts = [
        _op(_LD, 4),
        _op(_JEQ, AUDIT_ARCH[machine], 1, 0),
        _op(_RET, _KILL),
        _op(_LD, 0),
    ]
    if machine == "x86_64":
        # The x32 calls share the architecture and carry bit 30.
        parts += [_op(_JGE, 0x40000000, 0, 1), _deny(errno.ENOSYS)]
    parts += [_op(_JEQ, calls["clone3"], 0, 1), _deny(errno.ENOSYS)]
    parts += _when(calls["clone"], [_op(_LD, _ARG0), _op(_JSET, _NAMESPACES, 0, 1), _deny()])
    parts += _when(
        calls["unshare"],
        [_op(_LD, _ARG0), _op(_JSET, _NAMESPACES | CLONE_NEWTIME, 0, 1), _deny()],
    )
    parts += _when(
        calls["ptrace"],
        [_op(_LD, _ARG0), _op(_JEQ, _PTRACE_ATTACH, 1, 0), _op(_JEQ, _PTRACE_SEIZE, 0, 1), _deny()],
    )
    parts += _when(
        calls["ioctl"],
        [_op(_LD, _ARG1), _op(_JEQ, _TIOCSTI, 1, 0), _op(_JEQ, _TIOCLINUX, 0, 1), _deny()],
    )
    parts += _when(
        calls["fcntl"],
        [_op(_LD, _ARG1), _op(_JEQ, _F_SETLEASE, 1, 0), _op(_JEQ, _F_SETDELEG, 0, 1), _deny()],
    )
    # The limit on core dumps stays at 1 (see setup.py); whoever sets it is told that it worked.
    worked = _op(_RET, _ERRNO)
    parts += _when(calls["setrlimit"], [_op(_LD, _ARG0), _op(_JEQ, _RLIMIT_CORE, 0, 1), worked])
    parts += _when(
        calls["prlimit64"],
        [
            _op(_LD, _ARG1), _op(_JEQ, _RLIMIT_CORE, 0, 5), _op(_LD, _ARG2), _op(_JEQ, 0, 0, 2),
            _op(_LD, _ARG2 + 4), _op(_JEQ, 0, 1, 0), worked,
        ],
    )  # fmt: skip
    for name in ("socket", "socketpair"):
        body = [_op(_LD, _ARG0)]
        body += [_op(_JEQ, family, len(_FAMILIES) - at, 0) for at, family in enumerate(_FAMILIES)]
        body += [_deny(errno.EAFNOSUPPORT)]
        parts += _when(calls[name], body)
    # One comparison for each denied call, all jumping to the last instruction.
    numbers = (pair[column] for pair in DENIED.values())
    denied = sorted(number for number in numbers if number is not None)
    for at, number in enumerate(denied):
        parts.append(_op(_JEQ, number, len(denied) - at, 0))
    parts += [_op(_RET, _ALLOW), _deny()]
    return b"".join(parts)


def _when(number: int, body: list[bytes]) -> list[bytes]:
    """The body only for one call; the number stays loaded for those after it."""
    return [_op(_JEQ, number, 0, len(body) + 1), *body, _op(_RET, _ALLOW)]
