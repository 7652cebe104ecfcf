"""A review that can be read: folders of packages and builds are a line, what runs is last."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import Terminal, ran, workplace

from podbot import review
from podbot.changes._ignored import Ignored
from podbot.cli import care, main, summaries, wording
from podbot.cli.review import finish
from podbot.cli.wording import Display

Captured = pytest.CaptureFixture[str]

VENV = """
mkdir -p .venv/bin .venv/lib/python3.11/site-packages/pkg
echo 'home = /usr/bin' > .venv/pyvenv.cfg
for name in pip pip3 python python3 sh tool; do
    printf '#!/bin/sh\\n' > .venv/bin/$name; chmod +x .venv/bin/$name
done
for n in $(seq 300); do echo "x = $n" > .venv/lib/python3.11/site-packages/pkg/m$n.py; done
"""
HOOK = "mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit"
MANY = "for n in 1 2 3 4 5 6; do echo $n > {}/file$n.txt; done"
TAG = "Signature: 8a477f597d28d172789f06886806bc55"
FINISH = "import sys; from podbot.cli.review import finish; sys.exit(finish(sys.argv[1], 'ask'))"


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def told(capsys: Captured, *words: str) -> list[str]:
    capsys.readouterr()
    assert main(["changes", *words]) == 0
    return capsys.readouterr().out.splitlines()


def many_in(folder: str) -> str:
    return f"\nmkdir -p {folder}\n" + MANY.format(folder)


def test_a_hook_beside_a_new_environment_is_the_last_line_of_a_short_summary(
    project: Path, capsys: Captured
) -> None:
    id = ran(project, VENV + HOOK)
    assert finish(id, "keep") == 0

    lines = capsys.readouterr().err.splitlines()
    end = next(number for number, line in enumerate(lines) if line.startswith("kept as "))
    assert lines[end - 1] == "  .git/hooks/pre-commit: git runs it at the next commit"
    assert len(lines) < 15
    fold = next(line for line in lines if " in .venv/, " in line)
    assert fold.startswith("  313 changes in .venv/, ")
    assert fold.endswith(": a Python environment: pyvenv.cfg")


def test_the_commands_of_an_environment_are_one_line_that_names_those_of_this_host(
    project: Path, capsys: Captured
) -> None:
    id = ran(project, VENV)

    shown = told(capsys, "show", id)

    (line,) = [line for line in shown if line.startswith("  .venv/bin/: 6 commands, ")]
    assert " sh" in line.partition("this host has")[2]
    assert "  .venv/pyvenv.cfg: Python runs it at every start" in shown
    assert not any("m17.py" in line for line in shown)


def test_all_lists_everything_and_data_always_does(project: Path, capsys: Captured) -> None:
    id = ran(project, VENV + HOOK)

    every = told(capsys, "show", "--all", id)
    assert any(line.endswith("site-packages/pkg/m17.py  ! runs when used") for line in every)
    assert "  .venv/bin/tool: it is in a folder of commands: it can take the place of another" in (
        every
    )
    found = json.loads("\n".join(told(capsys, "show", "--json", id)))
    assert len(found["changes"]) == found["changes_count"] > 300
    diffs = json.loads("\n".join(told(capsys, "diff", "--json", id)))
    assert len(diffs["files"]) == found["changes_count"]


def test_a_diff_folds_what_is_not_named(project: Path, capsys: Captured) -> None:
    id = ran(project, VENV + HOOK + "; echo new > src/app.py")

    folded = told(capsys, "diff", id)
    assert "+new" in folded and "+evil" in folded and "+home = /usr/bin" in folded
    assert not any("m17.py" in line for line in folded)
    assert folded[-1].endswith("pyvenv.cfg; --all shows them")
    for words in (["--all"], [".venv"], [str(project / ".venv/lib")], [".venv/lib/**/m17.py"]):
        assert any("m17.py" in line for line in told(capsys, "diff", id, *words)), words


@pytest.mark.parametrize(
    "plant",
    [
        "mkdir -p .venv/lib/x/.git/hooks && echo evil > .venv/lib/x/.git/hooks/post-merge",
        "echo evil > .venv/lib/.envrc",
        "mkdir -p .venv/lib/.vscode && echo {} > .venv/lib/.vscode/tasks.json",
        "echo evil > .venv/lib/x.pth",
        "echo evil > .venv/lib/root && chmod 4755 .venv/lib/root",
        "ln -s /etc/passwd .venv/lib/out",
    ],
)
def test_what_runs_by_itself_inside_a_fold_is_named(
    project: Path, capsys: Captured, plant: str
) -> None:
    id = ran(project, VENV + plant)
    path = plant.rsplit(maxsplit=1)[-1]

    shown = told(capsys, "show", id)

    assert any(f"  {path}" in line and "! runs by itself" in line for line in shown)
    assert any(line.startswith(f"  {path}: ") for line in shown)


def test_a_conflict_inside_a_fold_is_named(project: Path, capsys: Captured) -> None:
    (project / "node_modules").mkdir()
    (project / "node_modules" / ".package-lock.json").write_text("{}")
    (project / "node_modules" / "mine.js").write_text("old")
    id = ran(project, many_in("node_modules/a") + "; echo theirs > node_modules/mine.js")
    (project / "node_modules" / "mine.js").write_text("the host's own")

    shown = told(capsys, "show", id)

    assert any(" in node_modules/, " in line for line in shown)
    assert any("node_modules/mine.js" in line and "! conflict" in line for line in shown)


@pytest.mark.parametrize(
    ("script", "folder", "why"),
    [
        (many_in("node_modules/a") + "; echo {} > node_modules/a/package.json", "node_modules",
         "packages of Node.js: node_modules"),
        (many_in("x/node_modules/@s/a") + "; echo {} > x/node_modules/@s/a/package.json",
         "x/node_modules", "packages of Node.js: node_modules"),
        (many_in("target/debug") + f"; echo '{TAG}' > target/CACHEDIR.TAG", "target",
         "a cache or a build: CACHEDIR.TAG"),
        (many_in(".cache") + "; echo '*' > .cache/.gitignore", ".cache", "git ignores it"),
        (many_in("src/out/deep"), "src/out", "git ignores it"),
        ("mkdir -p a/__pycache__ b/__pycache__; for n in 1 2 3; do "
         "echo > a/__pycache__/$n.pyc; echo > b/__pycache__/$n.pyc; done",
         "**/__pycache__", "compiled Python"),
        ("mkdir -p deps/pkg deps/pkg-1.dist-info; for n in 1 2 3 4; do echo > deps/pkg/$n.py; "
         "echo pkg/$n.py,, >> deps/pkg-1.dist-info/RECORD; done", "deps",
         "Python packages: RECORD"),
        ("git -c init.defaultBranch=m init -q other; cd other; git -c user.name=a "
         "-c user.email=a@b commit -q --allow-empty -m 1; git -c user.name=a -c user.email=a@b "
         "commit -q --allow-empty -m 2; git -c user.name=a -c user.email=a@b commit -q "
         "--allow-empty -m 3", "other/.git/objects", "what git stores"),
    ],
)  # fmt: skip
def test_folders_are_known_by_what_lies_in_them(
    project: Path, capsys: Captured, script: str, folder: str, why: str
) -> None:
    (project / ".git").mkdir()
    (project / "src" / ".gitignore").write_text("out/\n")
    id = ran(project, script)

    shown = told(capsys, "show", id)

    assert any(f" in {folder}/, " in line and line.endswith(f": {why}") for line in shown), shown


@pytest.mark.parametrize(
    "script",
    [
        many_in("src") + "; echo home > src/pyvenv.cfg",
        many_in(".") + "; echo home > pyvenv.cfg",
        many_in("src") + f"; echo '{TAG}' > src/CACHEDIR.TAG",
        many_in("src/new") + "; echo 'Signature: wrong' > src/new/CACHEDIR.TAG",
        many_in("src/new") + "; echo new/ > src/.gitignore; echo new > .gitignore",
        many_in("src/new") + "; ln -s /etc/hostname src/new/pyvenv.cfg",
        many_in("node_modules"),
        many_in("src/__pycache__"),
        many_in("src") + "; mkdir x.dist-info; find src -type f > x.dist-info/RECORD",
        many_in("new") + "; mkdir x.dist-info; find new -type f > x.dist-info/RECORD",
        many_in("src/new") + "; mkdir src/x.dist-info; cd src; find new > x.dist-info/RECORD",
        many_in(".github/workflows") + f"; echo '{TAG}' > .github/CACHEDIR.TAG",
    ],
)
def test_a_forged_marker_hides_no_source(project: Path, capsys: Captured, script: str) -> None:
    (project / ".git").mkdir()
    id = ran(project, script)

    shown = told(capsys, "show", id)

    assert sum(f"file{number}.txt" in line for line in shown for number in range(1, 7)) >= 6


@pytest.mark.parametrize("word", ["**/*.py", "*", "web", "."])
def test_a_diff_folds_what_was_chosen_by_a_glob_as_a_show_does(
    project: Path, capsys: Captured, word: str
) -> None:
    packages = "mkdir -p web/env/lib web/node_modules/a; echo 'home = /usr' > web/env/pyvenv.cfg; "
    packages += "echo {} > web/node_modules/a/package.json; "
    packages += "for n in 1 2 3 4 5; do echo $n > web/env/lib/$n.py; "
    packages += "echo $n > web/node_modules/a/$n.py; done; echo 1 > web/mine.py"
    id = ran(project, packages)

    shown = told(capsys, "diff", id, word)

    assert "+++ b/web/mine.py" in shown
    assert not any(line.startswith("+++ b/web/env/lib/") for line in shown)
    assert not any(line.startswith("+++ b/web/node_modules/") for line in shown)
    assert sum("; --all shows them" in line for line in shown) == 2
    every = told(capsys, "diff", id, word, "--all")
    assert "+++ b/web/env/lib/1.py" in every and "+++ b/web/node_modules/a/1.py" in every


def test_a_licence_or_a_readme_of_a_package_is_no_flag(project: Path, capsys: Captured) -> None:
    files = "LICENSE LICENSE.txt README.md COPYING CHANGELOG.rst LICENSE-MIT readme.js"
    id = ran(project, f"mkdir -p node_modules/a; cd node_modules/a; echo x | tee {files}")

    found = json.loads("\n".join(told(capsys, "show", "--json", id)))

    flagged = {change["path"] for change in found["changes"] if change["flags"]}
    assert flagged == {"node_modules/a/readme.js"}


def test_the_menu_shows_what_runs_by_itself_again_after_a_review(project: Path) -> None:
    id = ran(project, VENV + HOOK)
    env = {"TERM": "xterm", "NO_COLOR": "1", "PODBOT_PAGER": "cat"}
    terminal = Terminal([sys.executable, "-c", FINISH, id], env)
    last = ".git/hooks/pre-commit: git runs it at the next commit\r\n[r]eview [a]pply"
    for key in ("r\r", "\r"):
        terminal.until(last)
        terminal.send(key)
    assert terminal.end() == 0


def test_many_things_that_run_fit_on_the_screen_with_the_menu(
    project: Path, capsys: Captured
) -> None:
    name = "x" * 60
    script = f"for n in $(seq 50); do mkdir -p {name}$n; echo x > {name}$n/.envrc; done; " + HOOK
    id = ran(project, script)

    found = review.open(id).summary
    lines = care.by_itself(found, Display(width=80), most=summaries.MOST_LISTED)

    assert len(lines) <= 21
    assert all(wording.cells(line) <= 80 for line in lines)
    assert lines[1].startswith("  … and ")
    assert sum(".envrc" in line for line in lines) < 50


TREE = """
mkdir -p lib/deep/er lib/empty; for n in $(seq 1100); do echo "body $n" > lib/deep/f$n.c; done
for n in $(seq 100); do echo "own $n" > lib/deep/er/g$n.c; done
for n in 1 2 3; do : > lib/deep/none$n; done; ln -s deep lib/link; chmod 755 lib/deep/f7.c
"""


def test_a_moved_folder_is_one_line_that_says_from_where_to_where(
    project: Path, capsys: Captured
) -> None:
    subprocess.run(["sh", "-ec", TREE], cwd=project, check=True)
    id = ran(project, "mkdir new; mv lib new/core; echo new > other.txt")

    lines = told(capsys, "show")

    listed = lines[lines.index("") + 3 :]
    assert [line.strip().rpartition("  ")[2] for line in listed] == [
        "new/",
        "other.txt",
        "lib/ → new/core/ (1,204 files, 10.3 KiB)",
    ]
    assert len(told(capsys, "show", "--all")) > 1200
    assert any("lib/ → new/core/" in line for line in told(capsys, "diff", id))
    assert len(told(capsys, "diff", id, "lib")) > 1200


def test_what_is_not_as_it_was_in_a_moved_folder_is_told_by_itself(
    project: Path, capsys: Captured
) -> None:
    subprocess.run(["sh", "-ec", TREE], cwd=project, check=True)
    subprocess.run(
        ["sh", "-ec", "seq 40 > lib/deep/text; echo x > lib/deep/bye"], cwd=project, check=True
    )
    ran(
        project,
        "mv lib new; echo more >> new/deep/text; echo planted > new/deep/new; rm new/deep/bye; "
        # The same size and time, other bytes
        "touch -r new/deep/f1.c t; echo BODY 1 > new/deep/f1.c; touch -r t new/deep/f1.c; rm t; "
        "chmod 4755 new/deep/f7.c; mv new/deep/f8.c new/deep/f8.h; rm new/link; ln -s er new/link",
    )

    lines = "\n".join(told(capsys, "show"))

    assert "lib/ → new/ (1,200 files, " in lines
    for name in ("deep/text", "deep/new", "deep/bye", "deep/f1.c", "deep/f7.c", "f8.h", "/link"):
        assert name in lines


def test_a_moved_folder_hides_nothing_that_runs_by_itself(project: Path, capsys: Captured) -> None:
    subprocess.run(["sh", "-ec", TREE], cwd=project, check=True)
    ran(project, "mkdir .vscode; mv lib .vscode/lib")

    assert len([line for line in told(capsys, "show") if ".vscode/lib/deep/f" in line]) > 1000


def test_ignore_files_are_read_as_git_reads_them(tmp_path: Path) -> None:
    folders = [
        "build", "src/build", "a/b/c", "a/x/y/c", "docs/out", "keep", "log1", "log2", "deep/log1",
        "one/two", "one/three", "x.egg-info", "q/x.egg-info", "sp ace", "lib/a/tmp", "lib/tmp",
    ]  # fmt: skip
    rules = "# comment\n\nbuild/\n/a/**/c\ndocs/out/\nlog[12]\n!/log2\none/*\n!one/three\n" + (
        "*.egg-info\n!keep\nsp\\ ace\nlib/**/tmp\n"
    )
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text(rules)
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / ".gitignore").write_text("!x.egg-info\n")
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    asked = "\n".join(f"{folder}/" for folder in folders)
    done = subprocess.run(
        ["git", "-C", str(tmp_path), "check-ignore", "--stdin"],
        input=asked, capture_output=True, text=True, check=False,
    )  # fmt: skip
    expected = {line.rstrip("/") for line in done.stdout.splitlines()}

    ignored = Ignored((str(tmp_path),))

    ours = {each for each in folders if ignored.is_ignored(str(tmp_path), f"{tmp_path}/{each}")}
    assert ours == expected
