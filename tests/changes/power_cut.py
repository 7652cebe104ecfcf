"""Run by a test in a mount namespace of its own: what is on the disks when the power fails.

Target and state folder lie on file systems in images. At many steps of an apply and an undo the
images are copied from under the mounts, with whatever has reached them by then and nothing else.
Each copy is then mounted in their place, as after a start, and podbot looks at it.

Names and data need not reach a disk together: with ``names`` what was done to names is forced onto
it at each step, as a host does at any time, and only data waits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "applying"))

from test_journal import PLANT, WORK
from trees import look, nothing_left_in, worked_on

from podbot.changes.applying import journal
from podbot.changes.applying.apply import apply
from podbot.changes.applying.recovery import recover
from podbot.changes.applying.undo import applications, undo
from podbot.changes.capture import capture
from podbot.sandbox import layers

STRIDE = int(os.environ.get("PODBOT_CUT_STRIDE", "9"))
"""Every step would take minutes: each run tries some, and 1 tries all."""

FILES = 40
"""Files that are more than podbot waits for one by one."""


class Disk:
    """A file system in an image, mounted."""

    def __init__(self, name: str):
        self.image, self.mounted = Path(f"{name}.img"), Path(name).resolve()
        self.mounted.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(24 << 20)
        options = ["-q", "-F", "-I", "256", "-m", "0", "-E", "lazy_itable_init=0"]
        subprocess.run(["mkfs.ext4", *options, self.image], check=True)
        self.mount(self.image)

    def mount(self, image: Path) -> None:
        subprocess.run(["mount", "-o", "loop", image, self.mounted], check=True)

    def unmount(self, *how: str) -> None:
        subprocess.run(["umount", *how, self.mounted], check=True)

    def write_names(self) -> None:
        """Have the file system write what was done to names, but no data that can wait."""
        fd = os.open(self.mounted / "bystander", os.O_RDWR | os.O_CREAT, 0o600)
        os.write(fd, b"x")
        os.fsync(fd)
        os.close(fd)


class Cuts:
    """The images as they were at some steps, each with what must be found after a start."""

    def __init__(self, disks: list[Disk], names: bool, stride: int):
        self.disks, self._names, self._stride = disks, names, stride
        self.taken: list[tuple[str, str]] = []
        self._steps = 0

    def step(self, label: str) -> None:
        self._steps += 1
        if self._steps % self._stride == 0 or label.startswith("wrote"):  # each mark decides
            self.take(label)

    def take(self, label: str, expected: str = "either") -> None:
        if self._names:
            for disk in self.disks:
                disk.write_names()
        for disk in self.disks:
            copy = f"{disk.image}.{len(self.taken)}"
            subprocess.run(["cp", "--sparse=always", disk.image, copy], check=True)
        self.taken.append((label, expected))

    def during(self, action: Callable[[], Any], end: str) -> None:
        """Take some while something is done, and one when it says that it is done."""
        journal.step = self.step
        try:
            action()
        finally:
            journal.step = journal._pass
        self.take("reported", end)

    def visit(self, check: Callable[[str, str], None]) -> None:
        """Look at each as after a start."""
        for disk in self.disks:
            disk.unmount("--lazy")  # what was captured still holds its target
        for number, (label, expected) in enumerate(self.taken):
            for disk in self.disks:
                disk.mount(Path(f"{disk.image}.{number}"))
            check(f"{number} ({label})", expected)
            for disk in self.disks:
                disk.unmount()


def main(where: str, names: bool) -> None:
    disks = [Disk("disk")] if where == "one" else [Disk("disk"), Disk("other")]
    target = disks[0].mounted / "target"
    os.environ["PODBOT_STATE"] = str(disks[-1].mounted / "state")
    os.environ["PODBOT_LAYERS"] = str(Path("layers").resolve())
    os.umask(0o022)
    target.mkdir()
    subprocess.run(["bash", "-ec", PLANT], cwd=target, check=True)
    work = WORK
    if where != "few":
        for number in range(FILES):
            (target / f"old{number}").write_text(f"old {number}\n" * 500)
        work += "for each in old*; do echo more >> $each; done; mkdir -p much/more\n"
        work += f"for n in $(seq {FILES}); do seq $n 2000 > much/more/$n; done; rm old1 old2\n"
    else:
        work = "echo more >> edited; rm gone; mkdir made; seq 2000 > made/it; chmod 600 moded"
    before = look(target)
    changes, seen = worked_on(target, work)
    layer_id = changes.layer_id
    assert layer_id is not None
    layer = layers.get(layer_id)
    assert layer is not None
    for disk in disks:
        subprocess.run(["sync", "-f", disk.mounted], check=True)

    cuts = Cuts(disks, names, STRIDE if where != "few" else 4)
    current = capture(layer)
    cuts.during(lambda: apply(current, allow_flagged=True), "after")
    assert look(target)["paths"] == seen["paths"]
    after = look(target)
    cuts.during(lambda: undo(layer_id), "before")
    assert look(target) == before

    found: dict[str, int] = {"before": 0, "after": 0}

    def check(at: str, expected: str) -> None:
        told = recover()
        now = look(target)
        state = "before" if now == before else "after" if now == after else "neither"
        assert state in (("before", "after") if expected == "either" else (expected,)), (
            at, state, told, different(now, before), different(now, after),
        )  # fmt: skip
        assert nothing_left_in(target), at
        assert recover() == [], (at, told)
        if state == "after":
            undo(layer_id)
            assert look(target) == before, (at, different(look(target), before))
            assert nothing_left_in(target), at
        assert all(each.undone for each in applications(layer_id)), at
        found[state] += 1

    cuts.visit(check)
    assert found["before"] > 1 and found["after"], found  # the end that was reported, at least
    shutil.rmtree("layers", ignore_errors=True)
    print(f"{len(cuts.taken)} cuts: all is as before or as after")


def different(one: dict[str, Any], other: dict[str, Any]) -> list[object]:
    paths = {**one["paths"], **other["paths"]}
    return [
        (path, one["paths"].get(path), other["paths"].get(path))
        for path in paths
        if one["paths"].get(path) != other["paths"].get(path)
    ][:5] or [one["links"], other["links"]]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "names")
