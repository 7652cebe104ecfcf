"""A target that is a part of a repository: git inside finds the data around it, to read."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import PODBOT, own_project
from inside import new_folder

from podbot.cli import notes
from podbot.sandbox import OverlaySandbox, Policy, layers

AUTHOR = ("-c", "user.name=A", "-c", "user.email=a@example.org")
ACROSS = "GIT_DISCOVERY_ACROSS_FILESYSTEM"


def made(folder: Path) -> Path:
    for name in ("shop", "docs"):
        (folder / name).mkdir(parents=True)
        (folder / name / "page").write_text("one\n")
    for words in (("init", "-q"), ("add", "."), (*AUTHOR, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


@pytest.fixture
def repository() -> Iterator[Path]:
    """A repository in the home, with two folders."""
    folder = new_folder(Path.home())
    with own_project({}):
        yield made(folder)
    layers.remove(folder)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PODBOT, "run", *words], cwd=folder, capture_output=True, text=True, check=False, stdin=-3
    )


def test_git_reads_the_repository_that_the_target_lies_in(repository: Path) -> None:
    script = "echo more >> page; git status --short; git log --format=%s"
    done = run(repository / "shop", "--keep", "--", "sh", "-c", script)

    assert done.returncode == 0, done
    assert done.stdout == " M page\nfirst\n"
    assert f"commits to the repository {repository} around the target are not kept" in done.stderr
    assert f"--target {repository}" in done.stderr


def test_the_whole_repository_as_the_target_needs_no_word_and_keeps_commits(
    repository: Path,
) -> None:
    commit = f"git {' '.join(AUTHOR)} commit -qam second; git log --format=%s"
    script = f"echo more >> page; {commit}; env"
    done = run(repository / "shop", "--target", str(repository), "--keep", "--", "sh", "-c", script)

    assert done.stdout.startswith("second\nfirst\n")
    assert "around the target" not in done.stderr and ACROSS not in done.stdout


def test_what_the_policy_says_of_the_variable_holds(repository: Path) -> None:
    policy = Policy(environment={ACROSS: "0"})
    with OverlaySandbox(repository / "shop", policy=policy, discard=True) as sandbox:
        assert sandbox.exec(["git", "status"]).exit_code == 128
    with OverlaySandbox(repository / "shop", discard=True) as sandbox:
        assert sandbox.exec(["git", "status"]).exit_code == 0


def test_folders_of_no_repository_and_repositories_of_their_own_are_left_alone(
    repository: Path,
) -> None:
    subprocess.run(["git", "init", "-q", "docs"], cwd=repository, check=True)
    os.rename(repository / ".git", repository / "shop/.git")
    for folder in ("docs", "shop"):
        with OverlaySandbox(repository / folder, discard=True) as sandbox:
            assert not any("around the target" in note for note in sandbox.notes)
            assert sandbox.exec(["sh", "-c", f"echo ${ACROSS}"]).stdout == "\n"


def test_a_repository_that_a_private_folder_covers_is_said_not_to_be_there() -> None:
    with own_project({}) as folder:  # below /var/tmp, which the sandbox has its own of
        repository = made(folder)
        with OverlaySandbox(repository / "shop", discard=True) as sandbox:
            assert f"the repository {repository} around the target is not there inside" in str(
                sandbox.notes
            )


def test_the_command_line_quotes_the_folder_it_says_to_take() -> None:
    note = "commits to the repository /a b around the target are not kept"
    typed = notes.typed(f"{note}, unless it is the target: /a b")
    assert typed == f"{note}; to take all of it: --target '/a b'"
