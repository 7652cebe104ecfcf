"""Taking changes over: applying and undoing many small files, with journal and undo store.

What podbot reports is on the disk, so its rival for many is a copy that is on the disk, too.
Undoing new files removes them, which is slow where a file system discards at once the blocks of
files that have reached the disk: `rm -r` of such copies is shown beside it.

Every round has folders of its own and nothing is removed until all rounds are over: ext4 without a
journal does not reuse a removed inode for a minute, and until then each new file looks at all of
them, which made both sides several times slower, and not alike.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import podbot.sandbox
from bench.measure import Side, race
from bench.rows import Row, Target
from bench.setting import Setting
from podbot.changes.applying.apply import apply as apply_changes
from podbot.changes.applying.undo import forget, undo
from podbot.changes.capture import capture
from podbot.config import places
from podbot.sandbox.layers import Layer

FILES = 10_000
FOLDERS = 100
SIZE = 2000
ROUNDS = 5
LIMIT = Target(3)

MANY = (20_000, 50_000)
MANY_ROUNDS = 3
APPLY_LIMIT, UNDO_LIMIT = Target(2), Target(1.5)


def apply(setting: Setting) -> list[Row]:
    """Applying and undoing 10,000 small files, beside `cp -a` of them."""
    count = FILES // 10 if setting.quick else FILES
    rows = []
    with _own_state(setting.folder / "apply-state"):
        for kind in ("new", "changed"):
            rows += _measured(setting, kind, count)
    return rows


def apply_many(setting: Setting) -> list[Row]:
    """Applying and undoing 20,000 and 50,000 new files, beside `cp -a` and `sync -f` of them."""
    rows = []
    with _own_state(setting.folder / "apply-many-state"):
        for count in MANY:
            rows += _many(setting, count // 10 if setting.quick else count)
    return rows


def _many(setting: Setting, count: int) -> list[Row]:
    pace = setting.pace(MANY_ROUNDS, settle=0.05, warm_up=0)
    source = _plant(setting.folder / f"apply-{count}-source", count, b"inside\n")
    runs = [_run(setting.folder / f"apply-{count}-{number}", "new", source, count)
            for number in range(pace.rounds)]  # fmt: skip
    copies = [setting.folder / f"apply-{count}-copy-{number}" for number in range(pace.rounds)]
    to_apply, to_undo = iter([capture(layer) for layer in runs]), iter(runs)
    to_copy, to_remove = iter(copies), iter(copies)
    os.sync()

    def rival() -> None:
        copy = str(next(to_copy))
        subprocess.run(["cp", "-a", str(source), copy], check=True)
        subprocess.run(["sync", "-f", copy], check=True)

    def removal() -> None:
        subprocess.run(["rm", "-r", str(next(to_remove))], check=True)

    try:
        forward = race(
            {"apply": Side(lambda: apply_changes(next(to_apply))), "cp": Side(rival)}, pace
        )
        back = race({"undo": Side(lambda: undo(next(to_undo).id)), "rm": Side(removal)}, pace)
    finally:
        for layer in runs:
            forget(layer.id)
            layer.discard()
    name, what, copied = "apply_many", f"{count:,} new files", "cp -a, sync -f"
    return [
        Row(name, f"apply {what}", forward["apply"], "ms", forward["cp"], copied, APPLY_LIMIT),
        Row(name, f"undo {what}", back["undo"], "ms", forward["cp"], copied, UNDO_LIMIT),
        Row(name, f"undo {what}", back["undo"], "ms", back["rm"], "rm -r of the copies"),
    ]


def _measured(setting: Setting, kind: str, count: int) -> list[Row]:
    pace = setting.pace(ROUNDS, settle=0.05, warm_up=0)
    source = _plant(setting.folder / f"apply-{kind}-source", count, b"inside\n")
    runs = [_run(setting.folder / f"apply-{kind}-{number}", kind, source, count)
            for number in range(pace.rounds)]  # fmt: skip
    copies = (setting.folder / f"apply-{kind}-copy-{number}" for number in range(pace.rounds))
    to_apply, to_undo = iter([capture(layer) for layer in runs]), iter(runs)

    def rival() -> None:
        subprocess.run(["cp", "-a", str(source), str(next(copies))], check=True)

    try:
        forward = race(
            {"apply": Side(lambda: apply_changes(next(to_apply))), "cp": Side(rival)}, pace
        )
        back = race({"undo": Side(lambda: undo(next(to_undo).id))}, pace)
    finally:
        for layer in runs:
            forget(layer.id)
            layer.discard()
    what = f"{count:,} {kind} files"
    return [
        Row("apply", f"apply {what}", forward["apply"], "ms", forward["cp"], "cp -a", LIMIT),
        Row("apply", f"undo {what}", back["undo"], "ms", forward["cp"], "cp -a", LIMIT),
    ]


def _run(target: Path, kind: str, source: Path, count: int) -> Layer:
    """The layer of a command that wrote all those files into a target of its own."""
    target.mkdir()
    if kind == "changed":
        _plant(target, count, b"outside\n")
    with podbot.sandbox.open("overlay", target=target) as sandbox:
        archive = subprocess.run(["tar", "-cC", source, "."], capture_output=True, check=True)
        done = sandbox.exec(["tar", "-x", "--no-same-owner"], stdin=archive.stdout)
        assert done.ok, done
    assert sandbox.layer is not None
    return sandbox.layer


def _plant(folder: Path, count: int, first: bytes) -> Path:
    for number in range(count):
        path = folder / f"part{number % FOLDERS:02}" / f"file{number:05}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(first + f"{number}\n".encode() * (SIZE // len(f"{number}\n")))
    return folder


@contextmanager
def _own_state(folder: Path) -> Iterator[None]:
    """Journals of a benchmark are not the user's."""
    before = os.environ.get(places.STATE_VARIABLE)
    os.environ[places.STATE_VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[places.STATE_VARIABLE]
        else:
            os.environ[places.STATE_VARIABLE] = before
