"""`Guest`: everything one sandbox knows, and one method for each request the host can make."""

from __future__ import annotations

import _socket as socket
import collections
import errno
import json
import os
import resource
import select
import stat
import sys

from podbot.sandbox.guest.drafts import UMASK, Draft, Reading, Spool
from podbot.sandbox.guest.families import JOB_VARIABLE, exit_of
from podbot.sandbox.guest.files import Files, _is_there, describe, is_folder, under
from podbot.sandbox.guest.globs import Glob
from podbot.sandbox.guest.kernel import Kernel
from podbot.sandbox.guest.loop import Loop
from podbot.sandbox.guest.patterns import rg_pattern
from podbot.sandbox.guest.processes import Exec, Spawned
from podbot.sandbox.guest.refusals import Refused, refused
from podbot.sandbox.guest.ripgrep import Ripgrep
from podbot.sandbox.guest.search import search_by_worker
from podbot.sandbox.guest.syscalls import LIBC
from podbot.sandbox.guest.trees import entries_of, remove_tree, walk
from podbot.sandbox.guest.wire import HEADER, PROTOCOL, Wire
from podbot.sandbox.guest.workers import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import ClassVar, Protocol, TypeVar

    from podbot.sandbox.guest.families import Family
    from podbot.sandbox.guest.streams import Output
    from podbot.sandbox.guest.trees import Entry
    from podbot.sandbox.guest.wire import Bytes, Head
    from podbot.sandbox.guest.workers import Answer

    class Job(Protocol):
        """Something that runs, and ends with what it started when it is killed."""

        family: Family

        @property
        def pid(self) -> int | None: ...

        @property
        def number(self) -> int: ...

        def kill(self) -> None: ...

    Kept = TypeVar("Kept", "Draft", "Spool")


