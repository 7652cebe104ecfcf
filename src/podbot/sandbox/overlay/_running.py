"""A live overlay sandbox as the host holds it: how much it wrote, why it died, how it is ended.

What becomes of its layer is decided here: thrown away, or kept with a word on who made it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from podbot.errors import Kind, SandboxError
from podbot.frozen import dataclass
from podbot.sandbox import bookkeeping, layers
from podbot.sandbox.layers import Layer
from podbot.sandbox.overlay import owner
from podbot.sandbox.overlay.cgroups import Group

if TYPE_CHECKING:
    from podbot.sandbox.gateway import Gateway
    from podbot.sandbox.layers.disk_watcher import Watcher


@dataclass(frozen=True, slots=True)
class Below:
    """A kept layer that a sandbox works over without changing it, and the lock that holds it."""

    layer: Layer
    lock: int


class Running:
    """A live overlay sandbox, and how to end it."""

    def __init__(
        self,
        kept: bookkeeping.Kept,
        group: Group,
        zygote: owner.ZygoteOwner,
        number: int,
        discard: bool,
        below: Below | None,
        goes_on: bool,
        gateway: Gateway | None = None,
    ):
        self._goes_on = goes_on
        self._kept, self._layer, self._group, self._below = kept, kept.layer, group, below
        self._zygote, self._number = zygote, number
        self._discard, self._gateway = discard, gateway
        self._disk: Watcher | None = None
        self._memory: Watcher | None = None
        self._ended = False

    def watch_disk(self, limit: int) -> None:
        """Mind how much the layer holds."""
        from podbot.sandbox.layers.disk_watcher import DiskWatcher

        self._disk = DiskWatcher(self._layer.path, limit, self._kill)

    def watch_memory(self, limit: int, guest: int) -> None:
        """Mind how much memory a guest and all that descends from it have."""
        from podbot.sandbox.layers.disk_watcher import Watcher
        from podbot.sandbox.overlay import _memory_use

        def measure(enough: int) -> int:
            return _memory_use.usage(guest, enough)

        self._memory = Watcher(limit, measure, self._kill)

    def _kill(self) -> None:
        self._zygote.end(self._number)

    def end(self) -> None:
        """Kill all of it, then tidy up; a layer with changes stays unless told otherwise.

        What is discarded anyway is killed without waiting for its death.
        """
        if self._ended:
            return
        self._ended = True
        for watcher in (self._disk, self._memory):
            if watcher is not None:
                watcher.stop()
        if self._gateway is not None:
            # First: what is in it may still be written to the layer.
            self._gateway.close()
        if not self._discard or self._group.folders:
            self._zygote.end(self._number)
            self._group.remove()
        if self._discard or self._layer.empty:
            # (one that a sandbox went on in may be empty too: what there was has been undone)
            trash = layers.throw_away(self._layer.path)
            if self._zygote.alive:
                self._zygote.discard(self._number, str(trash))
            else:
                layers.remove(trash)
            if self._goes_on:
                bookkeeping.left(self._layer.id)
        else:
            self._layer.drop_scratch()
            bookkeeping.note(self._kept)
        if self._below is not None:
            os.close(self._below.lock)

    def reason(self) -> SandboxError | None:
        """Why the guest is gone, if we know."""
        if self._memory is not None and self._memory.tripped:
            return SandboxError(
                f"the sandbox had more memory in all than its limit of {self._memory.limit} bytes",
                kind=Kind.LIMIT,
                remedy="raise Limits(memory=…); what it wrote is kept in its layer",
            )
        if self._disk is not None and self._disk.tripped:
            return SandboxError(
                f"the sandbox wrote more than its disk limit of {self._disk.limit} bytes",
                kind=Kind.DISK_LIMIT,
                remedy="raise Limits(disk=…); what it wrote is kept in its layer",
            )
        return None
