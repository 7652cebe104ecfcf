"""The zygote: a small, single-threaded parent that forks one guest per sandbox.

Starting an interpreter costs more than making every namespace, so it is done once: the host
execs this program, which forks children that walk through `setup` and become guests; one is
kept in stock, half-way. It holds each layer's lock for as long as its sandbox lives. It ends when
its owner does (the control socket closes, or the owner's pidfd fires), and its children die with
it. It must stay single-threaded, and must never run anything for a sandbox itself.
"""

from __future__ import annotations

import _socket as socket  # the plain one brings a quarter of the standard library
import contextlib
import fcntl
import gc
import json
import os
import resource
import select
import signal
import struct
import sys
import time

from podbot import kernel
from podbot.frozen import dataclass
from podbot.sandbox.guest.loop import usual_signals
from podbot.sandbox.guest.loopback import hand_out
from podbot.sandbox.guest.requests import Guest
from podbot.sandbox.guest.trees import remove_tree
from podbot.sandbox.guest.wire import HEADER
from podbot.sandbox.overlay import _setup, _veils
from podbot.sandbox.overlay.shared import PRIVATE

# Not from typing: it would cost every start several milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from podbot.sandbox.overlay._plan import Plan

MESSAGE_LIMIT = 1 << 20
GUEST_FD = 3
IDLE_MILLISECONDS = 20
"""How long nobody must have asked for anything before the stock is filled, unless a sandbox just
ended or several were started in a row: one that just started wants the processor for itself."""


@dataclass(frozen=True, slots=True)
class Child:
    """A fork of ours: not a sandbox yet while in stock, then one until it dies.

    ``mounts`` holds its mount namespace open, so that taking that down is not part of its death
    and nobody who waits for the death waits for it.
    """

    pid: int
    orders: socket.socket
    mounts: int
    layer_root: str


@dataclass(frozen=True, slots=True)
class Running:
    """A child that became a guest; ``lock`` marks its layer as live."""

    child: Child
    lock: int


class Undertaker:
    """A fork of the zygote that does what nobody should wait for.

    Taking down a mount namespace waits for other processors, and removing a layer for the disk.
    """

    def __init__(self) -> None:
        self._line: socket.socket | None = None

    def bury(self, mounts: int) -> None:
        """Let go of a dead sandbox's mount namespace, and so of its mounts."""
        if mounts >= 0:
            self._send(b"", [mounts])
            os.close(mounts)

    def remove(self, path: str) -> None:
        """Remove a discarded layer."""
        if not self._send(os.fsencode(path), []):
            _remove(path)

    def _send(self, path: bytes, fds: list[int]) -> bool:
        try:
            if self._line is None:
                self._line = self._begin()
            _send(self._line, path or b"-", fds, socket.MSG_DONTWAIT)
        except OSError:
            return False  # it is behind, or gone: the caller does it
        return True

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._work(theirs)
        theirs.close()
        return ours

    @staticmethod
    def _work(line: socket.socket) -> None:
        """The fork's whole life: until the zygote is gone and all is done. Never returns."""
        try:
            signal.set_wakeup_fd(-1)
            fd = line.fileno()
            os.closerange(3, fd)
            os.closerange(fd + 1, 1 << 20)
            while True:
                data, fds = _receive(line)
                if not data:
                    break
                for namespace in fds:
                    os.close(namespace)
                if data != b"-":
                    _remove(os.fsdecode(data))
        finally:
            os._exit(0)


