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

    from podbot.sandbox.guest.requests import Guest
    from podbot.sandbox.guest.spawning import Actions
    from podbot.sandbox.guest.wire import Head

    State = tuple[object, ...]
    """The facts of some files: equal only while none of them changed."""


# Runs isolated (-I): neither the workspace nor a variable decides what is imported here. What the
# last expression gave comes after a mark at the end of stdout; forging it deceives nobody but the
# forger. Python 3.8 or newer.
PROGRAM = r"""
import sys
def read():
    return sys.stdin.buffer.read().decode("utf-8")
def template(workspace):
    import _ast, _socket, ctypes, gc, os
    def no_more(code=1):
        os._exit(code)
    try:
        prctl = ctypes.CDLL(None).prctl
        prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
        # Not dumpable: what runs here must not reach into this memory. Killed with the guest.
        if prctl(4, 0, 0, 0, 0) or prctl(1, 9, 0, 0, 0) or len(os.listdir("/proc/self/task")) > 1:
            no_more()
        os.chdir("/")
        line = _socket.socket(fileno=3)
        seen = {sys.executable, sys.prefix + "/pyvenv.cfg", sys.exec_prefix + "/pyvenv.cfg"}
        seen.update(getattr(module, "__file__", None) or "" for module in sys.modules.values())
        for folder in sys.path:
            seen.add(folder)
            if os.path.isdir(folder):
                names = [name for name in os.listdir(folder) if name.endswith(".pth")]
                seen.update(os.path.join(folder, name) for name in names)
        line.send(b"\0".join(os.fsencode(path) for path in sorted(seen) if path))
        gc.collect()
        gc.freeze()
        while True:
            ahead = os.fork()
            if ahead:
                if os.waitpid(ahead, 0)[1]:
                    no_more()
                continue
            if prctl(1, 9, 0, 0, 0):
                no_more()
            order, extra, _, _ = line.recvmsg(256, 256)
            mark, job = order.decode().split()
            fds = [
                int.from_bytes(raw[at : at + 4], sys.byteorder)
                for _, _, raw in extra for at in range(0, len(raw), 4)
            ]
            if len(fds) != 3:
                no_more()
            # Its parent ends at once, so that it becomes the guest's child.
            child = os.fork()
            if child:
                line.send(b"%d" % child)
                no_more(0)
            break
    except BaseException:
        no_more()
    line.close()
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
    for fd in fds:
        os.close(fd)
    prctl(4, 1, 0, 0, 0)
    os.environ["JOB"] = job
    code = read()  # which comes once the guest knows of us: before that, no session of our own
    os.setsid()
    os.chdir(workspace)
    return mark, code
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
    # What ending the interpreter would do, for code that imported nothing: its objects go.
    import gc, os
    end = os._exit
    sys.modules.pop("__main__", None)
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        if stream:
            stream.flush()
    end(0)
workspace, is_fork = sys.argv[1], len(sys.argv) == 2
mark, code = template(workspace) if is_fork else (sys.argv[2], read())
sys.argv = [""]
sys.path.append(workspace)
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(encoding="utf-8", errors="backslashreplace")
sys.excepthook = hook
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
""".replace("JOB", JOB_VARIABLE)

ANSWER_SECONDS = 0.25
"""How long a template may take to fork before it counts as stopped."""
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
        argv = [*ISOLATED, guest.workdir, self._mark]
        super().__init__(guest, request, argv, None, guest.workdir, code)

    def start(
        self, argv: list[str], env: Mapping[str, str], cwd: str | int, actions: Actions
    ) -> int:
        """Have the template fork one, or start an interpreter."""
        self._origin = _Origin.of(env, self.guest.workdir)
        template = self.guest.evaluations.fitting(self._origin)
        if template is not None:
            enter(cwd)  # refused as for any command; the fork steps there itself
            os.chdir("/")
            streams = [int(fd) for _, fd, _ in actions]
            pid = template.fork(self._mark, self.number, streams)
            if pid is not None:
                self._is_fork = True
                return pid
            self.guest.evaluations.drop()
        return super().start(argv, env, cwd, actions)

    def finish(self) -> None:
        """Answer; the next one may then find a template."""
        first = not self._finished
        super().finish()
        if first and self._finished and not self._is_fork:
            self.guest.evaluations.prepare(self._origin)


class Evaluations:
    """Keeps the template, if there is one."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._template: _Template | None = None
        self._useless: _Origin | None = None

    def fitting(self, origin: _Origin) -> _Template | None:
        """The template, if it is ready and still what a new interpreter would be."""
        template = self._template
        if template is not None and (template.origin != origin or template.is_stale):
            self.drop()
            return None
        return template if template is not None and template.is_ready else None

    def prepare(self, origin: _Origin) -> None:
        """Start one, unless one is there or it is known that there cannot be."""
        if self._template is None and origin != self._useless:
            try:
                self._template = _Template(self._guest, origin)
            except (Refused, OSError):
                self._useless = origin

    def drop(self) -> None:
        """End the template, if there is one."""
        template, self._template = self._template, None
        if template is not None:
            if not template.is_ready:  # it ended by itself: this interpreter will not do
                self._useless = template.origin
            template.close()


class _Origin:
    """What decides which interpreter runs: the program on PATH, variables, a shim's settings."""

    def __init__(self, env: Mapping[str, str], program: str, settings: State) -> None:
        self.env = env
        self._facts = (env, program, settings)

    @classmethod
    def of(cls, env: Mapping[str, str], workdir: str) -> _Origin:
        """How it is now."""
        env = {name: value for name, value in env.items() if name != JOB_VARIABLE}
        program = find_program("python3", env.get("PATH", DEFAULT_PATH))
        # A shim lies in a folder beside its settings.
        paths = [program, os.path.join(os.path.dirname(os.path.dirname(program)), "version")]
        folder = workdir
        while True:
            paths += [os.path.join(folder, name) for name in VERSION_FILES]
            if folder == os.path.dirname(folder):
                return cls(env, program, _state(paths))
            folder = os.path.dirname(folder)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Origin) and self._facts == other._facts

    __hash__ = None  # type: ignore[assignment]


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
        self._paths: list[str] = []
        self._state: State = ()
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
            # Without that number in its variables: what its forks leave behind has others.
            argv = [*ISOLATED, guest.workdir]
            self.pid = spawn_program(argv, origin.env, guest.workdir, actions)
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
    def is_ready(self) -> bool:
        """Whether it has said what it is made of."""
        return bool(self._paths)

    @property
    def is_stale(self) -> bool:
        """Whether anything it is made of has changed."""
        return _state(self._paths) != self._state

    def fork(self, mark: str, job: int, streams: list[int]) -> int | None:
        """The pid of a new fork on these streams; None if it does not come."""
        packed = struct.pack("3i", *streams)
        order = f"{mark} {job}".encode("ascii")
        try:
            self._line.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)])
            if not select.select([self._line], [], [], ANSWER_SECONDS)[0]:
                return None
            said = self._line.recv(64)
        except OSError:
            return None
        return int(said) if said.isdigit() else None

    def kill(self) -> None:
        """Kill it."""
        if self.pid is not None:  # not reaped yet: the number is nobody else's
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it, and let go."""
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
        if not said or self._paths:
            self._guest.evaluations.drop()
            return
        self._paths = [os.fsdecode(path) for path in said.split(b"\0")][:MOST_PATHS]
        self._state = _state(self._paths)
