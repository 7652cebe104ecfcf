"""A guest over any stream of bytes: an engine's attach, ssh, a pod's exec, two pipes.

For launchers that can start a Python somewhere and talk to it, and no more: nothing of podbot need
be there. They start `command`, hand its standard input and output to `boot`, and have a socket for
their `Launched`. Two threads carry the bytes, so whoever talks to the guest sees a socket as ever;
only descriptors cannot be passed along. What comes from the other side is hostile, as always.

    class SshLauncher(Launcher):
        name = "ssh"

        def launch(self) -> Launched:
            ssh = Popen(["ssh", self.host, shlex.join(over_stream.command())], stdin=…, stdout=…)
            near = over_stream.boot(over_stream.of_descriptors(reading, writing))
            return Launched("/srv/work", guarantees, end, near, config, descriptors=False)

Who started the other side ends it. The guest sees its line closed and ends with all it started; but
one that was killed ends nothing, so where it is not the first process of a container or a pod its
launcher must find what it left.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable

from podbot.errors import GuestLostError, Kind, LaunchError
from podbot.frozen import dataclass
from podbot.sandbox import boot as booting
from podbot.sandbox import wire
from podbot.visible import visible

CHUNK = 256 * 1024
READY_SECONDS = 60.0
_GREETING = {"id": 1, "op": "environment", "env": {}}
_ANSWER = {"id": 1}


@dataclass(frozen=True, slots=True)
class ByteStream:
    """A line to where a guest runs, as calls that block. They raise `OSError` when it is broken.

    ``read(size)`` gives some bytes, at most so many, and none at the end; ``write(data)`` takes all
    of them. ``no_more()`` is called once, when nothing more will be written: the other side must
    see its input end. ``close()`` is called once, when nothing more can be read. Reading and
    ``close`` happen in one thread, writing and ``no_more`` in another.
    """

    read: Callable[[int], bytes]
    write: Callable[[bytes], object]
    no_more: Callable[[], object]
    close: Callable[[], object]


def of_descriptors(reading: int, writing: int) -> ByteStream:
    """A stream of two descriptors that block, such as the ends of two pipes; it closes them."""

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(writing, view) :]

    return ByteStream(
        lambda size: os.read(reading, size),
        write,
        lambda: os.close(writing),
        lambda: os.close(reading),
    )


class NoGuestError(LaunchError):
    """No guest answered. ``said`` is why, as far as is known; safe to print."""

    said = ""


def command(python: str = "python3") -> list[str]:
    """What is to run at the other end: a Python, 3.8 or newer, that takes in the guest first."""
    return booting.command("0 1", booting.BOOT, python)


def boot(
    stream: ByteStream,
    *,
    send: bool = True,
    said: Callable[[], str] = lambda: "",
    seconds: float = READY_SECONDS,
) -> socket.socket:
    """See a guest answer at the other end; gives the socket to talk to it on.

    ``send``: the guest is not there yet, and `command` waits for it. ``said`` tells what came on a
    standard error of the other side. Raises `NoGuestError`, and lets go of
    the stream.
    """
    near = _carried(stream)
    try:
        _greet(near, send, time.monotonic() + seconds)
    except (OSError, ValueError, RecursionError, GuestLostError) as error:
        near.close()
        raise _no_guest(visible(said().strip()) or str(error)) from None
    except BaseException:
        near.close()
        raise
    near.settimeout(None)
    return near


def _greet(near: socket.socket, send: bool, ends: float) -> None:
    near.settimeout(ends - time.monotonic())
    near.sendall((booting.sent() if send else b"") + wire.encode(_GREETING))
    head_size, payload_size = wire.HEADER.unpack(_exactly(near, wire.HEADER.size, ends))
    # What is not a guest says something else, a login's greeting perhaps: text has huge sizes.
    if payload_size or head_size > wire.MAX_HEAD:
        raise wire.broken("its first word")
    if json.loads(_exactly(near, head_size, ends)) != _ANSWER:
        raise wire.broken("its first word")


def _no_guest(said: str) -> NoGuestError:
    error = NoGuestError(
        f"no guest answers at the other end: {said.splitlines()[-1]}",
        kind=Kind.START_FAILED,
        remedy="see that its command runs there, and that its Python is 3.8 or newer",
    )
    error.said = said
    return error


def _carried(stream: ByteStream) -> socket.socket:
    """The end to talk on; threads carry what passes until either side ends."""
    near, far = socket.socketpair()
    # Each thread has a socket of its own to let go of: the other may sit in a call on its own.
    for carry, end in ((_carry_in, far), (_carry_out, far.dup())):
        threading.Thread(
            target=carry, args=(stream, end), name="podbot-stream", daemon=True
        ).start()
    return near


def _carry_in(stream: ByteStream, far: socket.socket) -> None:
    with far, contextlib.suppress(OSError):
        while data := far.recv(CHUNK):
            stream.write(data)
    with contextlib.suppress(OSError):
        stream.no_more()  # the guest sees its line closed, and ends


def _carry_out(stream: ByteStream, far: socket.socket) -> None:
    with far:
        with contextlib.suppress(OSError):
            while data := stream.read(CHUNK):
                far.sendall(data)
        with contextlib.suppress(OSError):
            far.shutdown(socket.SHUT_RDWR)  # closing it would leave the other thread waiting
    with contextlib.suppress(OSError):
        stream.close()


def _exactly(line: socket.socket, size: int, ends: float) -> bytes:
    data = b""
    while len(data) < size:
        line.settimeout(max(ends - time.monotonic(), 1e-3))
        part = line.recv(size - len(data))
        if not part:
            raise ConnectionResetError("it hung up")
        data += part
    return data
