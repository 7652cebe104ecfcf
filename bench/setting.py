"""What a run of the benchmarks takes place in: how thorough, where, and on which machine."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import podbot
from bench.measure import SETTLE, Pace
from podbot.sandbox.interpreter import ripgrep

QUICK_SHARE = 10
PACKAGES = {
    "bwrap": "bubblewrap",
    "git": "git",
    "podman": "podman, and busybox-static for its image",
    "rg": "ripgrep",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """How thorough to be, and a folder to work in."""

    folder: Path
    quick: bool = False
    rounds: int | None = None

    def pace(self, rounds: int, settle: float = SETTLE, warm_up: int = 3) -> Pace:
        """A pace of so many rounds, unless the caller of the run decided otherwise."""
        if self.rounds is not None:
            rounds = self.rounds
        elif self.quick:
            rounds = max(3, rounds // QUICK_SHARE)
        return Pace(rounds, settle, min(warm_up, rounds))

    def project(self, name: str) -> str:
        """An empty folder to open a sandbox over."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return str(path)


def tool(name: str) -> str | None:
    """Where a rival is installed: rg as podbot itself finds it, others on PATH."""
    finders: dict[str, Callable[[], str | None]] = {"rg": ripgrep}
    return finders.get(name, lambda: shutil.which(name))()


def machine() -> dict[str, str | int | float | bool]:
    """What the numbers depend on."""
    return {
        "podbot": podbot.__version__,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "root": os.geteuid() == 0,
        "load": round(os.getloadavg()[0], 2),
    }


def warnings() -> list[str]:
    """What would make the numbers mean something else than they say."""
    found = []
    cpus = len(os.sched_getaffinity(0))
    if os.getloadavg()[0] > cpus / 2:
        found.append(f"the machine is busy (load {os.getloadavg()[0]:.1f} on {cpus} processors)")
    if "coverage" in sys.modules or sys.gettrace() is not None:
        found.append("a tracer is active, which slows our side alone")
    hidden = ("/tmp/", "/run/", "/var/tmp/")
    if sys.executable.startswith(hidden) or (ripgrep() or "").startswith(hidden):
        found.append(
            "the Python environment lies in a folder that sandboxes see empty, so the kernel and"
            " rg inside cannot be the ones measured outside; make it elsewhere"
        )
    return found
