"""Commands: `Exec` runs to its end for one request, `Spawned` goes on in the background."""

from __future__ import annotations

import os
import time

from podbot.sandbox.guest.families import Family, boot_time, exit_of
from podbot.sandbox.guest.refusals import Refused, refused
from podbot.sandbox.guest.spawning import pipe_to, spawn_program
from podbot.sandbox.guest.streams import Input, Output
from podbot.sandbox.guest.terminals import hand_over, set_terminal_modes, set_terminal_size
from podbot.sandbox.guest.users import spawn_as
from podbot.sandbox.guest.wire import MAX_PAYLOAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from podbot.sandbox.guest.requests import Guest
    from podbot.sandbox.guest.spawning import Actions
    from podbot.sandbox.guest.wire import Head


LINGER_SECONDS = 0.1
TIMEOUT_EXIT_CODE = 124


class Exec:
    """A command that runs to its end for one request."""

    def __init__(
        self,
        guest: Guest,
        request: Head,
        argv: list[str],
        env: Mapping[str, str] | None,
        cwd: str | int,
        stdin: bytes,
    ) -> None:
        self.guest, self.request = guest, request
        self.timed_out = self.cancelled = False
        self.status: int | None = None
        self._finished = False
        actions: Actions = []
        near: list[int] = []
        far: list[int] = []
        try:
            if stdin:
                in_fd, end = pipe_to(actions, 0, True)
                near.append(in_fd)
                far.append(end)
            else:
                actions.append((os.POSIX_SPAWN_DUP2, guest.null, 0))
            merged = request.get("merge_stderr")
            for target in (1,) if merged else (1, 2):
                fd, end = pipe_to(actions, target, False)
                near.append(fd)
                far.append(end)
            if merged:
                actions.append((os.POSIX_SPAWN_DUP2, 1, 2))
                fd, end = os.pipe()  # which is at its end from the start
                near.append(fd)
                os.close(end)
            self.started, began = time.monotonic(), boot_time()
            self.number, whole = guest.new_job(env)
            pid = self.start(argv, whole, cwd, actions)
        except OSError as error:
            for fd in near:
                os.close(fd)
            raise refused(error, argv[0]) from error
        except Refused:
            for fd in near:
                os.close(fd)
            raise
        finally:
            for fd in far:
                os.close(fd)
        self.pid = pid
        self.family = Family(self.number, pid, began)
        guest.jobs[self.number] = self
        limit = request.get("max_output", MAX_PAYLOAD)
        self.out = Output(guest, near[-2], limit, self._changed, "cut")
        self.err = Output(guest, near[-1], limit, self._changed, "cut")
        self.input = Input(guest, near[0]) if stdin else None
        if self.input is not None:
            self.input.put(stdin, close=True)
        timeout = request.get("timeout")
        self.timer = guest.loop.after(timeout, self._expired) if timeout else None
        guest.loop.on_exit(pid, self._exited)

    def start(
        self, argv: list[str], env: Mapping[str, str], cwd: str | int, actions: Actions
    ) -> int:
        """Start what runs; gives its pid."""
        user = self.request.get("user")
        if user is not None:
            return spawn_as(user, argv, env, cwd, actions)
        return spawn_program(argv, env, cwd, actions)

    def _changed(self) -> None:
        if self.out.ended and self.err.ended:
            if self.status is None:
                self.guest.loop.reap()
            if self.status is not None:
                self.finish()

    def _exited(self, status: int) -> None:
        self.status = status
        self.duration = time.monotonic() - self.started
        self.out.drain()
        self.err.drain()
        if self.out.ended and self.err.ended:
            self.finish()
        else:
            # Something it left in the background still holds the pipes: do not wait for that.
            self.guest.loop.after(LINGER_SECONDS, self.finish)

    def _expired(self) -> None:
        self.timed_out = True
        self.kill()

    def cancel(self) -> None:
        """The host gave up on this: kill it, then answer as usual."""
        self.cancelled = True
        self.kill()

    def kill(self) -> None:
        """Kill everything it started."""
        self.family.kill(self.guest.others(self))

    def finish(self) -> None:
        """Answer the request."""
        if self._finished or self.status is None:
            return
        self._finished = True
        if self.timer:
            self.timer.clear()
        if self.input is not None:
            self.input.close()
        self.guest.jobs.pop(self.number, None)
        self.guest.drain_on(self.out)
        self.guest.drain_on(self.err)
        code, number = exit_of(self.status)
        head = {
            "id": self.request["id"],
            "exit_code": TIMEOUT_EXIT_CODE if self.timed_out else code,
            "signal": None if self.timed_out else number,
            "timed_out": self.timed_out,
            "duration": self.duration,
            "stdout_size": self.out.size,
            "stdout_truncated": self.out.lost > 0,
            "stderr_truncated": self.err.lost > 0,
        }
        self.guest.answer(head, self.out.text() + self.err.text())


