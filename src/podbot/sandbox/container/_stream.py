"""A guest reached through its engine: frames over the container's own standard input and output.

For engines and runtimes that let no socket of ours through. The engine's raw stream carries the
guest's standard output and standard error in one; here they are taken apart. What the guest says on
its standard error is kept for the case that it does not start.
"""

from __future__ import annotations

from podbot.engine import Frames, Hijacked
from podbot.engine.http.hijacked import STDERR
from podbot.errors import ContainerError
from podbot.sandbox.over_stream import ByteStream

MAX_SAID = 4000


class Attached:
    """A container's streams, attached to. ``bytes`` is its line, for `over_stream`."""

    def __init__(self, hijacked: Hijacked):
        self._hijacked = hijacked
        self._frames = Frames()
        self._said = b""
        hijacked.settimeout(None)
        self.bytes = ByteStream(self._read, hijacked.sendall, hijacked.close_write, hijacked.close)

    def said(self) -> str:
        """The end of what came on standard error. Text from inside: hostile."""
        return self._said.decode("utf-8", "replace")

    def _read(self, size: int) -> bytes:
        try:
            while data := self._hijacked.recv(size):
                out = []
                for stream, part in self._frames.feed(data):
                    if stream == STDERR:
                        self._said = (self._said + part)[-MAX_SAID:]
                    else:
                        out.append(part)
                if out:
                    return b"".join(out)
        except ContainerError as error:
            raise ConnectionError(error.message) from error
        return b""
