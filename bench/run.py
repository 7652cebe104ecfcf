"""Starting `podbot run`, which people put before commands they used to type bare."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.measure import Side, Spread, race
from bench.rows import Row, Target
from bench.setting import Setting

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
    podbot = str(Path(sys.executable).parent / "podbot")
    # Compiled modules are kept, as in any installation.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env["PODBOT_STATE"] = str(setting.folder / "run-state")

    def side(*argv: str) -> Side:
        return Side(lambda: subprocess.run(argv, cwd=tree, env=env, check=True))

    sides = {
        "run": side(podbot, "run", "--", "true"),
        "pass": side(sys.executable, "-c", "pass"),
        "bwrap": side(*BWRAP),
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


def _tree(folder: Path, files: int) -> Path:
    for number in range(FOLDERS):
        below = folder / f"folder{number}"
        below.mkdir(exist_ok=True)
        for each in range(files // FOLDERS):
            (below / f"file{each}").touch()
    return folder
