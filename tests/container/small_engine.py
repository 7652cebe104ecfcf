"""An engine for tests, where there is no Podman: containers made of namespaces by unshare(1).

It has the face of `podbot.engine.Engine` as far as the container backend uses it, and does for real
what matters there: mounts (overlays too), a pid namespace whose process 1 is the command, another
user when it is "root's", a stream to standard input and output, removal when the process ends. It
confines nothing else. What real engines do is tried in tests/e2e.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO

from podbot.engine import (
    BindMount,
    ContainerSpec,
    Created,
    Endpoint,
    Engine,
    Facts,
    Hijacked,
    OverlayMount,
    labels,
)
from podbot.engine.http.exchange import Wire
from podbot.errors import ContainerError, Kind

PYTHON = next(path for path in ("/usr/bin/python3", sys.executable) if os.path.exists(path))
SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/etc")
NAMES = ("sh", "-c", "cat /proc/[0-9]*/comm 2>/dev/null")
"""A command that tells the names of all processes in a container."""


class Container:
    """One container and its process."""

    def __init__(self, number: int, spec: ContainerSpec, owner: str):
        self.id = f"{number:064x}"
        self.spec = spec
        self.labels = {labels.OWNER: owner, **spec.labels}
        self.process: subprocess.Popen[bytes] | None = None
        self.far: socket.socket | None = None
        self.paused = False

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class SmallContainers:
    """The verbs the backend uses. ``trouble`` is called with each verb's name, and may raise."""

    def __init__(self, engine: SmallEngine):
        self._engine = engine
        self.all: dict[str, Container] = {}
        self.made = 0
        self._turn = threading.Lock()
        self.trouble: Callable[[str], None] = lambda verb: None

    def create(self, spec: ContainerSpec) -> Created:
        self.trouble("create")
        self._sweep()
        if spec.image not in self._engine.there:
            raise ContainerError(f"no image {spec.image}", kind=Kind.IMAGE_NOT_FOUND, remedy="x")
        with self._turn:
            if any(other.spec.name == spec.name for other in self.all.values()):
                raise ContainerError(f"{spec.name} is in use", kind=Kind.NAME_IN_USE, remedy="x")
            container = Container(self.made + 1, spec, labels.owner_label())
            self.all[container.id] = container
            self.made += 1
        return Created(container.id, runtime=self._engine.runtime)

    def start(self, name: str) -> None:
        self.trouble("start")
        container = self._get(name)
        stdin: int | socket.socket = subprocess.DEVNULL
        if container.spec.stdin:
            assert container.far is not None
            stdin = subprocess.PIPE
        container.process = subprocess.Popen(
            self._engine.command(container.spec),
            stdin=stdin,
            stdout=subprocess.PIPE if container.far else subprocess.DEVNULL,
            stderr=subprocess.PIPE if container.far else self._engine.errors,
            start_new_session=True,
        )
        if container.far is not None:
            threading.Thread(target=_carry, args=(container,), daemon=True).start()

    def inspect(self, name: str) -> SimpleNamespace:
        self.trouble("inspect")
        container = self._get(name)
        pid = container.process.pid if container.process is not None else 0
        return SimpleNamespace(id=container.id, running=container.running, pid=pid)

    def verify_filter(self, name: str, spec: ContainerSpec) -> None:
        self.trouble("verify_filter")
        assert self._get(name).spec == spec

    def attach(self, name: str) -> Hijacked:
        self.trouble("attach")
        near, self._get(name).far = socket.socketpair()
        return Hijacked(Wire(near))

    def remove(self, name: str) -> bool:
        self.trouble("remove")
        container = self.all.get(name)
        if container is None:
            return False
        _kill(container)
        if container.process is None and container.far is not None:
            container.far.close()
        self.all.pop(container.id, None)  # another thread may have swept it meanwhile
        return True

    def pause(self, name: str) -> None:
        self.trouble("pause")
        container = self._get(name)
        assert container.process is not None
        os.kill(_inner(container.process.pid), signal.SIGSTOP)
        container.paused = True

    def unpause(self, name: str) -> None:
        self.trouble("unpause")
        container = self._get(name)
        assert container.process is not None
        os.kill(_inner(container.process.pid), signal.SIGCONT)
        container.paused = False

    def list(self, wanted: Mapping[str, str | None]) -> tuple[SimpleNamespace, ...]:
        self.trouble("list")
        self._sweep()
        return tuple(
            SimpleNamespace(id=one.id, name=one.spec.name or "", labels=one.labels, image_id="")
            for one in self.all.values()
            if all(name in one.labels for name in wanted)
        )

    def kill_from_outside(self) -> None:
        """What someone else might do to every container."""
        for container in list(self.all.values()):
            _kill(container)
        self._sweep()

    def _get(self, name: str) -> Container:
        self._sweep()
        if name not in self.all:
            raise ContainerError(f"no container {name}", kind=Kind.CONTAINER_NOT_FOUND, remedy="x")
        return self.all[name]

    def _sweep(self) -> None:
        """Remove what has ended, as asked for."""
        for container in list(self.all.values()):
            over = container.process is not None and not container.running
            if over and container.spec.auto_remove:
                self.all.pop(container.id, None)


