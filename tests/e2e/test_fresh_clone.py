"""A newcomer clones the project and runs the README's first command, with nothing set up."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import set_up

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.e2e


@pytest.fixture
def clone() -> Iterator[Path]:
    """What is committed, in an empty folder below a private one (a sandbox must still find it)."""
    with tempfile.TemporaryDirectory(prefix="podbot-e2e-") as folder:
        place = Path(folder) / "podbot"
        # Whoever owns the checkout: git would not read another user's.
        settings = Path(folder) / "gitconfig"
        settings.write_text("[safe]\n\tdirectory = *\n")
        subprocess.run(
            ["git", "clone", "--quiet", str(ROOT), str(place)],
            env={**os.environ, "GIT_CONFIG_GLOBAL": str(settings)}, check=True,
        )  # fmt: skip
        yield place


def make(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": os.environ["HOME"], "PATH": "/usr/local/bin:/usr/bin:/bin"}
    environment |= set_up.ways_out()
    return subprocess.run(
        ["make", *arguments],
        cwd=clone, env=environment, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a clone can be cloned")
def test_the_first_command_of_the_readme_works_in_a_bare_clone(clone: Path) -> None:
    first = make(clone, "run")
    assert first.returncode == 0, first.stdout + first.stderr
    assert len(re.findall(r"^  kept ", first.stdout, re.MULTILINE)) == 5
    assert "broken" not in first.stdout
    installed = (clone / ".venv").stat().st_mtime_ns
    second = make(clone, "run")
    assert second.returncode == 0, second.stdout + second.stderr
    assert (clone / ".venv").stat().st_mtime_ns == installed  # nothing is installed twice


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a clone can be cloned")
def test_the_doctor_answers_in_a_bare_clone(clone: Path) -> None:
    assert make(clone, "run").returncode == 0
    done = subprocess.run(
        [clone / ".venv" / "bin" / "podbot", "doctor"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "user namespaces" in done.stdout


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a clone can be cloned")
def test_an_installation_brings_manual_pages_and_completion(clone: Path) -> None:
    assert make(clone, "run").returncode == 0
    share = clone / ".venv" / "share"
    for name in ("podbot", "podbot-run", "podbot-changes", "podbot-completion"):
        assert (share / "man" / "man1" / f"{name}.1").read_text().startswith('.\\" Written by')
    for name in (
        "bash-completion/completions/podbot",
        "zsh/site-functions/_podbot",
        "fish/vendor_completions.d/podbot.fish",
    ):
        assert "podbot" in (share / name).read_text()
