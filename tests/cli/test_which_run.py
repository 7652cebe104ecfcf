"""Which run is meant, what it is called, and throwing several away."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runs import PODBOT, Terminal, ran, short, workplace

from podbot.cli import main, wording
from podbot.config import places
from podbot.runs import records
from podbot.sandbox import OverlaySandbox, layers

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


@pytest.fixture
def elsewhere(project: Path) -> Path:
    folder = project.parent / "elsewhere"
    folder.mkdir()
    (folder / "file").write_text("1\n")
    return folder


def told(capsys: Captured, *words: str, code: int = 0) -> str:
    """What a verb prints, on stdout and then on stderr."""
    capsys.readouterr()
    assert main(["changes", *words]) == code
    shown = capsys.readouterr()
    return shown.out + shown.err


def started_before(id: str, seconds: float) -> None:
    record = records.read(id)
    assert record is not None
    records.write(replace(record, started=record.started - seconds))


def test_last_and_no_id_mean_the_latest_run_of_this_folder_or_one_around_it(
    project: Path, elsewhere: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ran(project, "echo 1 > one")
    there = ran(elsewhere, "echo 2 > two")

    for words in (["show"], ["show", "last"]):
        assert f"run      {here}" in told(capsys, *words)
    assert "a/one" in told(capsys, "diff")
    monkeypatch.chdir(project / "src")
    assert f"run      {here}" in told(capsys, "show")
    monkeypatch.chdir(elsewhere)
    assert f"run      {there}" in told(capsys, "show")
    assert "applied 1 change" in told(capsys, "apply")
    assert "undone: 1 path" in told(capsys, "undo")
    monkeypatch.chdir(project.parent)
    shown = told(capsys, "show", code=2)
    assert f"no run worked on this folder; the latest elsewhere is {short(there)} over" in shown


def test_a_run_may_be_continued_where_it_was(
    project: Path, elsewhere: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = ran(project, "echo 1 > one")
    ran(elsewhere, "echo 2 > two")
    assert main(["run", "--keep", "--in", "last", "--", "sh", "-c", "echo 3 > three"]) == 0
    layer = layers.get(id)
    assert layer is not None
    assert (layer.upper(0) / "three").exists()


def test_a_list_is_of_this_folder_and_says_how_many_are_elsewhere(
    project: Path, elsewhere: Path, capsys: Captured
) -> None:
    there = ran(elsewhere, "echo 2 > two")
    assert told(capsys) == (
        "no changes are waiting here; 1 run elsewhere: podbot changes list --all\n"
    )
    here = ran(project, "echo 1 > one")
    lines = told(capsys, "list").splitlines()
    assert [line.split()[0] for line in lines[1:]] == [short(here), "1"]
    assert lines[-1] == "1 run elsewhere: podbot changes list --all"
    assert [line.split()[0] for line in told(capsys, "list", "--all").splitlines()[1:]] == [
        short(here),
        short(there),
    ]


def test_data_is_complete_wherever_one_stands(
    project: Path, elsewhere: Path, capsys: Captured
) -> None:
    ids = [ran(elsewhere, "echo 2 > two"), ran(project, "echo 1 > one", name="mine")]
    found = json.loads(told(capsys, "list", "--json"))["runs"]
    assert [(run["id"], run["here"]) for run in found] == [(ids[1], True), (ids[0], False)]


def test_a_run_is_called_by_its_name_wherever_there_is_one(project: Path, capsys: Captured) -> None:
    id = ran(project, "echo 1 > one; echo 2 > two; echo x > .envrc", name="fix it")
    assert "podbot changes pick 'fix it'" in told(capsys, "apply", id, code=2)
    assert "to take it back: podbot changes undo 'fix it'\n" in told(capsys, "apply", id, "one")
    assert "to apply it again: podbot changes apply 'fix it' one\n" in told(capsys, "undo", id)
    assert told(capsys, "discard", id) == "discarded fix it\n"


def test_what_a_run_is_called_means_it_and_nothing_else(project: Path) -> None:
    made = {}
    # Beginnings that are alike, that look like the date of all ids, or like the name of another.
    for last in ("abcdef01", "abcdef02", "20260012", "0123456f", "cafe0000"):
        id = f"20260101-000000-{last}"
        made[last] = id
        name = {"cafe0000": "0123456"[:6]}.get(last)
        records.write(
            records.Record(id, name, ("true",), (str(project),), "overlay", "none", 1.0, 1, 2.0)
        )
    found = records.entries()
    assert {records.find(entry.called).id for entry in found} == set(made.values())
    assert all(records.find(entry.called).id == entry.id for entry in found)


# Throwing away


def test_several_runs_are_thrown_away_at_once(project: Path, capsys: Captured) -> None:
    ids = [ran(project, f"echo 1 > f{n}") for n in range(3)]
    assert told(capsys, "discard", *ids[:2]) == f"discarded {short(ids[0])}, {short(ids[1])}\n"
    assert [entry.id for entry in records.entries()] == ids[2:]


def test_old_runs_of_this_folder_are_thrown_away(
    project: Path, elsewhere: Path, capsys: Captured
) -> None:
    old, new, other = (
        ran(project, "echo 1 > a"),
        ran(project, "echo 1 > b"),
        ran(elsewhere, ": > c"),
    )
    for id in (old, other):
        started_before(id, 8 * 86400)
    told(capsys, "discard", "--older-than", "7d", "--yes")
    assert {entry.id for entry in records.entries()} == {new, other}
    assert "there is nothing to discard" in told(capsys, "discard", "--older-than", "7d", "-y")
    told(capsys, "discard", "--all", "--older-than", "7d", "--yes")
    assert {entry.id for entry in records.entries()} == {new}


def test_all_runs_are_thrown_away_but_those_that_run(
    project: Path, elsewhere: Path, capsys: Captured
) -> None:
    ran(project, "echo 1 > a", name="one")
    ran(elsewhere, "echo 1 > b")
    with OverlaySandbox(project, discard=True) as sandbox:
        assert sandbox.layer is not None
        shown = told(capsys, "discard", "--all", "--yes")
        assert "one" in shown.splitlines()[0]
        assert f"not {short(sandbox.layer.id)}: it still runs" in shown
        assert [entry.id for entry in records.entries()] == [sandbox.layer.id]


def test_where_nobody_can_be_asked_only_yes_will_do(project: Path, capsys: Captured) -> None:
    id = ran(project, "echo 1 > a")
    for words in (["--all"], ["--older-than", "1s"], ["--all", "--json"], [], [id, "--all"]):
        started_before(id, 60)
        told(capsys, "discard", *words, code=2)
    assert records.find(id).layer is not None
    found = json.loads(told(capsys, "discard", "--all", "--yes", "--json"))
    assert found == {"runs": [{"id": id, "discarded": True, "problem": None}]}


def test_a_person_sees_what_would_go_and_is_asked(project: Path, elsewhere: Path) -> None:
    ids = [ran(project, "echo 1 > a"), ran(elsewhere, "echo 1 > b; echo 2 > c")]
    for answer, code in (("n\r", 1), ("y\r", 0)):
        terminal = Terminal([*PODBOT, "changes", "discard", "--all"])
        terminal.until(f"{short(ids[1])}: 2 changes of ")
        terminal.until("throw these 2 away for good")
        terminal.send(answer)
        terminal.until("nothing was discarded" if code else "discarded ")
        assert terminal.end() == code
    assert records.entries() == []


# How it looks


@pytest.mark.parametrize("columns", [80, 40])
def test_no_line_is_broken_by_the_terminal(project: Path, columns: int) -> None:
    deep = "/".join(["a-folder-with-a-rather-long-name"] * 4)
    id = ran(project, f"mkdir -p {deep}; echo x > {deep}/.envrc; echo x > .envrc; mkfifo pipe")
    env = {"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "xterm", "PODBOT_PAGER": "cat"}
    for words, code in (
        (["list"], 0), (["show", id], 0), (["apply", id], 2), (["show", "nothing"], 2),
        (["discard", id, "--all"], 2), (["apply", id, "--allow-flagged", "all"], 0),
        (["undo", id], 0),
    ):  # fmt: skip
        terminal = Terminal([*PODBOT, "changes", *words], env)
        assert terminal.end() == code
        lines = terminal.shown.decode().rpartition("\r\x1b[K")[2].replace("\r", "").split("\n")
        assert max(map(wording.cells, lines)) <= columns, lines


def test_the_menu_fits_and_explains_itself(project: Path) -> None:
    id = ran(project, "echo 1 > one")
    finish = "import sys; from podbot.cli.review import finish; finish(sys.argv[1], 'ask')"
    env = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "xterm"}
    terminal = Terminal([sys.executable, "-c", finish, id], env)
    terminal.until("(Enter keeps): ")
    terminal.send("?\r")
    for key in "rapskd":
        terminal.until(f"  {key}  ")
    terminal.until("(Enter keeps): ")
    terminal.send("\r")
    terminal.until(f"kept as {short(id)}; go on with:")
    assert terminal.end() == 0


def test_rows_that_are_broken_keep_their_words_and_colours() -> None:
    line = "\x1b[31m  " + "word " * 20 + "日本語" * 10 + "\x1b[0m"
    rows = wording.wrapped(line, 30)
    plain = [row.replace("\x1b[31m", "").replace("\x1b[0m", "") for row in rows]
    assert max(map(wording.cells, plain)) <= 30
    assert "".join("".join(plain).split()) == "word" * 20 + "日本語" * 10
    assert all(row.count("\x1b[31m") == row.count("\x1b[0m") == 1 for row in rows)
    assert wording.wrapped(line, None) == [line]


def test_the_current_folder_may_be_gone(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = ran(project, "echo 1 > one")
    (project.parent / "gone").mkdir()
    monkeypatch.chdir(project.parent / "gone")
    os.rmdir(project.parent / "gone")
    assert short(id) in told(capsys, "list")
    assert f"run      {id}" in told(capsys, "show", "last")


def test_a_path_in_the_place_of_a_run_never_means_one_by_chance(
    project: Path, capsys: Captured
) -> None:
    id = ran(project, "echo 2 > numbers")
    start = id.rpartition("-")[2][0]
    assert "applied 1 change" in told(capsys, "apply", id)
    assert f"run      {id}" in told(capsys, "show", start), "the beginning of an id, and no path"
    (project / start).write_text("a file of that name\n")

    for verb in ("undo", "diff", "apply", "pick"):
        shown = told(capsys, verb, start, "x", code=2)
        assert f"{start} is a path, and the run whose changes are meant comes before it" in shown
        assert f"remedy: podbot changes {verb} last {start} x; or name another run" in shown
    assert (project / "numbers").read_text() == "2\n"
    assert "undone: 1 path" in told(capsys, "undo", short(id)), "what podbot itself calls it"


def test_a_path_that_is_only_in_the_run_counts_too(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "gone").mkdir()  # no word here can be the start of an id
    (project / "gone" / "b").write_text("1\n")
    ran(project, "rm -r gone; mkdir -p src/kit; echo 1 > src/kit/d")
    for word in ("gone", "src", "src/app.py", "*.py"):
        assert "comes before it" in told(capsys, "diff", word, code=2)
    assert "podbot changes undo last gone --on-conflict skip" in told(
        capsys, "undo", "gone", "--on-conflict", "skip", code=2
    )
    monkeypatch.chdir(project / "src")
    assert "podbot changes diff last kit" in told(capsys, "diff", "kit", code=2)
    assert "there is no run 'none'" in told(capsys, "diff", "none", code=2)
    shown = told(capsys, "save", "work.tar", "src", code=2)
    assert "remedy: podbot changes save last work.tar src; or" in shown


def test_a_mistyped_run_is_told_with_the_nearest_one(project: Path, capsys: Captured) -> None:
    ran(project, "echo 1 > one", name="nightly")
    assert "no run 'nigthly'; did you mean 'nightly'?" in told(capsys, "show", "nigthly", code=2)
    assert "no run 'lst'; did you mean 'last'?" in told(capsys, "show", "lst", code=2)
    assert "there is no run 'zzzz'\n" in told(capsys, "show", "zzzz", code=2)


def test_a_run_may_be_continued_and_named_at_once(project: Path, capsys: Captured) -> None:
    id = ran(project, "echo 1 > one", name="first")
    command = ["run", "--keep", "--in", "first", "--name", "second", "--", "sh", "-c", "echo > two"]
    assert main(command) == 0
    assert "kept as second; go on with:\n  podbot changes show second" in capsys.readouterr().err
    assert f"run      {id} (second)" in told(capsys, "show", "second")
    assert "there is no run 'first'" in told(capsys, "show", "first", code=2)
    assert "a/one" in told(capsys, "diff", "second") and "a/two" in told(capsys, "diff", "second")


def test_a_name_stands_for_the_id_in_every_message(project: Path, capsys: Captured) -> None:
    id = ran(project, "echo 2 > numbers; echo 1 > one", name="my run")
    other = ran(project, "echo 3 > numbers", name="other")
    (project / "numbers").write_text("host\n")
    said = told(capsys, "apply", "my run", code=2)
    said += told(capsys, "apply", "my run", "--on-conflict", "overwrite")
    (project / "one").write_text("host\n")
    said += told(capsys, "undo", "my run", code=2) + told(capsys, "undo", "other", code=2)
    said += told(capsys, "undo", "my run", "--on-conflict", "skip")
    said += told(capsys, "save", "my run", "no-format", code=2) + told(capsys, "list")
    third = ran(project, "echo 4 > numbers; echo 4 > four", name="third")
    fourth = ran(project, "echo 5 > numbers; echo 5 > five", name="fourth")
    said += told(capsys, "apply", "fourth")
    left_out = told(capsys, "apply", "third", "--on-conflict", "skip")
    assert "run fourth changed" in left_out
    said += left_out + told(capsys, "discard", "-y", "my run") + told(capsys, "list")
    assert not [one for one in (id, other, third, fourth) if one in said]


def test_what_is_broken_is_named_and_hides_only_itself(project: Path, capsys: Captured) -> None:
    broken, applied, whole = (ran(project, f"echo {n} > new{n}") for n in range(3))
    record = places.state_place() / "runs" / f"{broken}.json"
    record.write_text("[" * 100_000)
    told(capsys, "apply", applied)
    plan = places.state_place() / "journals" / f"{applied}.1" / "journal.jsonl"
    plan.write_text("[" * 100_000)

    listed = told(capsys, "list")

    assert f"podbot: the record {record} is damaged" in listed
    assert short(whole) in listed and short(broken) in listed and short(applied) in listed
    assert "cannot be read" in listed
    runs = json.loads(told(capsys, "list", "--json").partition("podbot:")[0])["runs"]
    assert {run["id"] for run in runs} == {broken, applied, whole}
    assert "new2" in told(capsys, "show", whole)
