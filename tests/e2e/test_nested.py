"""Containers inside a sandbox, by an inner Podman, without anything of the host's engine.

Both ways: with no capability added (``nested = "rootless"``), and with SYS_ADMIN.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from screen import PODBOT, until
from services import Service

from podbot import engine
from podbot.engine import SandboxSettings, agent_profile
from podbot.engine.profiles import Nested

pytestmark = [pytest.mark.e2e, pytest.mark.podman, pytest.mark.engines("rootful")]

SYS_ADMIN = 1 << 21
HOMES = {"0": "/root", "1000": "/home/agent"}
INNER = "localhost/inner:latest"
# Says that it is there, as an agent would, and then waits for work.
STUB = "echo stub agent ready; exec sleep infinity"


@dataclass(frozen=True)
class Outer:
    """A sandbox that may have containers in it."""

    name: str
    service: Service
    nested: Nested

    def run(self, *words: str, stdin: bytes = b"", user: str = "0") -> str:
        """What a command inside says, by the public command."""
        done = subprocess.run(
            [*PODBOT, "exec", self.name, f"--user={user}", "--", *words],
            input=stdin, capture_output=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode()

    def podman(self, *words: str, stdin: bytes = b"", user: str = "0") -> str:
        """What the inner Podman says."""
        return self.run("env", f"HOME={HOMES[user]}", "podman", *words, stdin=stdin, user=user)


@contextmanager
def opened(service: Service, image: str, workspace: Path, nested: Nested) -> Iterator[Outer]:
    """An agent's container with a stub in the place of the agent."""
    workspace.chmod(0o777)
    profile = agent_profile(SandboxSettings(nested=nested))
    for device in profile.devices:
        if not os.access(device.path, os.W_OK):
            pytest.skip(f"{device.path} is not writable")
    spec = engine.ContainerSpec(
        image,
        ("sh", "-c", STUB),
        profile=profile,
        name=f"e2e-{uuid.uuid4().hex[:8]}",
        mounts=(engine.BindMount(str(workspace), "/workspace"),),
    )
    with engine.connect() as podman:
        made = podman.containers.create(spec)
        try:
            podman.containers.start(made.id)
            assert spec.name is not None
            yield Outer(spec.name, service, nested)
        finally:
            podman.containers.remove(made.id)


def tiny_root() -> bytes:
    """A root with one static program."""
    program = shutil.which("busybox")
    assert program is not None
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(program, "bin/busybox")
    return out.getvalue()


@pytest.mark.parametrize(
    "nested, user", [("rootless", "0"), ("rootless", "1000"), ("sys_admin", "0")]
)
def test_a_container_runs_inside_a_sandbox(
    service: Service, agent_image: str, tmp_path: Path, nested: Nested, user: str
) -> None:
    (tmp_path / "from-outside").write_text("seen\n")
    with opened(service, agent_image, tmp_path, nested) as outer:
        until(lambda: "stub agent ready" in service.cli("logs", outer.name), 180)
        if user != "0":
            outer.run("chmod", "666", "/dev/fuse", "/dev/net/tun")  # the container's own nodes
        outer.podman("import", "-", INNER, stdin=tiny_root(), user=user)

        script = "id -u; cat /work/from-outside; echo made >/work/from-inside"
        told = outer.podman(
            "run", "--rm", "--volume=/workspace:/work", INNER, "/bin/busybox", "sh", "-c", script,
            user=user,
        )  # fmt: skip

        assert told.split() == ["0", "seen"]
        assert (tmp_path / "from-inside").read_text() == "made\n"
        # Neither engine knows of what the other has.
        assert outer.podman("ps", "--all", "--quiet", user=user) == ""
        assert INNER in outer.podman("images", "--format={{.Repository}}:{{.Tag}}", user=user)
        assert INNER not in service.cli("images", "--format={{.Repository}}:{{.Tag}}")


@pytest.mark.parametrize("nested", ["rootless", "sys_admin"])
def test_the_hosts_engine_cannot_be_reached_from_inside(
    service: Service, agent_image: str, tmp_path: Path, nested: Nested
) -> None:
    with opened(service, agent_image, tmp_path, nested) as outer:
        assert may_be_admin(outer) == (nested == "sys_admin")

        sockets = outer.run("sh", "-c", "find / -xdev -type s 2>/dev/null; cat /proc/net/unix")

        assert "podman.sock" not in sockets and "docker.sock" not in sockets
        environment = outer.run("env")
        assert "CONTAINER_HOST" not in environment and "DOCKER_HOST" not in environment
        inner = json.loads(outer.podman("info", "--format=json"))
        assert inner["store"]["containerStore"]["number"] == 0


def may_be_admin(outer: Outer) -> bool:
    """Whether any process in it could have SYS_ADMIN."""
    status = outer.run("cat", "/proc/1/status")
    bounding = next(line for line in status.splitlines() if line.startswith("CapBnd"))
    return bool(int(bounding.split()[1], 16) & SYS_ADMIN)
