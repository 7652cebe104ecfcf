"""The system calls that no sandbox of podbot's has: one table for overlay and containers.

A deny list, because agents run every tool there is: what could undo a sandbox, reaches kernel
interfaces that no tool needs, or types into another terminal. `sandbox/overlay/_seccomp.py` makes a
BPF program of it, `engine/_seccomp.py` the profile that container engines take. Only data: whoever
adds a line gives it a number for both machines, and its reason.
"""

from __future__ import annotations

import errno

from podbot.frozen import dataclass
from podbot.kernel import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWTIME,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
)

MACHINES = ("x86_64", "aarch64")
Numbers = tuple[int | None, int | None]
"""Of a call on each of `MACHINES`; None where it has none."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Refused where one of these bits is set in an argument (its low half, as of all these)."""

    argument: int
    bits: int
    errno: int = errno.EPERM


@dataclass(frozen=True, slots=True)
class OneOf:
    """Refused where an argument is one of these values."""

    argument: int
    values: tuple[int, ...]
    errno: int = errno.EPERM


@dataclass(frozen=True, slots=True)
class Unless:
    """Refused unless one way fits; a way is conditions that all hold: argument, mask, value."""

    ways: tuple[tuple[tuple[int, int, int], ...], ...]
    errno: int = errno.EPERM


Rule = AnyOf | OneOf | Unless
WHOLE = 0xFFFFFFFF
"""The mask of an argument that is looked at whole."""

# name: (x86_64, aarch64); None where the architecture has no such call.
REFUSED: dict[str, Numbers] = {
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
    # Memory that nobody outside can look into, not even to count or end it
    "memfd_secret": (447, 447),
    # What is mounted and which file systems there are, by old calls that no libc uses
    "sysfs": (139, None), "ustat": (136, None),
    # Modules, kexec, the machine itself
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "create_module": (174, None), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "iopl": (172, None), "ioperm": (173, None), "vhangup": (153, 58),
    "nfsservctl": (180, 42), "lookup_dcookie": (212, 18), "uselib": (134, None),
    "_sysctl": (156, None), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "modify_ldt": (154, None),
    # Where on the machine memory lies: the machine is everybody's
    "mbind": (237, 235), "set_mempolicy": (238, 237), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "set_mempolicy_home_node": (450, 450),
}  # fmt: skip

ABSENT: dict[str, Numbers] = {
    # Its flags lie in memory, where no filter can read them: libc falls back to clone.
    "clone3": (435, 435),
    # They tell of mounts by number, those outside of a root too; tools read /proc/self/mountinfo.
    "statmount": (457, 457),
    "listmount": (458, 458),
}
"""Refused as if the kernel had no such call (ENOSYS)."""

NEWEST = 469
"""The last number that this table was made with (Linux 6.18). What a later kernel brings nobody has
judged, so it does not exist either: programs do without, as they do on older kernels."""

_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID
    | CLONE_NEWNET
)  # fmt: skip
_PTRACE_ATTACH, _PTRACE_SEIZE = 16, 0x4206
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_F_SETLEASE, _F_SETDELEG = 1024, 1040
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16

_NETLINK_ROUTE = 0
_PERSONALITY_QUERY = 0xFFFFFFFF
_PER_LINUX32, _UNAME26, _ADDR_NO_RANDOMIZE = 0x8, 0x20000, 0x40000
_HARMLESS = _PER_LINUX32 | _UNAME26 | _ADDR_NO_RANDOMIZE

_FAMILIES = Unless(
    (
        *(((0, WHOLE, family),) for family in (_AF_UNIX, _AF_INET, _AF_INET6)),
        ((0, WHOLE, _AF_NETLINK), (2, WHOLE, _NETLINK_ROUTE)),
    ),
    errno.EAFNOSUPPORT,
)
NETLINK_AT_LARGE = Unless(
    tuple(((0, WHOLE, family),) for family in (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)),
    errno.EAFNOSUPPORT,
)
"""In place of what is said of sockets, where containers are to run inside: their engines set up
firewalls."""

JUDGED: dict[str, tuple[Numbers, Rule]] = {
    # A namespace of one's own gives every capability in it.
    "clone": ((56, 220), AnyOf(0, _NAMESPACES)),
    "unshare": ((272, 97), AnyOf(0, _NAMESPACES | CLONE_NEWTIME)),
    # A debugger may start what it debugs, but not take what runs already.
    "ptrace": ((101, 117), OneOf(0, (_PTRACE_ATTACH, _PTRACE_SEIZE))),
    # Typing into a terminal that somebody else reads; line disciplines, a module each.
    "ioctl": ((16, 29), OneOf(1, (_TIOCSTI, _TIOCLINUX, _TIOCSETD))),
    # Executable data, a page at zero, other systems' rules. Debuggers turn randomizing off.
    "personality": (
        (135, 92),
        Unless((((0, WHOLE & ~_HARMLESS, 0),), ((0, WHOLE, _PERSONALITY_QUERY),))),
    ),
    # A lease on a host's file makes the host wait.
    "fcntl": ((72, 25), OneOf(1, (_F_SETLEASE, _F_SETDELEG))),
    # Of vsock, packet, alg, bluetooth and the like no tool has a use, nor of netlink but for
    # addresses and routes: audit, netfilter, crypto, xfrm and the rest have a history.
    "socket": ((41, 198), _FAMILIES),
    "socketpair": ((53, 199), _FAMILIES),
}
"""Refused by what their arguments are."""
