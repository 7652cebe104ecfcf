"""The guest: the one program that runs inside every sandbox and does what the host asks.

It executes commands, holds terminals, keeps a Python kernel and touches files. One file, only the
standard library, Python 3.8 or newer, one thread, one event loop; anything that could take long
(walking, matching, removing a tree) happens in a forked worker, so that one request cannot hold
up the others. It is not trusted by the host, and it trusts the host. It must not import the rest
of podbot: it is copied alone into containers.

Reading order: wire, processes, kernel, files, searching, requests, `main`.
"""

from __future__ import annotations

import collections
import errno
import heapq
import json
import os
import re
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time

# `typing` is not imported: it would cost every start several milliseconds. Type checkers take
# this name for true, and annotations are never evaluated.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any, ClassVar, Literal, NoReturn, Protocol, TypeVar

    Head = dict[str, Any]
    """The JSON object of a frame, as the host or the guest wrote it."""
    Bytes = bytes | memoryview
    Answer = tuple[Head, bytes]
    """What a worker gives: its reply without the id."""
    Timer = list[Callable[[], object]]
    Actions = list[tuple[int | str, ...]]
    """What posix_spawn does to a child's descriptors."""
    ProcessTable = dict[int, tuple[int, int, str, int]]
    Entry = tuple[str, os.stat_result, int]
    """(path below the folder walked, stat, open parent)"""
    Check = Literal["none", "wide", "all"]
    Row = tuple[bytes, int, bytes]
    Found = tuple[str, int, str]
    """(path, line number, line)"""

    class Job(Protocol):
        """Something that runs, and ends with what it started when it is killed."""

        family: Family

        @property
        def pid(self) -> int | None: ...

        @property
        def number(self) -> int: ...

        def kill(self) -> None: ...

    Kept = TypeVar("Kept", "Draft", "Spool")

PROTOCOL = 1
HEADER = struct.Struct("!II")
MAX_PAYLOAD = 1024 * 1024
MAX_HEAD = 4 * 1024 * 1024
QUEUE_LIMIT = 8 * 1024 * 1024
SPOOL_LIMIT = 64 * 1024 * 1024
LONGEST_NAP = 3600.0  # the kernel counts milliseconds, and not very far
SEARCH_OUTPUT_LIMIT = 8 * 1024 * 1024  # as JSON it may become six times that
SEARCH_FILE_LIMIT = 64 * 1024 * 1024  # larger files are not searched
SEARCH_LEASH = 0.5  # what rg may take when it looks at no file's size, which is quicker
SEARCH_LEAST = 0.01  # what rg may take however little time is left
SEARCH_AGAIN = 0.1  # with less time left than this, rg is not started once more
SEARCH_GRACE = 2.0  # what a search whose time is up has for telling what it found
NAMES_LIMIT = 8 * 1024 * 1024
FEW_ENTRIES = 100
LINGER_SECONDS = 0.1
KEPT_PROCESSES = 256
KEPT_DRAINS = 64
UMASK = 0o022
READ_SIZE = 65536  # larger buffers come from mmap, and each costs its page faults anew
ANCILLARY_SIZE = 64
JOB_VARIABLE = "PODBOT_JOB"
TIMEOUT_EXIT_CODE = 124
BINARY_PROBE = 8192


class Refused(Exception):
    """A request that cannot be done; becomes the error of its reply."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


ERRNO_KINDS = {
    errno.ENOENT: "not_found",
    errno.EEXIST: "exists",
    errno.EISDIR: "is_directory",
    errno.ENOTDIR: "not_directory",
    errno.ENOTEMPTY: "not_empty",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
    errno.ELOOP: "path_escape",
    errno.EXDEV: "path_escape",
    errno.ENXIO: "not_a_file",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "limit",
    errno.ENAMETOOLONG: "bad_path",
    errno.EINVAL: "bad_path",
    errno.EMFILE: "out_of_descriptors",
    errno.ENFILE: "out_of_descriptors",
}


def refused(error: OSError, subject: object) -> Refused:
    """The refusal that says what an OSError means for a path or a command."""
    kind = ERRNO_KINDS.get(error.errno or errno.EIO, "io")
    return Refused(kind, f"{subject}: {os.strerror(error.errno or errno.EIO)}")


# --- Kernel calls Python does not offer


class _Libc:
    """prctl and openat2, loaded when first needed."""

    _ctypes: Any

    def __init__(self) -> None:
        self._libc: ctypes.CDLL | None = None
        self.has_openat2 = True

    def _load(self) -> ctypes.CDLL:
        if self._libc is None:
            import ctypes

            self._ctypes = ctypes
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._libc.syscall.restype = ctypes.c_long
        return self._libc

    def become_subreaper(self) -> None:
        """Orphans below this process come to it instead of to the host's init."""
        self._load().prctl(36, self._ctypes.c_ulong(1), 0, 0, 0)

    def openat2(self, dir_fd: int, path: str, flags: int, mode: int) -> int:
        """Open beneath a folder: no `..`, link or magic link leads out of it."""
        libc = self._load()
        beneath_no_magiclinks = 0x08 | 0x02
        how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, beneath_no_magiclinks)
        for _ in range(100):
            fd: int = libc.syscall(
                self._ctypes.c_long(437),
                dir_fd,
                os.fsencode(path),
                how,
                self._ctypes.c_size_t(len(how)),
            )
            if fd >= 0:
                return fd
            number = self._ctypes.get_errno()
            if number != errno.EAGAIN:  # a rename raced with `..`: the kernel says try again
                break
        raise OSError(number, os.strerror(number), path)


LIBC = _Libc()


def open_beneath(dir_fd: int, path: str, flags: int, mode: int) -> int:
    """Open ``path`` below ``dir_fd``, never outside of it."""
    if LIBC.has_openat2:
        try:
            # openat2 refuses a mode on a call that cannot create.
            return LIBC.openat2(dir_fd, path, flags, mode if flags & os.O_CREAT else 0)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
            if error.errno == errno.EPERM and _openat2_works(dir_fd):
                raise
            LIBC.has_openat2 = False
    # An old kernel, or a filter that forbids the call: walk, and follow no link at all.
    here = os.dup(dir_fd)
    try:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        if not parts:
            return os.open(".", flags, mode, dir_fd=here)
        for part in parts[:-1]:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        return os.open(parts[-1], flags | os.O_NOFOLLOW, mode, dir_fd=here)
    finally:
        os.close(here)


def _openat2_works(dir_fd: int) -> bool:
    try:
        os.close(LIBC.openat2(dir_fd, ".", os.O_PATH, 0))
    except OSError:
        return False
    return True


# --- The loop and the wire


# Made once: json.dumps with options makes an encoder each time.
to_json = json.JSONEncoder(separators=(",", ":")).encode


