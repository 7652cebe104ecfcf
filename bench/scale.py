"""Many live sandboxes in one process.

Measured in a process of its own (``python -m bench.scale COUNT``), so that nothing an earlier
benchmark left behind is counted.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import podbot.sandbox
from bench.measure import Spread
from bench.rows import Row, Target
from bench.setting import Setting
from podbot.sandbox.overlay import owner

COUNT = 1000
QUICK_COUNT = 100
TRIED = 10
THREADS = 8
DESCRIPTORS = 2
CLOSE_SECONDS = 10.0
CHILD_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Crowd:
    """What so many live sandboxes took, and what was left once they were closed."""

    count: int
    seconds_to_open: float
    seconds_to_close: float
    pss_each: float
    available_each: float
    threads: int
    descriptors_each: float
    threads_left: int
    descriptors_left: int
    zygote_descriptors_left: int
    processes_left: int


def thousand(setting: Setting) -> list[Row]:
    """1,000 live sandboxes: memory, rate, threads, descriptors."""
    count = QUICK_COUNT if setting.quick else COUNT
    if setting.rounds is not None:
        count = min(count, setting.rounds * TRIED)
    command = [sys.executable, "-m", "bench.scale", str(count), str(setting.folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    crowd = Crowd(**json.loads(done.stdout))

    def row(what: str, value: float, unit: str, target: Target | None) -> Row:
        return Row("scale", what, Spread(value, value), unit, target=target)

    left = "left after close"
    return [
        row(f"{count} live sandboxes, PSS each", crowd.pss_each, "MiB", Target(3)),
        row("memory of the machine each, kernel's too", crowd.available_each, "MiB", None),
        row("sandboxes created", count / crowd.seconds_to_open, "/s", Target(120, at_least=True)),
        row("sandboxes closed", count / crowd.seconds_to_close, "/s", None),
        row("threads of the host, growth", crowd.threads, "", Target(THREADS)),
        row("descriptors of the host each", crowd.descriptors_each, "", Target(DESCRIPTORS)),
        row(f"threads {left}", crowd.threads_left, "", Target(0)),
        row(f"descriptors {left}", crowd.descriptors_left, "", Target(0)),
        row(f"descriptors of the zygote {left}", crowd.zygote_descriptors_left, "", Target(0)),
        row(f"processes {left}", crowd.processes_left, "", Target(0)),
    ]


@dataclass(frozen=True, slots=True)
class _State:
    """What host, zygote and guests hold at one moment."""

    threads: int
    descriptors: int
    zygote_descriptors: int
    processes: int

    @classmethod
    def now(cls, zygote: int) -> _State:
        return cls(
            threads=len(os.listdir("/proc/self/task")),
            descriptors=len(os.listdir("/proc/self/fd")),
            zygote_descriptors=len(os.listdir(f"/proc/{zygote}/fd")),
            processes=len(_family(zygote)),
        )

    def within(self, other: _State) -> bool:
        return (
            self.threads <= other.threads
            and self.descriptors <= other.descriptors
            and self.zygote_descriptors <= other.zygote_descriptors
            and self.processes <= other.processes
        )


def gather(count: int, folder: str) -> Crowd:
    """Open so many sandboxes, look, close them, look again."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def fresh() -> podbot.sandbox.Sandbox:
        return podbot.sandbox.open("overlay", target=folder, discard=True)

    # What podbot keeps for the life of a process (the zygote, its half-made spare) is there after
    # the first sandbox; the count begins behind it.
    with fresh() as sandbox:
        sandbox.exec(["true"]).check()
    zygote = owner.zygote().pid
    time.sleep(0.5)
    before, pss, available = _State.now(zygote), _pss(zygote), _available()

    start = time.perf_counter()
    crowd = [fresh() for _ in range(count)]
    seconds_to_open = time.perf_counter() - start
    time.sleep(0.5)
    live = _State.now(zygote)
    pss_each = (_pss(zygote) - pss) / count
    available_each = (available - _available()) / count
    for sandbox in crowd[:: max(1, count // TRIED)]:
        sandbox.exec(["true"]).check()

    start = time.perf_counter()
    for sandbox in crowd:
        sandbox.close()
    seconds_to_close = time.perf_counter() - start
    deadline = time.monotonic() + CLOSE_SECONDS
    after = _State.now(zygote)
    while not after.within(before) and time.monotonic() < deadline:
        time.sleep(0.1)
        after = _State.now(zygote)
    return Crowd(
        count=count,
        seconds_to_open=seconds_to_open,
        seconds_to_close=seconds_to_close,
        pss_each=pss_each,
        available_each=available_each,
        threads=live.threads - before.threads,
        descriptors_each=(live.descriptors - before.descriptors) / count,
        threads_left=after.threads - before.threads,
        descriptors_left=after.descriptors - before.descriptors,
        zygote_descriptors_left=after.zygote_descriptors - before.zygote_descriptors,
        processes_left=after.processes - before.processes,
    )


def _family(root: int) -> list[int]:
    """A process and everything below it."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                status = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue  # it ended meanwhile
            parent = int(status.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _pss(zygote: int) -> float:
    """MiB of the host, the zygote and all guests, shared pages split among those who share."""
    total = 0
    for pid in (os.getpid(), *_family(zygote)):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(size) for size in re.findall(r"^Pss:\s+(\d+) kB", text, re.M))
    return total / 1024


def _available() -> float:
    text = Path("/proc/meminfo").read_text()
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.M)
    assert found is not None
    return int(found[1]) / 1024


def main() -> None:
    """Measure a crowd and print it as JSON."""
    with tempfile.TemporaryDirectory(prefix="crowd", dir=sys.argv[2]) as folder:
        print(json.dumps(asdict(gather(int(sys.argv[1]), folder))))


if __name__ == "__main__":
    main()
