"""Two runs over one folder: what both did is brought together, and no line of either gets lost."""

from __future__ import annotations

import shutil
import stat
import time
from pathlib import Path

import pytest
from trees import a_moment_after, look

from podbot.changes.applying import journal
from podbot.changes.applying.apply import Applied, apply
from podbot.changes.applying.recovery import recover
from podbot.changes.applying.undo import forget, undo
from podbot.changes.capture import read
from podbot.changes.diffs.diff import diff
from podbot.changes.diffs.three_way import Choice
from podbot.changes.drift import ConflictKind, conflicts
from podbot.changes.merging import decided
from podbot.changes.model import Change, ChangeKind, ChangeSet
from podbot.errors import ChangesError, Kind
from podbot.sandbox.layers import Layer, copying
from podbot.sandbox.overlay.launcher import OverlaySandbox

LINES = "".join(f"line {number}\n" for number in range(1, 13))


pytestmark = pytest.mark.usefixtures("disks")


@pytest.fixture
def file(target: Path) -> Path:
    path = target / "file"
    path.write_text(LINES)
    return path


def run(target: Path, script: str) -> Layer:
    """A run that is over, begun from what the host has now."""
    a_moment_after(time.time_ns())
    with OverlaySandbox(target) as sandbox:
        result = sandbox.exec(["bash", "-ec", script])
        assert result.ok, result
    assert sandbox.layer is not None
    a_moment_after(time.time_ns())
    return sandbox.layer


def change_of(changes: ChangeSet, path: str = "file") -> Change:
    return next(change for change in changes if change.path == path)


def merge_in(layer: Layer, **options: object) -> Applied:
    return apply(read(layer), **options)  # type: ignore[arg-type]


def with_lines(**lines: str) -> str:
    """The text with some lines replaced: ``l3="x"`` is the third."""
    text = LINES.splitlines()
    for name, line in lines.items():
        text[int(name[1:]) - 1] = line
    return "".join(f"{line}\n" for line in text)


def replace_line(number: int, line: str) -> str:
    return f"sed -i '{number}s/.*/{line}/' file; "


def test_edits_of_two_runs_in_one_file_are_merged(target: Path, file: Path) -> None:
    one, other = run(target, replace_line(2, "A")), run(target, replace_line(9, "B"))
    merge_in(one)
    changes = read(other)
    assert conflicts(changes) == ()
    shown = [line for hunk in diff(changes, change_of(changes)).hunks for line in hunk.lines]
    assert b"+B" in shown and b"-A" not in shown, "what is shown is what will come to the host"
    apply(changes)
    assert file.read_text() == with_lines(l2="A", l9="B")
    assert not read(other) and not read(one), "nothing is left of either"


def test_undoing_both_gives_back_what_was_there(target: Path, file: Path) -> None:
    before = look(target)
    one, other = run(target, replace_line(2, "A")), run(target, replace_line(9, "B"))
    merge_in(one)
    between = look(target)
    merge_in(other)
    undo(other.id)
    assert look(target) == between
    undo(one.id)
    assert look(target) == before


def test_the_first_cannot_be_undone_under_the_second(target: Path, file: Path) -> None:
    one, other = run(target, replace_line(2, "A")), run(target, replace_line(9, "B"))
    merge_in(one)
    merge_in(other)
    with pytest.raises(ChangesError) as failed:
        undo(one.id)
    assert failed.value.kind is Kind.UNDO_REFUSED
    assert f"run {other.id} lies on top: undo that first" in str(failed.value)
    assert file.read_text() == with_lines(l2="A", l9="B")


def test_what_was_undone_is_merged_again(target: Path, file: Path) -> None:
    one, other = run(target, replace_line(2, "A")), run(target, replace_line(9, "B"))
    merge_in(one)
    merge_in(other)
    undo(other.id)
    assert file.read_text() == with_lines(l2="A")
    merge_in(other)
    assert file.read_text() == with_lines(l2="A", l9="B")
    undo(other.id)
    undo(one.id)
    assert file.read_text() == LINES
    merge_in(other)
    assert file.read_text() == with_lines(l9="B")
    merge_in(one)
    assert file.read_text() == with_lines(l2="A", l9="B")


