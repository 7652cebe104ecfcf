"""What is flagged, on which level, and what is not: the table, the tricks, and real sandboxes."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import pytest

from podbot.changes.capture import capture
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, State
from podbot.changes.risk.judging import Flag, flags, flags_of
from podbot.changes.risk.paths import fitting, parts_of
from podbot.changes.risk.rules import FRESH_ROOTS, RULES, Level
from podbot.changes.select import select
from podbot.sandbox.overlay.launcher import OverlaySandbox

TARGET = "/srv/project"
BY_ITSELF, WHEN_USED = Level.BY_ITSELF, Level.WHEN_USED


class Bytes:
    """Contents that are given; whatever is not given cannot be read."""

    def __init__(self, new: Mapping[str, bytes] = {}, old: Mapping[str, bytes] = {}):
        self.new, self.old = new, old

    def open_old(self, change: Change) -> BinaryIO:
        return self._open(self.old, change)

    def open_new(self, change: Change) -> BinaryIO:
        return self._open(self.new, change)

    def _open(self, side: Mapping[str, bytes], change: Change) -> BinaryIO:
        if change.path not in side:
            raise FileNotFoundError(change.path)
        return io.BytesIO(side[change.path])


def state(
    type: FileType = FileType.FILE,
    mode: int = 0o644,
    link: str | None = None,
    xattrs: tuple[tuple[str, bytes], ...] = (),
    uid: int = 0,
) -> State:
    return State(type, mode, uid, 0, 10, 0, 0, 1, 1, 1, link, 0, xattrs)


def added(path: str, mode: int = 0o644, target: str = TARGET) -> Change:
    return Change(ChangeKind.ADDED, target, path, None, state(mode=mode))


def link(path: str, to: str, target: str = TARGET) -> Change:
    return Change(ChangeKind.LINK, target, path, None, state(FileType.LINK, 0o777, to))


def folder(path: str) -> Change:
    return Change(ChangeKind.ADDED, TARGET, path, None, state(FileType.FOLDER, 0o755))


def changed(path: str, old: State, new: State, kind: ChangeKind = ChangeKind.MODE) -> Change:
    return Change(kind, TARGET, path, old, new)


def deleted(path: str) -> Change:
    return Change(ChangeKind.DELETED, TARGET, path, state(), None)


def of(*changes: Change, contents: Bytes | None = None) -> ChangeSet:
    targets = tuple(dict.fromkeys(change.target for change in changes))
    return ChangeSet(targets, changes, contents or Bytes(), 0)


def level(*changes: Change, contents: Bytes | None = None) -> Level | None:
    """The strongest level among the flags of the last change."""
    found = {flag.level for flag in flags_of(of(*changes, contents=contents), changes[-1])}
    return BY_ITSELF if BY_ITSELF in found else WHEN_USED if found else None


def reasons(*changes: Change) -> list[str]:
    return [flag.reason for flag in flags(of(*changes))]


# By path


def words(text: str) -> list[str]:
    return text.split()


RUNS_BY_ITSELF = words(
    """
.git/hooks/pre-commit .git/config .git/config.worktree .git/info/attributes .git/commondir
.git/objects/info/alternates .git/worktrees/w/gitdir .git/worktrees/w/commondir
.git/modules/sub/hooks/post-checkout .git/modules/sub/config .git/modules/a/b/info/attributes .git
.gitmodules .gitattributes sub/.gitattributes .gitconfig .config/git/config .hg/hgrc .envrc
deep/er/.envrc mise.toml .mise.toml .config/mise/config.toml .tool-versions .bashrc .bash_profile
.profile .zshrc .zshenv .zprofile .zlogin .config/fish/config.fish .config/fish/conf.d/x.fish
.inputrc .xprofile .pam_environment .vscode/tasks.json .vscode/settings.json .vscode/launch.json
.vscode/extensions.json x.code-workspace .idea/workspace.xml .idea/runConfigurations/x.xml
.zed/tasks.json .vim/plugin/x.vim .nvimrc .exrc .vimrc .nvim.lua .dir-locals.el .emacs.d/init.el
.devcontainer/devcontainer.json .devcontainer.json CLAUDE.md sub/CLAUDE.md AGENTS.md GEMINI.md
.cursorrules .cursor/rules/x.mdc .claude/settings.json .codex/config.toml .gemini/settings.json
.github/copilot-instructions.md .goosehints .aider.conf.yml .mcp.json .windsurfrules .clinerules
opencode.json .clinerules/a.md sitecustomize.py usercustomize.py lib/site-packages/x.pth
.config/systemd/user/x.service .config/autostart/x.desktop .local/share/applications/x.desktop
share/dbus-1/services/x.service .ssh/config .ssh/rc .ssh/authorized_keys .forward .tmux.conf
.gdbinit .Rprofile .cargo/config.toml .docker/config.json crontabs/root .gnupg/gpg-agent.conf
.cargo/env .local/bin/env .nvm/nvm.sh .sdkman/bin/sdkman-init.sh .asdf/asdf.sh .fzf.bash .fzf.zsh
.opam/opam-init/init.sh miniconda3/etc/profile.d/conda.sh .deno/env .ghcup/env
google-cloud-sdk/path.bash.inc .config/bash_completion .local/share/bash-completion/completions/git
.config/fish/fish_variables fish/vendor_conf.d/x.fish .local/share/nvim/site/plugin/x.vim
.config/gdb/gdbinit .config/river/init .config/niri/config.kdl .config/xfce4/xinitrc .emacs.desktop
.RData .iex.exs .rdbgrc .byebugrc startup.m .htaccess .user.ini .psysh.php .shadowenv.d/x.lisp
.amp/settings.json .grok/settings.json .vibe/config.toml .qoder/x GROK.md .iflow/settings.json
.kimi/config.toml .serena/project.yml gptme.toml .ropeproject/config.py rust-project.json
rust-analyzer.toml .lsp/config.edn .xscreensaver .zsh_plugins.txt .git/info/grafts
.git/refs/replace/0123 .rpmmacros .config/rpm/macros .mozilla/native-messaging-hosts/x.json
.config/google-chrome/NativeMessagingHosts/x.json .config/chromium/NativeMessagingHosts/x.json
.config/BraveSoftware/Brave-Browser/NativeMessagingHosts/x.json
.config/microsoft-edge/NativeMessagingHosts/x.json .config/pipewire/pipewire.conf.d/x.conf
.config/wireplumber/wireplumber.conf.d/x.conf .local/share/wireplumber/scripts/x.lua
.config/dunst/dunstrc .config/dconf/user .config/gtk-3.0/settings.ini .config/user-dirs.dirs
"""
)

RUNS_WHEN_USED = words(
    """
