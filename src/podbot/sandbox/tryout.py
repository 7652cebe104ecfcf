"""The part of the probe that really tries things; a program, never imported.

`probe.py` runs it with `-I -S` in a process of its own: single-threaded, because the
kernel refuses a user namespace to a thread, and fresh, because nothing done here may
stay behind in the caller. What it mounts ends with it. Each step becomes one line of
JSON: its name, its errno (0 if it worked), a value and a place.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CLONE_NEWUSER = 0x10000000
CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUTS = 0x04000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
MOUNT_ATTR_RDONLY = 1
# The newer system calls have one number on all machines.
SYS_MOUNT_SETATTR = 442
SYS_LANDLOCK_CREATE_RULESET = 444
LANDLOCK_CREATE_RULESET_VERSION = 1
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
SECCOMP_RET_ALLOW = 0x7FFF0000
SECCOMP_RET_ERRNO = 0x00050000

# Exists everywhere, and nothing that is tried needs what it holds.
SCRATCH = "/dev"


def try_out(folders: list[str], overlaid: list[str]) -> None:
    """Try every step in turn, overlays below each of `folders`; see `_attempt`.

    Each of `overlaid` is a folder of the host that a sandbox overlays, with its layer there.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long

    def check(result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
        texts = [os.fsencode(text) for text in (source, target, kind)]
        check(libc.mount(*texts, ctypes.c_ulong(flags), os.fsencode(data)))

    def landlock_abi() -> int:
        number = SYS_LANDLOCK_CREATE_RULESET
        flag = LANDLOCK_CREATE_RULESET_VERSION
        return check(libc.syscall(number, None, ctypes.c_size_t(0), flag))

    def unshare_user() -> None:
        check(libc.unshare(CLONE_NEWUSER))

    def map_ids() -> None:
        # An ordinary user may map groups only after giving up setgroups.
        Path("/proc/self/setgroups").write_text("deny", "ascii")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", "ascii")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", "ascii")

    def unshare_rest() -> None:
        flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
        check(libc.unshare(flags))
        mount("none", "/", "", MS_REC | MS_PRIVATE)
        # Room to mount things, of this process alone; no disk is needed for it.
        mount("tmpfs", SCRATCH, "tmpfs", 0)

    def read_only_root() -> None:
        root = f"{SCRATCH}/root"
        os.mkdir(root)
        mount("/", root, "", MS_BIND | MS_REC)
        # struct mount_attr: attr_set, attr_clr, propagation, userns_fd
        attributes = struct.pack("=QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
        where = ctypes.c_char_p(os.fsencode(root))
        size = ctypes.c_size_t(len(attributes))
        check(
            libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, where, AT_RECURSIVE, attributes, size),
        )
        try:
            os.mkdir(f"{root}{SCRATCH}/written")
        except OSError as refusal:
            if refusal.errno == errno.EROFS:
                return
            raise
        raise OSError(errno.EEXIST, "the tree stayed writable")

    def overlay(folder: str) -> None:
        # Relative names, so that no character of the path can end an option.
        os.chdir(folder)
        for name in ("lower", "lower/kept", "upper", "work", "merged"):
            os.mkdir(name)
        Path("lower/kept/file").touch()
        mount(
            "overlay",
            "merged",
            "overlay",
            0,
            "lowerdir=lower,upperdir=upper,workdir=work,userxattr",
        )
        # A folder removed and made again must be empty: that needs whiteouts and
        # the opaque mark, which some filesystems below cannot store.
        os.unlink("merged/kept/file")
        os.rmdir("merged/kept")
        os.mkdir("merged/kept")
        if os.listdir("merged/kept") or not os.path.exists("lower/kept/file"):
            raise OSError(errno.EIO, "the overlay shows a removed file")

    def overlay_over(host_folder: str, folder: str) -> None:
        os.chdir(folder)
        for name in ("hides", "own/upper", "own/work"):
            os.makedirs(name, exist_ok=True)
        lower = os.open(host_folder, os.O_PATH | os.O_CLOEXEC)
        # What hides paths lies in the layer folder too, as a second lower folder.
        lowers = f"lowerdir=hides:/proc/self/fd/{lower}"
        options = f"{lowers},upperdir=own/upper,workdir=own/work,userxattr"
        try:
            mount("overlay", "merged", "overlay", 0, options)
        finally:
            os.close(lower)
        check(libc.umount2(b"merged", MNT_DETACH))

    def fresh_proc() -> None:
        # Only children of an unshared process are in its new pid namespace.
        child = os.fork()
        if child == 0:
            code = 0
            try:
                os.mkdir(f"{SCRATCH}/proc")
                mount("proc", f"{SCRATCH}/proc", "proc", 0)
            except OSError as failure:
                code = failure.errno or errno.EIO
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            raise OSError(abs(code), "")

    def seccomp() -> None:
        # Load the number of the call; refuse one with an unlikely errno; allow the rest.
        instructions = (
            (0x20, 0, 0, 0),
            (0x15, 0, 1, SYS_LANDLOCK_CREATE_RULESET),
            (0x06, 0, 0, SECCOMP_RET_ERRNO | errno.ENOTNAM),
            (0x06, 0, 0, SECCOMP_RET_ALLOW),
        )
        code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
        keep = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("@HP", len(instructions), ctypes.addressof(keep))
        zero = ctypes.c_ulong(0)
        check(libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero))
        check(libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), program))
        try:
            landlock_abi()
        except OSError as refusal:
            if refusal.errno == errno.ENOTNAM:
                return
        raise OSError(errno.ENOSYS, "the filter has no effect")

    uid, gid = os.getuid(), os.getgid()
    _attempt("landlock", landlock_abi)
    namespaces = {"unshare user": unshare_user, "map ids": map_ids, "unshare rest": unshare_rest}
    if all(_attempt(step, action) for step, action in namespaces.items()):
        _attempt("read-only root", read_only_root)
        for folder in folders:
            if _attempt(f"overlay {folder}", partial(overlay, folder), os.path.dirname(folder)):
                for place in overlaid:
                    _attempt(f"over {place}", partial(overlay_over, place, folder), place)
        os.chdir("/")
        _attempt("proc", fresh_proc)
    _attempt("seccomp", seccomp)


def _attempt(step: str, action: Callable[[], int | None], where: str = "") -> bool:
    """Try one step, print how it ended as a line of JSON, and say whether it worked."""
    error, value = 0, 0
    try:
        value = action() or 0
    except OSError as failure:
        error = failure.errno or errno.EIO
    print(json.dumps({"step": step, "error": error, "value": value, "where": where}), flush=True)
    return error == 0


if __name__ == "__main__":
    try_out(*json.loads(sys.argv[1]))
