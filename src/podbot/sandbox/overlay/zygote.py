"""The zygote: a small, single-threaded parent that forks one guest per sandbox.

Starting an interpreter costs more than making every namespace, so it is done once: the host
execs this program, and each request forks a child that walks through `setup.enter` and becomes
the guest. It holds each layer's lock for as long as its sandbox lives. It ends when its owner
does (the control socket closes, or the owner's pidfd fires), and its children die with it.
It must stay single-threaded, and must never run anything for a sandbox itself.
"""

from __future__ import annotations

import array
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from typing import cast

from podbot.sandbox import guest
from podbot.sandbox.overlay import kernel, setup

MESSAGE_LIMIT = 1 << 20
GUEST_FD = 3


class Zygote:
    """Forks, remembers and ends guests."""

    def __init__(self, control: socket.socket, owner: int, files: tuple[int, int]):
        """``files`` is the limit on open files that guests shall have."""
        self._control = control
        self._files = files
        self._children: dict[int, tuple[int, int]] = {}  # sandbox number → (pid, lock)
        self._ending: set[int] = set()
        self._owner_fd = os.pidfd_open(owner)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake = wake_read
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._poll = select.poll()
        for fd in (control.fileno(), self._owner_fd, wake_read):
            self._poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Until the owner is gone."""
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._owner_fd:
                    return
                if fd == self._wake:
                    os.read(self._wake, 4096)
                    self._reap()
                elif not self._message():
                    return

    def _message(self) -> bool:
        data, fds = _receive(self._control)
        if not data:
            return False
        request = json.loads(data)
        if request["op"] == "start":
            self._start(request["number"], cast(setup.Plan, request["plan"]), *fds)
        elif request["op"] == "end":
            self._end(request["number"])
        return True

    def _start(self, number: int, plan: setup.Plan, line: int, lock: int) -> None:
        flags = (
            kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC
            | kernel.CLONE_NEWUTS | (kernel.CLONE_NEWNET if plan["network"] == "none" else 0)
        )  # fmt: skip
        try:
            pid = kernel.fork_into(flags)
        except OSError as error:
            _report(line, "userns_denied", f"making namespaces: {error}", setup.DOCTOR)
            os.close(line)
            os.close(lock)
            return
        if pid == 0:
            _become_guest(line, plan, self._files)
        os.close(line)
        self._children[number] = (pid, lock)

    def _end(self, number: int) -> None:
        if number not in self._children:
            self._say_ended(number)
            return
        self._ending.add(number)
        # Our own child, not reaped yet: the pid cannot be anyone else's.
        os.kill(self._children[number][0], signal.SIGKILL)
        self._reap()

    def _reap(self) -> None:
        for number, (pid, lock) in list(self._children.items()):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
            del self._children[number]
            os.close(lock)
            if number in self._ending:
                self._ending.discard(number)
                self._say_ended(number)

    def _say_ended(self, number: int) -> None:
        try:
            self._control.send(json.dumps({"ended": number}).encode())
        except OSError:
            pass  # the owner is gone; serve() sees it next


def _become_guest(line: int, plan: setup.Plan, files: tuple[int, int]) -> None:
    """The child's whole life. Never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        os.dup2(line, GUEST_FD, inheritable=False)
        os.closerange(GUEST_FD + 1, 1 << 20)
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        gc.enable()
        try:
            setup.enter(plan)
        except setup.SetupError as error:
            _report(GUEST_FD, error.kind, error.message, error.remedy)
        else:
            _say(GUEST_FD, {"id": 0, "ready": True})
            guest.Guest(GUEST_FD, GUEST_FD).serve()
            status = 0
    except BaseException as error:
        _report(GUEST_FD, "launch_failed", f"{type(error).__name__}: {error}", None)
    finally:
        os._exit(status)  # pid 1 of the namespace: the kernel kills everything else in it


def _report(line: int, kind: str, message: str, remedy: str | None) -> None:
    """Say on a guest's line why there is no guest."""
    _say(line, {"id": 0, "error": {"kind": kind, "message": message, "remedy": remedy}})


def _say(line: int, head: dict[str, object]) -> None:
    """The first word on a guest's line, before any request: the frame with number 0."""
    body = json.dumps(head).encode("ascii")
    try:
        os.write(line, guest.HEADER.pack(len(body), 0) + body)
    except OSError:
        pass  # the host hung up already


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    data, ancillary, _, _ = control.recvmsg(
        MESSAGE_LIMIT, socket.CMSG_SPACE(2 * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for _, _, raw in ancillary:
        fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    return data, list(fds)


def main() -> None:
    """Serve the control socket whose descriptor, and the owner whose pid, are on the line."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))  # one lock a sandbox
    os.chdir("/")
    zygote = Zygote(control, int(sys.argv[2]), files)
    # What is loaded now is shared by all guests: keep the collector from touching it.
    gc.collect()
    gc.freeze()
    gc.disable()
    zygote.serve()
