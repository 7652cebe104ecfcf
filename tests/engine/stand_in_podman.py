"""A program in the place of podman: serves an engine's first answers where it is told to.

Run as ``stand_in_podman.py system service --time=N unix:///path``. It ends as podman does, when
told to or when nobody was connected for N seconds. ``STAND_IN`` in its environment changes what it
does: ``fails`` (says so and exits), ``deaf`` (never listens), ``stubborn`` (ignores being told).
"""

from __future__ import annotations

import os
import signal
import socketserver
import sys
import time

REPLY = (
    b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nLibpod-Api-Version: 4.3.1\r\n"
    b"Content-Length: 2\r\n\r\nOK"
)


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while line := self.rfile.readline():
            if b"/die" in line:
                os.kill(os.getpid(), signal.SIGKILL)
            while self.rfile.readline().strip():
                pass
            self.wfile.write(REPLY)


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def main() -> None:
    mode = os.environ.get("STAND_IN", "")
    if mode == "fails":
        sys.exit("Error: something is wrong with this podman")
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "deaf":
        time.sleep(60)
    path = sys.argv[-1].removeprefix("unix://")
    with Server(path, Handler) as server:
        server.serve_forever(poll_interval=0.05)


main()
