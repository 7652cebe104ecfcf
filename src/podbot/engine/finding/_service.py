"""podbot's own Podman service, for machines where Podman is installed and no service runs.

One for a process and environment, shared by its engines, on a socket in a private folder. It ends
with the last engine that uses it, at exit, and when this process is killed (`leash.py`). If it is
idle for long it ends by itself; the next call starts it again.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping

from podbot.engine.finding.leash import Leashed, PrivateFolder, listens
from podbot.engine.http.dialing import SocketDialer
from podbot.errors import ContainerError, Kind

IDLE_SECONDS = 300
START_SECONDS = 30.0
NOTICE_SECONDS = 5.0
"""How long the end of a service may take to be noticed, once its socket refuses."""

Key = tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]


class Service:
    """A Podman service of our own."""

    def __init__(self, podman: str, environment: Mapping[str, str], options: tuple[str, ...] = ()):
        self._podman, self._environment = podman, dict(environment)
        self._options = options
        self._folder = PrivateFolder(environment)
        self._running: Leashed | None = None
        self._lock = threading.Lock()
        self.users = 0
        self.path = self._folder.place("engine.sock")

    def dial(self, seconds: float | None) -> socket.socket:
        """A connection to it; started first if it does not run."""
        running = self._ensure()
        try:
            return SocketDialer(self.path).dial(seconds)
        except ContainerError:
            # It may have ended, idle or killed, between the look and the call.
            if not running.ends_within(NOTICE_SECONDS):
                raise
        self._ensure()
        return SocketDialer(self.path).dial(seconds)

    def _ensure(self) -> Leashed:
        with self._lock:
            if self._running is None or not self._running.alive:
                self._running = self._start()
            return self._running

    def stop(self) -> None:
        """End it, and remove its folder."""
        if self._running is not None:
            self._running.end()
        self._folder.remove()

    def forget(self) -> None:
        """In a fork: it belongs to the parent."""
        if self._running is not None:
            self._running.forget()
        self._folder.forget()

    def _start(self) -> Leashed:
        if self._running is not None:
            self._running.end()
        if os.path.exists(self.path):
            os.unlink(self.path)  # left by one that was killed
        argv = [
            self._podman,
            *self._options,
            "system",
            "service",
            f"--time={IDLE_SECONDS}",
            f"unix://{self.path}",
        ]
        starting = Leashed(argv, self._environment, self._folder.place("log"))
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and starting.alive:
            if listens(self.path):
                return starting
            time.sleep(0.005)
        said = starting.said()
        starting.end()
        raise ContainerError(
            f"{self._podman} did not start a service: {said or 'it took too long'}",
            kind=Kind.CONNECTION_FAILED,
            remedy="run `podman info` and mend what it complains of",
            subject=self._podman,
        )


class ServiceDialer:
    """Connects to a shared service; closing the last one ends it."""

    host = "d"

    def __init__(self, podman: str, environment: Mapping[str, str], options: tuple[str, ...] = ()):
        """``options`` are Podman's own, for the service: ``--runtime``, say."""
        self._key: Key = (podman, tuple(sorted(environment.items())), options)
        self.service = _acquire(self._key, environment)
        self._process = os.getpid()

    def dial(self, seconds: float | None) -> socket.socket:
        """A connection to the service."""
        if self._process != os.getpid():  # a fork has its own
            self._process = os.getpid()
            self.service = _acquire(self._key, dict(self._key[1]))
        return self.service.dial(seconds)

    def close(self) -> None:
        """Done with the service."""
        if self._process == os.getpid():
            _release(self._key)


_services: dict[Key, Service] = {}
_guard = threading.Lock()


def _acquire(key: Key, environment: Mapping[str, str]) -> Service:
    with _guard:
        service = _services.get(key)
        if service is None:
            if not _services:
                _register()
            service = _services[key] = Service(key[0], environment, key[2])
        service.users += 1
        return service


def _release(key: Key) -> None:
    with _guard:
        service = _services.get(key)
        if service is None:
            return
        service.users -= 1
        if service.users > 0:
            return
        del _services[key]
    service.stop()


_registered = False


def _register() -> None:
    global _registered  # noqa: PLW0603 - once a process
    if not _registered:
        import weakref

        _registered = True
        # At exit, and not by atexit: finalizers run in turn, the last one made first, so whatever
        # uses a service and was made later ends before it does.
        weakref.finalize(Service, _stop_all)
        os.register_at_fork(after_in_child=_forget_all)


def _stop_all() -> None:
    while _services:
        _services.popitem()[1].stop()


def _forget_all() -> None:
    global _guard  # noqa: PLW0603 - another thread may hold the old one for ever
    _guard = threading.Lock()
    while _services:
        _services.popitem()[1].forget()
