"""Forks that do what could take long, so that one request cannot hold up the others."""

from __future__ import annotations

import json
import os
import signal

from podbot.sandbox.guest.families import Family, boot_time
from podbot.sandbox.guest.refusals import Refused, refused
from podbot.sandbox.guest.streams import Output
from podbot.sandbox.guest.wire import HEADER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from podbot.sandbox.guest.requests import Guest
    from podbot.sandbox.guest.wire import Head

    Answer = tuple[Head, bytes]
    """What a worker gives: its reply without the id."""


class Worker:
    """A fork of the guest that does one long thing and reports through a pipe."""

    def __init__(self, guest: Guest, request: Head, work: Callable[[], Answer]) -> None:
        self._guest, self.request = guest, request
        self.number, _ = guest.new_job({})
        read, write = os.pipe()
        began = boot_time()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(read)
            os.close(write)
            raise Refused("out_of_processes", "no room for another process") from error
        if pid == 0:
            os.close(read)
            self._work(work, write)
        os.close(write)
        self.pid = pid
        self.family = Family(self.number, pid, began)
        guest.jobs[self.number] = self
        self._out = Output(guest, read, 1 << 30, lambda: None, "cut")
        timeout = request.get("timeout")
        self._timer = guest.loop.after(timeout, self._expired) if timeout else None
        self._expired_already = False
        guest.loop.on_exit(pid, self._exited)

    @staticmethod
    def _work(work: Callable[[], Answer], write: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                head, payload = work()
            except Refused as error:
                head, payload = {"error": {"kind": error.kind, "message": error.message}}, b""
            except OSError as error:
                found = refused(error, error.filename or "the request")
                head, payload = {"error": {"kind": found.kind, "message": found.message}}, b""
            except MemoryError:
                head, payload = {"error": {"kind": "limit", "message": "out of memory"}}, b""
            body = json.dumps(head).encode("ascii")
            view = memoryview(HEADER.pack(len(body), len(payload)) + body + payload)
            while view:
                view = view[os.write(write, view) :]
        finally:
            os._exit(0)

    def _expired(self) -> None:
        self._expired_already = True
        self.kill()

    def cancel(self) -> None:
        """The host gave up on this."""
        self.kill()

    def kill(self) -> None:
        """Kill the worker."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except OSError:
            pass  # gone meanwhile

    def _exited(self, status: int) -> None:
        self._out.drain()
        self._out.close()
        self._guest.jobs.pop(self.number, None)
        if self._timer:
            self._timer.clear()
        data = self._out.text()
        if self._expired_already:
            self._guest.refuse(self.request, "timeout", "it took longer than its time limit")
            return
        if len(data) >= HEADER.size:
            head_size, payload_size = HEADER.unpack_from(data)
            if len(data) == HEADER.size + head_size + payload_size:
                head = json.loads(data[HEADER.size : HEADER.size + head_size])
                head["id"] = self.request["id"]
                self._guest.answer(head, data[HEADER.size + head_size :])
                return
        self._guest.refuse(self.request, "io", "the worker ended early")
