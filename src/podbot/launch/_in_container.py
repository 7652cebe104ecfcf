"""A command in a container, started through its engine: for `attach_started`.

The engine carries its bytes over one connection; signals take their own way
(`podbot.engine.signalling`), and go there in a thread: an engine may take its time, and whoever
waits for the command must hear the next signal.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from podbot.engine import refusals, signalling
from podbot.engine.execs import NOTED_SECONDS, ExecSpec
from podbot.engine.http.hijacked import STDERR, Hijacked
from podbot.errors import ContainerError
from podbot.frozen import replace
from podbot.sandbox.carried import TELLING_TO_END, Carried
from podbot.sandbox.joined import FarEnds
from podbot.sandbox.ops import Ended

if TYPE_CHECKING:
    from podbot.engine.engine import Engine

FIND_SECONDS = 10.0
"""How long a command is looked for that is to be sent a signal: it may not quite have begun."""
LOOK_SECONDS = 0.05
RESIZES = 20
"""How often a size is told that the engine does not take."""
END_SECONDS = 0.25
"""How often to look whether a command that was told to end did."""
STOP_SECONDS = 5.0
"""How long podbot waits for its command to stop before it stops itself."""

UNREAD = ((0.0, signal.SIGPIPE), (1.0, signal.SIGTERM), (5.0, signal.SIGKILL))
"""What a command is sent that writes, so long after its reader went away: there is no pipe that
would tell it, and it may ignore the first of these because it reads errors."""
HARMLESS = (signal.SIGSTOP, signal.SIGCONT)
"""Who cannot be sent these goes on; other signals must not be lost in silence."""


class InContainer:
    """A command in a container; see `podbot.sandbox.joined.Joined`."""

    def __init__(
        self, engine: Engine, container: str, spec: ExecSpec, exec_id: str, carried: Carried,
        stream: Hijacked,
    ):  # fmt: skip
        self._engine, self._container, self._spec = engine, container, spec
        self._exec_id, self._stream, self._carried = exec_id, stream, carried
        self.terminal = carried.terminal
        self._over = threading.Event()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._failure: ContainerError | None = None
        self._unread_since: float | None = None
        self._urged = 0
        self._asked_to_end = False
        self._size: tuple[int, int] | None = None
        threading.Thread(target=self._obey, name="podbot-orders", daemon=True).start()
        carried.feed(stream.sendall, self._no_more)

    # What goes in

    def _no_more(self) -> None:
        """The caller's input has ended, or its terminal is gone, or all is over."""
        try:
            if self._over.is_set():
                return
            if self._spec.tty:
                self.signal(signal.SIGHUP)
            else:
                self._stream.close_write()
        finally:
            self._over.wait()
            self._stream.close()

    def resize(self, rows: int, columns: int) -> None:
        """Tell its terminal how large it is."""
        self._size = (rows, columns)
        self._orders.put(partial(self._resize, self._size, RESIZES))

    def _resize(self, size: tuple[int, int], tries: int) -> None:
        """It may have ended, or not quite begun, and an engine may be busy: tried again behind what
        else waits, and no reason to fail."""
        if size != self._size:
            return  # there is a newer one
        try:
            self._engine.execs.resize(self._exec_id, *size)
        except ContainerError:
            if tries > 1 and not self._over.wait(LOOK_SECONDS):
                self._orders.put(partial(self._resize, size, tries - 1))

    def signal(self, number: int) -> None:
        """Send a signal to its process group; it may have ended."""
        done = threading.Event()
        self._orders.put(lambda: self._send(number, False, done))
        if number == signal.SIGSTOP:
            done.wait(STOP_SECONDS)

    def kill(self) -> None:
        """Kill it with everything it started."""
        self._orders.put(lambda: self._send(signal.SIGKILL, True, threading.Event()))

    def _obey(self) -> None:
        while True:
            try:
                order = self._orders.get(timeout=END_SECONDS if self._asked_to_end else None)
            except queue.Empty:
                self._look_at_the_end()
                continue
            if order is None:
                return
            order()

    def _look_at_the_end(self) -> None:
        """It was told to end: once it did, nobody waits for a reader of what it wrote."""
        try:
            runs = self._engine.execs.signal(self._container, self._spec, 0)
        except ContainerError:
            runs = False
        if not runs:
            self._asked_to_end = False
            self._carried.hurry.set()

    def _send(self, number: int, whole: bool, done: threading.Event) -> None:
        ends = time.monotonic() + FIND_SECONDS
        try:
            while not self._over.is_set():
                if self._engine.execs.signal(self._container, self._spec, number, whole=whole):
                    self._asked_to_end = self._asked_to_end or number in TELLING_TO_END
                    return
                if time.monotonic() > ends:
                    raise signalling.no_way(self._container, "it is not found among its processes")
                self._over.wait(LOOK_SECONDS)
        except ContainerError as error:
            if number not in HARMLESS and not self._over.is_set():
                self._failure = error
                self._stream.hang_up()
        finally:
            done.set()

    # What comes out

    def ending(self) -> Ended:
        """How it ended, once all that the engine carries is out. Kinds as for `Execs`, and those of
        `refusals.error` for a command that was not started."""
        held = refusals.Held(self._put, self._spec)
        said = None
        try:
            for stream, data in self._stream.parts(framed=not self._spec.tty):
                held.take(stream, data)
            if self._failure is None:
                status = self._engine.execs.wait(self._exec_id, NOTED_SECONDS)
                said = held.refusal(status)
        except ContainerError:
            if self._failure is None:
                raise
        finally:
            if said is None:
                held.release()
            self._over.set()
            self._orders.put(None)
            self._carried.end()
            self._stream.hang_up()
        if self._failure is not None:
            raise self._failure
        if said is not None:
            raise refusals.error(said, self._container, self._spec)
        return Ended(status, None)

    def _put(self, stream: int, data: bytes) -> None:
        if self._carried.put("stderr" if stream == STDERR else "stdout", data):
            return
        now = time.monotonic()
        self._unread_since = self._unread_since or now
        if self._urged < len(UNREAD) and now - self._unread_since >= UNREAD[self._urged][0]:
            number = signal.SIGHUP if self._spec.tty and not self._urged else UNREAD[self._urged][1]
            self._urged += 1
            self.signal(number)


def start(engine: Engine, container: str, spec: ExecSpec, ends: FarEnds) -> InContainer:
    """Start a command there on these ends. Kinds as for `Execs`."""
    shape = ends.terminal
    spec = signalling.marked(replace(spec, tty=shape is not None, stdin=True))
    exec_id = engine.execs.create(container, spec)
    carried = Carried(ends)
    size = None if shape is None else (shape.rows, shape.columns)
    try:
        stream = engine.execs.start(exec_id, tty=spec.tty, size=size)
    except BaseException:
        carried.discard()
        raise
    started = InContainer(engine, container, spec, exec_id, carried, stream)
    if size is not None:
        started.resize(*size)  # not every engine heeds what it is told at the start
    return started
