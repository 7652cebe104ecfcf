"""`--allow-flagged`: what its words mean, and what they cannot reach."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import ran, short, workplace

from podbot import review
from podbot.changes import apply_changes
from podbot.cli import main
from podbot.errors import ChangesError, Kind

Captured = pytest.CaptureFixture[str]

FLAGGED = """
mkdir -p .git/hooks .vscode a/b
for hook in pre-commit post-merge; do echo x > .git/hooks/$hook; chmod +x .git/hooks/$hook; done
echo {} > .vscode/tasks.json; echo {} > .vscode/settings.json
echo x > a/.envrc; echo x > a/b/.envrc; echo plain > a/plain
"""
VENV = """
mkdir -p .venv/bin .venv/lib
echo 'home = /usr/bin' > .venv/pyvenv.cfg; echo x > .venv/lib/a.pth
ln -s /usr/bin/python3 .venv/bin/python3
for n in 1 2 3 4 5; do echo x > .venv/bin/tool$n; chmod +x .venv/bin/tool$n; done
"""
PLANTED = "mkdir -p .venv/lib/x/.git/hooks && echo evil > .venv/lib/x/.git/hooks/post-merge"


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def allowing(capsys: Captured, id: str, *words: str, code: int = 0) -> tuple[str, str]:
    """What `apply` says, on stdout and on stderr."""
    capsys.readouterr()
    options = [option for word in words for option in ("--allow-flagged", word)]
    assert main(["changes", "apply", id, *options]) == code
    told = capsys.readouterr()
    return told.out, told.err


def test_folders_globs_and_paths_are_taken(project: Path, capsys: Captured) -> None:
    id = ran(project, FLAGGED)

    out, _ = allowing(capsys, id, ".git/hooks", ".vscode/*.json", "a/.envrc", "a/b/")

    assert out.splitlines()[:6] == [
        "allowed, although each runs by itself once applied: 5 things",
        "  .git/hooks/post-merge",
        "  .git/hooks/pre-commit",
        "  .vscode/settings.json",
        "  .vscode/tasks.json",
        "  a/b/.envrc",
    ]
    assert (project / ".vscode" / "tasks.json").exists()


@pytest.mark.parametrize(
    ("script", "part"),
    [
        ("mkdir -p v/bin; touch v/pyvenv.cfg; echo x > v/bin/ls; chmod +x v/bin/ls", "v/bin"),
        ("mkdir -p b/objects b/refs; touch b/HEAD; echo x > b/config", "b/config"),
    ],
)
def test_a_part_needs_the_same_consent_as_the_whole(
    project: Path, capsys: Captured, script: str, part: str
) -> None:
    id = ran(project, script)
    assert main(["changes", "apply", id, part]) == 2
    assert "run by itself once applied" in capsys.readouterr().err
    with pytest.raises(ChangesError) as caught:
        apply_changes(review.open(id).changes, only=part)
    assert caught.value.kind is Kind.FLAGGED
    assert not (project / part).exists()

    assert main(["changes", "apply", id, part, "--allow-flagged", part]) == 0
    assert (project / part).exists()


def test_what_is_named_itself_needs_no_telling(project: Path, capsys: Captured) -> None:
    id = ran(project, "mkdir a; echo x > a/.envrc")
    out, _ = allowing(capsys, id, "a/.envrc")
    assert "allowed" not in out
    assert (project / "a" / ".envrc").exists()


def test_words_are_meant_from_where_one_stands_too(
    project: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = ran(project, "mkdir -p src/x; echo x > src/x/.envrc; echo x > src/.envrc")
    monkeypatch.chdir(project / "src")
    out, _ = allowing(capsys, id, "x", ".envrc")
    assert "  src/x/.envrc" in out
    assert (project / "src" / "x" / ".envrc").exists()


@pytest.mark.parametrize("word", ["nothing", "a/plain", "*.txt", "", "../elsewhere", ".git/hook"])
def test_a_word_that_means_nothing_that_runs_is_refused(
    project: Path, capsys: Captured, word: str
) -> None:
    id = ran(project, FLAGGED)
    _, err = allowing(capsys, id, ".", word, code=2)
    assert f"--allow-flagged {word}: nothing of that name" in err
    assert not (project / "a").exists()


def test_what_is_not_to_be_applied_cannot_be_agreed_to(project: Path, capsys: Captured) -> None:
    id = ran(project, FLAGGED)
    capsys.readouterr()
    assert main(["changes", "apply", id, "a", "--allow-flagged", ".vscode"]) == 2
    assert "--allow-flagged .vscode: nothing of that name" in capsys.readouterr().err


def test_a_folder_of_packages_is_agreed_to_with_what_packages_bring(
    project: Path, capsys: Captured
) -> None:
    id = ran(project, VENV)
    out, _ = allowing(capsys, id, ".venv")
    assert "allowed, although each runs by itself once applied: 8 things\n" in out
    assert (project / ".venv" / "lib" / "a.pth").exists()


@pytest.mark.parametrize("word", [".venv", ".", ".venv/**", ".venv/*", "**/post-merge"])
def test_a_hook_in_a_folder_of_packages_has_to_be_named_itself(
    project: Path, capsys: Captured, word: str
) -> None:
    id = ran(project, VENV + PLANTED)

    _, err = allowing(capsys, id, word, code=2)

    assert "  .venv/lib/x/.git/hooks/post-merge: git runs it" in err
    once_more = f"podbot changes apply {short(id)} --allow-flagged {shlex.quote(word)}"
    assert f"name it itself: {once_more} --allow-flagged PATH\n" in err
    hook = ".venv/lib/x/.git/hooks/post-merge"
    assert f"look at it: podbot changes diff {short(id)} {hook}\n" in err
    assert not (project / ".venv").exists()
    allowing(capsys, id, ".venv", ".venv/lib/x/.git/hooks/post-merge")
    assert (project / ".venv" / "lib" / "x" / ".git" / "hooks" / "post-merge").exists()


def test_a_link_out_of_a_folder_of_packages_has_to_be_named_itself(
    project: Path, capsys: Captured
) -> None:
    id = ran(project, VENV + "ln -s /etc/passwd .venv/lib/out")
    _, err = allowing(capsys, id, ".venv", code=2)
    assert "  .venv/lib/out: it is a link out of the target" in err
    assert "python3" not in err


def test_all_says_what_it_covers(project: Path, capsys: Captured) -> None:
    id = ran(project, VENV + PLANTED)
    out, _ = allowing(capsys, id, "all")
    assert "  .venv/lib/x/.git/hooks/post-merge\n" in out


def test_what_was_agreed_to_is_data_too(project: Path, capsys: Captured) -> None:
    id = ran(project, FLAGGED)
    capsys.readouterr()
    words = ["apply", id, "a", "--allow-flagged", "a/*", "--json"]
    assert main(["changes", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["allowed"] == [f"{project}/a/.envrc", f"{project}/a/b/.envrc"]


def test_a_hook_has_to_be_named_itself_where_only_a_part_of_its_folder_is_applied(
    project: Path, capsys: Captured
) -> None:
    id = ran(project, VENV + PLANTED)
    capsys.readouterr()

    assert main(["changes", "apply", id, ".venv/lib", "--allow-flagged", ".venv"]) == 2

    err = capsys.readouterr().err
    assert "a folder of packages does not answer for what else runs by itself in it" in err
    assert f"podbot changes apply {short(id)} .venv/lib --allow-flagged .venv " in err
    assert not (project / ".venv").exists()
