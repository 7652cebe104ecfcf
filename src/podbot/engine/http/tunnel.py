"""An engine on another machine, reached through ssh, as Podman lists its connections.

The ssh program makes the tunnel, with the user's own configuration, known hosts and agent, so that
podbot never handles a key. It asks for no password: what needs one fails. The tunnel ends with the
engine, and with this process.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping

from podbot.engine.finding.endpoints import Endpoint
from podbot.engine.finding.leash import Leashed, PrivateFolder, listens
from podbot.engine.http.dialing import SocketDialer
from podbot.errors import ContainerError, Kind

START_SECONDS = 30.0


def command(endpoint: Endpoint, local: str) -> list[str]:
    """The ssh command that makes ``local`` lead to the endpoint's socket."""
    options = ["-N", "-T", "-p", str(endpoint.port), "-L", f"{local}:{endpoint.path}"]
    for setting in (
        "BatchMode=yes",
        "ExitOnForwardFailure=yes",
        "ServerAliveInterval=15",
        # A shared master would outlive the tunnel, or end it.
        "ControlMaster=no",
        "ControlPath=none",
    ):
        options += ["-o", setting]
    if endpoint.identity:
        options += ["-i", endpoint.identity, "-o", "IdentitiesOnly=yes"]
    target = f"{endpoint.user}@{endpoint.host}" if endpoint.user else endpoint.host
    return ["ssh", *options, "--", target]


class TunnelDialer:
    """Connects through a tunnel that is made when first needed, and again if it broke."""

    host = "d"

    def __init__(self, endpoint: Endpoint, environment: Mapping[str, str]):
        self._endpoint, self._environment = endpoint, dict(environment)
        self._folder: PrivateFolder | None = None
        self._running: Leashed | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    def dial(self, seconds: float | None) -> socket.socket:
        """A connection to the engine at the far end."""
        self._forget_after_fork()
        with self._lock:
            if self._folder is None:
                self._folder = PrivateFolder(self._environment)
            path = self._folder.place("engine.sock")
            if self._running is None or not self._running.alive:
                self._start(path)
        return SocketDialer(path, str(self._endpoint)).dial(seconds)

    def close(self) -> None:
        """End the tunnel."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._running is not None:
                self._running.end()
                self._running = None
            if self._folder is not None:
                self._folder.remove()
                self._folder = None

    def _start(self, path: str) -> None:
        assert self._folder is not None  # noqa: S101 - made by the caller
        if self._running is not None:
            self._running.end()
        if os.path.exists(path):
            os.unlink(path)  # left by a tunnel that was killed
        log = self._folder.place("log")
        self._running = Leashed(command(self._endpoint, path), self._environment, log)
        deadline = time.monotonic() + START_SECONDS
        # ssh opens the socket once it is let in.
        while time.monotonic() < deadline and self._running.alive:
            if listens(path):
                return
            time.sleep(0.01)
        said = self._running.said()
        self._running.end()
        raise ContainerError(
            f"no ssh to {self._endpoint}: {said or 'it took too long'}",
            kind=Kind.CONNECTION_FAILED,
            remedy="see that `ssh` to that host works without a password (a key, an agent)",
            subject=str(self._endpoint),
        )

    def _forget_after_fork(self) -> None:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._lock = threading.Lock()
            if self._running is not None:
                self._running.forget()
            if self._folder is not None:
                self._folder.forget()
            self._running = self._folder = None
