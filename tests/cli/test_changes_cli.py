"""`podbot changes` as a person and as a program meet it: real sandboxes, real files."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runs import PODBOT, Terminal, broken_off, ran, short, workplace

from podbot.changes import capture
from podbot.changes.applying import journal
from podbot.changes.model import ChangeKind, ChangeSet
from podbot.cli import main
from podbot.cli.changes import VERBS
from podbot.errors import ChangesError
from podbot.runs import records
from podbot.sandbox import OverlaySandbox, layers

EDITS = """
sed -i -e 's/^5$/five/' -e 's/^95$/ninety-five/' numbers
echo "print('new')" > src/app.py
rm -r old
mkdir new && echo added > new/file
"""
HOOK = "mkdir -p .git/hooks && printf '#!/bin/sh\\n' > .git/hooks/pre-commit"

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def data(capsys: Captured, *words: str, code: int = 0) -> dict[str, object]:
    """The JSON a verb prints."""
    capsys.readouterr()
    assert main(["changes", "--json", *words]) == code
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def text(capsys: Captured, *words: str, code: int = 0) -> str:
    """What a verb prints for people."""
    capsys.readouterr()
    assert main(["changes", *words]) == code, capsys.readouterr()
    return capsys.readouterr().out


def failure(capsys: Captured, *words: str) -> tuple[str, str]:
    """The kind and the message of a refusal, which says the same in both ways."""
    error = data(capsys, *words, code=2)["error"]
    assert isinstance(error, dict)
    assert main(["changes", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"podbot changes {words[0]}: {error['message'].splitlines()[0]}")
    assert "remedy: " in shown.err
    assert "Traceback" not in shown.err
    return str(error["kind"]), shown.err


# Looking


def test_nothing_to_look_at_is_said(project: Path, capsys: Captured) -> None:
    assert text(capsys) == text(capsys, "list") == "no changes are waiting\n"
    assert data(capsys, "list") == {"runs": []}


def test_a_list_has_a_line_for_each_run_the_newest_first(project: Path, capsys: Captured) -> None:
    ran(project, "echo 1 > one", name="first")
    second = ran(project, "echo 22 > two; rm numbers")

    title, newer, older = text(capsys, "list").splitlines()

    assert title.split() == ["RUN", "AGE", "STATUS", "CHANGES", "SIZE", "TARGET", "COMMAND"]
    assert newer.startswith(short(second))
    assert older.startswith("first ")
    assert f"exit 0  2        3 B   {project}  sh -c 'echo 22 > two; rm numbers'" in newer
    assert older.endswith("sh -c 'echo 1 > one'")


def test_the_list_names_the_command_that_made_the_changes_before_those_that_only_looked(
    project: Path, capsys: Captured
) -> None:
    for words in (["run", "--keep", "--name", "a"], *[["run", "--keep", "--in", "a"]] * 3):
        command = ["ls"] if "--in" in words else ["sh", "-c", "echo 1 > one"]
        assert main([*words, "--", *command]) == 0
        capsys.readouterr()
    assert text(capsys, "list").endswith("  sh -c 'echo 1 > one', then ls\n")
    assert main(["run", "--keep", "--in", "a", "--", "cat", "one"]) == 0
    capsys.readouterr()
    assert text(capsys, "list").endswith("  sh -c 'echo 1 > one', then 2 more\n")


def test_the_list_as_data(project: Path, capsys: Captured) -> None:
    id = ran(project, "echo 1 > one", name="first")

    (run,) = data(capsys)["runs"]  # type: ignore[misc]

    assert run["id"] == id
    assert run["name"] == "first"
    assert run["status"] == "ended"
    assert run["live"] is False
    assert run["targets"] == [str(project)]
    assert run["command"] == ["sh", "-c", "echo 1 > one"]
    assert run["exit_status"] == 0
    assert run["changes_count"] == 1
    assert run["size"] == 2


def test_layers_of_library_users_and_of_the_killed_are_listed_too(
    project: Path, capsys: Captured
) -> None:
    killed = ran(project, "echo 1 > one")
    broken_off(killed)
    with OverlaySandbox(project) as sandbox:
        sandbox.write("two", "2")

    lines = text(capsys).splitlines()

    assert sandbox.layer is not None
    assert " kept " in next(line for line in lines if line.startswith(short(sandbox.layer.id)))
    assert " broken off " in next(line for line in lines if line.startswith(short(killed)))


def test_runs_without_changes_are_listed_on_request(project: Path, capsys: Captured) -> None:
    id = ran(project, "true")
    broken_off(id)

    assert text(capsys) == "no changes are waiting\n"
    assert short(id) in text(capsys, "list", "--all")
    assert text(capsys, "show", id).endswith("\nnothing is left of its changes\n")
    assert data(capsys, "show", id)["changes"] == []


def test_show_tells_the_command_the_counts_and_each_change(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS + "chmod +x numbers", name="fixer")

    shown = text(capsys, "show", "last")

    assert f"run      {id} (fixer)\n" in shown
    assert "status   exit status 0\n" in shown
    assert "command  sh -c '\\nsed" in shown
    assert f"target   {project}\n" in shown
    assert "7 changes: 2 added, 2 modified, 3 deleted; " in shown
    assert shown.splitlines()[-10:] == [
        "A                         new/",
        "A  +1 -0             6 B  new/file",
        "M  +2 -2           304 B  numbers  (mode 0644 → 0755)  ! runs when used",
        "D                         old/",
        "D  +0 -1                  old/one",
        "D  +0 -1                  old/two",
        "M  +1 -1            13 B  src/app.py",
        "",
        "runs when used:",
        "  numbers: it can be run as a program, and could not before",
    ]


def test_show_tells_what_would_run_and_where_the_host_moved_on(
    project: Path, capsys: Captured
) -> None:
    ran(project, EDITS + HOOK)
    (project / "numbers").write_text("the host's own\n")

    shown = text(capsys, "show", "last")

    assert "runs by itself once applied:\n  .git/hooks/pre-commit: git runs it" in shown
    assert "conflicts with what the host has now:\n  numbers: the host has changed it" in shown
    assert "(host: 15 B of " in shown
    assert "; sandbox: 304 B of " in shown


def test_show_marks_what_is_not_compared_line_by_line_and_odd_names(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podbot.changes.diffs.sides.MAX_LINES", 50)
    script = r"""
    printf 'a\0b\n' > src/app.py; seq 200 > numbers; mkdir -m 777 open
    touch 'back\x1b' ' blank '; mkdir "src/p$(printf '\320\260')y"
    """
    id = ran(project, script)

    shown = text(capsys, "show", id)
    lines = [each for each in shown.splitlines() if each[1:3] == "  "]

    def line(name: str) -> str:
        return next(each for each in lines if f"  {name}" in each)

    assert line("src/app.py").startswith("M  binary ")
    assert line("src/app.py").endswith("! was text, is binary now")
    assert line("numbers").startswith("M  large ")
    assert "  (mode 0777)" in line("open/")
    assert line("back\\\\x1b") and line("\\x20blank\\x20")
    assert line("src/p\u0430y/").endswith("(unusual letters: U+0430)")
    shown = text(capsys, "diff", id, "src/app.py")
    assert "(was text, is binary now; " in shown and "+a\\x00b\n" in shown
    files = {each["path"]: each for each in data(capsys, "diff", id)["files"]}  # type: ignore[attr-defined]
    assert files["numbers"]["large"] and not files["src/app.py"]["large"]
    assert files["src/app.py"]["hunks"] == []


def test_show_as_data_has_all_of_it(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS + HOOK + "; ln -s app.py src/link; mv new/file new/other")
    (project / "numbers").write_text("the host's own\n")

    found = data(capsys, "show", id)

    assert found["changes_count"] == len(found["changes"])  # type: ignore[arg-type]
    assert found["counts"]["deleted"] == 3  # type: ignore[index,call-overload]
    assert found["conflicts"] == 1
    assert found["runs_by_itself"] == 1
    changes = {change["path"]: change for change in found["changes"]}  # type: ignore[attr-defined]
    hook = changes[".git/hooks/pre-commit"]
    assert hook["kind"] == "added"
    assert [flag["level"] for flag in hook["flags"]] == ["runs by itself"]
    numbers = changes["numbers"]
    assert numbers["conflict"]["kind"] == "changed"
    assert numbers["conflict"]["host"]["size"] == 15
    assert (numbers["lines_added"], numbers["lines_removed"]) == (100, 1)
    assert changes["src/link"]["new"]["link"] == "app.py"
    assert changes["old/one"]["new"] is None
    assert changes["old/one"]["old"]["type"] == "file"


def test_diff_shows_lines_of_the_paths_that_are_meant(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS)

    assert text(capsys, "diff", id, "src").splitlines() == [
        "diff --git a/src/app.py b/src/app.py",
        "--- a/src/app.py",
        "+++ b/src/app.py",
        "@@ -1 +1 @@",
        "-print('old')",
        "+print('new')",
    ]
    assert "old/one" in text(capsys, "diff", id, "old/*")
    assert "numbers" not in text(capsys, "diff", id, str(project / "new"))
    assert failure(capsys, "diff", id, "nothing/*")[0] == "nothing_selected"


def test_diff_as_data_has_the_hunks(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS)

    (file,) = data(capsys, "diff", id, "src")["files"]  # type: ignore[misc]

    assert file["path"] == "src/app.py"
    assert file["hunks"] == [
        {
            "old_start": 1,
            "old_count": 1,
            "new_start": 1,
            "new_count": 1,
            "lines": ["-print('old')", "+print('new')"],
        }
    ]


def test_the_patch_of_a_diff_is_what_git_takes(project: Path) -> None:
    id = ran(project, EDITS + "printf '\\0\\1' > bin; mkdir empty")
    command = [*PODBOT, "changes", "diff", id, "--patch"]

    done = subprocess.run(command, capture_output=True, check=True)

    assert b"GIT binary patch" in done.stdout
    assert b"empty" in done.stderr
    git = ["git", "-c", "core.hooksPath=/dev/null", "apply"]
    subprocess.run(git, input=done.stdout, cwd=project, check=True)
    assert (project / "src" / "app.py").read_text() == "print('new')\n"
    assert not (project / "old").exists()


def test_names_and_contents_from_inside_command_nothing(project: Path, capsys: Captured) -> None:
    odd = "a\nb\x1b]0;x\x07\u202e\udcff"
    id = ran(project, f"printf 'evil\\033[2J\\n' > '{odd}'; mkdir -p '{odd}d/.git'")

    for words in (["show", id], ["diff", id], ["list"]):
        shown = text(capsys, *words)
        assert "a\\nb\\x1b]0;x\\x07\\u202e\\xff" in shown
        assert shown.replace("\n", "").isprintable()
    assert "evil\\x1b[2J" in text(capsys, "diff", id)


def test_odd_bytes_stay_valid_json_and_exact(project: Path, capsys: Captured) -> None:
    id = ran(project, "printf 'x\\377\\n' > 'a\udcffb'; ln -s 'to\udcfe' link")

    for words, key in ((["show", id], "changes"), (["diff", id], "files")):
        found = data(capsys, *words)
        items = {item["path"]: item for item in found[key]}  # type: ignore[attr-defined]
        assert items["a\ufffdb"]["path_base64"] == base64.b64encode(b"a\xffb").decode()
        json.dumps(found, ensure_ascii=False).encode("utf-8")  # no half characters anywhere
    (hunk,) = items["a\ufffdb"]["hunks"]
    assert base64.b64decode(hunk["lines_base64"][0]) == b"+x\xff"


def test_ids_may_be_short_and_must_be_clear(project: Path, capsys: Captured) -> None:
    first, second = ran(project, "echo 1 > one", name="mine"), ran(project, "echo 2 > two")

    for word in (first, first[:-2], first.rpartition("-")[2], "mine"):
        assert f"run      {first}" in text(capsys, "show", word)
    assert f"run      {second}" in text(capsys, "show", "last")
    assert failure(capsys, "show", "2")[0] == "ambiguous_id"
    assert failure(capsys, "show", "zz\x1b")[0] == "unknown_id"


def test_a_running_sandbox_can_be_looked_at_but_not_decided_on(
    project: Path, capsys: Captured
) -> None:
    with OverlaySandbox(project, discard=True) as sandbox:
        assert sandbox.layer is not None
        id = sandbox.layer.id
        sandbox.write("half", "done\n")

        assert " running " in text(capsys)
        assert "status   running: this is what it has changed so far" in text(capsys, "show", id)
        assert main(["changes", "diff", id]) == 0
        shown = capsys.readouterr()
        assert "+done" in shown.out
        assert shown.err == f"podbot: {short(id)} still runs; this is what it has changed so far\n"
        for words in (["apply", id], ["pick", id], ["discard", id], ["undo", id]):
            kind, err = failure(capsys, *words)
            assert kind == "in_use"
            assert "still runs" in err
    assert not (project / "half").exists()


# Deciding


def test_apply_and_undo_go_there_and_back(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS)

    assert text(capsys, "apply", id).splitlines() == [
        "applied 7 changes",
        f"to take it back: podbot changes undo {short(id)}",
    ]
    assert (project / "src" / "app.py").read_text() == "print('new')\n"
    assert not (project / "old").exists()
    shown = text(capsys, "show", id)
    assert "\napplied  " in shown
    assert shown.endswith("nothing is left to apply\n")

    assert text(capsys, "undo", id).splitlines()[0] == "undone: 7 paths as before"
    assert (project / "src" / "app.py").read_text() == "print('old')\n"
    assert (project / "old" / "one").read_text() == "1\n"
    assert "\nundone   " in text(capsys, "show", id)
    assert failure(capsys, "undo", id)[0] == "nothing_to_undo"


def test_apply_and_undo_as_data(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS)

    applied = data(capsys, "apply", id, "src")
    assert applied["id"] == id
    assert [each["path"] for each in applied["applied"]] == ["src/app.py"]  # type: ignore[attr-defined]
    assert applied["skipped"] == []
    (application,) = data(capsys, "show", id)["applications"]  # type: ignore[misc]
    assert (application["paths"], application["undone"]) == (1, False)
    assert data(capsys, "undo", id)["restored"] == [str(project / "src" / "app.py")]


def test_apply_takes_only_the_paths_that_are_meant(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS)

    text(capsys, "apply", id, "new", "old/o*")

    assert (project / "new" / "file").read_text() == "added\n"
    assert not (project / "old" / "one").exists()
    assert (project / "old" / "two").exists()
    assert (project / "src" / "app.py").read_text() == "print('old')\n"


def test_what_is_left_is_said_and_a_run_that_is_applied_is_listed_as_such(
    project: Path, capsys: Captured
) -> None:
    id = ran(project, "echo a > a; echo b > b")
    assert f"1 change left: podbot changes show {short(id)}" in text(capsys, "apply", id, "a")
    assert " exit 0 " in text(capsys, "list")
    assert "left" not in text(capsys, "apply", id)
    assert " applied " in text(capsys, "list")
    assert data(capsys, "list")["runs"][0]["applied"] is True  # type: ignore[index]
    text(capsys, "undo", id)
    assert " applied " not in text(capsys, "list")


def test_paths_may_be_meant_from_where_one_stands(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = ran(project, "echo new > src/app.py; echo b > b; mkdir src/.git; echo a > src/.envrc")
    monkeypatch.chdir(project / "src")
    assert "src/app.py" in text(capsys, "diff", id, "app.py")
    assert "src/app.py" in text(capsys, "diff", id, "*.py")
    assert "src/app.py" in text(capsys, "diff", id, "src/app.py")
    assert "b" in text(capsys, "diff", id, "../b")
    assert "'nothing'" in failure(capsys, "diff", id, "nothing")[1]
    text(capsys, "apply", id, ".envrc", "--allow-flagged", ".envrc")
    assert (project / "src" / ".envrc").exists()


def test_what_git_stores_is_one_line(project: Path, capsys: Captured) -> None:
    script = "git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm one"
    id = ran(project, script)
    shown = text(capsys, "show", id)
    assert " in .git/objects/, " in shown
    assert ".git/objects/pack" not in shown
    assert "numbers" not in shown


def test_what_runs_by_itself_stops_apply_until_it_is_allowed(
    project: Path, capsys: Captured
) -> None:
    id = ran(project, EDITS + HOOK)

    kind, err = failure(capsys, "apply", id)
    assert kind == "flagged"
    assert ".git/hooks/pre-commit: git runs it" in err
    assert f"podbot changes pick {short(id)}" in err
    assert (project / "numbers").read_text().startswith("1\n2\n3\n4\n5\n")

    text(capsys, "apply", id, "--allow-flagged", ".git/hooks/pre-commit")
    assert (project / ".git" / "hooks" / "pre-commit").exists()


def test_everything_flagged_can_be_allowed_at_once(project: Path, capsys: Captured) -> None:
    id = ran(project, HOOK)
    text(capsys, "apply", id, "--yes-flagged", "all")
    assert (project / ".git" / "hooks" / "pre-commit").exists()


def test_a_conflict_stops_apply_until_it_is_decided(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS)
    (project / "numbers").write_text("the host's own\n")

    kind, err = failure(capsys, "apply", id)
    assert kind == "conflict"
    assert "numbers: the host has changed it since" in err
    assert "--on-conflict skip" in err
    assert (project / "old").exists()

    shown = text(capsys, "apply", id, "--on-conflict", "skip")
    assert f"  not {project}/numbers: the host has changed it since" in shown
    assert (project / "numbers").read_text() == "the host's own\n"
    assert not (project / "old").exists()

    text(capsys, "apply", id, "--on-conflict", "overwrite")
    assert "ninety-five" in (project / "numbers").read_text()


def test_undo_refuses_where_the_host_moved_on(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS)
    text(capsys, "apply", id)
    (project / "numbers").write_text("later\n")

    kind, err = failure(capsys, "undo", id)

    assert kind == "undo_refused"
    assert "numbers" in err
    assert (project / "numbers").read_text() == "later\n"


def test_discard_removes_the_run_and_all_that_is_known_of_it(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = ran(project, EDITS)
    text(capsys, "apply", id, "src")

    assert text(capsys, "discard", id) == f"discarded {short(id)}\n"

    assert layers.get(id) is None
    assert records.read(id) is None
    assert journal.of_layer(id) == []
    assert (project / "src" / "app.py").read_text() == "print('new')\n"
    assert failure(capsys, "show", id)[0] == "unknown_id"
    other = ran(project, "echo 1 > one")
    assert data(capsys, "discard", other) == {"id": other, "discarded": True}


def test_discard_asks_a_person_first(project: Path) -> None:
    id = ran(project, EDITS)
    for answer, code in (("\r", 1), ("n\r", 1), ("\x04", 1), ("y\r", 0)):
        terminal = Terminal([*PODBOT, "changes", "discard", "last"])
        terminal.until(f"throw 7 changes of {short(id)} away for good? [y/N]")
        terminal.send(answer)
        assert terminal.end() == code
        assert (layers.get(id) is None) == (code == 0)


def test_discard_does_not_ask_if_told(project: Path) -> None:
    id = ran(project, EDITS)
    terminal = Terminal([*PODBOT, "changes", "discard", id, "-y"])
    terminal.until(f"discarded {short(id)}")
    assert terminal.end() == 0


def test_a_crash_is_healed_before_anything_else(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = ran(project, EDITS)
    crash = (
        "import os, sys\nfrom podbot.changes.applying import journal\nfrom podbot.cli import main\n"
        "left = [6]\n"
        "def step(label):\n    left[0] -= 1\n    if not left[0]: os._exit(9)\n"
        f"journal.step = step\nmain(['changes', 'apply', '{id}'])"
    )
    assert subprocess.run([sys.executable, "-c", crash], check=False).returncode == 9

    assert main(["changes", "apply", id]) == 0

    assert "podbot: " in (err := capsys.readouterr().err)
    assert "interrupted" in err
    assert not (project / "old").exists()


def test_a_conflict_with_what_was_hidden_does_not_say_that_nothing_is_there(
    project: Path, capsys: Captured
) -> None:
    id = ran(project, "echo 2 > secret", hidden=str(project / "secret"))
    (project / "secret").write_text("of the host\n")

    shown = text(capsys, "show", id)

    assert "the policy hid this path from the sandbox (host: hidden; " in shown
    assert "host: nothing" not in shown


# Saving and loading


def test_save_writes_a_patch_and_says_what_it_cannot_carry(
    project: Path, tmp_path: Path, capsys: Captured
) -> None:
    id = ran(project, EDITS + "mkdir empty")
    file = tmp_path / "work.patch"

    assert main(["changes", "save", id, str(file)]) == 0

    shown = capsys.readouterr()
    assert shown.out.startswith(f"saved 8 changes in {file} (")
    assert "empty" in shown.err
    git = ["git", "-c", "core.hooksPath=/dev/null", "apply", str(file)]
    subprocess.run(git, cwd=project, check=True)
    assert (project / "src" / "app.py").read_text() == "print('new')\n"


def test_a_tarball_can_be_saved_loaded_and_applied_elsewhere(
    project: Path, tmp_path: Path, capsys: Captured
) -> None:
    id = ran(project, EDITS)
    file = tmp_path / "work.tar"
    saved = data(capsys, "save", id, str(file))
    assert (saved["format"], saved["size"]) == ("tar", file.stat().st_size)
    other = project.parent / "other"
    subprocess.run(["cp", "-a", project, other], check=True)

    loaded = data(capsys, "load", str(file), "--target", str(other))

    assert loaded["targets"] == [str(other)]
    assert loaded["changes_count"] == 7
    assert loaded["command"] == ["podbot", "changes", "load", str(file)]
    text(capsys, "apply", str(loaded["id"]))
    assert (other / "src" / "app.py").read_text() == "print('new')\n"
    assert not (other / "old").exists()
    assert (project / "old").exists()


def test_loading_tells_what_is_in_it(project: Path, tmp_path: Path, capsys: Captured) -> None:
    ran(project, EDITS + HOOK)
    file = tmp_path / "work.tar"
    text(capsys, "save", "last", str(file))

    shown = text(capsys, "load", str(file), "--as-saved")

    assert f"loaded {file} as " in shown
    assert "runs by itself once applied:" in shown
    assert "go on with: podbot changes show " in shown


def test_an_archive_alone_does_not_say_which_folder_it_is_for(
    project: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, EDITS)
    file = tmp_path / "work.tar"
    text(capsys, "save", "last", str(file))
    before = records.entries()

    for elsewhere in (tmp_path, project / "src"):
        monkeypatch.chdir(elsewhere)
        kind, message = failure(capsys, "load", str(file))
        assert kind == "target_refused"
        assert "--target" in message and "--as-saved" in message
    assert records.entries() == before

    for here in (project, project.parent):
        monkeypatch.chdir(here)
        assert data(capsys, "load", str(file))["targets"] == [str(project)]
    monkeypatch.chdir(tmp_path)
    assert data(capsys, "load", str(file), "--as-saved")["targets"] == [str(project)]


@pytest.mark.parametrize("step", ["podbot.runs.records.write", "podbot.review.summary.summary"])
@pytest.mark.parametrize("problem", [UnicodeError("odd"), ChangesError("no"), KeyboardInterrupt()])
def test_a_load_that_fails_after_unpacking_leaves_nothing(
    project: Path,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    problem: BaseException,
) -> None:
    ran(project, EDITS)
    file = tmp_path / "work.tar"
    text(capsys, "save", "last", str(file))
    before = records.entries()

    def fails(*_: object, **__: object) -> object:
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(step, fails)
        with contextlib.suppress(UnicodeError):
            assert main(["changes", "load", str(file), "--target", str(project)]) in (2, 130)
    assert records.entries() == before


def test_some_of_the_changes_can_be_saved(project: Path, tmp_path: Path, capsys: Captured) -> None:
    ran(project, EDITS)
    file = tmp_path / "some.patch"
    assert text(capsys, "save", "last", str(file), "src").startswith("saved 1 change in ")
    assert "numbers" not in file.read_text()


def test_save_never_overwrites_and_leaves_no_half_file(
    project: Path, tmp_path: Path, capsys: Captured
) -> None:
    id = ran(project, EDITS)
    there = tmp_path / "there.tar"
    there.write_text("mine")
    os.symlink("nowhere", tmp_path / "link.patch")

    assert failure(capsys, "save", id, str(there))[0] == "exists"
    assert failure(capsys, "save", id, str(tmp_path / "link.patch"))[0] == "exists"
    assert failure(capsys, "save", id, str(tmp_path / "what.zip"))[0] == "invalid"
    assert failure(capsys, "save", id, str(tmp_path / "no" / "x.tar"))[0] == "io"
    assert there.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.patch", "there.tar"]


def test_a_save_that_fails_half_way_leaves_no_file(
    project: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from podbot.changes.diffs import patch

    def full(*_: object) -> Iterator[bytes]:
        yield b"some"
        raise OSError(28, "No space left on device")

    id = ran(project, EDITS)
    monkeypatch.setattr(patch, "patch", full)
    assert failure(capsys, "save", id, str(tmp_path / "x.patch"))[0] == "disk_full"
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_tarball_is_refused(project: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "bad.tar").write_bytes(b"not a tarball at all" * 100)

    assert failure(capsys, "load", str(tmp_path / "bad.tar"))[0] == "bad_archive"
    assert failure(capsys, "load", str(tmp_path / "none.tar"))[0] == "not_found"
    assert failure(capsys, "load", str(tmp_path))[0] == "io"
    assert layers.found() == []


def test_a_patch_is_not_loaded_and_the_remedy_says_what_it_is_for(
    project: Path, tmp_path: Path, capsys: Captured
) -> None:
    file = str(tmp_path / "w.patch")
    text(capsys, "save", ran(project, EDITS), file)

    assert failure(capsys, "load", file)[0] == "bad_archive"
    assert main(["changes", "load", file]) == 2
    told = capsys.readouterr().err
    assert f"remedy: a patch is for git: git apply {file}\n" in told
    assert "podbot changes save ID FILE.tar\n" in told


def test_a_fifo_nobody_writes_into_is_refused_and_a_pipe_is_read(
    project: Path, tmp_path: Path, capsys: Captured
) -> None:
    fifo, saved = tmp_path / "fifo", tmp_path / "saved.tar"
    os.mkfifo(fifo)
    id = ran(project, EDITS)
    text(capsys, "save", id, str(saved))

    kind, message = failure(capsys, "load", str(fifo))
    with subprocess.Popen(["cat", saved], stdout=subprocess.PIPE) as cat:
        assert cat.stdout
        name = f"/dev/fd/{cat.stdout.fileno()}"
        loaded = data(capsys, "load", name, "--target", str(project))

    assert (kind, "FIFO" in message) == ("io", True)
    assert loaded["targets"] == [str(project)]


# Odd runs


def test_every_way_to_end_has_its_words(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS)
    record = records.read(id)
    assert record is not None
    for fields, status, column in (
        ({"exit_status": 3}, "exit status 3", "exit 3"),
        ({"exit_status": 137, "signal": 9}, "killed by signal 9", "killed by signal 9"),
        ({"exit_status": 124, "timed_out": True}, "timed out", "timed out"),
        ({"exit_status": None, "error": "no\x07"}, "podbot failed: no\\x07", "failed"),
        ({"exit_status": None, "ended": None}, "broken off: podbot was killed", "broken off"),
        ({"exit_status": None, "earlier": (record.past,)}, "ended", "ended"),
    ):
        records.write(replace(record, **fields))  # type: ignore[arg-type]
        shown = text(capsys, "show", id)
        assert f"\nstatus   {status}" in shown
        assert f" {column} " in text(capsys)
    assert "\nearlier  sh -c '\\nsed" in shown


def test_links_and_special_files_are_told_apart(project: Path, capsys: Captured) -> None:
    ran(project, "ln -s /etc/passwd out; ln numbers again; mkfifo pipe; rm -r old; ln -s src old")

    shown = text(capsys, "show", "last")

    assert "L  +1 -0                  out → /etc/passwd  ! runs by itself" in shown
    assert "numbers is also again" in shown
    assert "S                         pipe" in shown
    assert "old → src  (was a folder)" in shown
    assert text(capsys, "show", "last", "--json").count('"source": "numbers"') == 1


def test_two_targets_with_the_same_names_are_not_mixed_up(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = project.parent / "other"
    subprocess.run(["cp", "-a", project, other], check=True)
    edit = "sed -i -e 's/^5$/five/' -e 's/^95$/ninety-five/'"
    with OverlaySandbox([project, other]) as sandbox:
        assert sandbox.exec(["sh", "-c", f"{edit} {project}/numbers {other}/numbers"]).ok

    assert f"  {other}/numbers" in text(capsys, "show", "last")
    #      project: 5 95, other: 5 95
    picks("y n          n n", monkeypatch, capsys)

    assert "five" in (project / "numbers").read_text()
    assert "ninety" not in (project / "numbers").read_text()
    assert "five" not in (other / "numbers").read_text()


def test_a_layer_that_cannot_be_read_does_not_hide_the_others(
    project: Path, capsys: Captured
) -> None:
    good, bad = ran(project, "echo 1 > one"), ran(project, "echo 2 > two")
    layer = layers.get(bad)
    assert layer is not None
    layers.remove(layer.upper(0))

    shown = text(capsys).splitlines()

    assert "  ?        ?  " in next(line for line in shown if line.startswith(short(bad)))
    assert "  1        2 B  " in next(line for line in shown if line.startswith(short(good)))
    assert shown[-1].startswith(f"{short(bad)} cannot be read: ")
    assert failure(capsys, "show", bad)[0] == "unknown_id"


@pytest.mark.parametrize(
    "problem",
    [
        RecursionError("too deep"),
        AttributeError("no such thing"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd\x1b[2J"),
        OSError(5, "Input/output error"),
        MemoryError(),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_whatever_reading_one_layer_raises_the_others_are_listed(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    good, bad = ran(project, "echo 1 > one"), ran(project, "echo 2 > two")
    real = capture.read

    def read(layer: layers.Layer) -> ChangeSet:
        if layer.id == bad:
            raise problem
        return real(layer)

    monkeypatch.setattr(capture, "read", read)
    shown = text(capsys, "list").splitlines()

    assert "  1        2 B  " in next(line for line in shown if line.startswith(short(good)))
    assert shown[-1].startswith(f"{short(bad)} cannot be read: ")
    newer, older = data(capsys, "list")["runs"]  # type: ignore[misc]
    assert newer["problem"] and newer["changes_count"] is None
    assert older["problem"] is None and older["changes_count"] == 1
    for verb in ("show", "diff", "apply", "pick"):
        kind, message = failure(capsys, verb, bad)
        assert kind == "io" and "cannot be read: " in message and "\x1b" not in message


@pytest.mark.parametrize(
    "wrong",
    [{"targets": ["\ud800"]}, {"targets": "abc"}, {"created": float("nan")}, {"method": "copy"},
     "[" * 100_000],
)  # fmt: skip
def test_a_layer_whose_notes_make_no_sense_hides_no_other(
    project: Path, capsys: Captured, wrong: dict[str, object] | str
) -> None:
    good, bad = ran(project, "echo 1 > one"), ran(project, "echo 2 > two")
    records.remove(bad)
    layer = layers.get(bad)
    assert layer is not None
    notes = layer.path / layers.META
    known = json.loads(notes.read_text())
    notes.write_text(wrong if isinstance(wrong, str) else json.dumps({**known, **wrong}))

    shown = text(capsys, "list")

    assert "  1        2 B  " in next(x for x in shown.splitlines() if x.startswith(short(good)))
    assert good in [run["id"] for run in data(capsys, "list")["runs"]]  # type: ignore[attr-defined]
    assert main(["changes", "show", bad]) in (0, 2)


def test_a_layer_that_breaks_while_it_is_compared_is_named(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = ran(project, "echo 2 > two")

    def broken(*_: object) -> object:
        raise RecursionError

    monkeypatch.setattr("podbot.changes.diffs.diff.compared", broken)
    for verb in ("show", "diff"):
        assert main(["changes", verb, bad]) == 2
        assert f"the changes of {short(bad)} cannot be read" in capsys.readouterr().err


def test_applying_again_finds_nothing_left(project: Path, capsys: Captured) -> None:
    id = ran(project, EDITS)
    text(capsys, "apply", id)
    assert text(capsys, "apply", id) == "nothing is left to apply\n"
    assert data(capsys, "apply", id)["applied"] == []


def test_every_key_of_the_data_is_in_the_manual(
    project: Path, tmp_path: Path, capsys: Captured
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "changes.md").read_text()
    known = set(re.findall(r"`(\w+)`", page)) | {kind.value for kind in ChangeKind}
    id = ran(project, EDITS + HOOK + "; mv numbers src/n; ln -s a src/l")
    (project / "src" / "app.py").write_text("the host's own\n")

    def keys(found: object) -> Iterator[str]:
        if isinstance(found, dict):
            yield from found
        for inner in found.values() if isinstance(found, dict) else found:
            if isinstance(inner, dict | list):
                yield from keys(inner)

    printed: set[str] = set()
    for words in (
        ["list"], ["show", id], ["diff", id], ["save", id, str(tmp_path / "a.tar")],
        ["load", str(tmp_path / "a.tar"), "--as-saved"],
        ["apply", id, "--on-conflict", "skip", "new", "src"],
        ["show", id], ["undo", id], ["discard", id],
    ):  # fmt: skip
        printed |= set(keys(data(capsys, *words)))
    printed |= set(keys(data(capsys, "show", id, code=2)))

    assert printed <= known


# The look, the help, the streams


def test_help_teaches_with_examples(capsys: Captured) -> None:
    for words in ([], *([verb] for verb in VERBS)):
        with pytest.raises(SystemExit, match="0"):
            main(["changes", *words, "--help"])
        out = capsys.readouterr().out
        assert "podbot changes" in out
        assert max(map(len, out.splitlines())) <= 100
    with pytest.raises(SystemExit, match="2"):
        main(["changes", "aply"])


def test_options_may_stand_anywhere_among_the_paths(project: Path, capsys: Captured) -> None:
    id = ran(project, "echo 1 > -odd; echo 2 > two; echo 3 > three; echo 4 > four")
    for words in (
        [id, "--on-conflict", "skip", "two", "three"],
        ["--on-conflict=skip", id, "two", "three"],
        [id, "two", "three", "--yes-flagged", "all"],
        [id, "--", "two", "three"],
    ):
        found = data(capsys, "apply", *words)
        assert [each["path"] for each in found["applied"]] == ["three", "two"]  # type: ignore[attr-defined]
        text(capsys, "undo", id)
    assert "a/-odd" in text(capsys, "diff", id, "--", "-odd")
    for option in ("--bogus", "--on-conflict", "--on-c=skip"):
        with pytest.raises(SystemExit, match="2"):
            main(["changes", "apply", id, option])


def test_json_may_stand_on_either_side_of_the_verb(project: Path, capsys: Captured) -> None:
    for words in (["--json"], ["--json", "list"], ["list", "--json"]):
        assert main(["changes", *words]) == 0
        assert json.loads(capsys.readouterr().out) == {"runs": []}


def test_a_terminal_gets_colours_and_a_pager_and_a_pipe_neither(project: Path) -> None:
    id = ran(project, EDITS)
    command = [*PODBOT, "changes", "diff", id]
    env = {"PODBOT_PAGER": "sed s/^/paged:/", "LINES": "10", "TERM": "xterm", "NO_COLOR": ""}

    terminal = Terminal(command, env)
    terminal.until("paged:\x1b[32m+print('new')")
    assert terminal.end() == 0
    terminal = Terminal(command, {**env, "NO_COLOR": "1"})
    terminal.until("paged:+print('new')")
    assert terminal.end() == 0
    assert b"\x1b" not in terminal.shown
    piped = subprocess.run(command, env={**os.environ, **env}, capture_output=True, check=True)
    assert b"\x1b" not in piped.stdout
    assert b"paged" not in piped.stdout
    assert piped.stderr == b""


def test_a_list_fits_the_terminal(project: Path) -> None:
    ran(project, "echo 1 > one; : " + "x" * 200)
    terminal = Terminal([*PODBOT, "changes"], {"COLUMNS": "80", "TERM": "dumb"})
    assert terminal.end() == 0
    # A sign of life, which a slow machine may need, is wiped away before.
    lines = terminal.shown.decode().rpartition("\r\x1b[K")[2].splitlines()
    assert len(lines) == 2
    assert all(len(line) <= 80 for line in lines)
    assert "…" in lines[1]


def test_a_patch_is_not_printed_on_a_terminal(project: Path) -> None:
    id = ran(project, EDITS)
    terminal = Terminal([*PODBOT, "changes", "diff", "--patch", id])
    terminal.until("a terminal might obey them")
    assert terminal.end() == 2


def test_a_stream_without_our_letters_gets_them_spelled_out(project: Path) -> None:
    id = ran(project, "mv numbers números")
    env = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(
        [*PODBOT, "changes", "show", id], env=env, capture_output=True, check=True
    )
    assert b"numbers \\u2192 n\\xfameros" in done.stdout


def test_a_reader_that_leaves_early_causes_no_traceback(project: Path) -> None:
    id = ran(project, "seq 1 200000 > numbers")
    command = [*PODBOT, "changes", "diff", id]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == 1


@pytest.mark.parametrize("words", ["diff last", "show last", "list", "diff last --patch"])
@pytest.mark.parametrize("out", ["> /dev/full", ">&-"])
def test_output_that_cannot_be_written_is_one_line_and_exit_2(
    project: Path, words: str, out: str
) -> None:
    ran(project, EDITS)
    command = f"{shlex.join(PODBOT)} changes {words} {out}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("podbot changes: ")


def test_a_state_folder_that_is_none_is_told_without_a_traceback(
    project: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = ran(project, EDITS)
    file = tmp_path / "state"
    file.write_text("")
    monkeypatch.setenv("PODBOT_STATE", str(file))
    for words in (["list"], ["show", id], ["diff", id], ["apply", id], ["undo", id]):
        code = main(["changes", *words])
        told = capsys.readouterr().err
        assert code in (0, 2)
        assert (code == 2) == told.startswith(f"podbot changes {words[0]}: ")
    assert code == 2


def test_looking_does_not_load_what_decides() -> None:
    script = (
        "import sys\nfrom podbot.cli import main\nmain(['changes'])\n"
        "print(*(name for name in sys.modules if name.startswith('podbot.')))"
    )
    with workplace():
        out = subprocess.check_output([sys.executable, "-c", script], text=True)
    loaded = set(out.splitlines()[-1].split())
    assert "podbot.runs.records" in loaded
    assert not loaded & {
        "podbot.changes.applying.apply",
        "podbot.changes.risk.judging",
        "podbot.cli.deciding",
        "podbot.cli.run_options",
        "podbot.sandbox.backends",
        "podbot.sandbox.network",
    }


# Picking, through a pipe


def picks(
    answers: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured, *words: str, code: int = 0
) -> str:
    """What is said when these answers are given, a line each."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{a}\n" for a in answers.split())))
    return text(capsys, "pick", "last", *words, code=code)