class Zygote:
    """Forks, remembers and ends guests."""

    def __init__(self, control: socket.socket, owner: int, files: tuple[int, int]):
        """``files`` is the limit on open files that guests shall have."""
        self._control = control
        self._files = files
        self._sandboxes: dict[int, Running] = {}
        self._numbers: dict[int, int] = {}  # pid → number
        self._undertaker = Undertaker()
        self._ending: set[int] = set()
        self._discarded: dict[int, str] = {}  # number → the layer to remove once it is dead
        self._spare: Child | None = None
        self._private = {path: mode for path, mode in PRIVATE.items() if os.path.isdir(path)}
        self._weaver = _veils.Weaver()
        self._owner_fd = os.pidfd_open(owner)
        self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._poll = select.poll()
        for fd in (control.fileno(), self._owner_fd, self._wake):
            self._poll.register(fd, select.POLLIN)
        self._mount_poll = select.poll()
        self._mount_poll.register(self._mounts, select.POLLPRI)
        self._mount_poll.poll(0)

    def serve(self) -> None:
        """Until the owner is gone."""
        root = None
        while True:
            lacking = root is not None and self._spare is None
            ready = self._poll.poll(self._patience if lacking else None)
            if not ready and root is not None:
                self._stock(root)
            for fd, _ in ready:
                if fd == self._owner_fd:
                    return
                if fd == self._wake:
                    os.read(self._wake, 4096)
                    self._reap()
                elif not self._message():
                    return
                root = self._root

    _root: str | None = None
    _patience = IDLE_MILLISECONDS
    _in_burst = False
    _only_one = False

    def _message(self) -> bool:
        data, fds = _receive(self._control)
        if not data:
            return False
        head, _, plan = data.partition(b"\n")
        request = json.loads(head)
        started = request["op"] == "start"
        self._patience = IDLE_MILLISECONDS if started and not self._in_burst else 0
        self._in_burst = started
        if request["op"] == "start":
            self._root = None if self._only_one else request["layer_root"]
            self._start(request, plan, *fds)
        elif request["op"] == "prepare":
            self._root, self._only_one = request["layer_root"], True
        elif request["op"] == "end":
            self._end(request["number"])
        elif request["op"] == "discard":
            self._discard(request["number"], request["path"])
        return True

    def _start(self, request: dict[str, Any], plan: bytes, line: int, lock: int) -> None:
        try:
            child = self._claim(request["separate"], str(request["layer_root"]))
            for folder in request["cgroups"]:
                with open(f"{folder}/cgroup.procs", "w") as file:
                    file.write(str(child.pid))
            _send(child.orders, plan, [line])
        except OSError as error:
            kind = "userns_denied" if isinstance(error, kernel.KernelError) else "launch_failed"
            _report(line, kind, f"making namespaces: {error}", _setup.DOCTOR)
            os.close(lock)
        else:
            child.orders.close()
            number = request["number"]
            self._sandboxes[number] = Running(child, lock)
            self._numbers[child.pid] = number
        finally:
            os.close(line)

    def _claim(self, alone: bool, layer_root: str) -> Child:
        """The child in stock if it fits, else a new one."""
        spare = self._spare
        if spare is not None and alone:
            self._spare = None
            # A spare made before the host's mounts changed would show the old ones.
            if spare.layer_root == layer_root and not self._mount_poll.poll(0):
                return spare
            self._drop(spare)
        return self._fork(alone, layer_root)

    def _stock(self, layer_root: str) -> None:
        try:
            self._mount_poll.poll(0)
            self._spare = self._fork(
                True, layer_root, rehearse=not (self._in_burst or self._only_one)
            )
        except OSError:
            self._root = None  # not now; the next request says what is wrong

    def _fork(self, alone: bool, layer_root: str, rehearse: bool = False) -> Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_LIMIT)
        veils = self._weaver.weave()
        terms = _setup.Terms(
            os.getuid(), os.getgid(), layer_root, self._private, veils, _veils.closed_mounts(),
            alone, rehearse,
        )  # fmt: skip
        flags = (
            kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC
            | kernel.CLONE_NEWUTS | (kernel.CLONE_NEWNET if alone else 0)
        )  # fmt: skip
        try:
            pid = kernel.fork_into(flags)
        except OSError:
            ours.close()
            theirs.close()
            for mount in veils.values():
                os.close(mount)
            raise
        if pid == 0:
            _become_guest(theirs, terms, self._files)
        theirs.close()
        for mount in veils.values():
            os.close(mount)
        try:
            mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            mounts = -1  # it died at once; whoever reads its line will know
        return Child(pid, ours, mounts, layer_root)

    def _drop(self, child: Child) -> None:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        child.orders.close()
        self._undertaker.bury(child.mounts)

    def _end(self, number: int) -> None:
        running = self._sandboxes.get(number)
        if running is None:
            self._say_ended(number)
            return
        self._ending.add(number)
        # Our own child, not reaped yet: the pid cannot be anyone else's.
        os.kill(running.child.pid, signal.SIGKILL)
        self._reap()

    def _discard(self, number: int, path: str) -> None:
        running = self._sandboxes.get(number)
        if running is None:
            self._undertaker.remove(path)
            return
        self._discarded[number] = path
        os.kill(running.child.pid, signal.SIGKILL)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._spare is not None and pid == self._spare.pid:
                self._spare.orders.close()
                self._undertaker.bury(self._spare.mounts)
                self._spare, self._root = None, None
            number = self._numbers.pop(pid, None)
            if number is None:
                continue
            running = self._sandboxes.pop(number)
            # Unlocked, not only closed: a fork on its way into stock may hold a copy for a moment
            # longer, and whoever is told of the end may discard the layer at once.
            fcntl.flock(running.lock, fcntl.LOCK_UN)
            os.close(running.lock)
            if number in self._ending:
                self._ending.discard(number)
                self._say_ended(number)
            self._undertaker.bury(running.child.mounts)
            path = self._discarded.pop(number, None)
            if path is not None:
                self._undertaker.remove(path)

    def finish(self) -> None:
        """The owner is gone: do what it still asked for. Whatever lives dies with us."""
        self._control.setblocking(False)
        with contextlib.suppress(OSError):
            while self._message():
                pass
        while self._discarded:
            time.sleep(0.001)
            self._reap()

    def _say_ended(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the owner is gone; serve() sees it next
            self._control.send(json.dumps({"ended": number}).encode())


def _remove(path: str) -> None:
    """Remove a discarded layer, so that closing a sandbox need not wait for it."""
    # A later sweep finds what is left; nothing in here may end the sandboxes that live.
    with contextlib.suppress(OSError):
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove_tree(folder, os.path.basename(path))
        finally:
            os.close(folder)


def _become_guest(orders: socket.socket, terms: _setup.Terms, files: tuple[int, int]) -> None:
    """The child's whole life. Never returns."""
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        gc.enable()
        # The line to the zygote is 3 until the guest's own line takes its place.
        os.dup2(orders.fileno(), GUEST_FD, inheritable=False)
        orders.detach()
        last = GUEST_FD
        for mount in sorted(terms.veils.values()):
            os.closerange(last + 1, mount)
            last = mount
        os.closerange(last + 1, 1 << 20)
        inside = Guest()
        made: _setup.HalfwayChild | _setup.SetupError
        try:
            made = _setup.HalfwayChild(terms)
            if terms.rehearse:
                inside.rehearse()
        except _setup.SetupError as error:
            made = error  # told to whoever asks for this child
        waiting = socket.socket(fileno=GUEST_FD)
        data, fds = _receive(waiting)
        waiting.detach()
        if data:
            os.dup2(fds[0], GUEST_FD, inheritable=False)
            os.close(fds[0])
            _serve(inside, made, json.loads(data))
    except BaseException as error:
        _report(GUEST_FD, "launch_failed", f"{type(error).__name__}: {error}", None)
    finally:
        os._exit(0)  # pid 1 of the namespace: the kernel kills everything else in it


def _serve(inside: Guest, made: _setup.HalfwayChild | _setup.SetupError, plan: Plan) -> None:
    try:
        if isinstance(made, _setup.SetupError):
            raise made
        listener = made.enter(plan)
    except _setup.SetupError as error:
        _report(GUEST_FD, error.kind, error.message, error.remedy)
        return
    inside.configure(plan["config"])
    ready = {"id": 0, "ready": True, "veiled": made.veiled(plan), "pid": made.pid}
    if listener is None:
        _say(GUEST_FD, ready)
    else:
        hand_out(GUEST_FD, ready, listener)
    inside.serve(GUEST_FD, GUEST_FD)


def _report(line: int, kind: str, message: str, remedy: str | None) -> None:
    """Say on a guest's line why there is no guest."""
    _say(line, {"id": 0, "error": {"kind": kind, "message": message, "remedy": remedy}})


def _say(line: int, head: dict[str, object]) -> None:
    """The first word on a guest's line, before any request: the frame with number 0."""
    body = json.dumps(head).encode("ascii")
    with contextlib.suppress(OSError):  # the host hung up already
        os.write(line, HEADER.pack(len(body), 0) + body)


def _send(line: socket.socket, data: bytes, fds: list[int], flags: int = 0) -> None:
    rights = struct.pack(f"{len(fds)}i", *fds)
    with_it = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else []
    line.sendmsg([data], with_it, flags)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    data, ancillary, _, _ = control.recvmsg(
        MESSAGE_LIMIT, socket.CMSG_SPACE(struct.calcsize("2i")), socket.MSG_CMSG_CLOEXEC
    )
    fds: list[int] = []
    for _, _, raw in ancillary:
        fds += struct.unpack(f"{len(raw) // 4}i", raw[: len(raw) - len(raw) % 4])
    return data, fds


def main() -> None:
    """Serve the control socket whose descriptor, and the owner whose pid, are on the line."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    os.closerange(control.fileno() + 1, 1 << 20)  # what the owner's caller left open for children
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))  # one lock a sandbox
    os.chdir("/")
    usual_signals()
    try:
        zygote = Zygote(control, int(sys.argv[2]), files)
    except ProcessLookupError:
        os._exit(0)  # the owner has gone already, as one that was only asked for nonsense does
    # What is loaded now is shared by all guests: keep the collector from touching it.
    gc.collect()
    gc.freeze()
    gc.disable()
    zygote.serve()
    zygote.finish()
    os._exit(0)  # at once: whoever reads our owner's output waits for us too
