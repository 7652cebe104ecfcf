"""How another program of the same person's lets one host more through, while a sandbox lives.

A socket beside the layer: in a folder that only its owner may enter, which no sandbox is shown. It
is asked who connects all the same: somebody else, and whoever is in another pid namespace (what
runs inside is), gets no hearing. Hosts can be added, and nothing else can be asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from podbot.errors import Kind, PodbotError, SandboxError

if TYPE_CHECKING:
    from podbot.sandbox.layers import Layer

NAME = "control"
SECONDS = 10.0
"""How long either side waits for the other."""
AGAIN_SECONDS = 0.2
_LARGEST = 64 << 10
_CREDENTIALS = struct.Struct("3i")


class Control:
    """The socket, and the thread that answers at it."""

    def __init__(self, folder: Path, allow: Callable[[str], object]):
        """Raises `OSError` where no socket can be made."""
        self._folder, self._allow = folder, allow
        self._over = threading.Event()
        self._line: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            with _named(folder) as name:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)  # of one that was killed; the layer is ours now
                self._listener.bind(name)
                os.chmod(name, 0o600)
            self._listener.listen()
        except BaseException:
            self._listener.close()
            raise
        self._thread = threading.Thread(target=self._work, name="podbot-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more; may be called twice."""
        if self._over.is_set():
            return
        self._over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        line = self._line
        if line is not None:  # somebody who says nothing keeps nobody waiting
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        with contextlib.suppress(OSError), _named(self._folder) as name:
            os.unlink(name)  # or it went with the layer

    def forget(self) -> None:
        """In a fork: it is the parent's, and stays."""
        self._listener.close()

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                line, _ = self._listener.accept()
            except OSError:  # it is closed; or there are no descriptors just now
                self._over.wait(AGAIN_SECONDS)
                continue
            self._line = line
            with contextlib.suppress(OSError, ValueError, RecursionError), line:
                line.settimeout(SECONDS)
                if not self._over.is_set() and _is_ours(line):
                    line.sendall(json.dumps(self._answer(_received(line))).encode())

    def _answer(self, asked: object) -> dict[str, object]:
        hosts = asked.get("allow") if isinstance(asked, dict) else None
        if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
            return {"error": "that cannot be asked for"}
        from podbot.egress import Rules

        try:
            Rules.of(*hosts)  # all of them, or none
            for host in hosts:
                self._allow(host)
        except PodbotError as error:
            return {"error": error.message, "remedy": error.remedy}
        return {"allowed": hosts}


def allow(layer: Layer, hosts: Iterable[str]) -> None:
    """Have the sandbox that works in this layer let these hosts through as well, from now on.

    Raises `SandboxError`: kind ``invalid`` for what is no host, ``closed`` if no proxy is there to
    be asked.
    """
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(SECONDS)
            with _named(layer.path) as name:
                if os.lstat(name).st_uid != os.geteuid():
                    raise PermissionError
                line.connect(name)
            line.sendall(json.dumps({"allow": list(hosts)}).encode())
            line.shutdown(socket.SHUT_WR)
            answer = _received(line)
    except (OSError, ValueError):
        raise SandboxError(
            f"no proxy of the sandbox {layer.id} can be asked",
            kind=Kind.CLOSED,
            remedy="it must run, with a network of chosen hosts, and have been started by you",
        ) from None
    problem = answer.get("error") if isinstance(answer, dict) else "it gave no answer"
    if problem is not None:
        remedy = answer.get("remedy") if isinstance(answer, dict) else None
        raise SandboxError(
            str(problem), kind=Kind.INVALID, remedy=None if remedy is None else str(remedy)
        )


@contextmanager
def _named(folder: Path) -> Iterator[str]:
    """The socket's path, in few enough letters for the kernel however deep the folder lies."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{NAME}"
    finally:
        os.close(fd)


def _received(line: socket.socket) -> object:
    data = b""
    while more := line.recv(4096):
        data += more
        if len(data) > _LARGEST:
            raise ValueError("too much")
    return json.loads(data)


def _is_ours(line: socket.socket) -> bool:
    """Whether who connected is the person who runs this, and not inside of a sandbox."""
    data = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    where = os.stat(f"/proc/{pid}/ns/pid")
    return uid == os.geteuid() and os.path.samestat(where, os.stat("/proc/self/ns/pid"))
