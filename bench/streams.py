"""Much output through a live sandbox."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import podbot.sandbox
from bench.measure import Side, Spread, race
from bench.rows import Row, Target
from bench.setting import Setting

MIB = 1024 * 1024
SIZE = 1024 * MIB
QUICK_SIZE = 128 * MIB
CHUNK = 65536
# Two frames of the wire and what the allocator keeps of them: flat, next to what went through.
FLAT = 16.0


def stdout(setting: Setting) -> list[Row]:
    """The rate of a spawned process's output, and what it costs the host in memory."""
    size = QUICK_SIZE if setting.quick else SIZE
    command = ["head", "-c", str(size), "/dev/zero"]
    growth: list[float] = []

    def pipe() -> None:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            got, fd = 0, process.stdout.fileno()
            while chunk := os.read(fd, CHUNK):
                got += len(chunk)
        assert got == size

    with podbot.sandbox.open("overlay", target=setting.project("streams"), discard=True) as sandbox:

        def ours() -> None:
            before = _forget_peak()
            with sandbox.spawn(command) as process:
                got = sum(len(chunk) for chunk in process.stdout)
            assert got == size
            growth.append((_memory("VmHWM") - before) / MIB)

        spread = race({"ours": Side(ours), "pipe": Side(pipe)}, setting.pace(5, 0.05, warm_up=1))
    seconds_each = {name: Spread(s.median / 1e3, s.p90 / 1e3) for name, s in spread.items()}
    rates = {name: s.rate(size / MIB) for name, s in seconds_each.items()}
    label = f"{size // MIB} MiB of stdout, spawn"
    return [
        Row("stream", label, rates["ours"], "MiB/s", rates["pipe"], "pipe, os.read 64 KiB",
            Target(0.5, at_least=True)),
        # The first is the warm-up's, which may fill the allocator's own stock.
        Row("stream", "host memory while it streams, growth", Spread.of(growth[1:] or growth),
            "MiB", target=Target(FLAT)),
    ]  # fmt: skip


def _forget_peak() -> int:
    """Begin the high-water mark of our memory anew; gives the memory now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) * 1024
