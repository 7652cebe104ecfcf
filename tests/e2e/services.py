"""Container engines for the end-to-end tests, started for a run and ended with it.

Each is a service on a socket of its own, over storage that `set_up.py` has made: rootful Podman,
the same with gVisor as its runtime, and Docker, as root; rootless Podman as an ordinary user. What
is left of a run is removed when its service ends: nothing here touches containers of others.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import set_up

from podbot.engine.finding.leash import listens

ROOT_KINDS = ("rootful", "docker", "runsc")
USER_KINDS = ("rootless",)
KINDS = (*ROOT_KINDS, *USER_KINDS)

KINDS_VARIABLE = "PODBOT_E2E_KINDS"
"""Only these engines, separated by commas (all, if it is not set)."""

KEPT_RUNS = 10

PATIENCE = 180.0
"""Seconds that a service may take to answer, on a machine that is busy."""

CLI_SECONDS = 600.0
"""Seconds that a command of an engine's may take: an import of an image is one."""

refused: dict[str, str] = {}
"""Engines that run no container on this machine, podbot or not, and what they said instead."""


class Unable(Exception):
    """This machine does not run containers with this engine; the text says why."""


@dataclass(frozen=True, slots=True)
class Service:
    """An engine that listens.

    ``environment`` is what a child process needs to use this engine and no other: podbot by itself
    (`PODBOT_ENGINE_SOCKET`), and `podman` or `docker` as commands. ``logs`` holds what the service
    wrote. ``pid`` is the service's process.
    """

    kind: str
    url: str
    image: str
    environment: Mapping[str, str]
    logs: Path
    pid: int
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @property
    def rootless(self) -> bool:
        """Whether the engine has no privileges of its own."""
        return self.kind == "rootless"

    @property
    def is_docker(self) -> bool:
        """Whether it is Docker, not Podman."""
        return self.kind == "docker"

    @property
    def socket(self) -> Path:
        """The socket's path."""
        return Path(self.url.removeprefix("unix://"))

    def cli(self, *words: str, check: bool = True) -> str:
        """What `podman` or `docker` itself says: for looking, past podbot, at what is there."""
        program = "docker" if self.is_docker else "podman"
        done = subprocess.run(
            [program, *words],
            env=dict(self.environment), capture_output=True, text=True, check=False,
            timeout=CLI_SECONDS,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"{program} {' '.join(words)}: {done.stderr}")
        return done.stdout

    def containers(self, *filters: str) -> list[str]:
        """The ids of all containers, running or not, that fit each filter (`label=a=b`)."""
        chosen = [word for each in filters for word in ("--filter", each)]
        return self.cli("ps", "--all", "--quiet", "--no-trunc", *chosen).split()


@cache
def logs() -> Path:
    """The folder of this run's logs; those of a few runs before it are kept."""
    folder = set_up.place() / "logs"
    folder.mkdir(exist_ok=True)
    for old in sorted(folder.iterdir())[: -KEPT_RUNS + 1]:
        shutil.rmtree(old, ignore_errors=True)
    made = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    made.mkdir()
    return made


def served() -> tuple[str, ...]:
    """The kinds that this process can start, in the order tests try them."""
    able = ROOT_KINDS if set_up.is_root() else USER_KINDS
    given = os.environ.get(KINDS_VARIABLE)
    return able if not given else tuple(kind for kind in able if kind in given.split(","))


@contextmanager
def start(kind: str, *, alone: bool = False) -> Iterator[Service]:
    """An engine of this kind until the block ends; `Unable` if it runs no container here.

    ``alone``: one that has no container but those made here, for tests that deal with all there
    are (Podman only); it has the same images.
    """
    if kind in refused:
        raise Unable(refused[kind])
    folder = set_up.place()
    if not (folder / "podman" / "storage.conf").exists():
        raise RuntimeError(
            "this machine is not ready for the end-to-end tests\n"
            "  remedy: make test-e2e, or python tests/e2e/set_up.py prepare"
        )
    # What an engine that had to be killed leaves mounted in it is no test's failure.
    place = tempfile.TemporaryDirectory(prefix="podbot-e2e-", ignore_cleanup_errors=True)
    with place as private, ExitStack() as stack:
        try:
            if kind == "docker":
                service = stack.enter_context(_docker(kind, folder, Path(private)))
            else:
                settings = stack.enter_context(_storage_alone(folder)) if alone else {}
                service = stack.enter_context(_podman(kind, folder, Path(private), settings))
            _try_out(service)
        except Unable as error:
            refused[kind] = str(error)
            raise
        yield service


@contextmanager
def start_or_skip(kind: str, *, alone: bool = False) -> Iterator[Service]:
    """An engine; a test that needs one this machine does not run is skipped, with the reason."""
    try:
        with start(kind, alone=alone) as service:
            yield service
    except Unable as error:
        pytest.skip(f"{kind} runs no container on this machine: {error}")


