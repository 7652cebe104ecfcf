"""Kernel calls the overlay backend makes, through ctypes: one thin function each.

Every call that fails raises `OSError` with the errno and the name of the call, so that the story
in `_setup.py` can say what the failure means. Nothing here decides anything. Serves x86_64 and
aarch64; newer calls have the same number on both.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

MACHINE = os.uname().machine

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_NEWTIME = 0x00000080

MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8
MOUNT_ATTR_IDMAP = 0x100000

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
FSOPEN_CLOEXEC = 1
FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_FLAG = 0
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2
# no_setuid_fixup, noroot and no_cap_ambient_raise, each with its lock.
SECUREBITS_LOCKED = 0x1 | 0x2 | 0x4 | 0x8 | 0x40 | 0x80

_SIGCHLD = 17  # everywhere but on machines we know no numbers of; the module costs time
_NUMBERS = {
    "openat2": 437,
    "renameat2": 276 if MACHINE == "aarch64" else 316,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "statx": 291 if MACHINE == "aarch64" else 332,
    "fallocate": 47 if MACHINE == "aarch64" else 285,
    "clone": 220 if MACHINE == "aarch64" else 56,
    "capset": 91 if MACHINE == "aarch64" else 126,
}

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_mount = _libc.mount
# An apply renames thousands of things: a call whose types are known costs a microsecond less.
_renameat2 = _libc["syscall"]
_renameat2.restype = ctypes.c_long
_renameat2.argtypes = [
    ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint
]  # fmt: skip


class KernelError(OSError):
    """A kernel call that said no; ``call`` is its name.

    Also a `FileNotFoundError` or a `PermissionError` where a path was the reason (ENOENT, EACCES).
    """

    def __new__(cls, number: int, call: str) -> KernelError:
        return super().__new__(_OF_PATHS.get(number, cls), number, call)

    def __init__(self, number: int, call: str):
        super().__init__(number, f"{call}: {os.strerror(number)}")
        self.call = call


class _NotFoundError(KernelError, FileNotFoundError):
    pass


class _ClosedError(KernelError, PermissionError):
    pass


_OF_PATHS = {errno.ENOENT: _NotFoundError, errno.EACCES: _ClosedError}


def _call(name: str, *args: object) -> int:
    result = int(_syscall(ctypes.c_long(_NUMBERS[name]), *args))
    if result < 0:
        raise KernelError(ctypes.get_errno(), name)
    return result


def prctl(option: int, arg2: int = 0, arg3: int = 0) -> None:
    """prctl(2) with unsigned long arguments."""
    if _prctl(option, arg2, arg3, 0, 0) < 0:
        raise KernelError(ctypes.get_errno(), f"prctl({option})")


def fork_into(flags: int) -> int:
    """fork(2) whose child starts in new namespaces; 0 in the child, its pid in the parent.

    Only for a process with one thread: the raw call skips what libc does around fork, and
    Python's own part is told by hand.
    """
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(
        _syscall(ctypes.c_long(_NUMBERS["clone"]), ctypes.c_ulong(flags | _SIGCHLD),
                 None, None, None, None)
    )  # fmt: skip
    number = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise KernelError(number, "clone")
    return pid


def make_private() -> None:
    """Cut this mount namespace off: no mount event goes in or out."""
    if _mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None) < 0:
        raise KernelError(ctypes.get_errno(), "mount(private)")


def new_mount(kind: str, options: dict[str, str | None], attributes: int = 0) -> int:
    """Make a detached mount of a file system and return its descriptor.

    Each option is one call of its own, so no value is ever parsed for commas.
    """
    context = _call("fsopen", kind.encode(), ctypes.c_uint(FSOPEN_CLOEXEC))
    try:
        for key, value in options.items():
            if value is None:
                _call("fsconfig", context, FSCONFIG_SET_FLAG, key.encode(), None, 0)
            else:
                _call("fsconfig", context, FSCONFIG_SET_STRING, key.encode(), value.encode(), 0)
        _call("fsconfig", context, FSCONFIG_CMD_CREATE, None, None, 0)
        return _call("fsmount", context, ctypes.c_uint(FSMOUNT_CLOEXEC), ctypes.c_uint(attributes))
    finally:
        os.close(context)


def attach(mount: int, path: bytes, dir_fd: int = AT_FDCWD) -> None:
    """Put a detached mount at a path, or with an empty one at what ``dir_fd`` is open on."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | (0 if path else MOVE_MOUNT_T_EMPTY_PATH)
    _call("move_mount", mount, b"", dir_fd, path, flags)


def open_real(path: bytes, flags: int, dir_fd: int = AT_FDCWD) -> int:
    """Open a path none of whose steps may be a link (ELOOP else)."""
    no_links = 0x02 | 0x04  # RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS
    how = struct.pack("QQQ", flags, 0, no_links)
    return _call("openat2", dir_fd, path, how, ctypes.c_size_t(len(how)))


