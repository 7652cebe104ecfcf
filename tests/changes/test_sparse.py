"""Disk images of gigabytes with a few blocks in them: nothing on their way reads the holes."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podbot.changes import _renames
from podbot.changes.applying.apply import apply
from podbot.changes.applying.undo import undo
from podbot.changes.archive import saving
from podbot.changes.capture import capture
from podbot.changes.diffs.diff import diff
from podbot.changes.model import ChangeKind, ChangeSet
from podbot.sandbox.overlay.launcher import OverlaySandbox

pytestmark = pytest.mark.usefixtures("own_state")

SIZE = 900 << 20
FEW = 32 << 20
"""Bytes that may be read: far more than the image holds, far less than its size."""


@contextmanager
def few_bytes_are_read() -> Iterator[None]:
    def so_far() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("rchar")).split()[1])

    before = so_far()
    yield
    assert so_far() - before < FEW


def image(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(SIZE)
        file.seek(SIZE // 2)
        file.write(b"some data")


def changes_of(target: Path, script: str) -> ChangeSet:
    with OverlaySandbox(target) as sandbox:
        result = sandbox.exec(["bash", "-ec", script])
        assert result.ok, result
    assert sandbox.layer is not None
    return capture(sandbox.layer)


def same(one: Path, other: Path) -> bool:
    return subprocess.run(["cmp", "-s", one, other], check=False).returncode == 0


@pytest.mark.parametrize(
    "script",
    [
        f"printf edit | dd of=image bs=1 seek={SIZE - 100} conv=notrunc",
        f"truncate -s {SIZE} new; printf data | dd of=new bs=1 seek={SIZE - 100} conv=notrunc",
        "touch image",
    ],
    ids=["edited", "new", "same bytes"],
)
def test_changes_are_read_shown_applied_and_undone(target: Path, script: str) -> None:
    image(target / "image")
    blocks = os.stat(target / "image").st_blocks
    with few_bytes_are_read():
        changes = changes_of(target, script)
        (change,) = changes
        diff(changes, change)
        applied = apply(changes)
    assert os.stat(target / change.path).st_blocks * 512 < FEW
    assert changes.layer_id is not None
    with few_bytes_are_read():
        undo(applied.id)
    assert os.stat(target / "image").st_blocks == blocks


def test_an_image_that_was_moved_is_told_as_moved(target: Path) -> None:
    image(target / "image")
    with few_bytes_are_read():
        changes = _renames.detect(changes_of(target, "mv image renamed"))
    (change,) = changes
    assert (change.kind, change.source) == (ChangeKind.RENAMED, "image")
    with few_bytes_are_read():
        assert diff(changes, change).similarity == 100


def test_an_image_is_packed_and_comes_back_whole(target: Path, tmp_path: Path) -> None:
    image(target / "image")
    image(tmp_path / "expected")
    changes = changes_of(target, "mv image renamed")
    packed = io.BytesIO()
    with few_bytes_are_read():
        saving.save(changes, packed)
        packed.seek(0)
        layer = saving.load(packed, [str(target)])
        apply(capture(layer))
    assert same(target / "renamed", tmp_path / "expected")
    layer.discard()
