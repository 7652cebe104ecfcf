"""A run under review, as a program decides on it: the rules of `podbot changes`, without a word."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import PODBOT, ran

from podbot import review
from podbot.changes import Choice, progress
from podbot.changes.applying.apply import Applied
from podbot.config import places
from podbot.errors import ChangesError, Kind
from podbot.review import Review
from podbot.review.picking import picked
from podbot.runs import records
from podbot.sandbox import OverlaySandbox, layers

EDITS = "echo new > src/new.py; sed -i '2s/.*/two/; 90s/.*/ninety/' numbers; rm -r old;"
ENVRC = "mkdir -p a; echo x > a/.envrc;"
HOOK = "mkdir -p v/x/.git/hooks; echo evil > v/x/.git/hooks/post-merge;"
VENV = (
    "mkdir -p v/bin; touch v/pyvenv.cfg;"
    "for n in 1 2 3 4 5; do echo > v/bin/t$n; done; chmod +x v/bin/*;"
)
CLOCK_REALTIME_COARSE = 5
"""The clock that stamps files."""

# A podbot that is killed when it has put a file into place.
KILLED = """
import os, signal, sys
from podbot import review
from podbot.changes.applying import journal
label, left = sys.argv[1], [1]
def step(what):
    left[0] -= what == label
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
journal.step = step
found = review.open(sys.argv[2])
found.apply() if label == "swap" else found.undo()
"""


@contextlib.contextmanager
def refused(kind: Kind, what: str | None = None) -> Iterator[None]:
    """An error whose remedy is for a program, not for who types."""
    with pytest.raises(ChangesError, match=what) as caught:
        yield
    assert caught.value.kind is kind
    assert "podbot changes" not in (caught.value.remedy or "")
    assert "--" not in str(caught.value)


def names(applied: Applied) -> list[str]:
    return [change.path for change in applied.changed]


def a_run(project: Path, script: str, here: Path | None = None) -> Review:
    """A run that was over before anything else happens."""
    id = ran(project, script)
    now = time.time_ns()
    while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= now:
        time.sleep(0.001)
    return review.open(id, here=here)


def line(project: Path, number: int) -> str:
    return (project / "numbers").read_text().splitlines()[number - 1]


# Looking


def test_a_summary_counts_and_sorts_what_needs_care(project: Path) -> None:
    found = a_run(project, EDITS + ENVRC + VENV)
    (project / "numbers").write_text("the host's own\n")

    summary = found.summary

    counts = {kind.value: count for kind, count in summary.counts.items() if count}
    assert counts == {"added": 11, "modified": 1, "deleted": 3}
    assert summary.size == sum(change.size for change in found.changes)
    assert [each.change.path for each in found.conflicts] == ["numbers"]
    assert [fold.path for fold in summary.folds] == ["v"]
    folders = {each.path: each for each in found.flags_by_folder()}
    assert [flag.change.path for flag in folders["a"].flags] == ["a/.envrc"]
    assert (folders["a"].expected, folders["a"].fold) == ((), None)
    assert len(folders["v/bin"].flags) == 5
    assert folders["v/bin"].expected == folders["v/bin"].flags
    assert folders["v/bin"].fold == summary.folds[0]


def test_data_is_what_the_command_prints(project: Path) -> None:
    found = a_run(project, EDITS + ENVRC)
    found.apply(["numbers"])

    printed = subprocess.check_output([*PODBOT, "changes", "show", found.entry.id, "--json"])

    assert json.loads(json.dumps(found.data())) == json.loads(printed)


def test_a_diff_means_paths_as_everything_does(project: Path) -> None:
    found = a_run(project, EDITS, here=project / "src")

    several = [file.change.path for file in found.diff("new.py", "numbers")]
    (one,) = found.diff("numbers")

    assert several == ["numbers", "src/new.py"]
    assert len(one.hunks) == 2
    with refused(Kind.NOTHING_SELECTED, "'nowhere'"):
        next(found.diff("nowhere"))


def test_what_is_gone_or_damaged_is_told_as_that(project: Path) -> None:
    lost, damaged = a_run(project, EDITS), a_run(project, EDITS)
    assert lost.entry.layer and damaged.entry.layer
    layers.remove(lost.entry.layer.path)

    with refused(Kind.UNKNOWN_ID, "nobody discarded them"):
        _ = review.open(lost.entry.id).summary
    assert review.open(lost.entry.id).data()["changes"] == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("podbot.changes.diffs.diff.compared", lambda *_: 1 / 0)
        with refused(Kind.IO, "cannot be read: ZeroDivisionError"):
            damaged.data()
        with refused(Kind.IO, "cannot be read: ZeroDivisionError"):
            list(damaged.diff("numbers"))


# Applying


def test_what_is_applied_can_be_undone_and_what_is_left_is_seen_at_once(project: Path) -> None:
    found = a_run(project, EDITS)

    applied = found.apply(["numbers", "src"])
    left = [change.path for change in found.changes]
    undone = found.undo()

    assert names(applied) == ["numbers", "src/new.py"]
    assert left == ["old", "old/one", "old/two"]
    assert set(undone.restored) == {f"{project}/numbers", f"{project}/src/new.py"}
    assert [each.undone for each in found.applications] == [True]
    assert len(found.changes) == 5


def test_what_runs_by_itself_needs_a_word(project: Path) -> None:
    found = a_run(project, ENVRC)

    with refused(Kind.FLAGGED, "a/.envrc"):
        found.apply()
    with refused(Kind.NOTHING_SELECTED, "nothing of that name"):
        found.apply(allow=["b"])

    assert not (project / "a").exists()
    assert names(found.apply(allow=["a/*"])) == ["a", "a/.envrc"]


def test_a_folder_of_packages_answers_for_packages_alone(project: Path) -> None:
    found = a_run(project, VENV + HOOK)

    with refused(Kind.FLAGGED, "does not answer for"):
        found.apply(allow=["v"])
    consent = found.consent(["v"])

    assert [flag.change.path for flag in consent.strangers] == ["v/x/.git/hooks/post-merge"]
    assert f"{project}/v/x/.git/hooks/post-merge" not in consent.paths
    assert f"{project}/v/bin/t1" in consent.paths
    assert not (project / "v").exists()
    allowed = found.consent(["v", "v/x/.git/hooks/post-merge"])
    assert [change.path for change in allowed.unnamed[:5]] == [f"v/bin/t{n}" for n in range(1, 6)]
    assert found.apply(allow=allowed).skipped == ()


def test_true_allows_all_of_it(project: Path) -> None:
    found = a_run(project, VENV + HOOK)
    assert found.apply(allow=True).skipped == ()


def test_a_conflict_stops_unless_it_is_decided(project: Path) -> None:
    found = a_run(project, EDITS)
    (project / "numbers").write_text("the host's own\n")

    with refused(Kind.CONFLICT, "numbers"):
        found.apply()
    skipping = found.apply(on_conflict="skip")
    overwriting = found.apply(on_conflict="overwrite")

    assert [change.path for change, _ in skipping.skipped] == ["numbers"]
    assert names(overwriting) == ["numbers"]
    assert line(project, 2) == "two"


def test_hunks_are_picked_by_path(project: Path) -> None:
    found = a_run(project, EDITS)

    two = found.pick(["src"], hunks={"numbers": [1]})

    assert names(found.apply(two)) == ["numbers", "src/new.py"]
    assert (line(project, 2), line(project, 90)) == ("2", "ninety")
    with refused(Kind.NOTHING_SELECTED, "'old/none'"):
        found.pick(hunks={"old/none": [0]})


def test_a_folder_stays_if_not_all_in_it_was_picked(project: Path) -> None:
    found = a_run(project, EDITS + "mkdir -p new/sub; echo x > new/sub/file")
    summary = found.summary
    changes = {change.path: change.where for change in summary.changes}

    taken = picked(
        summary.changes, {changes["old"], changes["old/one"], changes["new/sub/file"]}, {}
    )

    assert [change.path for change in taken.changes] == [
        "new",
        "new/sub",
        "new/sub/file",
        "old/one",
    ]
    assert [change.path for change in taken.staying] == ["old"]
    found.apply(taken)
    assert (project / "old" / "two").exists() and not (project / "old" / "one").exists()


def test_what_comes_into_conflict_after_the_questions_stops_it(project: Path) -> None:
    found = a_run(project, EDITS)
    (project / "numbers").write_text("the host's own\n")
    every = {change.where for change in found.changes}
    taken = picked(found.changes, every, {}, overwriting=[f"{project}/numbers"])
    (project / "src" / "new.py").write_text("and this\n")

    with refused(Kind.CONFLICT, "src/new.py"):
        found.apply(taken)

    assert (project / "numbers").read_text() == "the host's own\n"


def test_lines_that_two_runs_changed_are_decided_on(project: Path) -> None:
    one = a_run(project, "sed -i '5s/.*/A/' numbers")
    two = a_run(project, "sed -i '5s/.*/B/; 50s/.*/fifty/' numbers")
    one.apply()

    ((change, merge),) = two.overlaps
    with refused(Kind.CONFLICT):
        two.apply()
    assert [each.run for each in merge.overlaps] == [b"B\n"]
    decided = two.pick(lines={change.where: [Choice.RUN_FIRST]})
    two.apply(decided)

    text = (project / "numbers").read_text().splitlines()
    assert text[4:6] == ["B", "A"] and "fifty" in text


# Taking back


def test_a_part_is_undone_and_paths_are_meant_from_here_too(project: Path) -> None:
    found = a_run(project, EDITS, here=project / "src")
    found.apply()

    undone = found.undo(["new.py"])

    assert undone.restored == (f"{project}/src/new.py",)
    with refused(Kind.NOTHING_SELECTED, "'nowhere'"):
        found.undo(["nowhere"])
    (project / "numbers").write_text("the host's own\n")
    with pytest.raises(ChangesError) as caught:
        found.undo()
    assert caught.value.kind is Kind.UNDO_REFUSED
    assert [where for where, _ in found.undo(on_conflict="skip").skipped] == [f"{project}/numbers"]


# Files


@pytest.mark.parametrize("ending", ["tar", "patch"])
def test_changes_are_saved_whole_or_not(project: Path, ending: str) -> None:
    found = a_run(project, EDITS)
    file = project.parent / f"work.{ending}"

    saved = found.save(file, ["src", "numbers"])

    assert (saved.format, saved.changes_count, saved.size) == (ending, 2, file.stat().st_size)
    with refused(Kind.EXISTS):
        found.save(file)
    with refused(Kind.INVALID, "which format"):
        found.save(project.parent / "work.zip")


def test_a_tarball_is_a_run_again_over_the_folder_that_is_meant(
    project: Path, tmp_path: Path
) -> None:
    saved = a_run(project, EDITS).save(tmp_path / "work.tar")
    before = records.entries()

    with pytest.raises(ChangesError) as caught:
        review.load(saved.file, within=tmp_path)
    assert caught.value.kind is Kind.TARGET_REFUSED
    with refused(Kind.NOT_FOUND):
        review.load(tmp_path / "nothing.tar")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("podbot.review.summary.summary", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            review.load(saved.file)
    assert records.entries() == before

    assert len(review.load(saved.file).changes) == 5
    elsewhere = review.load(saved.file, [str(tmp_path)], within="/usr")
    assert {change.target for change in elsewhere.changes} == {str(tmp_path)}


# Runs that work, and what was cut short


def test_a_run_that_works_is_only_looked_at(project: Path) -> None:
    with OverlaySandbox(project) as sandbox:
        sandbox.write("src/new.py", "new\n")
        assert sandbox.layer
        found = review.open(sandbox.layer.id)

        assert [change.path for change in found.changes] == ["src/new.py"]
        for decide in (found.apply, found.undo, found.discard):
            with refused(Kind.IN_USE, "still runs"):
                decide()
        (outcome,) = review.discard([found.entry])
        assert outcome.problem is not None and outcome.problem.kind is Kind.IN_USE
    found.discard()


def killed(label: str, found: Review) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, label, found.entry.id], check=False)
    assert done.returncode == -signal.SIGKILL
    assert places.unfinished()


def test_the_first_look_heals_and_says_so(project: Path) -> None:
    found = a_run(project, EDITS)
    heard: list[progress.Step] = []
    killed("swap", found)

    with progress.listening(heard.append):
        changes = found.changes

    assert len(changes) == 5 and not places.unfinished()
    assert "was interrupted" in found.healed[0]
    assert [step.doing for step in heard if step.healed] == list(found.healed)
    again = review.open(found.entry.id)
    assert (len(again.changes), again.healed) == (5, ())


def test_an_undo_goes_on_with_one_that_was_cut_short(project: Path) -> None:
    found = a_run(project, EDITS)
    found.apply(["src"])
    found.apply()
    killed("swap back", found)

    undone = review.open(found.entry.id).undo()

    assert f"{project}/numbers" in undone.restored
    assert (project / "src" / "new.py").exists()  # the one before is still applied


# Listing and throwing away


def test_runs_are_listed_with_what_they_left(project: Path, tmp_path: Path) -> None:
    done, damaged = a_run(project, "echo 1 > one"), a_run(project, "echo 2 > two")
    done.apply()
    assert damaged.entry.layer
    layers.remove(damaged.entry.layer.upper(0))

    second, first = review.listed(review.entries(project))

    assert (first.entry.id, first.changes_count, first.applied) == (done.entry.id, 0, True)
    assert (second.changes_count, second.size) == (None, None)
    assert second.problem is not None and "cannot be read" in second.problem
    assert review.entries(tmp_path) == []
    assert len(review.entries(project / "old" / ".." / "src")) == 2
    assert review.entries(older_than=3600) == []


def test_runs_are_thrown_away_together(project: Path) -> None:
    found = [a_run(project, "echo 1 > one"), a_run(project, "echo 2 > two")]
    found[0].apply()

    outcomes = review.discard(review.entries(older_than=0))

    assert {each.entry.id for each in outcomes} == {each.entry.id for each in found}
    assert [each.problem for each in outcomes] == [None, None]
    assert records.entries() == [] and (project / "one").exists()
    with pytest.raises(ChangesError) as caught:
        found[0].undo()
    assert caught.value.kind is Kind.NOTHING_TO_UNDO


def test_last_is_the_latest_here(project: Path) -> None:
    first = a_run(project, "echo 1 > one")
    a_run(project / "src", "echo 2 > two")

    assert review.open(here=project).entry.id == first.entry.id
    assert review.open().entry.id != first.entry.id
    with pytest.raises(ChangesError) as caught:
        review.open(here="/usr")
    assert caught.value.kind is Kind.UNKNOWN_ID


def test_a_run_that_was_discarded_meanwhile_is_unknown(project: Path) -> None:
    found = review.open(ran(project, EDITS))
    assert found.changes
    review.open(found.entry.id).discard()
    before = sorted(project.rglob("*"))

    with pytest.raises(ChangesError) as caught:
        found.apply()

    assert caught.value.kind is Kind.UNKNOWN_ID
    assert "the run was discarded" in caught.value.message
    assert sorted(project.rglob("*")) == before
