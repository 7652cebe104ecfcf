"""What a verb says to type next: with the paths and options given, and runs by their names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import ran, workplace

from podbot import review
from podbot.cli import main, summaries, wording

Captured = pytest.CaptureFixture[str]
HOOK = "mkdir -p .git/hooks; printf '#!/bin/sh\\n' > .git/hooks/pre-commit"


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def said(capsys: Captured, *words: str, code: int = 0) -> str:
    """What a verb of `podbot changes` says on both streams."""
    capsys.readouterr()
    assert main(["changes", *words]) == code
    told = capsys.readouterr()
    return told.out + told.err


def test_undo_tells_what_an_earlier_application_left(project: Path, capsys: Captured) -> None:
    ran(project, "echo 2 > a; echo 2 > b", "st")
    said(capsys, "apply", "st", "a")
    said(capsys, "apply", "st", "b")
    told = said(capsys, "undo", "st")
    assert "1 path still applied by an earlier application: podbot changes undo st\n" in told
    assert "still applied" not in said(capsys, "undo", "st")
    assert not (project / "a").exists()


def test_undo_counts_what_an_earlier_application_left(project: Path, capsys: Captured) -> None:
    ran(project, "echo 2 > a; echo 2 > b; echo 2 > c", "st")
    said(capsys, "apply", "st", "a")
    said(capsys, "apply", "st", "b", "c")
    assert json.loads(said(capsys, "undo", "st", "b", "--json"))["left"] == 2
    assert json.loads(said(capsys, "undo", "st", "--json"))["left"] == 1
    assert json.loads(said(capsys, "undo", "st", "--json"))["left"] == 0


def test_what_was_undone_is_applied_again_and_not_more(project: Path, capsys: Captured) -> None:
    ran(project, "echo 2 > a; echo 2 > 'b c'; echo 2 > d", "rp")
    said(capsys, "apply", "rp", "a", "b c")
    again = "to apply it again: podbot changes apply rp"
    assert f"{again} 'b c'\n" in said(capsys, "undo", "rp", "b c")
    assert f"{again} a\n" in said(capsys, "undo", "rp"), "d was never applied"
    said(capsys, "apply", "rp")
    assert f"{again}\n" in said(capsys, "undo", "rp")


def test_a_conflict_is_got_past_with_the_paths_given(project: Path, capsys: Captured) -> None:
    ran(project, "echo 2 > a; echo 2 > 'b c'; echo 2 > -x", "par")
    (project / "b c").write_text("host\n")
    (project / "-x").write_text("host\n")
    told = said(capsys, "apply", "par", "a", "b c", code=2)
    assert "podbot changes diff par a 'b c'\n" in told
    assert "podbot changes apply par a 'b c' --on-conflict skip (or overwrite)" in told
    assert "podbot changes pick par a 'b c'\n" in told
    told = said(capsys, "apply", "par", "--", "a", "-x", code=2)
    assert "podbot changes apply --on-conflict skip -- par a -x (or overwrite)" in told
    done = said(capsys, "apply", "--on-conflict", "skip", "--", "par", "a", "-x", code=0)
    assert "applied 1 change\n" in done


def test_a_flag_is_got_past_with_the_paths_and_options_given(
    project: Path, capsys: Captured
) -> None:
    ran(project, f"echo 2 > a; {HOOK}; cp .git/hooks/pre-commit .git/hooks/post-merge", "par")
    given = ["par", "a", ".git", "--allow-flagged", ".git/hooks/pre-commit"]
    told = said(capsys, "apply", *given, "--on-conflict", "skip", code=2)
    assert "podbot changes pick par a .git\n" in told
    words = " ".join(given)
    assert f"podbot changes apply {words} --on-conflict skip --allow-flagged PATH\n" in told


def test_an_undo_that_is_refused_repeats_its_paths(project: Path, capsys: Captured) -> None:
    ran(project, "echo 2 > a; echo 2 > 'b c'", "rp")
    said(capsys, "apply", "rp")
    (project / "b c").write_text("host\n")
    told = said(capsys, "undo", "rp", "b c", code=2)
    assert "podbot changes undo rp 'b c' --on-conflict skip\n" in told
    assert "podbot changes undo rp 'b c' --on-conflict overwrite\n" in told


def test_a_run_on_top_is_named_and_undone_first(project: Path, capsys: Captured) -> None:
    ran(project, "sed -i 's/^5$/A/' numbers", "first")
    said(capsys, "apply", "first")
    ran(project, "sed -i 's/^5$/B/; s/^A$/B/' numbers", "the second")
    said(capsys, "apply", "the second")
    told = said(capsys, "undo", "first", code=2)
    assert "run the second lies on top: undo that first\n" in told
    assert "remedy: undo that run first: podbot changes undo 'the second'\n" in told


def test_nothing_to_undo_names_the_run(project: Path, capsys: Captured) -> None:
    ran(project, "echo 2 > a", "mine")
    told = said(capsys, "undo", "mine", code=2)
    assert "nothing that was applied from mine is left to undo\n" in told
    assert "podbot changes show mine\n" in told


def test_an_undo_of_no_run_names_the_one_that_was_applied_last(
    project: Path, capsys: Captured
) -> None:
    for name in ("first", "second"):
        ran(project, f"echo 1 > {name}", name)
        said(capsys, "apply", name)
    ran(project, "echo 1 > third", "newest")
    told = said(capsys, "undo", code=2)
    assert "nothing that was applied from newest is left to undo\n" in told
    assert told.endswith("what was applied here last is of second: podbot changes undo second\n")
    assert "second" not in said(capsys, "undo", "newest", code=2)
    assert "undone: 1 path" in said(capsys, "undo", "second")
    assert told.replace("second", "first") == said(capsys, "undo", code=2)


def test_a_name_that_is_taken_is_told_without_an_id(project: Path, capsys: Captured) -> None:
    id = ran(project, "echo 2 > a", "c")
    assert main(["run", "--name", "c", "--", "true"]) == 125
    told = capsys.readouterr().err
    assert "another run is called 'c' already" in told
    assert id not in told


def test_a_diff_is_a_patch_or_json_and_not_both(project: Path, capsys: Captured) -> None:
    ran(project, "echo 2 > a", "mine")
    capsys.readouterr()
    assert main(["changes", "diff", "mine", "--patch", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "invalid"
    assert error["message"] == "--patch and --json cannot be used together"


def test_a_missing_folder_is_not_a_want_of_space(project: Path, capsys: Captured) -> None:
    ran(project, "echo 2 > a", "mine")
    told = said(capsys, "save", "mine", "missing/work.tar", code=2)
    assert "remedy: name a file elsewhere\n" in told


def test_what_was_skipped_is_told_with_a_way_to_take_it(project: Path, capsys: Captured) -> None:
    ran(project, "echo 2 > numbers; echo 2 > 'b c'", "mine")
    (project / "numbers").write_text("host\n")
    told = said(capsys, "apply", "mine", "--on-conflict", "skip")
    assert "to decide on that: podbot changes pick mine numbers\n" in told
    told = said(capsys, "apply", "mine", "numbers", "--on-conflict", "skip", code=1)
    assert told.startswith("nothing was applied\n")
    assert "podbot changes pick mine numbers\n" in told


def test_an_undo_that_skipped_is_not_answered_with_one_that_is_refused(
    project: Path, capsys: Captured
) -> None:
    ran(project, "echo 2 > numbers", "mine")
    said(capsys, "apply", "mine")
    (project / "numbers").write_text("host\n")
    told = said(capsys, "undo", "mine", "--on-conflict", "skip", code=1)
    assert told.startswith("nothing was undone\n")
    way = "podbot changes undo mine --on-conflict overwrite"
    assert f"1 path still applied: {way} (puts" in told
    assert "undone: 1 path" in said(capsys, *way.split()[2:])


def test_a_mistyped_path_is_told_with_the_nearest_one(project: Path, capsys: Captured) -> None:
    ran(project, "echo 2 > numbers; echo 2 > src/app.py", "mine")
    assert "matches 'numbrs'; did you mean 'numbers'?\n" in said(
        capsys, "diff", "mine", "numbrs", code=2
    )
    assert "matches 'zzz'\n" in said(capsys, "apply", "mine", "zzz", code=2)
    said(capsys, "apply", "mine")
    told = said(capsys, "undo", "mine", "src/ap.py", code=2)
    assert "matches 'src/ap.py'; did you mean 'src/app.py'?\n" in told


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_command_to_type_stays_on_one_row_if_it_fits(width: int) -> None:
    commands = ["podbot changes pick d32572", "podbot changes undo 'b c' a"]
    line = f"  remedy: decide on each of them: {commands[0]}; or else, `{commands[1]}` (or not)"
    rows = wording.wrapped(line, width)
    assert all(wording.cells(row) <= width for row in rows)
    assert all(any(command in row for row in rows) for command in commands)
    long = "see: podbot changes apply d32572 --allow-flagged " + "a/very/long/path" * 8
    assert all(wording.cells(row) <= width for row in wording.wrapped(long, width))


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_link_shows_all_of_where_it_leads(width: int, project: Path) -> None:
    to = "/srv/" + "/".join(f"folder{number}" for number in range(12))
    found = review.open(ran(project, f"ln -s {to} link")).summary
    rows = [*summaries.change_lines(found, wording.Display(width=width))]
    assert all(wording.cells(row) <= width for row in rows)
    assert f"link→{to}" in "".join(row.strip() for row in rows).replace(" ", "")


def test_a_name_that_is_to_be_typed_is_the_last_to_be_cut() -> None:
    columns = (
        wording.Column("RUN", gives_way=True, is_typed=True),
        wording.Column("TARGET", gives_way=True, keeps_end=True),
        wording.Column("COMMAND", gives_way=True),
    )
    row = ("a-long-name-of-a-run", "/home/someone/project", "make something of it all")
    shown = wording.table(columns, [row], wording.Display(width=50))[1]
    assert shown.startswith("a-long-name-of-a-run  ")
    assert wording.cells(shown) <= 50