def usual_signals() -> None:
    """Start as after a login, whatever signals our parent had ignored or blocked.

    A blocked SIGCHLD would hide that a command has ended, and commands would inherit the rest:
    one started for a background job could never be interrupted.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - set(SPAWN_SIGNALS):  # those Python itself ignores
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


class Loop:
    """epoll, timers and dead children."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], object]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._sequence = 0
        self._children: dict[int, Callable[[int], object]] = {}
        wake_read, self._wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Anything inside may send this, and Python's own handler would end us. A handler that
        # does nothing is not passed on to what we start, as SIG_IGN would be.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self.watch(wake_read, lambda _: self._woken(wake_read))
        self.running = True

    def watch(
        self, fd: int, handler: Callable[[int], object], events: int = select.EPOLLIN
    ) -> None:
        """Call ``handler(events)`` whenever the descriptor is ready."""
        if fd in self._handlers:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Stop watching; harmless if it was not watched."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, action: Callable[[], object]) -> Timer:
        """Call ``action()`` later; the returned list is emptied to cancel it."""
        self._sequence += 1
        timer = [action]
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._sequence, timer))
        return timer

    def on_exit(self, pid: int, action: Callable[[int], object]) -> None:
        """Call ``action(status)`` when the child ended."""
        self._children[pid] = action

    def reap(self) -> None:
        """Collect every dead child: our own, and the orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            action = self._children.pop(pid, None)
            if action is not None:
                action(status)

    def _woken(self, wake_read: int) -> None:
        try:
            while os.read(wake_read, 4096):
                pass
        except BlockingIOError:
            pass
        self.reap()

    def run(self) -> None:
        """Until `running` is false."""
        while self.running:
            self.turn()

    def turn(self) -> None:
        """Wait for something to happen, and see to it."""
        timeout = -1.0
        while self._timers:
            due, _, timer = self._timers[0]
            if timer and due > time.monotonic():
                timeout = min(due - time.monotonic(), LONGEST_NAP)
                break
            heapq.heappop(self._timers)
            if timer:
                timer[0]()
        for fd, events in self._epoll.poll(max(timeout, 0.0) if timeout != -1.0 else -1.0):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)


def as_socket(fd: int) -> socket.socket | None:
    """A descriptor as a socket, which can carry other descriptors; None if it is not one."""
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return None
    return socket.socket(fileno=os.dup(fd))


NOTHING = memoryview(b"")


class Wire:
    """Frames in and out, over one descriptor or two."""

    def __init__(
        self,
        loop: Loop,
        in_fd: int,
        out_fd: int,
        on_request: Callable[[Head, bytes], object],
        on_end: Callable[[], object],
    ) -> None:
        self._loop, self._in, self._out = loop, in_fd, out_fd
        self._on_request, self._on_end = on_request, on_end
        self._buffer = bytearray()
        self._queue: collections.deque[memoryview] = collections.deque()
        self._queued = 0
        self.descriptors: collections.deque[int] = collections.deque()
        self._socket = as_socket(in_fd)
        os.set_blocking(in_fd, False)
        os.set_blocking(out_fd, False)
        loop.watch(in_fd, self._ready)

    def close(self) -> None:
        """Let go of what is not the caller's."""
        if self._socket is not None:
            self._socket.close()

    @property
    def congested(self) -> bool:
        """Whether the host is so far behind that producers should wait."""
        return self._queued > QUEUE_LIMIT

    def send(self, head: Head, payload: Bytes = b"") -> None:
        """Queue a reply; a payload larger than a frame goes in parts."""
        view = memoryview(payload)
        while len(view) > MAX_PAYLOAD:
            self._put({"id": head["id"], "more": True}, view[:MAX_PAYLOAD])
            view = view[MAX_PAYLOAD:]
        self._put(head, view)

    def _put(self, head: Head, view: memoryview) -> None:
        body = to_json(head).encode("ascii")
        data = HEADER.pack(len(body), len(view)) + body
        if 0 < len(view) <= 65536:
            data, view = b"".join((data, view)), NOTHING
        idle = not self._queue
        self._queue.append(memoryview(data))
        self._queued += len(data)
        if view:
            self._queue.append(view)
            self._queued += len(view)
        if idle:
            self._flush()

    def _flush(self) -> None:
        queue = self._queue
        while queue:
            try:
                sent = os.writev(self._out, list(queue)[:16] if len(queue) > 1 else queue)
            except BlockingIOError:
                break
            except OSError:
                self._on_end()
                return
            self._queued -= sent
            while sent:
                first = queue[0]
                if sent < len(first):
                    queue[0] = first[sent:]
                    break
                sent -= len(first)
                queue.popleft()
        self._rearm()

    def _rearm(self) -> None:
        """Ask for what we can use: room to write if we wait for it, requests unless congested."""
        if self._in == self._out:
            events = 0 if self.congested else select.EPOLLIN
            events |= select.EPOLLOUT if self._queue else 0
            self._set(self._in, events)
        else:
            self._set(self._in, 0 if self.congested else select.EPOLLIN)
            if self._queue:
                self._loop.watch(self._out, self._ready, select.EPOLLOUT)
            else:
                self._loop.unwatch(self._out)

    _armed = select.EPOLLIN

    def _set(self, fd: int, events: int) -> None:
        if events != self._armed:
            self._armed = events
            self._loop.watch(fd, self._ready, events)

    def _ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            self._receive()

    def _receive(self) -> None:
        try:
            if self._socket is None:
                data = os.read(self._in, READ_SIZE)
            else:
                data, ancillary, _, _ = self._socket.recvmsg(READ_SIZE, ANCILLARY_SIZE)
                for _, _, raw in ancillary:
                    self.descriptors.extend(struct.unpack(f"{len(raw) // 4}i", raw))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._on_end()
            return
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= HEADER.size:
            head_size, payload_size = HEADER.unpack_from(buffer, start)
            if head_size > MAX_HEAD or payload_size > MAX_PAYLOAD:
                self._on_end()
                return
            body = start + HEADER.size
            end = body + head_size + payload_size
            if len(buffer) < end:
                break
            head = json.loads(bytes(buffer[body : body + head_size]))
            payload = bytes(buffer[body + head_size : end])
            start = end
            self._on_request(head, payload)
        if start:
            del buffer[:start]


# --- Processes


SPAWN_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)


def find_program(name: str, path: str) -> str:
    """Where a command is, as execvp would look, with the reason when it is nowhere."""
    if "/" in name:
        return name
    denied = False
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", name)
        try:
            if stat.S_ISREG(os.stat(candidate).st_mode):
                if os.access(candidate, os.X_OK):
                    return candidate
                denied = True
        except OSError:
            continue
    if denied:
        raise Refused("command_not_executable", f"{name}: found in PATH but not executable")
    raise Refused("command_not_found", f"{name}: no such command in PATH")


def spawn_program(argv: list[str], env: Mapping[str, str], cwd: str | int, actions: Actions) -> int:
    """Start a program in a session of its own; gives its pid.

    posix_spawn shares this process's memory until exec, which is what makes it quick. The guest
    has one thread, so it may step into the folder for a moment.
    """
    program = find_program(argv[0], env.get("PATH", "/usr/bin:/bin"))
    try:
        os.chdir(cwd)
    except OSError as error:
        raise Refused("bad_cwd", refused(error, cwd).message) from error
    try:
        return os.posix_spawn(
            program, argv, env, file_actions=actions, setsid=True, setsigdef=SPAWN_SIGNALS
        )
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without #!: what a shell would do
            try:
                return os.posix_spawn(
                    "/bin/sh",
                    ["sh", program, *argv[1:]],
                    env,
                    file_actions=actions,
                    setsid=True,
                    setsigdef=SPAWN_SIGNALS,
                )
            except OSError as again:
                error = again
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise Refused(
                "command_not_found", f"{argv[0]}: no such program (or its interpreter)"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.ENOEXEC):
            raise Refused("command_not_executable", f"{argv[0]}: not executable") from error
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            raise Refused("out_of_processes", f"{argv[0]}: no room for another process") from error
        # gVisor says that a name is too long; the program's was found, so it is an argument's.
        if error.errno in (errno.E2BIG, errno.ENAMETOOLONG):
            raise Refused("too_large", f"{argv[0]}: the arguments are too long") from error
        raise refused(error, argv[0]) from error
    finally:
        os.chdir("/")


