"""What is flagged by a rule and not by a list: references, unknown settings, falsified history."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from podbot.changes.capture import capture
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, State
from podbot.changes.risk._git import FALSIFIED
from podbot.changes.risk._reading import Pointer
from podbot.changes.risk._references import MAX_FILES, MAX_NAMED, named_by_what_runs
from podbot.changes.risk.judging import flags
from podbot.changes.risk.rules import Level
from podbot.sandbox.overlay.launcher import OverlaySandbox

BY_ITSELF, WHEN_USED = Level.BY_ITSELF, Level.WHEN_USED


def flagged(target: Path, *paths: str) -> dict[str, str]:
    """The paths among these that run by themselves if they are added, each with the reason."""
    state = State(FileType.FILE, 0o644, 0, 0, 10, 0, 0, 1, 1)
    changes = tuple(Change(ChangeKind.ADDED, str(target), path, None, state) for path in paths)

    class Unreadable:
        def open_old(self, change: Change) -> object:
            raise FileNotFoundError(change.path)

        open_new = open_old

    found = flags(ChangeSet((str(target),), changes, Unreadable(), 0))  # type: ignore[arg-type]
    return {flag.change.path: flag.reason for flag in found if flag.level is BY_ITSELF}


def in_a_sandbox(target: Path, *commands: str) -> dict[str, tuple[Level, str]]:
    """The flags of what these commands do in a sandbox, by path."""
    with OverlaySandbox(target) as sandbox:
        for command in commands:
            result = sandbox.exec(["sh", "-c", command], timeout=60)
            assert result.ok, result
        layer = sandbox.layer
        assert layer is not None
    found = flags(capture(layer))
    layer.discard()
    return {flag.change.path: (flag.level, flag.reason) for flag in found}


@pytest.mark.parametrize(
    ("file", "text", "named", "unnamed"),
    [
        (".envrc", "source_env tools/vars\ndotenv conf/local\nPATH_add tools/bin\n# see a/b.md\n",
         "tools/vars conf/local tools/bin/any", "a/b.md src/app.py tools/other"),
        (".envrc", "./scripts/setup --fast\nexport X=$PWD/lib/x.rb\n",
         "scripts/setup lib/x.rb", "scripts/other README.md"),
        (".Rprofile", "source('R/setup.R')\nload(\"data/x.RData\")\n", "R/setup.R", "R/other.R"),
        (".vscode/tasks.json", '{"tasks": [{"command": "./tools/go", "args": ["--x", "a/b.cfg"]}]}',
         "tools/go a/b.cfg", "src/main.c"),
        (".mcp.json", '{"mcpServers": {"x": {"command": "node", "args": ["srv/index.js"]}}}',
         "srv/index.js", "srv/other.js"),
        ("CLAUDE.md", "Read README.md and src/app.py.\n@docs/rules.md first\n",
         "docs/rules.md", "README.md src/app.py"),
        (".vimrc", "source tools/x.vim\n\" source tools/y.vim\n", "tools/x.vim", "tools/y.vim"),
        ("conf/.envrc", ". ./beside\n", "conf/beside beside", "other"),
        # Where it is started
        (".envrc", "cd tools && ./go\n(cd a/b; . vars)\n", "tools/go a/b/vars", "src/go tools/no"),
        (".envrc", "cd one\ncd two\nsource three\n", "one/two/three", "two/four"),
        (".envrc", "git -C sub/repo config alias.x '!scripts/x'\n", "sub/repo/scripts/x", "sub/x"),
        (".envrc", "make -C conf env\n", "conf/Makefile", "conf/readme.txt"),
        (".envrc", "make --directory=conf env\n", "conf/makefile", "conf/readme.txt"),
        (".envrc", "python3 -m tools.env\n", "tools/env.py tools/env/__main__.py", "tools/b.py"),
        (".vscode/tasks.json",
         '{"tasks": [{"command": "${workspaceFolder}/bld/go", "options": {"cwd": "x"}}]}',
         "bld/go", "y/go"),
        (".vscode/tasks.json",
         '{"tasks": [{"command": "./go", "options": {"cwd": "${workspaceFolder}/w"}}]}',
         "w/go", "v/go"),
        (".vscode/tasks.json", '{"tasks": [{"command": "make", "args": ["-C", "build"]}]}',
         "build/Makefile", "build/x.c"),
        (".claude/settings.json",
         '{"hooks": {"Stop": [{"hooks": [{"command": "cd hk && python3 stop.py"}]}]}}',
         "hk/stop.py", "hk/start.py"),
        (".claude/hooks/deep/stop", "#!/bin/sh\npython3 hk/stop.py\n", "hk/stop.py", "hk/go.py"),
        (".mcp.json", '{"mcpServers": {"x": {"command": "python", "args": ["-m", "srv.main"]}}}',
         "srv/main.py", "srv/other.py"),
        (".cargo/config.toml", '[b]\nrustc-wrapper = "tools/wrap"\n[t]\nrunner = "r/x"\n',
         "tools/wrap r/x", "tools/other"),
        ("mise.toml", '[env]\n_.source = "conf/s"\n', "conf/s", "conf/t"),
        (".vscode/settings.json", '{"typescript.tsdk": "lib/ts"}', "lib/ts/srv.js", "lib/x.ts"),
        (".envrc", "export PATH=$PWD/cmds:$PATH\n", "cmds/ls", "other/ls.txt"),
        (".envrc", "while read l; do export $l; done < cf/vars\n", "cf/vars", "cf/no"),
        # All that is in a folder
        (".envrc", "for f in cf/*; do . $f; done\n", "cf/new cf/a.sh", "src/a.py"),
        (".envrc", "for f in $(ls cf); do source cf/$f; done\n", "cf/new", "src/new"),
        (".envrc", "for f in cf/a cf/b\ndo\n . \"$f\"\ndone\n", "cf/a cf/b", "cf/c"),
        (".envrc", "source cf/*.sh\n", "cf/b.sh", "b.txt"),
        (".envrc", "run-parts --regex=. cf\n", "cf/anything", "anything"),
        (".envrc", "find cf -name '*.env' -exec . {} \\;\n", "cf/x.env", "x.txt"),
        (".envrc", "d=cf\nfor f in \"$d\"/*; do . \"$f\"; done\n", "cf/new", "src/new"),
        (".envrc", "D=\"cf/x\"; ls | while read f; do . ${D}/$f; done\n", "cf/x/new", "cf/new"),
        (".envrc", "use flake\n", "flake.nix", "shell.nix"),
        (".envrc", "use nix\ndotenv\n", "shell.nix .env", "flake.nix"),
        (".vscode/tasks.json", '{"tasks": [{"type": "gulp", "task": "x"}]}', "gulpfile.js", "g.js"),
        (".envrc", "for f in *.env.d; do . ./$f; done\n", "new.thing", "src/new.thing"),
        (".vimrc", "for f in glob('viml/*.vim', 0, 1) | exe 'source' f | endfor\n",
         "viml/new.vim", "vimr/x.c"),
        (".Rprofile", "sapply(list.files('R', full.names = TRUE), source)\n", "R/new.R", "r.R"),
    ],
)  # fmt: skip
def test_what_a_file_names_that_runs_by_itself_is_flagged(
    target: Path, file: str, text: str, named: str, unnamed: str
) -> None:
    (target / file).parent.mkdir(parents=True, exist_ok=True)
    (target / file).write_text(text)

    found = flagged(target, *named.split(), *unnamed.split(), "conf/brought.txt")

    assert list(found) == named.split()
    assert set(found.values()) == {f"{Path(file).name} on this host runs by itself and names it"}


def test_a_task_of_an_editor_may_be_one_of_a_package_in_another_folder(target: Path) -> None:
    (target / ".vscode").mkdir()
    (target / "web").mkdir()
    (target / ".vscode/tasks.json").write_text(
        '{"tasks": [{"type": "npm", "script": "watch", "path": "web"}]}'
    )
    (target / "web/package.json").write_text('{"scripts": {"watch": "node w.js"}}')

    assert list(flagged(target, "web/w.js", "web/x.js", "src/w.js")) == ["web/w.js"]


@pytest.mark.parametrize(
    ("hook", "file", "text", "named"),
    [
        ("cd tools && ./check", "x", "", "tools/check"),
        ("make -C tools check", "x", "", "tools/Makefile"),
        ("for f in checks/*; do sh $f; done", "x", "", "checks/new"),
        ("run-parts checks", "x", "", "checks/new"),
        ("sh tools/a", "tools/a.sh", "", "tools/a"),
        ("sh tools/a.sh", "tools/a.sh", ". tools/b\n", "tools/b"),
        ("make check", "Makefile", "check:\n\t@sh ci/x\n\tcc src/app.txt\n", "ci/x"),
        ("make check", "Makefile", "D := ci\ncheck:\n\tcd src && ls\n\t$(D)/x\n", "ci/x"),
        ("make check", "Makefile", "-include mk/*.mk\n", "mk/new.mk"),
        ("just lint", "justfile", "lint:\n    ./ci/x\n", "ci/x"),
        ("task lint", "Taskfile.yml", "tasks:\n  lint:\n    cmds:\n      - ./ci/x\n", "ci/x"),
        ("./gradlew check", "x", "", "build.gradle"),
        ("docker compose run x", "x", "", "compose.yaml"),
        ("npm run lint", "package.json", '{"scripts": {"lint": "node ci/lint.js"}}', "ci/lint.js"),
        ("pre-commit", "lefthook.yml", "pre-commit:\n  jobs:\n  - root: web\n    run: make x\n",
         "web/Makefile"),
        ("pre-commit", ".pre-commit-config.yaml", "repos:\n- hooks:\n  - entry: python -m ci.x\n",
         "ci/x.py"),
    ],
)  # fmt: skip
def test_what_an_installed_hook_starts_in_other_ways_runs_by_itself(
    target: Path, hook: str, file: str, text: str, named: str
) -> None:
    (target / ".git/hooks").mkdir(parents=True)
    (target / ".git/hooks/pre-commit").write_text(f"#!/bin/sh\n{hook}\n")
    (target / file).parent.mkdir(exist_ok=True)
    (target / file).write_text(text)

    assert list(flagged(target, named, "src/app.txt", "web/x.txt")) == [named]


def test_what_a_build_goes_over_does_not_run_by_itself(target: Path) -> None:
    """It is most of a project: a flag on all of it would be read by nobody."""
    (target / ".git/hooks").mkdir(parents=True)
    (target / ".git/hooks/pre-commit").write_text("#!/bin/sh\nmake check\n")
    (target / "Makefile").write_text("check:\n\tfind src -name '*.py' | xargs black\n")

    assert flagged(target, "src/app.txt", "top.txt") == {}


def test_what_husky_runs_is_followed(target: Path) -> None:
    (target / ".git").mkdir()
    (target / ".git/config").write_text("[core]\nhooksPath = .husky/_\n")
    (target / ".husky/_").mkdir(parents=True)
    (target / ".husky/pre-commit").write_text("node ci/lint.js\n")

    assert list(flagged(target, "ci/lint.js", "ci/other.js")) == ["ci/lint.js"]


def test_settings_of_git_that_start_in_a_folder_are_followed(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target / ".git").mkdir()
    (target / ".git/config").write_text('[diff "x"]\ntextconv = "cd tools && ./text"\n')
    (target / "global").write_text(f"[init]\ntemplateDir = {target}/template\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(target / "global"))

    found = flagged(target, "tools/text", "template/hooks/post-checkout", "src/text")

    assert list(found) == ["tools/text", "template/hooks/post-checkout"]


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("mypy.ini", "[mypy]\nplugins = tools/plugin.py\n", "tools/plugin.py"),
        (".yarnrc.yml", "yarnPath: tools/yarn.cjs\n", "tools/yarn.cjs"),
        (".npmrc", "node-options=--require ./tools/r.js\n", "tools/r.js"),
        ("eslint.config.js", "module.exports = [require('./lint/mine')]\n", "lint/mine.js"),
        ("Cargo.toml", '[package]\nbuild = "b/x.rs"\n', "b/x.rs"),
    ],
)
def test_what_settings_of_a_tool_load_is_pointed_out(
    target: Path, file: str, text: str, named: str
) -> None:
    (target / file).write_text(text)

    folder, _, name = named.rpartition("/")
    found = in_a_sandbox(target, f"mkdir {folder}; touch {named} {folder}/other.txt")

    assert found == {f"{folder}/{name}": (WHEN_USED, f"{file} on this host names it")}


def test_files_that_are_open_in_an_editor_do_not_run(target: Path) -> None:
    (target / ".idea").mkdir()
    (target / ".idea/workspace.xml").write_text(
        '<leaf file="file://$PROJECT_DIR$/src/app.py"/>\n<option name="path" value="src/b.py"/>'
    )

    assert flagged(target, "src/app.py", "src/b.py") == {}


PACKAGE = """{"scripts": {"prebuild": "node ci/pre.js", "build": "npm run -s inner && ./bin/go",
  "inner": "cd w && node in.js", "other": "node ci/other.js", "postinstall": "node ci/post.js"}}"""


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".vscode/tasks.json", '{"tasks": [{"type": "npm", "script": "build"}]}'),
        (".vscode/tasks.json", '{"tasks": [{"command": "npm", "args": ["run", "build"]}]}'),
        (".envrc", "npm run build\n"),
    ],
)
def test_scripts_of_a_package_that_run_by_themselves_are_looked_into(
    target: Path, file: str, text: str
) -> None:
    (target / file).parent.mkdir(parents=True, exist_ok=True)
    (target / file).write_text(text)
    (target / "package.json").write_text(PACKAGE)

    found = flagged(target, "ci/pre.js", "bin/go", "w/in.js", "ci/other.js", "ci/post.js")

    assert list(found) == ["ci/pre.js", "bin/go", "w/in.js"]


def test_a_package_runs_by_itself_only_for_the_sake_of_the_scripts_that_do(target: Path) -> None:
    (target / ".vscode").mkdir()
    (target / ".vscode/tasks.json").write_text('{"tasks": [{"type": "npm", "script": "build"}]}')
    (target / "package.json").write_text(PACKAGE)

    other = in_a_sandbox(target, "sed -i s,ci/other,ci/another, package.json")
    inner = in_a_sandbox(target, "sed -i s,in.js,evil.js, package.json")

    assert other["package.json"][0] is WHEN_USED
    assert inner["package.json"] == (
        BY_ITSELF,
        "tasks.json on this host runs a script of it that changed",
    )


def test_what_installing_and_a_build_server_run_is_pointed_out(target: Path) -> None:
    (target / ".github/workflows").mkdir(parents=True)
    (target / ".github/workflows/ci.yml").write_text(
        "jobs:\n  x:\n    steps:\n    - run: |\n        set -e\n        python3 ci/check.py\n"
        "    - run: ./go\n      working-directory: w\n"
    )
    (target / "package.json").write_text(PACKAGE)

    found = in_a_sandbox(
        target,
        "mkdir ci w; touch ci/check.py ci/post.js ci/other.js w/go",
    )

    assert found == {
        "ci/check.py": (WHEN_USED, "ci.yml on this host names it"),
        "ci/post.js": (WHEN_USED, "package.json on this host names it"),
        "w/go": (WHEN_USED, "ci.yml on this host names it"),
    }


def test_references_are_followed_a_few_steps_far(target: Path) -> None:
    (target / ".envrc").write_text(". a.sh\n")
    (target / "a.sh").write_text("echo b.sh is next\nsource b.sh\n")
    (target / "b.sh").write_text("python3 -m x\npython3 tools/c.py\n")
    (target / "tools").mkdir()
    (target / "tools" / "c.py").write_text("import tools.d\nprint('notes.txt')\n")

    found = flagged(target, "a.sh", "b.sh", "tools/c.py", "notes.txt", "next", "tools/d.py")

    assert list(found) == ["a.sh", "b.sh", "tools/c.py"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".pre-commit-config.yaml", "repos:\n- hooks:\n  - id: x\n    entry: tools/check.sh --a\n"),
        ("lefthook.toml", "[pre-commit.commands.x]\nrun = 'tools/check.sh {files}'\n"),
    ],
)
def test_what_a_list_of_checks_names_runs_once_git_has_hooks(
    target: Path, file: str, text: str
) -> None:
    (target / ".git" / "hooks").mkdir(parents=True)
    (target / file).write_text(text)
    assert flagged(target, "tools/check.sh") == {}

    (target / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\nexec checks\n")
    assert list(flagged(target, "tools/check.sh", "tools/other.sh")) == ["tools/check.sh"]


def test_a_hostile_repository_cannot_make_the_look_long(target: Path) -> None:
    (target / ".envrc").write_text("source " * 200_000 + ". " + "a." * 100_000)
    (target / ".vscode").mkdir()
    for number in range(MAX_FILES + 50):
        (target / ".vscode" / f"{number}.json").write_text(
            '{"command": [' * 4000 + "x.y-" * 4000 + "".join(f' "c/{n}",' for n in range(100))
        )
    (target / ".envrc.d").symlink_to(".")
    (target / ".vimrc").symlink_to("/dev/zero")

    found = list(named_by_what_runs([str(target)], str(target), has_hooks=True))

    assert len(found) <= MAX_NAMED + 1000
    assert all(isinstance(pointer, Pointer) for pointer in found)


# Tools that no list knows


def test_unknown_settings_that_name_a_command_are_pointed_out(target: Path) -> None:
    found = in_a_sandbox(
        target,
        "echo 'on_save = \"x\"' > .newtool",
        "printf '[hooks]\nafter = \"curl x | sh\"\n' > newtool.toml",
        'mkdir .newer && echo \'{"command": "x"}\' > .newer/settings.json',
        "mkdir -p sub && echo 'run: x' > sub/.another.yml && echo 'colour: red' > .plain.yml",
        "echo '{\"run\": 1}' > sub/data.json && echo 'note: README' > notes.yml",
    )

    reason = "it is in a place of settings and names a command to run"
    assert found == {
        path: (WHEN_USED, reason)
        for path in (".newer/settings.json", "newtool.toml", "sub/.another.yml")
    }


# History


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", folder, *words],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout.strip()  # fmt: skip


@pytest.fixture
def repository(target: Path) -> Path:
    git(target, "init", "-q")
    (target / "f").write_text("one\n")
    git(target, "add", "f")
    git(target, "commit", "-qm", "one")
    return target


def test_a_stored_object_that_was_changed_falsifies_the_history(repository: Path) -> None:
    id = git(repository, "rev-parse", "HEAD:f")
    place = f".git/objects/{id[:2]}/{id[2:]}"
    forged = f"import zlib;open('{place}','wb').write(zlib.compress(b'blob 4\\0two\\n'))"

    found = in_a_sandbox(repository, f'chmod u+w {place} && python3 -c "{forged}"')

    assert found[place] == (BY_ITSELF, FALSIFIED)


def test_a_pack_that_was_changed_falsifies_the_history(repository: Path) -> None:
    git(repository, "gc", "-q")
    (pack,) = (repository / ".git/objects/pack").glob("*.pack")

    found = in_a_sandbox(
        repository, f"cd .git/objects/pack && chmod u+w *.pack && echo x >> {pack.name}"
    )

    assert found[f".git/objects/pack/{pack.name}"] == (BY_ITSELF, FALSIFIED)


def test_what_git_itself_does_to_its_store_is_ordinary(repository: Path) -> None:
    commit = "git -c user.name=x -c user.email=x@x commit -q"
    found = in_a_sandbox(
        repository,
        f"echo two > f && {commit} -am two && git gc -q && echo three > f && {commit} -am three",
        f"git checkout -qb b && {commit} --amend -m four && git repack -adq && git prune",
        "git tag v1 && git stash list && git commit-graph write && git multi-pack-index write",
    )

    assert found == {}
