"""What is known of the changes that a server's tools made, for whoever reviews them.

An overlay's layer stays by itself. This writes the record beside it, as `podbot run` does, so that
`podbot changes` can say what it is and how it ended. A layer without changes goes, and its record
with it.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from podbot.changes.capture import capture
from podbot.errors import ChangesError, PodbotError
from podbot.frozen import replace
from podbot.runs import records
from podbot.runs.records import Record
from podbot.sandbox import layers

if TYPE_CHECKING:
    from podbot.mcp.request import ServeRequest
    from podbot.sandbox.sandbox import Sandbox


class Keeping:
    """The record of one server. Any thread may call."""

    def __init__(self, request: ServeRequest):
        if request.name is not None:
            records.check_name(request.name)
        self._request = request
        self._lock = threading.Lock()
        self._record: Record | None = None

    def follow(self, sandbox: Sandbox | None) -> None:
        """See to it that there is a record of the layer that is in use now.

        It is another one only if the sandbox was lost before anything was changed in it.
        """
        layer = None if sandbox is None else sandbox.layer
        with self._lock:
            before = self._record
            if sandbox is None or layer is None or (before and before.id == layer.id):
                return
            self._record = Record(
                id=layer.id,
                name=self._request.name,
                command=self._request.command,
                targets=layer.targets,
                backend=sandbox.backend,
                network=sandbox.policy.network,
                started=time.time(),
                owner=os.getpid(),
                guarantees=sandbox.guarantees,
                notes=sandbox.notes,
            )
            records.write(self._record, durable=False)
        if before is not None:
            _forget(before)

    def ending(self, error: str | None = None) -> None:
        """The server ends: as it should, by a hang-up or a signal, or by an ``error``.

        Said before the sandbox closes, so that nobody sees a server that is over and says nothing.
        """
        if self._record is not None:
            status = 0 if error is None else 1
            self._record = replace(self._record, ended=time.time(), exit_status=status, error=error)
            with suppress(ChangesError):  # a full disk; the layer is listed all the same
                records.write(self._record)

    def ended(self) -> str | None:
        """The sandbox is closed: the id of what is kept, if anything is."""
        if self._record is None or _forget(self._record):
            return None
        return self._record.id


def _forget(record: Record) -> bool:
    """Remove the record of a layer that holds no changes; whether it was one."""
    layer = layers.get(record.id)
    if layer is not None and layer.method != "overlay":
        with suppress(PodbotError):  # whoever reviews it will be told
            # A copy of the target is never empty, so nobody has looked yet.
            if not capture(layer).changes:
                layer.discard()
                layer = None
    if layer is not None:
        return False
    with suppress(ChangesError):
        records.remove(record.id)
    return True
