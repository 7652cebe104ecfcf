"""`Guest`: everything one sandbox knows, and one method for each request about what runs in it.

Those about files are in `file_requests`.
"""

from __future__ import annotations

import _socket as socket
import collections
import json
import os
import resource
import select
import sys

from podbot.sandbox.guest import file_requests
from podbot.sandbox.guest.drafts import UMASK, Draft, Reading, Spool
from podbot.sandbox.guest.evaluations import ISOLATED, Evaluation, Evaluations
from podbot.sandbox.guest.families import JOB_VARIABLE, exit_of
from podbot.sandbox.guest.files import Files
from podbot.sandbox.guest.kernel import Kernel
from podbot.sandbox.guest.loop import Loop
from podbot.sandbox.guest.loopback import connecting
from podbot.sandbox.guest.processes import Exec, Spawned
from podbot.sandbox.guest.refusals import Refused, refused
from podbot.sandbox.guest.spawning import DEFAULT_PATH, places_of
from podbot.sandbox.guest.syscalls import LIBC
from podbot.sandbox.guest.terminals import hand_over
from podbot.sandbox.guest.wire import HEADER, PROTOCOL, Wire
from podbot.sandbox.guest.workers import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import ClassVar, Protocol, TypeVar

    from podbot.sandbox.guest.streams import Output
    from podbot.sandbox.guest.wire import Bytes, Head
    from podbot.sandbox.guest.workers import Answer

    class Job(Protocol):
        """Something that runs, and ends with what it started when it is killed."""

        @property
        def pid(self) -> int | None: ...

        @property
        def number(self) -> int: ...

        def kill(self) -> None: ...

    Kept = TypeVar("Kept", "Draft", "Spool")


KEPT_PROCESSES = 256
KEPT_DRAINS = 64


