"""Run by a test in a mount namespace of its own: apply to a file system that is too small."""

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
from podbot.errors import ChangesError


def main() -> None:
    small, new = Path("small").resolve(), Path("new").resolve()
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small], check=True)
    os.environ["PODBOT_STATE"] = str(Path("state").resolve())
    os.environ["PODBOT_LAYERS"] = str(Path("layers").resolve())
    (small / "old").write_text("old\n")
    (new / "many").mkdir(parents=True)
    for number in range(5):
        (new / "many" / f"file{number}").write_bytes(bytes(1 << 20))
    before = look(small)
    try:
        apply(replace(compare(small, new), since_ns=time.time_ns()))
    except ChangesError as error:
        assert look(small) == before
        assert nothing_left_in(small)
        print(f"{error.kind.value}, and all is as it was")


if __name__ == "__main__":
    main()
