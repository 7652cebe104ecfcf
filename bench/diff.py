"""Looking at changes: diffs of many files, and of texts made to be hard to compare."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import podbot.sandbox
from bench.measure import Side, race
from bench.rows import Row, Target
from bench.setting import Setting
from podbot.changes import _renames
from podbot.changes.capture import capture
from podbot.changes.diffs.diff import diff, for_people
from podbot.changes.diffs.hunks import hunks
from podbot.changes.model import ChangeSet
from podbot.sandbox.layers import Layer

FILES = 1000
FOLDERS = 40
LINES = 300
EDITS = 3
HARD_LINES = 100_000
SEED = 30

_WORDS = ("return", "value", "self", "import", "async", "await", "buffer", "stream", "token")


def many(setting: Setting) -> list[Row]:
    """Diffs of 1,000 changed text files, as text, beside `git diff --no-index` of the two trees."""
    old, new = setting.folder / "diff" / "old", setting.folder / "diff" / "new"
    if not old.exists():
        _plant(old, new)
    with podbot.sandbox.open("overlay", target=str(old)) as sandbox:
        for path in sorted(new.rglob("*.py")):
            sandbox.write(str(path.relative_to(new)), path.read_bytes())
        layer = sandbox.layer
    assert layer is not None
    try:
        return _rows(setting, layer, (old, new))
    finally:
        layer.discard()


def _rows(setting: Setting, layer: Layer, folders: tuple[Path, Path]) -> list[Row]:
    changes = capture(layer)
    command = ["git", "diff", "--no-index", "--no-color", *map(str, folders)]

    def rival() -> None:
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.stdout.count(b"diff --git") == FILES

    def ours() -> None:
        assert _as_text(changes).count("diff --git") == FILES

    def whole() -> None:
        assert _as_text(_renames.detect(capture(layer))).count("diff --git") == FILES

    sides = {"ours": Side(ours), "whole": Side(whole), "git": Side(rival)}
    spread = race(sides, setting.pace(20, 0.01))
    name = "git diff --no-index"
    what = f"diff of {FILES} changed files"
    return [
        Row("diff", what, spread["ours"], "ms", spread["git"], name, Target(2)),
        Row("diff", f"capture and {what}", spread["whole"], "ms", spread["git"], name),
    ]


def _as_text(changes: ChangeSet) -> str:
    return "\n".join(line for change in changes for line in for_people(diff(changes, change)))


def hard(setting: Setting) -> list[Row]:
    """Diffs of two texts of 100,000 lines that are hard to compare, beside git."""
    rows = []
    folder = Path(setting.project("diff-hard"))
    command = ["git", "diff", "--no-index", "--no-color", str(folder / "old"), str(folder / "new")]
    for kind, old, new in _hard_texts():
        (folder / "old").write_bytes(old)
        (folder / "new").write_bytes(new)

        def ours(old: bytes = old, new: bytes = new) -> None:
            assert hunks(old, new)

        def rival() -> None:
            assert subprocess.run(command, capture_output=True, check=False).stdout

        spread = race({"ours": Side(ours), "git": Side(rival)}, setting.pace(5, warm_up=0))
        what = f"diff of 100,000 lines, {kind}"
        git = "git diff --no-index"
        rows.append(Row("diff-hard", what, spread["ours"], "ms", spread["git"], git, Target(4)))
    return rows


def _hard_texts() -> Iterator[tuple[str, bytes, bytes]]:
    dice = random.Random(SEED)
    numbers = range(HARD_LINES)

    def text(lines: list[int]) -> bytes:
        return b"".join(b"%d\n" % line for line in lines)

    yield "nothing in common", text(list(numbers)), text([-1 - number for number in numbers])
    for kinds in (2, 10, 1000):
        old, new = (text(dice.choices(range(kinds), k=HARD_LINES)) for _ in range(2))
        yield f"{kinds} lines at random", old, new
    yield "shuffled", text(list(numbers)), text(dice.sample(numbers, HARD_LINES))


def _plant(old: Path, new: Path) -> None:
    """The same trees each time: every file of the second differs from the first's in some lines."""
    dice = random.Random(SEED)
    for number in range(FILES):
        name = f"part{number % FOLDERS:02}/module{number:04}.py"
        lines = [_line(dice) for _ in range(LINES)]
        _write(old / name, lines)
        for _ in range(EDITS):
            place = dice.randrange(len(lines))
            lines[place : place + dice.randrange(2)] = [_line(dice)] * dice.randrange(3)
        lines.append("the end")
        _write(new / name, lines)


def _line(dice: random.Random) -> str:
    words = dice.choices(_WORDS, k=dice.randrange(9))
    return " " * dice.choice((0, 4, 8)) + " ".join(words)


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
