"""The nine tools in a container: the very tests of the other backends, and what is Podman's own."""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from services import Service

sys.path.append(str(Path(__file__).parents[1] / "tools"))
pytest.register_assert_rewrite(
    "command_behaviour", "file_behaviour", "session_behaviour", "workplace"
)

from section_behaviour import CommandToolBehaviour  # noqa: E402 - found by the line above
from workplace import Place, wait_for  # noqa: E402 - likewise

import podbot  # noqa: E402 - likewise
from podbot.prompt import Prompt  # noqa: E402 - likewise
from podbot.prompt.builtins.podman import PodmanShellSection  # noqa: E402 - likewise
from podbot.runtime.events import InProcessEventBus  # noqa: E402 - likewise
from podbot.runtime.session import Session  # noqa: E402 - likewise
from podbot.tools import HostMount  # noqa: E402 - likewise
from podbot.tools.podman import (  # noqa: E402 - likewise
    PodmanSandboxConfig,
    PodmanSandboxSection,
)

pytestmark = [pytest.mark.e2e, pytest.mark.podman]


class TestPodman(CommandToolBehaviour):
    sees_workspace_path = True

    @pytest.fixture(autouse=True)
    def engine(self, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.service = service
        monkeypatch.setenv("PODBOT_CACHE", str(tmp_path / "cache"))

    def make_section(self, session: Session, **config: Any) -> PodmanSandboxSection:
        chosen = PodmanSandboxConfig(image=self.service.image, **config)
        return PodmanSandboxSection(session=session, config=chosen)

    # What only a container can show

    def test_the_container_is_as_the_contract_says(self, place: Place) -> None:
        place.ok("ls")
        name = f"wink-{place.session.session_id}"
        assert place.workspace.container_name == name
        (shown,) = json.loads(self.service.cli("inspect", name))
        assert shown["Id"] == place.workspace.container_id
        host = shown["HostConfig"]
        assert host["NetworkMode"] == "none"
        assert host["ReadonlyRootfs"] and not host["Privileged"]
        told = {each.name: each.by for each in place.sandbox.guarantees}
        if host["Memory"]:
            assert host["Memory"] == host["MemorySwap"] == 1024**3
            assert host["CpuQuota"] == host["CpuPeriod"] == 100_000 or host["NanoCpus"] == 10**9
            assert host["PidsLimit"] > 0
        else:  # a rootless engine on old control groups: never without a word
            assert self.service.rootless and "control groups" in told["limit.cpu"]
        assert not shown["EffectiveCaps"]
        assert any("no-new-privileges" in option for option in host["SecurityOpt"])
        assert any(label.startswith("podbot") for label in shown["Config"]["Labels"])
        (mount,) = [each for each in shown["Mounts"] if each["Destination"] == "/workspace"]
        assert mount["Source"] == place.workspace.overlay_path

    def test_inside_nobody_is_root_and_the_workspace_is_theirs(self, place: Place) -> None:
        done = place.shell(
            "id -u; stat -c %u /workspace; touch /etc/x; grep CapEff /proc/self/status"
        )
        user, owner, capabilities = done.stdout.split("\n")[:3]
        assert user == owner == "65534"
        assert "Read-only file system" in done.stderr
        assert capabilities.split()[1].strip("0") == ""
        assert (Path(place.workspace.overlay_path)).stat().st_uid in (65534, os.getuid())

    def test_there_is_no_network(self, place: Place) -> None:
        code = (
            "import socket\nfound = []\n"
            "for kind, address in (('TCP', ('192.0.2.1', 80)), ('UDP', ('192.0.2.1', 53)),\n"
            "                      ('TCP', ('169.254.169.254', 80))):\n"
            "    how = socket.SOCK_STREAM if kind == 'TCP' else socket.SOCK_DGRAM\n"
            "    try:\n"
            "        socket.socket(socket.AF_INET, how).connect(address); found.append(address)\n"
            "    except OSError: pass\n"
            "try: socket.getaddrinfo('example.org', 80); found.append('dns')\n"
            "except OSError: pass\n"
            "found, sorted(name for _, name in socket.if_nameindex())"
        )
        assert place.ok("evaluate_python", code=code).value_repr == "([], ['lo'])"

    def test_closing_removes_the_container(self, place: Place) -> None:
        place.ok("ls")
        container = place.workspace.container_id
        assert container in self.service.containers()
        place.section.close()
        assert container not in self.service.containers()

    def test_collecting_removes_the_container(self, session: Session) -> None:
        place = Place(session, self.make_section(session))
        place.ok("ls")
        container = place.workspace.container_id
        del place
        gc.collect()
        assert container not in self.service.containers()

    def test_the_exit_of_the_interpreter_removes_the_container(self) -> None:
        program = textwrap.dedent("""\
            import sys
            from podbot.prompt import Prompt
            from podbot.runtime.events import InProcessEventBus
            from podbot.runtime.session import Session
            from podbot.tools import PodmanSandboxConfig, PodmanSandboxSection, PodmanWorkspace

            session = Session(bus=InProcessEventBus())
            config = PodmanSandboxConfig(image=sys.argv[1])
            section = PodmanSandboxSection(session=session, config=config)
            prompt = Prompt(ns="a", key="b", sections=[section])
            assert prompt.call("shell_execute", {"command": ["true"]}).success
            print(session.query(PodmanWorkspace).latest().container_id)
            """)
        done = subprocess.run(
            [sys.executable, "-c", program, self.service.image],
            capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
        assert done.stdout.strip()
        assert done.stdout.strip() not in self.service.containers()

    def test_edits_survive_a_restart_of_the_session(self, session: Session) -> None:
        place = Place(session, self.make_section(session))
        place.ok("write_file", file_path="kept.txt", content="kept")
        place.shell("echo by hand > made-inside.txt")
        first = place.workspace
        place.section.close()
        taken_up = Session(bus=InProcessEventBus(), session_id=session.session_id)
        again = Place(taken_up, self.make_section(taken_up))
        assert again.ok("read_file", file_path="kept.txt").content == "   1 | kept"
        again.ok("edit_file", file_path="made-inside.txt", old_string="by", new_string="with")
        assert again.workspace.overlay_path == first.overlay_path
        assert again.workspace.container_id != first.container_id
        again.section.close()

    def test_a_container_that_was_killed_is_made_anew(self, place: Place) -> None:
        place.ok("write_file", file_path="kept.txt", content="kept")
        container = place.workspace.container_id
        self.service.cli("kill", container)
        wait_for(lambda: container not in self.service.containers("status=running"))
        assert not place.call("shell_execute", command=["true"]).success  # said once
        assert place.ok("read_file", file_path="kept.txt").total_lines == 1
        assert place.workspace.container_id != container

    def test_a_container_nobody_uses_is_stopped_and_comes_back(self, session: Session) -> None:
        place = Place(session, self.make_section(session, idle_seconds=0.5))
        place.ok("write_file", file_path="kept.txt", content="kept")
        container, used = place.workspace.container_id, place.workspace.last_used_at
        wait_for(lambda: place.workspace.container_id == "")
        assert container not in self.service.containers()
        assert place.workspace.last_used_at == used
        assert place.ok("read_file", file_path="kept.txt").total_lines == 1
        assert place.workspace.container_id not in ("", container)
        place.section.close()

    def test_a_session_that_is_taken_up_again_knows_the_files_that_were_kept(
        self, session: Session, tmp_path: Path
    ) -> None:
        (tmp_path / "host").mkdir()
        (tmp_path / "host" / "a.txt").write_text("from the host")
        mounts = {"mounts": (HostMount("host"),), "allowed_host_roots": (tmp_path,)}
        place = Place(session, self.make_section(session, **mounts))
        place.shell("printf 'made by it' > mine.txt; printf changed > host/a.txt")
        place.section.close()
        (tmp_path / "host" / "a.txt").write_text("another")
        taken_up = Session(bus=InProcessEventBus(), session_id=session.session_id)
        again = Place(taken_up, self.make_section(taken_up, **mounts))
        kept = {"host/a.txt": "changed", "mine.txt": "made by it"}
        assert {path: file.content for path, file in again.files.items()} == kept
        assert again.shell("cat mine.txt host/a.txt").stdout == "made by itchanged"
        assert {path: file.content for path, file in again.files.items()} == kept
        again.section.close()

    def test_the_folder_a_command_ran_in_is_what_pwd_says(self, place: Place) -> None:
        place.shell("mkdir sub")
        done = place.shell("pwd")
        assert done.cwd == done.stdout.strip() == "/workspace"
        done = place.shell("pwd", cwd="sub")
        assert done.cwd == done.stdout.strip() == "/workspace/sub"
        assert place.shell("pwd", cwd=done.cwd).stdout == done.stdout

    def test_ps_shows_the_session_it_works_for(self, place: Place) -> None:
        place.ok("ls")
        program = [sys.executable, "-c", "from podbot.cli import main; main()", "ps"]
        said = subprocess.run(program, capture_output=True, text=True, timeout=300, check=True)
        head, *lines = said.stdout.splitlines()
        (line,) = [each for each in lines if f"wink-{place.session.session_id} " in each]
        at = head.index("SESSION")
        assert line[at:].split()[0] == place.session.session_id

    def test_an_image_that_is_nowhere_is_a_failing_result(self, session: Session) -> None:
        config = PodmanSandboxConfig(image="localhost/no-such-image:latest")
        place = Place(session, PodmanSandboxSection(session=session, config=config))
        message = place.fails("ls")
        assert "no-such-image" in message and "podbot image build" in message
        place.section.close()


class TestPodmanShell:
    """`podman_shell` in a real container."""

    def test_a_container_from_start_to_stop(self, service: Service) -> None:
        session = Session(bus=InProcessEventBus())
        section = PodmanShellSection(image=service.image, environment={"GIVEN": "yes"})
        prompt = Prompt(ns="a", key="b", sections=[section])

        def call(action: str, **more: object) -> Any:
            return prompt.call("podman_shell", {"action": action, **more}, session=session)

        name = f"wai-shell-{session.session_id}"
        assert call("start").success
        assert service.containers(f"name={name}")
        done = call("exec", command="echo $GIVEN; id -u; pwd; echo x > file").value
        assert done.stdout == "yes\n65534\n/workspace\n"
        failed = call("exec", command="cat file; ls /nothing; exit 4")
        assert not failed.success and failed.value.exit_code == 4
        assert failed.value.stdout == "x\n" and "/nothing" in failed.value.stderr
        assert call("stop").success
        assert not service.containers(f"name={name}")
        assert call("stop").success
        assert call("exec", command="ls").value.stdout == ""  # a new one, and empty
        section.close()
        assert not service.containers(f"name={name}")

    def test_the_exit_of_the_interpreter_stops_the_container(self, service: Service) -> None:
        script = textwrap.dedent(
            f"""
            from podbot.prompt import Prompt
            from podbot.prompt.builtins.podman import PodmanShellSection
            from podbot.runtime.events import InProcessEventBus
            from podbot.runtime.session import Session

            section = PodmanShellSection(image={service.image!r})
            prompt = Prompt(ns="a", key="b", sections=[section])
            session = Session(bus=InProcessEventBus())
            started = prompt.call("podman_shell", {{"action": "start"}}, session=session)
            print(started.value.container_name)
            """
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        name = done.stdout.strip()
        assert name.startswith("wai-shell-"), done
        wait_for(lambda: not service.containers(f"name={name}"))

    def test_a_container_whose_time_is_up_is_removed(self, service: Service) -> None:
        session = Session(bus=InProcessEventBus())
        section = PodmanShellSection(image=service.image, timeout=timedelta(seconds=1))
        prompt = Prompt(ns="a", key="b", sections=[section])
        result = prompt.call(
            "podman_shell", {"action": "exec", "command": "sleep 60"}, session=session
        )
        assert not result.success
        wait_for(lambda: not service.containers(f"name=wai-shell-{session.session_id}"))
        section.close()


AGENT = """\
import json, os, socket
from podbot.prompt import Prompt
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.tools import UnsafeLocalSandboxSection

session = Session(bus=InProcessEventBus())
section = UnsafeLocalSandboxSection(session=session)
with Prompt(ns="a", key="b", sections=[section]) as prompt:
    prompt.call("write_file", {"file_path": "run.sh", "content": "#!/bin/sh\\necho ran\\n"})
    script = "chmod +x run.sh; ./run.sh; id -u; touch /etc/x || touch /app/x || echo closed"
    script += "; ls /sys/class/net"
    done = prompt.call("shell_execute", {"command": ["sh", "-c", script]}).value
    value = prompt.call("evaluate_python", {"code": "6 * 7"}).value.value_repr
status = open("/proc/self/status").read()
print(json.dumps([done.stdout, value, status, os.listdir("/tmp")]))
"""


def block(language: str, begin: str) -> str:
    """The block in a language on the page about sections that begins so."""
    page = (Path(__file__).parents[2] / "docs" / "sections.md").read_text()
    pattern = rf"^```{language}\n({begin}.*?)^```$"
    (found,) = re.findall(pattern, page, re.DOTALL | re.MULTILINE)
    return found


def test_what_must_isolate_the_local_section_does(service: Service, tmp_path: Path) -> None:
    """The Dockerfile and the run line of docs/sections.md, with an image that is here."""
    lines = block("dockerfile", "FROM").splitlines()
    assert lines[0].startswith("FROM ") and "pip install" in lines[2]
    lines[0] = f"FROM {service.image}"
    lines[2] = "COPY podbot /usr/lib/python3/dist-packages/podbot"
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    (tmp_path / "agent.py").write_text(AGENT)
    package = Path(podbot.__file__).parent
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, tmp_path / "podbot", ignore=ignore)
    name = f"localhost/podbot-e2e-agent:{service.run}"
    service.cli("build", "--network=none", "--tag", name, str(tmp_path))
    try:
        words = shlex.split(block("sh", "docker run").replace("\\\n", " "))
        assert words[0] == "docker" and words[-1] == "my-agent"
        out, value, status, left = json.loads(service.cli(*words[1:-1], name).splitlines()[-1])
    finally:
        service.cli("rmi", "--force", name)
    assert out.split() == ["ran", "1000", "closed", "lo"]
    assert value == "42"
    facts = dict(line.split(":", 1) for line in status.splitlines())
    assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0
    assert facts["NoNewPrivs"].strip() == "1"
    assert left == []  # the workspace went with the section
