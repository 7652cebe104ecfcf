"""Runs small programs inside a sandbox and reads what they found out, as JSON on their stdout."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from podbot.sandbox import Sandbox

PYTHON = os.path.realpath(sys.executable)
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