def boot_time() -> float:
    """Now, on the clock that the kernel notes a process's start by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Family:
    """The processes one job started, found in /proc whatever they did to hide."""

    def __init__(self, number: int, pid: int, began: float) -> None:
        """``began`` is a `boot_time` before the first of them was started."""
        self.number = number
        self.pid = pid
        self._began = began

    def kill(self, others: AbstractSet[int | None]) -> None:
        """SIGKILL the whole family; ``others`` are the pids of jobs that live on."""
        for _ in range(10):
            victims = self._members(others)
            if not victims:
                return
            for pid in victims:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass  # gone meanwhile
            time.sleep(0.001)

    def _members(self, others: AbstractSet[int | None]) -> list[int]:
        """The living ones, oldest first: no parent lives to tell that its child was killed."""
        table = process_table()
        me = os.getpid()
        ticks = self._began * os.sysconf("SC_CLK_TCK") - 2
        members: set[int] = set()
        for pid, (parent, session, state, start) in table.items():
            if state in "ZX" or pid == me:
                continue
            if session == self.pid or _descends(pid, self.pid, table):
                members.add(pid)
            elif parent == me and start >= ticks and session not in others:
                # An orphan that started a session of its own. Its environment tells whose it
                # is; one that wiped it is taken for ours, as it started after us.
                job = _job_of(pid)
                if job == self.number or (job is None and pid not in others):
                    members.add(pid)
        for pid in list(table):
            if pid in members or pid == me or table[pid][2] in "ZX":
                continue
            if any(_descends(pid, member, table) for member in members):
                members.add(pid)
        return sorted(members, key=lambda pid: (table[pid][3], pid))


def _descends(pid: int, ancestor: int, table: ProcessTable) -> bool:
    while pid in table:
        if pid == ancestor:
            return True
        pid = table[pid][0]
    return False


def _job_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = file.read(1 << 20)
    except OSError:
        return None
    found = re.search(rb"(?:^|\0)" + JOB_VARIABLE.encode() + rb"=(\d{1,18})(?:\0|$)", environ)
    return int(found.group(1)) if found else None


def process_table() -> ProcessTable:
    """{pid: (parent, session, state, start in ticks)} of every process visible."""
    table: ProcessTable = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rsplit(b")", 1)[1].split()
        except (OSError, IndexError):
            continue
        table[int(name)] = (int(fields[1]), int(fields[3]), fields[0].decode(), int(fields[19]))
    return table


def exit_of(status: int) -> tuple[int, int | None]:
    """(exit code, signal) as a shell would tell it."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def close_quietly(fd: int) -> None:
    """Close a descriptor that may be closed already."""
    try:
        os.close(fd)
    except OSError:
        pass


class Output:
    """One output stream of a child: what was read, and how it ended."""

    def __init__(
        self,
        guest: Guest,
        fd: int,
        limit: int,
        on_change: Callable[[], object],
        mode: Literal["cut", "wait", "drop"],
    ) -> None:
        """``mode``: "cut" keeps the start, "wait" stops reading, "drop" keeps the end."""
        self._guest, self.fd, self._limit, self._mode = guest, fd, limit, mode
        self._on_change = on_change
        self.parts: collections.deque[Bytes] = collections.deque()
        self.size = 0
        self.lost = 0
        self.ended = False
        os.set_blocking(fd, False)
        guest.loop.watch(fd, self._ready)

    def _ready(self, _events: int) -> None:
        room = self._limit - self.size
        if self._mode == "wait" and (room <= 0 or self._guest.wire.congested):
            self._guest.loop.unwatch(self.fd)
            return
        try:
            data = os.read(self.fd, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # a terminal whose other end is closed says EIO
        if not data:
            self.close()
        elif self._mode == "cut":
            if room > 0:
                self.parts.append(data[:room])
                self.size += len(self.parts[-1])
            self.lost += max(0, len(data) - max(0, room))
        else:
            self.parts.append(data)
            self.size += len(data)
            while self._mode == "drop" and self.size > self._limit and len(self.parts) > 1:
                gone = self.parts.popleft()
                self.size -= len(gone)
                self.lost += len(gone)
        self._on_change()

    def drain(self) -> None:
        """Take what is in the pipe right now."""
        while not self.ended:
            before = self.size + self.lost
            self._ready(0)
            if self.size + self.lost == before:
                return

    def take(self, size: int) -> Bytes:
        """Up to ``size`` bytes off the front."""
        taken: list[Bytes] = []
        got = 0
        while self.parts and got < size:
            part = self.parts.popleft()
            if len(part) > size - got:
                self.parts.appendleft(memoryview(part)[size - got :])
                part = memoryview(part)[: size - got]
            taken.append(part)
            got += len(part)
        self.size -= got
        if self._mode == "wait" and not self.ended and self.size < self._limit:
            self._guest.loop.watch(self.fd, self._ready)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def text(self) -> bytes:
        """All of it."""
        return b"".join(self.parts)

    def clear(self) -> None:
        """Forget what was read."""
        self.parts.clear()
        self.size = self.lost = 0

    def close(self) -> None:
        """No more of this stream."""
        if not self.ended:
            self.ended = True
            self._guest.loop.unwatch(self.fd)
            os.close(self.fd)

    def release(self) -> None:
        """Keep reading to nowhere, so that what still writes is not killed by a closed pipe."""
        if not self.ended:
            self._guest.loop.watch(self.fd, self._discard)

    def _discard(self, _events: int) -> None:
        try:
            if os.read(self.fd, READ_SIZE):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()


class Input:
    """Writes queued bytes to a child's stdin as it takes them."""

    def __init__(self, guest: Guest, fd: int) -> None:
        self._guest, self._fd = guest, fd
        self._queue: collections.deque[tuple[memoryview, Callable[[OSError | None], object] | None]]
        self._queue = collections.deque()
        self._closing = False
        self.closed = False
        os.set_blocking(fd, False)

    def put(
        self,
        data: Bytes,
        done: Callable[[OSError | None], object] | None = None,
        close: bool = False,
    ) -> None:
        """Queue data; ``done(error)`` is called when all of it was taken, or refused."""
        self._queue.append((memoryview(data), done))
        self._closing = self._closing or close
        self._push(0)

    def _push(self, _events: int) -> None:
        while self._queue and not self.closed:
            view, done = self._queue[0]
            try:
                sent = os.write(self._fd, view) if len(view) else 0
            except BlockingIOError:
                self._guest.loop.watch(self._fd, self._push, select.EPOLLOUT)
                return
            except OSError as error:
                self.close(error)
                return
            if sent < len(view):
                self._queue[0] = (view[sent:], done)
                continue
            self._queue.popleft()
            if done is not None:
                done(None)
        if not self.closed:
            self._guest.loop.unwatch(self._fd)
            if self._closing:
                self.close()

    def close(self, error: OSError | None = None) -> None:
        """The child sees the end of its input; what waits is refused."""
        if self.closed:
            return
        self.closed = True
        self._guest.loop.unwatch(self._fd)
        os.close(self._fd)
        while self._queue:
            _, done = self._queue.popleft()
            if done is not None:
                done(error or OSError(errno.EPIPE, os.strerror(errno.EPIPE)))


def pipe_to(actions: Actions, target: int, reading: bool) -> tuple[int, int]:
    """A pipe whose far end becomes a child's descriptor; gives (near end, far end)."""
    read, write = os.pipe()
    near, far = (write, read) if reading else (read, write)
    actions.append((os.POSIX_SPAWN_DUP2, far, target))
    return near, far


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
            for target in (1, 2):
                fd, end = pipe_to(actions, target, False)
                near.append(fd)
                far.append(end)
            self.started, began = time.monotonic(), boot_time()
            self.number, whole = guest.new_job(env)
            pid = spawn_program(argv, whole, cwd, actions)
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
                    _widen(near[name])
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
        waiting = self.readers[name]
        waiting.append(request)
        self._feed(name)
        timeout = request.get("timeout")
        if request in waiting and timeout is not None:
            self.guest.loop.after(timeout, lambda: self._overdue(name, request))

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


def _widen(fd: int) -> None:
    """A wider pipe means fewer wake-ups for a process that writes much."""
    import fcntl

    try:
        fcntl.fcntl(fd, 1031, MAX_PAYLOAD)  # F_SETPIPE_SZ
    except OSError:
        pass  # over the user's share of pipe memory: the usual size will do


def hand_over(line: int, fd: int) -> None:
    """Send a descriptor to the host over a socket it gave, and let go of it."""
    try:
        with socket.socket(fileno=os.dup(line)) as sock:
            sock.sendmsg([b"-"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))])
    finally:
        os.close(fd)


