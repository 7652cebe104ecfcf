"""Taking changes over: applying and undoing many small files, with journal and undo store."""

from __future__ import annotations

import os
import shutil
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
from podbot.changes.undo import applications, forget, undo
from podbot.config import places
from podbot.sandbox.overlay.layers import Layer

FILES = 10_000
FOLDERS = 100
SIZE = 2000
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
    source = _plant(setting.folder / f"apply-{kind}-source", count, b"inside\n")
    target = setting.folder / f"apply-{kind}"
    target.mkdir()
    if kind == "changed":
        _plant(target, count, b"outside\n")
    copy = setting.folder / f"apply-{kind}-copy"
    with podbot.sandbox.open("overlay", target=target) as sandbox:
        archive = subprocess.run(["tar", "-cC", source, "."], capture_output=True, check=True)
        done = sandbox.exec(["tar", "-x", "--no-same-owner"], stdin=archive.stdout)
        assert done.ok, done
    layer = sandbox.layer
    assert layer is not None
    host = _Host(layer)

    def rival() -> None:
        subprocess.run(["cp", "-a", str(source), str(copy)], check=True)

    sides = {
        "apply": Side(host.apply, before=host.ready_to_apply),
        "undo": Side(host.undo, before=host.ready_to_undo),
        "cp": Side(rival, before=lambda: shutil.rmtree(copy, ignore_errors=True)),
    }
    try:
        spread = race(sides, setting.pace(9, settle=0.05, warm_up=1))
    finally:
        host.ready_to_apply()
        layer.discard()
    what = f"{count:,} {kind} files"
    return [
        Row("apply", f"apply {what}", spread["apply"], "ms", spread["cp"], "cp -a", LIMIT),
        Row("apply", f"undo {what}", spread["undo"], "ms", spread["cp"], "cp -a", LIMIT),
    ]


class _Host:
    """A target that changes are applied to and undone again."""

    def __init__(self, layer: Layer):
        self._layer = layer
        self._changes = capture(layer)

    def ready_to_apply(self) -> None:
        if self._is_applied:
            undo(self._layer.id)
        forget(self._layer.id)
        self._changes = capture(self._layer)

    def ready_to_undo(self) -> None:
        if not self._is_applied:
            apply_changes(capture(self._layer))

    def apply(self) -> None:
        apply_changes(self._changes)

    def undo(self) -> None:
        undo(self._layer.id)

    @property
    def _is_applied(self) -> bool:
        return any(not each.undone for each in applications(self._layer.id))


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
