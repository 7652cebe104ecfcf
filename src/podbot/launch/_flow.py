"""Bytes on their way between a command and the caller's streams, exact and in bounded memory.

A caller's descriptor is often shared with others: its flags are never changed, and nothing here
waits for it. What the command does not read of its input is left for whoever reads next, as far
as the kernel lets one look without taking: exactly for files, and for pipes up to `EXACT` bytes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import stat
import struct
import termios
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial

from podbot.launch._watch import Watch

CHUNK = 64 << 10
ROUNDS = 16
"""How many chunks one stream may move before the others get their turn."""
EXACT = 64 << 10
"""How much is taken from a pipe only once the command has read it. Whoever reads more than this
wants all of it, and then larger pieces are worth a small read-ahead."""
LOOK_SECONDS = 0.25
"""How often to look whether a terminal is ours to read, while it is not."""

_IN = select.POLLIN
_OUT = select.POLLOUT
_BROKEN = select.POLLERR | select.POLLNVAL


@cache
def _tee() -> Callable[[int, int, int], int]:
    """The kernel's way to copy from pipe to pipe without taking; Python has none."""
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).tee
    call.restype = ctypes.c_ssize_t
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)

    def tee(source: int, target: int, count: int) -> int:
        done: int = call(source, target, count, os.SPLICE_F_NONBLOCK)
        if done < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return done

    return tee


def waiting(fd: int) -> int:
    """How many bytes a pipe holds for its reader."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0])


class End:
    """A descriptor that is read or written without waiting, though others may share it."""

    def __init__(self, fd: int, *, ours: bool):
        """``ours``: taken over, and never waited for already. Else see `shared`."""
        mode = os.fstat(fd).st_mode
        self.is_pipe = stat.S_ISFIFO(mode)
        self._socket = None
        self._ferry: threading.Thread | None = None
        self.fd = fd if ours else os.dup(fd)
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(fd))

    @classmethod
    def shared(cls, fd: int, flags: int, may_read: Callable[[], bool] | None = None) -> End:
        """An end of our own for a caller's descriptor; ``flags``: O_RDONLY or O_WRONLY.

        ``may_read`` is asked where no moment but the right one will do.
        """
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            # Opened anew it has flags of its own. Not always allowed: pipes can be asked not to
            # wait at each call, but terminals can not.
            try:
                return cls(_open_anew(fd, flags), ours=True)
            except OSError:
                if stat.S_ISCHR(mode):
                    return cls._ferried(fd, flags, may_read)
        return cls(fd, ours=False)

    @classmethod
    def _ferried(cls, fd: int, flags: int, may_read: Callable[[], bool] | None) -> End:
        """The end of a pipe whose bytes a thread brings or takes: it is the one that waits."""
        read, write = os.pipe2(os.O_CLOEXEC)
        near, far = (read, write) if flags == os.O_RDONLY else (write, read)
        fcntl.fcntl(near, fcntl.F_SETPIPE_SZ, 1)
        os.set_blocking(near, False)
        copy = os.dup(fd)
        work = partial(_bring, copy, far, may_read) if near == read else partial(_take, far, copy)
        end = cls(near, ours=True)
        end._ferry = threading.Thread(target=work, name="podbot-ferry", daemon=True)
        end._ferry.start()
        return end

    @property
    def lags(self) -> bool:
        """Whether what was written is not yet where it belongs, though it was closed."""
        return self._ferry is not None and self._ferry.is_alive()

    def read(self, size: int) -> bytes:
        """What is there; raises `BlockingIOError` if nothing is, empty at the end."""
        if self._socket is not None:
            return self._socket.recv(size, socket.MSG_DONTWAIT)
        return os.read(self.fd, size)

    def write(self, data: memoryview) -> int:
        """As much as it takes; raises `BlockingIOError` if it takes nothing."""
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        # A ready pipe that could not be opened anew takes this much without waiting.
        return os.write(self.fd, data[: select.PIPE_BUF] if self.is_pipe else data)

    def close(self) -> None:
        """Let go of our descriptors; the caller's stays open."""
        os.close(self.fd)
        if self._socket is not None:
            self._socket.close()


