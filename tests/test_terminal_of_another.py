"""A terminal that belongs to another user, as after `su`: it cannot be opened by its own name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import podbot

FILLS = """
import fcntl, os, signal, sys, termios
sys.path.insert(0, sys.argv[1])
from podbot.launch.flow import End

signal.alarm(60)  # who waits for a terminal that nobody reads waits for ever
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.fchmod(1, 0)  # nor may its owner open it now; root becomes somebody who is bound by that
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    os.open("/proc/self/fd/1", os.O_WRONLY | os.O_NOCTTY)
except PermissionError:
    print("closed to us", file=sys.stderr)
end = End.shared(1, os.O_WRONLY)
try:
    while True:
        end.write(memoryview(b"x" * 65536))
except BlockingIOError:
    print("full", file=sys.stderr)
print("shared:", os.get_blocking(1), file=sys.stderr, flush=True)
os._exit(0)
"""


def test_nothing_waits_for_it_when_its_screen_takes_no_more() -> None:
    screen, terminal = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", FILLS, str(Path(podbot.__file__).parent.parent)],
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            check=False,
        )
    finally:
        os.close(terminal)
        os.close(screen)

    assert done.returncode == 0, done
    assert done.stderr.splitlines() == ["closed to us", "full", "shared: True"]
