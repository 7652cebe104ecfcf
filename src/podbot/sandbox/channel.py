"""The channel: requests out, replies in, over one socket to a guest.

`Mux` is the part without I/O: it numbers requests, matches replies, and refuses what a guest may
not say. `SocketChannel` drives it in the calling thread, so that a thousand sandboxes need no
thread at all; several threads may call at once, and whichever waits first reads for all.
`AsyncSocketChannel` (in `async_channel.py`) drives the same core from an event loop.
"""

from __future__ import annotations

import array
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import NoReturn, Protocol

from podbot.errors import FileError, GuestLostError, Kind, SandboxError
from podbot.frozen import dataclass, field
from podbot.sandbox import wire
from podbot.sandbox.wire import Decoder, Fields, Frame, JsonValue
from podbot.visible import visible

STALL_SECONDS = 60.0
"""How long a guest may take over a request that has no time limit of its own."""
AWAKE_SECONDS = 0.0006
"""How long to stay awake for an answer that comes soon."""
NAP = 1.0
"""The longest wait in one go: a signal that comes just before a wait does not end it."""
CANCEL_SECONDS = 3.0
"""How long an abandoned request may take to be cleaned up before its caller goes on."""
MAX_REPLY = 64 * 1024 * 1024
"""The most one reply may hold unless its request says otherwise."""


@dataclass(slots=True)
class Call:
    """One request. ``patience`` is how long to wait for the guest: None means for ever.

    ``soon``: the answer mostly comes in less time than falling asleep and being woken takes.
    """

    op: str
    args: dict[str, object] = field(default_factory=dict)
    payload: bytes | bytearray | memoryview = b""
    patience: float | None = STALL_SECONDS
    max_reply: int = MAX_REPLY
    cancel: bool = False
    descriptors: tuple[int, ...] = ()
    soon: bool = False


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

    __slots__ = (
        "cancelled", "done", "error", "head", "max_reply", "number", "out", "parts", "sent", "size",
        "wake",
    )  # fmt: skip

    def __init__(self, number: int, max_reply: int):
        self.number = number
        self.max_reply = max_reply
        self.parts: list[bytes | bytearray] = []
        self.size = 0
        self.head: dict[str, JsonValue] = {}
        self.error: SandboxError | None = None
        self.sent: list[int] = []
        self.out = self.cancelled = False
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
            raise copy(self.lost)
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
        last = pending.parts[-1] if pending.parts else None
        if isinstance(last, bytearray) and len(frame.payload) < wire.CHUNK:
            last += frame.payload  # a million tiny parts must not cost a million objects
        elif last is None or len(frame.payload):
            pending.parts.append(frame.payload if last is None else bytearray(frame.payload))
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
            # Each its own: an exception raised twice drags the first one's traceback along.
            pending.finish(copy(self.lost))
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
    kind, message = kind_of(error.get("kind")), error.get("message")
    if not isinstance(message, str):
        return wire.broken("an error without a message")
    cls = FileError if kind in _FILE_KINDS else SandboxError
    return cls(visible(message[:4000]), kind=kind, remedy=_REMEDIES.get(kind))


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
        return Kind(word) if isinstance(word, str) else Kind.IO
    except ValueError:
        return Kind.IO


