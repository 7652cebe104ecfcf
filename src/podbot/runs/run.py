"""`Run`: something that works in a sandbox which keeps its changes, from its begin to its end.

It sees to the record: written when the sandbox stands, so that a crash of ours leaves a layer that
says what it is; once more, and durably, when the work has ended; removed if there is nothing to
review. Sandboxes that a program opens by itself have no `Run`: see `noting`.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from podbot.errors import ChangesError, PodbotError
from podbot.frozen import replace
from podbot.runs import noting, opening, records, unchanged
from podbot.runs.records import MAX_EARLIER, Record
from podbot.runs.request import LaunchRequest
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer

if TYPE_CHECKING:
    from podbot.sandbox.gateway import Gateway
    from podbot.sandbox.sandbox import Sandbox


class Run:
    """One run. Any thread may call.

    ``request`` says what is to be noted of it. Raises what `opening.to_continue` raises, and for a
    name that cannot be had `ChangesError`.
    """

    def __init__(self, request: LaunchRequest):
        self.before = opening.to_continue(request)
        if request.name is not None and (self.before is None or self.before.name != request.name):
            records.check_name(request.name)
        self._request = request
        self._lock = threading.Lock()
        self._record: Record | None = None
        self._written = False
        self._gateway: Gateway | None = None
        self._had_layer = False

    def open(self) -> Sandbox:
        """Open its sandbox, and `begin` in it. Raises `LaunchError` and `SandboxError`."""
        sandbox = opening.open_sandbox(self._request, self.before)
        try:
            self.begin(sandbox)
        except BaseException:
            sandbox.close()
            self.finish()
            raise
        return sandbox

    @property
    def record(self) -> Record:
        """What is known of it. Of one that keeps nothing, it is written nowhere."""
        assert self._record is not None, "it was not begun"  # noqa: S101 - a mistake of the caller
        return self._record

    def begin(self, sandbox: Sandbox) -> Record:
        """The sandbox stands: have it be known. Again, should that one have been lost.

        The layer is another one then only if the lost one had held nothing.
        """
        layer = sandbox.layer
        with self._lock:
            lost = self._record
            if lost is not None and (layer is None or lost.id == layer.id):
                return lost
            record = self._record = self._record_of(sandbox, layer)
            self._gateway, self._had_layer = sandbox.gateway, layer is not None
            if self._is_noted(layer):
                noting.see_to(record.id)
                # Without waiting for the disk: it is there for whoever looks after a crash of ours.
                records.write(record, durable=False)
        if lost is not None:
            self._forget(lost.id)
            noting.release(lost.id)
        return record

    def _record_of(self, sandbox: Sandbox, layer: Layer | None) -> Record:
        request, before = self._request, self.before
        old = None if before is None else before.record
        title = request.title
        if title is None and not request.command and layer is not None:
            title = layer.title
        return Record(
            id=records.new_id() if layer is None else layer.id,
            name=request.name or (None if old is None else old.name),
            command=request.command,
            targets=(sandbox.workdir,) if layer is None else layer.targets,
            backend=sandbox.backend,
            network=sandbox.policy.network,
            started=time.time(),
            owner=os.getpid(),
            guarantees=sandbox.guarantees,
            notes=sandbox.notes,
            earlier=() if old is None else (*old.earlier, old.past)[-MAX_EARLIER:],
            title=title,
            program=layers.program(),
        )

    def _is_noted(self, layer: Layer | None) -> bool:
        """Whether there is a layer that the record would be of."""
        return layer is not None and (self.before is None or not self._request.discard)

    def end(
        self,
        exit_status: int | None = None,
        *,
        signal: int | None = None,
        timed_out: bool = False,
        error: str | None = None,
    ) -> str | None:
        """The work has ended; says why that could not be noted, if it could not.

        To be called before the sandbox closes, so that nobody sees a run that is over and does not
        say how. Not written where nothing was changed, as the record goes then.
        """
        with self._lock:
            if self._record is None:
                return None
            self._record = replace(
                self._record,
                ended=time.time(),
                exit_status=exit_status,
                signal=signal,
                timed_out=timed_out,
                error=error,
            )
            layer = layers.get(self._record.id)
            if layer is None or not self._is_noted(layer):
                return None
            # Of what podbot could not do, a word stays as long as the layer does.
            return self._write_end() if error is not None or not layer.empty else None

    def _write_end(self) -> str | None:
        """Write the record of what is over; a full disk must not keep its outcome untold."""
        try:
            records.write(self.record)
        except ChangesError as error:
            return error.message
        self._written = True
        return None

    def finish(self) -> tuple[Layer | None, str | None]:
        """Its sandbox is closed: what is kept for review, and what could not be noted of that."""
        with self._lock:
            record = self._record
            if record is None:
                return None, None
            try:
                layer = self._forget(record.id)
                late = layer is not None and record.ended is not None and not self._written
                # By something in the background, at the last moment.
                problem = self._write_end() if late and self._is_noted(layer) else None
                if layer is None and self._had_layer:
                    self._remember(record)
                return (None if self._request.discard else layer), problem
            finally:
                noting.release(record.id)

    def _remember(self, record: Record) -> None:
        """It changed nothing: what it connected to went with its layer, and is asked for."""
        heard = () if self._gateway is None else self._gateway.records
        forgotten = 0 if self._gateway is None else self._gateway.forgotten
        unchanged.note(record, [each.as_data() for each in heard], forgotten)

    def _forget(self, id: str) -> Layer | None:
        """Remove a layer that holds no changes, and its record; gives one that holds some."""
        layer = layers.get(id)
        if layer is not None and layer.method == "overlay":
            return layer  # an empty one goes with its sandbox
        if self.before is not None and noting.is_applied(self.before.id):
            return layer
        if layer is not None:
            with suppress(PodbotError):  # whoever reviews it will be told
                # A copy of the target is never empty, so nobody has looked yet.
                if _is_untouched(layer):
                    layer.discard()
                    layer = None
        if layer is None:
            with suppress(ChangesError):
                records.remove(id)
        return layer


def _is_untouched(layer: Layer) -> bool:
    from podbot.changes.capture import capture  # large, and only for copies

    return not capture(layer).changes
