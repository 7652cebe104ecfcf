"""`podbot image build` and `list` against real engines, with no registry anywhere."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from screen import PODBOT, until
from services import Service

from podbot.engine.image.recipes import AGENTS

pytestmark = [pytest.mark.e2e, pytest.mark.podman]


@pytest.fixture
def tag(service: Service) -> Iterator[str]:
    """A name for an image of one test."""
    name = f"localhost/podbot-e2e-{uuid.uuid4().hex[:8]}:latest"
    yield name
    service.cli("rmi", "--force", name, check=False)


def podbot(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*PODBOT, *words], capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def inside(service: Service, image: str, script: str, *options: str) -> str:
    """What a script says in a container of an image, as nobody, with nothing."""
    return service.cli(
        "run", "--rm", "--network=none", "--read-only", "--user=65534:65534", "--cap-drop=all",
        *options, image, "sh", "-c", script,
    )  # fmt: skip


@pytest.mark.engines("rootful", "rootless", "docker")
@pytest.mark.parametrize("source", ["debian", "scratch"])
def test_the_small_image_has_what_tools_need(service: Service, tag: str, source: str) -> None:
    done = podbot("image", "build", "--small", f"--from={source}", f"--tag={tag}", "--json")

    made = json.loads(done.stdout)
    assert made["variant"] == "tools" and tag in made["names"] and made["current"]
    assert "building" in done.stderr or "importing" in done.stderr
    script = (
        "python3 -c 'import json, ssl, ctypes; print(6 * 7)' && git --version >&2 && pwd && id -u"
    )
    assert inside(service, tag, script).split() == ["42", "/workspace", "65534"]
    listed = json.loads(podbot("image", "list", "--json").stdout)["images"]
    assert any(tag in image["names"] and image["from"] == source for image in listed)
    assert tag in podbot("image", "list").stdout


def test_a_build_on_a_base_that_is_not_debian_says_so(service: Service, tag: str) -> None:
    podbot("image", "build", "--small", "--from=scratch", f"--tag={tag}")
    failed = podbot("image", "build", "--small", f"--from={tag}", "--tag=localhost/x", code=2)

    assert "not Debian" in failed.stderr
    assert "remedy:" in failed.stderr


def test_an_image_that_nobody_serves_says_how_to_make_one(service: Service) -> None:
    failed = podbot("image", "build", "--small", "--from=localhost:1/no/such:image", code=2)

    assert "localhost:1/no/such:image" in failed.stderr
    assert "podbot image build" in failed.stderr


def roots(folder: Path, name: str) -> list[Path]:
    """What a bootstrap works on, wherever below a temporary folder."""
    return [*folder.glob(name), *folder.glob(f"*/{name}")]


@pytest.mark.engines("rootful")
def test_an_interrupted_bootstrap_leaves_nothing(service: Service, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [*PODBOT, "image", "build", "--small", "--fresh", "--tag=localhost/never"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            until(lambda: roots(tmp_path, "mmdebstrap*/usr"), 300)
        except AssertionError:
            process.kill()
            raise
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does

        assert process.wait(180) == 130
    assert roots(tmp_path, "mmdebstrap*") == []
    assert "localhost/never" not in service.cli("images", "--all")
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.engines("rootful")
def test_an_interrupted_build_leaves_nothing(service: Service, agent_image: str) -> None:
    # By a service of podbot's own, which ends with it: nobody else would tidy up.
    silent = socket.create_server(("127.0.0.1", 0))  # a registry that never answers
    registry = f"http://127.0.0.1:{silent.getsockname()[1]}"
    environment = {**os.environ, "NPM_CONFIG_REGISTRY": registry}
    del environment["PODBOT_ENGINE_SOCKET"]
    command = ["image", "build", "--with=opencode", "--network=host", "--tag=localhost/never"]
    process = subprocess.Popen(
        [*PODBOT, *command],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    silent.settimeout(600)
    with silent, process:
        try:
            with silent.accept()[0]:
                process.send_signal(signal.SIGINT)
                assert process.wait(180) == 130
        finally:
            process.kill()  # else a build that waits for ever is waited for
    until(lambda: "working-container" not in service.cli("ps", "--all", "--external"))
    assert "localhost/never" not in service.cli("images", "--all")


@pytest.mark.engines("rootful")
def test_the_large_image_has_what_agents_need(service: Service, agent_image: str) -> None:
    script = """
    set -e
    podman --version; fuse-overlayfs --version | head -1; slirp4netns --version | head -1
    git --version; node --version; npm --version; codex --version
    python3 -c 'import sys, venv; assert sys.version_info >= (3, 10)'
    stat -c %a /usr/local/bin/podbot-askpass; echo $GIT_ASKPASS
    """
    told = service.cli("run", "--rm", "--network=none", agent_image, "sh", "-c", script)

    assert f"codex-cli {AGENTS['codex'].version}" in told
    assert "755\n/usr/local/bin/podbot-askpass" in told
    listed = json.loads(podbot("image", "list", "--json").stdout)["images"]
    made = next(image for image in listed if agent_image in image["names"])
    assert made["agents"] == [f"codex@{AGENTS['codex'].version}"]
    assert made["variant"] == "sandbox"


@pytest.mark.engines("rootful")
def test_git_gets_the_token_that_is_mounted_at_the_moment(
    service: Service, agent_image: str, tmp_path: Path
) -> None:
    (tmp_path / "ghapp_token").write_text("first\n")
    script = "$GIT_ASKPASS \"Username for 'https://example.org':\"; $GIT_ASKPASS Password"
    mount = f"--volume={tmp_path}:/run/secrets:ro"

    told = service.cli("run", "--rm", "--network=none", mount, agent_image, "sh", "-c", script)
    assert told.split() == ["x-access-token", "first"]

    (tmp_path / "new").write_text("second\n")
    (tmp_path / "new").rename(tmp_path / "ghapp_token")
    told = service.cli("run", "--rm", "--network=none", mount, agent_image, "sh", "-c", script)
    assert told.split() == ["x-access-token", "second"]
    refused = service.cli(
        "run", "--rm", "--network=none", agent_image, "sh", "-c", "$GIT_ASKPASS Password || echo no"
    )
    assert refused.split() == ["no"]
