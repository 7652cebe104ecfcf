"""The Python kernel: a process that keeps its variables from one piece of code to the next.

`KERNEL` is the program that runs in that process; `Kernel` is the guest's side of it.
"""

from __future__ import annotations

import _socket as socket
import collections
import os
import select
import signal
import struct
import time

from podbot.sandbox.guest.families import Family, boot_time, exit_of
from podbot.sandbox.guest.refusals import Refused
from podbot.sandbox.guest.spawning import pipe_to, spawn_program
from podbot.sandbox.guest.streams import Input, Output
from podbot.sandbox.guest.wire import MAX_PAYLOAD, READ_SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.sandbox.guest.loop import Timer
    from podbot.sandbox.guest.requests import Guest
    from podbot.sandbox.guest.spawning import Actions
    from podbot.sandbox.guest.wire import Head


# Runs in a process of its own, by whatever interpreter the policy names (3.8 or newer), and
# imports next to nothing: its start is most of what a first answer costs. Descriptor 3 is its
# line to the guest; what the code prints goes to pipes the guest reads.
KERNEL = r"""
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import _ast, _signal as signal, _struct as struct, os  # the plain ones import half the library
def serve(workdir):
    line = 3
    os.set_inheritable(line, False)  # what the code starts has no business with it
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    scope = main.__dict__
    scope["__builtins__"] = __builtins__
    sources = {}
    sys.argv = [""]
    sys.path.append(workdir)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    def take():
        data = bytearray()
        while len(data) < 9 or len(data) < 9 + struct.unpack_from("!I", data)[0]:
            part = os.read(line, 65536)
            if not part:
                os._exit(0)
            data += part
        return bytes(data[9:]), data[8], struct.unpack_from("!I", data, 4)[0]
    def lone(source, name):
        # Most code is one expression on one line, and is compiled in one go. Not with a
        # backslash, which may bring a warning, and the second try would bring it again.
        if len(source) > 200 or "\n" in source or "\\" in source or source[:1].isspace():
            return None
        try:
            return compile(source, name, "eval", 0, True)
        except (SyntaxError, ValueError):
            return None
    def explain(limit):
        import linecache, traceback
        for name, text in sources.items():
            linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        kind, error, trace = sys.exc_info()
        while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":
            trace = trace.tb_next
        return "".join(traceback.format_exception(kind, error, trace))[:limit]
    plain = (str, int, float, bool, list, dict)
    def as_json(result, limit):
        # Only what comes back from it as it was, so that nobody is told of a list for a tuple.
        import json
        try:
            text = json.dumps(result, allow_nan=False)
            return text if len(text) <= limit and json.loads(text) == result else None
        except Exception:
            return None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    count, myself = 0, os.getpid()
    while True:
        source, asked, limit = take()
        source = source.decode("utf-8", "surrogatepass")
        count += 1
        name = "<input %d>" % count
        value, failure, data = None, None, None
        try:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                sources[name] = source
                last = lone(source, name)
                if last is None:
                    tree = compile(source, name, "exec", 0x400, True)
                    if tree.body and isinstance(tree.body[-1], _ast.Expr):
                        last = _ast.Expression(tree.body.pop().value)
                        last = compile(last, name, "eval", 0, True)
                    if tree.body:
                        exec(compile(tree, name, "exec", 0, True), scope)
                if last is not None:
                    result = eval(last, scope)
                    if result is not None:
                        scope["_"] = result
                        value = repr(result)[:limit]
                        if asked and type(result) in plain:
                            data = as_json(result, limit)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except BaseException:
            value = data = None
            try:
                failure = explain(limit)
            except BaseException as error:
                failure = "%s (and its traceback failed)" % type(error).__name__
        if failure is None:
            sources.pop(name, None) if len(sources) > 200 else None
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        if os.getpid() != myself:
            os._exit(0)  # a fork the code made and let run out: it must not answer for us
        one = b"" if value is None else value.encode("utf-8", "backslashreplace")
        two = b"" if failure is None else failure.encode("utf-8", "backslashreplace")
        flags = (value is not None) | (failure is not None) << 1
        if data is not None:  # code that failed has no value
            two, flags = data.encode("ascii"), flags | 4
        reply = struct.pack("!BII", flags, len(one), len(two)) + one + two
        while reply:
            reply = reply[os.write(line, reply):]
os.chdir(sys.argv[1])
serve(sys.argv[1])
"""
KERNEL_REPLY = struct.Struct("!BII")
"""Flags, and the sizes of the value and of what comes behind it: a traceback, or the JSON of it."""
INTERRUPT_GRACE = 5.0
AWAKE_SECONDS = 0.0002