def set_terminal_size(fd: int, size: Sequence[int]) -> None:
    """Tell the kernel how large a terminal is; it sends SIGWINCH by itself."""
    import fcntl
    import termios

    rows, columns = (max(1, min(int(number), 65535)) for number in size)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def set_terminal_modes(fd: int, modes: list[Any]) -> None:
    """Make a terminal behave like the one that `termios.tcgetattr` told these of."""
    import termios

    *flags, characters = modes
    termios.tcsetattr(fd, termios.TCSANOW, [*flags, [bytes([each]) for each in characters]])


# --- The Python kernel

# Runs in a process of its own, by whatever interpreter the policy names (3.8 or newer), and
# imports next to nothing: its start is most of what a first answer costs. Descriptor 3 is its
# line to the guest; what the code prints goes to pipes the guest reads.
KERNEL = r"""
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import _ast, _signal as signal, _struct as struct, os  # the plain ones import half the library
def serve(workdir):
    line = 3
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
        while len(data) < 8 or len(data) < 8 + struct.unpack_from("!I", data)[0]:
            part = os.read(line, 65536)
            if not part:
                os._exit(0)
            data += part
        return bytes(data[8:]), struct.unpack_from("!I", data, 4)[0]
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    count, myself = 0, os.getpid()
    while True:
        source, limit = take()
        source = source.decode("utf-8", "surrogatepass")
        count += 1
        name = "<input %d>" % count
        value, failure = None, None
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
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except BaseException:
            value = None
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
        data = struct.pack("!BII", flags, len(one), len(two)) + one + two
        while data:
            data = data[os.write(line, data):]
os.chdir(sys.argv[1])
serve(sys.argv[1])
"""

KERNEL_REPLY = struct.Struct("!BII")
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
        self._writer.put(struct.pack("!II", len(code), limit) + code)
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
        flags, value_size, error_size = KERNEL_REPLY.unpack_from(self._reply)
        end = KERNEL_REPLY.size + value_size + error_size
        if len(self._reply) < end or self._now is None:
            return
        value = bytes(self._reply[KERNEL_REPLY.size : KERNEL_REPLY.size + value_size])
        failure = bytes(self._reply[KERNEL_REPLY.size + value_size : end])
        self._reply.clear()
        self._answer(self._now, value if flags & 1 else None, failure if flags & 2 else None, False)

    def _answer(
        self, request: Head, value: bytes | None, failure: bytes | None, restarted: bool
    ) -> None:
        self._now = None
        if self._timer:
            self._timer.clear()
        self._out.drain()
        self._err.drain()
        out, err = self._out.text(), self._err.text()
        parts = (value or b"", out, err, failure or b"")
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


# --- Files


KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "char",
    stat.S_IFBLK: "block",
}


def describe(path: str, found: os.stat_result, target: str | None) -> Head:
    """One entry as the host wants it."""
    return {
        "path": path,
        "kind": KINDS.get(stat.S_IFMT(found.st_mode), "file"),
        "size": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "mtime_ns": found.st_mtime_ns,
        "link_target": target,
    }


def under(path: str, name: str) -> str:
    """A name below a path, spelled as the caller spelled the path."""
    if path in (".", "./"):
        return name
    return path.rstrip("/") + "/" + name


class Files:
    """Paths of this sandbox. ``confined``: nothing outside the root can be named or reached."""

    def __init__(self, root: str, workdir: str) -> None:
        self.confined = root != "/"
        self._root, self._workdir = root, workdir
        self._root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY) if self.confined else -1

    def _below(self, path: str) -> str:
        """A path relative to the root (confined) or absolute (not)."""
        if not self.confined:
            return path if path.startswith("/") else os.path.join(self._workdir, path)
        if not path.startswith("/"):
            return path
        if path == self._root or path.startswith(self._root + "/"):
            return path[len(self._root) :].lstrip("/") or "."
        raise Refused("path_escape", f"{path} is outside of the working folder {self._root}")

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        """Open by path: never blocks on a FIFO, never takes a terminal, never leaves the root."""
        flags |= os.O_CLOEXEC
        if not flags & os.O_PATH:  # openat2 refuses flags that mean nothing with this one
            flags |= os.O_NONBLOCK | os.O_NOCTTY
        try:
            if self.confined:
                return open_beneath(self._root_fd, self._below(path), flags, mode)
            return os.open(self._below(path), flags, mode)
        except OSError as error:
            raise refused(error, path) from error

    def parent(self, path: str) -> tuple[int, str]:
        """(descriptor of the folder, name in it) for a path that is about to change."""
        below = self._below(path).rstrip("/")
        folder, name = os.path.split(below)
        if name in ("", ".", ".."):
            raise Refused("invalid", f"{path} is the root, or ends in dots")
        folder = folder or ("." if self.confined else "/")
        try:
            if self.confined:
                fd = open_beneath(self._root_fd, folder, os.O_PATH | os.O_DIRECTORY, 0)
            else:
                fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise refused(error, path) from error
        return fd, name

    def regular(self, path: str) -> tuple[int, os.stat_result]:
        """A readable descriptor of a regular file, and its stat."""
        fd = self.open(path, os.O_RDONLY)
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            return fd, found
        os.close(fd)
        if stat.S_ISDIR(found.st_mode):
            raise Refused("is_directory", f"{path} is a folder")
        raise Refused("not_a_file", f"{path} is not a regular file")

    def is_workdir(self, path: str) -> bool:
        """Whether a path names the working folder or one it lies in."""
        here = os.path.normpath(os.path.join(self._workdir, path))
        return here in ("/", self._workdir) or self._workdir.startswith(here + "/")

    def make_folders(self, path: str) -> None:
        """mkdir -p, step by step below the root."""
        missing = []
        while path:
            try:
                os.close(self.open(path, os.O_PATH | os.O_DIRECTORY))
                break
            except Refused as error:
                if error.kind != "not_found":
                    raise
            missing.append(path)
            path = os.path.dirname(path.rstrip("/"))
        for folder in reversed(missing):
            fd, name = self.parent(folder)
            try:
                os.mkdir(name, dir_fd=fd)
            except FileExistsError:
                pass
            except OSError as error:
                raise refused(error, folder) from error
            finally:
                os.close(fd)


