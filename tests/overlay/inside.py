"""Small programs run inside a sandbox, and what tests of both sides of its walls need."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from podbot.sandbox import Sandbox, layers

# The real one: a link in a virtual environment below /tmp does not exist inside. Coverage knows
# only the link, and measures where that does exist.
MEASURED = any(name.startswith("COVERAGE_PROCESS") for name in os.environ)
PYTHON = sys.executable if MEASURED else os.path.realpath(sys.executable)
"""The interpreter behind any virtual environment: it lies where a sandbox can see it."""

MACHINE = platform.machine()

PRELUDE = """
import ctypes, errno, json, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def call(number, *arguments):
    "The name of the error a kernel call fails with, or 'worked'."
    if libc.syscall(ctypes.c_long(number), *arguments) >= 0:
        return "worked"
    return errno.errorcode[ctypes.get_errno()]

def attempt(action, *arguments):
    "The name of the error a Python function fails with, or 'worked'."
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
    return "worked"

def tell(found):
    print(json.dumps(found))
"""


def inside(sandbox: Sandbox, code: str, *arguments: str, timeout: float = 60) -> Any:
    """Run Python inside; gives what the code handed to ``tell``."""
    argv = [PYTHON, "-I", "-S", "-c", PRELUDE + code, *arguments]
    result = sandbox.exec(argv, timeout=timeout)
    assert result.ok, result
    return json.loads(result.stdout.splitlines()[-1])


def shell(sandbox: Sandbox, script: str, timeout: float = 60) -> str:
    """Run a shell script inside; gives its stdout, whatever its exit status."""
    result = sandbox.exec(["sh", "-c", script], timeout=timeout)
    assert not result.timed_out, result
    return result.stdout


def new_folder(parent: str | Path = "/var/tmp") -> Path:
    """An empty folder on a disk, outside of /tmp."""
    return Path(tempfile.mkdtemp(prefix="podbot-test-", dir=parent)).resolve()


def fill(target: Path) -> Path:
    """Make a small project in a folder."""
    (target / "src").mkdir()
    (target / "src" / "app.py").write_text("print('app')\n")
    (target / "README.md").write_text("read me\n")
    (target / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (target / "run.sh").chmod(0o755)
    (target / "link").symlink_to("README.md")
    return target


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it becomes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def removed(folder: Path) -> bool:
    """Whether nothing is left of a folder; a zygote may be removing what is in it, too."""
    with suppress(OSError):
        layers.remove(folder)
    return not folder.exists()


def manifest(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything about a tree that a sandbox might have changed."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        facts = path.lstat()
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_bytes()
        found[str(path)] = (
            facts.st_mode, facts.st_uid, facts.st_gid, facts.st_ino, facts.st_nlink,
            facts.st_mtime_ns, content,
        )  # fmt: skip
    return found


@contextmanager
def unchanged(*folders: Path) -> Iterator[None]:
    """Whatever happens meanwhile, these trees must stay as they are."""
    before = [manifest(folder) for folder in folders]
    yield
    assert [manifest(folder) for folder in folders] == before
