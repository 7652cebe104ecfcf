"""Pieces of Python, each run by an interpreter that starts with nothing of another.

`PROGRAM` reads code and runs it: once, or, as a *template*, in a fork of itself for each piece.
Most of what a short piece costs is the start of its interpreter, and of a shim that looks for one;
a template has both behind it. `Evaluations` keeps one template, starts it when the first piece
is done, and lets go of it when anything that it was made from has changed.

Code and template are processes of one user. What keeps the one out of the other: the template's
memory and descriptors are closed to its user (it is not dumpable), a fork has let go of its line
before it reads any code, and a template that was stopped or killed is replaced.
"""

from __future__ import annotations

import _socket as socket
import os
import select
import signal
import struct
import time

from podbot.sandbox.guest.families import JOB_VARIABLE
from podbot.sandbox.guest.processes import Exec
from podbot.sandbox.guest.refusals import Refused
from podbot.sandbox.guest.spawning import (
    DEFAULT_PATH,
    enter,
    find_program,
    pipe_to,
    spawn_program,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from podbot.sandbox.guest.loop import Timer
    from podbot.sandbox.guest.requests import Guest
    from podbot.sandbox.guest.spawning import Actions
    from podbot.sandbox.guest.wire import Head

    State = tuple[object, ...]
    """The facts of some files: equal only while none of them changed."""


NOBODYS_JOB = "0" * 18
"""The mark of a template: no job has it, and that of any job fits over it."""

# Runs isolated (-I): neither the workspace nor a variable decides what is imported here. What the
# last expression gave comes after a mark at the end of stdout; forging it deceives nobody but the
# forger. Python 3.8 or newer.
PROGRAM = r"""
import sys
def read():
    return sys.stdin.buffer.read().decode("utf-8")
def parts():
    # What it is made of. The standard library's own modules are told by their folders.
    import os
    library = os.path.join(os.path.dirname(os.__file__), "")
    found = {sys.executable, sys.prefix + "/pyvenv.cfg", *sys.path}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None) or library
        if not path.startswith(library) or "/site-packages/" in path:
            found.add(path)
    for folder in sys.path:
        if os.path.isdir(folder):
            names = [name for name in os.listdir(folder) if name.endswith(".pth")]
            found.update(os.path.join(folder, name) for name in names)
    return b"\0".join(os.fsencode(path) for path in [sys.executable, *sorted(found)] if path)
def template(workspace):
    import _ast, _socket, atexit, ctypes, gc, os
    libc = ctypes.CDLL(None)
    prctl = libc.prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    def die_with_parent():
        if prctl(1, 9, 0, 0, 0):
            os._exit(1)
    try:
        die_with_parent()
        # Not dumpable: what runs here must not reach into this memory.
        if prctl(4, 0, 0, 0, 0) or len(os.listdir("/proc/self/task")) > 1:
            os._exit(1)
        # Where /proc shows the job that this belongs to: a fork writes its own over it.
        libc.getenv.restype = ctypes.c_void_p
        shown = libc.getenv(b"JOB")
        if not shown or ctypes.string_at(shown) != b"NOBODY":
            os._exit(1)
        os.chdir("/")
        # Forking the next one must not push aside the one that has just got its order.
        ordinary = os.sched_getscheduler(0) == os.SCHED_OTHER
        if ordinary:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        line = _socket.socket(fileno=3)
        line.send(parts())
        set_up(workspace)
        gc.collect()
        gc.freeze()
        while True:
            near, far = _socket.socketpair()
            between = os.fork()
            if not between:
                break
            far.close()
            # Its child has the guest for a parent once this one is gone.
            if os.waitpid(between, 0)[1]:
                os._exit(1)
            near.send(b"!")
            near.recv(1)  # until it has an order, or is dead
            near.close()
        near.close()
        if os.fork():
            os._exit(0)
        if ordinary:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        # Memory is copied when it is first touched: now, while nobody waits.
        os.environ["JOB"] = "0"
        ctypes.memmove(shown, b"NOBODY", len("NOBODY"))
        run("1 + 1")
        gc.collect()
        gc.freeze()
        far.recv(1)
        die_with_parent()
        me = os.getpid()
        line.send(b"%d" % me)
        taker = fds = None
        while taker != me:  # else it was for one that is dead
            for fd in fds or ():
                os.close(fd)
            order, extra, _, _ = line.recvmsg(256, 256, _socket.MSG_CMSG_CLOEXEC)
            taker, job, mark = order.decode().split()
            taker = int(taker)
            fds = [
                int.from_bytes(raw[at : at + 4], sys.byteorder)
                for _, _, raw in extra for at in range(0, len(raw), 4)
            ]
    except BaseException:
        os._exit(1)
    line.close()
    far.close()
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
    for fd in fds:
        os.close(fd)
    prctl(1, 0, 0, 0, 0)
    prctl(4, 1, 0, 0, 0)
    os.environ["JOB"] = job
    ctypes.memmove(shown, job.encode().ljust(len("NOBODY"), b"\0"), len("NOBODY"))
    os.setsid()
    os.chdir(workspace)
    return mark, read()
def set_up(workspace):
    sys.argv = [""]
    sys.path.append(workspace)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.excepthook = hook
def run(code):
    import _ast  # the plain one imports half the library
    main = type(sys)("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    tree = compile(code, "<code>", "exec", _ast.PyCF_ONLY_AST, True)
    last = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = _ast.Expression(tree.body.pop().value)
    exec(compile(tree, "<code>", "exec", 0, True), main.__dict__)
    if last is not None:
        value = eval(compile(last, "<code>", "eval", 0, True), main.__dict__)
        return None if value is None else repr(value)
def hook(kind, error, trace):
    import linecache, traceback
    linecache.cache["<code>"] = (len(code), None, code.splitlines(True), "<code>")
    while trace is not None and trace.tb_frame.f_code.co_filename != "<code>":
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)
def leave():
    # What ending the interpreter does, for code that imported nothing and has no file open: it
    # waits for threads, calls those who asked to be called, and lets the objects go.
    import _io, atexit, gc, os
    if any(isinstance(each, _io._IOBase) for each in gc.get_objects()):
        return
    end, threading = os._exit, sys.modules.get("threading")
    if threading:
        threading._shutdown()
    atexit._run_exitfuncs()
    sys.modules.pop("__main__", None)
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        if stream:
            stream.flush()
    end(0)
workspace, is_fork = sys.argv[1], len(sys.argv) == 2
if is_fork:
    mark, code = template(workspace)
else:
    mark, code = sys.argv[2], read()
    set_up(workspace)
known = len(sys.modules)
value = run(code)
if value is not None:
    data = value[:65536].encode("utf-8", "backslashreplace")
    if sys.stdout:
        sys.stdout.flush()
    sys.__stdout__.buffer.write(b"\0%s:%d:" % (mark.encode(), len(data)) + data)
    sys.__stdout__.flush()
if is_fork and len(sys.modules) == known:
    leave()
""".replace("JOB", JOB_VARIABLE).replace("NOBODY", NOBODYS_JOB)

ANSWER_SECONDS = 0.25
"""How long a template may take to fork before it counts as stopped."""
MOST_FAILURES = 3
"""How often an interpreter may end before it is ready until it is not tried again at once."""
AGAIN_SECONDS = 1.0
"""How long it is not tried then: twice as long after each further time, for what may pass."""
HELLO_SIZE = 1 << 18
MOST_PATHS = 4096
# What the shims of version managers go by, in the working folder or above it.
VERSION_FILES = (".python-version", ".tool-versions")
ISOLATED = ("python3", "-I", "-c", PROGRAM)


class Evaluation(Exec):
    """One piece of code, as a job."""

    def __init__(self, guest: Guest, request: Head, code: bytes) -> None:
        self._mark: str = request["mark"]
        self._is_fork = False
        self._until_begun: Timer | None = None
        argv = [*ISOLATED, guest.workdir, self._mark]
        super().__init__(guest, request, argv, None, guest.workdir, code)

    def start(
        self, argv: list[str], env: Mapping[str, str], cwd: str | int, actions: Actions
    ) -> int:
        """Have the template fork one, or start an interpreter."""
        self._origin = _Origin(env)
        template = self.guest.evaluations.fitting(self._origin)
        if template is not None:
            enter(cwd)  # refused as for any command; the fork steps there itself
            os.chdir("/")
            streams = [int(fd) for _, fd, _ in actions]
            pid = template.fork(self._mark, self.number, streams)
            if pid is not None:
                self._is_fork = True
                self._see_it_begin(pid)
                return pid
            self.guest.evaluations.drop()
        return super().start(argv, env, cwd, actions)

    def _see_it_begin(self, pid: int) -> None:
        """What stopped the fork may have reached it only after it was seen to wait."""
        self._until_begun = self.guest.loop.after(ANSWER_SECONDS, lambda: self._look_at(pid))

    def _look_at(self, pid: int) -> None:
        try:
            has_begun = self.status is not None or os.getsid(pid) == pid
        except OSError:
            return
        if has_begun:
            return
        if _doing(pid) in "Tt":
            self.kill()  # it would never begin
        else:
            self._see_it_begin(pid)

    def finish(self) -> None:
        """Answer; the next one may then find a template."""
        first = not self._finished
        super().finish()
        if self._finished and self._until_begun is not None:
            self._until_begun.clear()
        if first and self._finished and not self._is_fork:
            self.guest.evaluations.prepare(self._origin)


class Evaluations:
    """Keeps the template, if there is one."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._template: _Template | None = None
        self._failed: _Origin | None = None
        self._failures = 0
        self._again = 0.0
        self.forked = True
        """Whether pieces may be forked, as a launcher may know better than to try here."""

    def fitting(self, origin: _Origin) -> _Template | None:
        """The template, if it is ready and still what a new interpreter would be."""
        template = self._template
        if template is not None and (template.origin != origin or template.is_stale):
            self.drop()
            return None
        return template if template is not None and template.is_ready else None

    def prepare(self, origin: _Origin) -> None:
        """Start one, unless one is there or it is known that there cannot be."""
        if self._template is not None or not self.forked:
            return
        if origin != self._failed:
            self._failed, self._failures = None, 0
        if self._failures < MOST_FAILURES or time.monotonic() >= self._again:
            try:
                self._template = _Template(self._guest, origin)
            except (Refused, OSError):
                self._note_failure(origin)

    def drop(self) -> None:
        """End the template, if there is one."""
        template, self._template = self._template, None
        if template is not None:
            if not template.is_ready:
                self._note_failure(template.origin)
            template.close()

    def _note_failure(self, origin: _Origin) -> None:
        self._failed = origin
        self._failures += 1
        over = max(0, min(self._failures - MOST_FAILURES, 6))
        self._again = time.monotonic() + AGAIN_SECONDS * 2**over


class _Origin:
    """What decides which interpreter is started: the program on PATH, and the variables."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = {name: value for name, value in env.items() if name != JOB_VARIABLE}
        self.program = find_program("python3", env.get("PATH", DEFAULT_PATH))
        self._state = _state([self.program])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Origin) and (
            (self._state, self.program, self.env) == (other._state, other.program, other.env)
        )

    __hash__ = None  # type: ignore[assignment]  # compared, and never looked up

    def settings(self, workdir: str) -> list[str]:
        """Where the program looks up which interpreter it stands for, if it is a shim."""
        beside = os.path.dirname(os.path.dirname(self.program))
        found = [os.path.join(beside, "version")]
        folder = ""
        for name in workdir.split("/"):
            folder = f"{folder}{name}/"
            found += [folder + file for file in VERSION_FILES]
        return found


