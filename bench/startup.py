"""Starting the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.kernel import INTERPRETER, python_pass
from bench.measure import Side, race
from bench.rows import Row, Target
from bench.setting import Setting


def version(setting: Setting) -> list[Row]:
    """`podbot --version`, the installed script."""
    script = str(Path(sys.executable).parent / "podbot")

    def ours() -> None:
        subprocess.run([script, "--version"], stdout=subprocess.DEVNULL, check=True)

    spread = race({"ours": Side(ours), "pass": Side(python_pass)}, setting.pace(60, 0.01))
    what = "podbot --version"
    return [Row("version", what, spread["ours"], "ms", spread["pass"], INTERPRETER, Target(3))]
