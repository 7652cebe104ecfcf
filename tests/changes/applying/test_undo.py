"""Undoing: the host gets back what it had, unless it moved on since."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from trees import a_moment_after, look, nothing_left_in, worked_on

from podbot.changes.applying import _locks, journal
from podbot.changes.applying.apply import Applied, apply
from podbot.changes.applying.recovery import recover
from podbot.changes.applying.undo import applications, forget, undo
from podbot.changes.capture import capture
from podbot.changes.drift import conflicts
from podbot.changes.model import ChangeSet
from podbot.errors import ChangesError, Kind
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer

WORK = """
echo more >> edited; rm gone; mv moved elsewhere; chmod 600 moded; rm -r folder; chmod 700 kept
rm turned; mkdir turned; echo in > turned/in; mkdir new; echo x > new/x; echo y > kept/y
"""


def layer_of(changes: ChangeSet) -> Layer:
    layer = layers.get(changes.layer_id or "")
    assert layer is not None
    return layer


pytestmark = pytest.mark.usefixtures("own_state")


@pytest.fixture
def before(target: Path) -> dict[str, object]:
    for name in ("edited", "gone", "moved", "moded", "turned"):
        (target / name).write_text(f"{name}\n")
    for name in ("folder", "kept"):
        (target / name).mkdir()
        (target / name / "in").write_text("in\n")
        os.utime(target / name, (1000, 1000))
    os.utime(target, (2000, 2000))
    return look(target)


@pytest.fixture
def applied(target: Path, before: dict[str, object]) -> Applied:
    changes, _ = worked_on(target, WORK)
    return apply(changes)


def layer_id(applied: Applied) -> str:
    return applied.id.rpartition(".")[0]


def test_undo_takes_the_id_of_the_application_or_of_the_layer(
    target: Path, applied: Applied, before: dict[str, object]
) -> None:
    undone = undo(applied.id)

    assert undone.id == applied.id
    assert {f"{target}/edited", f"{target}/kept", f"{target}/folder/in"} <= set(undone.restored)
    assert look(target) == before
    again = apply(capture(layer_of_id(layer_id(applied))))
    assert undo(layer_id(applied)).id == again.id
    assert look(target) == before


def layer_of_id(id: str) -> Layer:
    layer = layers.get(id)
    assert layer is not None
    return layer


def test_undo_works_when_the_layer_is_gone(
    target: Path, applied: Applied, before: dict[str, object]
) -> None:
    layers.scrap(layer_of_id(layer_id(applied)).path)

    undo(applied.id)

    assert look(target) == before


def rewrite(path: Path, text: str) -> None:
    """Change a file without a trace in its size or time."""
    facts = os.stat(path)
    a_moment_after(facts.st_ctime_ns)
    path.write_text(text)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


MOVED_ON: dict[str, tuple[Callable[[Path], object], str]] = {
    "an edit": (lambda t: (t / "edited").write_text("mine\n"), "edited"),
    "an edit with its time put back": (lambda t: rewrite(t / "elsewhere", "MOVED\n"), "elsewhere"),
    "a mode": (lambda t: (t / "moded").chmod(0o644), "moded"),
    "a removal": (lambda t: (t / "new/x").unlink(), "new/x"),
    "something put where something was removed": (lambda t: (t / "gone").mkdir(), "gone"),
    "something put where a folder was removed": (lambda t: (t / "folder").write_text(""), "folder"),
    "something put into a new folder": (lambda t: (t / "new/mine").write_text(""), "new"),
    "something put where a file was": (lambda t: (t / "turned/mine").write_text(""), "turned"),
    "the mode of a folder": (lambda t: (t / "kept").chmod(0o750), "kept"),
    "a link in the way": (lambda t: swap_for_link(t / "new"), "new/x"),
}


def swap_for_link(path: Path) -> None:
    path.rename(path.with_name("aside"))
    path.symlink_to("aside")


@pytest.mark.parametrize("what", MOVED_ON)
def test_undo_refuses_where_the_host_moved_on_and_touches_nothing(
    target: Path, applied: Applied, what: str
) -> None:
    action, path = MOVED_ON[what]
    action(target)
    now = look(target)

    with pytest.raises(ChangesError) as caught:
        undo(applied.id)

    assert caught.value.kind is Kind.UNDO_REFUSED
    assert f"  {target}/{path}: " in caught.value.message
    assert look(target) == now
    assert recover() == []
    assert look(target) == now


def test_undo_lives_with_what_others_did_beside(
    target: Path, applied: Applied, before: dict[str, object]
) -> None:
    (target / "beside").write_text("mine\n")
    (target / "kept/beside").write_text("mine\n")
    times = os.stat(target).st_mtime_ns, os.stat(target / "kept").st_mtime_ns

    undo(applied.id)

    assert (target / "beside").read_text() == (target / "kept/beside").read_text() == "mine\n"
    # Their own time now, not the one of before.
    assert os.stat(target).st_mtime_ns >= times[0]
    assert os.stat(target / "kept").st_mtime_ns >= times[1]
    assert os.stat(target / "folder").st_mtime == 1000
    (target / "beside").unlink()
    (target / "kept/beside").unlink()
    for name, facts in ((".", 2000), ("kept", 1000)):
        os.utime(target / name, (facts, facts))
    assert look(target) == before


def test_a_folder_whose_mode_was_not_our_business_keeps_the_one_it_got_since(target: Path) -> None:
    (target / "folder").mkdir()
    changes, _ = worked_on(target, "echo x > folder/x")
    applied = apply(changes)
    (target / "folder").chmod(0o500)

    undo(applied.id)

    assert os.listdir(target / "folder") == []
    assert stat.S_IMODE(os.stat(target / "folder").st_mode) == 0o500


def test_applications_are_undone_from_the_latest_on(target: Path) -> None:
    before = look(target)
    changes, _ = worked_on(target, "mkdir d; echo a > d/a; echo b > d/b; ln d/a c")
    layer = layer_of(changes)
    apply(changes, only=["d/a"])
    between = look(target)
    apply(capture(layer))
    assert os.path.samefile(target / "d/a", target / "c")

    told = applications(layer.id)
    assert [(each.paths, each.undone) for each in told] == [(2, False), (2, False)]
    assert told[0].when <= told[1].when <= time.time()
    undo(layer.id)
    assert look(target)["paths"] == between["paths"]
    assert [each.undone for each in applications(layer.id)] == [False, True]
    undo(layer.id)
    assert look(target) == before
    assert [each.undone for each in applications(layer.id)] == [True, True]


def test_an_earlier_application_is_undone_if_the_later_is_not_in_its_way(target: Path) -> None:
    changes, _ = worked_on(target, "echo a > a; echo b > b")
    first = apply(changes, only=["a"])
    apply(changes, only=["b"])

    undo(first.id)

    assert os.listdir(target) == ["b"]


def test_layers_over_one_another_are_undone_one_by_one(target: Path) -> None:
    (target / "file").write_text("0\n")
    seen = [look(target)]
    ids = []
    for number in range(1, 4):
        changes, _ = worked_on(target, f"echo {number} > file; echo {number} > new{number}")
        ids.append(apply(changes).id)
        seen.append(look(target))

    for id in reversed(ids):
        assert look(target) == seen.pop()
        undo(id)

    assert look(target) == seen.pop()


@pytest.mark.parametrize("name", ["no-such-layer", "no-such-layer.1", "../journals", ""])
def test_nothing_to_undo_is_a_named_error(name: str) -> None:
    with pytest.raises(ChangesError) as caught:
        undo(name)

    assert caught.value.kind is Kind.NOTHING_TO_UNDO
    assert applications(name) == []


def test_what_is_undone_is_not_undone_again(applied: Applied) -> None:
    undo(applied.id)

    for name in (applied.id, layer_id(applied)):
        with pytest.raises(ChangesError) as caught:
            undo(name)
        assert caught.value.kind is Kind.NOTHING_TO_UNDO


def test_what_is_undone_can_be_applied_again(
    target: Path, applied: Applied, before: dict[str, object]
) -> None:
    after = look(target)
    undo(applied.id)
    changes = capture(layer_of_id(layer_id(applied)))
    assert conflicts(changes) == ()

    apply(changes)

    assert look(target)["paths"] == after["paths"]


def test_to_forget_removes_what_was_kept(applied: Applied) -> None:
    kept = Path(applied.journal)
    assert sorted(path.name for path in kept.iterdir()) == ["done", "journal.jsonl", "kept"]

    forget(layer_id(applied))

    assert not kept.exists()
    assert applications(layer_id(applied)) == []
    forget(layer_id(applied))


def test_what_was_undone_keeps_only_its_record(target: Path, applied: Applied) -> None:
    undo(applied.id)

    assert "kept" not in os.listdir(applied.journal)
    assert nothing_left_in(target)


def test_a_store_that_lost_something_is_noticed_before_anything_is_touched(
    target: Path, applied: Applied
) -> None:
    for path in (Path(applied.journal) / "kept").iterdir():
        path.unlink()
        break
    now = look(target)

    with pytest.raises(ChangesError) as caught:
        undo(applied.id)

    assert caught.value.kind is Kind.UNDO_REFUSED
    assert "store" in caught.value.message
    assert look(target) == now


def test_an_undo_that_fails_half_way_is_completed_by_the_next(
    target: Path, applied: Applied, before: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []

    def step(label: str) -> None:
        if label == "swap back" and not failed:
            failed.append(label)
            raise OSError(5, "disk on fire")

    monkeypatch.setattr(journal, "step", step)
    with pytest.raises(ChangesError) as caught:
        undo(applied.id)
    assert caught.value.kind is Kind.APPLY_FAILED
    assert "disk on fire" in caught.value.message

    assert any("it is done now" in line for line in recover())

    assert look(target) == before
    assert nothing_left_in(target)


def test_an_undo_that_fails_can_be_tried_until_it_succeeds(
    target: Path, applied: Applied, before: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(label: str) -> None:
        if label == "swap back":
            raise OSError(5, "disk on fire")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "step", step)
        for _ in range(2):
            with pytest.raises(ChangesError) as caught:
                undo(layer_id(applied))
            assert caught.value.kind is Kind.APPLY_FAILED
            assert "disk on fire" in caught.value.message
            assert "once more" in (caught.value.remedy or "")
            assert [each.undone for each in applications(layer_id(applied))] == [False]

    undone = undo(layer_id(applied))

    assert undone.id == applied.id
    assert look(target) == before
    assert nothing_left_in(target)
    assert [each.undone for each in applications(layer_id(applied))] == [True]


def test_what_came_in_between_is_left_and_can_be_undone_once_it_is_away(
    target: Path, applied: Applied, before: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(label: str) -> None:
        if label == "swap back":
            (target / "new/mine").write_text("mine\n")

    monkeypatch.setattr(journal, "step", step)
    for _ in range(2):
        with pytest.raises(ChangesError, match="new: it holds what podbot did not put there"):
            undo(applied.id)
        assert (target / "new/mine").read_text() == "mine\n"
        (past,) = applications(layer_id(applied))
        assert not past.undone
        assert "new: it holds" in past.left[0]
    (target / "new/mine").unlink()

    undo(layer_id(applied))

    assert look(target) == before
    assert nothing_left_in(target)
    with pytest.raises(ChangesError) as caught:
        undo(applied.id)
    assert caught.value.kind is Kind.NOTHING_TO_UNDO


def test_a_layer_does_not_go_under_the_hands_of_an_apply(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, _ = worked_on(target, "echo x > x")
    assert changes.layer_id is not None
    layer = layers.get(changes.layer_id)
    monkeypatch.setattr(_locks, "WAIT", 0.05)

    with _locks.held([str(target)], "applying"), pytest.raises(ChangesError) as caught:
        forget(changes.layer_id, layer)

    assert caught.value.kind is Kind.IN_USE
    assert layers.get(changes.layer_id) == layer
    forget(changes.layer_id, layer)
    assert layers.get(changes.layer_id) is None