class Draft:
    """A file being written.

    One that comes in a single request is written in place: renaming over a file makes ext4 write
    to the disk at once, which takes longer than all the rest. A larger one lies beside its place
    until it is whole, and is then renamed into it.
    """

    def __init__(self, files: Files, request: Head, size: int | None) -> None:
        """``size`` is how long the file will be, if that is known."""
        path: str = request["path"]
        self._mode: str = request["mode"]
        self._size = size
        self._path = path
        permissions = request.get("permissions")
        if path.endswith("/"):
            raise Refused("is_directory", f"{path} names a folder")
        above = os.path.dirname(path)
        if above:
            try:
                self._folder, self._name = files.parent(path)
            except Refused as error:
                if error.kind != "not_found":
                    raise
                files.make_folders(above)
                self._folder, self._name = files.parent(path)
        else:
            self._folder, self._name = files.parent(path)
        self._temporary: str | None = None
        try:
            self._fd = self._begin(files, path, permissions)
        except OSError as error:
            os.close(self._folder)
            raise refused(error, path) from error
        except BaseException:
            os.close(self._folder)
            raise

    def _begin(self, files: Files, path: str, permissions: int | None) -> int:
        found: os.stat_result | None
        try:
            found = os.lstat(self._name, dir_fd=self._folder)
        except FileNotFoundError:
            found = None
        if found is not None and stat.S_ISDIR(found.st_mode):
            raise Refused("is_directory", f"{path} is a folder")
        if found is not None and self._mode == "create":
            raise Refused("exists", f"{path} exists already")
        link = found is not None and stat.S_ISLNK(found.st_mode)
        if found is not None and not link and not stat.S_ISREG(found.st_mode):
            raise Refused("not_a_file", f"{path} is not a regular file")
        if self._mode == "append" or link or (found is not None and found.st_nlink > 1):
            # Through the link or into the shared inode: a rename would cut it off.
            how = os.O_APPEND if self._mode == "append" else os.O_TRUNC
            fd = files.open(path, os.O_WRONLY | os.O_CREAT | how)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise Refused("not_a_file", f"{path} is not a regular file")
        elif self._size is not None:
            fd = self._in_place(found, self._size, permissions)
            if found is None and permissions is None:
                return fd
        else:
            self._temporary = f".podbot-{os.getpid()}-{time.monotonic_ns():x}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            if permissions is None and found is not None:
                permissions = stat.S_IMODE(found.st_mode)
            mode = 0o666 if permissions is None else permissions & 0o777
            fd = os.open(self._temporary, flags, mode, dir_fd=self._folder)
            if permissions == mode & ~UMASK:
                return fd  # as it was opened
        if permissions is not None:
            os.fchmod(fd, permissions & 0o7777)
        return fd

    def _in_place(self, found: os.stat_result | None, size: int, permissions: int | None) -> int:
        if found is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            mode = 0o666 if permissions is None else permissions & 0o777
            return os.open(self._name, flags, mode, dir_fd=self._folder)
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self._name, flags, dir_fd=self._folder)
        try:
            if size > found.st_size:
                os.posix_fallocate(fd, 0, size)  # a full disk is met before a byte changes
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                os.close(fd)
                raise
        return fd

    def write(self, data: bytes) -> None:
        """Add bytes."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise refused(error, self._path) from error

    def finish(self) -> None:
        """Put it in its place."""
        try:
            if self._size is not None and self._mode != "append":
                os.ftruncate(self._fd, self._size)
            if self._temporary is not None:
                if self._mode == "create":
                    os.link(
                        self._temporary,
                        self._name,
                        src_dir_fd=self._folder,
                        dst_dir_fd=self._folder,
                        follow_symlinks=False,
                    )
                    os.unlink(self._temporary, dir_fd=self._folder)
                else:
                    os.replace(
                        self._temporary,
                        self._name,
                        src_dir_fd=self._folder,
                        dst_dir_fd=self._folder,
                    )
                self._temporary = None
        except OSError as error:
            raise refused(error, self._path) from error
        finally:
            self.close()

    def close(self) -> None:
        """Let go; what is not finished is thrown away."""
        if self._temporary is not None:
            try:
                os.unlink(self._temporary, dir_fd=self._folder)
            except OSError:
                pass  # its folder went meanwhile
            self._temporary = None
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self._folder)
            self._fd = -1


class Reading:
    """A large file being read in parts."""

    def __init__(self, fd: int, offset: int) -> None:
        self._fd, self._offset = fd, offset

    def read(self, size: int) -> bytes:
        """The next bytes."""
        data = os.pread(self._fd, min(size, MAX_PAYLOAD), self._offset)
        self._offset += len(data)
        return data

    def read_on(self, size: int) -> bytes:
        """As much as there is, up to a size."""
        parts = []
        while size > 0:
            part = self.read(min(size, READ_SIZE))
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Let go."""
        close_quietly(self._fd)


class Spool:
    """Bytes for a later request that are too many for one frame."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        """Add bytes."""
        if len(self.data) + len(data) > SPOOL_LIMIT:
            raise Refused("too_large", f"more than {SPOOL_LIMIT} bytes of input")
        self.data += data

    def close(self) -> None:
        """Nothing to let go of."""


OPEN_FOLDERS = 64


def remove_tree(folder: int, name: str) -> None:
    """rm -rf by descriptor: follows no link, and neither depth nor modes stop it, nor someone who
    removes some of it at the same time."""
    inside: list[_Removal] = []  # the folders we are in, outermost first
    try:
        if not _unlinked(folder, name):
            inside.append(_Removal(folder, name))
        while inside:
            here = inside[-1]
            if here.entries:
                entry = here.entries[-1]
                below = None
                try:
                    if not _unlinked(here.fd, entry):
                        below = _Removal(here.fd, entry)
                except FileNotFoundError:
                    pass  # somebody else was quicker
                except PermissionError:
                    if _emptied(here.fd, entry):
                        here.entries.pop()
                        continue
                    if here.opened_up:
                        raise
                    here.opened_up = True
                    os.fchmod(here.fd, 0o700)
                    continue
                here.entries.pop()
                if below is not None:
                    inside.append(below)
                    if len(inside) > OPEN_FOLDERS:
                        inside[-1 - OPEN_FOLDERS].let_go()
                continue
            if len(inside) > 1:
                inside[-2].come_back(here.fd)
            inside.pop()
            here.let_go()
            try:
                os.rmdir(here.name, dir_fd=inside[-1].fd if inside else folder)
            except FileNotFoundError:
                pass  # likewise
            except PermissionError:
                if not inside or inside[-1].opened_up:
                    raise
                inside[-1].opened_up = True
                os.fchmod(inside[-1].fd, 0o700)
                os.rmdir(here.name, dir_fd=inside[-1].fd)
    finally:
        for left in inside:
            left.let_go()


def _unlinked(folder: int, name: str) -> bool:
    """Remove anything but a folder; False if it is one."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    except PermissionError:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            raise
        return False
    return True


def _emptied(folder: int, name: str) -> bool:
    """Remove a folder of someone else's that is empty, as an overlay of an engine's leaves one."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        return False
    return True


class _Removal:
    """A folder whose entries are being removed."""

    FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

    def __init__(self, folder: int, name: str) -> None:
        self.name = name
        self.opened_up = False
        try:
            self.fd = os.open(name, self.FLAGS, dir_fd=folder)
        except PermissionError:
            os.chmod(name, 0o700, dir_fd=folder)
            self.fd = os.open(name, self.FLAGS, dir_fd=folder)
        try:
            self._identity = self._identify()
            self.entries = os.listdir(self.fd)
        except BaseException:
            self.let_go()
            raise

    def _identify(self) -> tuple[int, int]:
        found = os.fstat(self.fd)
        return found.st_dev, found.st_ino

    def let_go(self) -> None:
        """Close it; a deep tree must not cost a descriptor for each step down."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def come_back(self, below: int) -> None:
        """Open it again from a folder below, unless that was moved elsewhere meanwhile."""
        if self.fd < 0:
            self.fd = os.open("..", self.FLAGS, dir_fd=below)
            if self._identify() != self._identity:
                raise OSError(errno.EXDEV, "moved while it was removed", self.name)


# --- Searching


