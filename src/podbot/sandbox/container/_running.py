"""A container that runs: how to end it, freeze it, and tell why it ended.

Its first process is the guest, held by a descriptor of ours. So it can be killed, and its death be
waited for, without the engine; the engine is asked only to remove what is left, and does that by
itself if nobody asks.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

from podbot.engine import ContainerSpec, Created, Engine
from podbot.errors import ContainerError, Kind

END_SECONDS = 30.0
RETRY_SECONDS = 0.02


class Running:
    """One container, from its start to its end."""

    def __init__(self, engine: Engine, created: Created, spec: ContainerSpec):
        self.engine, self.id, self.name = engine, created.id, spec.name or created.id
        self.spec, self.runtime = spec, created.runtime
        self._guest = -1
        self._ended = False
        self.paused = False
        self.grouped: bool | None = None
        """Whether it runs in a control group of its own, if that can be seen."""

    def hold(self, pid: int) -> None:
        """Keep hold of its first process, so that its number cannot come to mean another one."""
        with suppress(OSError):  # gone already: whoever talks to it will notice
            self._guest = os.pidfd_open(pid)
            # Not every runtime puts its containers where the engine has set the limits.
            self.grouped = self.id in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")

    def pause(self) -> None:
        """Freeze everything in it."""
        self.engine.containers.pause(self.id)
        self.paused = True

    def resume(self) -> None:
        """Let it go on."""
        self.engine.containers.unpause(self.id)
        self.paused = False

    def kill(self) -> None:
        """Kill its first process, and with it all others; wait until they are dead."""
        if self._guest < 0:
            return
        try:
            signal.pidfd_send_signal(self._guest, signal.SIGKILL)
        except PermissionError:
            return  # not ours to kill: the engine does it when it removes the container
        except ProcessLookupError:
            pass
        self._await_death()

    def _await_death(self) -> None:
        poller = select.poll()
        poller.register(self._guest, select.POLLIN)
        poller.poll(END_SECONDS * 1000)

    def end(self) -> None:
        """Kill it and have it removed. May be called twice; an engine that is gone is no error."""
        if self._ended:
            return
        self._ended = True
        self.kill()
        try:
            remove(self.engine, self.id)
        finally:
            if self._guest >= 0:
                self._await_death()
                os.close(self._guest)
                self._guest = -1


def remove(engine: Engine, container: str) -> None:
    """Have a container removed, also while the engine is busy removing it by itself."""
    deadline = time.monotonic() + END_SECONDS
    while True:
        try:
            engine.containers.remove(container)
            return
        except ContainerError as error:
            # Its process is dead, and an engine that is away removes it when it sees that.
            if error.kind in (Kind.CONNECTION_FAILED, Kind.CLOSED, Kind.SOCKET_NOT_FOUND):
                return
            if time.monotonic() > deadline:
                raise
        time.sleep(RETRY_SECONDS)
