"""Huge files that hold nearly nothing: they should cost what is in them, not what they could hold.

Whole commands, as people type them. On one file system, and with the target on another than the
layers, where everything that is applied, kept or brought back has to be copied.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.measure import Side, race
from bench.rows import Absent, Outcome, Row, Target
from bench.setting import Setting

HUGE = 2 << 30
BLOCK = 4096
ROUNDS = 9
LIMIT = Target(1.3)

_ENV = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
_PODBOT = str(Path(sys.executable).parent / "podbot")


@dataclass(frozen=True, slots=True)
class _Case:
    """One of both sides: files of this size, in folders of their own, and the edit of one."""

    folder: Path
    size: int
    edited: bool

    @property
    def command(self) -> str:
        """What a shell does inside."""
        if self.edited:
            return f"printf edit | dd of=file bs=4 seek={self.size // 8} conv=notrunc status=none"
        block = f"dd if=/dev/zero bs={BLOCK} count=1 status=none | tr '\\0' x"
        put = f"dd of=file bs={BLOCK} seek={self.size // BLOCK // 2} conv=notrunc status=none"
        return f"truncate -s {self.size} file; {block} | {put}"

    def target(self, number: int) -> Path:
        """The target of one round."""
        return self.folder / str(number)

    def plant(self, number: int) -> None:
        """Make it."""
        self.target(number).mkdir(parents=True)
        if self.edited:
            with open(self.target(number) / "file", "wb") as file:
                file.truncate(self.size)
                file.seek(self.size // BLOCK // 2 * BLOCK)
                file.write(b"x" * BLOCK)


def sparse(setting: Setting) -> list[Outcome]:
    """A file of 2 GiB with 4 KiB of data: run, diff, apply, undo, beside a plain one of 4 KiB."""
    outcomes: list[Outcome] = []
    for edited in (False, True):
        outcomes += _measured(setting, _folder(setting, f"sparse-{edited}"), edited, "")
    if os.geteuid() != 0:
        reason = "only root can mount another file system"
        return [*outcomes, Absent("sparse", "on two file systems", reason, "skipped")]
    for edited in (False, True):
        folder = _folder(setting, f"sparse-far-{edited}")
        subprocess.run(["mount", "-t", "tmpfs", "podbot-bench", folder], check=True)
        try:
            outcomes += _measured(setting, folder, edited, ", on two file systems")
        finally:
            subprocess.run(["umount", folder], check=True)
    return outcomes


def _folder(setting: Setting, name: str) -> Path:
    return Path(setting.project(name))


def _measured(setting: Setting, folder: Path, edited: bool, where: str) -> list[Row]:
    own = setting.folder / f"{folder.name}-own"
    env = {**_ENV, "PODBOT_STATE": f"{own}-state", "PODBOT_LAYERS": f"{own}-layers"}
    pace = setting.pace(ROUNDS, settle=0.02, warm_up=1)
    cases = {
        "sparse": _Case(folder / "sparse", HUGE, edited),
        "plain": _Case(folder / "plain", BLOCK, edited),
    }
    for case in cases.values():
        for number in range(pace.rounds + pace.warm_up):
            case.plant(number)

    def step(case: _Case, *words: str) -> Callable[[], object]:
        numbers = count()

        def run() -> None:
            where = case.target(next(numbers))
            name = f"{case.folder.name}-{where.name}"
            argv = [_PODBOT, *(word.replace("NAME", name) for word in words)]
            subprocess.run(argv, cwd=where, env=env, check=True, capture_output=True)

        return run

    rows = []
    what = ("an edit of " if edited else "a new file of ") + "2 GiB with 4 KiB of data"
    for name in ("run", "diff", "apply", "undo"):
        found = race(
            {
                side: Side(
                    step(case, "run", "--name", "NAME", "--", "sh", "-c", case.command)
                    if name == "run"
                    else step(case, "changes", name, "NAME")
                )
                for side, case in cases.items()
            },
            pace,
        )
        rival = "a plain file of 4 KiB"
        label = f"{name}, {what}{where}"
        rows.append(Row("sparse", label, found["sparse"], "ms", found["plain"], rival, LIMIT))
    return rows