def open_beneath(folder: int, path: bytes, flags: int) -> int:
    """Open a relative path that may not leave the folder, nor have a link in any step."""
    closed = 0x02 | 0x04 | 0x08  # RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH
    how = struct.pack("QQQ", flags, 0, closed)
    try:
        return _call("openat2", folder, path, how, ctypes.c_size_t(len(how)))
    except KernelError as error:
        number = error.errno or 0
    # As Python's own calls would say it: a FileNotFoundError is one.
    raise OSError(number, os.strerror(number), os.fsdecode(path))


def born_ns(fd: int) -> int | None:
    """When what a descriptor holds was made, by the host's clock; None where that is not kept."""
    birth, empty_path, size = 0x800, 0x1000, 256
    found = ctypes.create_string_buffer(size)
    try:
        _call("statx", fd, b"", empty_path, ctypes.c_uint(birth), found)
    except KernelError:
        return None
    if not struct.unpack_from("I", found)[0] & birth:
        return None
    seconds, rest = struct.unpack_from("qI", found, 80)
    return int(seconds) * 1_000_000_000 + int(rest)


RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2


def rename(source: tuple[int, bytes], destination: tuple[int, bytes], flags: int) -> None:
    """Rename by folder and name: never over something (NOREPLACE), or trade places (EXCHANGE)."""
    if _renameat2(_NUMBERS["renameat2"], *source, *destination, flags) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fsdecode(destination[1]))


def sync_file_system(fd: int) -> None:
    """Wait until the file system a descriptor is on has everything on its disk."""
    if _libc.syncfs(fd) < 0:
        raise KernelError(ctypes.get_errno(), "syncfs")


def reserve(fd: int, offset: int, size: int) -> None:
    """Keep room for a file on its disk, from an offset on; the file stays as long as it is."""
    keep_size = 1
    _call(
        "fallocate", ctypes.c_int(fd), ctypes.c_int(keep_size), ctypes.c_long(offset),
        ctypes.c_long(size),
    )  # fmt: skip


def clone_tree(path: bytes, recursive: bool = False) -> int:
    """A detached bind of what is at a path now, with or without the mounts beneath it."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    return _call("open_tree", AT_FDCWD, path, ctypes.c_uint(flags))


def set_attributes(
    where: int | bytes, add: int = 0, clear: int = 0, recursive: bool = False, users: int = 0
) -> None:
    """Change the flags of a mount (a descriptor or a path), or of all beneath it too.

    ``users``: the user namespace, by descriptor, whose ids its files show (MOUNT_ATTR_IDMAP).
    """
    fd, path = (where, b"") if isinstance(where, int) else (AT_FDCWD, where)
    flags = (AT_EMPTY_PATH if isinstance(where, int) else 0) | (AT_RECURSIVE if recursive else 0)
    attr = struct.pack("QQQQ", add, clear, 0, users)
    _call("mount_setattr", fd, path, ctypes.c_uint(flags), attr, ctypes.c_size_t(len(attr)))


def detach(path: bytes) -> None:
    """Take down what is mounted at a path, now for new lookups and later for who is in there."""
    if _libc.umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) < 0:
        raise KernelError(ctypes.get_errno(), "umount2")


def drop_capabilities() -> None:
    """Give up every capability for good: ambient, bounding, permitted, and root's claim to them."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    prctl(PR_SET_SECUREBITS, SECUREBITS_LOCKED)
    capability = 0
    while _prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1  # until EINVAL: past the last one this kernel knows
    if capability == 0 or ctypes.get_errno() != errno.EINVAL:
        raise KernelError(ctypes.get_errno(), "prctl(PR_CAPBSET_DROP)")
    header = struct.pack("Ii", 0x20080522, 0)
    _call("capset", header, bytes(24))


def landlock_abi() -> int:
    """The Landlock version this kernel offers, 0 for none."""
    try:
        return _call("landlock_create_ruleset", None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except OSError:
        return 0


def landlock_ruleset(handled_fs: int, handled_net: int, scoped: int, abi: int) -> int:
    """A new ruleset's descriptor; the struct is as long as this ABI knows it."""
    attr = struct.pack("QQQ", handled_fs, handled_net, scoped)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    return _call("landlock_create_ruleset", attr, ctypes.c_size_t(size), ctypes.c_uint(0))


def landlock_allow(ruleset: int, access: int, parent: int) -> None:
    """Allow ``access`` beneath the folder or file that ``parent`` is a descriptor of."""
    attr = struct.pack("=Qi", access, parent)
    _call("landlock_add_rule", ruleset, 1, attr, ctypes.c_uint(0))


def landlock_enforce(ruleset: int) -> None:
    """Put this thread and all it starts under the ruleset. Needs no_new_privs."""
    _call("landlock_restrict_self", ruleset, ctypes.c_uint(0))


def install_filter(program: bytes) -> None:
    """Install a seccomp program (an array of sock_filter). Needs no_new_privs."""
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    )
    if _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(fprog), 0, 0) < 0:
        raise KernelError(ctypes.get_errno(), "prctl(seccomp)")
