"""The library tells how far it is, to whoever listens and to nobody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from trees import worked_on

from podbot.changes import progress
from podbot.changes.applying import _locks
from podbot.changes.applying.apply import apply
from podbot.changes.applying.undo import undo
from podbot.changes.progress import Step
from podbot.cli.progress import Progress

pytestmark = pytest.mark.usefixtures("own_state")

COUNT = 3 * progress.EVERY


def test_applying_and_undoing_tell_how_many_of_how_many(target: Path) -> None:
    changes, _ = worked_on(target, [("write", f"file{n}", "text") for n in range(COUNT)])
    steps: list[Step] = []
    with progress.listening(steps.append):
        applied = apply(changes)
        undo(applied.id)
    apply(changes)  # nobody listens any more
    told = {(step.doing, step.done, step.total) for step in steps}
    for doing in ("applying", "taking back"):
        assert (doing, progress.EVERY, COUNT) in told
        assert (doing, 2 * progress.EVERY, COUNT) in told
    assert len(steps) < COUNT


def test_items_are_the_same_whether_anyone_listens_or_not() -> None:
    items = list(range(COUNT + 1))
    assert list(progress.counted(items, "counting")) == items
    with progress.listening(lambda step: None):
        assert list(progress.counted(items, "counting")) == items


def test_who_waits_is_told_for_whom_in_a_pipe_too(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_locks, "PATIENCE", 0)
    hold = (
        "import sys; from podbot.changes.applying import _locks\n"
        "with _locks.held(sys.argv[1:], 'applying', 'run-1'):\n"
        "    print('held', flush=True); sys.stdin.readline()"
    )
    argv = [sys.executable, "-c", hold, str(target)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        with Progress("undoing") as shown:
            hear = shown._hear

            def let_go(step: Step) -> None:
                hear(step)
                assert holder.stdin is not None
                holder.stdin.close()

            with progress.listening(let_go), _locks.held([str(target)], "undoing"):
                pass
    told = capsys.readouterr()
    assert told.out == ""
    assert f"podbot: waiting for process {holder.pid}, which is applying run-1" in told.err
