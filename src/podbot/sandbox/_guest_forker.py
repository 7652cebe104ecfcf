"""The program that forks local guests: starting an interpreter for each costs more than all else.

It loads what a guest is made of once. A fork has a session of its own and nothing open but its two
lines; nothing else ties it to this process, so that it ends when its host closes it or is gone,
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

from podbot.sandbox.guest.families import end_descendants
from podbot.sandbox.guest.loop import usual_signals
from podbot.sandbox.guest.requests import Guest
from podbot.sandbox.guest.syscalls import LIBC

CONTROL = 3
LINE, LIFE = 3, 4
"""Where a guest finds its line to the host, and the pipe that says how it ended."""
ENDED_WELL = b"."


def main() -> None:
    """Serve the control socket whose descriptor, and the owner whose pid, are on the line."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    os.closerange(control.fileno() + 1, 1 << 20)  # what the owner's caller left open for children
    os.chdir("/")
    usual_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here asks how a guest ended
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    try:
        # Its copy of our line may live on in something it forked.
        poll.register(os.pidfd_open(int(sys.argv[2])), select.POLLIN)
    except ProcessLookupError:
        os._exit(0)
    except OSError:
        pass  # a kernel without them: the line has to do
    LIBC.load()
    gc.collect()
    gc.freeze()
    while True:
        if [fd for fd, _ in poll.poll()] != [control.fileno()]:
            os._exit(0)
        data, given, _, _ = control.recvmsg(16, 64)
        if not data:
            os._exit(0)
        fds = [fd for _, _, raw in given for fd in struct.unpack(f"{len(raw) // 4}i", raw)]
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            _become_guest(fds)
        for fd in fds:
            os.close(fd)
        control.send(b"%d" % pid)


def _become_guest(fds: list[int]) -> None:
    """The fork's whole life. Never returns."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        line, life = (os.dup(fd) for fd in fds)  # above both numbers, whatever they were
        os.dup2(line, LINE, inheritable=False)
        os.dup2(life, LIFE, inheritable=False)
        os.closerange(LIFE + 1, 1 << 20)
        Guest().serve(LINE, LINE)
        end_descendants()
        os.write(LIFE, ENDED_WELL)
    finally:
        os._exit(0)
