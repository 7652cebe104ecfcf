"""The Python kernel of a live sandbox."""

from __future__ import annotations

import subprocess
import sys

import podbot.sandbox
from bench.commands import bare
from bench.measure import Side, race
from bench.rows import Row, Target
from bench.setting import Setting

INTERPRETER = "python -c pass"


def python_pass() -> None:
    """The same interpreter, started to do nothing."""
    subprocess.run([sys.executable, "-c", "pass"], check=True)


def answer(setting: Setting) -> list[Row]:
    """One small expression in a kernel that runs."""
    with podbot.sandbox.open("overlay", target=setting.project("kernel"), discard=True) as sandbox:

        def ours() -> None:
            result = sandbox.python("1+1")
            assert result.value == "2", result

        spread = race({"ours": Side(ours), "bare": Side(bare)}, setting.pace(300))
    what = "python kernel 1+1, overlay"
    return [
        Row("kernel", what, spread["ours"], "ms", spread["bare"], "subprocess.run", Target(0.5))
    ]


def start(setting: Setting) -> list[Row]:
    """From no kernel to its first answer."""
    with podbot.sandbox.open("overlay", target=setting.project("kernel"), discard=True) as sandbox:

        def ours() -> None:
            sandbox.python_restart()
            result = sandbox.python("1")
            assert result.value == "1", result

        spread = race({"ours": Side(ours), "pass": Side(python_pass)}, setting.pace(60, 0.01))
    what = "python kernel, restart to first answer"
    return [
        Row("kernel-start", what, spread["ours"], "ms", spread["pass"], INTERPRETER, Target(1.5))
    ]
