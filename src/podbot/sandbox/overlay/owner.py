"""The host's handle on its zygote: one a process, started when first needed.

A fork of the host (multiprocessing, pytest-xdist) must not share it: the child lets go of its
copy and starts its own. If the zygote dies, its sandboxes die with it and the next one starts
anew.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import json
import os
import select
import socket
import threading
from itertools import count
from typing import TYPE_CHECKING

from podbot.frozen import dataclass
from podbot.sandbox.overlay import ahead

if TYPE_CHECKING:
    from podbot.sandbox.overlay._plan import Plan

END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Order:
    """What the zygote must know to start one sandbox: ``separate``, with a network of its own."""

    plan: Plan
    separate: bool
    cgroups: list[str]
    layer_root: str


class ZygoteOwner:
    """A running zygote and the line to it."""

    def __init__(self) -> None:
        self._pid, line = ahead.take() or ahead.start()
        self._control = socket.socket(fileno=line)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._control.settimeout(END_SECONDS)
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._ended: set[int] = set()
        self._burial = threading.Lock()
        self._buried = False

    @property
    def alive(self) -> bool:
        """Whether the zygote still runs."""
        with self._burial:
            if not self._buried:
                try:
                    self._buried = os.waitpid(self._pid, os.WNOHANG)[0] != 0
                except ChildProcessError:
                    self._buried = True  # the program around us waited for any child, and got it
            return not self._buried

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._pid

    def start(self, order: Order, line: socket.socket, lock: int) -> int:
        """Have it fork a guest that serves ``line``; gives the number to end it with."""
        with self._lock:
            number = next(self._numbers)
            request = {
                "op": "start", "number": number, "separate": order.separate,
                "cgroups": order.cgroups, "layer_root": order.layer_root,
            }  # fmt: skip
            # The plan goes behind it on a line of its own: the zygote passes it on unread.
            data = f"{json.dumps(request)}\n{json.dumps(order.plan)}".encode("ascii")
            fds = array.array("i", [line.fileno(), lock])
            self._control.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            return number

    def prepare(self, layer_root: str) -> None:
        """Have it make the first part of a sandbox now, for a `start` that comes soon.

        For programs that need just one: none is kept in stock after it.
        """
        request = {"op": "prepare", "layer_root": layer_root}
        with self._lock, contextlib.suppress(OSError):
            self._control.send(json.dumps(request).encode("ascii"))

    def end(self, number: int) -> None:
        """Kill a guest and all of its sandbox; returns when they are dead."""
        with self._lock:
            try:
                self._control.send(json.dumps({"op": "end", "number": number}).encode("ascii"))
                while number not in self._ended:
                    data = self._control.recv(4096)
                    if not data:
                        return  # the zygote died, and its children with it
                    self._ended.add(json.loads(data)["ended"])
                self._ended.discard(number)
            except OSError:
                return  # likewise

    def discard(self, number: int, path: str) -> None:
        """Kill a guest and all of its sandbox, then remove a folder; none of it is waited for."""
        request = {"op": "discard", "number": number, "path": path}
        with self._lock, contextlib.suppress(OSError):
            self._control.send(json.dumps(request).encode("ascii"))

    def let_go(self) -> None:
        """Close our end: in a fork, so that the owner's end is noticed, or once it is dead."""
        self._control.close()

    def stop(self) -> None:
        """End the zygote and every sandbox it holds."""
        self._control.close()
        if not self.alive:
            return
        fd = os.pidfd_open(self._pid)  # ours until buried: the number is nobody else's
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(int(END_SECONDS * 1000))
        finally:
            os.close(fd)
        self.alive  # noqa: B018 - buries it


_owner: ZygoteOwner | None = None
_guard = threading.Lock()


def zygote() -> ZygoteOwner:
    """This process's zygote, started or replaced as needed."""
    global _owner  # noqa: PLW0603 - one a process
    with _guard:
        if _owner is not None and not _owner.alive:
            _owner.let_go()  # its sandboxes died with it
            _owner = None
        if _owner is None:
            _owner = ZygoteOwner()
        return _owner


def _forget_in_child() -> None:
    global _owner, _guard  # noqa: PLW0603 - one a process
    _guard = threading.Lock()
    if _owner is not None:
        _owner.let_go()
        _owner = None


def _stop_at_exit() -> None:
    if _owner is not None:
        _owner.stop()


os.register_at_fork(after_in_child=_forget_in_child)
# Registered before any sandbox can be: it runs after they were closed.
atexit.register(_stop_at_exit)
