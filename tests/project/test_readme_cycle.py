"""The cycle that the README shows is what happens, line by line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")


def shown() -> list[tuple[str, str]]:
    """Each command of the README's cycle with what it says."""
    text = README.read_text(encoding="utf-8")
    block = text.split("<!-- cycle")[1].split("-->", 1)[1].split("<!-- end of cycle -->")[0]
    lines = [line.removeprefix("    ") for line in block.strip("\n").splitlines()]
    told = []
    for part in "\n".join(lines).split("\n$ "):
        command, _, output = part.removeprefix("$ ").partition("\n")
        told.append((command, output.strip("\n")))
    return told


def test_the_cycle_of_the_readme_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    told = shown()
    assert told[0][0] == "cat ../agent.sh"
    with tempfile.TemporaryDirectory(prefix="podbot-readme-", dir="/var/tmp") as folder:
        site = Path(folder).resolve() / "site"
        site.mkdir()
        subprocess.run(["git", "init", "--quiet"], cwd=site, check=True)
        (site / "page.txt").write_text("The colour of the sky\n")
        (site / "notes.txt").write_text("buy milk\n")
        (site.parent / "agent.sh").write_text(told[0][1] + "\n")
        # Where a sandbox sees it too: /var/tmp is private inside, but for the target.
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        for command, expected in told:
            # The script lies outside of the target; inside, /var/tmp has only the target.
            run = command.replace("sh ../agent.sh", f"sh -c '{told[0][1]}'")
            done = subprocess.run(
                ["sh", "-c", run],
                cwd=site,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=300,
                check=False,
            )
            assert ID.sub("ID", done.stdout.decode().strip("\n")) == ID.sub("ID", expected), command
