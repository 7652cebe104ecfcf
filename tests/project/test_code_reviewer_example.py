"""The code reviewer: the same prompt on every backend finds the same, and changes nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "code_reviewer_example.py"
FINDINGS = """\
Findings
  high  ledger.py:10  runs text from outside as code
  low   ledger.py:11  swallows every error
  high  ledger.py:5  leaves the first amount out"""
CHANGE = """\
   def total(amounts):
  -    return sum(amounts[1:])
  +    return sum(amounts)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="podbot-test-", dir="/var/tmp") as folder:
        yield Path(folder).resolve()


def run(home: Path, *arguments: str, before: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """The example as a person with this home runs it; nothing may be left of it there."""
    done = subprocess.run(
        [*before, sys.executable, str(EXAMPLE), *arguments],
        env=os.environ | {"HOME": str(home), "TMPDIR": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert [path.name for path in home.iterdir()] == []
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("backend", ["overlay", "local"])
def test_the_reviewer_runs_the_tests_and_mends_the_bug(home: Path, backend: str) -> None:
    code, out, err = run(home, "--backend", backend)

    assert (code, err) == (0, ""), out
    assert f"{FINDINGS}, as the test shows\n" in out
    assert CHANGE in out
    assert re.findall(r"unittest -q exited with (\d)", out) == ["1", "0"]
    assert "The tests failed before and pass now." in out
    assert out.endswith("The repository itself is as it was.\n")
    assert "FAILED" not in out


def test_where_nothing_can_be_run_the_rest_stays_the_same(home: Path) -> None:
    code, out, err = run(home, "--backend", "memory")

    assert (code, err) == (0, ""), out
    assert f"{FINDINGS}\n" in out
    assert CHANGE in out
    assert "shell_execute" not in out and "Nothing was run." in out


def test_what_the_model_is_told_can_be_seen(home: Path) -> None:
    code, out, _ = run(home, "--backend", "memory", "--show-prompt")

    assert code == 0
    titles = re.findall(r"^##+ .+$", out, re.MULTILINE)
    assert titles == [
        "## Instructions",
        "### Checklist",
        "## Virtual Filesystem",
        "## Findings",
    ]
    assert "Review the repository ledger in your workspace." in out


def test_without_a_sandbox_it_names_the_error_and_the_remedy(home: Path) -> None:
    off = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'

    code, out, err = run(home, before=("unshare", "-Ur", "sh", "-c", off, "sh"))

    assert code == 2, out + err
    assert "(userns_denied)" in err and "remedy: " in err
    assert "Traceback" not in err