def _try_out(service: Service) -> None:
    """See that the engine, by its own command and without podbot, runs a container at all."""
    try:
        service.cli("run", "--rm", "--network=none", service.image, "true")
    except AssertionError as error:
        raise Unable(" ".join(str(error).split())[-300:]) from None


@contextmanager
def _storage_alone(folder: Path) -> Iterator[dict[str, str]]:
    """Storage without any container, and with the usual image."""
    with tempfile.TemporaryDirectory(
        prefix="podbot-e2e-", dir="/var/tmp", ignore_cleanup_errors=True
    ) as name:
        place = Path(name)
        text = set_up.STORAGE_CONF.replace("{place}/podman", str(place))
        if set_up.is_root():
            text += f'\n[storage.options]\nadditionalimagestores = ["{folder}/podman/storage"]\n'
        (place / "storage.conf").write_text(text)
        settings = {"CONTAINERS_STORAGE_CONF": str(place / "storage.conf")}
        environment = {**set_up.podman_environment(folder), **settings}
        try:
            if not set_up.is_root():
                # Borrowed images would be copied for each container, with other owners of files.
                try:
                    set_up.import_image(environment, set_up.rootfs(folder))
                except subprocess.CalledProcessError as error:
                    raise Unable(str(error)) from None
            yield settings
        finally:
            # Removes what an ordinary user could not: files of the ids in its containers.
            subprocess.run(
                ["podman", "system", "reset", "--force"],
                env=environment, capture_output=True, check=False, timeout=CLI_SECONDS,
            )  # fmt: skip
            if set_up.is_root():
                # Podman leaves its storage mounted on itself, for good.
                subprocess.run(
                    ["umount", "--lazy", str(place / "storage" / "overlay")],
                    capture_output=True, check=False,
                )  # fmt: skip


@contextmanager
def _podman(
    kind: str, folder: Path, private: Path, settings: Mapping[str, str]
) -> Iterator[Service]:
    socket = private / "podman.sock"
    environment = set_up.podman_environment(folder, "runsc" if kind == "runsc" else "runc")
    environment |= settings
    url = f"unix://{socket}"
    command = ["podman", "system", "service", "--time=0", url]
    with _process(command, environment, kind) as (process, logs):
        _await_socket(socket, process, logs)
        environment |= {"PODBOT_ENGINE_SOCKET": url}
        yield Service(kind, url, set_up.IMAGE, environment, logs, process.pid)


@contextmanager
def _docker(kind: str, folder: Path, private: Path) -> Iterator[Service]:
    programs = folder / "docker" / "root" / "usr"
    socket = private / "docker.sock"
    url = f"unix://{socket}"
    # Older Debian packages of Docker come without the plugins that newer ones look for at home.
    environment = {
        **set_up.podman_environment(folder),
        "PATH": f"{programs}/bin:{programs}/sbin:{set_up.search_path()}",
        "DOCKER_HOST": url,
        "PODBOT_ENGINE_SOCKET": url,
    }
    command = [
        "dockerd", "--host", url, "--data-root", str(folder / "docker" / "data"),
        "--exec-root", str(private / "exec"), "--pidfile", str(private / "pid"),
        "--storage-driver=overlay2", "--exec-opt=native.cgroupdriver=cgroupfs",
        # No bridge: it would change the machine's firewall. Tests of the network use Podman.
        "--bridge=none", "--iptables=false", "--ip6tables=false",
    ]  # fmt: skip
    (folder / "docker").mkdir(exist_ok=True)
    with (folder / "docker" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # its data folder serves one daemon at a time
        with _process(command, environment, kind) as (process, logs):
            _await_socket(socket, process, logs)
            service = Service(kind, url, set_up.IMAGE, environment, logs, process.pid)
            _import_for_docker(service, folder)
            yield service


def _import_for_docker(service: Service, folder: Path) -> None:
    base = set_up.base_name()
    try:
        if not service.cli("images", "--quiet", base).strip():
            service.cli("import", str(set_up.rootfs(folder)), base)
        for name in (set_up.IMAGE, set_up.DEFAULT_IMAGE):
            service.cli("tag", base, name)
    except AssertionError as error:
        raise Unable(" ".join(str(error).split())[-300:]) from None


@contextmanager
def _process(
    command: list[str], environment: Mapping[str, str], kind: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A service with a log; it is told to end, and killed if it does not."""
    log = logs() / f"{kind}-{uuid.uuid4().hex[:4]}.log"
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        raise Unable(f"{command[0]} is not installed")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, *command[1:]],
            env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            cwd=log.parent,  # conmon drops a note there when a container runs out of memory
        )  # fmt: skip
    try:
        yield process, log
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.wait()


def _await_socket(socket: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not listens(str(socket)):  # a socket has its name a moment before it can be used
        if process.poll() is not None or time.monotonic() > deadline:
            told = " ".join(log.read_text(errors="replace").split())[-300:]
            raise Unable(f"the service did not come up: {told}")
        time.sleep(0.02)
