"""Starting `podbot run`, which people put before commands they used to type bare."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.measure import Side, Spread, race
from bench.rows import Row, Target
from bench.setting import Setting

PODBOT = str(Path(sys.executable).parent / "podbot")
FOLDERS = 100
STARTS = 5
"""How many starts of an interpreter a run may take."""

BWRAP = (
    "bwrap",
    "--unshare-all",
    "--ro-bind",
    "/",
    "/",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "true",
)


def true(setting: Setting) -> list[Row]:
    """`podbot run -- true` in a large tree, the installed script."""
    files = 10_000 if setting.quick else 100_000
    tree = _tree(Path(setting.project("run")), files)
    sides = {
        "run": _side(setting, tree, PODBOT, "run", "--", "true"),
        "pass": _side(setting, tree, sys.executable, "-c", "pass"),
        "bwrap": _side(setting, tree, *BWRAP),
    }
    found = race(sides, setting.pace(40, 0.02))
    allowed = Spread(
        STARTS * found["pass"].median + found["bwrap"].median,
        STARTS * found["pass"].p90 + found["bwrap"].p90,
    )
    what = f"podbot run -- true, {files:,} files"
    rival = f"{STARTS} x python3 -c pass + bwrap"
    return [
        Row("run", what, found["run"], "ms", found["pass"], "python3 -c pass", Target(STARTS)),
        Row("run", what, found["run"], "ms", allowed, rival, Target(1)),
    ]


def allowing(setting: Setting) -> list[Row]:
    """What naming a host adds to `podbot run -- true`, which connects to nothing."""
    tree = Path(setting.project("run-allow"))
    sides = {
        "allow": _side(setting, tree, PODBOT, "run", "--allow", "example.org", "--", "true"),
        "run": _side(setting, tree, PODBOT, "run", "--", "true"),
    }
    found = race(sides, setting.pace(40, 0.02))
    what = "podbot run --allow HOST -- true"
    return [Row("run", what, found["allow"], "ms", found["run"], "without", Target(1.15))]


def _side(setting: Setting, tree: Path, *argv: str) -> Side:
    # Compiled modules are kept, as in any installation.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env["PODBOT_STATE"] = str(setting.folder / "run-state")
    return Side(lambda: subprocess.run(argv, cwd=tree, env=env, check=True))


def _tree(folder: Path, files: int) -> Path:
    for number in range(FOLDERS):
        below = folder / f"folder{number}"
        below.mkdir(exist_ok=True)
        for each in range(files // FOLDERS):
            (below / f"file{each}").touch()
    return folder
