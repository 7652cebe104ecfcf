"""Who writes into a target has it alone, with real processes: each for its own, nested ones not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podbot.changes import progress
from podbot.changes.applying import _locks, journal
from podbot.changes.applying.apply import apply
from podbot.changes.applying.recovery import put_right, recover
from podbot.changes.applying.undo import undo
from podbot.changes.capture import capture
from podbot.changes.model import ChangeSet
from podbot.config import places
from podbot.errors import ChangesError, Kind
from podbot.sandbox.overlay.launcher import OverlaySandbox

pytestmark = pytest.mark.usefixtures("own_state")

HOLD = """
import sys
from podbot.changes.applying import _locks
with _locks.held(sys.argv[1:], "applying", "run-1"):
    print("held", flush=True)
    sys.stdin.readline()
"""

# Applies a layer, and stops when half of it is done.
APPLY = """
import sys
from podbot.changes.applying import journal
from podbot.changes.applying.apply import apply
from podbot.changes.capture import capture
from podbot.sandbox import layers

def stop(label):
    if label == "finish a folder":
        print("half done", flush=True)
        sys.stdin.readline()
        journal.step = lambda label: None

journal.step = stop
apply(capture(layers.get(sys.argv[1])))
"""


@contextmanager
def another(script: str, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Another podbot that has come to where it waits to be told to go on."""
    argv = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            assert child.stdout.readline() in ("held\n", "half done\n")
            yield child
            if child.poll() is None:
                child.communicate("\n")
        finally:
            child.kill()


def is_free(*targets: Path) -> bool:
    with _locks.held([str(target) for target in targets], "trying", wait=0) as held:
        return held


def take_now(target: Path) -> None:
    with _locks.held([str(target)], "undoing", wait=0.01):
        pass


def folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


@contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(_locks, "WAIT", 0.05)
        yield


def changes_of(script: str, *targets: Path) -> ChangeSet:
    with OverlaySandbox(list(targets)) as sandbox:
        result = sandbox.exec(["bash", "-ec", script])
        assert result.ok, result
    assert sandbox.layer is not None
    return capture(sandbox.layer)


def test_folders_beside_each_other_are_held_at_once(target: Path) -> None:
    one, other = folder(target / "one"), folder(target / "other")
    with another(HOLD, one):
        assert is_free(other)
        assert not is_free(one)
        assert not is_free(other, one)
    assert is_free(other, one)


def test_a_folder_excludes_what_lies_in_it_and_what_it_lies_in(target: Path) -> None:
    middle = folder(target / "middle")
    below = folder(middle / "a" / "b")
    with another(HOLD, middle):
        assert not is_free(below)
        assert not is_free(target)
        assert is_free(folder(target / "middle-aged"))


def test_two_paths_to_one_folder_are_one_lock(target: Path) -> None:
    real = folder(target / "real")
    (target / "link").symlink_to(real)
    with another(HOLD, real):
        assert not is_free(target / "link")


def test_who_dies_holds_nothing(target: Path) -> None:
    with another(HOLD, target) as holder:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert is_free(target)


def test_a_folder_that_is_not_there_has_a_lock_too(target: Path) -> None:
    with another(HOLD, target / "gone"):
        assert not is_free(target / "gone")
        assert not is_free(target)
        assert is_free(target / "gone too")


@pytest.mark.parametrize("inner", ["", "a/b"], ids=["the same", "one above"])
def test_who_cannot_have_a_target_is_told_who_has_it(target: Path, inner: str) -> None:
    theirs = target / inner
    theirs.mkdir(parents=True, exist_ok=True)
    with another(HOLD, theirs) as holder, pytest.raises(ChangesError) as caught:
        take_now(target)
    assert caught.value.kind is Kind.IN_USE
    for word in (str(target), f"process {holder.pid}", "applying run-1", str(theirs)):
        assert word in caught.value.message


def test_who_waits_is_told_for_whom_and_then_has_it(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_locks, "PATIENCE", 0)
    told: list[progress.Step] = []
    with another(HOLD, target) as holder:

        def hear(step: progress.Step) -> None:
            told.append(step)
            assert holder.stdin is not None
            holder.stdin.write("\n")  # now it may end
            holder.stdin.flush()

        with progress.listening(hear), _locks.held([str(target)], "undoing"):
            assert holder.wait() == 0
    (step,) = told
    assert step.waiting
    assert f"waiting for process {holder.pid}, which is applying run-1" in step.doing


def test_nothing_is_left_where_locks_were(target: Path) -> None:
    below = folder(target / "below")
    with another(HOLD, below), another(HOLD, folder(target / "beside")):
        pass
    assert [*(places.state_place() / _locks.FOLDER).iterdir()] == []


def test_what_a_crash_left_in_a_lock_is_not_told_of_those_who_share_it(target: Path) -> None:
    with another(HOLD, target) as dead:
        dead.kill()
        dead.wait()
    with another(HOLD, folder(target / "below")) as alive, pytest.raises(ChangesError) as caught:
        take_now(target)
    assert f"process {alive.pid}" in caught.value.message


