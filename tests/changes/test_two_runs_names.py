"""Two runs over files with several names: no name, no version and no link gets lost unseen."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_two_runs import merge_in, run
from trees import look

from podbot.changes.applying.undo import undo
from podbot.changes.capture import read
from podbot.changes.drift import ConflictKind, conflicts
from podbot.changes.model import ChangeKind
from podbot.errors import ChangesError, Kind
from podbot.sandbox import OverlaySandbox

pytestmark = pytest.mark.usefixtures("disks")


@pytest.fixture
def names(target: Path) -> tuple[Path, Path]:
    """One file with two names."""
    one, other = target / "a", target / "b"
    one.write_text("text\n")
    other.hardlink_to(one)
    return one, other


def are_one(one: Path, other: Path) -> bool:
    return one.samefile(other)


WORK = ["echo {0} >> {0}", "cp {0} t; echo {0} >> t; mv t {0}", "rm {0}", "chmod 600 {0}"]


@pytest.mark.parametrize("first", WORK)
@pytest.mark.parametrize("second", WORK[:3])
def test_each_run_has_its_own_name_of_a_file(
    target: Path, names: tuple[Path, Path], first: str, second: str
) -> None:
    before = look(target)
    one, other = run(target, first.format("a")), run(target, second.format("b"))
    merge_in(one)
    between = look(target)
    assert conflicts(read(other)) == (), "nobody did anything to this name"
    merge_in(other)
    after = look(target)
    with pytest.raises(ChangesError) as failed:
        undo(one.id)
    assert failed.value.kind is Kind.UNDO_REFUSED
    assert f"run {other.id} changed or removed another name of it" in str(failed.value)
    assert look(target) == after
    undo(other.id)
    assert look(target) == between
    undo(one.id)
    assert look(target) == before, "one file again"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ln b c", "echo B >> b"),
        ("ln b c", "cp b t; mv t b"),
        ("ln b c", "chmod 600 b"),
        ("ln -f b a", "echo B >> b"),
        ("ln -f b a", "echo B >> a"),
        ("ln b c; echo A >> b", "echo B >> b"),
        ("echo A >> a", "ln -f b a"),
        ("echo A >> b", "ln -f b a"),
        ("echo A > c", "ln b c"),
        ("ln b c", "ln a c"),
    ],
)
def test_another_name_is_a_part_of_what_a_run_did(target: Path, first: str, second: str) -> None:
    (target / "a").write_text("one\n")
    (target / "b").write_text("two\n")
    one, other = run(target, first), run(target, second)
    merge_in(one)
    after = look(target)
    assert ConflictKind.CHANGED in {each.kind for each in conflicts(read(other))}
    with pytest.raises(ChangesError) as failed:
        merge_in(other)
    assert failed.value.kind is Kind.CONFLICT
    assert f"run {one.id}" in str(failed.value)
    assert look(target) == after


def test_a_name_that_was_taken_back_is_in_nobodys_way(target: Path) -> None:
    (target / "b").write_text("two\n")
    one, other = run(target, "ln b c"), run(target, "echo B >> b")
    merge_in(one)
    undo(one.id)
    merge_in(other)
    assert (target / "b").read_text() == "two\nB\n"


def test_to_remove_one_of_two_names_loses_nothing(target: Path) -> None:
    (target / "b").write_text("two\n")
    one, other = run(target, "ln b c"), run(target, "rm b")
    merge_in(one)
    merge_in(other)
    assert {path.name for path in target.iterdir()} == {"c"}


def test_equal_files_with_equal_times_that_became_one_are_a_change(target: Path) -> None:
    for name in ("a", "b"):
        (target / name).write_text("same\n")
    run_of_times = "touch -d 2001-01-01 a b"
    merge_in(run(target, run_of_times))
    before = look(target)
    layer = run(target, "ln -f b a")
    assert [change.kind for change in read(layer)] == [ChangeKind.HARD_LINK]
    merge_in(layer)
    assert are_one(target / "a", target / "b")
    undo(layer.id)
    assert look(target) == before


def test_what_is_changed_in_place_and_linked_can_be_taken_back_in_part(target: Path) -> None:
    (target / "b").write_text("two\n")
    before = look(target)
    layer = run(target, "chmod 600 b; ln b c")
    merge_in(layer)
    assert are_one(target / "b", target / "c")
    undo(layer.id, only=["b"])
    assert (target / "b").stat().st_mode & 0o777 == 0o644
    assert (target / "c").stat().st_mode & 0o777 == 0o600, "the other is as it was applied"
    undo(layer.id)
    assert look(target) == before


def test_a_mode_changed_below_a_merge_is_taken_back_after_it(target: Path) -> None:
    """On two disks the file that comes back from below is a copy with another number."""
    (target / "b").write_text("two\n")
    before = look(target)
    one, other = run(target, "chmod 600 b"), run(target, "echo B >> b")
    merge_in(one)
    merge_in(other)
    undo(other.id)
    undo(one.id)
    assert look(target) == before


@pytest.mark.parametrize(
    ("first", "second"),
    [("chmod 600 b", "ln b c"), ("echo A >> b", "ln b c"), ("echo A > n", "ln n c")],
    ids=["in place", "replaced", "added"],
)
def test_what_a_later_run_linked_to_cannot_be_undone_below_it(
    target: Path, first: str, second: str
) -> None:
    (target / "b").write_text("two\n")
    before = look(target)
    one = run(target, first)
    merge_in(one)
    between = look(target)
    other = run(target, second)
    merge_in(other)
    after = look(target)
    with pytest.raises(ChangesError) as failed:
        undo(one.id)
    assert failed.value.kind is Kind.UNDO_REFUSED
    assert f"run {other.id} made c another name of it: undo that first" in str(failed.value)
    assert look(target) == after
    undo(other.id)
    assert look(target) == between
    undo(one.id)
    assert look(target) == before


def test_what_is_there_thanks_to_an_earlier_run_names_the_later_one(target: Path) -> None:
    one = run(target, "mkdir d; echo A > d/a")
    merge_in(one)
    other = run(target, "echo B > d/b; chmod 700 d")
    merge_in(other)
    with pytest.raises(ChangesError) as failed:
        undo(one.id)
    assert f"b is there by run {other.id}: undo that first" in str(failed.value)
    undo(other.id)
    undo(one.id)
    assert not (target / "d").exists()


@pytest.mark.parametrize("thing", ["ln -s nowhere x", "echo old > x"], ids=["link", "file"])
def test_what_an_undo_gave_back_is_not_what_a_run_in_between_began_with(
    target: Path, thing: str
) -> None:
    """It removed what it saw, and that was something else."""
    merge_in(run(target, f"mkdir d; cd d; {thing}"))
    one = run(target, "rm d/x; echo A > d/x")
    merge_in(one)
    other = run(target, "rm -r d")
    undo(one.id)
    before = look(target)
    assert "d/x" in {each.path for each in conflicts(read(other))}
    with pytest.raises(ChangesError) as failed:
        merge_in(other)
    assert failed.value.kind is Kind.CONFLICT
    assert look(target) == before


def test_what_both_did_alike_belongs_to_the_first(target: Path) -> None:
    one, other = run(target, "echo x > n"), run(target, "echo x > n; echo B > free")
    before = look(target)
    merge_in(one)
    merge_in(other)
    undo(one.id)
    assert not (target / "n").exists()
    assert (target / "free").read_text() == "B\n"
    assert [change.path for change in read(other)] == ["n"]
    merge_in(other)
    undo(other.id)
    undo(other.id)
    assert look(target)["paths"].keys() == before["paths"].keys()


@pytest.mark.parametrize("work", ["echo more >> c", "echo more > c", "chmod 600 c"])
def test_a_name_that_went_with_its_run_does_not_come_back_with_the_next(
    target: Path, names: tuple[Path, Path], work: str
) -> None:
    one = run(target, "ln a c")
    merge_in(one)
    other = run(target, work)
    undo(one.id)
    assert [each.kind for each in conflicts(read(other))] == [ConflictKind.DELETED]
    with pytest.raises(ChangesError) as failed:
        merge_in(other)
    assert failed.value.kind is Kind.CONFLICT
    assert not (target / "c").exists()


def test_what_was_made_anew_after_its_own_run_took_it_away_is_no_conflict(target: Path) -> None:
    (target / "a").write_text("text\n")
    layer = run(target, "rm a; touch b")
    merge_in(layer)
    with OverlaySandbox(layer=layer) as sandbox:
        assert sandbox.exec(["sh", "-c", "echo anew > a"]).ok
    assert conflicts(read(layer)) == ()