.github/workflows/ci.yml .gitlab-ci.yml .circleci/config.yml Jenkinsfile azure-pipelines.yml
.travis.yml .buildkite/pipeline.yml Makefile sub/Makefile GNUmakefile justfile Taskfile.yml
CMakeLists.txt configure build.rs build.gradle pom.xml Rakefile gulpfile.js package.json setup.py
setup.cfg pyproject.toml composer.json Cargo.toml x.gemspec .pre-commit-config.yaml
.husky/pre-commit lefthook.yml Dockerfile compose.yml docker-compose.yml tox.ini noxfile.py
conftest.py tests/conftest.py .npmrc .yarnrc.yml pip.conf .pypirc requirements.txt run.sh .env
.env.local vite.config.ts .eslintrc.js lib/x.so __pycache__/x.cpython-311.pyc x.desktop .pylintrc
Vagrantfile .proverc .jvmopts .sbtopts .luacheckrc .yardopts .pnpmfile.mjs .pnpmfile.cjs Guardfile
.storybook/main.ts pkg/BUILD WORKSPACE .venv/bin/activate lefthook.toml lefthook-local.json
.lefthook-local.yml prek.toml hk.pkl latexmkrc .latexmkrc
"""
)

NOTHING = words(
    """
src/app.py README.md docs/index.md main.go lib/index.js index.html style.css data.json src/lib.rs
.gitignore .editorconfig LICENSE CHANGELOG.md tests/test_app.py notes.txt image.png src/config.py
.git/index .git/HEAD .git/ORIG_HEAD .git/COMMIT_EDITMSG .git/packed-refs .git/logs/HEAD
.git/objects/ab/cdef .git/objects/pack/pack-1.pack .git/refs/heads/hooks/config .git/info/exclude
.git/refs/heads/Makefile .git/logs/refs/heads/config .git/hooks/pre-commit.sample .git/description
.git/modules/sub/refs/heads/config .git/modules/sub/logs/refs/heads/hooks/x .git/modules/sub/HEAD
src/objects/thing.py src/refs/thing.py config hooks/useThing.ts test/__init__.py src/pkg/util.py
gitconfig bashrc.md environment.ts vscode/tasks.json makefiles.md claude.py agents.py .Xresources
deploy/app.service bin/readme.txt
"""
)


@pytest.mark.parametrize("path", RUNS_BY_ITSELF)
def test_what_runs_by_itself_is_flagged_so(path: str) -> None:
    assert level(added(path)) is BY_ITSELF
    assert level(added(f"some/where/{path}")) is BY_ITSELF


@pytest.mark.parametrize("path", RUNS_WHEN_USED)
def test_what_runs_when_used_is_flagged_so(path: str) -> None:
    assert level(added(path)) is WHEN_USED
    assert level(added(f"some/where/{path}")) is WHEN_USED


@pytest.mark.parametrize("path", NOTHING)
def test_ordinary_work_has_no_flag(path: str) -> None:
    assert reasons(added(path)) == []
    assert reasons(changed(path, state(), state(), ChangeKind.MODIFIED)) == []


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/home/someone/.config", "systemd/user/x.timer"),
        ("/home/someone/.config/nvim", "init.lua"),
        ("/srv/project/.git", "hooks/pre-push"),
        ("/srv/project/.git/hooks", "pre-push"),
        ("/srv/project/.claude", "settings.json"),
        ("/etc", "ld.so.preload"),
        ("/etc/profile.d", "x.sh"),
        ("/root", ".ssh/rc"),
    ],
)
def test_the_whole_path_counts_not_only_the_part_in_the_target(target: str, path: str) -> None:
    assert level(added(path, target=target)) is BY_ITSELF


def test_a_folder_of_the_system_is_told_by_where_it_is() -> None:
    assert level(added("rootfs/etc/motd")) is None
    assert level(added("motd", target="/etc")) is BY_ITSELF


def test_settings_in_a_home_folder_are_pointed_out_whatever_program_they_are_of() -> None:
    assert level(added(".config/anything/state", target="/home/someone")) is WHEN_USED
    assert level(added(".config/anything/state", target="/srv/project")) is None


@pytest.mark.parametrize("root", FRESH_ROOTS)
def test_a_project_that_an_agent_keeps_is_judged_by_itself(root: str) -> None:
    target = f"/srv/project/{root.replace('*', 'x')}"
    assert level(added("src/app.py", target=target)) is None
    assert level(added("etc/passwd", target=target)) is None
    assert level(added(".envrc", target=target)) is BY_ITSELF
    assert level(added("settings.json", target=target.rpartition("/")[0])) is BY_ITSELF


def test_a_reason_is_one_sentence_for_a_person() -> None:
    assert reasons(added(".git/hooks/pre-commit", 0o755)) == ["git runs it at the next commit"]
    for rule in RULES:
        assert "\n" not in rule.reason and not rule.reason.endswith(".")


def test_the_desktop_that_emacs_keeps_is_none_of_the_desktops() -> None:
    (reason,) = reasons(added(".emacs.desktop"))
    assert reason.startswith("the editor runs it")


def test_only_the_strongest_level_is_told() -> None:
    found = flags(of(added(".git/hooks/pre-commit", 0o755), added("Makefile", 0o755)))

    assert [(flag.level, flag.change.path) for flag in found] == [
        (BY_ITSELF, ".git/hooks/pre-commit"),
        (WHEN_USED, "Makefile"),
    ]


# Spellings of the same name

TRICKS = (
    ".GIT/hooks/pre-commit", ".Git/Config", ".g\u200cit/config", "\ufeff.git/config", ".git\u200d",
    "git~1/hooks/post-merge", "GIT~1/config", ".git./config", ".git /config", ".git . ./config",
    ".git::$INDEX_ALLOCATION/config", ".git:x/config", ".git\\hooks\\pre-commit", ".git\\config",
    "GITMOD~1", "gi7eba~1", "GITATT~2", ".ENVRC", ".BashRC", "Claude.MD", ".VSCode/Tasks.JSON",
    ".ba\u017fhrc", ".\uff47\uff49\uff54/config", ".env\u00adrc", "SiteCustomize.py",
    ".Claude/Settings.json", ".git/HOOKS/Pre-Commit", "a/b/c/.git/config",
    ".git/modules/x/.git/config", ".git/x/.git/hooks/y", ".envrc.", ".envrc ", ".envrc::$DATA",
)  # fmt: skip


@pytest.mark.parametrize("path", TRICKS)
def test_another_spelling_does_not_hide_it(path: str) -> None:
    assert level(added(path)) is BY_ITSELF


def test_names_that_are_not_text_are_judged_too() -> None:
    odd = os.fsdecode(b"\xff\xfe")
    assert level(added(f"{odd}/.git/hooks/x")) is BY_ITSELF
    assert level(added(f"{odd}.py")) is None
    assert level(added("line\nbreak/.envrc")) is BY_ITSELF


# Ways around a rule by the kind of change


def test_a_rename_is_judged_by_where_it_ends() -> None:
    renamed = Change(ChangeKind.RENAMED, TARGET, ".envrc", state(), state(), "notes.txt")
    assert level(renamed) is BY_ITSELF

    away = Change(ChangeKind.RENAMED, TARGET, "notes.txt", state(), state(), ".gitlab-ci.yml")
    assert level(away) is WHEN_USED


def test_a_hook_that_is_made_executable_runs_from_now_on() -> None:
    hook = changed(".git/hooks/pre-commit", state(), state(mode=0o755))
    assert level(hook) is BY_ITSELF


def test_other_times_or_fewer_rights_are_no_risk() -> None:
    assert level(changed(".git/hooks/pre-commit", state(mode=0o755), state())) is None
    assert level(changed(".bashrc", state(), state(mode=0o600))) is None


def test_a_start_file_that_others_may_write_is_flagged() -> None:
    assert level(changed(".bashrc", state(), state(mode=0o666))) is BY_ITSELF
    assert level(changed(".bashrc", state(), state(uid=1001))) is BY_ITSELF
    assert level(changed("notes.txt", state(), state(mode=0o666))) is None


def test_gaining_the_right_to_run_is_flagged_once() -> None:
    assert level(added("tool", 0o755)) is WHEN_USED
    assert level(changed("tool", state(), state(mode=0o755))) is WHEN_USED
    assert level(changed("tool", state(mode=0o755), state(mode=0o755), ChangeKind.MODIFIED)) is None


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o4644])
def test_setuid_and_setgid_files_are_flagged(mode: int) -> None:
    assert level(added("tool", mode)) is BY_ITSELF
    assert level(changed("tool", state(), state(mode=mode))) is BY_ITSELF
    old = state(mode=mode)
    assert level(changed("tool", old, state(mode=mode), ChangeKind.MODIFIED)) is BY_ITSELF
    assert level(changed("tool", old, state(mode=mode))) is None


def test_a_folder_that_hands_down_its_group_is_no_risk() -> None:
    shared = Change(ChangeKind.ADDED, TARGET, "shared", None, state(FileType.FOLDER, 0o2775))
    assert level(shared) is None


def test_file_capabilities_are_flagged() -> None:
    powerful = state(mode=0o755, xattrs=(("security.capability", b"\x01"),))
    assert level(changed("tool", state(mode=0o755), powerful)) is BY_ITSELF
    assert level(changed("tool", powerful, powerful)) is None


def test_devices_pipes_and_sockets_are_flagged() -> None:
    def special(type: FileType, path: str = "x") -> Change:
        return Change(ChangeKind.SPECIAL, TARGET, path, None, state(type))

    assert level(special(FileType.DEVICE)) is BY_ITSELF
    assert level(special(FileType.FIFO)) is WHEN_USED
    assert level(special(FileType.SOCKET)) is WHEN_USED
    assert level(special(FileType.FIFO, ".bashrc")) is BY_ITSELF


def test_what_took_the_place_of_something_else_is_judged_as_new() -> None:
    was_folder = changed(".envrc", state(FileType.FOLDER), state(), ChangeKind.REPLACED)
    assert level(was_folder) is BY_ITSELF


# Links


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("x", "/etc/passwd"),
        ("x", "../other"),
        ("a/b/x", "../../../other"),
        ("x", "/"),
        ("x", ".."),
        ("x", "/srv/projectile/y"),
        ("x", "/srv/project/../other"),
        ("x", "a/../../other"),
        ("x", "a/../b"),
        ("x", "/proc/self/root/etc"),
        ("x", "//etc/passwd"),
        ("x", "./../other"),
        ("x", ".git/hooks/pre-commit"),
        ("x", ".GIT/config"),
        ("a/x", "../.git"),
        (".git", "elsewhere"),
        (".vscode", "elsewhere"),
        (".claude", "elsewhere"),
        (".config", "elsewhere"),
        (".github", "elsewhere"),
        (".git/hooks", "../scripts"),
        (".git/hooks/pre-commit", "../../run.sh"),
        (".git/HEAD", "refs/heads/main"),
        (".envrc", "env.sh"),
        ("node_modules/.bin/tool", "../pkg/tool.js"),
    ],
)
def test_a_link_that_leads_out_or_into_what_runs_is_flagged(path: str, to: str) -> None:
    assert level(link(path, to)) is BY_ITSELF


@pytest.mark.parametrize(
    ("path", "to"),
    [("x", "y"), ("a/b/x", "../../y"), ("a/x", "../b/c"), ("x", "/srv/project/y"), ("x", "./a/b")],
)
def test_a_link_within_the_target_is_no_risk(path: str, to: str) -> None:
    assert reasons(link(path, to)) == []


def test_a_link_through_a_link_of_the_host_leads_out_too(target: Path) -> None:
    (target / "data").symlink_to("/var")
    assert level(link("x", "data/log", str(target))) is BY_ITSELF
    assert level(link("x", "datum/log", str(target))) is None


def test_another_name_for_a_file_that_runs_is_flagged() -> None:
    def name(path: str, source: str) -> Change:
        return Change(ChangeKind.HARD_LINK, TARGET, path, None, state(), source)

    assert level(name("notes", ".git/config")) is BY_ITSELF
    assert level(name("notes", ".envrc")) is BY_ITSELF
    assert level(name(".envrc", "notes")) is BY_ITSELF
    assert level(name("notes", "other")) is None
    # `git clone` of a neighbour shares objects like this.
    assert level(name("copy/.git/objects/ab/c", "first/.git/objects/ab/c")) is None


# Repositories by another name


def test_a_folder_that_git_would_take_for_a_repository_is_flagged() -> None:
    parts = [added("fixtures/x/HEAD"), folder("fixtures/x/objects"), folder("fixtures/x/refs")]

    assert level(*parts, added("fixtures/x/config")) is BY_ITSELF
    assert level(*parts, added("fixtures/x/hooks/pre-commit")) is BY_ITSELF
    assert level(*parts[1:], parts[0]) is BY_ITSELF
    assert level(*parts[:2], added("fixtures/x/config")) is None


def test_a_repository_may_share_what_another_has() -> None:
    assert level(added("x/HEAD"), added("x/commondir")) is BY_ITSELF


def test_the_last_missing_part_of_a_repository_is_flagged(target: Path) -> None:
    (target / "x" / "refs").mkdir(parents=True)
    (target / "x" / "HEAD").write_text("ref: refs/heads/main\n")
    new = state(FileType.FOLDER, 0o755)

    assert level(Change(ChangeKind.ADDED, str(target), "x/objects", None, new)) is BY_ITSELF


def test_the_settings_of_a_bare_repository_on_the_host_are_flagged(target: Path) -> None:
    for name in ("objects", "refs"):
        (target / name).mkdir()
    (target / "HEAD").write_text("ref: refs/heads/main\n")

    assert level(added("config", target=str(target))) is BY_ITSELF
    assert level(added("hooks/update", target=str(target))) is BY_ITSELF
    assert level(added("objects/ab/cdef", target=str(target))) is None
    assert level(added("refs/heads/config", target=str(target))) is None


# Deletions


def test_what_else_steers_git_is_flagged() -> None:
    assert level(added(".git/remotes/origin")) is BY_ITSELF
    assert level(added(".git/branches/main")) is BY_ITSELF
    assert level(added(".git/tool", 0o755)) is BY_ITSELF
    assert level(added(".git/modules/refs/hooks/pre-push", 0o755)) is BY_ITSELF
    assert level(added(".git/rebase-merge/git-rebase-todo")) is WHEN_USED
    assert level(added(".git/sequencer/todo")) is WHEN_USED


def test_deleting_a_check_is_pointed_out_and_deleting_a_hook_is_not() -> None:
    assert level(deleted(".gitattributes")) is WHEN_USED
    assert level(deleted(".pre-commit-config.yaml")) is WHEN_USED
    assert level(deleted(".github/workflows/ci.yml")) is WHEN_USED
    for path in (".git/hooks/pre-commit", ".git/config", ".bashrc", "Makefile", "src/app.py"):
        assert level(deleted(path)) is None


# PATH, and what the host points at


def test_commands_on_the_path_are_flagged(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"/usr/bin:{target}/tools")
    here = str(target)

    assert level(added("tools/ls", 0o755, here)) is BY_ITSELF
    assert level(added("tools/readme.txt", 0o644, here)) is None
    assert level(link("tools/ls", "../x", here)) is BY_ITSELF
    assert level(link("tools", "elsewhere", here)) is BY_ITSELF
    old, new = state(mode=0o755), state(mode=0o755)
    assert level(Change(ChangeKind.MODIFIED, here, "tools/ls", old, new)) is BY_ITSELF


def test_a_path_with_the_current_folder_makes_every_program_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:.")
    assert level(added("anywhere/ls", 0o755)) is BY_ITSELF


@pytest.mark.parametrize("folder", [".local/bin", "node_modules/.bin", "a/node_modules/.bin"])
def test_folders_of_commands_are_known_by_name(folder: str) -> None:
    assert level(added(f"{folder}/ls", 0o755)) is BY_ITSELF


def test_commands_of_a_virtual_environment_are_flagged(target: Path) -> None:
    assert level(added("odd/pyvenv.cfg"), added("odd/bin/python", 0o755)) is BY_ITSELF
    assert level(added("bin/python", 0o755)) is WHEN_USED
    (target / "pyvenv.cfg").touch()
    assert level(added("bin/pip", 0o755, str(target))) is BY_ITSELF


@pytest.mark.parametrize(
    ("chosen", "others"),
    [
        ([added("v/bin/ls", 0o755), added("v/bin/git", 0o755)], [added("v/pyvenv.cfg")]),
        ([added("b/config")], [added("b/HEAD"), added("b/objects/x"), added("b/refs/x")]),
        (
            [added("b/hooks/update", 0o755)],
            [added("b/HEAD"), folder("b/objects"), folder("b/refs")],
        ),
    ],
)
def test_what_is_chosen_is_judged_as_a_part_of_the_run(
    chosen: list[Change], others: list[Change]
) -> None:
    whole = of(*chosen, *others)
    part = select(whole, [change.path for change in chosen])
    assert {flag.level for flag in flags(part)} == {BY_ITSELF}
    assert flags(part) == flags(whole)[: len(flags(part))]
    again = select(part, chosen[0].path)
    assert flags(again) == flags(part)[:1]


def test_what_only_what_was_left_out_removes_is_there_still(target: Path) -> None:
    here = str(target)
    (target / "pyvenv.cfg").touch()
    (target / "package").mkdir()
    (target / "package/__init__.py").touch()
    going = [
        Change(ChangeKind.DELETED, here, path, state(), None)
        for path in ("pyvenv.cfg", "package/__init__.py")
    ]
    command, module = added("bin/pip", 0o755, here), added("package/json.py", target=here)
    whole = of(command, module, *going)
    assert [flag.level for flag in flags(select(whole, ["bin/pip"]))] == [BY_ITSELF]
    # It may be removed by the next choice, and then the module is on its own.
    assert [flag.level for flag in flags(select(whole, ["package/json.py"]))] == [BY_ITSELF]


def test_the_home_folder_has_a_folder_of_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", TARGET)
    assert level(added("bin/ls", 0o755)) is BY_ITSELF


def test_a_script_that_a_hook_of_the_host_links_to_is_flagged(target: Path) -> None:
    (target / ".git" / "hooks").mkdir(parents=True)
    (target / ".git" / "hooks" / "pre-push").symlink_to("../../scripts/check.py")

    (found,) = flags(of(added("scripts/check.py", target=str(target))))
    assert found.level is BY_ITSELF
    assert found.reason == "the git hook pre-push on this host is a link to it"


def test_the_folder_that_git_takes_hooks_from_is_flagged(target: Path) -> None:
    (target / ".git").mkdir()
    (target / ".git" / "config").write_text(
        "[core]\n\tbare = false\n\thooksPath = tools/hooks\n"
        '[filter "x"]\n\tclean = python3 tools/clean.py %f\n[remote "o"]\n\turl = ../other.txt\n'
    )
    here = str(target)

    assert level(added("tools/hooks/pre-commit", target=here)) is BY_ITSELF
    assert level(added("tools/clean.py", target=here)) is BY_ITSELF
    assert level(added("tools/other.py", target=here)) is None
    assert level(added("sub/tools/clean.py", target=str(target / "sub"))) is None


def test_a_target_within_a_repository_is_judged_by_that_repository(target: Path) -> None:
    (target / ".git").mkdir()
    (target / ".git" / "config").write_text("[core]\n\thooksPath = sub/hooks\n")
    (target / "sub").mkdir()

    assert level(added("hooks/pre-commit", target=str(target / "sub"))) is BY_ITSELF


def test_the_hooks_of_a_linked_work_tree_are_found(target: Path) -> None:
    (target / "main" / ".git" / "worktrees" / "w").mkdir(parents=True)
    (target / "main" / ".git" / "worktrees" / "w" / "commondir").write_text("../..\n")
    (target / "main" / ".git" / "config").write_text("[core]\n\thooksPath = hooks.d\n")
    (target / "w").mkdir()
    (target / "w" / ".git").write_text(f"gitdir: {target}/main/.git/worktrees/w\n")

    assert level(added("hooks.d/pre-commit", target=str(target / "w"))) is BY_ITSELF


def test_a_hooks_folder_that_is_a_link_is_followed(target: Path) -> None:
    (target / ".git").mkdir()
    (target / ".git" / "hooks").symlink_to("../hooks.d")

    assert level(added("hooks.d/pre-commit", target=str(target))) is BY_ITSELF


def test_a_file_behind_a_telling_link_of_the_host_is_flagged(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, dotfiles = target / "home", target / "dotfiles"
    (home / ".config").mkdir(parents=True)
    dotfiles.mkdir()
    (home / ".bashrc").symlink_to(dotfiles / "bash")
    (home / ".config" / "nvim").symlink_to(dotfiles / "nvim")
    (home / "notes").symlink_to(dotfiles / "notes")
    monkeypatch.setenv("HOME", str(home))
    here = str(dotfiles)

    (dotfiles / ".vscode").symlink_to("editor")

    assert level(added("bash", target=here)) is BY_ITSELF
    assert level(added("editor/tasks.json", target=here)) is BY_ITSELF
    assert level(added("nvim/lua/x.lua", target=here)) is BY_ITSELF
    assert level(added("notes", target=here)) is None


def test_a_program_linked_from_the_path_is_flagged(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target / "bin").mkdir()
    (target / "bin" / "tool").symlink_to("../project/tool.py")
    monkeypatch.setenv("PATH", f"/usr/bin:{target}/bin")

    assert level(added("tool.py", target=f"{target}/project")) is BY_ITSELF


def test_a_file_that_the_environment_names_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASH_ENV", f"{TARGET}/setup")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{TARGET}/lib")

    assert reasons(added("setup")) == ["your environment names it, in BASH_ENV"]
    assert level(added("lib/libc.so.6")) is BY_ITSELF


# Ways to what the host points at


def git(target: Path, config: str = "", **hooks: str) -> str:
    """Make a repository with these settings and hooks on the host."""
    (target / ".git" / "hooks").mkdir(parents=True)
    (target / ".git" / "config").write_text(config)
    for name, text in hooks.items():
        (target / ".git" / "hooks" / name.replace("_", "-")).write_text(text)
    return str(target)


def test_a_link_above_the_folder_of_hooks_is_flagged(target: Path) -> None:
    here = git(target, "[core]\n\thooksPath = tools/git/hooks # ours\n")

    assert level(link("tools", "other", here)) is BY_ITSELF
    assert level(link("tools/git", "../other", here)) is BY_ITSELF
    assert level(link("tool", "other", here)) is None


def test_a_link_above_a_named_file_is_flagged(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = git(target, '[filter "x"]\n\tclean = "a/b/clean.py" %f\n')
    monkeypatch.setenv("BASH_ENV", f"{here}/c/d/setup")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{here}/e/lib")

    for path in ("a", "a/b", "c", "c/d", "e"):
        assert level(link(path, "/".join([*[".."] * path.count("/"), "x"]), here)) is BY_ITSELF


def test_a_link_above_a_linked_dotfile_is_flagged(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target / "home").mkdir()
    (target / "home" / ".bashrc").symlink_to(target / "dotfiles" / "shell" / "bash")
    monkeypatch.setenv("HOME", str(target / "home"))

    assert level(link("shell", "other", str(target / "dotfiles"))) is BY_ITSELF


def test_every_link_on_the_way_counts(target: Path) -> None:
    here = git(target, "[core]\n\thooksPath = tools/hooks\n")
    (target / "real").mkdir()
    (target / "tools").symlink_to("real")
    (target / "real" / "hooks").symlink_to("../last")

    assert level(added("last/pre-push", target=here)) is BY_ITSELF
    assert level(link("real/hooks", "../x", here)) is BY_ITSELF
    assert level(link("real", "x", here)) is BY_ITSELF


def test_links_in_a_circle_do_no_harm(target: Path) -> None:
    here = git(target, "[core]\n\thooksPath = a/hooks\n")
    (target / "a").symlink_to("b")
    (target / "b").symlink_to("a")

    assert level(added("x.txt", target=here)) is None


# Git's settings and hooks


def test_settings_without_end_do_not_hide_the_folder_of_hooks(target: Path) -> None:
    many = "".join(f"\tx = a/{n}\n" for n in range(20_000))
    here = git(target, f"[odd]\n{many}[core]\n\thooksPath = checks\n")

    assert level(added("checks/x", target=here)) is BY_ITSELF


def test_settings_that_git_includes_are_obeyed(target: Path) -> None:
    here = git(target, '[include]\n\tpath = ../conf/git\n[includeIf "gitdir:/x/"] path = odd\n')
    (target / "conf").mkdir()
    (target / "conf" / "git").write_text("[core]\nhooksPath = checks\n[include]\npath = git\n")

    assert level(added("conf/git", target=here)) is BY_ITSELF
    assert level(added("checks/x", target=here)) is BY_ITSELF
    assert level(added(".git/odd", target=here)) is BY_ITSELF
    assert level(added("odd", target=here)) is None


@pytest.mark.parametrize("file", [".gitconfig", ".config/git/config", "xdg/git/config"])
def test_settings_of_the_user_count_in_every_repository(
    target: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    home = target / "home"
    (home / file).parent.mkdir(parents=True)
    (home / file).write_text("[core]\n\thooksPath = checks\n[include]\npath = more\n")
    (target / "p").mkdir()
    monkeypatch.setenv("HOME", str(home))
    if file.startswith("xdg"):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))

    assert level(added("checks/pre-push", target=git(target / "p"))) is BY_ITSELF
    more = os.path.relpath((home / file).parent / "more", target)
    assert level(added(more, target=str(target))) is BY_ITSELF


def test_what_husky_runs_is_flagged_where_it_is_installed(target: Path) -> None:
    assert level(added(".husky/pre-commit", target=str(target))) is WHEN_USED
    here = git(target, "[core]\n\thooksPath = .husky/_\n")
    assert level(added(".husky/pre-commit", target=here)) is BY_ITSELF


def test_a_repository_below_the_target_counts(target: Path) -> None:
    (target / "a" / "sub").mkdir(parents=True)
    git(target / "a" / "sub", "[core]\n\thooksPath = checks\n")

    assert level(added("a/sub/checks/x", target=str(target))) is BY_ITSELF
    assert level(added("a/checks/x", target=str(target))) is None


def test_what_an_installed_hook_names_is_flagged(target: Path) -> None:
    hook = (
        '#!/bin/sh\nset -e\n. "$(dirname "$0")/../../scripts/common"\npython3 -m tools.check\n'
        '"$ROOT/ci/lint.py" --all && make check\ncat .git/HEAD .git/index\n'
    )
    here = git(target, pre_commit=hook)

    for path in ("scripts/common", "tools/check.py", "ci/lint.py", "Makefile"):
        (reason,) = {flag.reason for flag in flags(of(added(path, target=here)))}
        assert reason == "the git hook pre-commit on this host names it"
    for path in ("src/app.py", ".git/HEAD", ".git/index"):
        assert level(added(path, target=here)) is None


@pytest.mark.parametrize("path", [".pre-commit-config.yaml", "lefthook.yml", ".husky/pre-push"])
def test_lists_of_checks_run_by_themselves_once_hooks_are_installed(
    target: Path, path: str
) -> None:
    here = git(target, pre_push_sample="")
    (target / ".git" / "hooks" / "pre-push-sample").rename(target / ".git/hooks/pre-push.sample")
    assert level(added(path, target=here)) is WHEN_USED

    (target / ".git" / "hooks" / "pre-push").write_text("#!/bin/sh\nexec pre-commit\n")
    assert level(added(path, target=here)) is BY_ITSELF


# What shells and Pythons load


def test_what_start_files_of_the_host_load_is_flagged(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = target / "home"
    home.mkdir()
    (home / ".bashrc").write_text(
        'export TOOLS="$HOME/p"\n[ -s "$TOOLS/a.txt" ] && \\. "$TOOLS/a.txt"  # words\n'
        "if true; then source ~/p/b; fi\nfor f in ~/p/d/*; do . $f; done\n. ${HOME}/p/e/*.x\n"
    )
    monkeypatch.setenv("HOME", str(home))
    (home / "p").mkdir()
    (home / "p" / "b").write_text(f". {home}/p/c\n. {home}/p/b\n")
    here = str(home / "p")

    for path in ("a.txt", "b", "c", "e/any.x"):
        assert level(added(path, target=here)) is BY_ITSELF
    assert level(added("words", target=here)) is None


def test_modules_that_python_imports_at_every_start_are_flagged(target: Path) -> None:
    packages = ".venv/lib/python3.11/site-packages"
    (target / packages).mkdir(parents=True)
    (target / packages / "x.pth").write_text(
        "import os, hooked; hooked.go()\nimport sys; __import__('second').go()\n"
    )
    (target / packages / "y.pth").write_text("# places\n../../../../src\n")
    here = str(target)

    for path in (f"{packages}/hooked.py", f"{packages}/second/deep.py", "src/hooked/__init__.py"):
        assert level(added(path, target=here)) is BY_ITSELF
    assert level(added(f"{packages}/third.py", target=here)) is WHEN_USED


def test_folders_that_variables_name_count_with_all_in_them(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target / "conf" / "deep").mkdir(parents=True)
    (target / "own").mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(target / "conf"))
    monkeypatch.setenv("SOME_TOOL_DIR", str(target / "own"))
    monkeypatch.setenv("PROJECT", str(target))

    assert level(added("conf/any/thing", target=str(target))) is BY_ITSELF
    assert level(added("thing", target=str(target / "conf" / "deep"))) is BY_ITSELF
    assert level(added("own/thing", target=str(target))) is BY_ITSELF
    assert level(added("thing", target=str(target))) is None


# Rights that widen


def opened(path: str, old: int, new: int, target: str = TARGET) -> Change:
    before, after = state(FileType.FOLDER, old), state(FileType.FOLDER, new)
    return Change(ChangeKind.MODE, target, path, before, after)


@pytest.mark.parametrize("path", ["", ".git", ".git/hooks", ".vscode", ".config", "a/.claude"])
def test_a_folder_of_what_runs_that_others_may_write_in_is_flagged(path: str) -> None:
    assert level(opened(path, 0o755, 0o777)) is BY_ITSELF
    assert level(opened(path, 0o755, 0o775)) is BY_ITSELF
    assert level(opened(path, 0o777, 0o755)) is None
    assert level(opened(path, 0o777, 0o777)) is None


def test_an_ordinary_folder_that_everyone_may_write_in_is_pointed_out() -> None:
    new = Change(ChangeKind.ADDED, TARGET, "src", None, state(FileType.FOLDER, 0o777))
    assert level(new) is WHEN_USED
    assert level(opened("src", 0o755, 0o777)) is WHEN_USED
    assert level(opened("src", 0o755, 0o775)) is None
    assert level(opened("src", 0o755, 0o1777)) is None
    assert level(opened(".git/objects", 0o755, 0o775)) is None


def test_a_folder_that_holds_what_runs_on_this_host_is_no_ordinary_one(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = git(target, "[core]\n\thooksPath = tools/hooks\n")
    (target / "sub").mkdir()
    (target / "sub" / ".envrc").touch()
    monkeypatch.setenv("PATH", f"/usr/bin:{target}/commands")

    for path in ("tools", "tools/hooks", "sub", "commands"):
        assert level(opened(path, 0o755, 0o775, here)) is BY_ITSELF


def test_a_start_file_that_its_group_may_write_is_flagged() -> None:
    assert level(changed(".bashrc", state(), state(mode=0o664))) is BY_ITSELF
    assert level(changed("notes.txt", state(), state(mode=0o664))) is None


def test_hostile_settings_of_a_repository_do_no_harm(target: Path) -> None:
    (target / ".git").mkdir()
    os.mkfifo(target / ".git" / "config")

    assert level(added("x.py", target=str(target))) is None


# The standard library


@pytest.mark.parametrize(
    "path", ["json.py", "random/__init__.py", "scripts/email.py", "types.cpython-311.so", "re.pyc"]
)
def test_a_module_named_like_one_of_pythons_own_is_flagged(path: str) -> None:
    assert level(added(path)) is BY_ITSELF


def test_a_link_can_be_a_module_too() -> None:
    assert level(link("json", "lib")) is BY_ITSELF
    assert level(link("json.py", "lib.py")) is BY_ITSELF
    assert level(link("README", "lib")) is None


def test_the_same_name_within_a_package_of_the_host_is_ordinary(target: Path) -> None:
    (target / "pkg").mkdir()
    (target / "pkg" / "__init__.py").touch()
    assert level(added("pkg/types.py", target=str(target))) is None


def test_a_package_that_comes_along_does_not_excuse_a_module() -> None:
    assert level(added("scripts/__init__.py"), added("scripts/types.py")) is BY_ITSELF


@pytest.mark.parametrize("path", ["pip.py", "pytest/__init__.py", "setuptools.py", "unittest.py"])
def test_a_module_that_people_start_by_name_is_flagged(path: str) -> None:
    assert level(added(path)) is BY_ITSELF


def test_the_same_name_where_python_does_not_look_first_is_ordinary() -> None:
    assert level(added("lib/site-packages/typing.py")) is WHEN_USED
    assert level(added("__pycache__/json.cpython-311.pyc")) is WHEN_USED


def test_editing_what_has_the_name_already_is_ordinary() -> None:
    assert level(changed("types.py", state(), state(), ChangeKind.MODIFIED)) is None


# Contents


def package(**scripts: str) -> bytes:
    return json.dumps({"name": "x", "scripts": scripts}).encode()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (package(test="a"), package(test="b"), False),
        (package(test="a"), package(test="a", postinstall="b"), True),
        (package(prepare="a"), package(prepare="b"), True),
        (package(), b"[" * 100_000, True),
        (package(), b"not json", True),
        (package(), b" " * (1 << 21), True),
        (package(), b'{"scripts": 3}', False),
        (package(), b"[]", False),
    ],
)
def test_changed_install_scripts_are_named(old: bytes, new: bytes, told: bool) -> None:
    contents = Bytes({"package.json": new}, {"package.json": old})
    change = changed("package.json", state(), state(), ChangeKind.MODIFIED)

    (found,) = flags(of(change, contents=contents))

    assert found.level is WHEN_USED
    assert ("install scripts" in found.reason) is told


def test_a_new_script_without_an_ending_is_flagged() -> None:
    contents = Bytes({"tool": b"#!/bin/sh\n", "words": b"some words"})
    assert level(added("tool"), contents=contents) is WHEN_USED
    assert level(added("words"), contents=contents) is None


def test_installed_packages_are_flagged_where_they_were_altered_or_added_to() -> None:
    path = "node_modules/pkg/index.js"
    assert level(changed(path, state(), state(), ChangeKind.MODIFIED)) is WHEN_USED
    assert level(added(path)) is WHEN_USED
    assert level(added("node_modules/pkg/package.json")) is WHEN_USED


def test_contents_are_opened_only_where_a_rule_needs_them() -> None:
    class Closed(Bytes):
        def open_new(self, change: Change) -> BinaryIO:
            raise AssertionError(change.path)

        open_old = open_new

    paths = ["src/app.py", ".envrc", "Makefile", ".git/objects/ab/cdef", "run.sh", "tool.js"]
    assert flags(of(*map(added, paths), contents=Closed()))


# A real sandbox


def test_what_an_agent_did_in_a_sandbox_is_judged(target: Path) -> None:
    (target / "src").mkdir()
    (target / "src" / "app.py").write_text("print('app')\n")
    script = """
        echo more >> src/app.py
        git init -q . 2>/dev/null || { mkdir -p .git/hooks; echo > .git/config; }
        mkdir -p .git/hooks .vscode
        printf '#!/bin/sh\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
        echo '{}' > .vscode/tasks.json
        ln -s /etc/passwd out; ln -s src/app.py within
        printf '#!/bin/sh\n' > tool; chmod 4755 tool
        printf 'all:\n' > Makefile
    """
    with OverlaySandbox(target) as sandbox:
        assert sandbox.exec(["bash", "-ec", script]).ok
    assert sandbox.layer is not None

    found = flags(capture(sandbox.layer))

    assert by_path(found, BY_ITSELF) == {
        ".git/config", ".git/hooks/pre-commit", ".vscode/tasks.json", "out", "tool",
    }  # fmt: skip
    assert by_path(found, WHEN_USED) == {"Makefile"}


def test_detours_that_a_sandbox_took_are_judged(target: Path) -> None:
    git(target, "[core]\n\thooksPath = tools/hooks\n")
    for name in ("tools/hooks", "src", "other/hooks"):
        (target / name).mkdir(parents=True)
    script = """
        rm -r tools; ln -s other tools
        chmod 777 . .git/hooks src
        chmod 755 other
    """
    with OverlaySandbox(target) as sandbox:
        assert sandbox.exec(["bash", "-ec", script]).ok
    assert sandbox.layer is not None

    found = flags(capture(sandbox.layer))

    assert by_path(found, BY_ITSELF) == {"", "tools", ".git/hooks"}
    assert by_path(found, WHEN_USED) == {"src"}


def by_path(found: tuple[Flag, ...], level: Level) -> set[str]:
    return {flag.change.path for flag in found if flag.level is level}


# The table


def test_every_pattern_of_the_table_fits_what_it_says() -> None:
    for rule in RULES:
        for pattern in rule.patterns:
            path = pattern.replace("**", "any/thing").replace("*", "x")
            path = path.replace("~/", "/root/") if pattern.startswith("~/") else f"/{path}"
            found = fitting(parts_of(path))
            assert rule.level in found, pattern


def test_no_pattern_is_there_twice() -> None:
    patterns = [pattern for rule in RULES for pattern in rule.patterns]
    assert sorted(patterns) == sorted(set(patterns))
    assert all(pattern == pattern.lower() for pattern in patterns)


def test_every_row_says_where_it_can_be_read_and_when_it_was_looked_over() -> None:
    for rule in RULES:
        assert rule.source
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])(-[0-3]\d)?", rule.checked)


def test_the_page_shows_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "risk.md").read_text()
    for each in Level:
        section = page.split(f"## {each.value.capitalize()}: by path")[1].split("\n## ")[0]
        rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", section, re.MULTILINE)[1:]
        shown = [(why, tuple(re.findall(r"`([^`]+)`", names)), told) for why, names, told in rows]
        assert shown == [
            (rule.reason, rule.patterns, f"{rule.source}, {rule.checked}")
            for rule in RULES
            if rule.level is each
        ]
