"""The examples keep their promises, say so, and leave nothing behind."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = [sys.executable, str(EXAMPLES / "review_an_agent.py")]
IN_PYTHON = [sys.executable, str(EXAMPLES / "review_in_python.py")]


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="podbot-test-", dir="/var/tmp") as folder:
        yield Path(folder).resolve()


def run(home: Path, *before: str, example: list[str] = EXAMPLE) -> tuple[int, str, str]:
    """An example as a person with this home runs it: its exit code, stdout and stderr.

    Nothing may be left of it, neither in the home nor where its layers were.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PODBOT_LAYERS"}
    with subprocess.Popen(
        [*before, *example],
        env=environment | {"HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, err = process.communicate()
    layers = f"podbot-demo-{process.pid}-"
    assert not [name for name in os.listdir("/var/tmp") if name.startswith(layers)]
    assert list(home.iterdir()) == []
    return process.returncode, out, err


def test_every_promise_is_kept_twice_in_a_row(home: Path) -> None:
    for _ in range(2):
        code, out, err = run(home)

        assert (code, err) == (0, ""), out
        assert out.count("  kept    ") == 5
        assert "BROKEN" not in out
        assert "+    return celsius * 9 / 5 + 32" in out
        assert "- deleted   scratch.txt" in out
        assert "a private key: refused: No such file or directory" in out
        assert "the internet: refused: Network is unreachable" in out
        assert "FAKE KEY" not in out
        assert "\x1b" not in out


def test_it_has_colours_at_a_terminal(home: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    with subprocess.Popen(
        EXAMPLE, env=environment | {"HOME": str(home)}, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:
            pass  # how a terminal says that the other end is gone
    os.close(ours)

    assert process.returncode == 0
    assert b"\x1b[32mkept  \x1b[0m" in shown


def test_without_user_namespaces_it_names_the_error_and_the_remedy(home: Path) -> None:
    off = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    allowed = subprocess.run(["unshare", "-Ur", "sh", "-c", off, "sh", "true"], check=False)
    assert allowed.returncode == 0, "this test needs user namespaces in order to take them away"

    code, out, err = run(home, "unshare", "-Ur", "sh", "-c", off, "sh")

    assert code == 2, out + err
    assert "(userns_denied)" in err
    assert "remedy: run `podbot doctor`" in err
    assert "Traceback" not in err


def test_a_review_in_python_takes_a_part_and_gives_it_back(home: Path) -> None:
    code, out, err = run(home, example=IN_PYTHON)

    assert (code, err) == (0, ""), out
    assert "changed: {'added': 3, 'modified': 1}" in out
    assert "flagged: .envrc runs by itself: " in out
    assert "refused: all of it" in out
    assert out.count("\n@@ ") == 2
    assert "applied: notes src/ src/hello.py\n" in out
    assert "notes  : begins with 'Celsius', ends with 'the end'\n" in out
    assert "left   : .envrc notes\n" in out
    assert "undone : 3 paths as before" in out


def test_the_scripted_agent_by_itself_says_what_it_takes() -> None:
    agent = [sys.executable, str(EXAMPLES / "scripted_agent.py")]
    done = subprocess.run(agent, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: scripted_agent.py NOTES KEY PORT REPORT\n"
