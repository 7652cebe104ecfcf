"""A share of what `make kills` does: other system calls with every change, the same by its seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

KILLS = Path(__file__).parents[1] / "kills.py"


def kills(*options: str) -> None:
    done = subprocess.run(
        [sys.executable, str(KILLS), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_kill_at_a_system_call_leaves_the_target_as_before_or_as_it_was_to_be() -> None:
    kills("--share", "2", "--disks", "one")


@pytest.mark.slow
@pytest.mark.parametrize("disks", ["one", "two"])
@pytest.mark.parametrize("verb", ["apply", "undo", "save", "load"])
def test_so_do_kills_at_more_calls_and_of_any_kind(verb: str, disks: str) -> None:
    kills("--share", "8", "--any", "4", "--disks", disks, "--verb", verb)
