"""What a sandbox changed: the whole cycle, and reading it in a large tree."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import podbot.sandbox
from bench.measure import Side, race
from bench.rows import Row, Target
from bench.setting import Setting
from podbot.changes.capture import capture
from podbot.changes.diffs.diff import diff, for_people

EDIT = "for n in 1 2 3; do echo changed >> folder-$n/file-7.txt; done"
GIT = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
IDENTITY = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
LINES = "".join(f"line {number} of a file like any other\n" for number in range(40))
PODMAN = ["podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]
IMAGE = "localhost/podbot-bench"


def tree(folder: Path, files: int) -> Path:
    """A project of so many small files."""
    for number in range(files):
        place = folder / f"folder-{number // 100}"
        if number % 100 == 0:
            place.mkdir(parents=True)
        (place / f"file-{number % 100}.txt").write_text(LINES)
    return folder


def cycle(target: Path) -> Callable[[], None]:
    """Open, a command that edits three files, capture, full diff, discard."""

    def run() -> None:
        with podbot.sandbox.open("overlay", target=str(target), discard=True) as sandbox:
            sandbox.exec(["sh", "-c", EDIT]).check()
            assert sandbox.layer is not None
            changes = capture(sandbox.layer)
            lines = [line for change in changes for line in for_people(diff(changes, change))]
        assert sum(line.startswith("+changed") for line in lines) == 3, lines

    return run


def in_place(target: Path) -> Callable[[], None]:
    """The same edit in place, git status, git diff, git checkout."""

    def git(*arguments: str) -> str:
        done = subprocess.run([*GIT, *arguments], cwd=target, check=True, capture_output=True)
        return done.stdout.decode()

    def run() -> None:
        subprocess.run(["sh", "-c", EDIT], cwd=target, check=True)
        assert git("status", "--porcelain").count(" M ") == 3
        assert git("diff").count("+changed") == 3
        git("checkout", "--quiet", ".")

    return run


def whole_cycle(setting: Setting) -> list[Row]:
    """Open, edit 3 of 2,000 files, capture, full diff, discard; beside git, and podman."""
    target = tree(setting.folder / "cycle", 2000)
    for command in (["init", "--quiet"], ["add", "."], [*IDENTITY, "commit", "--quiet", "-mx"]):
        extra, rest = (command[:4], command[4:]) if command[0] == "-c" else ([], command)
        subprocess.run([*GIT, *extra, *rest], cwd=target, check=True)
    sides = {"ours": Side(cycle(target)), "git": Side(in_place(target))}
    spread = race(sides, setting.pace(40, 0.05))
    rows = [
        Row("cycle", "open + edit + capture + diff + discard", spread["ours"], "ms", spread["git"],
            "edit + git status, diff, checkout", Target(1.0)),
    ]  # fmt: skip
    return rows


def beside_podman(setting: Setting) -> list[Row]:
    """The same cycle beside podman run + podman diff + podman rm."""
    root = setting.folder / "image"
    project = tree(root / "work", 2000)
    (root / "bin").mkdir()
    shutil.copy(shutil.which("busybox") or "", root / "bin" / "busybox")
    os.symlink("busybox", root / "bin" / "sh")
    archive = setting.folder / "image.tar"
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    _podman("import", "--quiet", str(archive), IMAGE)
    try:
        sides = {"ours": Side(cycle(project)), "podman": Side(_podman_cycle)}
        spread = race(sides, setting.pace(8, 0.05, warm_up=1))
    finally:
        _podman("rmi", "--force", IMAGE)
    what = "the same cycle, beside podman"
    rival = "podman run + diff + rm"
    return [Row("podman", what, spread["ours"], "ms", spread["podman"], rival, Target(0.1))]


def _podman(*arguments: str) -> str:
    done = subprocess.run([*PODMAN, *arguments], check=True, capture_output=True)
    return done.stdout.decode()


def _podman_cycle() -> None:
    name = f"podbot-bench-{os.getpid()}"
    ulimits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    _podman("run", "--name", name, "--network", "none", *ulimits, "--workdir", "/work", IMAGE,
            "/bin/sh", "-c", EDIT)  # fmt: skip
    assert _podman("diff", name).count("file-7.txt") == 3
    _podman("rm", name)


def capture_at_scale(setting: Setting) -> list[Row]:
    """Capture of 10 changes in a tree of 100,000 files beside one of 1,000."""
    large = 10_000 if setting.quick else 100_000
    script = "for n in 0 1 2 3 4 5 6 7 8 9; do echo x >> folder-$n/file-3.txt; done"
    targets = {size: tree(setting.folder / f"of-{size}", size) for size in (1000, large)}
    opened = {}
    try:
        for size, target in targets.items():
            opened[size] = podbot.sandbox.open("overlay", target=str(target), discard=True)
            opened[size].exec(["sh", "-c", script]).check()

        def read(size: int) -> Callable[[], None]:
            def run() -> None:
                layer = opened[size].layer
                assert layer is not None
                assert len(capture(layer)) == 10

            return run

        spread = race({str(size): Side(read(size)) for size in targets}, setting.pace(100))
    finally:
        for sandbox in opened.values():
            sandbox.close()
    what = f"capture of 10 changes among {large:,} files"
    return [
        Row("capture", what, spread[str(large)], "ms", spread["1000"], "among 1,000", Target(1.5))
    ]
