"""The documentation is true: its code runs, what it names exists, its lists are the code's."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import pytest

from podbot.errors import Kind
from podbot.sandbox import DEFAULT_ENVIRONMENT, DEFAULT_HIDDEN, Limits
from podbot.sandbox.guest.requests import Guest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


@pytest.fixture
def workplace(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which the examples of a page run: it holds a small project."""
    with tempfile.TemporaryDirectory(prefix="podbot-test-", dir="/var/tmp") as folder:
        project = Path(folder, "project")
        project.mkdir()
        (project / "README.md").write_text("the old one\n")
        monkeypatch.chdir(folder)
        yield Path(folder)


def run_code_of(page: Path) -> None:
    """Run the code of a page from top to bottom, as one program."""
    text = page.read_text()
    namespace: dict[str, object] = {"__name__": "page"}
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(1))
        source = "\n" * line + match[1]  # so that a traceback names the page's own line
        # A page is a program of its own: this module's `annotations` are not imported into it.
        code = compile(source, str(page), "exec", dont_inherit=True)
        exec(code, namespace)  # noqa: S102 - our own page


def test_the_changelog_says_nothing_twice() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    entries = re.findall(r"^- (.*?)(?=^\S|\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    beginnings = [" ".join(entry.split())[:60] for entry in entries]

    assert len(beginnings) > 50
    assert sorted(set(beginnings)) == sorted(beginnings)


def test_the_first_step_of_the_first_change_works_in_any_folder(workplace: Path) -> None:
    step = (ROOT / "CONTRIBUTING.md").read_text().partition("\n1. ")[2].partition("\n2. ")[0]
    _, *commands = re.findall(r"`((?:export|make|\.venv/|podbot )[^`]*)`", step)
    checkout, elsewhere = workplace / "checkout", workplace / "elsewhere"
    (checkout / ".venv" / "bin").mkdir(parents=True)
    elsewhere.mkdir()
    program = checkout / ".venv" / "bin" / "podbot"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m podbot "$@"\n')
    program.chmod(0o755)
    script = "\n".join(["set -e", commands[0], f"cd {elsewhere}", *commands[1:]])

    done = subprocess.run(
        ["sh", "-c", script],
        cwd=checkout,
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )

    assert done.returncode == 0, done.stderr
    assert "1 added" in done.stderr and done.stdout.startswith("discarded ")


FOR_INSTANCE = {"src/app.py", "shutil.py"}
"""Files of others that a comment takes for an example."""


def test_a_module_that_is_named_is_there() -> None:
    """On the pages for whoever works on podbot, and in what its modules say of each other."""
    tree = [
        f"/{path.relative_to(ROOT)}" for path in ROOT.rglob("*.py") if ".venv" not in path.parts
    ]
    pages = [ROOT / "docs" / f"{name}.md" for name in ("architecture", "where-to-change", "engine")]
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in (*pages, ROOT / "CONTRIBUTING.md", *(ROOT / "src").rglob("*.py"))
        for name in re.findall(r"`([\w/]+\.py)`", page.read_text())
        if name not in FOR_INSTANCE and not any(path.endswith(f"/{name}") for path in tree)
    ]

    assert missing == []


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, workplace: Path) -> None:
    run_code_of(page)

    assert [path.name for path in workplace.iterdir()] == ["project"]


@pytest.mark.parametrize("name", ["changes", "sections", "tools"])
def test_a_page_says_what_its_code_needs_and_leaves_it_as_it_was(
    name: str, workplace: Path
) -> None:
    page, project = ROOT / "docs" / f"{name}.md", workplace / "project"
    shutil.rmtree(project)
    (needed,) = re.findall(r"^```sh\n(mkdir project .*?)^```$", page.read_text(), re.S | re.M)
    subprocess.run(["sh", "-ec", needed], check=True)

    run_code_of(page)

    left = [str(path.relative_to(project)) for path in project.rglob("*")]
    assert (left, (project / "README.md").read_text()) == (["README.md"], "the old one\n")


