"""`podbot run --backend container` on real engines: run, reviewed, gone on in, applied."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import own_project
from services import Service

from podbot.runs import records

pytestmark = [pytest.mark.e2e, pytest.mark.podman]

PODBOT = (sys.executable, "-m", "podbot")
SECONDS = 600


@pytest.fixture
def project() -> Iterator[Path]:
    with own_project({"notes.txt": "first\nsecond\n"}) as made:
        yield made


def podbot(project: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PODBOT, *words],
        cwd=project,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.engines("rootful", "rootless", "docker")
def test_a_command_in_a_container_is_a_run_like_any_other(service: Service, project: Path) -> None:
    box = ("run", "--backend", "podman", "--image", service.image)
    script = "cat > typed; sed -i s/first/1st/ notes.txt; pwd; echo bad >&2; exit 7"

    done = podbot(project, *box, "--name", "boxed", "--", "sh", "-c", script, stdin="in\n")

    assert (done.returncode, done.stdout) == (7, "/workspace\n"), done.stderr
    assert "bad\n" in done.stderr and "2 changes" in done.stderr
    assert (project / "notes.txt").read_text() == "first\nsecond\n"
    record = records.find("boxed").record
    assert record is not None and record.backend == "container" and record.exit_status == 7

    go_on = ("run", "--in", "boxed", "--image", service.image, "--keep", "--")
    done = podbot(project, *go_on, "sh", "-c", "cat typed >> notes.txt")
    assert done.returncode == 0, done.stderr

    assert podbot(project, "changes", "apply", "boxed").returncode == 0
    assert (project / "notes.txt").read_text() == "1st\nsecond\nin\n"
    assert (project / "typed").stat().st_uid == os.stat(project).st_uid
    assert podbot(project, "changes", "undo", "boxed").returncode == 0
    assert (project / "notes.txt").read_text() == "first\nsecond\n"
