"""A privileged container, asked for by name: root inside, and nothing of it is left."""

from __future__ import annotations

import json

import pytest
from services import Service

import podbot.sandbox
from podbot.prompt import Prompt
from podbot.prompt.builtins.podman import PodmanShellSection
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session

pytestmark = [pytest.mark.e2e, pytest.mark.podman]

SCRIPT = """
id -u; grep CapEff /proc/self/status
mount -t tmpfs none /mnt && echo mounted
mkdir -p deep/er && echo made > deep/er/file && cat deep/er/file
"""


@pytest.mark.engines("rootful", "rootless")  # Docker asks for more than root may have
def test_a_privileged_shell_is_root_inside_and_leaves_nothing(service: Service) -> None:
    session = Session(bus=InProcessEventBus())
    section = PodmanShellSection(image=service.image, privileged=True)
    prompt = Prompt(ns="tests", key="privileged", sections=[section])
    try:
        result = prompt.call("podman_shell", {"action": "exec", "command": SCRIPT}, session=session)
        assert result.success, result
        said = result.value.stdout.split()
        assert said[0] == "0" and int(said[2], 16) & 1 << 21, "root with CAP_SYS_ADMIN"
        assert said[3:] == ["mounted", "made"]
        name = result.value.container_name
        (shown,) = json.loads(service.cli("inspect", name))
        assert shown["HostConfig"]["Privileged"]
        assert shown["HostConfig"]["NetworkMode"] == "none"
    finally:
        section.close()
    assert name not in service.cli("ps", "--all", "--format", "{{.Names}}").split()


@pytest.mark.engines("rootful", "rootless")
def test_without_a_word_it_is_nobody(service: Service) -> None:
    session = Session(bus=InProcessEventBus())
    section = PodmanShellSection(image=service.image)
    prompt = Prompt(ns="tests", key="plain", sections=[section])
    try:
        result = prompt.call("podman_shell", {"action": "exec", "command": "id -u; grep CapEff "
                             "/proc/self/status"}, session=session)  # fmt: skip
        assert result.value.stdout.split() == ["65534", "CapEff:", "0" * 16]
    finally:
        section.close()


@pytest.mark.engines("rootful", "rootless")
def test_root_of_a_privileged_container_runs_commands_as_anybody(service: Service) -> None:
    with podbot.sandbox.open(
        "container", engine=service.url, image=service.image, privileged=True
    ) as sandbox:
        script = "id -u; id -g; id -G; exit 3"
        done = sandbox.exec(["sh", "-c", script], user="1234:2345", cwd="/")
        assert (done.stdout.split(), done.exit_code) == (["1234", "2345", "2345"], 3)
        done = sandbox.exec(["sh", "-c", "echo $HOME; id -un"], user="nobody", cwd="/")
        assert done.stdout.split() == ["/nonexistent", "nobody"]
        assert sandbox.exec(["sleep", "600"], user=1234, cwd="/", timeout=0.5).timed_out
