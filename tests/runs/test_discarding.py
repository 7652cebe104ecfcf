"""Throwing a run away, by the command or the library: nothing of it is left, not even by a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_runs import PODBOT, ran, workplace

from podbot.changes.applying import undo
from podbot.changes.applying.apply import apply
from podbot.changes.capture import capture
from podbot.config import places
from podbot.review import Review
from podbot.runs import records
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer

EDITS = "echo new > added; rm -r old; echo more >> numbers"


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def applied(project: Path) -> str:
    """A run whose changes the host has."""
    id = ran(project, EDITS)
    apply(capture(layer_of(id)))
    return id


def layer_of(id: str) -> Layer:
    layer = layers.get(id)
    assert layer is not None
    return layer


def left_of(id: str) -> list[str]:
    """Every file and folder of podbot's that has an id in its name."""
    return [
        os.path.join(where, name)
        for place in (layers.place(), places.state_place())
        for where, *names in os.walk(place)
        for some in names
        for name in some
        if id in name
    ]


def by_library(id: str) -> None:
    layer_of(id).discard()


def by_command(id: str) -> None:
    Review(records.find(id)).discard()


@pytest.mark.parametrize("discard", [by_library, by_command])
def test_a_discard_leaves_neither_record_nor_journal(
    project: Path, discard: Callable[[str], None]
) -> None:
    id, other = applied(project), ran(project, "echo y > y")
    assert len(left_of(id)) > 2

    discard(id)

    assert left_of(id) == []
    assert (project / "added").read_text() == "new\n"
    assert [entry.id for entry in records.entries()] == [other]


def test_a_layer_of_which_nothing_is_known_needs_no_books(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = ran(project, EDITS)
    records.remove(id)
    monkeypatch.setattr(undo, "forget", lambda *_: pytest.fail("there is nothing to forget"))

    layer_of(id).discard()

    assert left_of(id) == []


@pytest.mark.parametrize(
    "call",
    [
        "podbot.changes.applying.recovery.at_work",
        "podbot.changes.applying.journal.Journal.remove",
        "podbot.runs.records.remove",
        "podbot.sandbox.layers.remove",
    ],
)
def test_a_discard_that_is_killed_is_finished_by_gc(project: Path, call: str) -> None:
    id = applied(project)
    module, _, name = call.rpartition(".")
    program = (
        "import os, pkgutil, signal, sys\n"
        f"where = pkgutil.resolve_name({module!r})\n"
        f"setattr(where, {name!r}, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))\n"
        "from podbot.sandbox import layers\n"
        "layers.get(sys.argv[1]).discard()"
    )
    done = subprocess.run([sys.executable, "-c", program, id], check=False)
    assert done.returncode == -signal.SIGKILL
    assert left_of(id) != []
    whole = layers.get(id) is not None
    assert whole == (call.endswith("at_work"))

    assert subprocess.run([*PODBOT, "gc"], capture_output=True, check=False).returncode == 0

    if whole:  # nothing was done yet
        layer_of(id).discard()
    assert left_of(id) == []


def test_going_on_in_a_run_that_is_applied_leaves_it_to_be_undone(project: Path) -> None:
    before = sorted(path.name for path in project.iterdir())
    id = applied(project)

    for more in ("true", "rm -rf added; git checkout . 2>/dev/null; true"):
        done = subprocess.run(
            [*PODBOT, "run", "--in", id, "--keep", "--", "sh", "-c", more],
            capture_output=True, text=True, check=False, cwd=project,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert len(undo.applications(id)) == 1

    assert subprocess.run([*PODBOT, "changes", "undo", id], check=False).returncode == 0
    assert sorted(path.name for path in project.iterdir()) == before


def test_gc_forgets_the_record_of_a_load_that_was_killed(project: Path, tmp_path: Path) -> None:
    id, file = ran(project, EDITS), str(tmp_path / "work.tar")
    assert subprocess.run([*PODBOT, "changes", "save", id, file], check=False).returncode == 0
    layer_of(id).discard()
    program = (
        "import os, signal, sys\n"
        "from podbot.sandbox import layers\n"
        "layers.complete = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from podbot.cli import main\n"
        "main(['changes', 'load', sys.argv[1], '--as-saved'])"
    )
    assert subprocess.run([sys.executable, "-c", program, file], check=False).returncode < 0
    assert len([*(places.state_place() / "runs").iterdir()]) == 1

    assert subprocess.run([*PODBOT, "gc"], capture_output=True, check=False).returncode == 0

    assert [*(places.state_place() / "runs").iterdir()] == []
    assert layers.entries() == []
