"""Joining a command to the caller's streams, so that it runs as if run bare.

A stream that is a terminal is a terminal inside too, all others are pipes. Bytes go through as they
come. Signals meant for the command reach it, the caller's terminal is given back as it was, and
how the command ended is told as a shell would. This module opens and closes no sandbox, and prints
nothing. Where the command runs it does not know: something starts it (`podbot.sandbox.joined`).

The caller's own descriptors never get inside: see `podbot.sandbox.joined` for why. What the
command leaves running in the background ends with the sandbox, so its streams are followed only
until the command itself has ended and what it wrote is out.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from podbot.errors import Kind, SandboxError
from podbot.frozen import dataclass
from podbot.launch._flow import LOOK_SECONDS, End, FromFile, FromPipe, Passing
from podbot.launch._watch import Signals, Watch
from podbot.launch.interludes import Interludes, OtherScreen
from podbot.launch.terminal import CallerTerminal, is_telling, means_stop, reads_lines
from podbot.sandbox import joined
from podbot.sandbox.joined import FarEnds, Joined
from podbot.sandbox.ops import Command, Ended
from podbot.sandbox.sandbox import Sandbox
from podbot.sandbox.values import TIMEOUT_EXIT_CODE

NOT_EXECUTABLE = 126
NOT_FOUND = 127

KILL_SECONDS = 5.0
"""How long a command that ran out of time may take to end by itself before it is killed."""
LINGER_SECONDS = 0.1
"""How long a terminal must be silent after the command's end, if something still holds it."""
MOST_IN_A_TERMINAL = 256 << 10
"""More than a terminal holds: what comes after so much was written after the command's end."""
PASSED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
Start = Callable[[FarEnds], Joined]
"""Starts the command on its ends of pipes, which stay ours to close."""

