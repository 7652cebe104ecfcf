"""Runs of pytest within the tests: a small suite with this project's own frame around it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import confined

TESTS = Path(__file__).parent
FRAME = ("conftest.py", "confined.py", "seeds.py")


def suite(
    folder: Path, test: str, *options: str, before: str = "", afresh: bool = False, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run one test file in a folder of its own, perhaps with some code before.

    It is within what confines us, or confines itself ``afresh``; ``more`` is for its environment.
    It is not measured: within walls of its own it could not write to this checkout.
    """
    for name in FRAME:
        shutil.copy(TESTS / name, folder / name)
    (folder / "test_some.py").write_text(test)
    code = f"{before}\nimport sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    without = {"CI", "PODBOT_CI", "PODBOT_SEED", *([confined.WITHIN] if afresh else [])}
    usual = {
        name: text
        for name, text in os.environ.items()
        if name not in without and not name.startswith("COVERAGE_")
    }
    return subprocess.run(
        [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", *options], cwd=folder,
        env=usual | more, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