class Glob:
    """A pattern such as ``src/**/*.py``, matched one name at a time on the way down.

    ``*`` and ``?`` stay within a name, ``**`` as a whole segment crosses any number of folders.
    No pattern can make this slow: the state is a set of places in the pattern.
    """

    def __init__(self, pattern: str) -> None:
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        if not parts or ".." in parts:
            raise Refused("bad_pattern", f"{pattern!r} is not a pattern of paths below a folder")
        self._parts = [None if part == "**" else NamePattern(part) for part in parts]
        self.start = self._skip({0})

    def step(self, state: frozenset[int], name: str) -> frozenset[int]:
        """The state below an entry of this name; empty when nothing there can match."""
        after = set()
        last = len(self._parts) - 1
        for index in state:
            if index > last:
                continue
            part = self._parts[index]
            if part is None:
                after.add(index)
                if index == last:
                    after.add(index + 1)  # a last ** takes everything below
            elif part.matches(name):
                after.add(index + 1)
        return self._skip(after)

    def accepts(self, state: frozenset[int]) -> bool:
        """Whether the names that led to this state match the whole pattern."""
        return len(self._parts) in state

    def matches(self, path: str) -> bool:
        """Whether a relative path matches."""
        state = self.start
        for name in path.split("/"):
            state = self.step(state, name)
        return self.accepts(state)

    def _skip(self, state: set[int]) -> frozenset[int]:
        """A ``**`` before more parts may stand for no folder at all."""
        for index, part in enumerate(self._parts[:-1]):
            if part is None and index in state:
                state.add(index + 1)
        return frozenset(state)


class NamePattern:
    """One segment of a glob: text, ``*``, ``?`` and ``[…]``."""

    def __init__(self, text: str) -> None:
        self._steps: list[Callable[[str], bool] | str | None] = []  # None is a star
        index = 0
        while index < len(text):
            char = text[index]
            index += 1
            if char == "*":
                self._steps.append(None)
            elif char == "?":
                self._steps.append(lambda _: True)
            elif char == "[":
                end = text.find("]", index + 1 + (text[index : index + 1] == "!"))
                if end < 0:
                    self._steps.append("[")
                    continue
                self._steps.append(one_of(text[index:end]))
                index = end + 1
            else:
                self._steps.append(char)

    def matches(self, name: str) -> bool:
        """Whether a name matches: a star that fails is tried once more, one character later."""
        steps = self._steps
        at = place = 0
        star, resume = -1, 0
        while place < len(name):
            step = steps[at] if at < len(steps) else ""
            if step is None:
                star, resume = at, place
                at += 1
            elif step == name[place] or (callable(step) and step(name[place])):
                at += 1
                place += 1
            elif star >= 0:
                resume += 1
                at, place = star + 1, resume
            else:
                return False
        return all(step is None for step in steps[at:])


def one_of(inside: str) -> Callable[[str], bool]:
    """The test for a set: characters and ranges, negated by a leading ``!``."""
    negated = inside.startswith("!")
    text = inside[1:] if negated else inside
    ranges = []
    index = 0
    while index < len(text):
        if text[index + 1 : index + 2] == "-" and index + 2 < len(text):
            ranges.append((text[index], text[index + 2]))
            index += 3
        else:
            ranges.append((text[index], text[index]))
            index += 1
    return lambda char: any(low <= char <= high for low, high in ranges) != negated


class _Level:
    """A folder that is being walked; its descriptor may be let go of while we are far below."""

    def __init__(self, fd: int, prefix: str) -> None:
        self.fd, self.prefix = fd, prefix
        facts = os.fstat(fd)
        self._identity = facts.st_dev, facts.st_ino
        with os.scandir(fd) as entries:
            self.names = sorted((entry.name for entry in entries), reverse=True)

    def let_go(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def come_back(self, below: int) -> bool:
        """Have a descriptor again, through the folder below; False if it was moved away."""
        if self.fd < 0:
            self.fd = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=below)
            facts = os.fstat(self.fd)
            return self._identity == (facts.st_dev, facts.st_ino)
        return True


def entries_of(fd: int) -> Iterator[Entry]:
    """(name, stat, the folder) of a folder's entries by name, links not followed."""
    with os.scandir(fd) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        try:
            yield name, os.lstat(name, dir_fd=fd), fd
        except OSError:
            continue  # gone since it was listed


def walk(fd: int) -> Iterator[Entry]:
    """(relative path, stat, open parent) of everything below a folder, links not followed.

    A folder's entries follow it, by name. Neither depth nor the limit on descriptors stops it.
    """
    levels = [_Level(os.dup(fd), "")]
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        while levels:
            here = levels[-1]
            if not here.names:
                if len(levels) > 1 and not levels[-2].come_back(here.fd):
                    return  # someone moved folders about while we were below: this is the end
                levels.pop().let_go()
                continue
            name = here.names.pop()
            try:
                facts = os.lstat(name, dir_fd=here.fd)
            except OSError:
                continue  # gone since it was listed
            yield here.prefix + name, facts, here.fd
            if stat.S_ISDIR(facts.st_mode):
                try:
                    below = os.open(name, flags, dir_fd=here.fd)
                except OSError:
                    continue  # not ours to read, or gone
                levels.append(_Level(below, here.prefix + name + "/"))
                if len(levels) > OPEN_FOLDERS:
                    levels[-1 - OPEN_FOLDERS].let_go()
    finally:
        for level in levels:
            level.let_go()


def search_file(expression: re.Pattern[str], fd: int, path: str, finds: Finds) -> None:
    """Look through one file, unless it is binary or too large."""
    if os.fstat(fd).st_size > SEARCH_FILE_LIMIT:
        finds.skipped += 1
        return
    with os.fdopen(os.dup(fd), "rb") as file:
        head = file.read(BINARY_PROBE)
        if b"\0" in head:
            return
        data = head + file.read(SEARCH_FILE_LIMIT)  # it may be growing
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, raw in enumerate(lines, 1):
        line = raw.decode("utf-8", "surrogateescape")
        if expression.search(line) and not finds.add(path, number, line):
            return


# Characters whose case partners go beyond the two ASCII letters, as Python's re sees them.
_FOLDS = {"i": "[iI\u0130\u0131]", "s": "[sS\u017f]", "k": "[kK\u212a]"}


def rg_pattern(pattern: str, ignore_case: bool) -> tuple[str, Check] | None:
    """The same pattern for ripgrep, or None where the two engines may read it differently.

    Gives (text, check): with ``check`` "none" ripgrep's lines are the answer; with "wide" those
    with a byte beyond ASCII, and with "all" every line, must be matched once more by Python.
    """
    try:
        parser = getattr(re, "_parser", None) or __import__("sre_parse")
        tree = parser.parse(pattern)
        flags = tree.state.flags
        ignore_case = ignore_case or bool(flags & re.IGNORECASE)
        if flags & (re.ASCII | re.LOCALE):
            return None
        translator = _Translator(ignore_case)
        text = translator.sequence(tree)
        return f"(?i){text}" if ignore_case else text, translator.check
    except (_Different, RecursionError):
        return None


class _Different(Exception):
    """The two engines may disagree about this."""


