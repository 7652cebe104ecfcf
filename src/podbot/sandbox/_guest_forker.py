"""The program that forks local guests: starting an interpreter for each costs more than all else.

It loads what a guest is made of once, and keeps one fork in stock that waits for its order. Once
it has one, nothing ties it to this process: it ends when its host closes its line or is gone,
kills what it started first, and outlives this one where it must. This ends with its owner.
"""

from __future__ import annotations

import _socket as socket
import gc
import os
import select
import signal
import struct
import sys
import time

from podbot.sandbox.guest.families import end_descendants
from podbot.sandbox.guest.loop import usual_signals
from podbot.sandbox.guest.requests import Guest
from podbot.sandbox.guest.syscalls import LIBC

CONTROL = 3
ENDED_WELL = b"."
PAUSE = 0.01
_TAKEN = b"+"


def main() -> None:
    """Serve the control socket whose descriptor, and the owner whose pid, are on the line."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    os.closerange(control.fileno() + 1, 1 << 20)  # what the owner's caller left open for children
    os.chdir("/")
    usual_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here asks how a guest ended
    owner = _watched(int(sys.argv[2]))
    LIBC.load()
    gc.collect()
    gc.freeze()
    while True:
        near, far = socket.socketpair()
        if os.fork() == 0:
            near.close()
            _wait_for_an_order(control, far)
        far.close()
        poll = select.poll()
        for fd in (near.fileno(), *owner):
            poll.register(fd, select.POLLIN)
        if [fd for fd, _ in poll.poll()] != [near.fileno()]:
            os._exit(0)
        if near.recv(1) != _TAKEN:
            if _is_closed(control):
                os._exit(0)
            time.sleep(PAUSE)  # something killed it
        near.close()


def _watched(owner: int) -> list[int]:
    """What tells that the owner is gone, though a fork of it may hold a copy of the line."""
    try:
        return [os.pidfd_open(owner)]
    except ProcessLookupError:
        os._exit(0)
    except OSError:
        return []  # a kernel without them: the line has to do


def _is_closed(control: socket.socket) -> bool:
    try:
        return not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _wait_for_an_order(control: socket.socket, forker: socket.socket) -> None:
    """The fork's whole life. Never returns."""
    try:
        LIBC.die_with_parent(True)
        os.closerange(CONTROL + 1, forker.fileno())
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        inside = Guest()
        data, given, _, _ = control.recvmsg(16, 64, socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)
        LIBC.die_with_parent(False)
        line, life = (fd for _, _, raw in given for fd in struct.unpack("2i", raw))
        forker.send(_TAKEN)
        control.send(b"%d" % os.getpid())
        control.close()
        forker.close()
        inside.serve(line, line)
        end_descendants()
        os.write(life, ENDED_WELL)
    finally:
        os._exit(0)
