"""From a fresh fork to a locked-down sandbox: the numbered story of the overlay backend.

Runs once, in the child that will be the guest, right after `kernel.fork_into` put it into new
user, mount, pid, ipc, uts and (unless the policy says host) net namespaces: first `HalfwayChild`,
which needs to know nothing, then `HalfwayChild.enter` with the plan, which the host made. When that
returns, nothing here can be undone from inside: no capability is left, none can be gained, and the
calls that could matter are filtered. A step that fails raises `SetupError`, and the child ends
without ever running anything.
"""

from __future__ import annotations

import _socket as socket
import contextlib
import errno
import fcntl
import os
import resource
import signal
import stat
import struct
from collections.abc import Iterator

from podbot import kernel
from podbot.frozen import dataclass
from podbot.sandbox.guest.loopback import listening
from podbot.sandbox.overlay import _seccomp
from podbot.sandbox.overlay.shared import LANDLOCK_MIN_ABI

# Not from typing: it would cost every start of the zygote several milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.sandbox.overlay._plan import Bind, Overlay, Plan


class SetupError(Exception):
    """A step that failed, told with a kind and a remedy as in `podbot.errors`."""

    def __init__(self, kind: str, message: str, remedy: str | None = None):
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.remedy = remedy


_FILTER = _seccomp.program() if kernel.MACHINE in _seccomp.AUDIT_ARCH else b""
DOCTOR = "run `podbot doctor`: it names the setting and how to change it"
UNMASK = (
    "inside a container, start it with /proc unmasked "
    "(podman: --security-opt unmask=ALL; docker: --security-opt systempaths=unconfined)"
)
OTHER_TARGET = (
    "use a target on a local disk file system (ext4, xfs, btrfs, …), without mounts below it"
)
TMPFS: dict[str, str | None] = {"size": str(2 << 30), "nr_inodes": str(1 << 20)}
"""How much each folder in memory holds: empty files are memory, too."""
DEVICES = (b"null", b"zero", b"full", b"random", b"urandom", b"tty")
SAFE = kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
_READ_ONLY = kernel.MOUNT_ATTR_RDONLY


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
        raise SetupError(
            kind, f"{what}: {os.strerror(error.errno or 0)} ({error})", remedy
        ) from None


@dataclass(frozen=True, slots=True)
class Terms:
    """What is known before any plan: who we are, and what every sandbox of this host has.

    ``private`` are folders to cover with a fresh tmpfs, and its mode; ``veils`` are mounts to lay
    over folders, ``closed`` those to cover (see `_veils`); ``alone`` means no network, ``rehearse``
    that there is time to warm up.
    """

    uid: int
    gid: int
    layer_root: str
    private: dict[str, str]
    veils: dict[str, int]
    closed: list[str]
    alone: bool
    rehearse: bool