NAMES_LIMIT = 8 * 1024 * 1024
FEW_ENTRIES = 100
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
        self._handles: dict[int, Draft | Reading | Spool] = {}
        self._drains: collections.deque[Output] = collections.deque()
        self._last = 0
        self.kernel = Kernel(self)
        self.workdir, self.python = "/", sys.executable
        self.rg: str | None = None
        self._environment: dict[str, str] = {}

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
            error = {"kind": kind, "message": message}
            self.wire.send({"id": request["id"], "error": error})

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
        return payload if handle is None else bytes(self._taken(handle, Spool).data)

    def _exec(self, head: Head, payload: bytes) -> None:
        stdin = self._spooled(head, "stdin_handle", payload)
        Exec(self, head, head["argv"], head.get("env"), self._cwd(head), stdin)

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

    def _keep(self, thing: Draft | Reading | Spool) -> int:
        self._last += 1
        self._handles[self._last] = thing
        return self._last

    def _taken(self, handle: int, cls: type[Kept]) -> Kept:
        thing = self._handles.pop(handle, None)
        if not isinstance(thing, cls):
            raise Refused("invalid", "there is no such handle")
        return thing

    def _stdin_open(self, head: Head, payload: bytes) -> None:
        spool = Spool()
        spool.write(payload)
        self.answer({"id": head["id"], "handle": self._keep(spool)})

    def _handle_write(self, head: Head, payload: bytes) -> None:
        thing = self._handles.get(head["handle"])
        if not isinstance(thing, (Draft, Spool)):
            raise Refused("invalid", "there is no such handle")
        try:
            thing.write(payload)
        except Refused:
            self._handles.pop(head["handle"]).close()
            raise
        self.answer({"id": head["id"]})

    def _handle_read(self, head: Head, _: bytes) -> None:
        reading = self._handles.get(head["handle"])
        if not isinstance(reading, Reading):
            raise Refused("invalid", "there is no such handle")
        data = reading.read(head["size"])
        if not data:
            self._handles.pop(head["handle"]).close()
        self.answer({"id": head["id"]}, data)

    def _handle_close(self, head: Head, _: bytes) -> None:
        thing = self._handles.pop(head["handle"], None)
        if thing is not None:
            thing.close()
        self.answer({"id": head["id"]})

    def _read(self, head: Head, _: bytes) -> None:
        fd, found = self.files.regular(head["path"])
        size: int = head["size"]
        reading = Reading(fd, head["offset"])
        try:
            if found.st_size:
                # One more than there is: enough to see that it grew, without a large buffer.
                data = reading.read(min(size, max(1, found.st_size - head["offset"] + 1)))
            else:
                data = reading.read_on(size)  # /proc says 0 of every file, and gives it in bits
        except BaseException:
            reading.close()
            raise
        reply = {"id": head["id"]}
        if len(data) == size and not 0 < found.st_size <= head["offset"] + len(data):
            reply["handle"] = self._keep(reading)
        else:
            reading.close()
        self.answer(reply, data)

    def _write(self, head: Head, payload: bytes) -> None:
        draft = Draft(self.files, head, len(payload))
        try:
            draft.write(payload)
            draft.finish()
        except BaseException:
            draft.close()
            raise
        self.answer({"id": head["id"]})

    def _write_open(self, head: Head, payload: bytes) -> None:
        draft = Draft(self.files, head, None)
        try:
            draft.write(payload)
        except BaseException:
            draft.close()
            raise
        self.answer({"id": head["id"], "handle": self._keep(draft)})

    def _write_done(self, head: Head, _: bytes) -> None:
        self._taken(head["handle"], Draft).finish()
        self.answer({"id": head["id"]})

    def _edit(self, head: Head, payload: bytes) -> None:
        path, most = head["path"], head["max_bytes"]
        old, new = payload[: head["old_size"]], payload[head["old_size"] :]
        fd, found = self.files.regular(path)
        with os.fdopen(fd, "rb") as file:
            if found.st_size > most:
                raise Refused("too_large", f"{path} is larger than {most} bytes")
            data = file.read(most + 1)
        count = data.count(old)
        if count == 0:
            raise Refused("no_match", f"the text to replace is not in {path}")
        again = data.find(old, data.find(old) + 1) >= 0  # places that overlap count too
        if again and not head["replace_all"]:
            raise Refused("not_unique", f"the text to replace is {max(count, 2)} times in {path}")
        edited = data.replace(old, new)
        draft = Draft(self.files, {"path": path, "mode": "replace"}, len(edited))
        try:
            draft.write(edited)
            draft.finish()
        except BaseException:
            draft.close()
            raise
        self.answer({"id": head["id"], "count": count})

    def _list(self, head: Head, _: bytes) -> None:
        path = head["path"]
        fd = self.files.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                few = min(head["max_entries"], FEW_ENTRIES)
                reply, payload = (
                    self._listing(dict(head, max_entries=few), walk(fd))
                    if head["recursive"]
                    else self._listing(head, entries_of(fd))
                )
            except Refused:
                if not head["recursive"]:
                    raise
                # Only a small tree is walked here: a worker costs more than that.
                self.in_worker(head, lambda: self._listing(head, walk(fd)))
            else:
                self.answer(dict(reply, id=head["id"]), payload)
        finally:
            os.close(fd)

    @staticmethod
    def _listing(head: Head, entries: Iterable[Entry]) -> Answer:
        path, most = head["path"], head["max_entries"]
        found, room = [], NAMES_LIMIT
        for name, facts, parent in entries:
            target = None
            if stat.S_ISLNK(facts.st_mode):
                try:
                    target = os.readlink(name.rsplit("/", 1)[-1], dir_fd=parent)
                except OSError:
                    continue  # gone since it was listed, or another thing by now
            found.append(describe(under(path, name), facts, target))
            room -= len(name) + len(target or "")
            if len(found) > most or room < 0:
                raise Refused("too_large", f"{path} has more than {most} entries, or too deep ones")
        return {}, json.dumps(found).encode("ascii")

    def _glob(self, head: Head, _: bytes) -> None:
        pattern = Glob(head["pattern"])
        fd = self.files.open(head["path"], os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.in_worker(head, lambda: self._globbed(fd, head, pattern))
        finally:
            os.close(fd)

    @staticmethod
    def _globbed(fd: int, head: Head, pattern: Glob) -> Answer:
        path, most = head["path"], head["max_entries"]
        found, room = [], NAMES_LIMIT
        for name, _, _ in walk(fd):
            if pattern.matches(name):
                found.append(under(path, name))
                room -= len(name)
                if len(found) > most or room < 0:
                    raise Refused("too_large", f"more than {most} entries match, or too deep ones")
        return {}, json.dumps(found).encode("ascii")

    def _grep(self, head: Head, _: bytes) -> None:
        if head["glob"]:
            Glob(head["glob"])
        path = head["path"]
        fd = self.files.open(path, os.O_RDONLY)
        folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        if not folder and not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Refused("not_a_file", f"{path} is neither a file nor a folder")
        rg = self.rg if folder else None
        translated = rg_pattern(head["pattern"], head["ignore_case"]) if rg else None
        if rg and translated is not None:
            try:
                Ripgrep(self, head, fd, rg, translated)  # it owns the descriptor from here on
                return
            except Refused:
                pass  # rg cannot be started here: Python does it
        try:
            search_by_worker(self, fd, head)
        finally:
            os.close(fd)

    def _stat(self, head: Head, _: bytes) -> None:
        path = head["path"]
        flags = os.O_PATH | (0 if head["follow"] else os.O_NOFOLLOW)
        fd = self.files.open(path, flags)
        try:
            facts = os.fstat(fd)
            link = stat.S_ISLNK(facts.st_mode)
            target = os.readlink("", dir_fd=fd) if link else None
        finally:
            os.close(fd)
        self.answer({"id": head["id"], "info": describe(path, facts, target)})

    def _move(self, head: Head, _: bytes) -> None:
        path, to = head["path"], head["to"]
        source, name = self.files.parent(path)
        try:
            try:
                target, new_name = self.files.parent(to)
            except Refused as error:
                if error.kind != "not_found":
                    raise
                self.files.make_folders(os.path.dirname(to.rstrip("/")))
                target, new_name = self.files.parent(to)
            try:
                os.lstat(name, dir_fd=source)
                if not head["overwrite"] and _is_there(target, new_name):
                    raise Refused("exists", f"{to} exists already")
                os.replace(name, new_name, src_dir_fd=source, dst_dir_fd=target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                # Another mount, or a folder of an overlay's lower layer: copy, then remove.
                self.in_worker(head, lambda: self._moved_by_copy(path, to))
                return
            finally:
                os.close(target)
        finally:
            os.close(source)
        self.answer({"id": head["id"]})

    def _moved_by_copy(self, path: str, to: str) -> Answer:
        import shutil

        source, name = self.files.parent(path)
        target, new_name = self.files.parent(to)
        begin = f"/proc/self/fd/{source}/{name}"
        end = f"/proc/self/fd/{target}/{new_name}"
        if os.path.isdir(begin) and not os.path.islink(begin):
            shutil.copytree(begin, end, symlinks=True)
        else:
            shutil.copy2(begin, end, follow_symlinks=False)
        remove_tree(source, name)
        return {}, b""

    def _remove(self, head: Head, _: bytes) -> None:
        path = head["path"]
        if self.files.is_workdir(path):
            raise Refused("invalid", f"{path} is the working folder itself")
        try:
            folder, name = self.files.parent(path)
        except Refused as error:
            if error.kind == "not_found" and head["missing_ok"]:
                self.answer({"id": head["id"]})
                return
            raise
        try:
            found = os.lstat(name, dir_fd=folder)
            if not stat.S_ISDIR(found.st_mode):
                os.unlink(name, dir_fd=folder)
            elif not head["recursive"]:
                os.rmdir(name, dir_fd=folder)
            else:
                self.in_worker(head, lambda: self._removed(folder, name))
                return
        except FileNotFoundError:
            if not head["missing_ok"]:
                raise
        finally:
            os.close(folder)
        self.answer({"id": head["id"]})

    @staticmethod
    def _removed(folder: int, name: str) -> Answer:
        remove_tree(folder, name)
        return {}, b""

    def _mkdir(self, head: Head, _: bytes) -> None:
        path = head["path"]
        above = os.path.dirname(path.rstrip("/"))
        if head["parents"] and above:
            self.files.make_folders(above)
        try:
            folder, name = self.files.parent(path)
        except Refused as error:
            if error.kind == "invalid" and head["exist_ok"]:  # the root is there already
                self.answer({"id": head["id"]})
                return
            raise
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            if not head["exist_ok"] or not is_folder(folder, name):
                raise
        finally:
            os.close(folder)
        self.answer({"id": head["id"]})

    def _symlink(self, head: Head, _: bytes) -> None:
        above = os.path.dirname(head["path"].rstrip("/"))
        if above:
            self.files.make_folders(above)
        folder, name = self.files.parent(head["path"])
        try:
            os.symlink(head["target"], name, dir_fd=folder)
        finally:
            os.close(folder)
        self.answer({"id": head["id"]})

    _OPERATIONS: ClassVar[dict[object, Callable[[Guest, Head, bytes], None]]] = {
        "init": _init, "environment": _set_environment,
        "cancel": _cancel, "exec": _exec, "spawn": _spawn, "output": _output,
        "input": _input, "wait": _wait, "signal": _signal, "resize": _resize, "forget": _forget,
        "processes": _processes, "python": _python, "python_interrupt": _python_interrupt,
        "python_restart": _python_restart, "stdin_open": _stdin_open,
        "handle_write": _handle_write, "handle_read": _handle_read, "handle_close": _handle_close,
        "read": _read, "write": _write, "write_open": _write_open, "write_done": _write_done,
        "edit": _edit, "list": _list, "glob": _glob, "grep": _grep, "stat": _stat, "move": _move,
        "remove": _remove, "mkdir": _mkdir, "symlink": _symlink,
    }  # fmt: skip
