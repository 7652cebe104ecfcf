"""From a fresh fork to a locked-down sandbox: the numbered story of the overlay backend.

Runs once, in the child that will be the guest, right after `kernel.fork_into` put it into new
user, mount, pid, ipc, uts and (unless the policy says host) net namespaces. The plan is made and
trusted by the host. When `enter` returns, nothing here can be undone from inside: no capability
is left, none can be gained, and the calls that could matter are filtered. A step that fails
raises `SetupError`, and the child ends without ever running anything.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import socket
import stat
import struct
from collections.abc import Iterator
from typing import TypedDict

from podbot.sandbox.overlay import kernel, seccomp


class Overlay(TypedDict):
    """One overlay mount: lower folders from the top down; no upper means read-only."""

    at: str
    lower: list[str]
    upper: str | None
    work: str | None


class Bind(TypedDict):
    """A part of the host tree shown at a place, writable or not."""

    source: str
    at: str
    writable: bool


class Plan(TypedDict):
    """Everything the child must do, decided by the host. Paths are absolute.

    ``private`` are folders to cover with a fresh tmpfs, and its mode; ``writable`` is where
    Landlock lets anything change.
    """

    uid: int
    gid: int
    network: str
    overlays: list[Overlay]
    binds: list[Bind]
    private: dict[str, str]
    writable: list[str]
    cgroups: list[str]
    rlimits: dict[str, int]
    tmp_size: int


class SetupError(Exception):
    """A step that failed, told with a kind and a remedy as in `podbot.errors`."""

    def __init__(self, kind: str, message: str, remedy: str | None = None):
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.remedy = remedy


DOCTOR = "run `podbot doctor`: it names the setting and how to change it"
DEVICES = (b"null", b"zero", b"full", b"random", b"urandom", b"tty")
SAFE = kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV


@contextlib.contextmanager
def _step(kind: str, what: str, remedy: str | None = DOCTOR) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            kind, remedy = "out_of_descriptors", "raise the limit on open files (ulimit -n)"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT) and kind != "userns_denied":
            kind, remedy = "disk_full", "free some space where the sandbox's layer lies"
        elif error.errno == errno.ENOSYS:
            kind, remedy = "kernel_too_old", "podbot needs Linux 5.12 or newer for this backend"
        raise SetupError(kind, f"{what}: {os.strerror(error.errno or 0)} ({error})", remedy) from None


def enter(plan: Plan) -> None:
    """Turn this process into the inside of a sandbox."""
    with _step("lockdown_failed", "joining the control group"):
        for folder in plan["cgroups"]:
            _write(f"{folder}/cgroup.procs", "0")
    # 1. In the new user namespace we are nobody until we say who we are: ourselves. One id only,
    #    so there is nothing to switch to; setgroups must be given up before gid_map is allowed.
    with _step("userns_denied", "mapping the user into the namespace"):
        _write("/proc/self/uid_map", f"{plan['uid']} {plan['uid']} 1")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/gid_map", f"{plan['gid']} {plan['gid']} 1")
    _mounts(plan)
    if plan["network"] == "none":
        # A new net namespace has a loopback device, but it is down.
        with _step("lockdown_failed", "bringing up loopback"):
            _loopback_up()
    os.umask(0o022)
    _lock_down(plan)


def _mounts(plan: Plan) -> None:
    """Rebuild what this namespace sees. Nothing shows on the host: the tree was copied."""
    with _step("lockdown_failed", "cutting off the mount namespace"):
        kernel.make_private()
    # 2. Take hold of what must stay writable, and of devices, before all becomes read-only.
    #    A detached mount keeps its flags whatever happens to the tree.
    layers = [(overlay, _overlay(overlay)) for overlay in plan["overlays"]]
    with _step("lockdown_failed", "opening a path of the policy"):
        binds = [
            (bind, kernel.clone_tree(os.fsencode(bind["source"]), recursive=True))
            for bind in plan["binds"]
        ]
    with _step("lockdown_failed", "opening /dev"):
        devices = [(name, kernel.clone_tree(b"/dev/" + name)) for name in DEVICES]
    # 3. Everything that exists becomes read-only and loses its setuid bits, mounts below too.
    with _step("lockdown_failed", "making the host's tree read-only"):
        attributes = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID
        kernel.set_attributes(b"/", add=attributes, recursive=True)
    # 4. Fresh private places on top of the shared ones. What was below them (other users'
    #    files, sockets of agents, buses and displays) cannot be named any more.
    with _step("lockdown_failed", "making private folders"):
        size = str(plan["tmp_size"])
        for path, mode in plan["private"].items():
            mount = kernel.new_mount("tmpfs", {"mode": mode, "size": size}, SAFE)
            kernel.attach(mount, os.fsencode(path))
        _devices(devices, size)
    # 5. The writable layers and the policy's paths, outermost first.
    with _step("lockdown_failed", "attaching the layers"):
        for overlay, mount in sorted(layers, key=lambda pair: len(pair[0]["at"])):
            _attach(mount, overlay["at"], plan["private"])
        for bind, mount in sorted(binds, key=lambda pair: len(pair[0]["at"])):
            if not bind["writable"]:
                kernel.set_attributes(mount, add=kernel.MOUNT_ATTR_RDONLY, recursive=True)
            kernel.set_attributes(mount, add=SAFE, recursive=True)
            _attach(mount, bind["at"], plan["private"])
    # 6. A /proc of our own pid namespace. Read-only: to the kernel, root in here is still the
    #    owner of /proc/sys, and capabilities are not asked for there.
    with _step(
        "proc_refused",
        "mounting a fresh /proc",
        "inside a container, start it with /proc unmasked "
        "(podman: --security-opt unmask=ALL; docker: --security-opt systempaths=unconfined)",
    ):
        attributes = SAFE | kernel.MOUNT_ATTR_NOEXEC | kernel.MOUNT_ATTR_RDONLY
        kernel.attach(kernel.new_mount("proc", {}, attributes), b"/proc")
    # 7. Every descriptor that still points below the new mounts goes; then step onto them.
    os.closerange(4, 1 << 20)
    os.chdir("/")


def _overlay(overlay: Overlay) -> int:
    with _step(
        "overlay_refused",
        f"mounting an overlay over {overlay['at']}",
        "use a target on a local disk file system (ext4, xfs, btrfs, …), without mounts below it",
    ):
        # Layers are named by descriptor, so no byte of a path is ever read as an option.
        names = []
        for path in (*overlay["lower"], overlay["upper"], overlay["work"]):
            if path is not None:
                fd = os.open(os.fsencode(path), os.O_PATH | os.O_DIRECTORY)
                names.append(f"/proc/self/fd/{fd}")
        options: dict[str, str | None] = {"userxattr": None}
        if overlay["upper"] is not None:
            options["workdir"] = names.pop()
            options["upperdir"] = names.pop()
        elif len(names) == 1:
            raise OSError(errno.EINVAL, "an overlay without an upper needs two lower folders")
        options["lowerdir"] = ":".join(names)
        return kernel.new_mount("overlay", options, SAFE)


def _attach(mount: int, at: str, private: dict[str, str]) -> None:
    """Attach a mount; its place is made where it lies in a fresh private folder."""
    path = os.fsencode(at)
    if any(at.startswith(folder + "/") for folder in private):
        if stat.S_ISDIR(os.fstat(mount).st_mode):
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
    kernel.attach(mount, path)


def _devices(devices: list[tuple[bytes, int]], size: str) -> None:
    """/dev with the few devices everything needs, terminals of our own, and shared memory."""
    attributes = kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NOEXEC
    kernel.attach(kernel.new_mount("tmpfs", {"mode": "755", "size": size}, attributes), b"/dev")
    for name, mount in devices:
        os.close(os.open(b"/dev/" + name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        kernel.attach(mount, b"/dev/" + name)
    os.mkdir(b"/dev/pts")
    options: dict[str, str | None] = {"newinstance": None, "ptmxmode": "0666", "mode": "620"}
    kernel.attach(kernel.new_mount("devpts", options, attributes), b"/dev/pts")
    os.symlink("pts/ptmx", "/dev/ptmx")
    os.symlink("/proc/self/fd", "/dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"/dev/{name}")
    os.mkdir(b"/dev/shm")
    os.chmod(b"/dev/shm", 0o1777)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as control:
        request = struct.pack("16sh22x", b"lo", 0x1 | 0x8)  # IFF_UP, IFF_LOOPBACK
        fcntl.ioctl(control, 0x8914, request)  # SIOCSIFFLAGS


def _lock_down(plan: Plan) -> None:
    """Throw away the keys, in the order the kernel allows it."""
    with _step("lockdown_failed", "locking the sandbox down"):
        # 8. From here on no program run inside can gain what we do not have.
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        # 9. All capabilities, for this process and whatever it starts, root's included.
        kernel.drop_capabilities()
        # 10. Landlock: writing only where the plan says, whatever a mount may allow.
        _landlock(plan["writable"])
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for name, value in plan["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        # 11. The filter comes last but for what it would not forbid.
        kernel.install_filter(seccomp.program())
        # 12. Die with the zygote, whoever kills it. (Changing credentials forgets this.)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        # 13. The guest's memory and descriptors are not its neighbours' to read.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


# Everything Landlock can say about changing files, by the ABI that brought it.
_WRITE_FILE, _TRUNCATE, _REFER = 1 << 1, 1 << 14, 1 << 13
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13)) | _REFER
LANDLOCK_MIN_ABI = 2  # the first one that allows renaming across folders at all


def _landlock(writable: list[str]) -> None:
    abi = kernel.landlock_abi()
    if abi < LANDLOCK_MIN_ABI:
        return  # the launcher reports it as missing
    handled = _CHANGES | (_TRUNCATE if abi >= 3 else 0)
    scoped = 0b11 if abi >= 6 else 0  # abstract sockets and signals of processes outside
    ruleset = kernel.landlock_ruleset(handled, 0, scoped, abi)
    for path in writable:
        fd = os.open(os.fsencode(path), os.O_PATH | os.O_CLOEXEC)
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        access = handled if is_folder else handled & (_WRITE_FILE | _TRUNCATE)
        kernel.landlock_allow(ruleset, access, fd)
        os.close(fd)
    kernel.landlock_enforce(ruleset)
    os.close(ruleset)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
