"""What is flagged by a rule and not by a list: references, unknown settings, falsified history."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from podbot.changes.capture import capture
from podbot.changes.model import Change, ChangeKind, ChangeSet, FileType, State
from podbot.changes.risk import flags
from podbot.changes.risk_git import FALSIFIED
from podbot.changes.risk_reading import Pointer
from podbot.changes.risk_references import MAX_FILES, MAX_NAMED, named_by_what_runs
from podbot.changes.risk_rules import Level
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
    ],
)  # fmt: skip
def test_what_a_file_names_that_runs_by_itself_is_flagged(
    target: Path, file: str, text: str, named: str, unnamed: str
) -> None:
    (target / file).parent.mkdir(exist_ok=True)
    (target / file).write_text(text)

    found = flagged(target, *named.split(), *unnamed.split(), "conf/brought.txt")

    assert list(found) == named.split()
    assert set(found.values()) == {f"{Path(file).name} on this host runs by itself and names it"}


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