def test_the_same_lines_are_a_conflict_that_shows_all_sides(target: Path, file: Path) -> None:
    one, other = run(target, replace_line(5, "A")), run(target, replace_line(5, "B"))
    merge_in(one)
    changes = read(other)
    (conflict,) = conflicts(changes)
    assert conflict.kind is ConflictKind.OVERLAP
    assert one.id in conflict.message and "line 5" in conflict.message
    (overlap,) = changes.merges[str(file)].overlaps
    assert (overlap.base, overlap.host, overlap.run) == (b"line 5\n", b"A\n", b"B\n")
    with pytest.raises(ChangesError) as failed:
        apply(changes)
    assert failed.value.kind is Kind.CONFLICT
    assert file.read_text() == with_lines(l5="A")


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [(Choice.HOST, "A"), (Choice.RUN, "B"), (Choice.RUN_FIRST, "B\nA"), (Choice.BASE, "line 5")],
)
def test_overlaps_are_decided_one_by_one(
    target: Path, file: Path, choice: Choice, wanted: str
) -> None:
    one = run(target, replace_line(5, "A") + replace_line(1, "A1"))
    other = run(target, replace_line(5, "B") + replace_line(11, "B11"))
    merge_in(one)
    between = look(target)
    chosen = decided(read(other), {str(file): [choice]})
    assert conflicts(chosen) == ()
    apply(chosen)
    assert file.read_text() == with_lines(l1="A1", l5=wanted, l11="B11")
    assert not read(other), "all of it was decided on"
    undo(other.id)
    assert look(target) == between


def test_each_overlap_wants_a_choice(target: Path, file: Path) -> None:
    one, other = run(target, replace_line(5, "A")), run(target, replace_line(5, "B"))
    merge_in(one)
    changes = read(other)
    for choices in ({str(file): []}, {"elsewhere": [Choice.RUN]}):
        with pytest.raises(ChangesError) as failed:
            decided(changes, choices)
        assert failed.value.kind is Kind.INVALID


def test_taking_only_what_the_host_has_leaves_nothing_to_apply(target: Path, file: Path) -> None:
    one, other = run(target, replace_line(5, "A")), run(target, replace_line(5, "B"))
    merge_in(one)
    assert not decided(read(other), {str(file): [Choice.HOST]})


