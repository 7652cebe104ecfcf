"""Who looks at a target that an apply or undo left half done when it was killed sees it healed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from trees import look

from podbot import api, changes
from podbot.changes.applying import _locks, gate, journal, recovery
from podbot.changes.applying.apply import apply
from podbot.changes.applying.undo import undo
from podbot.changes.capture import capture
from podbot.cli import completion
from podbot.config import places
from podbot.errors import ChangesError, Kind, LaunchError
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer
from podbot.sandbox.overlay.launcher import OverlaySandbox

FILES = ("a", "b", "c", "d")

# A podbot that is killed at the second thing of a kind that it does to the disk.
KILLED = """
import os, signal, sys
from podbot.changes.applying import journal
label, left = sys.argv[1], [2]
def step(what):
    left[0] -= what == label
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
journal.step = step
from podbot.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(autouse=True)
def state(own_state: Path) -> Path:
    return own_state


@pytest.fixture
def layer(target: Path) -> Iterator[Layer]:
    """What a sandbox changed: every file of a small project."""
    for name in FILES:
        (target / name).write_text(f"old {name}\n")
    with OverlaySandbox(target) as sandbox:
        for name in FILES:
            sandbox.write(name, f"new {name}\n")
    assert sandbox.layer is not None
    yield sandbox.layer
    if sandbox.layer.path.exists():
        sandbox.layer.discard()


def podbot(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "podbot", *words],
        capture_output=True, text=True, check=False, cwd=cwd,
    )  # fmt: skip


def killed(label: str, *words: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, label, *words], check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.fixture(params=["apply", "undo"])
def half_done(request: pytest.FixtureRequest, target: Path, layer: Layer) -> dict[str, object]:
    """A target that is half of each; gives what it is when it is healed, which is as before."""
    before = look(target)
    if request.param == "undo":
        apply(capture(layer))
    label = "swap" if request.param == "apply" else "swap back"
    killed(label, "changes", request.param, layer.id)
    assert {(target / name).read_text().split()[0] for name in FILES} == {"old", "new"}
    return before


# What a person types


LOOKS = {
    "list": lambda id, file: ["list", "--json"],
    "show": lambda id, file: ["show", id, "--json"],
    "diff": lambda id, file: ["diff", id, "--json"],
    "save": lambda id, file: ["save", id, file, "--json"],
}


@pytest.mark.parametrize("verb", LOOKS)
def test_every_look_heals_first_and_says_so(
    verb: str, target: Path, layer: Layer, half_done: dict[str, object], tmp_path: Path
) -> None:
    done = podbot("changes", *LOOKS[verb](layer.id, str(tmp_path / "x.patch")))

    assert done.returncode == 0, done.stderr
    assert "was interrupted" in done.stderr
    assert look(target) == half_done
    told = json.loads(done.stdout)
    if verb == "list":
        counts = {run["id"]: run["changes_count"] for run in told["runs"]}
        assert counts[layer.id] == len(FILES)
    elif verb == "show":
        assert [(each["path"], each["conflict"]) for each in told["changes"]] == [
            (name, None) for name in FILES
        ]
    elif verb == "diff":
        assert [each["path"] for each in told["files"]] == list(FILES)
    else:
        assert (tmp_path / "x.patch").read_text().count("+new") == len(FILES)
    assert podbot("changes", "list").stderr == ""  # it is told once


def test_a_run_starts_over_what_is_healed_and_says_so(
    target: Path, half_done: dict[str, object]
) -> None:
    done = podbot("run", "--discard", "--", "cat", *FILES, cwd=target)

    assert done.stdout == "".join(f"old {name}\n" for name in FILES)
    assert "was interrupted" in done.stderr
    assert look(target) == half_done


def test_a_load_is_over_what_is_healed(target: Path, layer: Layer, tmp_path: Path) -> None:
    before, file = look(target), str(tmp_path / "work.tar")
    assert podbot("changes", "save", layer.id, file).returncode == 0
    killed("swap", "changes", "apply", layer.id)

    done = podbot("changes", "load", file, "--as-saved", "--json")

    assert "was interrupted" in done.stderr
    assert json.loads(done.stdout)["changes_count"] == len(FILES)
    assert look(target) == before


def test_an_undo_goes_on_with_one_that_was_killed(target: Path, layer: Layer) -> None:
    before = look(target)
    apply(capture(layer))
    killed("swap back", "changes", "undo", layer.id)

    done = podbot("changes", "undo", layer.id)

    assert done.returncode == 0, done.stderr
    assert look(target) == before
    assert places.unfinished() == []


def test_an_undo_after_a_killed_apply_says_what_became_of_it(target: Path, layer: Layer) -> None:
    before = look(target)
    killed("swap", "changes", "apply", layer.id)

    done = podbot("changes", "undo", layer.id)

    assert done.returncode == 2
    assert "was interrupted" in done.stderr
    assert "left to undo" in done.stderr
    assert look(target) == before


# What a program does


def by_reading(target: Path, layer: Layer) -> None:
    assert [change.path for change in changes.read(layer)] == list(FILES)


