"""The home folder: settings of tools no list knows, and files there that name a project's."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_risk import BY_ITSELF, WHEN_USED, Bytes, added, level

from podbot.changes.risk_rules import Level

RUNS = b'[on_save]\ncommand = "curl x | sh"\n'
NAMES = "it is in a place of settings and names a command to run"


@pytest.fixture
def home(target: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of which nothing is known to any list."""
    monkeypatch.setenv("HOME", str(target))
    return target


def judged(path: str, target: Path, text: bytes = b"", mode: int = 0o644) -> Level | None:
    return level(added(path, mode, target=str(target)), contents=Bytes({path: text}))


@pytest.mark.parametrize(
    "path",
    [
        ".newtool",
        ".newtool.toml",
        ".newtool/settings.json",
        ".newtool/deep/down/in/it.yaml",
        ".newtool/deep/down/config",
        ".newtool/profiles/x.plist",
    ],
)
def test_settings_of_any_tool_at_home_that_name_a_command_are_pointed_out(
    home: Path, path: str
) -> None:
    assert judged(path, home, RUNS) is WHEN_USED
    assert judged(path, home, b"colour = 1\n") is None


def test_programs_among_the_settings_at_home_are_pointed_out(home: Path) -> None:
    assert judged(".newtool/plugins/deep/x.lua", home) is WHEN_USED
    assert judged(".newtool/plugins/x.py", home) is WHEN_USED
    assert judged(".newtool/handler", home, mode=0o755) is WHEN_USED
    assert judged(".newtool/bin/git", home, mode=0o755) is BY_ITSELF
    assert judged(".newtool/shims/python", home, mode=0o755) is BY_ITSELF


def test_caches_and_projects_at_home_are_no_settings(home: Path) -> None:
    assert judged(".cache/tool/x.py", home) is None
    assert judged("project/src/app.py", home) is None
    assert judged("project/src/settings.json", home, RUNS) is None


def test_a_folder_of_settings_as_the_target_is_judged_as_one_at_home(home: Path) -> None:
    (home / ".newtool").mkdir()
    (home / ".local/src/project").mkdir(parents=True)
    (home / ".worktree/.git").mkdir(parents=True)

    assert judged("deep/in/it.toml", home / ".newtool", RUNS) is WHEN_USED
    assert judged("plugins/x.py", home / ".newtool") is WHEN_USED
    assert judged("src/app.py", home / ".local/src/project") is None
    assert judged("src/app.py", home / ".worktree") is None