class HalfwayChild:
    """A child half-way: in its own namespaces, with everything no plan decides done.

    The zygote keeps one such child in stock, so that a sandbox need not wait for it.
    """

    def __init__(self, terms: Terms):
        self._private, self._veils = terms.private, terms.veils
        self._made = list(terms.private)  # folders of ours, where places for mounts can be made
        self.pid = int(os.readlink("/proc/self"))  # the host's number: its /proc is still there
        self._first_fd = os.open("/", os.O_PATH | os.O_CLOEXEC)  # all we open comes after it
        # 1. In the new user namespace we are nobody until we say who we are: ourselves. One id
        #    only, so there is nothing to switch to; setgroups goes before gid_map is allowed.
        with _step("userns_denied", "mapping the user into the namespace"):
            _write("/proc/self/uid_map", f"{terms.uid} {terms.uid} 1")
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/gid_map", f"{terms.gid} {terms.gid} 1")
        # 2. From here on nothing we mount shows on the host, nor the other way round. Take hold
        #    of what is about to be covered or made read-only: a detached mount keeps its flags.
        with _step("lockdown_failed", "cutting off the mount namespace"):
            kernel.make_private()
            layer_tree = kernel.clone_tree(os.fsencode(terms.layer_root))
            devices = [(name, kernel.clone_tree(b"/dev/" + name)) for name in DEVICES]
        # 3. Everything that exists becomes read-only and loses its setuid bits and devices (a
        #    chroot somewhere may hold the disk's), mounts below too; only the folder of layers
        #    stays writable, until it is covered.
        with _step("lockdown_failed", "making the host's tree read-only"):
            attributes = kernel.MOUNT_ATTR_RDONLY | SAFE
            kernel.set_attributes(b"/", add=attributes, recursive=True)
            kernel.attach(layer_tree, os.fsencode(terms.layer_root))
            self._originals = {
                path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in terms.private
            }
        # 4. Fresh private places on top of the shared ones. What was below them (other users'
        #    files, sockets of agents, buses and displays) cannot be named any more.
        with _step("lockdown_failed", "making private folders"):
            for path, mode in terms.private.items():
                mount = kernel.new_mount("tmpfs", {"mode": mode, **TMPFS}, SAFE)
                kernel.attach(mount, os.fsencode(path))
            _devices(devices)
            for path in terms.closed:
                with contextlib.suppress(FileNotFoundError):  # gone with what it was mounted in
                    empty = kernel.new_mount("tmpfs", {"size": "1"}, SAFE | _READ_ONLY)
                    kernel.attach(empty, os.fsencode(path))
        # 5. A /proc of our own pid namespace.
        with _step("proc_refused", "mounting a fresh /proc", UNMASK):
            attributes = SAFE | kernel.MOUNT_ATTR_NOEXEC
            self._proc = kernel.new_mount("proc", {}, attributes)
            kernel.attach(self._proc, b"/proc")
        if terms.alone:
            # A new net namespace has a loopback device, but it is down.
            with _step("lockdown_failed", "bringing up loopback"):
                _loopback_up()
        os.umask(0o022)

    def enter(self, plan: Plan) -> socket.socket | None:
        """Do the rest: the plan's mounts, then throw away the keys.

        Descriptors opened since this object was made are closed, but for the socket to hand out.
        """
        # 6. The writable layers and the policy's paths, outermost first. All of them are opened
        #    before what only root may read is veiled; what hides paths lies over the veils.
        writable = [overlay for overlay in plan["overlays"] if overlay["upper"] is not None]
        layers = [(overlay["at"], self._overlay(overlay)) for overlay in writable]
        templates = [
            (overlay, [self._lower(path, overlay["at"]) for path in overlay["lower"][:-1]])
            for overlay in plan["overlays"]
            if overlay["upper"] is None
        ]
        with _step("lockdown_failed", "showing a path of the policy"):
            binds = [(bind, self._bind(bind)) for bind in plan["binds"]]
        openings = self._veil(plan)
        layers += self._hiding(templates, openings) + openings
        with _step("lockdown_failed", "attaching the layers"):
            for at, mount in sorted(layers, key=_depth):
                self._attach(mount, at)
            for bind, mount in sorted(binds, key=lambda bound: len(bound[0]["at"])):
                if not bind["covers"]:
                    self._attach(mount, bind["at"])
                elif not _is_at_or_below(bind["at"], openings):
                    # What it covers went meanwhile, or is behind a veil. Its place is never made:
                    # it may lie in a folder that is the host's own.
                    with contextlib.suppress(FileNotFoundError, PermissionError):
                        _put(mount, bind["at"])
            for _, mount in openings:
                kernel.set_attributes(mount, add=kernel.MOUNT_ATTR_RDONLY)
        # 7. /proc becomes read-only: to the kernel, root in here is still the owner of
        #    /proc/sys, and capabilities are not asked for there.
        with _step("lockdown_failed", "closing /proc"):
            if plan["pid_max"] is not None:
                # Counted for this pid namespace alone since Linux 6.14.
                _write("/proc/sys/kernel/pid_max", str(plan["pid_max"]))
            kernel.set_attributes(self._proc, add=kernel.MOUNT_ATTR_RDONLY)
        # 8. Every descriptor that still points below the new mounts goes; then step onto them.
        os.closerange(self._first_fd, 1 << 20)
        os.chdir("/")
        listener = None
        if plan["listen"] is not None:
            # Before anybody inside could take the port.
            with _step("lockdown_failed", "listening for the proxy"):
                listener = listening(plan["listen"])
        _lock_down(plan)
        return listener

    def _original(self, path: str) -> int:
        """A folder or file of the host's tree, also where a private folder covers it now.

        The host resolved every link already. One found now was put there since: refused.
        """
        flags = os.O_PATH | os.O_CLOEXEC
        for folder, fd in self._originals.items():
            if path.startswith(folder + "/"):
                return kernel.open_real(os.fsencode(path[len(folder) + 1 :]), flags, fd)
        return kernel.open_real(os.fsencode(path), flags)

    def _veil(self, plan: Plan) -> list[tuple[str, int]]:
        """Lay the veils; gives what takes the place of folders that are closed behind them."""
        with _step("lockdown_failed", "veiling what only root may read"):
            for folder, mount in self._veils.items():
                if folder in plan["veils"]:
                    kernel.attach(mount, os.fsencode(folder))
                os.close(mount)
            openings = plan["openings"] if self._veils else []
            self._made += openings
            return [
                (at, kernel.new_mount("tmpfs", {"mode": "755", **TMPFS}, SAFE)) for at in openings
            ]

    def _hiding(
        self, templates: list[tuple[Overlay, list[int]]], openings: list[tuple[str, int]]
    ) -> list[tuple[str, int]]:
        """The overlays that only hide, over what the veils leave of their folders."""
        found = []
        for overlay, above in templates:
            at = overlay["at"]
            if _is_at_or_below(at, openings):
                continue  # nothing of it is there
            with contextlib.suppress(PermissionError):  # closed behind a veil
                os.close(self._original(at))
                found.append((at, self._overlay(overlay, above)))
        return found

    def veiled(self, plan: Plan) -> list[str]:
        """The folders that were veiled, of those that should be."""
        return [folder for folder in plan["veils"] if folder in self._veils]

    def _lower(self, path: str, at: str) -> int:
        with _step("target_refused", f"opening {at}", "it changed meanwhile: try again"):
            return self._original(path)

    def _overlay(self, overlay: Overlay, above: list[int] | None = None) -> int:
        """An overlay; what is ``above`` its last lower folder may have been opened before."""
        # Layers are named by descriptor, so no byte of a path is ever read as an option.
        at, paths = overlay["at"], overlay["lower"]
        if above is None:
            above = [self._lower(path, at) for path in paths[:-1]]
        lower = [f"/proc/self/fd/{fd}" for fd in (*above, self._lower(paths[-1], at))]
        options: dict[str, str | None] = {"userxattr": None, "lowerdir": ":".join(lower)}
        if overlay["upper"] is not None and overlay["work"] is not None:
            options["upperdir"] = f"/proc/self/fd/{self._lower(overlay['upper'], at)}"
            options["workdir"] = f"/proc/self/fd/{self._lower(overlay['work'], at)}"
        with _step("overlay_refused", f"mounting an overlay over {at}", OTHER_TARGET):
            return kernel.new_mount("overlay", options, SAFE)

    def _bind(self, bind: Bind) -> int:
        fd = self._original(bind["source"])
        mount = kernel.clone_tree(f"/proc/self/fd/{fd}".encode(), recursive=True)
        read_only = kernel.MOUNT_ATTR_RDONLY
        if bind["writable"]:
            kernel.set_attributes(mount, add=SAFE, clear=read_only, recursive=True)
        else:
            kernel.set_attributes(mount, add=SAFE | read_only, recursive=True)
        return mount

    def _attach(self, mount: int, at: str) -> None:
        """Attach a mount; its place is made where it lies in a fresh private folder."""
        path = os.fsencode(at)
        if any(at.startswith(folder + "/") for folder in self._made):
            if stat.S_ISDIR(os.fstat(mount).st_mode):
                os.makedirs(path, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        _put(mount, at)


def _put(mount: int, at: str) -> None:
    """Attach a mount to what is there."""
    kernel.attach(mount, b"", kernel.open_real(os.fsencode(at), os.O_PATH | os.O_CLOEXEC))


def _is_at_or_below(path: str, places: list[tuple[str, int]]) -> bool:
    return any(f"{path}/".startswith(f"{place}/") for place, _ in places)


def _depth(placed: tuple[str, int]) -> int:
    return len(placed[0])


def _devices(devices: list[tuple[bytes, int]]) -> None:
    """/dev with the few devices everything needs, terminals of our own, and shared memory."""
    attributes = kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NOEXEC
    kernel.attach(kernel.new_mount("tmpfs", {"mode": "755", **TMPFS}, attributes), b"/dev")
    for name, mount in devices:
        os.close(os.open(b"/dev/" + name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        # Read-only is about the node, not the device: root must not chmod the host's.
        kernel.set_attributes(mount, add=attributes | kernel.MOUNT_ATTR_RDONLY)
        kernel.attach(mount, b"/dev/" + name)
    os.mkdir(b"/dev/pts")
    options: dict[str, str | None] = {"newinstance": None, "ptmxmode": "0666", "mode": "620"}
    kernel.attach(kernel.new_mount("devpts", options, attributes), b"/dev/pts")
    os.symlink("pts/ptmx", "/dev/ptmx")
    os.symlink("/proc/self/fd", "/dev/fd")
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"/dev/{stream}")
    os.mkdir(b"/dev/shm")
    os.chmod(b"/dev/shm", 0o1777)  # noqa: S103 - as on any Linux, and only this sandbox sees it


def _loopback_up() -> None:
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        request = struct.pack("16sh22x", b"lo", 0x1 | 0x8)  # IFF_UP, IFF_LOOPBACK
        fcntl.ioctl(control, 0x8914, request)  # SIOCSIFFLAGS
    finally:
        control.close()


def _lock_down(plan: Plan) -> None:
    """Throw away the keys, in the order the kernel allows it."""
    with _step("lockdown_failed", "locking the sandbox down"):
        # 9. From here on no program run inside can gain what we do not have.
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        # 10. All capabilities, for this process and whatever it starts, root's included.
        kernel.drop_capabilities()
        # 11. Landlock: writing only where the plan says, whatever a mount may allow.
        _landlock(plan["writable"])
        # No core dumps. 1 and not 0: it is what keeps the kernel from starting a handler on the
        # host, which would read what a crashed process inside prepared for it.
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
        for name, value in plan["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        # 12. The filter comes last but for what it would not forbid.
        kernel.install_filter(_FILTER)
        # 13. Die with the zygote, whoever kills it. (Changing credentials forgets this.)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        # 14. The guest's memory and descriptors are not its neighbours' to read.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


# Everything Landlock can say about changing files, by the ABI that brought it.
_WRITE_FILE, _TRUNCATE, _REFER = 1 << 1, 1 << 14, 1 << 13
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13)) | _REFER


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
