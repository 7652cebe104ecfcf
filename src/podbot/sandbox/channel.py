"""The channel: requests out, replies in, over one socket to a guest.

`Mux` is the part without I/O: it numbers requests, matches replies, and refuses what a guest may
not say. `SocketChannel` drives it in the calling thread, so that a thousand sandboxes need no
thread at all; several threads may call at once, and whichever waits first reads for all.
`AsyncSocketChannel` (in `async_channel.py`) drives the same core from an event loop.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from podbot.errors import FileError, GuestLostError, Kind, SandboxError
from podbot.sandbox import wire
from podbot.sandbox.wire import Decoder, Fields, Frame, JsonValue

STALL_SECONDS = 60.0
"""How long a guest may take over a request that has no time limit of its own."""
CANCEL_SECONDS = 3.0
"""How long an abandoned request may take to be cleaned up before its caller goes on."""
MAX_REPLY = 64 * 1024 * 1024
"""The most one reply may hold unless its request says otherwise."""


@dataclass(slots=True)
class Call:
    """One request. ``patience`` is how long to wait for the guest: None means for ever."""

    op: str
    args: dict[str, object] = field(default_factory=dict)
    payload: bytes | bytearray | memoryview = b""
    patience: float | None = STALL_SECONDS
    max_reply: int = MAX_REPLY
    cancel: bool = False


@dataclass(slots=True)
class Reply:
    """What a guest answered: checked fields and a payload."""

    head: dict[str, JsonValue]
    payload: bytes | bytearray

    @property
    def fields(self) -> Fields:
        """The head, to be read field by field."""
        return Fields(self.head)


class Channel(Protocol):
    """What a `Sandbox` needs: something that answers calls."""

    def call(self, call: Call) -> Reply:
        """Send a request and wait for its reply; a refusal raises `SandboxError`."""
        ...

    def close(self) -> None:
        """Let go of the connection. Calls under way fail with kind ``closed``."""
        ...


class Pending:
    """A request whose reply has not come in whole."""

    __slots__ = ("done", "error", "head", "max_reply", "number", "parts", "size", "wake")

    def __init__(self, number: int, max_reply: int):
        self.number = number
        self.max_reply = max_reply
        self.parts: list[bytes | bytearray] = []
        self.size = 0
        self.head: dict[str, JsonValue] = {}
        self.error: SandboxError | None = None
        self.done = False
        self.wake: Callable[[], None] | None = None

    def finish(self, error: SandboxError | None = None) -> None:
        """Mark as answered, or as failed."""
        self.error = error
        self.done = True
        if self.wake is not None:
            self.wake()

    def result(self) -> Reply:
        """The reply, or raise what went wrong."""
        if self.error is not None:
            raise self.error
        payload = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        return Reply(self.head, payload)


class Mux:
    """Requests under way, matched with frames. No I/O, no locks."""

    def __init__(self) -> None:
        self._next = 1
        self._pending: dict[int, Pending] = {}
        self.lost: SandboxError | None = None

    def begin(self, call: Call) -> tuple[Pending, bytes]:
        """Number a request; gives the bytes that go before its payload."""
        if self.lost is not None:
            raise self.lost
        number = self._next
        try:
            data = wire.encode({"id": number, "op": call.op, **call.args}, len(call.payload))
        except ValueError:
            raise SandboxError(
                f"the arguments of {call.op} are too long to send, or hold NaN",
                kind=Kind.TOO_LARGE,
                remedy="pass large content on stdin or through a file",
            ) from None
        self._next += 1
        pending = self._pending[number] = Pending(number, call.max_reply)
        return pending, data

    def forget(self, pending: Pending) -> None:
        """Nobody waits for this reply any more; it may still come."""
        self._pending.pop(pending.number, None)

    def dispatch(self, frame: Frame) -> None:
        """Take in one frame; raises when the guest may not say this."""
        number = frame.head.get("id")
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < self._next:
            raise wire.broken("a reply to a request never made")
        if number == 0:  # a launcher's set-up failed before any request could be read
            raise launch_failure(frame.head.get("error"))
        pending = self._pending.get(number)
        if pending is None:
            return  # a late answer to a request that was abandoned
        pending.size += len(frame.payload)
        if pending.size > pending.max_reply:
            raise wire.broken(f"a reply of more than {pending.max_reply} bytes")
        if len(frame.payload) or not pending.parts:
            pending.parts.append(frame.payload)
        if frame.head.get("more") is True:
            if not len(frame.payload):
                raise wire.broken("an empty part of a reply")
            return
        del self._pending[number]
        pending.head = frame.head
        error = frame.head.get("error")
        pending.finish(refusal(error) if error is not None else None)

    def fail(self, error: SandboxError) -> None:
        """The connection is over: every request under way fails with this."""
        if self.lost is None:
            self.lost = error
        for pending in list(self._pending.values()):
            pending.finish(self.lost)
        self._pending.clear()


_FILE_KINDS = frozenset(
    {
        Kind.NOT_FOUND, Kind.EXISTS, Kind.IS_DIRECTORY, Kind.NOT_DIRECTORY, Kind.NOT_A_FILE,
        Kind.NOT_EMPTY, Kind.PERMISSION, Kind.PATH_ESCAPE, Kind.BAD_PATH, Kind.TOO_LARGE,
        Kind.NO_MATCH, Kind.NOT_UNIQUE, Kind.IO,
    }
)  # fmt: skip

_REMEDIES: dict[Kind, str] = {
    Kind.COMMAND_NOT_FOUND: "check the name and PATH inside the sandbox, or pass an absolute path",
    Kind.PATH_ESCAPE: "file verbs of this sandbox stay below its working folder",
    Kind.OUT_OF_PROCESSES: "raise Limits(pids=…) or end what runs in the background",
    Kind.DISK_FULL: "free some space on the disk that holds the sandbox's layer",
    Kind.NOT_UNIQUE: "give a longer piece of the text, or replace_all=True",
    Kind.EXISTS: "remove it first, or allow overwriting",
}


def refusal(error: JsonValue) -> SandboxError:
    """The exception for a guest's «no»: its words are shown, never trusted."""
    if not isinstance(error, dict):
        return wire.broken("an error that is not an object")
    kind = kind_of(error.get("kind"))
    message = visible(str(error.get("message", ""))[:4000])
    cls = FileError if kind in _FILE_KINDS else SandboxError
    return cls(message, kind=kind, remedy=_REMEDIES.get(kind))


