"""Where a guest starts that is a program of its own: in a container, or on the local backend."""

from __future__ import annotations

import _socket as socket
import os
import sys

from podbot.sandbox.guest import loopback
from podbot.sandbox.guest.families import end_descendants
from podbot.sandbox.guest.loop import usual_signals
from podbot.sandbox.guest.requests import Guest


def main() -> None:
    """Serve the descriptors named on the command line (one for both ways, or two), or the socket
    that waits at the path named there; behind that may be a port to listen at for who waits."""
    if sys.argv[1].startswith("/"):
        line = socket.socket(socket.AF_UNIX)
        line.connect(sys.argv[1])
        in_fd = out_fd = line.detach()
        if len(sys.argv) > 2:
            port = int(sys.argv[2])
            loopback.hand_out(in_fd, {"id": 0, "listening": port}, loopback.listening(port))
    else:
        in_fd, out_fd = int(sys.argv[1]), int(sys.argv[-1])
    os.set_inheritable(in_fd, False)
    os.set_inheritable(out_fd, False)
    os.chdir("/")
    usual_signals()
    Guest().serve(in_fd, out_fd)
    end_descendants()