def _open_anew(fd: int, flags: int) -> int:
    """The file or terminal of a descriptor, as a descriptor that nobody waits for."""
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(f"/proc/self/fd/{fd}", flags)
    except PermissionError:
        # A terminal that belongs to another user, as after `su`: everybody may open the one that
        # controls them, by this name.
        os.tcgetpgrp(fd)  # refused for any other terminal
        return os.open("/dev/tty", flags)


def _bring(source: int, far: int, may_read: Callable[[], bool] | None) -> None:
    """What can be read there, until it ends or nobody wants it any more."""
    poll = select.poll()
    poll.register(source, _IN)
    poll.register(far, 0)
    away = select.poll()
    away.register(far, 0)
    with suppress(OSError):
        while (ready := dict(poll.poll())).keys() == {source}:
            if may_read is not None and not may_read():
                if away.poll(LOOK_SECONDS * 1000):
                    break
                continue
            data = os.read(source, CHUNK) if ready[source] & _IN else b""
            if not data:
                break
            _write_all(far, data)
    for fd in (source, far):
        os.close(fd)


def _take(far: int, target: int) -> None:
    """Write there what comes, until that ends or cannot be written any more."""
    with suppress(OSError):
        while data := os.read(far, CHUNK):
            _write_all(target, data)
    for fd in (far, target):
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


class Passing:
    """From one end to the other, whatever they are: with one chunk in hand at most, or between
    pipes inside the kernel."""

    def __init__(self, watch: Watch, source: End, target: End):
        self._watch, self._source, self._target = watch, source, target
        self._splices = source.is_pipe and target.is_pipe
        self._held = memoryview(b"")
        self.moved = 0
        self.ended = False
        self.paused = False
        self.problem: OSError | None = None
        self.may_read: Callable[[], bool] | None = None
        """Asked before each read, when not every moment is right; it pauses at a no."""
        self.changed: Callable[[bytes], bytes] | None = None
        """What to make of a chunk before it is passed on."""
        self.resume()

    @property
    def pending(self) -> int:
        """Bytes that are on their way, as far as we know."""
        return 0 if self.ended else len(self._held) + waiting(self._source.fd)

    @property
    def held_up(self) -> bool:
        """Whether the target has yet to take what was read."""
        return not self.ended and len(self._held) > 0

    @property
    def lags(self) -> bool:
        """Whether it has ended, but not all is where it belongs."""
        return self.ended and self._target.lags

    def resume(self) -> None:
        """Wait for the source to have something, and for the target to go away."""
        self.paused = False
        if not self.ended:
            self._watch.set(self._source.fd, _IN, self._source_ready)
            self._watch.set(self._target.fd, 0, self._target_ready)

    def pause(self) -> None:
        """Take no interest in anything until the next `resume`."""
        self.paused = True
        self._watch.drop(self._source.fd)
        self._watch.drop(self._target.fd)

    def _source_ready(self, events: int) -> None:
        if self.may_read is None or self.may_read():
            self.step()
        else:
            self.pause()

    def _target_ready(self, events: int) -> None:
        if events & _OUT:
            self.step()
        else:
            self.end(OSError(errno.EPIPE, os.strerror(errno.EPIPE)))

    def _await_room(self) -> None:
        self._watch.drop(self._source.fd)
        self._watch.set(self._target.fd, _OUT, self._target_ready)

    def step(self) -> None:
        """Move what can be moved now."""
        for _ in range(ROUNDS):
            if not (self._splice() if self._splices else self._copy()):
                return

    def _splice(self) -> bool:
        flags = os.SPLICE_F_NONBLOCK
        try:
            count = os.splice(self._source.fd, self._target.fd, 1 << 20, flags=flags)
        except BlockingIOError:
            if waiting(self._source.fd):  # so it is the target that has no room
                self._await_room()
            else:
                self.resume()
            return False
        except OSError as error:
            self.end(error)
            return False
        self.moved += count
        if not count:
            self.end()
        return count > 0

    def _copy(self) -> bool:
        if not self._held:
            try:
                data = self._source.read(CHUNK)
            except BlockingIOError:
                self.resume()
                return False
            except OSError:  # a terminal whose other end is gone, a folder, …
                data = b""
            if not data:
                self.end()
                return False
            self._held = memoryview(data if self.changed is None else self.changed(data))
        try:
            count = self._target.write(self._held) if self._held else 0
        except BlockingIOError:
            self._await_room()
            return False
        except OSError as error:
            self.end(error)
            return False
        self.moved += count
        self._held = self._held[count:]
        return True

    def end(self, problem: OSError | None = None) -> None:
        """No more of this; a command that goes on writing is told by SIGPIPE."""
        if not self.ended:
            self.ended, self.problem = True, problem
            self.pause()
            self._source.close()
            self._target.close()

    def close(self) -> None:
        """End it, as nobody is interested any more."""
        self.end()