class SmallEngine(Engine):
    """An engine of this process's own. ``rootful``: its containers' users are real other users."""

    def __init__(self, *, rootful: bool = False, podman: bool = True, local: bool = True):
        self.folder = Path(tempfile.mkdtemp(prefix="podbot-small-", dir="/var/tmp"))
        (self.folder / "socket").touch()
        self.endpoint = Endpoint("small", "unix" if local else "tcp", str(self.folder / "socket"))
        self.small_facts = Facts(
            is_podman=podman, version="1.0", api_version="1.40", rootless=not rootful,
            cgroup_version=2, local=local,
        )  # fmt: skip
        self.found_by = "a test"
        self.there = {"image"}
        self.pullable: set[str] = set()
        self.runtime = "runc"
        self.python = PYTHON
        self.shuts_sockets = False
        self.fuse = False
        self.errors = subprocess.DEVNULL
        self._containers = SmallContainers(self)

    @property
    def facts(self) -> Facts:
        return self.small_facts

    @property
    def containers(self) -> SmallContainers:  # type: ignore[override]
        return self._containers

    @property
    def images(self) -> SimpleNamespace:  # type: ignore[override]
        return SimpleNamespace(pull=self._pull)

    def _pull(self, image: str) -> Iterator[str]:
        if image not in self.pullable:
            raise ContainerError("no registry", kind=Kind.PULL_FAILED, remedy="build one")
        self.there.add(image)
        yield "done"

    def command(self, spec: ContainerSpec) -> list[str]:
        """How to run a container: a root of its own, made in namespaces of its own."""
        root = self.folder / "root"
        lines = [f"mount -t tmpfs none {root}", f"cd {root}", "mkdir run proc dev"]
        for path in (*SYSTEM, *_prefixes(self.python)):
            if os.path.islink(path):
                lines.append(f"mkdir -p .{os.path.dirname(path)}; cp -P {path} .{path}")
            elif os.path.isdir(path):
                lines.append(f"mkdir -p .{path}; mount --rbind {path} .{path}")
        lines += ["mount --rbind /dev dev", "mount -t proc proc proc"]
        for memory in spec.profile.tmpfs:
            lines.append(f"mkdir -p .{memory.path}; chmod 1777 .{memory.path}")
        for mount in spec.mounts:
            at = shlex.quote(f".{mount.target}")
            lines.append(f"mkdir -p {at}")
            if self.shuts_sockets and mount.target.endswith("door"):
                continue
            if isinstance(mount, OverlayMount) and not self.fuse:
                marks = ",userxattr" if self.facts.rootless else ""
                layers = f"lowerdir={mount.source},upperdir={mount.upper},workdir={mount.work}"
                lines.append(f"mount -t overlay overlay -o {shlex.quote(layers + marks)} {at}")
            else:
                assert isinstance(mount, BindMount | OverlayMount)
                lines.append(f"mount --bind {shlex.quote(mount.source)} {at}")
        words = [self.python, *(spec.command or ())[1:]]
        user = "" if self.facts.rootless else f"--userspec={spec.profile.user} "
        lines.append("PATH=$PATH:/usr/sbin:/sbin")  # an ordinary user's may lack them
        lines.append(f"exec chroot {user}. {shlex.join(words)}")
        root.mkdir(exist_ok=True)
        # No pid of ours may stand between: the one that is waited for is not process 1 itself.
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        apart += ["--user", "--map-root-user"] if self.facts.rootless else []
        return [*apart, "sh", "-e", "-c", "\n".join(lines)]

    def close(self) -> None:
        """Kill all that is left."""
        for container in list(self._containers.all):
            self._containers.remove(container)
        subprocess.run(["rm", "-rf", self.folder], check=True)


def _prefixes(python: str) -> list[str]:
    """Where an interpreter's own files are, beyond the system's folders."""
    found = {sys.base_prefix, sys.prefix} if python == sys.executable else set()
    return [path for path in sorted(found) if not path.startswith(SYSTEM)]


def _inner(pid: int) -> int:
    """The first process in the namespace: what unshare forked."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


def _kill(container: Container) -> None:
    if container.process is None:
        return
    with suppress(OSError):
        os.kill(_inner(container.process.pid), signal.SIGKILL)
    with suppress(OSError):
        container.process.kill()
    container.process.wait()


def _carry(container: Container) -> None:
    """Carry a container's streams until it has ended, outputs in the frames of engines."""
    far, process = container.far, container.process
    assert far is not None and process is not None
    assert process.stdin is not None
    inwards = threading.Thread(target=_carry_in, args=(far, process.stdin), daemon=True)
    inwards.start()
    pipes = {process.stdout: 1, process.stderr: 2}
    while pipes:
        for pipe in select.select(list(pipes), [], [])[0]:
            data = os.read(pipe.fileno(), 65536)
            if not data:
                del pipes[pipe]
                pipe.close()
                continue
            with suppress(OSError):
                head = bytes([pipes[pipe], 0, 0, 0]) + len(data).to_bytes(4, "big")
                far.sendall(head + data)
    with suppress(OSError):
        far.shutdown(socket.SHUT_RDWR)
    inwards.join()
    far.close()


def _carry_in(far: socket.socket, stdin: IO[bytes]) -> None:
    with suppress(OSError):
        while data := far.recv(65536):
            stdin.write(data)
            stdin.flush()
    with suppress(OSError):
        stdin.close()


def until(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    """Wait for something to come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
