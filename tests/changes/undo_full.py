"""Run by a test in a mount namespace of its own: undo on a file system that is full by now.

``small`` says that what was added is smaller than what went, and ``killed`` that the undo is killed
once it has made room.
"""

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

from podbot.changes.applying import journal
from podbot.changes.applying.apply import apply
from podbot.changes.applying.recovery import recover
from podbot.changes.applying.undo import undo
from podbot.errors import ChangesError, Kind

MIB = 1 << 20
KILLED = 7


def plant(target: Path, new: Path, added: int) -> None:
    """Something goes, something is edited, and something comes."""
    (target / "kept").mkdir(parents=True)
    (target / "gone").write_bytes(b"g" * MIB)
    os.link(target / "gone", target / "gone-too")  # one file, that needs its room once
    (target / "edited").write_text("old\n")
    (new / "kept/more").mkdir(parents=True)
    (new / "kept/more/large").write_bytes(b"n" * added)
    (new / "edited").write_text("new\n")


def fill(path: Path) -> None:
    """Use up what is left of a file system."""
    with open(path, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


def killed(id: str) -> None:
    """Undo until there is room, and no further."""
    seen: list[str] = []
    real = journal.step

    def step(label: str) -> None:
        if label == "bring back" and "remove" in seen:
            os._exit(KILLED)
        seen.append(label)
        real(label)

    child = os.fork()
    if not child:
        journal.step = step
        try:
            undo(id)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


def main(how: str) -> None:
    disk, new = Path("disk").resolve(), Path("new").resolve()
    target = disk / "target"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], check=True)
    os.environ["PODBOT_STATE"] = str(Path("state").resolve())
    os.environ["PODBOT_LAYERS"] = str(Path("layers").resolve())
    plant(target, new, MIB // 2 if how == "small" else MIB * 3 // 2)
    before = look(target)
    id = apply(replace(compare(target, new), since_ns=time.time_ns())).id
    applied = look(target)
    fill(disk / "full")

    if how == "small":
        try:
            undo(id)
        except ChangesError as error:
            assert error.kind is Kind.DISK_FULL, error
            assert look(target) == applied
            print("told, and nothing is changed")
        return
    if how == "killed":
        killed(id)
        assert not (target / "gone").exists()
        assert not (target / "kept/more/large").exists()
        recover()
    else:
        undo(id)
    assert look(target) == before
    assert nothing_left_in(target)
    print("all is as it was")


if __name__ == "__main__":
    main(*sys.argv[1:])