STREAMS = ("stdin", "stdout", "stderr")


class Spawned:
    """A command in the background, with its streams and those who wait for it."""

    def __init__(
        self,
        guest: Guest,
        request: Head,
        argv: list[str],
        env: Mapping[str, str] | None,
        cwd: str,
    ) -> None:
        self.guest, self.argv = guest, argv
        self.status: int | None = None
        self.waiters: list[Head] = []
        self.readers: dict[str, list[Head]] = {"stdout": [], "stderr": []}
        self.input: Input | None = None
        self._terminal: int | None = None
        self.number, whole = guest.new_job(env)
        names = request.get("streams", STREAMS[1:])
        given = dict(zip(names, request["given"]))  # noqa: B905 - strict= came after 3.8
        began = boot_time()
        if request.get("terminal"):
            streams = self._on_terminal(argv, whole, cwd, request, given)
        else:
            streams = self._on_pipes(argv, whole, cwd, request.get("stdin"), given)
        self.family = Family(self.number, self.pid, began)
        self.streams = {name: self._stream(name, fd, request) for name, fd in streams.items()}
        guest.jobs[self.number] = self
        guest.loop.on_exit(self.pid, self._exited)

    def _stream(self, name: str, fd: int, request: Head) -> Output:
        limit = request.get("buffer", 4 * MAX_PAYLOAD)
        mode: Literal["drop", "wait"] = "drop" if request.get("drop_oldest") else "wait"
        return Output(self.guest, fd, limit, lambda: self._feed(name), mode)

    def _on_pipes(
        self,
        argv: list[str],
        env: Mapping[str, str],
        cwd: str,
        stdin: bool | None,
        given: Mapping[str, int],
    ) -> dict[str, int]:
        """On pipes of our own, or on those the host sent and reads or writes itself."""
        actions: Actions = []
        near: dict[str, int] = {}
        far: list[int] = []
        try:
            for target, name in enumerate(STREAMS):
                if name in given:
                    actions.append((os.POSIX_SPAWN_DUP2, given[name], target))
                elif target or stdin:
                    near[name], end = pipe_to(actions, target, reading=not target)
                    far.append(end)
                else:
                    actions.append((os.POSIX_SPAWN_DUP2, self.guest.null, 0))
                if target and name in near:
                    widen(near[name])
            self.pid = spawn_program(argv, env, cwd, actions)
        except BaseException as error:
            for fd in near.values():
                os.close(fd)
            if isinstance(error, OSError):
                raise refused(error, argv[0]) from error
            raise
        finally:
            for fd in far:
                os.close(fd)
        if "stdin" in near:
            self.input = Input(self.guest, near.pop("stdin"))
        return near

    def _on_terminal(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        request: Head,
        given: Mapping[str, int],
    ) -> dict[str, int]:
        """On a terminal, but for the streams the host sent; it may want the near end itself."""
        try:
            master, slave = os.openpty()
        except OSError as error:
            raise refused(error, "opening a terminal") from error
        try:
            set_terminal_size(master, request["terminal"])
            if request.get("modes"):
                set_terminal_modes(slave, request["modes"])
            # The first terminal a session leader opens becomes its controlling one.
            actions: Actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
            ]
            for target, name in enumerate(STREAMS):
                if name in given:
                    actions.append((os.POSIX_SPAWN_DUP2, given[name], target))
            env.setdefault("TERM", "xterm-256color")
            self.pid = spawn_program(argv, env, cwd, actions)
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        if "terminal" in given:
            hand_over(given["terminal"], master)
            return {}
        self._terminal = master
        self.input = Input(self.guest, os.dup(master))
        return {"stdout": master}

    def resize(self, size: Sequence[int]) -> None:
        """A new size for its terminal."""
        if self._terminal is None or self.streams["stdout"].ended:
            raise Refused("invalid", f"process {self.number} has no terminal")
        set_terminal_size(self._terminal, size)

    def read(self, request: Head) -> None:
        """Answer an `output` request now, or when there is something to say."""
        name = request["stream"]
        if request.get("close"):
            self._let_go(name)
        waiting = self.readers[name]
        waiting.append(request)
        self._feed(name)
        timeout = request.get("timeout")
        if request in waiting and timeout is not None:
            self.guest.loop.after(timeout, lambda: self._overdue(name, request))

    def _let_go(self, name: str) -> None:
        """Nobody reads a stream any more; a terminal that nobody sits at hangs up."""
        stream = self.streams.get(name)
        if stream is not None:
            stream.clear()
            stream.close()
        if self._terminal is not None and self.input is not None:
            self.input.close()

    def _overdue(self, name: str, request: Head) -> None:
        if request in self.readers[name]:
            self.readers[name].remove(request)
            self.guest.answer({"id": request["id"], "timed_out": True, "dropped": 0})

    def _feed(self, name: str) -> None:
        stream = self.streams.get(name)
        waiting = self.readers[name]
        while waiting and (stream is None or stream.ended or stream.size):
            request = waiting.pop(0)
            data = stream.take(request["size"]) if stream else b""
            dropped = stream.lost if stream else 0
            head = {"id": request["id"], "ended": not len(data), "dropped": dropped}
            self.guest.answer(head, data)

    def wait(self, request: Head) -> None:
        """Answer a `wait` request now, or when it ended."""
        timeout = request.get("timeout")
        if self.status is not None or timeout == 0:
            self._tell(request)
            return
        self.waiters.append(request)
        if timeout is not None:
            self.guest.loop.after(timeout, lambda: self._give_up(request))

    def _give_up(self, request: Head) -> None:
        if request in self.waiters:
            self.waiters.remove(request)
            self._tell(request)

    def _tell(self, request: Head) -> None:
        code, number = (None, None) if self.status is None else exit_of(self.status)
        self.guest.answer({"id": request["id"], "exit_code": code, "signal": number})

    def abandon(self, request_id: int) -> bool:
        """A host's request for this process was cancelled; True if it was one of ours."""
        for waiting in (self.waiters, self.readers["stdout"], self.readers["stderr"]):
            for request in waiting:
                if request["id"] == request_id:
                    waiting.remove(request)
                    self.guest.refuse(request, "closed", "cancelled")
                    return True
        return False

    def _exited(self, status: int) -> None:
        self.status = status
        while self.waiters:
            self._tell(self.waiters.pop())

    def kill(self) -> None:
        """Kill everything it started."""
        self.family.kill(self.guest.others(self))

    def close(self) -> None:
        """Kill it and let go of everything."""
        self.kill()
        for stream in self.streams.values():
            stream.close()
        if self.input is not None:
            self.input.close()
        for waiting in self.readers.values():
            while waiting:
                self.guest.refuse(waiting.pop(), "no_such_process", "the process was closed")
        self.guest.jobs.pop(self.number, None)


def widen(fd: int) -> bool:
    """A wider pipe means fewer wake-ups for a process that writes much; tells whether it is one."""
    import fcntl

    try:
        fcntl.fcntl(fd, 1031, MAX_PAYLOAD)  # F_SETPIPE_SZ
    except OSError:
        return False  # over the user's share of pipe memory: the usual size will do
    return True