def _state(paths: list[str]) -> State:
    """What tells whether a file is another one, or was written to."""
    found: list[tuple[int, ...] | None] = []
    for path in paths:
        try:
            facts = os.stat(path)
        except (OSError, ValueError):
            found.append(None)
        else:
            found.append((facts.st_dev, facts.st_ino, facts.st_size, facts.st_ctime_ns))
    return tuple(found)


class _Template:
    """An interpreter that forks when asked to; a job of the guest. See `PROGRAM`."""

    def __init__(self, guest: Guest, origin: _Origin) -> None:
        self._guest, self.origin = guest, origin
        self._paths = origin.settings(guest.workdir)
        self._state = _state(self._paths)
        self.is_ready = False
        """Whether it has said what it is made of."""
        self._waiting: int | None = None
        self._closed = False
        self.pid: int | None = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        actions: Actions = []
        fds: list[int] = []
        try:
            for target in range(3):  # pipes, as the streams of its forks are
                fds += pipe_to(actions, target, reading=not target)
            fds.append(os.dup(theirs.fileno()))
            actions.append((os.POSIX_SPAWN_DUP2, fds[-1], 3))
            self.number, _ = guest.new_job(None)
            # Without that number in its variables: its forks belong to others.
            env = {**origin.env, JOB_VARIABLE: NOBODYS_JOB}
            self.pid = spawn_program([*ISOLATED, guest.workdir], env, guest.workdir, actions)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            for fd in fds:
                os.close(fd)
        self._line = ours
        ours.setblocking(False)
        guest.jobs[self.number] = self
        guest.loop.watch(ours.fileno(), self._heard)
        guest.loop.on_exit(self.pid, self._exited)

    @property
    def is_stale(self) -> bool:
        """Whether anything it is made of has changed."""
        return _state(self._paths) != self._state

    def fork(self, mark: str, job: int, streams: list[int]) -> int | None:
        """The pid of a fork on these streams; None if there is none soon."""
        pid = self._ahead()
        if pid is not None:
            packed = struct.pack("3i", *streams)
            order = f"{pid} {job} {mark}".encode("ascii")
            try:
                self._line.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)])
            except OSError:
                return None
        return pid

    def _ahead(self) -> int | None:
        """The fork that waits for an order."""
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            pid = self._waiting
            doing = _doing(pid) if pid is not None else "Z"
            if doing in "Tt":
                return None  # something in here has stopped it
            self._waiting = None
            if doing not in "ZX":
                return pid
            left = max(0.0, until - time.monotonic())
            if self._closed or not select.select([self._line], [], [], left)[0]:
                return None
            self._heard(0)

    def kill(self) -> None:
        """Kill it, and the fork that waits."""
        if self.pid is not None:  # not reaped yet: the number is nobody else's
            os.kill(self.pid, signal.SIGKILL)
        if self._waiting is not None and _doing(self._waiting) in "Tt":
            os.kill(self._waiting, signal.SIGKILL)  # the others notice that the line is closed

    def close(self) -> None:
        """Kill it, and let go."""
        self._closed = True
        self.kill()
        self._guest.jobs.pop(self.number, None)
        self._guest.loop.unwatch(self._line.fileno())
        self._line.close()

    def _exited(self, _status: int) -> None:
        self.pid = None

    def _heard(self, _events: int) -> None:
        try:
            said = self._line.recv(HELLO_SIZE)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if self.is_ready and said.isdigit():
            self._waiting = int(said)
            return
        if not said or self.is_ready:
            self._guest.evaluations.drop()
            return
        interpreter, *parts = [os.fsdecode(path) for path in said.split(b"\0")][:MOST_PATHS]
        if _state([interpreter]) == _state([self.origin.program]):  # it is no shim
            self._paths, self._state = [], ()
        self._paths += parts
        self._state += _state(parts)
        self.is_ready = True


def _doing(pid: int) -> str:
    """The letter for what a process does; Z for one that is dead."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[0].decode()
    except (OSError, IndexError):
        return "Z"