class _Translator:
    """Writes a parsed Python pattern in ripgrep's syntax."""

    ANY = r"(?:.|(?-u:[\x80-\xff]))"
    WIDE = r"[^\x00-\x7f]|(?-u:[\x80-\xff])"
    CATEGORIES: ClassVar[dict[str, str]] = {
        "CATEGORY_DIGIT": "[0-9]", "CATEGORY_NOT_DIGIT": "[^0-9]",
        "CATEGORY_WORD": "[0-9A-Za-z_]", "CATEGORY_NOT_WORD": "[^0-9A-Za-z_]",
        "CATEGORY_SPACE": r"[\t\x0b\x0c\r\x1c-\x1f ]",
        "CATEGORY_NOT_SPACE": r"[^\t\x0b\x0c\r\x1c-\x1f ]",
    }  # fmt: skip

    def __init__(self, ignore_case: bool) -> None:
        self._fold = ignore_case
        self.check: Check = "wide" if ignore_case else "none"

    def _wide(self) -> None:
        if self.check == "none":
            self.check = "wide"

    def sequence(self, items: Iterable[tuple[object, Any]]) -> str:
        return "".join(self._item(str(op), value) for op, value in items)

    def _item(self, op: str, value: Any) -> str:
        if op == "LITERAL":
            return self._literal(value)
        if op == "ANY":
            self._wide()
            return self.ANY
        if op == "NOT_LITERAL":
            self._wide()
            if self._fold:
                raise _Different
            return f"(?:[^{self._escape(value)}]|{self.WIDE})"
        if op == "IN":
            return self._set(value)
        if op == "BRANCH":
            return "(?:" + "|".join(self.sequence(branch) for branch in value[1]) + ")"
        if op == "SUBPATTERN":
            _, add, remove, inner = value
            if add or remove:
                raise _Different
            return f"(?:{self.sequence(inner)})"
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeat(*value)
        if op == "AT":
            return self._anchor(str(value))
        raise _Different

    def _repeat(self, low: int, high: int, inner: Iterable[tuple[object, Any]]) -> str:
        text = self.sequence(inner)
        most = None if str(high) == "MAXREPEAT" else high
        if low > 1000 or (most or 0) > 1000 or not text:
            raise _Different
        return f"(?:{text}){{{low},{'' if most is None else most}}}"

    def _anchor(self, where: str) -> str:
        if where in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
            return "^"
        if where in ("AT_END", "AT_END_STRING"):
            return "$"
        if where in ("AT_BOUNDARY", "AT_NON_BOUNDARY"):
            self.check = "all"  # left out here: ripgrep finds more lines, Python sorts them
            return "(?:)"
        raise _Different

    def _literal(self, value: int) -> str:
        char = chr(value)
        if char == "\n" or 0xD800 <= value <= 0xDFFF:
            raise _Different
        if self._fold:
            if value > 127:
                raise _Different
            return _FOLDS.get(char.lower(), self._escape(value))
        return self._escape(value)

    def _escape(self, value: int) -> str:
        char = chr(value)
        if char.isalnum() and value < 128:
            return char
        if value == 10 or 0xD800 <= value <= 0xDFFF:
            raise _Different
        return rf"\x{{{value:x}}}"

    def _set(self, items: Iterable[tuple[object, Any]]) -> str:
        negated, singles = False, ""
        wide: list[str] = []
        for op, value in items:
            name = str(op)
            if name == "NEGATE":
                negated = True
            elif name == "LITERAL":
                singles += self._escape(value)
                if self._fold and (value > 127 or chr(value).lower() in _FOLDS):
                    raise _Different
            elif name == "RANGE":
                low, high = value
                if self._fold or (low <= 0xDFFF and high >= 0xD800) or low <= 10 <= high:
                    raise _Different
                singles += self._escape(low) + "-" + self._escape(high)
            elif name == "CATEGORY" and str(value) in self.CATEGORIES:
                wide.append(self.CATEGORIES[str(value)])
            else:
                raise _Different
        if negated and wide:
            raise _Different
        if negated:
            self._wide()
            return f"(?:[^{singles}]|{self.WIDE})"
        options = ([f"[{singles}]"] if singles else []) + wide
        if wide:
            self._wide()
            options.append(self.WIDE)
        return "(?:" + "|".join(options) + ")"


RG_FLAGS = (
    "--no-config", "--no-messages", "--hidden", "--no-ignore", "--text", "--encoding=none",
    "--null", "--line-number", "--no-heading", "--with-filename", "--color=never",
)  # fmt: skip
# What rg says of a file that it leaves out for its size.
RG_LEFT_OUT = re.compile(rb": [0-9]+ bytes$", re.MULTILINE)
PLAIN_GLOB = re.compile(r"[A-Za-z0-9_./*-]+\Z")


class Ripgrep:
    """One search by rg in a folder, its output turned into the answer."""

    def __init__(
        self, guest: Guest, request: Head, folder_fd: int, rg: str, translated: tuple[str, Check]
    ) -> None:
        self._guest, self._request = guest, request
        self._rg = rg
        self._folder = folder_fd
        self._pattern, self._check = translated
        self._sorted = self._bounded = False
        self._ends: float = time.monotonic() + request["timeout"]
        self._begin()

    def _begin(self) -> None:
        request = self._request
        argv = [self._rg, *RG_FLAGS]
        glob = request["glob"]
        self._narrowed = bool(glob and PLAIN_GLOB.match(glob) and ".." not in glob)
        if self._narrowed:
            argv.append("--glob=/" + glob.lstrip("/"))
        timeout = max(self._left(), SEARCH_LEAST)
        if self._bounded:
            argv.append(f"--max-filesize={SEARCH_FILE_LIMIT}")
            if not self._narrowed:  # else it would tell of every file, not of those left out only
                argv.append("--debug")
        else:
            timeout = min(timeout, SEARCH_LEASH)
        if self._sorted:
            argv.append("--sort=path")
        argv += ["--regexp=" + self._pattern, "./"]
        inner = {"id": request["id"], "max_output": SEARCH_OUTPUT_LIMIT, "timeout": timeout}
        Searching(self._guest, inner, argv, self._folder, self)

    def done(self, job: Searching, status: int) -> None:
        """rg ended: answer, or look again in another way."""
        guest, request = self._guest, self._request
        code, number = exit_of(status)
        late = job.timed_out
        if not (self._bounded or job.cancelled) and (late or number):
            self._bounded = True  # there may be a file without an end, or nearly so
            if self._again():
                return
            late = True
        rows = parse_rg(job.out.text(), complete=not (job.out.lost or late))
        if job.cancelled or (late and not rows):
            self._close()
            guest.refuse(request, "timeout", "the search took longer than its time limit")
            return
        if job.out.lost and not self._sorted and not late:
            self._sorted = True  # too much to sort here: let rg bring it in order, and cut
            if self._again():
                return
            late = True
        if not late and (code not in (0, 1, 2) or (code == 2 and not job.out.size)):
            # It would not have this pattern after all, or could not start.
            rest = max(self._left(), SEARCH_LEAST)
            search_by_worker(guest, self._folder, dict(request, timeout=rest))
            self._close()
            return
        found = _Rows(rows, job.out.lost > 0, late)
        found.verify = self._check == "all" or (
            self._check == "wide" and any(not row[2].isascii() for row in rows)
        )
        found.count = (self._bounded and not late) and (
            self._narrowed or RG_LEFT_OUT.search(job.err.text()) is not None
        )
        if found.verify or found.count:
            folder = os.dup(self._folder)
            inner = dict(request, timeout=max(self._left(), SEARCH_GRACE) + SEARCH_GRACE)
            guest.in_worker(inner, lambda: self._ranked(folder, found))
            os.close(folder)
        else:
            head, payload = self._ranked(self._folder, found)
            guest.answer(dict(head, id=request["id"]), payload)
        self._close()

    def _left(self) -> float:
        return self._ends - time.monotonic()

    def _again(self) -> bool:
        """Start rg once more; False when there is no time for it."""
        if self._left() < SEARCH_AGAIN:
            return False
        self._begin()
        return True

    def _ranked(self, folder: int, found: _Rows) -> Answer:
        rows = found.rows
        if found.verify:
            rows = []
            time_to_tell = max(self._left(), SEARCH_GRACE)
            if not in_time(time_to_tell, lambda: self._verify(found.rows, rows)):
                found.timed_out = True
        finds = rank(folder, rows, self._request)
        finds.cut = finds.cut or found.cut
        finds.timed_out = found.timed_out
        if found.count:  # no match is lost when there is no time for it
            in_time(self._left(), lambda: count_large(folder, self._request, finds))
        return finds.answer()

    def _verify(self, rows: list[Row], verified: list[Row]) -> None:
        search = compile_search(self._request).search
        for row in rows:
            if (self._check == "wide" and row[2].isascii()) or search(
                row[2].decode("utf-8", "surrogateescape")
            ):
                verified.append(row)

    def _close(self) -> None:
        os.close(self._folder)


