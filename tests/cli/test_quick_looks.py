"""Looking at a small run starts without what it does not need, and says the same as ever."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import ran, workplace

from podbot.cli import main
from podbot.cli.changes import quick

HEAVY = {"argparse", "dataclasses", "inspect", "socket", "shutil", "subprocess", "hashlib", "csv"}
"""Modules that take long to load, and have no part in looking."""

LOADED = """
import sys
from podbot import cli
assert cli.main(["changes", *sys.argv[1:]]) == 0
print(*sys.modules, file=sys.stderr)
"""


@pytest.fixture
def project() -> Iterator[Path]:
    """A folder that a run named ``small`` has changed a little."""
    with workplace() as project:
        ran(project, "echo new > src/new.py; echo more >> numbers", name="small")
        yield project


@pytest.mark.parametrize("words", [["list"], ["show", "small"], ["diff", "small"]])
def test_looking_loads_nothing_heavy(words: list[str], project: Path) -> None:
    program = f"import sys; sys.path[:] = {sys.path!r}\n{LOADED}"
    argv = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run([*argv, *words], capture_output=True, text=True, check=True)
    assert done.stdout
    assert not HEAVY & set(done.stderr.split())


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["list", "--all"],
        ["list", "--json"],
        ["show"],
        ["show", "small"],
        ["diff"],
        ["show", "--all", "small", "--json"],
        ["diff", "small"],
        ["diff", "small", "src", "--json"],
        ["diff", "--patch", "small", "numbers"],
        ["show", "nobody"],
        ["diff", "small", "nothing", "--json"],
    ],
)
def test_plain_words_mean_what_argparse_takes_them_for(
    words: list[str],
    project: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # runs grow older meanwhile
    code = quick(words)
    quickly = capfd.readouterr()
    monkeypatch.setattr("podbot.cli.changes.quick", lambda words: None)
    assert main(["changes", *words]) == code
    assert capfd.readouterr() == quickly


@pytest.mark.parametrize(
    "words",
    [
        ["show", "one", "two"],
        ["list", "one"],
        ["diff", "--help"],
        ["diff", "small", "--", "--odd"],
        ["diff", "small", "--no-such-option"],
        ["list", "--patch"],
        ["apply", "small"],
        ["nothing"],
    ],
)
def test_what_is_not_plain_is_left_to_argparse(words: list[str]) -> None:
    assert quick(words) is None
