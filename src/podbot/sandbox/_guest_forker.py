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
    """Serve the control socket whose descriptor is on the command line.

    Its first message brings the owner's pidfd, each later one the socket of an order.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    os.closerange(control.fileno() + 1, 1 << 20)  # what the owner's caller left open for children
    os.chdir("/")
    usual_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here asks how a guest ended
    # It tells that the owner is gone, though a fork of that may hold a copy of the line.
    owner = _received(control)
    if len(owner) != 1:
        os._exit(0)
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


def _received(line: socket.socket) -> list[int]:
    """The descriptors that come with the next message."""
    _, given, _, _ = line.recvmsg(16, 64, socket.MSG_CMSG_CLOEXEC)
    return [fd for _, _, raw in given for (fd,) in struct.iter_unpack("i", raw)]


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
        me = os.pidfd_open(os.getpid())
        wanted = _received(control)
        if len(wanted) != 1:
            os._exit(0)
        LIBC.die_with_parent(False)
        forker.send(_TAKEN)
        control.close()
        forker.close()
        # Each order has a socket of its own: no answer can reach another. What it shall serve
        # comes last, so that an order which nobody waits for any more ends here.
        order = socket.socket(fileno=wanted[0])
        order.sendmsg([b"me"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", me))])
        os.close(me)
        given = _received(order)
        if len(given) != 2:
            os._exit(0)
        order.close()
        line, life = given
        inside.serve(line, line)
        end_descendants()
        os.write(life, ENDED_WELL)
    finally:
        os._exit(0)
