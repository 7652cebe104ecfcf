"""Two runs over one folder on the command line: what is merged is said, what overlaps is asked."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runs import ran, workplace

from podbot.cli import main

Captured = pytest.CaptureFixture[str]
CLOCK_REALTIME_COARSE = 5
"""The clock that stamps files."""


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def a_run(project: Path, *edits: str, name: str | None = None) -> str:
    """The id of a run that edited lines of ``numbers``, over before anything else happens."""
    id = ran(project, "".join(f"sed -i '{edit}' numbers;" for edit in edits), name)
    now = time.time_ns()
    while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= now:
        time.sleep(0.001)
    return id


def did(capsys: Captured, *words: str, code: int = 0) -> str:
    assert main(["changes", *words]) == code
    told = capsys.readouterr()
    return told.out + told.err


def data(capsys: Captured, *words: str, code: int = 0) -> Any:
    assert main(["changes", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def answers(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{one}\n" for one in text.split())))


def lines(project: Path, *numbers: int) -> list[str]:
    text = (project / "numbers").read_text().splitlines()
    return [text[number - 1] for number in numbers]


def test_what_is_merged_is_said_and_applied(project: Path, capsys: Captured) -> None:
    one = a_run(project, "5s/.*/A/", name="first agent")
    other = a_run(project, "50s/.*/B/")
    did(capsys, "apply", one)

    shown = did(capsys, "show", other)
    assert (
        "merged with what other runs applied:\n  numbers: with changes of run first agent" in shown
    )
    assert "conflict" not in shown
    diff = did(capsys, "diff", other)
    assert "\n+B\n" in diff
    assert "\n-A\n" not in diff
    did(capsys, "apply", other)
    assert lines(project, 5, 50) == ["A", "B"]
    assert "nothing is left to apply" in did(capsys, "show", other)


def test_what_overlaps_is_shown_with_all_sides(project: Path, capsys: Captured) -> None:
    one = a_run(project, "5s/.*/A/", name="first")
    other = a_run(project, "5s/.*/B/", "50s/.*/fifty/")
    did(capsys, "apply", one)

    shown = did(capsys, "diff", other)
    assert (
        "overlap 1 of 1, at line 5 of what the host has\n"
        "before both:\n  5\nthe host, by run first:\n  A\nthis run:\n  B\n"
    ) in shown
    assert "run first changed the same lines (at line 5)" in did(capsys, "show", other)
    (file,) = data(capsys, "diff", other)["files"]
    assert file["merge"] == {
        "runs": [one],
        "merged": False,
        "problem": None,
        "overlaps": [
            {
                "base_line": 5, "host_line": 5, "run_line": 5,
                "base": "5\n", "host": "A\n", "run": "B\n",
            }
        ],
    }  # fmt: skip
    (change,) = data(capsys, "show", other)["changes"]
    assert change["conflict"]["kind"] == "overlap"
    refused = did(capsys, "apply", other, code=2)
    assert f"podbot changes pick {other}" in refused or "pick" in refused
    assert lines(project, 5, 50) == ["A", "50"]


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [("h", ["A"]), ("r", ["B"]), ("b", ["A", "B"]), ("t", ["B", "A"]), ("o", ["5"])],
)
def test_pick_asks_which_lines_to_take(
    project: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    wanted: list[str],
) -> None:
    one = a_run(project, "5s/.*/A/", name="first")
    other = a_run(project, "5s/.*/B/", "50s/.*/fifty/")
    did(capsys, "apply", one)

    # Which lines; then each hunk of what that makes of the file, all of them.
    answers(monkeypatch, f"? {answer} a")
    shown = did(capsys, "pick", other)

    assert "numbers: run first and this one changed the same lines" in shown
    assert "  b  both, the host's first\n" in shown
    text = (project / "numbers").read_text().splitlines()
    assert text[4 : 4 + len(wanted)] == wanted
    assert "fifty" in text
    assert len(text) == 99 + len(wanted)
    did(capsys, "undo", other)
    assert lines(project, 5, 50) == ["A", "50"]


def test_a_file_can_be_left_and_an_end_of_answers_applies_nothing(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = a_run(project, "5s/.*/A/"), a_run(project, "5s/.*/B/")
    did(capsys, "apply", one)
    answers(monkeypatch, "l")
    assert "nothing was taken" in did(capsys, "pick", other, code=1)
    answers(monkeypatch, "")
    assert "nothing was applied" in did(capsys, "pick", other, code=1)
    assert lines(project, 5) == ["A"]


def git_apply(project: Path, file: Path) -> None:
    subprocess.run(["git", "apply", str(file)], cwd=project, check=True)


def test_a_patch_of_what_overlaps_holds_the_rest_of_both_and_says_where(
    project: Path, capsys: Captured
) -> None:
    one = a_run(project, "5s/.*/A/", "20s/.*/A20/", name="first")
    other = a_run(project, "5s/.*/B/", "50s/.*/B50/")
    did(capsys, "apply", one)
    file = project.parent / "other.patch"
    told = did(capsys, "save", other, str(file))
    assert "numbers: run first changed the same lines (at line 5): the patch leaves what" in told
    assert "to decide first: podbot changes pick" in told
    assert main(["changes", "diff", "--patch", other]) == 0
    printed = capsys.readouterr()
    assert printed.out.encode() == file.read_bytes()
    assert "changed the same lines (at line 5)" in printed.err
    git_apply(project, file)
    assert lines(project, 5, 20, 50) == ["A", "A20", "B50"]


def test_a_patch_of_what_overlaps_only_is_refused(project: Path, capsys: Captured) -> None:
    one, other = a_run(project, "5s/.*/A/"), a_run(project, "5s/.*/B/")
    did(capsys, "apply", one)
    file = project.parent / "other.patch"
    told = did(capsys, "save", other, str(file), code=2)
    assert "changed the same lines (at line 5)" in told and "podbot changes pick" in told
    assert not file.exists()


def test_a_patch_leaves_out_what_is_a_plain_conflict_with_another_run(
    project: Path, capsys: Captured
) -> None:
    """It would take back what the other did, where nobody asks any more."""
    one = ran(project, "printf '\\0A' > binary; chmod 600 numbers", None)
    other = ran(project, "printf '\\0B' > binary; echo B > free; chmod 640 numbers", None)
    did(capsys, "apply", one)
    file = project.parent / "other.patch"
    told = did(capsys, "save", other, str(file))
    assert "binary: run" in told and "it is binary" in told
    git_apply(project, file)
    assert (project / "binary").read_bytes() == b"\0A"
    assert (project / "free").read_text() == "B\n"


def test_an_archive_of_what_overlaps_says_so(project: Path, capsys: Captured) -> None:
    one, other = a_run(project, "5s/.*/A/", name="first"), a_run(project, "5s/.*/B/")
    did(capsys, "apply", one)
    told = did(capsys, "save", other, str(project.parent / "other.tar"))
    assert "numbers: run first changed the same lines (at line 5)" in told
    assert "to decide first: podbot changes pick" in told
    saved = data(capsys, "save", other, str(project.parent / "again.tar"))
    assert len(saved["undecided"]) == 1


@pytest.mark.parametrize("ending", ["patch", "tar"])
def test_what_is_saved_of_a_merge_holds_both(project: Path, capsys: Captured, ending: str) -> None:
    one, other = a_run(project, "5s/.*/A/"), a_run(project, "50s/.*/B/")
    did(capsys, "apply", one)
    file = project.parent / f"other.{ending}"
    did(capsys, "save", other, str(file))
    if ending == "patch":
        subprocess.run(["git", "apply", str(file)], cwd=project, check=True)
    else:
        did(capsys, "apply", data(capsys, "load", str(file), "--as-saved")["id"])
    assert lines(project, 5, 50) == ["A", "B"]


def test_an_archive_of_what_overlaps_is_merged_where_it_is_loaded(
    project: Path, capsys: Captured
) -> None:
    """What it was made from is in it, by its hash: that tells a conflict from what merges."""
    one = a_run(project, "5s/.*/A/")
    other, third = a_run(project, "5s/.*/B/"), a_run(project, "50s/.*/fifty/")
    before = project.parent / "before.tar"
    did(capsys, "save", third, str(before))
    did(capsys, "apply", one)
    file = project.parent / "other.tar"
    did(capsys, "save", other, str(file))

    loaded = data(capsys, "load", str(file), "--as-saved")
    assert loaded["conflicts"] == 1
    did(capsys, "apply", loaded["id"], code=2)
    assert lines(project, 5) == ["A"]

    merged = data(capsys, "load", str(before), "--as-saved")
    assert merged["conflicts"] == 0
    did(capsys, "apply", merged["id"])
    assert lines(project, 5, 50) == ["A", "fifty"]
