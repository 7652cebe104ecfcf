"""What a person is told, and what a patch holds, where the host went on while a run was at work."""

from __future__ import annotations

import json
import re
import subprocess
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
SINCE = "the host has changed it since, or only touched it: what it held then is not known"


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def edit(file: Path, old: str, new: str) -> None:
    """Change a line of the host's, later than anything a run did."""
    now = time.time_ns()
    while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= now:
        time.sleep(0.001)
    file.write_text(file.read_text().replace(f"\n{old}\n", f"\n{new}\n"))


def did(capsys: Captured, *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["changes", *words]) == code
    told = capsys.readouterr()
    return told.out + told.err


def data(capsys: Captured, *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main(["changes", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def both_edited(project: Path) -> None:
    """A run that changed one line of ``numbers`` and made a file; the host changed another line."""
    ran(project, "sed -i s/^5$/five/ numbers; echo new > new", "agent")
    edit(project / "numbers", "50", "fifty")


def test_a_saved_patch_never_takes_back_what_the_host_did(project: Path, capsys: Captured) -> None:
    both_edited(project)
    file = project.parent / "work.patch"

    told = did(capsys, "save", "agent", str(file))

    assert told.startswith(f"saved 1 change in {file} (")
    assert f"  numbers: {SINCE}\n" in told
    assert "podbot changes diff agent" in told and "podbot changes pick agent" in told
    subprocess.run(["git", "apply", str(file)], cwd=project, check=True)
    assert "\nfifty\n" in (project / "numbers").read_text()
    assert (project / "new").read_text() == "new\n"


def test_what_a_patch_leaves_out_is_data_too(project: Path, capsys: Captured) -> None:
    both_edited(project)

    saved = data(capsys, "save", "agent", str(project.parent / "work.patch"))
    whole = data(capsys, "save", "agent", str(project.parent / "work.tar"))

    assert saved["in_conflict"] == [f"numbers: {SINCE}"]
    assert whole["in_conflict"] == []


def test_a_printed_patch_is_the_saved_one(project: Path, capsys: Captured) -> None:
    both_edited(project)
    file = project.parent / "work.patch"
    did(capsys, "save", "agent", str(file))

    assert main(["changes", "diff", "agent", "--patch"]) == 0

    printed = capsys.readouterr()
    assert printed.out == file.read_text()
    assert f"  numbers: {SINCE}\n" in printed.err


def test_a_patch_with_nothing_but_conflicts_is_refused(project: Path, capsys: Captured) -> None:
    both_edited(project)
    file = project.parent / "work.patch"

    error = data(capsys, "save", "agent", str(file), "numbers", code=2)["error"]

    assert error["kind"] == "conflict"
    assert f"numbers: {SINCE}" in error["message"]
    assert "podbot changes pick agent numbers" in error["remedy"]
    assert not file.exists()


def test_a_file_that_the_host_removed_does_not_come_back_by_a_patch(
    project: Path, capsys: Captured
) -> None:
    ran(project, "echo more >> numbers; echo new > new", "agent")
    (project / "numbers").unlink()
    file = project.parent / "work.patch"

    assert "  numbers: the host has removed it since\n" in did(capsys, "save", "agent", str(file))

    subprocess.run(["git", "apply", str(file)], cwd=project, check=True)
    assert not (project / "numbers").exists()


def test_a_diff_says_in_one_line_what_is_in_conflict(project: Path, capsys: Captured) -> None:
    both_edited(project)
    said = f"(in conflict: {SINCE}; these lines are against what it has now)"

    for words in ([], ["numbers"], ["--all"]):
        shown = did(capsys, "diff", "agent", *words).splitlines()
        assert shown.count(said) == 1
        assert shown[shown.index(said) + 1] == "diff --git a/numbers b/numbers"
    found = {each["path"]: each["conflict"] for each in data(capsys, "diff", "agent")["files"]}
    assert found["new"] is None
    assert found["numbers"]["message"] == SINCE


@pytest.mark.parametrize(
    "words",
    [
        ["apply"],
        ["apply", "--on-conflict", "skip"],
        ["apply", "--on-conflict", "overwrite"],
        ["pick"],
    ],
    ids=" ".join,
)
def test_a_target_that_was_moved_is_said_with_the_ways_that_work(
    project: Path, capsys: Captured, words: list[str]
) -> None:
    ran(project, "echo new > new", "agent")
    moved = project.rename(project.parent / "moved")

    verb, *options = words
    error = data(capsys, verb, "agent", *options, code=2)["error"]

    assert error["kind"] == "target_missing"
    there = f"the folder {project} is not there: it was moved, renamed or removed"
    assert error["message"] == there
    assert "--on-conflict" not in error["remedy"] and "pick" not in error["remedy"]
    assert error["remedy"].startswith("move it back to where it was, and do this again; or ")
    save, load = re.findall(r"podbot (changes (?:save|load)[^,]+)", error["remedy"])
    file = project.parent / "work.tar"
    for command in (save, load):
        typed = command.replace("FILE.tar", str(file)).replace("DIR", str(moved)).split()
        assert main(typed) == 0
    capsys.readouterr()
    loaded = data(capsys, "list")["runs"][0]
    assert loaded["targets"] == [str(moved)]
    did(capsys, "apply", loaded["id"])
    assert (moved / "new").read_text() == "new\n"


def test_what_took_the_place_of_a_target_is_named(project: Path, capsys: Captured) -> None:
    ran(project, "echo new > new", "agent")
    moved = project.rename(project.parent / "moved")

    project.symlink_to(moved)
    linked = data(capsys, "apply", "agent", code=2)["error"]["message"]
    project.unlink()
    project.write_text("")
    covered = data(capsys, "apply", "agent", code=2)["error"]["message"]

    assert linked == f"{project} is reached by a link now, which is not followed"
    assert covered == f"{project} is not a folder any more"
    assert "openat2" not in did(capsys, "show", "agent")


def test_a_target_that_was_moved_back_is_applied_to(project: Path, capsys: Captured) -> None:
    ran(project, "echo new > new; rm numbers", "agent")
    moved = project.rename(project.parent / "moved")
    did(capsys, "apply", "agent", code=2)

    moved.rename(project)

    did(capsys, "apply", "agent")
    assert (project / "new").exists()
    assert not (project / "numbers").exists()


@pytest.mark.parametrize(
    "options", [["--all"], ["--all", "--json"], ["--json", "--all"], ["--json"]]
)
def test_without_a_verb_all_is_that_of_the_list(
    project: Path, capsys: Captured, options: list[str]
) -> None:
    ran(project, "echo new > new", "agent")

    assert main(["changes", *options]) == 0
    shown = capsys.readouterr().out
    assert main(["changes", "list", *options]) == 0
    assert re.sub(r"\d+ s", "", shown) == re.sub(r"\d+ s", "", capsys.readouterr().out)
    assert "agent" in shown


def test_a_run_that_left_no_changes_is_not_kept_and_no_help_promises_it(
    project: Path, capsys: Captured
) -> None:
    assert main(["run", "--keep", "--name", "idle", "--", "true"]) == 0
    assert "idle" not in did(capsys, "list", "--all")

    with pytest.raises(SystemExit):
        main(["changes", "list", "--help"])

    shown = " ".join(capsys.readouterr().out.split())
    assert "also those elsewhere, and those whose changes are gone" in shown
    assert "A run that left no changes is not kept." in shown