class SocketChannel:
    """A channel over a connected stream socket, driven by the threads that call it.

    A Ctrl-C may come between any two steps. So turns are taken and given back under one plain
    lock and by name, and the result of each system call is kept by the same C call that made it
    (``list.extend(map(…))``): an interrupt loses no byte and no turn.
    """

    def __init__(self, sock: socket.socket, died: Callable[[], SandboxError | None]):
        """``died`` is asked, once the guest is gone, whether a better reason is known."""
        self._sock = sock
        self._sock.setblocking(False)
        self._died = died
        self._mux = Mux()
        self._decoder = Decoder()
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._calls: dict[int, Pending] = {}
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._taken: list[int | bytes] = []
        self._reader: int | None = None
        self._sender: int | None = None

    def call(self, call: Call) -> Reply:
        """Send a request and wait for its reply.

        An exception on the way (Ctrl-C above all) cancels a request that says so: the guest
        kills what it started for it.
        """
        if os.getpid() != self._owner:
            raise foreign_error()
        deadline = None if call.patience is None else time.monotonic() + call.patience
        thread = threading.get_ident()
        with self._lock:
            pending, data = self._mux.begin(call)
            if call.cancel:
                self._calls[thread] = pending
        try:
            self._transmit(data, call.payload, deadline, pending.sent, call.descriptors)
            if call.cancel and self._is_out(pending):
                self._send_cancel(pending, time.monotonic() + CANCEL_SECONDS)
            if call.soon:
                self._stay_awake(pending)
            self._await(pending, deadline)
        except BaseException as error:
            self._leave_sending()
            self._leave_reading()
            if call.cancel and pending.sent and not pending.done:
                self._cancel(pending)
            with self._lock:
                self._mux.forget(pending)
            if isinstance(error, OSError | ValueError):
                # The socket was closed under us by another thread's close().
                raise self._over() from None
            raise
        finally:
            if call.cancel:
                self._calls.pop(thread, None)
        return pending.result()

    def cancel(self, thread: int) -> bool:
        """Have the guest end what it does for a call of another thread, which then returns.

        False if that thread waits for nothing that can be cancelled.
        """
        with self._lock:
            pending = self._calls.get(thread)
            if pending is None or pending.done:
                return False
            pending.cancelled = True
            if not pending.out:
                return True  # its own thread says so, behind the request
        with suppress(SandboxError, OSError, ValueError):  # then it is over anyway
            self._send_cancel(pending, time.monotonic() + CANCEL_SECONDS)
        return True

    def _is_out(self, pending: Pending) -> bool:
        """A request is on its way; whether it was cancelled before it was."""
        with self._lock:
            pending.out = True
            return pending.cancelled

    def close(self) -> None:
        """Fail every call under way and let go of the socket. Harmless in a fork."""
        if os.getpid() == self._owner:
            self._fail(closed_error())
            with suppress(OSError):  # closed before, or the guest hung up first
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes who waits for it
        self._sock.close()

    def _over(self) -> SandboxError:
        self._fail(closed_error())
        return copy(self._mux.lost or closed_error())

    def _send_cancel(self, pending: Pending, deadline: float) -> None:
        note = wire.encode({"id": 0, "op": "cancel", "target": pending.number})
        self._transmit(note, b"", deadline, [])

    def _cancel(self, pending: Pending) -> None:
        deadline = time.monotonic() + CANCEL_SECONDS
        try:
            self._send_cancel(pending, deadline)
            self._await(pending, deadline)
        except (SandboxError, OSError, ValueError):
            pass  # the guest is gone or stuck: closing the sandbox is what kills it then

    def _wait(self, deadline: float | None) -> None:
        """Until something changed; the lock is held before and after."""
        self._waiting += 1
        try:
            self._changed.wait(_nap(deadline))
        finally:
            self._waiting -= 1

    def _tell(self) -> None:
        """Something changed. Mostly nobody waits, and then this costs nothing."""
        if self._waiting:
            self._changed.notify_all()

    # Sending

    def _transmit(
        self,
        data: bytes,
        payload: bytes | bytearray | memoryview,
        deadline: float | None,
        sent: list[int],
        descriptors: tuple[int, ...] = (),
    ) -> None:
        """Send a frame; ``sent`` is told how much of it went out, whatever happens."""
        view = memoryview(b"".join((data, payload)) if len(payload) else data)
        try:
            self._take_sending(deadline)
            self._push(view, sent, deadline, descriptors)
        except BaseException:
            if 0 < sum(sent) < len(view):
                self._push_rest(view, sent)
            raise
        finally:
            self._leave_sending()

    def _push(
        self,
        view: memoryview,
        sent: list[int],
        deadline: float | None,
        descriptors: tuple[int, ...] = (),
    ) -> None:
        while (start := sum(sent)) < len(view):
            if self._mux.lost is not None:
                raise copy(self._mux.lost)
            try:
                if descriptors and start == 0:
                    sent.extend(map(send_with, (self._sock,), (view,), (descriptors,)))
                else:
                    sent.extend(map(self._sock.send, (view[start:],), (socket.MSG_NOSIGNAL,)))
            except BlockingIOError:
                self._make_room(deadline)
            except (BrokenPipeError, ConnectionResetError):
                self._lose()

    def _push_rest(self, view: memoryview, sent: list[int]) -> None:
        """Half a frame would garble every request after it: finish it, or give the guest up."""
        try:
            self._push(view, sent, time.monotonic() + CANCEL_SECONDS)
        except BaseException:  # a second Ctrl-C too; the first one is on its way up
            self._fail(
                GuestLostError(
                    "the guest stopped reading in the middle of a request",
                    kind=Kind.GUEST_UNRESPONSIVE,
                    remedy="close this sandbox and open a new one",
                )
            )

    def _take_sending(self, deadline: float | None) -> None:
        with self._lock:
            while self._sender is not None:
                self._wait(deadline)
            self._sender = threading.get_ident()

    def _leave_sending(self) -> None:
        with self._lock:
            if self._sender == threading.get_ident():
                self._sender = None
                self._tell()

    def _make_room(self, deadline: float | None) -> None:
        """The guest takes no more. It may be waiting for us to read first."""
        try:
            if not self._take_reading():
                self._ready(select.POLLOUT, min(0.05, _nap(deadline)))
            elif self._ready(select.POLLIN | select.POLLOUT, _nap(deadline)) & select.POLLIN:
                self._receive()
        finally:
            self._leave_reading()

    # Receiving

    def _await(self, pending: Pending, deadline: float | None) -> None:
        while not pending.done:
            try:
                if self._take_reading():
                    while not pending.done:
                        if not self._taken:
                            self._ready(select.POLLIN, _nap(deadline))
                        self._receive()
            finally:
                self._leave_reading()
            self._wait_for_reader(pending, deadline)

    def _stay_awake(self, pending: Pending) -> None:
        """Look for an answer that may come any moment, for as long as sleeping would have cost."""
        awake_until = time.monotonic() + AWAKE_SECONDS
        try:
            if self._take_reading():
                while not pending.done and time.monotonic() < awake_until:
                    self._receive()
                    if not pending.done:
                        os.sched_yield()  # whoever is to answer may want this processor
        finally:
            self._leave_reading()

    def _wait_for_reader(self, pending: Pending, deadline: float | None) -> None:
        """Another thread reads; it tells when something came or when it stops reading."""
        with self._lock:
            if not pending.done and self._reader is not None:
                self._wait(deadline)

    def _take_reading(self) -> bool:
        with self._lock:
            if self._reader is None:
                self._reader = threading.get_ident()
            return self._reader == threading.get_ident()

    def _leave_reading(self) -> None:
        """Stop being the reader; one of those who wait takes over."""
        with self._lock:
            if self._reader == threading.get_ident():
                self._reader = None
                self._tell()

    def _ready(self, events: int, timeout: float) -> int:
        poller = select.poll()
        poller.register(self._sock, events)
        found = poller.poll(max(1, int(timeout * 1000)))
        return found[0][1] if found else 0

    def _receive(self) -> None:
        """Take in what is there, if anything. Only the reader calls this."""
        if not self._taken:  # else an interrupt came before it could be looked at
            view = self._decoder.want()
            try:
                if view is not None:
                    self._taken.extend(map(self._sock.recv_into, (view,)))
                else:
                    self._taken.extend(map(self._sock.recv, (wire.CHUNK,)))
            except BlockingIOError:
                return
            except ConnectionResetError:
                self._lose()
        self._digest()

    def _digest(self) -> None:
        """Parse what was received, and hand out the replies."""
        if not self._taken[0]:
            self._lose()
        try:
            part = self._taken[0]
            del self._taken[0]
            if isinstance(part, int):
                self._decoder.filled(part)
            else:
                self._decoder.feed(part)
            frame = self._decoder.take()
            if frame is not None:
                with self._lock:
                    while frame is not None:
                        self._mux.dispatch(frame)
                        frame = self._decoder.take()
                    self._tell()
        except GuestLostError as error:
            self._fail(error)
            raise
        except BaseException:
            # A Ctrl-C in the middle of a frame: nobody knows where the next one begins.
            self._fail(
                GuestLostError(
                    "interrupted in the middle of a reply",
                    kind=Kind.GUEST_LOST,
                    remedy="close this sandbox and open a new one",
                )
            )
            raise

    def _lose(self) -> NoReturn:
        """The guest hung up. Say why, as well as anyone knows."""
        error = self._died() or GuestLostError(
            "the sandbox ended while it was in use",
            kind=Kind.GUEST_LOST,
            remedy="open a new one; files already written are still in its layer",
        )
        self._fail(error)
        raise copy(self._mux.lost or error)

    def _fail(self, error: SandboxError) -> None:
        with self._lock:
            self._mux.fail(error)
            self._tell()


def foreign_error() -> SandboxError:
    """The error for using a sandbox from a fork of its owner."""
    return SandboxError(
        "this sandbox belongs to the process that opened it, not to its fork",
        kind=Kind.FOREIGN_PROCESS,
        remedy="open a sandbox in the child process",
    )


def send_with(sock: socket.socket, data: memoryview, descriptors: tuple[int, ...]) -> int:
    """Send the start of a frame with the descriptors that belong to it."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    return sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)


def passes_descriptors(connection: socket.socket | Channel) -> bool:
    """Whether descriptors can go along with a request."""
    return isinstance(connection, socket.socket) and connection.family == socket.AF_UNIX


def closed_error() -> SandboxError:
    """The error for using a sandbox after its end."""
    return SandboxError(
        "this sandbox is closed", kind=Kind.CLOSED, remedy="open a new one to go on"
    )


def _nap(deadline: float | None) -> float:
    """How long to wait in one go; raises when the time is up."""
    if deadline is None:
        return NAP
    left = deadline - time.monotonic()
    if left <= 0:
        raise SandboxError(
            "the guest did not answer in time",
            kind=Kind.GUEST_UNRESPONSIVE,
            remedy="close this sandbox and open a new one",
        )
    return min(left, NAP)
