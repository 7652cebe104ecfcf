"""The home folder: settings of tools no list knows, and files there that name a project's."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_risk import BY_ITSELF, WHEN_USED, Bytes, added, level
from test_risk_references import flagged

from podbot.changes.risk import _home_settings
from podbot.changes.risk.rules import Level

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


# Files of the home that name files of a project


@pytest.fixture
def project(target: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project beside nothing else in a home folder, which is not a target."""
    monkeypatch.setenv("HOME", str(target))
    for name in ("XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    (target / "proj").mkdir()
    return target / "proj"


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        (".claude/settings.json", '{"hooks": {"Stop": [{"command": "PROJ/hk/stop.py --x"}]}}',
         "hk/stop.py"),
        (".claude/settings.json", '{"hooks": {"Stop": [{"command": "cd ~/proj && ./hk/x"}]}}',
         "hk/x"),
        (".codex/config.toml", '[mcp_servers.x]\ncommand = "node"\nargs = ["PROJ/srv.js"]\n',
         "srv.js"),
        (".config/systemd/user/x.service", "[Service]\nExecStart=%h/proj/serve --now\n", "serve"),
        (".config/systemd/user/x.service",
         "[Service]\nWorkingDirectory=%h/proj/w\nExecStart=/usr/bin/env ./run\n", "w/run"),
        (".config/autostart/x.desktop", "[Desktop Entry]\nExec=PROJ/start %U\n", "start"),
        (".ssh/config", "Host *\n  ProxyCommand PROJ/proxy %h %p\n", "proxy"),
        (".ssh/config", "Include ~/proj/ssh.conf\n", "ssh.conf"),
        (".vimrc", "set nocompatible\nsource ~/proj/my.vim\n", "my.vim"),
        (".config/nvim/init.lua", "dofile('PROJ/my.lua')\n", "my.lua"),
        (".tmux.conf", "source-file ~/proj/tmux.conf\nrun-shell 'PROJ/status'\n",
         "tmux.conf status"),
        (".config/tmux/tmux.conf", "source-file $HOME/proj/t.conf\n", "t.conf"),
        (".bashrc", "PROJ/tool --hook\n[ -f PROJ/env ] && . PROJ/env\n", "tool env"),
        (".bashrc", "for f in ~/proj/rc.d/*; do . $f; done\n", "rc.d/new"),
        (".bashrc", "for f in ~/proj/*; do . $f; done\n", "new"),
        (".bashrc", "make -s -C ~/proj env\n", "Makefile"),
        (".gitconfig", "[core]\n  pager = PROJ/pager\n", "pager"),
        (".config/git/config", "[alias]\n  x = !PROJ/alias\n", "alias"),
        (".config/mako/config", "on-notify=exec ~/proj/notify\n", "notify"),
    ],
)  # fmt: skip
def test_what_settings_at_home_name_in_a_project_runs_by_itself(
    project: Path, file: str, text: str, named: str
) -> None:
    path = project.parent / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("PROJ", str(project)))

    found = flagged(project, *named.split(), "src/app.py", "deep/new")

    assert list(found) == named.split()


def test_what_a_script_named_at_home_sources_counts_too(project: Path) -> None:
    (project.parent / ".vimrc").write_text(f"source {project}/my.vim\n")
    (project / "my.vim").write_text("source conf/more.vim\n")

    assert list(flagged(project, "conf/more.vim", "other.txt")) == ["conf/more.vim"]


def test_settings_of_an_unknown_tool_at_home_point_out_what_they_run(project: Path) -> None:
    folder = project.parent / ".config/newtool"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'command = "{project}/run"\nopened = "{project}/b.c"\n')

    assert level(added("run", target=str(project))) is WHEN_USED
    assert level(added("b.c", target=str(project))) is None


def test_histories_keys_and_trusted_folders_at_home_say_nothing(project: Path) -> None:
    home = project.parent
    (home / ".claude/projects/x").mkdir(parents=True)
    (home / ".claude/projects/x/talk.json").write_text(f'{{"command": "{project}/a.py"}}')
    (home / ".bash_history").write_text(f"{project}/a.py\n")
    (home / ".codex").mkdir()
    (home / ".codex/auth.json").write_text(f'{{"command": "{project}/a.py"}}')
    (home / ".codex/config.toml").write_text(f'[projects."{project}"]\ntrust_level = "trusted"\n')

    assert flagged(project, "a.py", "src/app.py") == {}


def test_a_home_without_end_is_read_within_bounds(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = project.parent
    for number in range(60):
        folder = home / f".config/systemd/user/{number}.d"
        folder.mkdir(parents=True)
        for each in range(20):
            (folder / f"{each}.conf").write_text(f"ExecStart={project}/x{number}\n")
    (home / ".vim").symlink_to(".")
    (home / ".vimrc").symlink_to("/dev/zero")
    (home / ".tmux.conf").write_text("~/proj/" * 20_000)
    read: list[str] = []

    def note(file: str, most: int) -> str:
        read.append(file)
        return ""

    monkeypatch.setattr(_home_settings, "start_of", note)

    list(_home_settings.named_by_home([str(project)], {"HOME": str(home)}))

    assert 100 < len(read) <= _home_settings.MAX_FILES