OUR_OWN = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
TELLING_TO_END = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Streams:
    """The caller's descriptors; they stay open, and their flags stay as they are."""

    stdin: int = 0
    stdout: int = 1
    stderr: int = 2


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended: ``exit_status`` as a shell tells it (128 + n for signal n, 124 when the
    time ran out, 127 and 126 when it could not be started).

    ``problem`` says why it could not be started, or what became of its output. ``stop_signal`` is
    the last signal that asked podbot itself to end meanwhile. ``plain``: it wrote nothing that a
    terminal might obey, as far as we have seen all that it wrote.
    """

    exit_status: int
    signal: int | None = None
    timed_out: bool = False
    problem: str | None = None
    stop_signal: int | None = None
    plain: bool = False


def attach(
    sandbox: Sandbox,
    command: Command,
    streams: Streams | None = None,
    timeout: float | None = None,
    interludes: Interludes | None = None,
) -> Ending:
    """Run a command to its end on these streams.

    In the main thread, signals are taken over meanwhile: those that people and programs send to
    end a command, or to tell it something, go to its process group; the second SIGINT kills it
    with all it started. ``interludes`` are told meanwhile, as far as they can be. Raises kinds
    ``guest_lost`` and ``bad_cwd``, among others of `exec`.
    """
    mixed = joined.passes_descriptors(sandbox)
    with _Attached(streams or Streams(), timeout, mixed, interludes) as attached:
        try:
            attached.start(lambda ends: joined.start(sandbox, command, ends))
        except SandboxError as error:
            if error.kind is Kind.COMMAND_NOT_FOUND:
                return Ending(NOT_FOUND, problem=error.message, plain=True)
            if error.kind is Kind.COMMAND_NOT_EXECUTABLE:
                return Ending(NOT_EXECUTABLE, problem=error.message, plain=True)
            raise
        return attached.follow()


def attach_started(start: Start, streams: Streams | None = None) -> Ending:
    """The same for a command that something else than a sandbox starts.

    It has a terminal, and nothing else, if stdin and stdout both are terminals; else three pipes.
    Raises what ``start`` does, and `Joined.ending`.
    """
    with _Attached(streams or Streams(), None, mixed=False) as attached:
        attached.start(start)
        return attached.follow()


class _Attached:
    """One command, its streams, and all that is open meanwhile."""

    def __init__(
        self,
        streams: Streams,
        timeout: float | None,
        mixed: bool,
        interludes: Interludes | None = None,
    ):
        """``mixed``: some streams may be pipes where others are a terminal."""
        self._interludes = interludes
        self._kept = 0
        """How many of them were not told so far, as a program has the terminal to itself."""
        self._other_screen = OtherScreen()
        self._streams, self._timeout, self._mixed = streams, timeout, mixed
        self._deadline: float | None = None
        self._stack = ExitStack()
        self._watch = Watch()
        self._signals = Signals((*PASSED_ON, *OUR_OWN))
        self._outs: dict[str, Passing] = {}
        self._terminal: CallerTerminal | None = None
        self._screen: int | None = None
        self._keys: Passing | None = None
        self._lines: Passing | None = None
        self._job: Joined
        self._done: Ended | BaseException | None = None
        self._has_changed_terminal = False
        self._interrupts = 0
        self._stop_signal: int | None = None
        self._timed_out = False

    def __enter__(self) -> Self:
        self._stack.enter_context(self._signals)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # Starting

    def start(self, start: Start) -> None:
        """Make the pipes, start the command, and join the two."""
        stdin, stdout, stderr = self._streams.stdin, self._streams.stdout, self._streams.stderr
        typed = os.isatty(stdin) and os.isatty(stdout)
        shown = next((fd for fd in (stdout, stderr) if os.isatty(fd)), None)
        if not self._mixed and not typed:
            shown = None
        if shown is not None:
            self._terminal = self._stack.enter_context(CallerTerminal(shown))
        far: dict[str, int] = {}
        near: dict[str, int] = {}
        with ExitStack() as given, ExitStack() as unless_started:

            def pipe(name: str, *, reading: bool) -> None:
                read, write = os.pipe2(os.O_CLOEXEC)
                near[name], far[name] = (read, write) if reading else (write, read)
                os.set_blocking(near[name], False)
                given.callback(os.close, far[name])
                unless_started.callback(os.close, near[name])

            if not typed:
                pipe("stdin", reading=False)
            if shown is None or not os.isatty(stdout):
                pipe("stdout", reading=True)
            if shown is None or (self._mixed and not os.isatty(stderr)):
                if "stdout" in far and os.path.samestat(os.fstat(stdout), os.fstat(stderr)):
                    far["stderr"] = far["stdout"]  # one pipe keeps the order of the two
                else:
                    pipe("stderr", reading=True)
            shape = None if self._terminal is None else self._terminal.shape()
            self._job = start(FarEnds(**far, terminal=shape))
            unless_started.pop_all()
        self._join(near)

    def _join(self, near: dict[str, int]) -> None:
        for name in ("stdout", "stderr"):
            if name in near:
                self._pass_out(name, near[name], getattr(self._streams, name))
        if self._job.terminal is not None and self._terminal is not None:
            self._screen = self._job.terminal
            self._stack.callback(self._hang_up)
            self._pass_out("terminal", os.dup(self._screen), self._terminal.fd)
            self._outs["terminal"].changed = self._written
        if "stdin" in near:
            self._feed(near["stdin"])
        else:
            self._take_keys()
        if self._signals.fd is not None:
            self._watch.set(self._signals.fd, select.POLLIN, self._signalled)
        said = self._interludes
        if said is not None:
            self._watch.set(said.fd, select.POLLIN, lambda _: said.noticed())
            self._stack.callback(self._watch.drop, said.fd)
        self._await_ending()
        if self._timeout is not None:
            self._deadline = time.monotonic() + self._timeout

    def _pass_out(self, name: str, near: int, to: int) -> None:
        target = End.shared(to, os.O_WRONLY)
        self._outs[name] = Passing(self._watch, End(near, ours=True), target)
        self._stack.callback(self._outs[name].close)

    def _written(self, data: bytes) -> bytes:
        """Note whether the caller's terminal is told to be otherwise than it was."""
        self._has_changed_terminal = self._has_changed_terminal or is_telling(data)
        if self._interludes is not None:
            self._other_screen.see(data)
        return data

    def _feed(self, near: int) -> None:
        """Pass the caller's stdin on, taking no more of it than must be."""
        stdin = self._streams.stdin
        try:
            mode = os.fstat(stdin).st_mode
        except OSError:  # the caller has none
            os.close(near)
            return
        feed: FromFile | FromPipe | Passing
        if stat.S_ISREG(mode):
            feed = FromFile(self._watch, stdin, near)
        elif stat.S_ISFIFO(mode):
            feed = FromPipe(self._watch, End.shared(stdin, os.O_RDONLY), near)
        else:
            # Beside us in a pipeline there may be a pager: single keys are for that one.
            typist = CallerTerminal(stdin) if os.isatty(stdin) else None
            may_read = None if typist is None else lambda: typist.free
            source = End.shared(stdin, os.O_RDONLY, may_read)
            feed = Passing(self._watch, source, End(near, ours=True))
            if may_read is not None:
                feed.may_read = may_read
                self._lines = feed
        self._stack.callback(feed.close)

    def _take_keys(self) -> None:
        """Hand the keys of the caller's terminal to the command's."""
        held, screen = self._terminal, self._screen
        if held is None or screen is None:
            return
        source = End.shared(held.fd, os.O_RDONLY)
        self._keys = Passing(self._watch, source, End(os.dup(screen), ours=True))
        self._keys.may_read = lambda: held.ours
        self._keys.changed = self._typed
        self._stack.callback(self._keys.close)
        self._make_raw()

    def _await_ending(self) -> None:
        """Have a thread wait for the command's end; ours are the descriptors."""
        read_end, tell = os.pipe2(os.O_CLOEXEC)

        def wait() -> None:
            try:
                self._done = self._job.ending()
            except BaseException as error:
                self._done = error
            finally:
                os.close(tell)  # which is what the other end waits for

        threading.Thread(target=wait, daemon=True).start()
        self._watch.set(read_end, select.POLLIN, lambda _: self._watch.drop(read_end))
        self._stack.callback(os.close, read_end)

    # Running

    def follow(self) -> Ending:
        """Until the command has ended and what it wrote is out."""
        while self._done is None:
            said = 0 if self._interludes is None else self._interludes.waiting
            # Of what was said just now it is looked at once what was written before that.
            self._watch.turn(self._patience() if said <= self._kept else 0.0)
            self._look_at_the_clock()
            self._look_at_the_terminal()
            self._kept = said
            self._tell(said)
        self._drain()
        self._flush()
        if isinstance(self._done, BaseException):
            raise self._done
        problem = next((text for text in map(self._lost, self._outs) if text), None)
        plain = self._outs.keys() <= {"terminal"} and not self._has_changed_terminal
        if self._timed_out:
            return Ending(TIMEOUT_EXIT_CODE, None, True, problem, self._stop_signal, plain)
        done = self._done
        return Ending(done.exit_code, done.signal, False, problem, self._stop_signal, plain)

    def _patience(self) -> float | None:
        looks = any(flow is not None and flow.paused and not flow.ended for flow in self._inputs)
        looks = looks or (self._interludes is not None and self._interludes.waiting > 0)
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        if not looks:
            return left
        return LOOK_SECONDS if left is None else min(left, LOOK_SECONDS)

    @property
    def _inputs(self) -> tuple[Passing | None, Passing | None]:
        return self._keys, self._lines

    def _look_at_the_clock(self) -> None:
        if self._deadline is None or time.monotonic() < self._deadline:
            return
        if self._timed_out:
            self._deadline = None
            self._job.kill()
        else:
            self._timed_out = True
            self._deadline = time.monotonic() + KILL_SECONDS
            self._job.signal(signal.SIGTERM)
            self._job.signal(signal.SIGCONT)  # one that is stopped could not end

    def _look_at_the_terminal(self) -> None:
        held, screen = self._terminal, self._screen
        if held is not None and screen is not None:
            if self._outs["terminal"].problem is not None:
                self._hang_up()
            elif self._keys is None and not reads_lines(screen) and held.free:
                # Its stdin is elsewhere, but it asks its terminal for keys, as a pager does.
                self._take_keys()
        for flow in self._inputs:
            if flow is not None and flow.paused and flow.may_read is not None and flow.may_read():
                self._make_raw()
                flow.resume()

    def _tell(self, said: int) -> None:
        """Tell so much of what waits, unless a program has the terminal to itself."""
        if self._interludes is None or not said:
            return
        screen = self._screen
        if screen is not None and (self._other_screen.on or not reads_lines(screen)):
            return
        raw = self._terminal is not None and self._terminal.raw
        self._interludes.tell("\r\n" if raw else "\n", said)
        self._kept = 0

    def _make_raw(self) -> None:
        if self._terminal is None or self._keys is None or self._keys.ended:
            return
        self._terminal.make_raw()
        if not self._terminal.raw:
            self._keys.pause()  # we are in the background; looked at again from time to time

    def _hang_up(self) -> None:
        """Let go of the command's terminal, which tells it what a closed window would."""
        screen, self._screen = self._screen, None
        if screen is not None:
            self._outs["terminal"].close()
            if self._keys is not None:
                self._keys.close()
            os.close(screen)

    def _lost(self, name: str) -> str | None:
        """What the caller's stream could not take, other than that nobody reads it."""
        problem = self._outs[name].problem
        if problem is None or problem.errno in (errno.EPIPE, errno.ECONNRESET, errno.EIO):
            return None
        return f"writing to {name}: {problem.strerror}"

    def _drain(self) -> None:
        """Pass on what the command wrote before it ended, and no more than that."""
        goals = {
            name: out.moved + out.pending
            for name, out in self._outs.items()
            if name != "terminal" and not out.ended
        }
        screen = self._outs.get("terminal")
        most = 0 if screen is None else screen.moved + MOST_IN_A_TERMINAL
        progress = time.monotonic()
        silent = False  # known only after a look: who was kept from looking has heard nothing
        while True:
            behind = any(
                not self._outs[name].ended and self._outs[name].moved < goal
                for name, goal in goals.items()
            )
            if not behind and (screen is None or screen.ended or silent or screen.moved > most):
                return
            if self._hurried and silent:
                return
            before = sum(out.moved for out in self._outs.values())
            slow = screen is not None and screen.held_up  # it is the reader who keeps us waiting
            waits = (behind or slow) and not self._hurried
            self._watch.turn(None if waits else LINGER_SECONDS)
            now = time.monotonic()
            if waits or sum(out.moved for out in self._outs.values()) != before:
                progress = now
            silent = now - progress > LINGER_SECONDS

    def _flush(self) -> None:
        """Wait until what was passed on is out, where it goes by a way of its own."""
        for out in self._outs.values():
            out.close()
        while not self._hurried and any(out.lags for out in self._outs.values()):
            self._watch.turn(LINGER_SECONDS)

    @property
    def _hurried(self) -> bool:
        """Whether we were told to end, and do not wait for a reader that is not reading."""
        return self._timed_out or self._stop_signal is not None or self._interrupts > 0

    # Signals

    def _signalled(self, _: int) -> None:
        for number in self._signals.take():
            if number == signal.SIGWINCH:
                self._resize()
            elif number == signal.SIGTSTP:
                self._stop(group=False)
            elif number == signal.SIGCONT:
                self._continue()
            else:
                self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        if number in TELLING_TO_END:
            self._stop_signal = number
        if number == signal.SIGINT:
            self._interrupts += 1
        if self._done is not None:
            return
        if number == signal.SIGINT and self._interrupts > 1:
            self._job.kill()
        else:
            self._job.signal(number)

    def _resize(self) -> None:
        if self._terminal is not None and self._screen is not None:
            self._job.resize(*self._terminal.size())

    def _typed(self, data: bytes) -> bytes:
        """What was typed, but for a key that stops the command: that one stops podbot with it."""
        for at, key in enumerate(data):
            if key < 32 and self._screen is not None and means_stop(self._screen, key):
                self._stop(group=True)
                return data[:at] + data[at + 1 :]
        return data

    def _stop(self, *, group: bool) -> None:
        """Stop with the command until somebody continues us.

        Its group has no parent inside that could continue it, so the kernel would not heed
        a SIGTSTP there.
        """
        self._job.signal(signal.SIGSTOP)
        if self._terminal is not None:
            self._terminal.restore()
        self._signals.stop_here(group)
        self._continue()

    def _continue(self) -> None:
        self._make_raw()
        self._resize()
        self._job.signal(signal.SIGCONT)
