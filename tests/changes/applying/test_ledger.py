"""What podbot itself left at a path is no conflict, whoever's changes it were; all else is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trees import a_moment_after, look, worked_on

from podbot.changes._renames import detect
from podbot.changes.applying import journal, ledger
from podbot.changes.applying.apply import apply
from podbot.changes.applying.ledger import Deed, Ledger, Row
from podbot.changes.applying.recovery import recover
from podbot.changes.applying.undo import forget, undo
from podbot.changes.capture import capture
from podbot.changes.drift import conflicts
from podbot.changes.model import ChangeSet
from podbot.errors import ChangesError, Kind
from podbot.sandbox import layers
from podbot.sandbox.layers import Layer

pytestmark = pytest.mark.usefixtures("own_state")


@pytest.fixture
def project(target: Path) -> Path:
    for name in ("f", "g", "h", "d/one", "d/two"):
        (target / name).parent.mkdir(exist_ok=True)
        (target / name).write_text(f"{name}\n")
    os.link(target / "h", target / "second")
    return target


def again(changes: ChangeSet) -> ChangeSet:
    return detect(capture(layer_of(changes)))


def layer_of(changes: ChangeSet) -> Layer:
    layer = layers.get(changes.layer_id or "")
    assert layer is not None
    return layer


def run(project: Path, work: str) -> ChangeSet:
    return worked_on(project, work)[0]


def found(changes: ChangeSet) -> list[str]:
    return [each.path for each in conflicts(again(changes))]


EVERYTHING = (
    "echo b > f; rm g; mv d/one moved; chmod 600 d/two; ln f other; echo x > d/new; chmod 700 d;"
    " echo b >> second"
)
WORKS = {
    "an edit": "echo a > f",
    "a removal": "rm f g",
    "a mode": "chmod 600 f d/two; chmod 711 d",
    "a rename": "mv g elsewhere; mv d/one d/three",
    "an edit and a move into a folder that is there": "echo a >> f; mv f d/f",
    "a folder that is gone": "rm -r d",
    "a folder made anew": "rm -r d; mkdir d; echo a > d/one",
    "a file of two names": "echo a >> h",
    "a new name": "ln f a-name",
    "a link in its place": "rm f; ln -s g f",
    "a folder in its place": "rm f; mkdir f; echo a > f/a",
}


@pytest.mark.parametrize("work", WORKS)
def test_what_another_run_wrote_and_took_back_is_no_conflict(project: Path, work: str) -> None:
    before = look(project)
    changes, inside = worked_on(project, WORKS[work])
    undo(apply(run(project, EVERYTHING)).id)
    assert look(project) == before

    assert found(changes) == []
    applied = apply(again(changes))

    assert applied.skipped == ()
    assert look(project)["paths"] == inside["paths"]
    undo(applied.id)
    assert look(project) == before


def test_a_chain_of_runs_taken_back_one_by_one_is_no_conflict(project: Path) -> None:
    before = look(project)
    first = run(project, "echo a > f; rm d/one")
    second = apply(run(project, "echo b > f; rm g; rm d/one"))
    third = apply(run(project, "echo c > f; echo c > g; echo c > d/one"))
    assert set(found(first)) == {"f", "d/one"}
    undo(third.id)
    assert "f" in found(first)
    undo(second.id)

    assert look(project) == before
    assert found(first) == []
    apply(again(first))
    assert (project / "f").read_text() == "a\n"


def test_what_another_run_wrote_is_a_conflict_as_long_as_it_is_there(project: Path) -> None:
    changes = run(project, "echo a > f; rm g; chmod 640 d/two")
    apply(run(project, EVERYTHING))

    assert set(found(changes)) == {"f", "d/two"}
    with pytest.raises(ChangesError) as caught:
        apply(again(changes))
    assert caught.value.kind is Kind.CONFLICT


def test_a_folder_whose_mode_another_run_changed_keeps_it(project: Path) -> None:
    changes = run(project, "echo a > d/one; echo a > d/new")
    apply(run(project, "chmod 700 d"))

    apply(again(changes))

    assert (project / "d/new").read_text() == "a\n"
    assert os.stat(project / "d").st_mode & 0o7777 == 0o700


def test_a_run_that_began_between_apply_and_undo_saw_something_else(project: Path) -> None:
    applied = apply(run(project, "echo b > f; rm g; chmod 600 d/two"))
    changes = run(project, "echo a > f; echo a > g; chmod 755 d/two")

    undo(applied.id)

    assert set(found(changes)) == {"f", "g", "d/two"}


def test_what_was_applied_twice_is_what_a_run_in_between_saw(project: Path) -> None:
    other = run(project, "echo b > f; echo b > new")
    applied = apply(other)
    changes = run(project, "echo a >> f; echo a >> new")
    undo(applied.id)
    assert set(found(changes)) == {"f", "new"}

    apply(again(other))

    assert found(changes) == []


def test_what_the_user_did_after_podbot_is_a_conflict(project: Path) -> None:
    changes = run(project, "echo a > f; echo a > d/one; rm g")
    undo(apply(run(project, EVERYTHING)).id)
    facts = os.stat(project / "f")
    a_moment_after(facts.st_ctime_ns)
    (project / "f").write_text("u\n")
    os.utime(project / "f", ns=(facts.st_atime_ns, facts.st_mtime_ns))  # same size, same time

    assert found(changes) == ["f"]


def test_what_the_user_did_between_the_start_and_podbot_is_a_conflict(project: Path) -> None:
    changes = run(project, "echo a > f; rm g")
    a_moment_after(os.stat(layer_of(changes).path).st_mtime_ns)
    (project / "f").write_text("mine\n")
    undo(apply(run(project, "echo b > f; rm g")).id)

    assert (project / "f").read_text() == "mine\n"
    assert found(changes) == ["f"]


def test_what_a_user_put_back_with_the_same_bytes_is_no_conflict(project: Path) -> None:
    changes = run(project, "echo a > f; chmod 600 d/two")
    apply(run(project, "echo b > f; echo b > d/two"))
    (project / "f").write_text("f\n")  # as `git checkout` does
    (project / "d/two").write_text("two, but not the same\n")

    assert found(changes) == ["d/two"]


def test_a_host_that_made_the_same_edit_is_no_conflict(project: Path) -> None:
    changes = run(project, "echo a > f; echo a > g; chmod 600 g")
    a_moment_after(os.stat(layer_of(changes).path).st_mtime_ns)
    (project / "f").write_text("a\n")
    (project / "g").write_text("a\n")

    assert found(changes) == ["g"], "with another mode"


def test_what_another_run_removed_from_a_folder_was_not_moved_there(project: Path) -> None:
    changes = run(project, "echo a >> d/one; echo a >> d/two; mv d/two d/three")
    apply(run(project, "rm d/one; echo b > d/b"))

    assert found(changes) == ["d/one"]


def test_an_inode_number_that_was_used_before_proves_nothing(project: Path) -> None:
    changes = run(project, "echo a > f")
    undo(apply(run(project, "echo b > f")).id)
    facts = os.stat(project / "f")
    assert Ledger(str(project)).explains(
        f"{project}/f", (facts.st_dev, facts.st_ino, facts.st_ctime_ns), changes.since_ns
    )

    for device, inode, ctime in [
        (facts.st_dev, facts.st_ino, facts.st_ctime_ns + 1),
        (facts.st_dev, facts.st_ino + 1, facts.st_ctime_ns),
        (facts.st_dev + 1, facts.st_ino, facts.st_ctime_ns),
    ]:
        told = Ledger(str(project)).explains(
            f"{project}/f", (device, inode, ctime), changes.since_ns
        )
        assert not told
    other = (facts.st_dev, facts.st_ino, facts.st_ctime_ns)
    assert not Ledger(str(project)).explains(f"{project}/g", other, changes.since_ns)


def test_targets_within_one_another_know_of_each_other(project: Path) -> None:
    changes = run(project / "d", "echo a > one")
    undo(apply(run(project, "echo b > d/one; rm d/two")).id)
    above = run(project, "echo a > d/one")
    undo(apply(run(project / "d", "echo c > one")).id)

    assert found(changes) == []
    assert found(above) == []


@pytest.mark.parametrize("when", ["undo", "discard"])
def test_the_ledger_outlives_the_run_that_it_tells_of(project: Path, when: str) -> None:
    changes = run(project, "echo a > f; rm d/one")
    other = run(project, EVERYTHING)
    undo(apply(other).id)
    if when == "discard":
        forget(other.layer_id or "", layer_of(other))

    assert found(changes) == []


def test_the_last_run_that_is_discarded_takes_the_ledger_with_it(
    project: Path, own_state: Path
) -> None:
    changes, other = run(project, "echo a > f"), run(project, "echo b > f")
    undo(apply(other).id)
    forget(other.layer_id or "", layer_of(other))
    assert list((own_state / ledger.FOLDER).iterdir())

    forget(changes.layer_id or "", layer_of(changes))

    assert list((own_state / ledger.FOLDER).iterdir()) == []


def test_what_only_gone_runs_needed_is_forgotten(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        old = run(project, f"echo {number} > f; echo {number} > d/one")
        undo(apply(old).id)
        layers.remove(layer_of(old).path)
    changes = run(project, "echo a > f")
    many = len(Ledger(str(project)).at(f"{project}/f"))
    monkeypatch.setattr(ledger, "PRUNED_FROM", 0)

    undo(apply(run(project, "echo b > f")).id)

    assert found(changes) == []
    assert len(Ledger(str(project)).at(f"{project}/f")) == 2 < many


def test_an_apply_that_was_killed_and_taken_back_is_no_conflict(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, other = run(project, "echo a > f; rm d/one"), run(project, EVERYTHING)
    for label in ("rename done", "finish a folder", "swap"):
        _killed_at(label, monkeypatch, other)
        assert any("interrupted" in line for line in recover())

        assert found(changes) == []


def _killed_at(label: str, monkeypatch: pytest.MonkeyPatch, changes: ChangeSet) -> None:
    class Killed(BaseException):
        pass

    killed: list[str] = []

    def step(at: str) -> None:
        if killed or at == label:
            killed.append(at)
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(journal, "step", step)
        with pytest.raises(Killed):
            apply(again(changes))


def test_a_ledger_that_is_cut_short_or_broken_proves_less_and_harms_nothing(
    project: Path, own_state: Path
) -> None:
    changes = run(project, "echo a > f; echo a > d/one")
    undo(apply(run(project, EVERYTHING)).id)
    (path,) = (own_state / ledger.FOLDER).iterdir()
    whole = path.read_bytes()

    path.write_bytes(whole[: len(whole) // 2])
    assert found(changes)
    head = whole.partition(b"\n")[0] + b"\n"
    for broken in (
        b"",
        b"{",
        b"[" * 100_000,
        b"[1]\n" * 3,
        whole[:60] + b"\0\xff\n[]\n[1,2,3,4,5,6]\n[null]\n",
        head + b"[" * 100_000,
        head + b'["x.1",null,1e999,2]\n["f",0,[1,2,3],0,0,1,1]\n',
        head + b'{"a":1,"b":2,"c":3,"d":4}\n["x.1",null,1,2]\n["f",0,[[1],2,3],[[1],2],0,1,1]\n',
        head + b"\xff\n",
    ):
        path.write_bytes(broken)
        assert set(found(changes)) == {"f", "d/one"}
        ledger.prune([str(project)])

    path.write_bytes(whole[:-7])
    ledger.note(str(project), Deed("x.1", None, 1, 2), [Row("f", None, (1, 2, 3))])
    assert [fact.deed.journal for fact in Ledger(str(project)).at(f"{project}/f")][-1] != ""
    assert Ledger(str(project)).at(f"{project}/f")[0].row == Row("f", None, (1, 2, 3))


def test_a_ledger_that_cannot_be_written_stops_nothing(project: Path, own_state: Path) -> None:
    (own_state / ledger.FOLDER).write_text("in the way")
    before = look(project)

    undo(apply(run(project, EVERYTHING)).id)

    assert look(project) == before
