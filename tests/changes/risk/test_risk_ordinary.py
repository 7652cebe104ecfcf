"""What is judged at a glance is judged as all the rules would, and most files are."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_risk import TARGET, added, changed, git, of, state

from podbot.changes.model import Change, ChangeKind, FileType, State
from podbot.changes.risk import judging
from podbot.changes.risk._contents import may_be_settings
from podbot.changes.risk._git import TELLING
from podbot.changes.risk._ordinary import TOOLS, Ordinary
from podbot.changes.risk.judging import Flag, flags
from podbot.changes.risk.rules import RULES

PATTERNS = [pattern for rule in RULES for pattern in rule.patterns]
ORDINARY = ["readme.txt", "app.py", "a-b+c.min.css", "IMG_0001.JPG", "x.tar.gz", "data.json"]


def thoroughly(*changes: Change) -> tuple[Flag, ...]:
    """The flags without a glance: every rule has its say on every change."""
    with mock.patch.object(Ordinary, "is_ordinary", return_value=False):
        return flags(of(*changes))


def from_pattern(pattern: str, inner: str) -> str:
    path = pattern.removeprefix("~/").removeprefix("/")
    return path.replace("**", inner).replace("*", "x")


@pytest.mark.parametrize("target", [TARGET, "/root", "/home/someone", "/", "/srv/.claude"])
def test_every_pattern_of_the_table_is_judged_alike(target: str) -> None:
    paths = {
        above + from_pattern(pattern, inner)
        for pattern in PATTERNS
        for inner in ("thing.txt", "deep/thing.txt", "mod.py")
        for above in ("", "src/", "worktrees/x/y/")
    }
    changes = [added(path, target=target) for path in sorted(paths)]

    found = flags(of(*changes))

    assert found == thoroughly(*changes)
    assert {flag.change for flag in found} != set(changes)


NAMES = sorted(
    {name for pattern in PATTERNS for name in from_pattern(pattern, "thing.txt").split("/")}
    | {*TELLING, *ORDINARY, ".git", "node_modules", "site-packages", "bin", "src", "lib", "HEAD"}
    | {f"{stem}.py" for stem in ("json", "test", "pip", "IPython", "__init__", "mine")}
    | {
        "worktrees",
        "tool",
        "git~1",
        "a b.txt",
        "ünï.txt",
        "ref\u017f",
        "x.txt ",
        "a\\b.txt",
        ".x",
        "X.PY",
    }
)


@st.composite
def file_states(draw: st.DrawFn) -> State:
    type = draw(st.sampled_from([FileType.FILE] * 6 + [*FileType]))
    mode = draw(st.sampled_from([0o644, 0o600, 0o444, 0o755, 0o4755, 0o2644, 0o777]))
    capability = (("security.capability", b"x"),)
    xattrs = draw(st.sampled_from([(), (), (), capability, (("user.note", b"n"),)]))
    return state(type, mode, "elsewhere" if type is FileType.LINK else None, xattrs)


@st.composite
def some_changes(draw: st.DrawFn) -> list[Change]:
    paths = draw(
        st.lists(
            st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join),
            min_size=1, max_size=8, unique=True,
        )
    )  # fmt: skip
    found = []
    for path in paths:
        kind = draw(st.sampled_from([ChangeKind.ADDED, ChangeKind.MODIFIED, *ChangeKind]))
        source = draw(st.sampled_from(paths)) if kind.value in ("renamed", "hard_link") else None
        old = None if kind is ChangeKind.ADDED else draw(file_states())
        new = None if kind is ChangeKind.DELETED else draw(file_states())
        found.append(Change(kind, TARGET, path, old, new, source))
    return found


@settings(deadline=None)
@given(some_changes())
def test_no_glance_says_less_than_all_the_rules(changes: list[Change]) -> None:
    assert flags(of(*changes)) == thoroughly(*changes)


def test_what_the_host_does_with_a_path_counts(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(target, "[core]\n\thooksPath = tools/hooks\n\tpager = src/pager.txt\n")
    (target / "named").mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{target}/libs")
    monkeypatch.setenv("SOME_FILE", f"{target}/deep/er/named.txt")
    monkeypatch.setenv("SOME_FOLDER", f"{target}/named")
    paths = [
        "libs/x.txt", "libs/in/x.txt", "tools/hooks/x.txt", "src/pager.txt", "src/other.txt",
        "deep/er/named.txt", "deep/er/other.txt", "named/deep/x.txt", "deep/er.txt",
    ]  # fmt: skip
    changes = [added(path, target=str(target)) for path in paths]

    found = flags(of(*changes))

    assert found == thoroughly(*changes)
    assert {flag.change.path for flag in found} == {
        "libs/x.txt", "tools/hooks/x.txt", "src/pager.txt", "deep/er/named.txt", "named/deep/x.txt",
    }  # fmt: skip


def test_a_folder_that_becomes_a_repository_is_not_ordinary() -> None:
    inner = ["HEAD", "objects/x", "refs/y", "info/notes.txt", "hooks/run.txt", "config.worktree"]
    changes = [added(f"data/{path}") for path in inner]

    found = flags(of(*changes))

    assert found == thoroughly(*changes)
    assert {"data/HEAD", "data/hooks/run.txt", "data/config.worktree"} <= {
        flag.change.path for flag in found
    }
    assert flags(of(*(added(path) for path in ("info/notes.txt", "config/app.txt")))) == ()


def test_ordinary_files_are_told_at_a_glance(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = ["", "src/", "hooks/", "config/", "services/", "user/", "build/", "Some Folder/"]
    changes = [
        change
        for folder in folders
        for name in ORDINARY
        for change in (
            added(folder + name),
            changed(f"{folder}old-{name}", state(), state(mode=0o600), ChangeKind.MODIFIED),
        )
        if not may_be_settings(change.path)
    ]
    monkeypatch.setattr(judging._Review, "_findings", None)

    assert flags(of(*changes)) == ()


@pytest.mark.parametrize("name", [*sorted(TOOLS)[:3], *sorted(sys.stdlib_module_names)[:3]])
def test_names_of_modules_are_not_ordinary(name: str) -> None:
    changes = [added(f"src/{name}.{ending}") for ending in ("py", "pyc", "txt", "cpython-311.so")]
    assert flags(of(*changes)) == thoroughly(*changes)


def test_the_home_folder_is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/srv/me")
    changes = [added(name, target="/srv/me") for name in (".somerc", "somerc", "x.txt", "d/.xrc")]
    found = flags(of(*changes))
    assert found == thoroughly(*changes)
    assert [flag.change.path for flag in found] == [".somerc"]
    assert os.environ["HOME"] == "/srv/me"
