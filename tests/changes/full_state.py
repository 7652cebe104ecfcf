"""Run by a test in a mount namespace of its own: apply with a state folder on a full disk."""

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
from podbot.changes.applying.undo import undo
from podbot.changes.drift import conflicts
from podbot.errors import ChangesError, Kind

PAGE = 4096


def main() -> None:
    old, new, state = Path("old").resolve(), Path("new").resolve(), Path("state").resolve()
    os.environ["PODBOT_STATE"], os.environ["PODBOT_LAYERS"] = (
        str(state),
        str(Path("layers").resolve()),
    )
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", state], check=True)
    for folder, text in ((old, "old"), (new, "new")):
        folder.mkdir()
        for number in range(6):
            (folder / f"file{number}").write_text(text * 2000)
    (old / "gone").write_text("gone")
    since, before, failed = time.time_ns(), look(old), 0
    for pages in range(48):
        changes = replace(compare(old, new), since_ns=since)  # as it is looked at anew
        filler = state / "filler"
        fill(filler, state, pages)
        try:
            applied = apply(changes)
        except ChangesError as error:
            failed += 1
            assert error.kind is Kind.DISK_FULL, error
            assert str(state) in error.message, error
        else:
            filler.unlink(missing_ok=True)
            undo(applied.id)
        filler.unlink(missing_ok=True)
        assert look(old) == before
        assert nothing_left_in(old)
        found = conflicts(replace(compare(old, new), since_ns=since))
        assert not found, (pages, found)
    print("failed and worked" if 0 < failed < 48 else f"failed {failed} times")


def fill(filler: Path, state: Path, pages: int) -> None:
    free = os.statvfs(state).f_bavail - pages
    if free > 0:
        filler.write_bytes(bytes(free * PAGE))


if __name__ == "__main__":
    main()