class Kernel:
    """The stateful Python process: started when first needed, one piece of code at a time."""

    family: Family

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._queue: collections.deque[tuple[Head, bytes]] = collections.deque()
        self._now: Head | None = None
        self._timer: Timer | None = None
        self.pid: int | None = None
        self.number = 0

    def run(self, request: Head, code: bytes) -> None:
        """Queue code for the kernel; answers the request in its turn."""
        self._queue.append((request, code))
        self._next()

    def interrupt(self) -> bool:
        """SIGINT to the kernel and what it started; False if nothing runs."""
        if self._now is None or self.pid is None:
            return False
        try:
            os.killpg(self.pid, signal.SIGINT)
        except OSError:
            return False
        return True

    def restart(self) -> None:
        """Kill it; the next code starts a new one."""
        self._stop("the kernel was restarted")

    def cancel(self, request_id: int) -> bool:
        """The host gave up on a piece of code; True if it was one of ours."""
        for item in self._queue:
            if item[0]["id"] == request_id:
                self._queue.remove(item)
                self._guest.refuse(item[0], "closed", "cancelled")
                return True
        if self._now is not None and self._now["id"] == request_id:
            self._expire(timed_out=False)
            return True
        return False

    def kill(self) -> None:
        """Kill everything it started."""
        self.family.kill(self._guest.others(self))

    def _start(self) -> None:
        guest = self._guest
        ours, theirs = socket.socketpair()
        actions: Actions = [(os.POSIX_SPAWN_DUP2, guest.null, 0)]
        near: list[int] = []
        far: list[int] = []
        self.number, env = guest.new_job({})
        began = boot_time()
        try:
            for target in (1, 2):
                fd, end = pipe_to(actions, target, False)
                near.append(fd)
                far.append(end)
            fd = os.dup(theirs.fileno())
            far.append(fd)
            actions.append((os.POSIX_SPAWN_DUP2, fd, 3))
            argv = [guest.python, "-c", KERNEL, guest.workdir]
            try:
                self.pid = spawn_program(argv, env, "/", actions)
            except Refused as error:
                raise Refused("kernel_failed", f"the Python kernel: {error.message}") from error
        except BaseException:
            ours.close()
            for fd in near:
                os.close(fd)
            raise
        finally:
            theirs.close()
            for fd in far:
                os.close(fd)
        self.family = Family(self.number, self.pid, began)
        self._line = ours
        ours.setblocking(False)
        self._reply = bytearray()
        self._writer = Input(guest, os.dup(ours.fileno()))
        self._out = Output(guest, near[0], 0, lambda: None, "cut")
        self._err = Output(guest, near[1], 0, lambda: None, "cut")
        guest.loop.watch(ours.fileno(), self._heard)
        pid = self.pid
        guest.loop.on_exit(pid, lambda status: self._died(pid, status))
        guest.jobs[self.number] = self

    def _next(self) -> None:
        if self._now is not None or not self._queue:
            return
        request, code = self._queue.popleft()
        try:
            if self.pid is None:
                self._start()
        except Refused as error:
            self.pid = None
            self._guest.refuse(request, error.kind, error.message)
            return
        self._now = request
        self._started = time.monotonic()
        self._timed_out = False
        limit = request.get("max_output", MAX_PAYLOAD)
        for stream in (self._out, self._err):
            stream.clear()
            stream._limit = limit
        asked = request.get("json") is True
        self._writer.put(struct.pack("!II?", len(code), limit, asked) + code)
        timeout = request.get("timeout")
        if timeout:
            self._timer = self._guest.loop.after(timeout, self._expire)
        self._wait_a_moment()

    def _wait_a_moment(self) -> None:
        """Most code is short: stay awake for its answer, as going to sleep takes longer."""
        wait_until = time.monotonic() + AWAKE_SECONDS
        while time.monotonic() < wait_until:
            if select.select([self._line], [], [], 0)[0]:
                self._heard(0)
                return
            os.sched_yield()

    def _expire(self, timed_out: bool = True) -> None:
        self._timed_out = timed_out
        self.interrupt()
        now = self._now
        self._guest.loop.after(INTERRUPT_GRACE, lambda: self._insist(now))

    def _insist(self, request: Head | None) -> None:
        if self._now is request:
            self._stop("the code did not stop when interrupted")

    def _heard(self, _events: int) -> None:
        try:
            data = self._line.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._guest.loop.unwatch(self._line.fileno())
            return
        self._reply += data
        if len(self._reply) < KERNEL_REPLY.size:
            return
        flags, value_size, other_size = KERNEL_REPLY.unpack_from(self._reply)
        end = KERNEL_REPLY.size + value_size + other_size
        if len(self._reply) < end or self._now is None:
            return
        value = bytes(self._reply[KERNEL_REPLY.size : KERNEL_REPLY.size + value_size])
        other = bytes(self._reply[KERNEL_REPLY.size + value_size : end])
        self._reply.clear()
        self._answer(
            self._now, value if flags & 1 else None, other if flags & 2 else None, False,
            other if flags & 4 else None,
        )  # fmt: skip

    def _answer(
        self,
        request: Head,
        value: bytes | None,
        failure: bytes | None,
        restarted: bool,
        as_json: bytes | None = None,
    ) -> None:
        self._now = None
        if self._timer:
            self._timer.clear()
        self._out.drain()
        self._err.drain()
        out, err = self._out.text(), self._err.text()
        parts = (value or b"", out, err, failure or as_json or b"")
        head = {
            "id": request["id"],
            "sizes": [len(part) for part in parts],
            "duration": time.monotonic() - self._started,
        }
        flags = {
            "has_value": value is not None,
            "has_error": failure is not None,
            "timed_out": self._timed_out,
            "restarted": restarted,
            "truncated": self._out.lost > 0 or self._err.lost > 0,
        }
        head.update((name, True) for name, is_set in flags.items() if is_set)
        if as_json is not None:
            head["has_json"] = True
        self._guest.answer(head, b"".join(parts))
        self._next()

    def _died(self, pid: int, status: int) -> None:
        if pid != self.pid:
            return  # one that was stopped on purpose; another serves already
        code, number = exit_of(status)
        how = f"killed by signal {number}" if number else f"it exited with {code}"
        self._stop(f"the kernel ended ({how}); its variables are gone")

    def _stop(self, reason: str) -> None:
        """Whatever happened, this kernel is over."""
        if self.pid is None:
            return
        self.kill()
        self.pid = None
        self._guest.jobs.pop(self.number, None)
        self._guest.loop.unwatch(self._line.fileno())
        self._line.close()
        self._writer.close()
        if self._now is not None:
            self._answer(self._now, None, reason.encode(), True)
        self._out.close()
        self._err.close()
