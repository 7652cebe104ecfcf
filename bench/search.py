"""Searching a tree of files."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import podbot.sandbox
from bench.measure import Side, race
from bench.rows import Row, Target
from bench.setting import Setting, tool

FILES = 2000
BYTES = 20 * 1000 * 1000
FOLDERS = 40
NEEDLES = 7
PATTERNS = {"literal": "needle_in_the_hay", "regex": r"needle_\w+_hay\(\d{3}\)"}
SEED = 20

_WORDS = ("return", "value", "self", "import", "async", "await", "buffer", "stream", "token")


def grep(setting: Setting) -> list[Row]:
    """`grep` over 2,000 files of 20 MB, few matches, beside rg with the same flags."""
    folder = setting.folder / "search"
    if not folder.exists():
        _plant(folder)
    rg = tool("rg")
    assert rg is not None, "the catalogue says that this needs rg"
    flags = ["--no-config", "--hidden", "--no-ignore", "--line-number", "--no-heading"]
    rows = []
    with podbot.sandbox.open("overlay", target=folder, discard=True) as sandbox:
        for kind, pattern in PATTERNS.items():
            command = [rg, *flags, "--regexp", pattern, "./"]

            def rival(command: list[str] = command) -> None:
                done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
                assert done.stdout.count(b"\n") == NEEDLES

            def ours(pattern: str = pattern) -> None:
                assert len(sandbox.grep(pattern).matches) == NEEDLES

            spread = race({"ours": Side(ours), "rg": Side(rival)}, setting.pace(40, 0.005))
            what = f"grep {FILES} files / {BYTES // 1_000_000} MB, {kind}"
            rows.append(Row("grep", what, spread["ours"], "ms", spread["rg"], "rg", Target(1.5)))
    return rows


def _plant(folder: Path) -> None:
    """The same tree each time: folders of source-like text, a needle in a few of the files."""
    dice = random.Random(SEED)
    with_needle = set(dice.sample(range(FILES), NEEDLES))
    for number in range(FILES):
        lines: list[str] = []
        size = 0
        while size < BYTES // FILES:
            lines.append(" ".join(dice.choices(_WORDS, k=9)))
            size += len(lines[-1]) + 1
        if number in with_needle:
            lines.insert(len(lines) // 2, f"x = needle_in_the_hay({dice.randrange(100, 1000)})")
        path = folder / f"part{number % FOLDERS:02}" / f"module{number:04}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