def by_opening(target: Path, layer: Layer) -> None:
    with OverlaySandbox(target, discard=True) as sandbox:
        assert [sandbox.read(name) for name in FILES] == [
            f"old {name}\n".encode() for name in FILES
        ]
        assert any("was interrupted" in note for note in sandbox.notes)


def by_running(target: Path, layer: Layer) -> None:
    outcome = api.run(api.RunRequest(("true",), targets=(target,)))
    assert any("was interrupted" in note for note in outcome.record.notes)


def by_going_on(target: Path, layer: Layer) -> None:
    with OverlaySandbox(layer=layer):
        pass


@pytest.mark.parametrize("doing", [by_reading, by_opening, by_running, by_going_on])
def test_programs_see_it_healed(
    doing: Callable[[Path, Layer], None],
    target: Path,
    layer: Layer,
    half_done: dict[str, object],
) -> None:
    doing(target, layer)

    assert look(target) == half_done
    assert places.unfinished() == []


# Who is at work, and what cannot be healed


def test_who_looks_waits_for_a_living_apply(target: Path, layer: Layer) -> None:
    entered, go_on, seen = threading.Event(), threading.Event(), list[str]()

    def step(label: str) -> None:
        if label == "swap" and not entered.is_set():
            entered.set()
            assert go_on.wait(60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "step", step)
        applying = threading.Thread(target=lambda: apply(capture(layer)))
        looked = capture(layer)
        applying.start()
        assert entered.wait(60)
        real = recovery.put_right

        def put_right(
            wait: float | None = 0, over: Collection[str] | None = None
        ) -> recovery.Recovered:
            seen.append("waits" if wait is None else "asks")
            if wait is None:
                go_on.set()  # only now: whoever looks does wait
            return real(wait, over)

        patch.setattr(recovery, "put_right", put_right)
        gate.heal_first(layer.targets)
        assert seen == ["asks", "waits"]
        # All of it, by the time that anyone looks.
        assert [(target / name).read_text() for name in FILES] == [f"new {n}\n" for n in FILES]
        applying.join(60)
    assert len(looked) == len(FILES)


def test_who_looks_elsewhere_does_not_wait(
    target: Path, layer: Layer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed("swap", "changes", "apply", layer.id)
    waited: list[float | None] = []
    real = recovery.put_right

    def put_right(
        wait: float | None = 0, over: Collection[str] | None = None
    ) -> recovery.Recovered:
        waited.append(wait)
        return real(wait, over)

    monkeypatch.setattr(recovery, "put_right", put_right)
    with _locks.held([str(target)], "applying"):
        assert gate.heal_first([str(tmp_path)]) == ()
    assert waited == [0]


def test_what_cannot_be_healed_is_refused_where_it_would_be_taken_for_whole(
    target: Path, layer: Layer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed("swap", "changes", "apply", layer.id)

    def stuck(*_: object) -> None:
        raise OSError(13, "Permission denied", str(target / "a"))

    monkeypatch.setattr(recovery, "roll_back", stuck)
    with pytest.raises(ChangesError, match="cannot be healed: Permission denied"):
        changes.read(layer)
    with pytest.raises(LaunchError, match="cannot be healed"), OverlaySandbox(target):
        pass
    other = tmp_path / "other"
    other.mkdir()
    assert gate.heal_first([str(other)]) == ()
    assert [error.kind for _, error in recovery.put_right().failed] == [Kind.APPLY_FAILED]


def test_a_target_that_is_gone_stops_nobody(target: Path, layer: Layer) -> None:
    killed("swap", "changes", "apply", layer.id)
    aside = target.with_name(f"{target.name}-aside")
    target.rename(aside)
    try:
        done = podbot("changes", "list", "--all", "--json")
        assert done.returncode == 0
        assert layer.id in [run["id"] for run in json.loads(done.stdout)["runs"]]
        assert "cannot be healed" in done.stderr
    finally:
        aside.rename(target)
    assert podbot("changes", "list").returncode == 0
    assert [(target / name).read_text() for name in FILES] == [f"old {name}\n" for name in FILES]


def test_nothing_is_noted_as_half_done_when_all_is_done(target: Path, layer: Layer) -> None:
    seen: list[list[str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "step", lambda label: seen.append(places.unfinished()))
        apply(capture(layer))
        assert [] in seen
        assert [f"{layer.id}.1"] in seen
        assert places.unfinished() == []
        undo(layer.id)
    assert places.unfinished() == []
    assert layers.get(layer.id) is not None


def test_completion_neither_heals_nor_waits(target: Path, layer: Layer) -> None:
    assert completion._changed(layer.id, "") == list(FILES)
    killed("swap", "changes", "apply", layer.id)
    half = look(target)

    assert completion._changed(layer.id, "") == []

    assert look(target) == half


def test_a_mark_without_a_journal_goes_with_the_next_look(layer: Layer, state: Path) -> None:
    folder = places.state_folder("journals", places.UNFINISHED)
    (folder / f"{layer.id}.7").touch()

    changes.read(layer)

    assert places.unfinished() == []
