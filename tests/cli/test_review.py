"""The end of `podbot run`: what is told, what may be answered, and that nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import PODBOT, Terminal, ran, short, workplace

from podbot.cli.review import finish, finish_as_data
from podbot.runs import records
from podbot.sandbox import layers

EDITS = """
sed -i -e 's/^5$/five/' -e 's/^95$/ninety-five/' numbers
echo "print('new')" > src/app.py
rm -r old
mkdir new && echo added > new/file
"""
ENVRC = "echo 'echo hi' > .envrc"

FINISH = "import sys; from podbot.cli.review import finish; sys.exit(finish(sys.argv[1], 'ask'))"

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def asked(id: str, **env: str) -> Terminal:
    """The menu, at a terminal, for a run that is over."""
    settings = {"TERM": "xterm", "NO_COLOR": "1", "PODBOT_PAGER": "cat", **env}
    terminal = Terminal([sys.executable, "-c", FINISH, id], settings)
    terminal.until("(Enter keeps):")
    return terminal


def is_untouched(project: Path) -> bool:
    return (project / "old" / "one").exists() and not (project / "new").exists()


# The menu


@pytest.mark.parametrize("answer", ["\r", "k\r", "keep\r", "\x04", "\x03"])
def test_whatever_is_not_an_answer_keeps_the_changes(project: Path, answer: str) -> None:
    id = ran(project, EDITS)
    terminal = asked(id)
    terminal.send(answer)
    terminal.until(f"kept as {short(id)}; go on with:")
    terminal.until(f"podbot changes show {short(id)}")
    assert terminal.end() == 0
    assert layers.get(id) is not None
    assert is_untouched(project)


def test_the_summary_comes_first(project: Path) -> None:
    id = ran(project, EDITS + ENVRC)
    (project / "numbers").write_text("the host's own\n")
    terminal = Terminal([sys.executable, "-c", FINISH, id], {"NO_COLOR": "1"})
    terminal.until("8 changes: 3 added, 2 modified, 3 deleted; ")
    terminal.until("conflicts with what the host has now:")
    terminal.until("  numbers: the host has changed it since")
    terminal.until("runs by itself once applied:")
    terminal.until("  .envrc: ")
    terminal.until("Enter keeps")
    terminal.send("\r")
    assert terminal.end() == 0


def test_apply_takes_everything_and_can_be_undone(project: Path) -> None:
    id = ran(project, EDITS)
    terminal = asked(id)
    terminal.send("a\r")
    terminal.until("applied 7 changes")
    terminal.until(f"podbot changes undo {short(id)}")
    assert terminal.end() == 0
    assert not (project / "old").exists()
    subprocess.run([*PODBOT, "changes", "undo", id], check=True, stdout=subprocess.DEVNULL)
    assert is_untouched(project)


def test_apply_asks_about_what_runs_by_itself_and_about_conflicts(project: Path) -> None:
    id = ran(project, EDITS + ENVRC + "; echo alias x=y > .bashrc")
    (project / "numbers").write_text("the host's own\n")
    terminal = asked(id)
    terminal.send("a\r")
    for question, answer in (
        (".bashrc", "no"),
        (".envrc", "yes"),
        ("In conflict: the host has changed it since", "yes"),
    ):
        terminal.until(question)
        terminal.until("type yes to take it, anything else to leave it:")
        terminal.send(answer + "\r")
    terminal.until("apply the other 8 changes? [y,n,?]")
    terminal.send("y\r")
    terminal.until("applied 8 changes")
    assert terminal.end() == 0
    assert (project / ".envrc").exists()
    assert not (project / ".bashrc").exists()
    assert "ninety-five" in (project / "numbers").read_text()
    assert layers.get(id) is not None


def test_who_declines_what_runs_by_itself_is_asked_about_the_rest(project: Path) -> None:
    id = ran(project, EDITS + ENVRC)
    terminal = asked(id)
    terminal.send("a\r")
    terminal.until("type yes to take it, anything else to leave it:")
    terminal.send("no\r")
    terminal.until("apply the other 7 changes? [y,n,?]")
    terminal.send("n\r")
    terminal.until("nothing was taken")
    terminal.until("Enter keeps")
    terminal.send("\r")
    assert terminal.end() == 0
    assert is_untouched(project)


def test_review_shows_all_of_it_and_comes_back(project: Path) -> None:
    id = ran(project, EDITS)
    terminal = asked(id)
    terminal.send("r\r")
    terminal.until("M  +1 -1            13 B  src/app.py")
    terminal.until("+print('new')")
    terminal.until("Enter keeps")
    terminal.send("k\r")
    assert terminal.end() == 0


def test_pick_from_the_menu(project: Path) -> None:
    id = ran(project, EDITS)
    terminal = asked(id)
    terminal.send("p\r")
    for question, answer in (("take all in it", "y"), ("take hunk 1 of 2?", "q")):
        terminal.until(question)
        terminal.send(answer + "\r")
    terminal.until("applied 2 changes")
    assert terminal.end() == 0
    assert (project / "new" / "file").exists()
    assert (project / "old").exists()


def test_picking_nothing_comes_back_to_the_menu(project: Path) -> None:
    id = ran(project, "echo 1 > one")
    terminal = asked(id)
    terminal.send("p\r")
    terminal.until("take it?")
    terminal.send("n\r")
    terminal.until("nothing was taken")
    terminal.until("Enter keeps")
    terminal.send("\r")
    terminal.until("kept as")
    assert terminal.end() == 0


def test_save_from_the_menu_writes_a_file_and_comes_back(project: Path, tmp_path: Path) -> None:
    id = ran(project, EDITS + "mkdir empty")
    file = tmp_path / "work.patch"
    terminal = asked(id, COLUMNS="300")
    for name, told in (
        ("", "Enter keeps"),
        ("what", "does not say in which format to save"),
        (str(file), f"saved 8 changes in {file}"),
    ):
        terminal.send("s\r")
        terminal.until("save as (FILE.tar for everything, FILE.patch for git):")
        terminal.send(f"{name}\r")
        terminal.until(told)
    terminal.until("not in the patch: empty")
    terminal.until("Enter keeps")
    terminal.send("\r")
    assert terminal.end() == 0
    assert b"+print('new')" in file.read_bytes()


def test_discard_is_asked_twice(project: Path) -> None:
    id = ran(project, EDITS)
    terminal = asked(id)
    for answer in ("n", "y"):
        terminal.send("d\r")
        terminal.until(f"throw 7 changes of {short(id)} away for good? [y/N]")
        terminal.send(answer + "\r")
        terminal.until("Enter keeps" if answer == "n" else f"discarded {short(id)}")
    assert terminal.end() == 0
    assert layers.get(id) is None
    assert records.read(id) is None
    assert is_untouched(project)


def test_another_answer_is_asked_again(project: Path) -> None:
    id = ran(project, EDITS)
    terminal = asked(id)
    terminal.send("x\r")
    terminal.until("d  discard: throw it away for good; asks first")
    terminal.until("Enter keeps")
    terminal.send("\r")
    assert terminal.end() == 0


def test_what_was_typed_during_the_run_answers_nothing(project: Path) -> None:
    id = ran(project, EDITS)
    wait = ["sh", "-c", 'read go; exec "$@"', "sh", sys.executable, "-c", FINISH, id]
    terminal = Terminal(wait)
    terminal.send("go\rd\ry\r")
    terminal.until("Enter keeps")
    terminal.send("\x04")
    terminal.until("kept as")
    assert terminal.end() == 0
    assert layers.get(id) is not None


def test_the_menu_stays_off_the_output_of_the_command(project: Path) -> None:
    id = ran(project, EDITS)
    near, far = os.pipe()
    terminal = Terminal([sys.executable, "-c", FINISH, id], {"PODBOT_PAGER": "cat"}, stdout=far)
    os.close(far)
    for answer in ("r", "a"):
        terminal.until("Enter keeps")
        terminal.send(f"{answer}\r")
    terminal.until("applied 7 changes")
    assert terminal.end() == 0
    assert os.read(near, 100) == b""
    os.close(near)


# Decided before


def test_apply_without_questions(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS)

    assert finish(id, "apply") == 0

    shown = capsys.readouterr()
    assert shown.out == ""
    assert "7 changes: " in shown.err
    assert "applied 7 changes" in shown.err
    assert not (project / "old").exists()


def test_apply_stops_at_what_runs_by_itself(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS + ENVRC)

    assert finish(id, "apply") == 2
    err = capsys.readouterr().err
    status, told = finish_as_data(id, "apply")

    assert err.count("\n  .envrc: ") == 1
    assert "podbot run: nothing was applied, as some of it runs by itself" in err
    assert f"podbot changes pick {short(id)}" in err
    assert f"kept as {short(id)}" in err
    assert (status, told["outcome"], told["runs_by_itself"]) == (2, "kept", 1)
    assert '"kind": "flagged"' in json.dumps(told["error"])
    assert capsys.readouterr() == ("", "")
    assert is_untouched(project)
    assert layers.get(id) is not None


def test_apply_stops_at_a_conflict(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS)
    (project / "numbers").write_text("the host's own\n")

    assert finish(id, "apply") == 2

    err = capsys.readouterr().err
    assert "numbers: the host has changed it since" in err
    assert "--on-conflict skip" in err
    assert is_untouched(project)


def test_discard_without_questions(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS)
    assert finish(id, "discard") == 0
    assert f"discarded {short(id)}" in capsys.readouterr().err
    assert layers.get(id) is None


def test_keep_says_how_to_go_on(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS)
    assert finish(id, "keep") == 0
    err = capsys.readouterr().err
    assert f"podbot changes show {short(id)}" in err
    assert f"podbot run --in {short(id)}" in err


@pytest.mark.parametrize(
    ("decision", "outcome"),
    [("keep", "kept"), ("ask", "kept"), ("apply", "applied"), ("discard", "discarded")],
)
def test_the_end_as_data_is_said_by_nobody_else(
    project: Path, capsys: Captured, decision: str, outcome: str
) -> None:
    id = ran(project, EDITS)

    status, found = finish_as_data(id, decision)  # type: ignore[arg-type]  # a parameter

    assert capsys.readouterr() == ("", "")
    told = json.loads(json.dumps(found))
    assert (status, told["id"], told["outcome"]) == (0, id, outcome)
    assert told["changes_count"] == 7
    assert told["exit_status"] == 0
    assert len(told.get("applied", {}).get("applied", [])) == (7 if outcome == "applied" else 0)


# Nothing to decide


def test_no_change_is_hardly_worth_a_word(project: Path, capsys: Captured) -> None:
    id = ran(project, "true")
    assert finish(id, "keep") == 0
    assert capsys.readouterr() == ("", "")
    assert finish(id, "ask") == 0
    assert capsys.readouterr() == ("", "nothing was changed\n")
    unknown = "20200101-000000-00000000"
    assert finish_as_data(unknown, "apply") == (0, {"id": unknown, "outcome": "nothing"})


def test_a_layer_that_differs_in_nothing_does_not_stay(project: Path, capsys: Captured) -> None:
    id = ran(project, "touch x && rm x; cp -p numbers copy && mv copy numbers")
    assert layers.get(id) is not None

    assert finish(id, "keep") == 0

    assert layers.get(id) is None
    assert capsys.readouterr() == ("", "")


# The whole way


def test_a_run_ends_in_the_menu_and_pick_applies(project: Path) -> None:
    env = {"NO_COLOR": "1", "TERM": "xterm"}
    script = "echo hello; echo one > one; echo two > two"
    terminal = Terminal([*PODBOT, "run", "--", "sh", "-c", script], env, cwd=project)
    terminal.until("hello")
    terminal.until("2 changes: 2 added; 8 B")
    terminal.until("Enter keeps")
    terminal.send("p\r")
    for answer in ("y", "n"):
        terminal.until("take it?")
        terminal.send(answer + "\r")
    terminal.until("applied 1 change")
    assert terminal.end() == 0
    assert (project / "one").read_text() == "one\n"
    assert not (project / "two").exists()


def test_a_run_without_a_terminal_keeps_and_says_how_to_go_on(project: Path) -> None:
    command = [*PODBOT, "run", "--", "sh", "-c", "echo out; echo one > one; exit 3"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert "1 change: 1 added; 4 B" in done.stderr
    assert "podbot changes show " in done.stderr
    assert not (project / "one").exists()