class Guest:
    """Everything one sandbox knows, and the requests it answers."""

    files: Files
    wire: Wire

    def __init__(self) -> None:
        self.loop = Loop()
        self.null = os.open(os.devnull, os.O_RDWR)
        self.jobs: dict[int, Job] = {}
        self.handles: dict[int, Draft | Reading | Spool] = {}
        self._drains: collections.deque[Output] = collections.deque()
        self._last = 0
        self.kernel = Kernel(self)
        self.evaluations = Evaluations(self)
        self.workdir, self.python = "/", sys.executable
        self.rg: str | None = None
        self._environment: dict[str, str] = {}
        self._private: list[str] = []

    def serve(self, in_fd: int, out_fd: int) -> None:
        """Until the host hangs up; then nothing of this sandbox is left."""
        self.wire = Wire(self.loop, in_fd, out_fd, self._request, self._ended)
        self.loop.run()

    def rehearse(self) -> None:
        """Run one command for nobody, while nobody waits.

        Memory shared with the parent is copied when it is first touched. What a first command
        touches is then ours already when the first real one comes.
        """
        near, far = socket.socketpair()
        head = {"id": 1, "op": "exec", "argv": ["true"], "cwd": "/", "timeout": 5.0}
        body = json.dumps(head).encode("ascii")
        near.sendall(HEADER.pack(len(body), 0) + body)
        self.wire = Wire(self.loop, far.fileno(), far.fileno(), self._request, self._ended)
        while not select.select([near], [], [], 0)[0]:
            self.loop.turn()
        near.close()
        self.loop.unwatch(far.fileno())
        self.wire.close()
        far.close()

    def answer(self, head: Head, payload: Bytes = b"") -> None:
        """Reply to a request."""
        self.wire.send(head, payload)

    def refuse(self, request: Head, kind: str, message: str) -> None:
        """Reply that it cannot be done; request 0 (a cancellation) is never answered."""
        if request.get("id"):
            if kind == "command_not_found" and self._private:
                message += self._why_not_there(request)
            error = {"kind": kind, "message": message}
            self.wire.send({"id": request["id"], "error": error})

    def _why_not_there(self, request: Head) -> str:
        """Of a program that the host may well have, below a folder that is empty in here."""
        argv = request.get("argv") or ISOLATED
        variables = {**self._environment, **(request.get("env") or {})}
        path = variables.get("PATH", DEFAULT_PATH)
        for place in places_of(argv[0], path, self._cwd(request)):
            for folder in self._private:
                hidden = place.startswith(f"{folder}/") and not os.path.lexists(place)
                if hidden and not place.startswith(f"{self.workdir}/"):
                    what = "" if place == argv[0] else f"{place}: "
                    return (
                        f" ({what}{folder} is the sandbox's own: what the host has there is not "
                        "seen inside)"
                    )
        return ""

    def new_job(self, env: Mapping[str, str] | None) -> tuple[int, dict[str, str]]:
        """A number for something about to start, and its environment, which carries it."""
        self._last += 1
        whole = dict(self._environment)
        if env:
            whole.update(env)
        whole[JOB_VARIABLE] = str(self._last)
        return self._last, whole

    def others(self, job: Job) -> set[int | None]:
        """The pids of the jobs that must survive when this one is killed."""
        pids = {other.pid for other in self.jobs.values() if other is not job}
        return pids | {self.kernel.pid} if job is not self.kernel else pids

    def in_worker(self, request: Head, work: Callable[[], Answer]) -> None:
        """Answer a request from a fork: ``work()`` gives (head, payload) or raises."""
        try:
            Worker(self, request, work)
        except Refused as error:
            self.refuse(request, error.kind, error.message)

    def drain_on(self, stream: Output) -> None:
        """An ended command's stream that something else still writes to."""
        if stream.ended:
            return
        stream.release()
        self._drains.append(stream)
        if len(self._drains) > KEPT_DRAINS:
            self._drains.popleft().close()

    def _ended(self) -> None:
        """The host hung up, or cannot be understood: end everything."""
        self.loop.running = False

    def _request(self, head: Head, payload: bytes) -> None:
        name = head.get("op")
        operation = self._OPERATIONS.get(name)
        count = head.get("descriptors", 0)
        head["given"] = [self.wire.descriptors.popleft() for _ in range(count)]
        try:
            if operation is None:
                raise Refused("unsupported", f"this guest does not know {name!r}")
            operation(self, head, payload)
        except Refused as error:
            self.refuse(head, error.kind, error.message)
        except OSError as error:
            found = refused(error, head.get("path") or head["op"])
            self.refuse(head, found.kind, found.message)
        except MemoryError:
            self.refuse(head, "limit", "the guest is out of memory")
        except Exception as error:  # a bug here must not take the whole sandbox down
            self.refuse(head, "io", f"guest error: {type(error).__name__}: {error}")
        finally:
            for fd in head["given"]:
                os.close(fd)

    # What follows is one method a request, in the order of ops.py.

    def _init(self, head: Head, _: bytes) -> None:
        self.configure(head)
        version = ".".join(map(str, sys.version_info[:3]))
        self.answer({"id": head["id"], "protocol": PROTOCOL, "python": version})

    def configure(self, head: Head) -> None:
        """Take in what the launcher decided: folders, environment, programs, limits."""
        self.workdir = head["workdir"]
        self.files = Files(head.get("root", "/"), self.workdir)
        # In a container the image's own variables count too; elsewhere ours mean nothing.
        self._environment = {**os.environ, **head["env"]} if head.get("inherit") else head["env"]
        self.python = head.get("python") or sys.executable
        self.rg = head.get("rg")
        self.evaluations.forked = not head.get("fresh_interpreters")
        self._private = head.get("private", [])
        # A sandbox that was started again must not take an old number for a new process.
        self._last = max(self._last, head.get("numbers_after", 0))
        os.umask(UMASK)
        for name, value in head.get("rlimits", {}).items():
            which = getattr(resource, name)
            _, hard = resource.getrlimit(which)
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (most, most))
        if head.get("subreaper"):
            LIBC.become_subreaper()

    def _set_environment(self, head: Head, _: bytes) -> None:
        self._environment = {**self._environment, **head["env"]}
        self.answer({"id": head["id"]})

    def _cancel(self, head: Head, _: bytes) -> None:
        target = head["target"]
        for job in list(self.jobs.values()):
            if isinstance(job, Spawned):
                if job.abandon(target):
                    return
            elif isinstance(job, (Exec, Worker)) and job.request["id"] == target:
                job.cancel()
                return
        self.kernel.cancel(target)

    def _cwd(self, head: Head) -> str:
        cwd = head.get("cwd")
        return self.workdir if cwd is None else os.path.join(self.workdir, cwd)

    def _spooled(self, head: Head, name: str, payload: bytes) -> bytes:
        handle = head.get(name)
        return payload if handle is None else bytes(self.taken(handle, Spool).data)

    def _exec(self, head: Head, payload: bytes) -> None:
        stdin = self._spooled(head, "stdin_handle", payload)
        Exec(self, head, head["argv"], head.get("env"), self._cwd(head), stdin)

    def _evaluate(self, head: Head, payload: bytes) -> None:
        Evaluation(self, head, self._spooled(head, "stdin_handle", payload))

    def _spawn(self, head: Head, _: bytes) -> None:
        ended = [
            job for job in self.jobs.values() if isinstance(job, Spawned) and job.status is not None
        ]
        for job in ended[: max(0, len(ended) - KEPT_PROCESSES)]:
            job.close()
        job = Spawned(self, head, head["argv"], head.get("env"), self._cwd(head))
        self.answer({"id": head["id"], "process": job.number})

    def _process(self, head: Head) -> Spawned:
        number: int = head["process"]
        job = self.jobs.get(number)
        if not isinstance(job, Spawned):
            raise Refused("no_such_process", f"there is no process {number}")
        return job

    def _output(self, head: Head, _: bytes) -> None:
        self._process(head).read(head)

    def _input(self, head: Head, payload: bytes) -> None:
        process = self._process(head)
        if process.input is None or process.input.closed:
            if head.get("close") and not payload:
                self.answer({"id": head["id"]})
                return
            raise Refused("io", f"stdin of process {process.number} is closed")

        def done(error: OSError | None) -> None:
            if error is None:
                self.answer({"id": head["id"]})
            else:
                self.refuse(head, "io", f"stdin of process {process.number} is closed")

        process.input.put(payload, done, close=bool(head.get("close")))

    def _wait(self, head: Head, _: bytes) -> None:
        self._process(head).wait(head)

    def _signal(self, head: Head, _: bytes) -> None:
        process = self._process(head)
        number = head["signal"]
        if process.status is None:
            try:
                (os.killpg if head.get("group") else os.kill)(process.pid, number)
            except (OSError, ValueError) as error:
                raise Refused("invalid", f"signal {number!r}: {error}") from error
        self.answer({"id": head["id"]})

    def _resize(self, head: Head, _: bytes) -> None:
        self._process(head).resize(head["terminal"])
        self.answer({"id": head["id"]})

    def _kill(self, head: Head, _: bytes) -> None:
        self._process(head).kill()
        self.answer({"id": head["id"]})

    def _forget(self, head: Head, _: bytes) -> None:
        self._process(head).close()
        self.answer({"id": head["id"]})

    def _processes(self, head: Head, _: bytes) -> None:
        found = [
            {
                "process": job.number,
                "argv": job.argv,
                "exit_code": None if job.status is None else exit_of(job.status)[0],
            }
            for job in self.jobs.values()
            if isinstance(job, Spawned)
        ]
        self.answer({"id": head["id"]}, json.dumps(found).encode("ascii"))

    def _python(self, head: Head, payload: bytes) -> None:
        self.kernel.run(head, self._spooled(head, "code_handle", payload))

    def _python_interrupt(self, head: Head, _: bytes) -> None:
        self.answer({"id": head["id"], "interrupted": self.kernel.interrupt()})

    def _python_restart(self, head: Head, _: bytes) -> None:
        self.kernel.restart()
        self.answer({"id": head["id"]})

    def _connect(self, head: Head, _: bytes) -> None:
        try:
            line = connecting(head["port"])
        except OSError as error:
            raise Refused("io", f"port {head['port']} of loopback: {error.strerror}") from error
        hand_over(head["given"][0], line)
        self.answer({"id": head["id"]})

    def keep(self, thing: Draft | Reading | Spool) -> int:
        """A handle by which later requests name it."""
        self._last += 1
        self.handles[self._last] = thing
        return self._last

    def taken(self, handle: int, cls: type[Kept]) -> Kept:
        """What a handle named; it names nothing any more."""
        thing = self.handles.pop(handle, None)
        if not isinstance(thing, cls):
            raise Refused("invalid", "there is no such handle")
        return thing

    _OPERATIONS: ClassVar[dict[object, Callable[[Guest, Head, bytes], None]]] = {
        "init": _init, "environment": _set_environment,
        "cancel": _cancel, "exec": _exec, "evaluate": _evaluate,
        "spawn": _spawn, "output": _output,
        "input": _input, "wait": _wait, "signal": _signal, "resize": _resize,
        "kill": _kill, "forget": _forget, "processes": _processes, "connect": _connect,
        "python": _python, "python_interrupt": _python_interrupt,
        "python_restart": _python_restart, **file_requests.OPERATIONS,
    }  # fmt: skip