def test_the_readme_shows_what_it_says(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_code_of(PAGES[0])

    assert (workplace / "project" / "README.md").read_text() == "the old one\n"
    out = capsys.readouterr().out
    assert "42\n" in out and "modified README.md\ndiff --git" in out


def test_the_page_about_the_library_shows_what_it_says(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_code_of(ROOT / "docs" / "library.md")

    assert (workplace / "project" / "README.md").read_text() == "the old one\n"
    out = capsys.readouterr().out
    assert "modified README.md\ndiff --git" in out
    assert "added notes.txt\n" in out
    assert not (workplace / "project" / "notes.txt").exists()  # applied, and undone
    assert "still the old one: the old one" in out
    assert "1\nTrue\ncommand_not_found - check the name" in out
    assert "120\nb'one\\n" in out  # and perhaps the next line, if we were slow to look
    assert "['0', '1', '2', '3', '4']" in out
    assert "NO  network - the policy gives the host's network" in out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if path.startswith("https://"):
            continue
        target = page if not path else page.parent / path
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            slugs = {
                re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
            }
            assert anchor in slugs, link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_short_enough_to_read(page: Path) -> None:
    for number, line in enumerate(page.read_text().splitlines(), 1):
        excused = line.startswith(("|", "![")) or "::test_" in line
        assert excused or len(line) <= 102, f"{page.name}:{number}"


# guarantees.md


def promises() -> list[str]:
    text = (ROOT / "docs" / "guarantees.md").read_text().split("## Not guaranteed")[0]
    return re.findall(r"^- (.+?)(?=\n- |\n\n)", text, re.DOTALL | re.MULTILINE)


def test_there_are_promises() -> None:
    assert len(promises()) > 40


@pytest.mark.parametrize("promise", promises(), ids=lambda text: text.split("\n")[0][:60])
def test_each_promise_names_a_test_that_exists(promise: str) -> None:
    named = TEST.findall(promise)
    assert named, promise
    for file, test in named:
        assert test in names_in(file), f"{file}::{test}"


def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


# Lists that must be those of the code


def test_the_policy_page_lists_all_that_is_hidden_and_passed_on() -> None:
    text = (ROOT / "docs" / "policy.md").read_text()
    hidden = set(re.findall(r"`([~/][^`]*)`", text.split("## Hidden by default")[1])) - {"~"}
    passed = text.split("## The environment")[1].split("\n\n")[2]

    assert hidden == set(DEFAULT_HIDDEN)
    assert re.findall(r"`(\w+)`", passed) == list(DEFAULT_ENVIRONMENT)


def test_troubleshooting_explains_every_kind() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    explained = {word for row in rows for word in re.findall(r"`(\w+)`", row)}

    assert explained == {kind.value for kind in Kind}


def test_architecture_lists_every_request() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    block = text.split("Requests:\n\n")[1].split("\n\n")[0]

    assert sorted(block.split()) == sorted(Guest._OPERATIONS)


def test_the_page_of_limits_has_every_limit_with_its_default() -> None:
    section = (
        (ROOT / "docs" / "limits.md")
        .read_text()
        .split("## Limits and defaults")[1]
        .split("\n## ")[0]
    )
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section, re.MULTILINE))
    defaults = {field.name: field.default for field in fields(Limits)}

    assert rows.keys() == defaults.keys()
    for name, default in defaults.items():
        sizes = {None: "none", 1024: "1024", 1 << 20: "1 MiB", 4 << 20: "4 MiB"}
        assert rows[name] == sizes[default], name  # type: ignore[index]


def test_every_file_named_in_where_to_change_exists() -> None:
    text = (ROOT / "docs" / "where-to-change.md").read_text()
    for name in re.findall(r"`([\w/.-]+(?:\.py|\.md|/))`", text.split("|---|")[1]):
        assert any((base / name).exists() for base in (ROOT, ROOT / "src" / "podbot")), name


# The picture


def test_the_picture_shows_what_the_example_says_now() -> None:
    example = [sys.executable, str(ROOT / "examples" / "review_an_agent.py")]
    said = subprocess.run(example, capture_output=True, text=True, check=True).stdout
    picture = ElementTree.fromstring((ROOT / "docs" / "run.svg").read_text())  # noqa: S314 - ours
    drawn = ["".join(text.itertext()) for text in picture.iter("{http://www.w3.org/2000/svg}text")]

    def steady(lines: list[str]) -> list[str]:
        """Without what differs from run to run and host to host."""
        start, end = lines.index("What the sandbox enforced on this host"), lines.index("Promises")
        return [line for line in lines[:start] + lines[end:] if ".podbot-demo-" not in line]

    assert drawn[0] == "$ make run"
    assert steady(drawn[1:]) == steady(said.splitlines())


def test_the_renderer_draws_colours_at_their_columns_and_refuses_the_unknown() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "make_screenshot.py"))

    drawn = page["render"]("plain \x1b[32m<green>\x1b[0m\n")

    assert '<tspan x="64" textLength="56" fill="#8fd18a">&lt;green&gt;</tspan>' in drawn
    ElementTree.fromstring(drawn)  # noqa: S314 - ours
    with pytest.raises(KeyError):
        page["render"]("\x1b[35mmagenta")
    with pytest.raises(ValueError, match="no colour"):
        page["render"]("\x1b[2Jgone")
    with pytest.raises(ValueError, match="does not fit"):
        page["render"]("x" * 100)