def test_pick_takes_what_was_said_yes_to(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = ran(project, EDITS)

    #                       new/ numbers: 5, 95  old/  src/app.py
    shown = picks("y        n y         n     y", monkeypatch, capsys)

    assert "(1/7) added new/\n" in shown
    assert "take all in it (1 change, 6 B)? [y,n,s,A,v,q,?]" in shown
    assert "take hunk 1 of 2?" in shown
    assert "take the removal of all in it (2 changes, 0 B)?" in shown
    left = f"4 changes left: podbot changes show {short(id)}\n"
    assert shown.endswith(
        f"applied 4 changes\n{left}to take it back: podbot changes undo {short(id)}\n"
    )
    assert (project / "new" / "file").exists()
    assert (project / "numbers").read_text().splitlines()[94] == "ninety-five"
    assert (project / "numbers").read_text().splitlines()[4] == "5"
    assert (project / "old" / "one").exists()
    assert (project / "src" / "app.py").read_text() == "print('new')\n"
    text(capsys, "undo", id)
    assert (project / "numbers").read_text() == "".join(f"{n}\n" for n in range(1, 101))


def test_pick_steps_into_a_folder_and_keeps_it_if_anything_stays(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, "rm -r old; mkdir -p a/b; echo b1 > a/b/1; echo b2 > a/b/2")

    #              a/  a/b/ 1 2  old/ one two
    shown = picks("s   s    n y  s    y   n", monkeypatch, capsys)

    assert "old/ stays: not all in it was taken" in shown
    assert sorted(path.name for path in (project / "a" / "b").iterdir()) == ["2"]
    assert [path.name for path in (project / "old").iterdir()] == ["two"]


def test_a_folder_that_is_emptied_piece_by_piece_goes(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, "rm -r old")
    picks("s y y", monkeypatch, capsys)
    assert not (project / "old").exists()


def test_all_and_none_of_the_rest_of_a_file(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit = "sed -i -e 's/^5$/five/' -e 's/^50$/fifty/' -e 's/^95$/ninety-five/'"
    ran(project, f"{edit} numbers; cp numbers more; {edit} more; rm more; cp numbers src/app.py")

    picks("n a n", monkeypatch, capsys)
    lines = (project / "numbers").read_text().splitlines()
    assert (lines[4], lines[49], lines[94]) == ("5", "fifty", "ninety-five")

    text(capsys, "undo", "last")
    picks("y d n", monkeypatch, capsys)
    lines = (project / "numbers").read_text().splitlines()
    assert (lines[4], lines[49], lines[94]) == ("five", "50", "95")


def test_q_applies_what_was_taken_so_far(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, EDITS)
    picks("y y q", monkeypatch, capsys)
    assert (project / "new" / "file").exists()
    assert (project / "numbers").read_text().splitlines()[4] == "five"
    assert (project / "numbers").read_text().splitlines()[94] == "95"
    assert (project / "src" / "app.py").read_text() == "print('old')\n"


@pytest.mark.parametrize("answers", ["", "y", "y y y n", "n n n n n"])
def test_answers_that_end_early_or_are_all_no_apply_nothing(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, answers: str
) -> None:
    ran(project, EDITS)
    shown = picks(answers, monkeypatch, capsys, code=1)
    assert shown.splitlines()[-1] in ("nothing was applied", "nothing was taken")
    assert not (project / "new").exists()
    assert (project / "old").exists()


def test_what_runs_by_itself_needs_a_whole_yes_each_time(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, "echo 'echo hi' > .envrc; echo x > .bashrc; mkdir d; echo y > d/.envrc; : > d/f")

    #              .bashrc  .envrc   d/ (all in it but) d/.envrc
    shown = picks("y y      y yes    y                  y no", monkeypatch, capsys)

    assert shown.count("It runs by itself once applied: ") == 3
    assert not (project / ".bashrc").exists()
    assert (project / ".envrc").exists()
    assert (project / "d" / "f").exists()
    assert not (project / "d" / ".envrc").exists()


def test_a_conflict_needs_a_whole_yes_too(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, "echo inside > src/app.py; echo inside > numbers")
    (project / "src" / "app.py").write_text("outside\n")
    (project / "numbers").write_text("outside\n")

    shown = picks("y yes y no", monkeypatch, capsys)

    assert "In conflict: the host has changed it since" in shown
    assert "what it held then is not known (host: 8 B of " in shown
    assert "Taking it overwrites what the host has." in shown
    assert (project / "numbers").read_text() == "inside\n"
    assert (project / "src" / "app.py").read_text() == "outside\n"


def test_what_cannot_be_applied_is_not_asked_about(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "secret").write_text("mine\n")
    ran(project, "echo 1 > one; echo 2 > secret", hidden=str(project / "secret"))

    shown = picks("y", monkeypatch, capsys)

    assert "cannot be applied: the policy hid this path" in shown
    assert (project / "one").exists()
    assert (project / "secret").read_text() == "mine\n"


def test_a_name_that_looks_like_a_pattern_takes_only_itself(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, "echo 1 > '*'; echo 2 > b; echo 3 > '[b]'")

    picks("y n n", monkeypatch, capsys)

    assert (project / "*").exists()
    assert not (project / "b").exists()
    assert not (project / "[b]").exists()


def test_a_question_can_be_explained_and_the_whole_viewed(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, "seq 1 100 > many")

    shown = picks("? what v n", monkeypatch, capsys, code=1)

    assert "… 41 more lines: v shows them" in shown
    assert shown.count("  y  take this\n") == 2
    assert "\n+100\n" in shown


def test_picked_as_data_keeps_the_talk_on_stderr(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, EDITS)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\nq\n"))

    found = data(capsys, "pick", "last")

    assert [each["path"] for each in found["applied"]] == ["new", "new/file"]  # type: ignore[attr-defined]


def test_picking_nothing_is_data_too(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, EDITS)
    monkeypatch.setattr(sys, "stdin", io.StringIO("q\n"))

    found = data(capsys, "pick", "last", code=1)

    assert (found["application"], found["applied"]) == (None, [])


def test_only_some_paths_can_be_picked_from(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, EDITS)
    assert "(1/1) modified src/app.py, 13 B\n" in picks("y", monkeypatch, capsys, "src")
    assert (project / "src" / "app.py").read_text() == "print('new')\n"


def test_a_folder_and_a_file_can_change_places_by_picking(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, "rm -r old; echo file > old; rm numbers; mkdir numbers; echo 1 > numbers/1")

    picks("y y", monkeypatch, capsys)

    assert (project / "old").read_text() == "file\n"
    assert (project / "numbers" / "1").read_text() == "1\n"
    text(capsys, "undo", "last")
    assert (project / "old" / "two").exists()
    assert (project / "numbers").is_file()


def test_a_hunk_can_be_split(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, "sed -i -e 's/^5$/five/' -e 's/^7$/seven/' -e 's/^9$/nine/' numbers")

    shown = picks("s n y n", monkeypatch, capsys)

    assert "take hunk 1 of 1? [y,n,a,d,s,A,v,q,?]" in shown
    assert "take hunk 3 of 3? [y,n,a,d,A,v,q,?]" in shown
    lines = (project / "numbers").read_text().splitlines()
    assert (lines[4], lines[6], lines[8]) == ("5", "seven", "9")
    assert len(lines) == 100
    text(capsys, "undo", "last")
    picks("s y n y", monkeypatch, capsys)
    lines = (project / "numbers").read_text().splitlines()
    assert (lines[4], lines[6], lines[8]) == ("five", "7", "nine")


def test_all_the_rest_is_taken_but_what_needs_a_yes(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(project, "echo 1 > a; echo 2 > b; echo 3 > c; mkdir z; echo x > z/.envrc; echo 4 > z/d")

    shown = picks("n A no", monkeypatch, capsys)

    assert shown.count("take it?") == 2
    assert shown.count("type yes to take it") == 1
    assert not (project / "a").exists() and not (project / "z" / ".envrc").exists()
    assert (project / "b").exists() and (project / "z" / "d").exists()


def test_a_folder_of_packages_is_one_question_and_its_commands_another(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(
        project,
        """mkdir -p .venv/bin .venv/lib; echo home > .venv/pyvenv.cfg
    for n in 1 2 3 4 5; do echo x > .venv/lib/$n.py; echo x > .venv/bin/c$n; done
    chmod +x .venv/bin/*; echo x > .venv/lib/.envrc""",
    )

    shown = picks("y yes y no", monkeypatch, capsys)

    assert "take what is in it (8 changes, " in shown
    assert ".venv/ brings these 6, as such folders do: each runs by itself" in shown
    assert "added .venv/lib/.envrc" in shown
    assert (project / ".venv" / "bin" / "c5").exists()
    assert not (project / ".venv" / "lib" / ".envrc").exists()


# Picking, at a terminal


def test_pick_at_a_terminal(project: Path) -> None:
    ran(project, EDITS)
    terminal = Terminal([*PODBOT, "changes", "pick", "last"])
    for question, answer in (
        ("take all in it", "n"),
        ("take hunk 1 of 2?", "y"),
        ("take hunk 2 of 2?", "n"),
        ("take the removal", "y"),
        ("take it?", "n"),
    ):
        terminal.until(question)
        terminal.send(answer + "\r")
    terminal.until("applied 4 changes")
    assert terminal.end() == 0
    assert (project / "numbers").read_text().splitlines()[4] == "five"
    assert not (project / "old").exists()


@pytest.mark.parametrize(("key", "code"), [("\x03", 130), ("\x04", 1)])
def test_leaving_pick_applies_nothing(project: Path, key: str, code: int) -> None:
    ran(project, EDITS)
    terminal = Terminal([*PODBOT, "changes", "pick", "last"])
    terminal.until("take all in it")
    terminal.send("y\r")
    terminal.until("take hunk 1")
    terminal.send(key)
    terminal.until("nothing was applied")
    assert terminal.end() == code
    assert not (project / "new").exists()


def test_what_was_typed_before_the_first_question_answers_none(project: Path) -> None:
    ran(project, EDITS)
    wait = ["sh", "-c", 'read go; exec "$@"', "sh"]
    terminal = Terminal([*wait, *PODBOT, "changes", "pick", "last"])
    terminal.send("go\ry\ry\ry\ry\ry\r")
    terminal.until("take all in it")
    terminal.send("\x04")
    terminal.until("nothing was applied")
    assert terminal.end() == 1


def test_changes_that_nobody_discarded_and_that_are_gone_are_told(
    project: Path, capsys: Captured
) -> None:
    id = ran(project, EDITS, "lost")
    layer = layers.get(id)
    assert layer is not None
    layer.put_away()
    for trash in layers.put_away_before().values():
        layers.remove(trash)

    for command in ("diff", "apply"):
        kind, err = failure(capsys, command, "lost")
        assert kind == "unknown_id"
        assert "the changes of lost are gone, and nobody discarded them" in err
        assert "PODBOT_LAYERS" in err
    assert "its changes are gone, and nobody discarded them" in text(capsys, "show", "lost")
    shown = text(capsys, "list")
    assert "those of 1 run here are gone, and nobody discarded them" in shown
    text(capsys, "discard", "lost")
    assert "gone" not in text(capsys, "list")
