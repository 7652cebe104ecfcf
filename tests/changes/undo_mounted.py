"""Run by a test in a mount namespace of its own: undo where another file system was mounted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from trees import look, nothing_left_in
from two_folders import compare

from podbot.changes.applying.apply import apply
from podbot.changes.applying.recovery import recover
from podbot.changes.applying.undo import undo
from podbot.errors import ChangesError, Kind

ANOTHER = ["-t", "tmpfs", "tmpfs"]
ITSELF = ["--bind"]
CASES = [
    *((place, ANOTHER) for place in ("made", "made/in", "kept", "kept/gone", "dressed")),
    *((place, ITSELF) for place in ("made", "made/in")),
]


def plant(old: Path, new: Path) -> None:
    """What the target has, and what it is to have."""
    for folder in ("kept", "kept/gone", "dressed"):
        (old / folder).mkdir(parents=True)
        (new / folder).mkdir(parents=True)
    (old / "kept/edited").write_text("old\n")
    (new / "kept/edited").write_text("new\n")
    (old / "kept/gone/file").write_text("gone\n")
    (new / "dressed").chmod(0o700)
    (new / "made/in").mkdir(parents=True)
    (new / "made/in/file").write_text("new\n")
    (old / "beside").write_text("old\n")
    (new / "beside").write_text("new\n")


def one(top: Path, place: str, how: list[str]) -> None:
    """Mount something, find that told, and undo when it is gone."""
    old, new = top / "old", top / "new"
    plant(old, new)
    before = look(old)
    applied = apply(replace(compare(old, new), since_ns=time.time_ns()))
    source = [str(old / place)] if how == ITSELF else []
    subprocess.run(["mount", *how, *source, str(old / place)], check=True)
    now = look(old)
    try:
        undo(applied.id)
    except ChangesError as error:
        assert error.kind is Kind.UNDO_REFUSED, error
        assert f"{old}/{place}" in error.message
        assert "something was mounted there since" in error.message, error
    else:
        raise AssertionError("nothing was told")
    assert look(old) == now
    undone = undo(applied.id, on_conflict="overwrite")
    assert f"{old}/beside" in undone.restored
    assert undone.skipped
    assert recover() == []
    subprocess.run(["umount", old / place], check=True)
    undo(applied.id)
    rows = look(old)["paths"]
    for key, row in before["paths"].items():
        is_folder = row[5] is None  # what was done in two turns has times of its own
        assert rows[key][:4] + rows[key][5:] == row[:4] + row[5:], key
        assert is_folder or rows[key] == row, key
    assert rows.keys() == before["paths"].keys()
    assert nothing_left_in(old)
    print("told, and undone when it was gone", flush=True)


def mounted_before(top: Path) -> None:
    """What was mounted when it was applied is undone as everything is."""
    old, new = top / "old", top / "new"
    plant(old, new)
    (old / "kept/disk").mkdir()
    subprocess.run(["mount", *ANOTHER, old / "kept/disk"], check=True)
    for folder in (old, new):
        (folder / "kept/disk/deep").mkdir(parents=True)
    (old / "kept/disk/deep/file").write_text("old\n")
    (new / "kept/disk/deep/file").write_text("new\n")
    (new / "kept/disk/made").mkdir()
    (old / "kept/disk/gone").mkdir()
    (old / "kept/disk/gone/file").write_text("gone\n")
    before = look(old)
    applied = apply(replace(compare(old, new), since_ns=time.time_ns()))
    assert (old / "kept/disk/deep/file").read_text() == "new\n"
    undo(applied.id)
    assert look(old) == before
    print("undone where it was mounted before", flush=True)


def read_only(top: Path) -> None:
    """A folder that only its attributes are of interest of, and that cannot be written."""
    old, new = top / "old", top / "new"
    plant(old, new)
    before = look(old)
    applied = apply(replace(compare(old, new), since_ns=time.time_ns()))
    place = old / "dressed"
    subprocess.run(["mount", "--bind", place, place], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
    now = look(old)
    try:
        undo(applied.id)
    except ChangesError as error:
        assert error.kind is Kind.PERMISSION, error
        assert f"{place} can only be read" in error.message, error
    else:
        raise AssertionError("nothing was told")
    assert look(old) == now
    assert recover() == []
    subprocess.run(["umount", place], check=True)
    undo(applied.id)
    assert look(old) == before
    print("told, and undone when it could be written", flush=True)


def main() -> None:
    os.environ["PODBOT_STATE"] = str(Path("state").resolve())
    os.environ["PODBOT_LAYERS"] = str(Path("layers").resolve())
    for number, (place, how) in enumerate(CASES):
        one(Path(str(number)).resolve(), place, how)
    mounted_before(Path("before").resolve())
    read_only(Path("read-only").resolve())


if __name__ == "__main__":
    main()
