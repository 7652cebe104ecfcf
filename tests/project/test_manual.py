"""The manual pages are made from what the help says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from podbot.cli import COMMANDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("manual")
    subprocess.run(
        [sys.executable, ROOT / "docs" / "make_manual.py", folder], check=True, timeout=120
    )
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_every_command_has_a_page_with_all_its_options(pages: dict[str, str]) -> None:
    assert sorted(pages) == sorted(["podbot.1", *(f"podbot-{name}.1" for name in COMMANDS)])
    for name in COMMANDS:
        said = subprocess.run(
            [sys.executable, "-m", "podbot", name, "--help"],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip
        plain = pages[f"podbot-{name}.1"].replace("\\-", "-")
        for option in re.findall(r"^  (?:-\w, )?(--[\w-]+)", said, re.MULTILINE):
            assert option in plain, (name, option)


def test_nothing_in_a_page_is_taken_for_an_order_to_the_formatter(pages: dict[str, str]) -> None:
    known = re.compile(r"\.(TH|SH|SS|TP|PP|B|nf|fi)\b|\.\\\"")
    for name, text in pages.items():
        for line in text.splitlines():
            assert not line.startswith("'"), (name, line)
            assert not line.startswith(".") or known.match(line), (name, line)