def launch_failure(error: JsonValue) -> SandboxError:
    """The exception for a set-up that failed inside a launcher's child."""
    found = refusal(error)
    remedy = error.get("remedy") if isinstance(error, dict) else None
    return GuestLostError(
        found.message, kind=found.kind, remedy=visible(remedy) if isinstance(remedy, str) else None
    )


def kind_of(word: JsonValue) -> Kind:
    """The kind a guest named, or ``io`` for a word that is none."""
    try:
        return Kind(str(word))
    except ValueError:
        return Kind.IO


def visible(text: str) -> str:
    """Text from inside, with control and bidirectional characters spelled out."""
    if text.isprintable():
        return text
    shown = []
    for char in text:
        if char in "\n\t" or char.isprintable():
            shown.append(char)
        else:
            shown.append(char.encode("unicode_escape").decode("ascii"))
    return "".join(shown)


class SocketChannel:
    """A channel over a connected stream socket, driven by the threads that call it."""

    def __init__(self, sock: socket.socket, died: Callable[[], SandboxError | None]):
        """``died`` is asked, once the guest is gone, whether a better reason is known."""
        self._sock = sock
        self._sock.setblocking(False)
        self._died = died
        self._mux = Mux()
        self._decoder = Decoder()
        self._owner = os.getpid()
        self._reader = threading.Lock()
        self._state = threading.Condition(threading.Lock())
        self._send = threading.Lock()

    def call(self, call: Call) -> Reply:
        """Send a request and wait for its reply.

        An exception on the way (Ctrl-C above all) cancels a request that says so: the guest
        kills what it started for it.
        """
        if os.getpid() != self._owner:
            raise SandboxError(
                "this sandbox belongs to the process that opened it, not to its fork",
                kind=Kind.FOREIGN_PROCESS,
                remedy="open a sandbox in the child process",
            )
        deadline = None if call.patience is None else time.monotonic() + call.patience
        with self._state:
            pending, data = self._mux.begin(call)
        try:
            self._transmit(data, call.payload, deadline)
            self._await(pending, deadline)
        except BaseException as error:
            if call.cancel and not pending.done:
                self._cancel(pending)
            with self._state:
                self._mux.forget(pending)
            if isinstance(error, OSError):
                # The socket was closed under us by another thread's close().
                raise self._over() from None
            raise
        return pending.result()

    def close(self) -> None:
        """Fail every call under way and let go of the socket. Harmless in a fork."""
        if os.getpid() == self._owner:
            with self._state:
                self._mux.fail(closed_error())
                self._state.notify_all()
        self._sock.close()

    def _over(self) -> SandboxError:
        with self._state:
            self._mux.fail(closed_error())
            assert self._mux.lost is not None
            return self._mux.lost

    def _cancel(self, pending: Pending) -> None:
        note = wire.encode({"id": 0, "op": "cancel", "target": pending.number})
        deadline = time.monotonic() + CANCEL_SECONDS
        try:
            self._transmit(note, b"", deadline)
            self._await(pending, deadline)
        except (SandboxError, OSError):
            pass  # the guest is gone or stuck: closing the sandbox is what kills it then

    def _transmit(
        self, data: bytes, payload: bytes | bytearray | memoryview, deadline: float | None
    ) -> None:
        if len(payload):
            data = b"".join((data, payload))
        with self._send:
            view = memoryview(data)
            try:
                while view:
                    view = self._push(view, deadline)
            except BaseException:
                # Half a frame would garble every request after it: finish it or give up.
                while len(view) not in (0, len(data)) and self._mux.lost is None:
                    view = self._push(view, time.monotonic() + CANCEL_SECONDS)
                raise

    def _push(self, view: memoryview, deadline: float | None) -> memoryview:
        try:
            return view[self._sock.send(view) :]
        except BlockingIOError:
            self._make_room(deadline)
        except (BrokenPipeError, ConnectionResetError):
            self._lose()
        return view

    def _make_room(self, deadline: float | None) -> None:
        """The guest takes no more. It may be waiting for us to read first."""
        if not self._reader.acquire(blocking=False):
            self._ready(select.POLLOUT, min(0.05, _left(deadline) or 0.05))
            return
        try:
            if self._ready(select.POLLIN | select.POLLOUT, _left(deadline)) & select.POLLIN:
                self._receive()
        finally:
            self._retire()

    def _await(self, pending: Pending, deadline: float | None) -> None:
        while not pending.done:
            if self._reader.acquire(blocking=False):
                try:
                    while not pending.done:
                        self._ready(select.POLLIN, _left(deadline))
                        self._receive()
                finally:
                    self._retire()
            else:
                with self._state:
                    if not pending.done and self._reader.locked():
                        self._state.wait(_left(deadline))

    def _retire(self) -> None:
        """Stop being the reader; one of those who wait takes over."""
        self._reader.release()
        with self._state:
            self._state.notify_all()

    def _ready(self, events: int, timeout: float | None) -> int:
        poller = select.poll()
        poller.register(self._sock, events)
        found = poller.poll(None if timeout is None else max(1, int(timeout * 1000)))
        return found[0][1] if found else 0

    def _receive(self) -> None:
        """Take in what is there, if anything. Only the reader calls this."""
        decoder = self._decoder
        try:
            view = decoder.want()
            if view is not None:
                count = self._sock.recv_into(view)
                decoder.filled(count)
            else:
                data = self._sock.recv(wire.CHUNK)
                count = len(data)
                decoder.feed(data)
            if not count:
                self._lose()
            frame = decoder.take()
            if frame is not None:
                with self._state:
                    while frame is not None:
                        self._mux.dispatch(frame)
                        frame = decoder.take()
                    self._state.notify_all()
        except BlockingIOError:
            return
        except ConnectionResetError:
            self._lose()
        except GuestLostError as error:
            self._fail(error)
            raise

    def _lose(self) -> None:
        """The guest hung up. Say why, as well as anyone knows."""
        error = self._died() or GuestLostError(
            "the sandbox ended while it was in use",
            kind=Kind.GUEST_LOST,
            remedy="open a new one; files already written are still in its layer",
        )
        self._fail(error)
        raise self._mux.lost or error

    def _fail(self, error: SandboxError) -> None:
        with self._state:
            self._mux.fail(error)
            self._state.notify_all()


def closed_error() -> SandboxError:
    """The error for using a sandbox after its end."""
    return SandboxError(
        "this sandbox is closed", kind=Kind.CLOSED, remedy="open a new one to go on"
    )


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise SandboxError(
            "the guest did not answer in time",
            kind=Kind.GUEST_UNRESPONSIVE,
            remedy="close this sandbox and open a new one",
        )
    return left