# Each takes some of the targets again and again, and looks whether it is alone in them.
CROWD = """
import os, random, sys
from podbot.changes.applying import _locks
dice = random.Random(sys.argv[1])
top = sys.argv[2]
names = ["a", "b", "c", "a/in", ""]
for _ in range(25):
    chosen = dice.sample(names, dice.randint(1, 3))
    with _locks.held([os.path.join(top, name).rstrip("/") for name in chosen], "trying"):
        marks = [os.path.join(top, name, "taken") for name in chosen]
        for mark in marks:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        for mark in marks:
            own = os.path.dirname(mark)
            below = {os.path.join(top, name, "taken") for name in names}
            below = {path for path in below if path.startswith(f"{own.rstrip('/')}/")}
            assert not [path for path in below - set(marks) if os.path.exists(path)], marks
        for mark in marks:
            os.unlink(mark)
"""


def test_a_crowd_over_three_targets_ends_and_nobody_is_ever_disturbed(target: Path) -> None:
    for name in ("a/in", "b", "c"):
        folder(target / name)
    crowd = [
        subprocess.Popen([sys.executable, "-c", CROWD, str(seed), str(target)]) for seed in range(5)
    ]
    try:
        assert [each.wait(timeout=300) for each in crowd] == [0] * len(crowd)
    finally:
        for each in crowd:
            each.kill()


def test_threads_of_one_process_exclude_each_other_too(target: Path) -> None:
    free: list[bool] = []
    with _locks.held([str(target)], "applying"):
        thread = threading.Thread(target=lambda: free.append(is_free(target)))
        thread.start()
        thread.join()
    assert free == [False]


# Applying


def test_two_applies_to_different_targets_do_not_wait_for_each_other(target: Path) -> None:
    one, other = folder(target / "one"), folder(target / "other")
    first, second = changes_of("echo 1 > x", one), changes_of("echo 2 > x", other)
    with another(APPLY, first.layer_id or "") as half_done:
        assert (one / "x").exists()
        applied = apply(second)
        assert (other / "x").read_text() == "2\n"
        undo(applied.id)
        assert half_done.poll() is None
        half_done.communicate("\n")
        assert half_done.returncode == 0
    assert (one / "x").read_text() == "1\n"
    undo(first.layer_id or "")
    assert not (one / "x").exists()


def test_an_apply_above_another_waits_for_it(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = folder(target / "inner")
    first, second = changes_of("echo 1 > x", inner), changes_of("echo 2 > y", target)
    with another(APPLY, first.layer_id or "") as half_done:
        with impatient(monkeypatch), pytest.raises(ChangesError) as caught:
            apply(second)
        assert caught.value.kind is Kind.IN_USE
        assert f"process {half_done.pid}" in caught.value.message
        assert not (target / "y").exists()
    apply(second)
    assert (target / "y").read_text() == "2\n"


def test_what_a_living_podbot_has_half_done_is_left_alone_and_what_a_dead_one_has_is_healed(
    target: Path,
) -> None:
    one, other = folder(target / "one"), folder(target / "other")
    alive, dead = changes_of("echo 1 > x", one), changes_of("echo 2 > x", other)
    with another(APPLY, alive.layer_id or ""):
        with another(APPLY, dead.layer_id or "") as killed:
            killed.kill()
            killed.wait()
        assert (other / "x").exists()
        healed = put_right()
        assert healed.busy and len(healed.healed) == 1
        assert not (other / "x").exists()
        assert (one / "x").exists()
    assert put_right() == type(healed)()


def test_nothing_is_applied_to_what_is_half_done_while_it_cannot_be_healed(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = folder(target / "one"), folder(target / "other")
    both = changes_of(f"echo 1 > {one}/x; echo 1 > {other}/x", one, other)
    mine = changes_of("echo 2 > y", one)
    with another(APPLY, both.layer_id or "") as killed:
        killed.kill()
        killed.wait()
    with another(HOLD, other):
        with impatient(monkeypatch), pytest.raises(ChangesError) as caught:
            apply(mine)
        assert caught.value.kind is Kind.IN_USE
        assert (one / "x").exists() and not (one / "y").exists()
    assert apply(mine).recovered
    assert not (one / "x").exists() and not (other / "x").exists()
    assert (one / "y").read_text() == "2\n"


def test_a_journal_that_has_no_plan_yet_is_its_makers(target: Path) -> None:
    with another(HOLD, target):
        begun = journal.create("20000101-000000-00000000")
        assert recover() == []
        assert begun.folder.exists()
    recover()
    assert not begun.folder.exists()


def test_journals_that_are_made_at_once_have_numbers_of_their_own() -> None:
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.append(journal.create("some-layer").id))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [f"some-layer.{number}" for number in range(1, 9)]
