"""Whatever has reached a disk when the power fails: the next look finds all as before or after."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.root
@pytest.mark.parametrize("late", ["names", "all"])
@pytest.mark.parametrize(
    "where",
    [
        "few",
        pytest.param("one", marks=pytest.mark.slow),
        pytest.param("two", marks=pytest.mark.slow),
    ],
)
def test_after_a_power_cut_all_is_as_before_or_as_after(
    tmp_path: Path, where: str, late: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount an image")
    for needed in ("mkfs.ext4", "losetup"):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")
    found = subprocess.run(["losetup", "--find"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"this machine has no loop devices: {found.stderr.strip()}")
    program = Path(__file__).parents[1] / "power_cut.py"

    done = subprocess.run(
        ["unshare", "--mount", sys.executable, program, where, late],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.endswith("cuts: all is as before or as after\n")
