"""Containers that cannot be stopped or removed, told as data; and owners on other machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from service_of_containers import ServiceOfContainers, container, reply, running
from standin import on_port

from podbot import api, engine
from podbot.cli import gc, main
from podbot.engine import labels
from podbot.errors import ContainerError, Kind
from podbot.launch import containers
from podbot.sandbox import layers
from podbot.sandbox.container import _running as running_one


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceOfContainers]:
    with running() as made:
        monkeypatch.setenv("PODBOT_ENGINE_SOCKET", made.url)
        yield made


def another_boot() -> str:
    """The label of a process of this machine, or of one with the same id, in another boot."""
    return replace(labels.this_process(), boot="00000000-another-boot").label()


def test_stop_all_tells_what_was_stopped_and_what_was_not(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    alive = labels.owner_label()
    stuck, gone = container("stuck", alive, Created=9), container("gone", alive)
    service.containers = [stuck, gone]
    service.on(f"POST .*/{stuck['Id']}/stop", reply({"message": "it is stuck"}, 500))

    assert main(["stop", "--all", "--json"]) == 2

    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert [each["name"] for each in told["stopped"]] == ["gone"]
    ((failure),) = told["failed"]
    assert (failure["name"], failure["kind"]) == ("stuck", "engine_failed")
    assert "it is stuck" in failure["message"]
    assert "stuck" in shown.err and service.containers == [stuck]

    assert main(["stop", "--all"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "it is stuck" in shown.err


def test_stop_tells_the_name_that_was_asked_for(
    service: ServiceOfContainers, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stop", "none", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["failed"][0]["name"] == "none"
    assert told["failed"][0]["kind"] == "container_not_found"


@pytest.fixture
def dead() -> str:
    code = "from podbot.engine import labels; print(labels.owner_label())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_gc_tells_what_it_could_not_remove(
    service: ServiceOfContainers,
    dead: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(running_one, "END_SECONDS", 0.0)  # it is not tried again
    stuck = container("stuck", dead)
    service.containers = [stuck, container("left", dead)]
    service.on(f"DELETE .*/{stuck['Id']}", reply({"message": "it is stuck"}, 500))

    assert main(["gc", "--json"]) == 2

    shown = capsys.readouterr()
    told = json.loads(shown.out)
    found = {each["path"]: each["fate"] for each in told["found"] if each["kind"] == "container"}
    assert found == {"left": "removed", "stuck": "live"}
    ((failure),) = told["failed"]
    assert (failure["name"], failure["kind"]) == ("stuck", "engine_failed")
    assert "it is stuck" in failure["message"] and "it is stuck" in shown.err


def test_gc_tells_as_data_that_the_engine_could_not_be_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PODBOT_ENGINE_SOCKET", "/no/such/socket")

    assert main(["gc", "--json"]) == 2

    ((failure),) = json.loads(capsys.readouterr().out)["failed"]
    assert (failure["name"], failure["kind"]) == (None, "socket_not_found")


# Owners on machines with the same id


def test_at_a_local_engine_an_owner_from_another_boot_is_dead(
    service: ServiceOfContainers,
) -> None:
    service.containers = [container("left", another_boot())]

    assert [each.owner_state for each in api.ps()] == ["dead"]
    assert api.sweep().containers == ("left",)


def test_at_a_remote_engine_an_owner_from_another_boot_may_be_another_machines() -> None:
    stand_in = on_port()
    url = f"tcp://127.0.0.1:{stand_in.listener.getsockname()[1]}"
    service = ServiceOfContainers(stand_in, url)
    service.on(r"GET .*/info", reply({"CgroupVersion": "2"}))
    gone = replace(labels.this_process(), started=1).label()
    service.containers = [container("clone", another_boot()), container("left", gone)]
    try:
        with engine.connect(url) as found:
            assert {each.name: each.owner_state for each in api.ps(found)} == {
                "clone": "unknown", "left": "dead",
            }  # fmt: skip
            swept = api.sweep(engine=found)
    finally:
        stand_in.close()

    assert (swept.containers, swept.live) == (("left",), ("clone",))
    assert [each["Names"] for each in service.containers] == [["/clone"]]


# What to type about what was kept

LEAVES = """
import os, signal, sys
from podbot.sandbox import OverlaySandbox
sandbox = OverlaySandbox(sys.argv[1])
sandbox.write("new.txt", "written inside")
print(sandbox.layer.id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise ContainerError("none here", kind=Kind.NO_ENGINE)

    monkeypatch.setattr(containers, "connect", connect)


@pytest.mark.usefixtures("no_engine")
def test_gc_says_what_to_type_about_a_layer_that_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with tempfile.TemporaryDirectory(prefix="podbot-test-", dir="/var/tmp") as target:
        done = subprocess.run(
            [sys.executable, "-c", LEAVES, target], stdout=subprocess.PIPE, text=True, check=False
        )
        assert done.returncode == -signal.SIGKILL
        name = done.stdout.strip()
        layer = next(layer for layer in layers.found() if layer.id == name)
        deadline = time.monotonic() + 60
        while layer.live:
            assert time.monotonic() < deadline
            time.sleep(0.01)

        assert main(["gc", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["found"]
        told = next(each for each in found if Path(each["path"]).name == name)
        assert told["next"] == f"podbot changes show {told['called']}"
        assert told["called"] in name
        assert main(told["next"].split()[1:]) == 0  # and it is so
        assert "new.txt" in capsys.readouterr().out
        layer.discard()


def test_only_the_first_of_what_is_kept_has_its_command_shown() -> None:
    lines = [
        gc.Line("kept", "layer", f"/x/{name}", next=f"podbot changes show {name}")
        for name in ("one", "two")
    ]

    shown = gc.table(lines, dry_run=False).splitlines()

    assert shown[-1] == (
        "next: podbot changes show one; "
        "then `podbot changes apply one` or `podbot changes discard one`"
    )
    assert os.linesep.join(shown).count("next:") == 1
