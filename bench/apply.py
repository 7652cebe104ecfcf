"""Taking changes over: applying and undoing many small files, with journal and undo store.

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
from podbot.changes.apply import apply as apply_changes
from podbot.changes.capture import capture
from podbot.changes.undo import forget, undo
from podbot.config import places
from podbot.sandbox.overlay.layers import Layer

FILES = 10_000
FOLDERS = 100
SIZE = 2000
ROUNDS = 5
LIMIT = Target(3)


def apply(setting: Setting) -> list[Row]:
    """Applying and undoing 10,000 small files, beside `cp -a` of them."""
    count = FILES // 10 if setting.quick else FILES
    rows = []
    with _own_state(setting.folder / "apply-state"):
        for kind in ("new", "changed"):
            rows += _measured(setting, kind, count)
    return rows


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
