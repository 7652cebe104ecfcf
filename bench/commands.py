"""Running a command in a sandbox that is already there."""

from __future__ import annotations

import subprocess

import podbot.sandbox
from bench.measure import Side, race
from bench.rows import Row, Target
from bench.setting import Setting


def bare() -> None:
    """`true` by subprocess, the yardstick of several benchmarks."""
    subprocess.run(["true"], check=True)


def captured() -> None:
    """`true` by subprocess with both streams captured, as a sandbox always does."""
    subprocess.run(["true"], capture_output=True, check=True)


def exec_true(setting: Setting) -> list[Row]:
    """`exec(["true"])` in a live sandbox."""
    with (
        podbot.sandbox.open("overlay", target=setting.project("overlay"), discard=True) as overlay,
        podbot.sandbox.open("local", target=setting.project("local")) as local,
    ):
        sides = {
            "overlay": Side(lambda: overlay.exec(["true"]).check()),
            "local": Side(lambda: local.exec(["true"]).check()),
            "captured": Side(captured),
            "bare": Side(bare),
        }
        spread = race(sides, setting.pace(300))
    rows = []
    for backend, limit in (("overlay", 1.4), ("local", 1.3)):
        for rival, name, target in (
            ("captured", "subprocess.run, captured", Target(limit)),
            ("bare", "subprocess.run", None),
        ):
            what = f"exec true, {backend}"
            rows.append(Row("exec", what, spread[backend], "ms", spread[rival], name, target))
    return sorted(rows, key=lambda row: row.target is None)
