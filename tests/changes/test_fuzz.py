"""A bounded share of what `make fuzz` does, with new cases for every seed of the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import seeds

FUZZ = Path(__file__).parent / "fuzz.py"
RUNS = Path(__file__).parent / "fuzz_runs.py"


def agrees(node: str, cases: int, *options: str) -> None:
    """Run so many cases; what does not agree is told with the seed it can be repeated with.

    Patches are left to `make fuzz`: about one in a hundred such trees is more than `git apply`
    takes, and not yet told. So is, where nobody is root, what becomes of things that are closed
    even to their owner: names of one file in closed folders cannot be brought together again.
    """
    options = (*options, "--no-patch")
    if os.geteuid() != 0:
        options = (*options, "--open")
    play(FUZZ, node, cases, *options)


def play(program: Path, node: str, cases: int, *options: str) -> None:
    """Run so many cases of a program, with new ones for every seed of the run."""
    seed = str(seeds.number(node))
    done = subprocess.run(
        [sys.executable, program, "--cases", str(cases), "--seed", seed, *options],
        capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"fuzz: {cases} cases" in done.stdout


def test_random_work_is_applied_and_undone_bit_for_bit(request: pytest.FixtureRequest) -> None:
    agrees(request.node.nodeid, 10)


def test_the_same_on_two_file_systems(request: pytest.FixtureRequest) -> None:
    agrees(request.node.nodeid, 10, "--far")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--far",)], ids=["one", "two"])
def test_more_random_work(request: pytest.FixtureRequest, options: tuple[str, ...]) -> None:
    agrees(request.node.nodeid, 60, *options)


@pytest.mark.parametrize("options", [(), ("--far",)], ids=["one", "two"])
def test_runs_over_one_folder_are_applied_and_undone_in_any_order(
    request: pytest.FixtureRequest, options: tuple[str, ...]
) -> None:
    play(RUNS, request.node.nodeid, 6, *options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--far",)], ids=["one", "two"])
def test_many_runs_over_one_folder(
    request: pytest.FixtureRequest, options: tuple[str, ...]
) -> None:
    play(RUNS, request.node.nodeid, 60, *options)