class _Rows:
    """What rg found, and what is left to do with it."""

    def __init__(self, rows: list[Row], cut: bool, timed_out: bool) -> None:
        self.rows, self.cut, self.timed_out = rows, cut, timed_out
        self.verify = self.count = False


class Searching(Exec):
    """rg as a job: like a command, but its end goes to the search."""

    def __init__(
        self, guest: Guest, request: Head, argv: list[str], folder_fd: int, search: Ripgrep
    ) -> None:
        self._search = search
        env = {"PATH": "/usr/bin:/bin"}
        super().__init__(guest, request, argv, env, folder_fd, b"")

    def finish(self) -> None:
        """Hand over instead of answering."""
        if self._finished or self.status is None:
            return
        self._finished = True
        if self.timer:
            self.timer.clear()
        self.guest.jobs.pop(self.number, None)
        self.out.close()
        self.err.close()
        self._search.done(self, self.status)


def parse_rg(data: bytes, complete: bool) -> list[Row]:
    """[(path, number, line as bytes)] from rg's output (path NUL number : line)."""
    rows: list[Row] = []
    start = 0
    end = len(data) if complete else data.rfind(b"\n") + 1
    while start < end:
        middle = data.find(b"\0", start, end)
        colon = data.find(b":", middle, end)
        stop = data.find(b"\n", colon, end)
        if middle < 0 or colon < 0:
            break
        if stop < 0:
            stop = end
        rows.append((data[start:middle], int(data[middle + 1 : colon]), data[colon + 1 : stop]))
        start = stop + 1
    return rows


class Finds:
    """Matches so far, in order, up to a number and to what a reply can hold."""

    def __init__(self, most: int) -> None:
        self._most, self._room = most, SEARCH_OUTPUT_LIMIT
        self._rows: list[Found] = []
        self.cut = self.timed_out = False
        self.skipped = 0

    def add(self, path: str, number: int, line: str) -> bool:
        """Take in a match; False when there is no room for it."""
        self._room -= len(line)
        if len(self._rows) == self._most or self._room < 0:
            self.cut = True
            return False
        self._rows.append((path, number, line[:-1] if line.endswith("\r") else line))
        return True

    def answer(self) -> Answer:
        """As a reply."""
        if self.timed_out and not self._rows:
            raise Refused("timeout", "the search took longer than its time limit")
        head: Head = {"truncated": self.cut, "timed_out": self.timed_out, "skipped": self.skipped}
        return head, json.dumps(self._rows).encode("ascii")


def rank(folder: int, rows: list[Row], request: Head) -> Finds:
    """Sort what rg found, drop binary files and what the glob leaves out, cut."""
    by_file: dict[str, list[tuple[int, bytes]]] = {}
    for path, number, line in rows:
        name = os.fsdecode(path[2:] if path.startswith(b"./") else path)
        by_file.setdefault(name, []).append((number, line))
    narrow = Glob(request["glob"]) if request["glob"] else None
    finds = Finds(request["max_matches"])
    for name in sorted(by_file, key=lambda name: name.split("/")):
        if narrow is not None and not narrow.matches(name):
            continue
        look = _looked(folder, name)
        if look == "large":
            finds.skipped += 1
        if look != "text":
            continue
        shown = under(request["path"], name)
        for number, line in by_file[name]:
            if not finds.add(shown, number, line.decode("utf-8", "surrogateescape")):
                return finds
    return finds


def _looked(folder: int, path: str) -> Literal["text", "binary", "large"]:
    """What kind of file it is that something was found in."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=folder)
    except OSError:
        return "text"
    try:
        if os.fstat(fd).st_size > SEARCH_FILE_LIMIT:
            return "large"
        return "binary" if b"\0" in os.read(fd, BINARY_PROBE) else "text"
    except OSError:
        return "text"
    finally:
        os.close(fd)


def compile_search(request: Head) -> re.Pattern[str]:
    """The regular expression of a search."""
    return re.compile(request["pattern"], re.IGNORECASE if request["ignore_case"] else 0)


def count_large(folder: int, request: Head, finds: Finds) -> None:
    """Count the files of a folder that are too large to be searched, all of them anew."""
    narrow = Glob(request["glob"]) if request["glob"] else None
    finds.skipped = 0
    for name, facts, _ in walk(folder):
        large = stat.S_ISREG(facts.st_mode) and facts.st_size > SEARCH_FILE_LIMIT
        if large and (narrow is None or narrow.matches(name)):
            finds.skipped += 1


class _TimeUp(Exception):
    """The time of a search is up."""


def in_time(seconds: float, work: Callable[[], object]) -> bool:
    """Work until the time is up; tells whether the work was done. Only in a worker."""

    def ring(*_: object) -> NoReturn:
        raise _TimeUp  # even out of the middle of a match: `re` looks for signals as it goes

    signal.signal(signal.SIGALRM, ring)
    try:
        try:
            # It may ring at once. A time of 0 or less would mean never.
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TimeUp:
        return False
    return True


def search_by_worker(guest: Guest, fd: int, request: Head) -> None:
    """Have Python search, in a worker that stops by itself when the time is up."""
    late = dict(request, timeout=request["timeout"] + SEARCH_GRACE)
    guest.in_worker(late, lambda: search_python(fd, request))


def search_python(fd: int, request: Head) -> Answer:
    """The search by Python alone: a folder or one file. Runs in a worker."""
    finds = Finds(request["max_matches"])
    finds.timed_out = not in_time(request["timeout"], lambda: search_all(fd, request, finds))
    return finds.answer()


def search_all(fd: int, request: Head, finds: Finds) -> None:
    """Look through a file, or through all in a folder."""
    expression = compile_search(request)
    path = request["path"]
    if stat.S_ISREG(os.fstat(fd).st_mode):
        search_file(expression, fd, path, finds)
        return
    narrow = Glob(request["glob"]) if request["glob"] else None
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    for name, facts, parent in walk(fd):
        if not stat.S_ISREG(facts.st_mode) or (narrow is not None and not narrow.matches(name)):
            continue
        try:
            file = os.open(name.rsplit("/", 1)[-1], flags, dir_fd=parent)
        except OSError:
            continue  # gone, or not ours to read
        try:
            search_file(expression, file, under(path, name), finds)
        finally:
            os.close(file)
        if finds.cut:
            break


# --- Requests


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


def is_folder(folder: int, name: str) -> bool:
    """Whether a name is a folder, or a link to one."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder).st_mode)
    except OSError:
        return False


def _is_there(folder: int, name: str) -> bool:
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def end_descendants() -> None:
    """Kill everything below this process, whatever it did to get away, and wait for it."""
    me = os.getpid()
    for _ in range(800):
        table = process_table()
        below = [
            pid
            for pid, (_, _, state, _) in table.items()
            if pid != me and state not in "ZX" and _descends(pid, me, table)
        ]
        if not below:
            return
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # gone meanwhile
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.005)


def main() -> None:
    """Serve the descriptors named on the command line (one for both ways, or two), or the socket
    that waits at the path named there."""
    if sys.argv[1].startswith("/"):
        line = socket.socket(socket.AF_UNIX)
        line.connect(sys.argv[1])
        in_fd = out_fd = line.detach()
    else:
        in_fd, out_fd = int(sys.argv[1]), int(sys.argv[-1])
    os.set_inheritable(in_fd, False)
    os.set_inheritable(out_fd, False)
    os.chdir("/")
    usual_signals()
    Guest().serve(in_fd, out_fd)
    end_descendants()


if __name__ == "__main__":
    main()
