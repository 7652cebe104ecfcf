"""Two runs that both commit in one repository: which commits a branch leads to is said."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from test_two_runs import merge_in, run

from podbot.changes._git_refs import is_one
from podbot.changes.applying.undo import undo
from podbot.changes.capture import read
from podbot.changes.drift import ConflictKind, conflicts
from podbot.sandbox.layers import Layer

pytestmark = [
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
    pytest.mark.usefixtures("disks"),
]

MAIN = ".git/refs/heads/main"
COMMIT = "git -c user.name=x -c user.email=x@x -c gc.auto=0 commit -q"


def git(target: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=target, capture_output=True, text=True, check=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(target: Path) -> Path:
    git(target, "init", "-q", "-b", "main")
    (target / "one").write_text("one\n")
    (target / "two").write_text("two\n")
    git(target, "add", ".")
    git(target, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-m", "first")
    return target


def both(repository: Path) -> tuple[Layer, Layer, str]:
    """Two runs that committed, the first applied; and the commit it left."""
    first = run(repository, f"echo A >> one; {COMMIT} -am A")
    other = run(repository, f"echo B >> two; {COMMIT} -am B")
    merge_in(first, allow_flagged=True)
    return first, other, git(repository, "rev-parse", "main")


def test_a_branch_that_both_moved_is_a_conflict_that_names_the_commits(repository: Path) -> None:
    _, other, theirs = both(repository)
    ours = (Path(other.upper(0)) / MAIN).read_text()
    found = {each.path: each for each in conflicts(read(other))}
    assert found[MAIN].kind is ConflictKind.CHANGED
    assert theirs[:12] in found[MAIN].message and ours[:12] in found[MAIN].message
    assert "git branch NAME COMMIT" in found[MAIN].message
    assert found[".git/logs/HEAD"].kind is ConflictKind.CHANGED, "a log is not mixed either"


def test_what_is_left_out_is_in_the_repository_without_a_name(repository: Path) -> None:
    _, other, theirs = both(repository)
    between = git(repository, "log", "--format=%s")
    ours = (Path(other.upper(0)) / MAIN).read_text().strip()
    merge_in(other, allow_flagged=True, on_conflict="skip")
    assert git(repository, "rev-parse", "main") == theirs
    assert git(repository, "log", "--format=%s") == between
    assert git(repository, "status", "--short") == "M two", "its files are there, uncommitted"
    git(repository, "branch", "of-run", ours)
    assert git(repository, "log", "--format=%s", "of-run") == "B\nfirst"
    assert git(repository, "fsck", "--no-dangling") == ""


def test_overwriting_leaves_the_commits_of_the_other_without_a_name(repository: Path) -> None:
    _, other, theirs = both(repository)
    merge_in(other, allow_flagged=True, on_conflict="overwrite")
    assert git(repository, "log", "--format=%s") == "B\nfirst"
    assert git(repository, "status", "--short") == "M one", "what the other did is uncommitted"
    git(repository, "branch", "of-the-other", theirs)
    assert git(repository, "log", "--format=%s", "of-the-other") == "A\nfirst"
    undo(other.id)
    assert git(repository, "rev-parse", "main") == theirs


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/p/.git/refs/heads/main", True),
        ("/p/.git/HEAD", True),
        ("/p/.git/ORIG_HEAD", True),
        ("/p/.git/packed-refs", True),
        ("/p/.git/worktrees/w/HEAD", True),
        ("/p/.git/modules/m/refs/tags/v1", True),
        ("/p/bare.git/refs/heads/main", True),
        ("/p/.git/logs/refs/heads/main", True),
        ("/p/.git/config", False),
        ("/p/refs/heads/main", False),
        ("/p/.github/HEAD", False),
    ],
)
def test_what_git_finds_commits_by_is_known(path: str, wanted: bool) -> None:
    assert is_one(path) is wanted