class FromFile:
    """A command's stdin from a regular file, whose offset in the end is what it has read."""

    def __init__(self, watch: Watch, source: int, near: int):
        self._watch, self._source, self._near = watch, source, near
        self._offset = os.lseek(source, 0, os.SEEK_CUR)
        watch.set(near, _OUT, self._ready)

    def _ready(self, events: int) -> None:
        if events & _BROKEN:
            self._watch.drop(self._near)
            return
        try:
            for _ in range(ROUNDS):
                data = os.pread(self._source, CHUNK, self._offset)
                if not data:
                    break
                self._offset += os.write(self._near, data)
            else:
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # it is a folder, or nobody reads: there is no more for the command
        self._watch.drop(self._near)
        self._end()

    def _end(self) -> None:
        # The command sees the end once nobody can write; what it leaves can still be counted.
        tail = os.open(f"/proc/self/fd/{self._near}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.close(self._near)
        self._near = tail

    def close(self) -> None:
        """Give back what was not read, and let go."""
        self._watch.drop(self._near)
        with suppress(OSError):
            os.lseek(self._source, self._offset - waiting(self._near), os.SEEK_SET)
        os.close(self._near)


class FromPipe:
    """A command's stdin from a pipe, taken only as the command reads it (see `EXACT`)."""

    def __init__(self, watch: Watch, source: End, near: int):
        self._watch, self._source, self._near = watch, source, near
        self._shown = 0
        self._taken = 0
        self._null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        # Room for a single piece: when there is room again, all that was shown has been read.
        fcntl.fcntl(near, fcntl.F_SETPIPE_SZ, 1)
        self._rest()

    @property
    def exact(self) -> bool:
        """Whether nothing is taken before it is read."""
        return self._taken < EXACT

    def _rest(self) -> None:
        self._watch.set(self._source.fd, _IN, self._step)
        self._watch.set(self._near, 0, self._step)

    def _full(self) -> None:
        self._watch.drop(self._source.fd)
        self._watch.set(self._near, _OUT, self._step)

    def _step(self, events: int) -> None:
        if events & _BROKEN:  # nobody reads any more
            self.close()
            return
        for _ in range(ROUNDS):
            try:
                if self._shown and not self._take_what_was_read():
                    return self._full()
                if self.exact:
                    count = self._show()
                else:
                    count = os.splice(
                        self._source.fd, self._near, CHUNK, flags=os.SPLICE_F_NONBLOCK
                    )
            except BlockingIOError:
                return self._full() if waiting(self._source.fd) else self._rest()
            except OSError:
                count = 0
            if not count:
                return self.close()
        return None

    def _show(self) -> int:
        self._shown = _tee()(self._source.fd, self._near, CHUNK)
        return self._shown

    def _take_what_was_read(self) -> bool:
        """Take from the caller's pipe what the command read of ours; True if that was all."""
        # Bounded on both sides: the command can open its end and write to it.
        read = min(self._shown, max(0, self._shown - waiting(self._near)))
        if read < self._shown:
            return False
        self._take(read)
        if not self.exact:
            with suppress(OSError):  # over the user's share of pipe memory: slower, no less right
                fcntl.fcntl(self._near, fcntl.F_SETPIPE_SZ, CHUNK)
        return True

    def _take(self, count: int) -> None:
        self._taken += count
        self._shown = 0
        while count > 0:
            try:
                gone = os.splice(self._source.fd, self._null, count, flags=os.SPLICE_F_NONBLOCK)
            except BlockingIOError:
                return  # someone else reads the same pipe, and was faster
            if not gone:
                return
            count -= gone

    def close(self) -> None:
        """Leave to the next reader what was not read, and let go."""
        if self._near < 0:
            return
        self._watch.drop(self._near)
        self._watch.drop(self._source.fd)
        self._take(min(self._shown, max(0, self._shown - waiting(self._near))))
        for fd in (self._near, self._null):
            os.close(fd)
        self._source.close()
        self._near = -1
