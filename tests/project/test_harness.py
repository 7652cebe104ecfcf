"""The frame of the tests: what `make test` leaves out, and what it promises to the machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from suites import suite

TESTS = Path(__file__).parents[1]
MOST = 0.9

COUNT = """
import sys
import pytest

class Count:
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        usual = [item for item in items if not item.get_closest_marker("e2e")]
        slow = [item for item in usual if item.get_closest_marker("slow")]
        print("counted", len(usual), len(slow))

sys.exit(pytest.main(["-q", "--collect-only", "-p", "no:xdist", *sys.argv[1:]], [Count()]))
"""


@pytest.mark.slow  # it collects all tests once more
def test_nine_tests_of_ten_stay_in_make_test() -> None:
    command = [sys.executable, "-c", COUNT, "--ignore", TESTS / "e2e", TESTS]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    _, usual, slow = next(
        line for line in done.stdout.splitlines() if line.startswith("counted ")
    ).split()
    assert int(usual) - int(slow) >= MOST * int(usual) > 0


def test_make_test_leaves_out_what_is_slow_and_nothing_else_does() -> None:
    makefile = (TESTS.parent / "Makefile").read_text()
    ci = (TESTS.parent / ".ci" / "run").read_text()

    assert "\nMOST := not e2e and not slow\nALL := not e2e\n" in makefile
    assert "make_as_user test-all" in ci and "step make check" in ci


# The seed


DRAWING = """
import random
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

drawn = {}

@settings(max_examples=30)
@given(st.lists(st.text()), st.integers())
def test_one(words, number):
    drawn.setdefault("one", []).append((words, number))

@pytest.mark.parametrize("kind", ["a", "b"])
def test_two(kind, chance):
    @settings(max_examples=5)
    @given(st.integers())
    def inner(number): ...
    drawn[kind] = chance.random()

@settings(max_examples=30)
@given(st.lists(st.text()), st.integers())
def test_three(words, number):
    drawn.setdefault("three", []).append((words, number))

def test_told():
    import hashlib
    for name in sorted(drawn):
        print(name, hashlib.sha256(repr(drawn[name]).encode("utf-8", "replace")).hexdigest())
    assert drawn.get("one") != drawn.get("three")
"""


def drawn(folder: Path, *options: str, before: str = "", **environment: str) -> dict[str, str]:
    """A mark of what each test drew."""
    done = suite(folder, DRAWING, "-s", *options, before=before, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.lstrip(".").split(" ") for line in done.stdout.splitlines()]
    return {words[0]: words[1] for words in lines if words[0] in ("one", "three", "a", "b")}


def test_the_same_seed_gives_the_same_examples_and_another_seed_others(tmp_path: Path) -> None:
    first = drawn(tmp_path, PODBOT_SEED="1")

    assert len(set(first.values())) == 4
    assert drawn(tmp_path, PODBOT_SEED="1") == first
    others = drawn(tmp_path, PODBOT_SEED="2")
    assert all(others[name] != first[name] for name in first)


@pytest.mark.slow  # runs of pytest, one after another
def test_neither_the_order_nor_ci_changes_what_is_drawn(tmp_path: Path) -> None:
    first = drawn(tmp_path, PODBOT_SEED="1")
    names = [f"test_some.py::test_{name}" for name in ("three", "told")]

    assert drawn(tmp_path, PODBOT_SEED="1", CI="true") == first
    assert drawn(tmp_path, *names, PODBOT_SEED="1", CI="1") == {"three": first["three"]}
    loaded = "import podbot.changes.applying.apply, podbot.sandbox.guest.main"
    assert drawn(tmp_path, before=loaded, PODBOT_SEED="1") == first


def test_a_run_says_its_seed_and_how_to_repeat_what_failed(tmp_path: Path) -> None:
    done = suite(tmp_path, "def test_it(): assert 0", PODBOT_SEED="77")

    assert done.returncode == 1
    assert done.stdout.startswith("seed: 77\n")
    assert "PODBOT_SEED=77 make test" in done.stdout


def test_the_seed_is_the_commit_where_there_is_one(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.invalid"]
    loose = suite(tmp_path, "def test_it(): pass").stdout.splitlines()[0]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)

    told = suite(tmp_path, "def test_it(): pass").stdout.splitlines()[0]

    assert told == f"seed: {head.stdout[:16]}" != loose
    assert suite(tmp_path, "def test_it(): pass").stdout.splitlines()[0] == told


# Signals


SIGNALS = """
import signal

def test_they_are_as_at_a_terminal():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        assert signal.getsignal(number) is signal.SIG_DFL
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""
SPOILT = """
import signal
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD})
"""


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_started_with_signals_ignored_or_blocked_tests_have_the_usual_ones(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = suite(tmp_path, SIGNALS, *options, before=SPOILT)

    assert done.returncode == 0, done.stdout


# Soaking


MAKE = """#!/bin/sh
echo "$PODBOT_SEED" >>seeds
echo "12 passed in 1.00s"
test "$(wc -l <seeds)" -lt 3 || { echo "FAILED test_of_chance"; exit 1; }
"""


def at_work_in(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            if (process / "cwd").resolve(strict=True) == folder.resolve():
                found.append(process.name)
    return found


def test_soaking_ends_at_the_first_red_run_with_its_seed_and_without_its_load(
    tmp_path: Path,
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(TESTS.parent / ".ci" / "soak", tmp_path / ".ci" / "soak")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("make", MAKE), ("id", "#!/bin/sh\necho 1000\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    done = subprocess.run(
        [tmp_path / ".ci" / "soak", "9"], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
    )  # fmt: skip

    used = (tmp_path / "seeds").read_text().split()
    assert done.returncode == 1, done.stderr
    assert len(used) == len(set(used)) == 3
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"1 of 9: seed {used[0]}, quiet, as us: green after")
    assert lines[1].startswith(f"2 of 9: seed {used[1]}, loaded, as us: green after")
    assert "FAILED test_of_chance" in lines
    assert lines[-1] == f"again, as us, quiet: PODBOT_SEED={used[2]} make test"
    assert not at_work_in(tmp_path)


def test_every_silenced_warning_says_why() -> None:
    silent = re.compile(r"# (noqa\b(?!: [A-Z0-9, ]+ - \S)|type: ignore\b(?!\[[a-z, -]+\] +# ?\S))")
    found = []
    for path in sorted(TESTS.parent.rglob("*.py")):
        place = path.relative_to(TESTS.parent)
        if place.parts[0].startswith("."):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            # The tests hand wrong types on purpose, where what follows says what becomes of them.
            if place.parts[0] == "tests" and "type: ignore[" in line:
                continue
            if silent.search(line):
                found.append(f"{place}:{number}")
    assert found == []