def test_wherever_an_apply_of_both_fails_the_host_has_one_or_the_other(
    target: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = run(target, replace_line(2, "A")), run(target, replace_line(9, "B"))
    merge_in(one)
    before = look(target)
    left = [0]

    def fail(label: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(f"no {label}")

    for at in range(1, 200):
        left[0] = at
        with monkeypatch.context() as patch:
            patch.setattr(journal, "step", fail)
            try:
                merge_in(other)
            except (ChangesError, OSError):
                pass
            else:
                break
        recover()
        if look(target) != before:  # it was done, but for what had still to be removed
            assert file.read_text() == with_lines(l2="A", l9="B")
            assert not read(other)
            undo(other.id)
            assert look(target) == before
        assert conflicts(read(other)) == (), "it is merged as if nothing had been tried"
    assert at > 5
    assert file.read_text() == with_lines(l2="A", l9="B")


def test_conflicts_can_be_left_out_or_overwritten(target: Path, file: Path) -> None:
    (target / "free").write_text(LINES)
    one = run(target, replace_line(5, "A"))
    other = run(target, replace_line(5, "B") + "echo more >> free")
    merge_in(one)
    applied = merge_in(other, on_conflict="skip")
    assert [change.path for change, _ in applied.skipped] == ["file"]
    assert file.read_text() == with_lines(l5="A")
    assert (target / "free").read_text() == LINES + "more\n"
    merge_in(other, on_conflict="overwrite")
    assert file.read_text() == with_lines(l5="B")
    assert not read(other)


def test_a_merge_can_be_taken_in_part(target: Path, file: Path) -> None:
    one = run(target, replace_line(6, "A"))
    other = run(target, replace_line(1, "B1") + replace_line(12, "B12"))
    merge_in(one)
    changes = read(other)
    assert len(diff(changes, change_of(changes)).hunks) == 2
    apply(changes, hunks={"file": [0]})
    assert file.read_text() == with_lines(l1="B1", l6="A")
    merge_in(other)
    assert file.read_text() == with_lines(l1="B1", l6="A", l12="B12")


def test_what_both_did_alike_is_nothing_to_do(target: Path, file: Path) -> None:
    script = replace_line(5, "both") + "echo same > new; ln -s file link; mkdir -p d; echo x > d/x"
    one, other = run(target, script), run(target, script)
    merge_in(one)
    assert not read(other)


def test_files_both_added_overlap_as_a_whole(target: Path, file: Path) -> None:
    one, other = run(target, "echo A > new"), run(target, "echo B > new")
    merge_in(one)
    changes = read(other)
    (conflict,) = conflicts(changes)
    assert (conflict.path, conflict.kind) == ("new", ConflictKind.OVERLAP)
    apply(decided(changes, {str(target / "new"): [Choice.HOST_FIRST]}))
    assert (target / "new").read_text() == "A\nB\n"


def test_several_runs_after_each_other_are_merged(target: Path, file: Path) -> None:
    runs = [run(target, replace_line(3 * n + 1, f"R{n}")) for n in range(4)]
    before = look(target)
    for each in runs:
        merge_in(each)
    assert file.read_text() == with_lines(l1="R0", l4="R1", l7="R2", l10="R3")
    assert not any(read(each) for each in runs)
    for each in reversed(runs):
        undo(each.id)
    assert look(target) == before


def test_a_run_that_began_after_the_first_was_applied_is_merged_with_the_second(
    target: Path, file: Path
) -> None:
    one, two = run(target, replace_line(2, "A")), run(target, replace_line(5, "B"))
    merge_in(one)
    three = run(target, replace_line(2, "A then C"))
    merge_in(two)
    merge_in(three)
    assert file.read_text() == with_lines(l2="A then C", l5="B")


# What each run did besides lines


def test_a_mode_that_one_of_them_changed_is_merged_too(target: Path, file: Path) -> None:
    one, other = run(target, replace_line(2, "A")), run(target, "chmod 755 file")
    merge_in(one)
    changes = read(other)
    assert change_of(changes).kind is ChangeKind.MODE
    apply(changes)
    assert (file.read_text(), file.stat().st_mode & 0o777) == (with_lines(l2="A"), 0o755)
    assert not read(other) and not read(one)
    undo(other.id)
    assert (file.read_text(), file.stat().st_mode & 0o777) == (with_lines(l2="A"), 0o644)


def test_lines_are_merged_with_a_mode_the_other_changed(target: Path, file: Path) -> None:
    one, other = run(target, "chmod 755 file"), run(target, replace_line(2, "B"))
    merge_in(one)
    merge_in(other)
    assert (file.read_text(), file.stat().st_mode & 0o777) == (with_lines(l2="B"), 0o755)


PLAIN: dict[str, tuple[str, str, str]] = {
    "both changed the mode": ("chmod 755 file", "chmod 600 file", "changed its mode too"),
    "binary": ("printf '\\0A' > file", "printf '\\0B' > file", "it is binary"),
    "one removed it": (replace_line(2, "A"), "rm file", "this one removed it"),
    "the other removed it": ("rm file", replace_line(2, "B"), "removed it"),
    "the other removed it, and it was written anew": (
        "rm file",
        "cp file t; mv t file; echo more >> file",
        "removed it",
    ),
    "the other removed it, and something was moved there": (
        "rm file",
        "mv more file",
        "removed it",
    ),
    "one made it a link": ("ln -sf x file", replace_line(2, "B"), "not both files"),
    "one gave it another name": (
        "ln file name; echo more >> file",
        replace_line(2, "B"),
        "several names",
    ),
}


@pytest.mark.parametrize("case", PLAIN)
def test_what_cannot_be_merged_is_a_plain_conflict(target: Path, file: Path, case: str) -> None:
    first, second, reason = PLAIN[case]
    (target / "more").write_text("more\n" * 9)
    one, other = run(target, first), run(target, second)
    merge_in(one, allow_flagged=True)
    after = look(target)
    changes = read(other)
    found = {each.path: each for each in conflicts(changes)}
    assert found["file"].kind in (ConflictKind.CHANGED, ConflictKind.DELETED)
    assert reason in found["file"].message
    with pytest.raises(ChangesError) as failed:
        apply(changes)
    assert failed.value.kind is Kind.CONFLICT
    assert look(target) == after


def test_what_the_host_edited_in_between_is_a_plain_conflict(target: Path, file: Path) -> None:
    one, other = run(target, replace_line(2, "A")), run(target, replace_line(9, "B"))
    merge_in(one)
    file.write_text(file.read_text().replace("line 5", "mine"))
    assert [each.kind for each in conflicts(read(other))] == [ConflictKind.CHANGED]


def test_what_the_host_edited_before_is_a_plain_conflict(target: Path, file: Path) -> None:
    one, other = run(target, replace_line(2, "A")), run(target, replace_line(9, "B"))
    file.write_text(file.read_text().replace("line 5", "mine"))
    merge_in(one, on_conflict="overwrite")
    assert [each.kind for each in conflicts(read(other))] == [ConflictKind.CHANGED]


def test_without_the_store_of_the_first_it_is_a_plain_conflict(target: Path, file: Path) -> None:
    one, other = run(target, replace_line(2, "A")), run(target, replace_line(9, "B"))
    merge_in(one)
    forget(one.id, one)
    assert [each.kind for each in conflicts(read(other))] == [ConflictKind.CHANGED]


def test_a_store_that_lost_or_changed_the_file_is_not_believed(target: Path, file: Path) -> None:
    one, other = run(target, replace_line(2, "A")), run(target, replace_line(9, "B"))
    merge_in(one)
    (own,) = journal.found()
    (kept,) = (Path(own.read().places[0].kept) / "0",)
    text = kept.read_text()
    kept.write_text(text.replace("line 5", "LINE 5"))
    assert [each.kind for each in conflicts(read(other))] == [ConflictKind.CHANGED]
    shutil.rmtree(kept.parent)
    assert [each.kind for each in conflicts(read(other))] == [ConflictKind.CHANGED]


def test_the_host_editing_after_the_look_stops_the_merge(target: Path, file: Path) -> None:
    one, other = run(target, replace_line(2, "A")), run(target, replace_line(9, "B"))
    merge_in(one)
    changes = read(other)
    file.write_text("mine\n")
    with pytest.raises(ChangesError) as failed:
        apply(changes)
    assert failed.value.kind is Kind.CONFLICT
    assert file.read_text() == "mine\n"


def test_a_run_applied_after_the_look_is_named_and_merged_at_the_next(
    target: Path, file: Path
) -> None:
    one, other = run(target, replace_line(2, "A") + "echo A > new"), run(target, "echo B >> file")
    third = run(target, "echo C > new")
    changes, of_third = read(other), read(third)
    merge_in(one)
    for seen in (changes, of_third):
        with pytest.raises(ChangesError, match="look again") as failed:
            apply(seen)
        assert failed.value.kind is Kind.CONFLICT
        assert f"run {one.id} was applied or undone there since" in failed.value.message
        assert "the host has" not in failed.value.message
    merge_in(other)
    assert file.read_text() == f"{with_lines(l2='A')}B\n"


# Written after the first was applied


def test_a_file_written_after_the_first_was_applied_is_a_plain_conflict(
    target: Path, file: Path
) -> None:
    """It was made from either version: nobody can tell whether what is not in it was taken out."""
    one = run(target, replace_line(2, "A"))
    a_moment_after(time.time_ns())
    with OverlaySandbox(target) as sandbox:
        assert sandbox.exec(["true"]).ok
        merge_in(one)
        a_moment_after(time.time_ns())
        assert sandbox.exec(["bash", "-ec", "cp file t; mv t file;" + replace_line(2, "x")]).ok
    assert sandbox.layer is not None
    (conflict,) = conflicts(read(sandbox.layer))
    assert conflict.kind is ConflictKind.CHANGED
    assert "may have been made from either version" in conflict.message


def test_one_that_holds_all_the_first_did_proves_itself(target: Path, file: Path) -> None:
    one = run(target, replace_line(2, "A"))
    with OverlaySandbox(target) as sandbox:
        assert sandbox.exec(["true"]).ok
        merge_in(one)
        a_moment_after(time.time_ns())
        assert sandbox.exec(["bash", "-ec", replace_line(9, "B")]).ok
    assert sandbox.layer is not None
    changes = read(sandbox.layer)
    assert conflicts(changes) == ()
    apply(changes)
    assert file.read_text() == with_lines(l2="A", l9="B")


def test_a_copy_cannot_have_seen_what_came_later(
    target: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = run(target, replace_line(2, "A"))
    monkeypatch.setattr(copying, "needed", lambda targets: "the test wants it")
    with OverlaySandbox(target) as sandbox:
        assert sandbox.exec(["true"]).ok
        merge_in(one)
        a_moment_after(time.time_ns())
        assert sandbox.exec(["bash", "-ec", replace_line(9, "B")]).ok
    assert sandbox.layer is not None
    merge_in(sandbox.layer)
    assert file.read_text() == with_lines(l2="A", l9="B")


def test_a_run_that_goes_on_after_it_was_merged_is_merged_again(target: Path, file: Path) -> None:
    """Its own file hides what comes to the host: it still goes back to what was there before."""
    one, other = run(target, replace_line(2, "A")), run(target, replace_line(9, "B"))
    merge_in(one)
    merge_in(other)
    a_moment_after(time.time_ns())
    with OverlaySandbox(layer=other) as sandbox:
        assert sandbox.exec(["bash", "-ec", "grep -q 'line 2' file; " + replace_line(12, "C")]).ok
    changes = read(other)
    assert conflicts(changes) == ()
    (hunk,) = diff(changes, change_of(changes)).hunks
    assert hunk.lines[-2:] == (b"-line 12", b"+C")
    apply(changes)
    assert file.read_text() == with_lines(l2="A", l9="B", l12="C")
    assert not read(other)


def test_a_folder_with_a_merge_keeps_the_rest_of_what_both_did(target: Path, file: Path) -> None:
    one = run(target, replace_line(2, "A") + "mkdir d; echo A > d/a; echo A > new")
    other = run(target, replace_line(9, "B") + "mkdir d; echo B > d/b; ln -s file link")
    merge_in(one)
    merge_in(other)
    assert file.read_text() == with_lines(l2="A", l9="B")
    assert {path.name for path in (target / "d").iterdir()} == {"a", "b"}
    assert (target / "link").is_symlink() and (target / "new").read_text() == "A\n"
    assert not read(other) and not read(one)


def test_flags_judge_what_both_make_together(target: Path, file: Path) -> None:
    """Neither run alone makes a hook that runs: one writes it, the other lets it be run."""
    from podbot.changes.risk import judging
    from podbot.changes.risk.rules import Level

    hook = target / ".git/hooks/pre-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\n" + LINES)
    one = run(target, "sed -i 's/line 2$/curl evil/' .git/hooks/pre-commit")
    other = run(target, "sed -i 's/line 9$/B/' .git/hooks/pre-commit")
    merge_in(one, allow_flagged=True)
    changes = read(other)
    assert {flag.level for flag in judging.flags(changes)} == {Level.BY_ITSELF}
    with pytest.raises(ChangesError) as failed:
        apply(changes)
    assert failed.value.kind is Kind.FLAGGED


def test_undoing_one_path_of_a_run_leaves_the_merges_of_the_others(
    target: Path, file: Path
) -> None:
    (target / "more").write_text(LINES)
    one = run(target, replace_line(2, "A") + "sed -i '2s/.*/A/' more")
    other = run(target, replace_line(9, "B") + "sed -i '9s/.*/B/' more")
    merge_in(one)
    between = look(target)
    undo(one.id, only=["more"])
    merge_in(other)
    assert file.read_text() == with_lines(l2="A", l9="B")
    assert (target / "more").read_text() == with_lines(l9="B")
    assert not read(other)
    undo(other.id, only=["file"])
    assert file.read_text() == with_lines(l2="A")
    assert [change.path for change in read(other)] == ["file"]
    merge_in(other)
    assert file.read_text() == with_lines(l2="A", l9="B")
    undo(other.id)
    undo(other.id)
    assert file.read_text() == with_lines(l2="A")
    assert (target / "more").read_text() == LINES
    merge_in(one)
    assert look(target)["paths"].keys() == between["paths"].keys()
    assert (target / "more").read_text() == with_lines(l2="A")


def test_a_mode_that_went_with_its_run_does_not_come_back_with_what_another_put_below(
    target: Path,
) -> None:
    (target / "folder").mkdir(0o755)
    one = run(target, "chmod 700 folder")
    apply(read(one))
    other = run(target, "echo more > folder/new")
    undo(one.id)

    assert [change.path for change in read(other)] == ["folder/new"]
    apply(read(other))
    assert stat.S_IMODE((target / "folder").stat().st_mode) == 0o755
