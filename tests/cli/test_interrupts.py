"""Ctrl-C at a question and in the middle of work, and readers that go away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import PODBOT, Terminal, ran, workplace

from podbot.sandbox import layers

# A podbot to whom Ctrl-C comes at the second thing of a kind that it does to the disk.
INTERRUPTED = """
import sys
from podbot.changes.applying import journal
label, left = sys.argv[1], [2]
def step(what):
    left[0] -= what == label
    if what == label and not left[0]:
        raise KeyboardInterrupt
journal.step = step
from podbot.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def podbot(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PODBOT, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "words", [["discard", "mine"], ["discard", "mine", "other"], ["discard", "--all"]]
)
def test_ctrl_c_at_a_discard_says_that_nothing_was_done(project: Path, words: list[str]) -> None:
    ids = [ran(project, "echo 2 > numbers", name) for name in ("mine", "other")]
    terminal = Terminal([*PODBOT, "changes", *words], {"TERM": "dumb"})
    terminal.until("[y/N]")
    terminal.send("\x03")
    terminal.until("nothing was discarded\r\n")
    assert terminal.end() == 130
    assert all(layers.get(id) is not None for id in ids)


def test_ctrl_c_in_the_middle_of_an_apply_says_what_it_left(project: Path) -> None:
    ran(project, "echo 2 > numbers; echo 2 > src/app.py", "mine")
    command = [sys.executable, "-c", INTERRUPTED, "swap", "changes", "apply", "mine"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.endswith("podbot: interrupted; nothing was applied\n")
    assert (project / "src" / "app.py").read_text() == "print('old')\n"


def test_ctrl_c_in_the_middle_of_an_undo_says_what_it_left(project: Path) -> None:
    ran(project, "echo 2 > numbers; echo 2 > src/app.py", "mine")
    assert podbot("changes", "apply", "mine").returncode == 0
    command = [sys.executable, "-c", INTERRUPTED, "swap back", "changes", "undo", "mine"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.endswith("podbot: interrupted; all the same it was undone\n")
    assert (project / "src" / "app.py").read_text() == "print('old')\n"


@pytest.mark.parametrize(
    "words",
    [
        ["show", "mine"],
        ["show", "mine", "--all"],
        ["show", "mine", "--json"],
        ["diff", "mine"],
        ["diff", "mine", "--patch"],
        ["diff", "mine", "--json"],
        ["list"],
        ["list", "--json"],
    ],
)
def test_a_reader_that_goes_away_is_no_crash(project: Path, words: list[str]) -> None:
    ran(project, "seq 100000 > numbers; for n in $(seq 300); do echo $n > file$n; done", "mine")
    near, far = os.pipe()
    os.close(near)
    command = [*PODBOT, "changes", *words]
    done = subprocess.run(command, stdout=far, stderr=subprocess.PIPE, check=False)
    os.close(far)
    assert (done.returncode, done.stderr) == (1, b"")


def test_where_nobody_hears_of_an_error_its_exit_code_still_tells(project: Path) -> None:
    ran(project, "echo 2 > numbers", "mine")
    (project / "numbers").write_text("host\n")
    script = f"exec {sys.executable} -m podbot changes apply mine --json 2>&-"
    done = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["kind"] == "conflict"
