"""A `Run` keeps the record of what works in a sandbox; it is forgotten if nothing is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from podbot import changes, runs
from podbot.config import places
from podbot.errors import ChangesError
from podbot.runs import LaunchRequest, Run, records
from podbot.runs.records import Record
from podbot.sandbox import LocalSandbox, OverlaySandbox, layers


@pytest.fixture(autouse=True)
def own_books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Path) -> Iterator[Path]:
    """Runs of one test alone: no other's records, no other's layers."""
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    root = target.with_name(f"{target.name}-layers")
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(root))
    yield tmp_path / "state"
    if root.exists():
        layers.remove(root)


def record_of(word: str) -> Record:
    record = runs.find(word).record
    assert record is not None
    return record


def test_it_is_known_from_its_begin_to_its_end(target: Path) -> None:
    run = Run(LaunchRequest(("agent",), targets=(target,), name="mine", title="the work"))
    with run.open() as sandbox:
        assert runs.find("mine").status == "running"
        sandbox.write("new", "new")
        assert run.end(3) is None
        assert record_of("mine").exit_status == 3
    layer, problem = run.finish()
    assert layer is not None and (layer.id, problem) == (run.record.id, None)
    record = record_of("mine")
    assert (record.command, record.title, record.targets) == (
        ("agent",),
        "the work",
        (str(target),),
    )
    assert (record.guarantees, record.notes) == (sandbox.guarantees, sandbox.notes)
    assert runs.find("mine").status == "ended"


def test_one_that_changed_nothing_is_forgotten(target: Path) -> None:
    run = Run(LaunchRequest(("agent",), targets=(target,)))
    with run.open():
        run.end(0)
    assert run.finish() == (None, None)
    assert runs.entries() == []


def test_what_is_written_after_its_end_is_kept_and_noted(target: Path) -> None:
    run = Run(LaunchRequest(("agent",), targets=(target,)))
    with run.open() as sandbox:
        run.end(0)
        sandbox.write("late", "late")
    layer, _ = run.finish()
    assert layer is not None
    assert record_of(layer.id).exit_status == 0


def test_what_podbot_could_not_do_is_in_the_record(target: Path) -> None:
    run = Run(LaunchRequest(("agent",), targets=(target,), name="faulty"))
    with run.open() as sandbox:
        sandbox.write("new", "new")
        run.end(error="out of luck")
    run.finish()
    assert record_of("faulty").error == "out of luck"


def test_a_sandbox_that_was_lost_before_it_changed_anything_has_one_record(target: Path) -> None:
    run = Run(LaunchRequest(("tools",), name="lost"))
    with OverlaySandbox(target) as first:
        run.begin(first)
        run.begin(first)
        assert first.layer is not None
        assert runs.find("lost").id == first.layer.id
    with OverlaySandbox(target) as second:
        run.begin(second)
        second.write("made", "text")
        run.end(0)
    layer, _ = run.finish()
    assert layer == second.layer and layer is not None
    assert [entry.id for entry in runs.entries()] == [layer.id]
    layers.remove(layer.path)
    assert run.finish() == (None, None)
    assert runs.entries() == []


def test_the_lost_one_stays_with_its_record_if_it_held_something(target: Path) -> None:
    run = Run(LaunchRequest(("tools",)))
    with OverlaySandbox(target) as first:
        run.begin(first)
        first.write("made", "text")
    with OverlaySandbox(target) as second:
        run.begin(second)
        second.write("too", "text")
        run.end(0)
    run.finish()
    assert {entry.id for entry in runs.entries()} == {
        layer.id for layer in (first.layer, second.layer) if layer is not None
    }
    assert all(entry.made_by == "tools" for entry in runs.entries())


def test_a_copy_that_nobody_changed_goes_and_one_that_was_changed_stays(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target / "old").write_text("old")
    monkeypatch.setattr("podbot.sandbox.layers.copying.needed", lambda targets: "for a test")
    for change, stays in ((None, False), ("made", True)):
        run = Run(LaunchRequest(("tools",), targets=(target,)))
        with run.open() as sandbox:
            if change is not None:
                sandbox.write(change, "text")
            run.end(0)
        assert sandbox.layer is not None and sandbox.layer.method == "copy"
        assert (run.finish()[0] is not None) == stays
        assert sandbox.layer.path.exists() == stays


def test_a_copy_from_which_something_was_applied_stays_to_be_undone(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podbot.sandbox.layers.copying.needed", lambda targets: "for a test")
    first = Run(LaunchRequest(("tools",), targets=(target,), name="first"))
    with first.open() as sandbox:
        sandbox.write("made", "text")
        first.end(0)
    layer, _ = first.finish()
    assert layer is not None
    changes.apply_changes(changes.read(layer))
    again = Run(LaunchRequest(("tools",), continue_in="first"))
    with again.open() as sandbox:
        again.end(0)
    again.finish()
    assert changes.undo_changes("first").restored


def test_what_keeps_nothing_is_noted_nowhere(target: Path, own_books: Path) -> None:
    run = Run(LaunchRequest(("agent",), targets=(target,), backend="local"))
    with run.open() as sandbox:
        assert isinstance(run.record.id, str) and records.is_id(run.record.id)
        assert sandbox.workdir == str(target)
        run.end(0)
    assert run.finish() == (None, None)
    assert not own_books.exists()


def test_a_run_that_was_never_begun_ends_in_nothing() -> None:
    run = Run(LaunchRequest(("tools",)))
    assert run.end(0) is None
    assert run.finish() == (None, None)


def test_a_sandbox_of_another_backend_is_noted_by_its_own_run(target: Path) -> None:
    with LocalSandbox(target) as sandbox:
        record = Run(LaunchRequest(("tools",))).begin(sandbox)
    assert (record.backend, record.targets) == ("local", (str(target),))
    assert runs.entries() == []


def test_a_name_that_is_taken_is_refused_before_anything_is_opened(target: Path) -> None:
    with pytest.raises(ChangesError, match="cannot name a run"):
        Run(LaunchRequest(("agent",), targets=(target,), name="last"))


def test_a_record_that_cannot_be_written_leaves_no_sandbox(target: Path, own_books: Path) -> None:
    own_books.write_text("in the way")
    with pytest.raises(ChangesError):
        Run(LaunchRequest(("agent",), targets=(target,))).open()
    assert layers.found() == []
